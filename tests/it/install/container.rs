//! The command of `packaging/Containerfile`, without a container: as its user, with the secrets where
//! it expects them, against a real server in a network of its own.

use crate::support::TestEnv;
use crate::support::nats::tool;
use crate::support::web::{TOKEN, access_file};

/// Sets up what a container has, starts the command, and prints the reply of the page. All processes
/// end with the script, which is the first of its process namespace.
const CONTAINER: &str = r#"
set -euo pipefail
ip link set lo up
mount -t tmpfs tmpfs /run
touch /run/ccm
mount --bind "$CCM" /run/ccm
/run/ccm fleet trust init /run/trust --listen 127.0.0.1:4222 >/dev/null
"$NATS" -c /run/trust/nats.conf 2>/run/nats.log &
context=/run/trust/contexts/controller-main.json
until /run/ccm fleet init --context "$context" >/run/init.log 2>&1; do
    kill -0 $! || { cat /run/nats.log >&2; exit 1; }
    sleep 0.1
done
mkdir /run/secrets
for secret in "$ACCESS" "$context" /run/trust/creds/controller-main.creds /run/trust/tls/ca.pem; do
    install -o 65534 -g 65534 -m 0400 "$secret" /run/secrets/
done
cd /run/secrets
mv controller-main.json context
mv controller-main.creds creds
sed -i 's|/run/trust/creds/controller-main.creds|/run/secrets/creds|; s|/run/trust/tls|/run/secrets|' context
chmod 0700 /run/trust
NATS_CONTEXT=/run/secrets/context setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs \
    /run/ccm "$@" >/run/log 2>&1 &
until grep -q ^serving /run/log; do
    kill -0 $! || { cat /run/log >&2; exit 1; }
    sleep 0.1
done
# The page is healthy once it has read the records of the fleet.
until [[ ${reply-} = *' 200 OK'* ]]; do
    kill -0 $! || { cat /run/log >&2; exit 1; }
    exec 3<>/dev/tcp/127.0.0.1/8480
    printf 'GET /healthz HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n' "$TOKEN" >&3
    reply=$(cat <&3)
    sleep 0.1
done
echo "$reply"
"#;

/// Returns the words of the last instruction.
fn command() -> Vec<String> {
    let text = include_str!("../../../packaging/Containerfile");
    let mut lines = text.lines();
    let command = lines.find_map(|line| line.strip_prefix("CMD ")).unwrap();
    serde_json::from_str(command).unwrap()
}

#[test]
fn the_command_of_the_container_serves_the_page_as_its_user() {
    let env = TestEnv::new();
    let access = env.write("access", access_file(""));
    let outcome = env
        .program("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--kill-child"])
        .args(["bash", "-c", CONTAINER, "container"])
        .args(command())
        .env("CCM", env!("CARGO_BIN_EXE_ccm"))
        .env("NATS", tool("nats-server"))
        .env("ACCESS", access)
        .env("TOKEN", TOKEN)
        .output()
        .unwrap();
    let reply = String::from_utf8(outcome.stdout).unwrap();
    let error = String::from_utf8(outcome.stderr).unwrap();
    assert!(reply.contains(" 200 OK\r\n"), "{reply}{error}");
}
