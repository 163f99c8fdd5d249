//! Output of package managers, package modules and systemctl, and requests of CFEngine. Property: a
//! response to CFEngine contains protocol lines only.

#![no_main]

use std::path::Path;

use ccm::cfengine::{Command, respond};
use ccm_core::model::resource::{Package, Properties, Resource, Service};
use ccm_core::resource::scaffold::SourceCache;
use ccm_core::resource::service::ServiceCache;
use ccm_core::resource::{Host, SelectedProvider, package, select_provider};
use ccm_core::system::files::Writer;
use ccm_core::system::{Accounts, FixedClock};
use ccm_fuzz::{FixedOutput, split_at_zero, temp_dir};
use ccm_template::Env;
use chrono::DateTime;
use libfuzzer_sys::fuzz_target;

const KEYS: [&str; 6] = [
    "Name",
    "File",
    "Version",
    "Architecture",
    "PackageType",
    "ErrorMessage",
];

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else {
        return;
    };
    let (request, stdout) = split_at_zero(bytes);
    let runner = FixedOutput {
        code: i32::from(choice >> 6),
        stdout,
    };
    let dir = temp_dir();
    let packages = package::PackageCache::new(dir.path().join("lock"));
    let (accounts, env) = (Accounts::default(), Env::default());
    let (services, scaffolds) = (ServiceCache::default(), SourceCache::default());
    let clock = FixedClock::new(DateTime::UNIX_EPOCH);
    let host = Host {
        runner: &runner,
        clock: &clock,
        accounts: &accounts,
        working_dir: Path::new("/"),
        state_dir: None,
        files: Writer::default(),
        env: &env,
        packages: &packages,
        services: &services,
        scaffolds: &scaffolds,
    };
    let provider = ["apt", "dnf", "cfengine/module"][usize::from(choice % 3)];
    for command in [
        Command::GetPackageData,
        Command::ListInstalled,
        Command::ListUpdatesLocal,
        Command::RepoInstall,
        Command::FileInstall,
        Command::Remove,
    ] {
        for line in respond(command, request, provider, host).lines() {
            let key = line.split_once('=').map(|(key, _)| key);
            assert!(
                key.is_some_and(|key| KEYS.contains(&key)),
                "{command:?}: {line:?}"
            );
        }
    }
    let package = Properties::Package(Package::default());
    let service = Properties::Service(Service::default());
    for (properties, ensure, provider) in [
        (package, "present", provider),
        (service, "running", "systemd"),
    ] {
        let mut resource = Resource::new("zsh", ensure, properties);
        resource.common.provider = provider.into();
        if resource.complete().is_ok()
            && let Ok(SelectedProvider::Managed(managed)) = select_provider(&resource, host)
        {
            let _ = managed.inspect(host);
        }
    }
});
