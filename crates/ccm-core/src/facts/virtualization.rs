//! Whether this machine is a guest, hosts guests, or neither.
//!
//! There is no one place to ask. Each check looks at a trace that one system leaves, and a later
//! check overrides an earlier one: from the hardware outside to the container inside, so the
//! answer is the innermost.

use super::files::{self, Places};
use super::platform;

/// The processors of a machine are of one model: the first ones tell it.
const FIRST_PROCESSORS: u64 = 8 * 1024;

/// What runs this machine, or what this machine runs. Empty when neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Virtualization {
    pub(super) system: &'static str,
    pub(super) role: &'static str,
}

impl Virtualization {
    const fn guest(system: &'static str) -> Self {
        let role = "guest";
        Self { system, role }
    }

    const fn host(system: &'static str) -> Self {
        let role = "host";
        Self { system, role }
    }

    /// Whether it is a container whose kernel counts its uptime from the container's start.
    pub(super) fn is_container(self) -> bool {
        self == Self::guest("lxc") || self == Self::guest("docker")
    }
}

/// Returns the virtualization of this machine.
pub(super) fn detect(places: &Places) -> Virtualization {
    let proc = |name: &str| files::text(&places.proc.join(name)).unwrap_or_default();
    let exists = |name: &str| places.proc.join(name).exists();
    let mut found = Virtualization::default();

    if exists("xen") {
        found = if proc("xen/capabilities").contains("control_d") {
            Virtualization::host("xen")
        } else {
            Virtualization::guest("xen")
        };
    }
    found = by_modules(&proc("modules")).unwrap_or(found);
    let models = [
        "QEMU Virtual CPU",
        "Common KVM processor",
        "Common 32-bit KVM processor",
    ];
    let processors = files::head(&places.proc.join("cpuinfo"), FIRST_PROCESSORS);
    if processors.is_some_and(|text| models.iter().any(|model| text.contains(model))) {
        found = Virtualization::guest("kvm");
    }
    if proc("bus/pci/devices").contains("virtio-pci") {
        found.role = "guest";
    }
    if exists("bc/0") {
        found = Virtualization::host("openvz");
    } else if exists("vz") {
        found = Virtualization::guest("openvz");
    }
    let status = proc("self/status");
    if ["s_context:", "VxID:"]
        .iter()
        .any(|key| status.contains(key))
    {
        found.system = "linux-vserver";
    }
    if proc("1/environ").contains("container=lxc") {
        found = Virtualization::guest("lxc");
    }
    found = by_cgroup(places, &proc("self/cgroup")).unwrap_or(found);
    let os_release = files::text(&places.etc.join("os-release")).unwrap_or_default();
    if platform::os_id(&os_release) == "coreos" {
        found = Virtualization::host("rkt");
    }
    if places.root.join(".dockerenv").exists() {
        found = Virtualization::guest("docker");
    }
    found
}

fn by_modules(modules: &str) -> Option<Virtualization> {
    [
        ("kvm", Virtualization::host("kvm")),
        ("hv_util", Virtualization::guest("hyperv")),
        ("vboxdrv", Virtualization::host("vbox")),
        ("vboxguest", Virtualization::guest("vbox")),
        ("vmware", Virtualization::guest("vmware")),
    ]
    .into_iter()
    .find(|(trace, _)| modules.contains(trace))
    .map(|(_, found)| found)
}

fn by_cgroup(places: &Places, cgroup: &str) -> Option<Virtualization> {
    if cgroup.is_empty() {
        return None;
    }
    [("lxc", "lxc"), ("docker", "docker"), ("machine-rkt", "rkt")]
        .into_iter()
        .find(|(trace, _)| cgroup.contains(trace))
        .map(|(_, system)| Virtualization::guest(system))
        .or_else(|| {
            let tools = places.root.join("usr/bin/lxc-version");
            tools.exists().then_some(Virtualization::host("lxc"))
        })
}
