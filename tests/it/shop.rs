//! `examples/shop` on a real systemd: applied as its comment says, stable afterwards, and with the data
//! of another environment.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::deb::Deb;
use crate::support::poll::{wait_for, when};
use crate::support::systemd::{SystemdHost, systemd_host};

/// A package with the name, paths and unit of nginx.
const NGINX: Deb<'static> = Deb {
    name: "nginx",
    version: "1.22.1-9",
    arch: "all",
    control: "",
    files: &[
        (
            "usr/sbin/nginx",
            "#!/bin/sh\n[ \"$1\" != -t ] || exec grep -q '^  server_name .*;' /etc/nginx/conf.d/shop.conf\n\
             exec sleep infinity\n",
        ),
        ("etc/nginx/conf.d/default.conf", "# empty\n"),
        (
            "usr/lib/systemd/system/nginx.service",
            "[Service]\nExecStart=/usr/sbin/nginx\nExecReload=/bin/true\n[Install]\nWantedBy=multi-user.target\n",
        ),
    ],
};

const PASSWORD: &str = "correct horse battery staple";

/// A web server in the network of the host, with the archive of the application.
struct Mirror {
    server: Child,
    _directory: tempfile::TempDir,
}

impl Mirror {
    fn start(host: &SystemdHost) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let archive = directory.path().join("shop-1.2.0.tar.gz");
        let packed = Command::new("tar")
            .args([
                "-C",
                "examples/shop/app",
                "--transform",
                r"s,^\.,shop-1.2.0,",
            ])
            .args(["--owner=0", "--group=0", "-czf"])
            .arg(&archive)
            .arg(".")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(packed.unwrap().success());
        let server = Command::new("nsenter")
            .arg(format!("--net={}", host.network()))
            .args([
                "python3",
                "-m",
                "http.server",
                "--bind",
                "127.0.0.1",
                "8000",
            ])
            .current_dir(directory.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            server,
            _directory: directory,
        }
    }
}

impl Drop for Mirror {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Applies the example, and returns the outcome of each resource and all that was printed.
fn apply(host: &SystemdHost, flags: &[&str]) -> (Vec<String>, String) {
    let args = ["apply", "/srv/shop", "--json"];
    let printed = host.ccm(&[&args[..], flags].concat()).ok();
    let document: Value = serde_json::from_str(&printed).unwrap();
    let outcome = |event: &Value| {
        let is = |key: &str| event[key] == true;
        let outcome = match () {
            () if is("failed") || is("skipped") => "failed",
            () if is("refreshed") => "refreshed",
            () if is("changed") => "changed",
            () => "stable",
        };
        outcome.to_owned()
    };
    let events = document["events"].as_array().unwrap();
    (events.iter().map(outcome).collect(), printed)
}

#[test]
fn the_shop_is_set_up_and_stays() {
    let host = systemd_host();
    host.use_apt_repository(&[NGINX]);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/shop");
    host.copy_directory(&example, "/srv/shop");
    let secrets = format!("data: {{database: {{password: \"{PASSWORD}\"}}}}\n");
    host.write("/root/secrets.yaml", &secrets);
    let _mirror = Mirror::start(&host);
    let production = [
        "--fact",
        "environment=production",
        "--hiera",
        "secrets.yaml",
    ];
    // The web server may need a moment.
    let _reached = wait_for("the archive", || {
        let probe = "exec 3<>/dev/tcp/127.0.0.1/8000";
        let reached = host.run(&["bash", "-c", probe]);
        when(reached.code == Some(0), reached)
    });
    let (outcomes, printed) = apply(&host, &production);
    assert!(
        outcomes
            .iter()
            .all(|it| it == "changed" || it == "refreshed"),
        "{printed}"
    );
    assert!(!printed.contains(PASSWORD), "{printed}");
    assert!(host.read("/etc/shop/secrets.env").contains(PASSWORD));
    assert!(
        host.read("/etc/shop/conf.d/shop.conf")
            .contains("workers=8\n")
    );
    assert!(
        host.read("/etc/shop/conf.d/database.conf")
            .contains("host=db.example.net\n")
    );
    for unit in ["shop", "nginx"] {
        assert_eq!(host.word("is-active", unit), "active");
        assert_eq!(host.word("is-enabled", unit), "enabled");
    }

    let (outcomes, printed) = apply(&host, &production);
    assert!(outcomes.iter().all(|it| it == "stable"), "{printed}");

    // Another environment: its settings restart the application.
    let started = host.property("shop", "MainPID");
    let (outcomes, printed) = apply(
        &host,
        &["--fact", "environment=staging", "--hiera", "secrets.yaml"],
    );
    let refreshed = outcomes.iter().filter(|it| *it == "refreshed").count();
    assert_eq!(
        refreshed, 3,
        "nginx, its check and the application: {printed}"
    );
    assert_ne!(host.property("shop", "MainPID"), started);
    host.sh("systemctl disable --now -q shop nginx; apt-get purge -q -y nginx; rm -r /etc/shop /opt/shop \
             /etc/systemd/system/shop.service; systemctl daemon-reload; systemctl reset-failed");
}
