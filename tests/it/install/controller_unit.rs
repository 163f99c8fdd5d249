//! The unit of the controller, on a real systemd: it serves the page with the drop-in of docs/install.md.

use super::approver_unit::{remove_server, start_fleet};
use super::{SBIN, remove_ccm};
use crate::support::poll::{wait_for, when};
use crate::support::systemd::systemd_host;
use crate::support::web::{TOKEN, access_file};

/// Returns the drop-in of the documentation.
fn drop_in() -> &'static str {
    let text = include_str!("../../../docs/install.md");
    let start = text.find("```ini\n").unwrap();
    let text = text[start..].trim_start_matches("```ini\n");
    text.split("```").next().unwrap()
}

#[test]
fn the_controller_serves_the_page_with_the_documented_drop_in() {
    let host = systemd_host();
    start_fleet(&host);
    // The files that the drop-in names, as the documentation describes them.
    host.sh(
        "umask 077
         cd /etc/choria/ccm
         cp trust/creds/controller-main.creds controller.creds
         sed 's|\"creds\": *\"[^\"]*\"|\"creds\": \"/run/credentials/ccm-controller.service/creds\"|' \
             trust/contexts/controller-main.json >controller-context.json",
    );
    host.write("/etc/choria/ccm/page-access.yaml", &access_file(""));
    host.sh("chmod 0600 /etc/choria/ccm/page-access.yaml
         mkdir -p /etc/systemd/system/ccm-controller.service.d");
    host.unit("ccm-controller.service.d/override.conf", drop_in());
    host.sh("systemctl daemon-reload; systemctl start ccm-controller");
    let get = format!(
        "exec 3<>/dev/tcp/127.0.0.1/8480
         printf 'GET /healthz HTTP/1.0\\r\\nHost: localhost\\r\\nAuthorization: Bearer {TOKEN}\\r\\n\\r\\n' >&3
         cat <&3"
    );
    wait_for("a page that is healthy", || {
        let reply = host.run(&["bash", "-c", &get]);
        let log = host.sh("journalctl -u ccm-controller --no-pager -o cat");
        when(reply.stdout.contains(" 200 OK"), format!("{reply:?}{log}"))
    });
    let pid = host.property("ccm-controller", "MainPID");
    let user = host.sh(&format!("stat -c %U /proc/{pid}"));
    assert_ne!(user, "root\n");
    assert_eq!(host.property("ccm-controller", "NRestarts"), "0");
    host.sh(&format!("{SBIN} systemctl stop ccm-controller"));
    remove_server(&host);
    remove_ccm(&host);
}
