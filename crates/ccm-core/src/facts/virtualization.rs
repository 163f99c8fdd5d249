//! Detection of virtualization: guest, host, or neither.
//!
//! Each check looks for traces of one system. Later checks override earlier ones, from hardware
//! virtualization to containers, so the result is the innermost system.

use super::files::{self, FactPaths};
use super::platform;

/// Bytes read of `cpuinfo`: all processors have the same model.
const FIRST_PROCESSORS: u64 = 8 * 1024;

/// A virtualization system and the role of this machine, both empty if there is none.
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

    /// Whether it is a container whose uptime starts with the container.
    pub(super) fn is_container(self) -> bool {
        self == Self::guest("lxc") || self == Self::guest("docker")
    }
}

/// Returns the virtualization of this machine.
pub(super) fn detect(paths: &FactPaths) -> Virtualization {
    let proc = |name: &str| files::text(&paths.proc.join(name)).unwrap_or_default();
    let exists = |name: &str| paths.proc.join(name).exists();
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
    let processors = files::head(&paths.proc.join("cpuinfo"), FIRST_PROCESSORS);
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
    found = by_cgroup(paths, &proc("self/cgroup")).unwrap_or(found);
    let os_release = files::text(&paths.etc.join("os-release")).unwrap_or_default();
    if platform::os_id(&os_release) == "coreos" {
        found = Virtualization::host("rkt");
    }
    if paths.root.join(".dockerenv").exists() {
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

fn by_cgroup(paths: &FactPaths, cgroup: &str) -> Option<Virtualization> {
    if cgroup.is_empty() {
        return None;
    }
    [("lxc", "lxc"), ("docker", "docker"), ("machine-rkt", "rkt")]
        .into_iter()
        .find(|(trace, _)| cgroup.contains(trace))
        .map(|(_, system)| Virtualization::guest(system))
        .or_else(|| {
            let tools = paths.root.join("usr/bin/lxc-version");
            tools.exists().then_some(Virtualization::host("lxc"))
        })
}
