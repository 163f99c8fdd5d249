//! The configuration file of the NATS server.

use std::path::Path;

use super::Fleet;

/// Returns the text of `nats.conf`.
pub(super) fn text(fleet: &Fleet, directory: &Path, listen: &str) -> String {
    let at = |name: &str| directory.join(name);
    format!(
        "# NATS server of the fleet, written by `ccm fleet trust init`. Start it with\n\
         #\n\
         #   nats-server -c {}\n\
         #\n\
         # Users, permissions and revocations are in the JWTs of the accounts, which the server keeps in\n\
         # the resolver directory. This file does not change when nodes are enrolled or revoked.\n\
         \n\
         listen: {listen:?}\n\
         \n\
         jetstream {{\n  store_dir: {:?}\n}}\n\
         \n\
         tls {{\n  cert_file: {:?}\n  key_file: {:?}\n}}\n\
         \n\
         operator: {:?}\n\
         system_account: {}\n\
         resolver {{\n  type: full\n  dir: {:?}\n  allow_delete: false\n  interval: \"2m\"\n}}\n",
        at("nats.conf").display(),
        at("jetstream"),
        fleet.tls.certificate,
        fleet.tls.key,
        at("operator.jwt"),
        fleet.system_account,
        at("resolver"),
    )
}
