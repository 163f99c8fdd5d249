//! The shop of `examples/shop`, applied to a booted system in its three environments.

use std::path::Path;

use crate::support::deb::Deb;
use crate::support::systemd::systemd_host;

/// A program that serves files of /srv/artifacts, started by systemd for each connection.
const SERVE: &str = "#!/bin/sh
read -r method path version
while read -r line && [ ${#line} -gt 1 ]; do :; done
file=/srv/artifacts$path
printf 'HTTP/1.0 200 OK\\r\\nContent-Length: %s\\r\\n\\r\\n' \"$(stat -c %s \"$file\")\"
cat \"$file\"
";

const SHOP: &str = "#!/bin/sh
[ \"$1\" != --check ] || exec grep -q release \"$2\"
grep release \"$1\" >/run/shop/release || exit 1
echo \"$DATABASE_HOST $DATABASE_PASSWORD\" >/run/shop/connected
exec sleep infinity
";

const CHECK: &str = "#!/bin/sh
[ -s /run/shop/connected ] && echo OK - connected && exit 0
echo CRITICAL - not connected
exit 2
";

#[test]
fn the_shop_runs_in_each_environment_with_its_own_data_and_secret() {
    let host = systemd_host();
    host.use_apt_repository(&[Deb {
        name: "nginx",
        version: "1.26.3-3",
        arch: "all",
        control: "",
        files: &[
            ("usr/sbin/nginx", "#!/bin/sh\nexec sleep infinity\n"),
            (
                "usr/lib/systemd/system/nginx.service",
                "[Service]\nExecStart=/usr/sbin/nginx\n[Install]\nWantedBy=multi-user.target\n",
            ),
            (
                "etc/nginx/nginx.conf",
                "user www-data;\nworker_processes auto;\ninclude sites-enabled/*;\n",
            ),
        ],
    }]);
    for release in ["1.4.2", "1.5.0"] {
        let program = format!("/srv/artifacts/shop-{release}/bin");
        host.sh(&format!("mkdir -p {program}"));
        host.write(&format!("{program}/shop"), SHOP);
        host.write(&format!("{program}/check"), CHECK);
        host.sh(&format!(
            "cd /srv/artifacts; chmod 0755 shop-{release}/bin/*; tar czf shop-{release}.tar.gz shop-{release}"
        ));
    }
    host.write("/usr/local/bin/serve-artifacts", SERVE);
    host.unit(
        "artifacts@.service",
        "[Service]\nStandardInput=socket\nExecStart=/bin/sh /usr/local/bin/serve-artifacts\n",
    );
    host.unit(
        "artifacts.socket",
        "[Socket]\nListenStream=127.0.0.1:8000\nAccept=yes\n",
    );
    host.sh("systemctl daemon-reload; systemctl start artifacts.socket");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/shop");
    host.copy_directory(&example, "/root/shop");
    host.sh("chown -R root:root /root/shop; chmod 0600 /root/shop/example.key");
    for (name, release, workers, vhost) in [
        ("development", "1.5.0", 1, "localhost"),
        ("staging", "1.5.0", 2, "staging.shop.example.net"),
        ("production", "1.4.2", 8, "www.shop.example.net"),
    ] {
        let fact = format!("env={name}");
        let args = [
            "apply",
            "shop",
            "--fact",
            &fact,
            "--secret-key",
            "shop/example.key",
            "--json",
        ];
        let first = host.ccm(&[&args[..], &["--diff"]].concat());
        let secret = format!("{name}-database-password");
        assert!(!format!("{first:?}").contains(&secret), "{first:?}");
        let report: serde_json::Value = serde_json::from_str(&first.stdout).unwrap();
        let summary = &report["summary"];
        assert_eq!(summary["failed_resources"], 0, "{name}: {report:#}");
        assert_ne!(summary["changed_resources"], 0, "{name}: {report:#}");
        let conf = host.read("/etc/shop/shop.conf");
        assert!(
            conf.contains(&format!("release {release}\nworkers {workers}\n")),
            "{conf}"
        );
        let site = host.read("/etc/nginx/sites-enabled/shop.conf");
        assert!(site.contains(&format!("server_name {vhost};")), "{site}");
        assert_eq!(site.contains("localhost"), name == "development", "{site}");
        assert_eq!(
            host.read("/etc/nginx/nginx.conf"),
            format!("user www-data;\nworker_processes {workers};\ninclude sites-enabled/*;\n")
        );
        assert_eq!(host.sh("cd /var/www/shop; find . -type f"), "./503.html\n");
        assert_eq!(
            host.read("/run/shop/connected").trim(),
            format!("db.{name}.example.net {secret}")
        );
        // The restarted service runs the release that the link names, as its own user.
        assert_eq!(
            host.read("/run/shop/release"),
            format!("release {release}\n")
        );
        let state = host.sh("readlink /opt/shop; stat -c %U:%G /run/shop/release");
        assert_eq!(state, format!("shop-{release}\nshop:shop\n"));
        for unit in ["shop", "nginx"] {
            assert_eq!(host.word("is-active", unit), "active");
            assert_eq!(host.word("is-enabled", unit), "enabled");
        }
        let again: serde_json::Value = serde_json::from_str(&host.ccm(&args).stdout).unwrap();
        assert_eq!(
            again["summary"]["changed_resources"], 0,
            "{name}: {again:#}"
        );
        // The next environment removes it.
        host.write("/var/www/shop/unknown.html", "");
    }
    host.sh("systemctl disable --now shop nginx; systemctl stop artifacts.socket; rm -f /etc/systemd/system/shop.service");
}
