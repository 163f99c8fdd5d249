# ccm agent as a Choria server, alone, and the choria command. Sourced by scripts/interop after interop-choria.sh,
# which has a broker with other security.

lab=$work/choria-server
mkdir -p "$lab"/{ssl,policies,streams}
read -r broker_port nats_port unused_port < <(free_ports 3)

(
    cd "$lab/ssl"
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=interop -keyout ca.key -out ca.pem
    openssl req -newkey rsa:2048 -nodes -subj /CN=broker.lab -keyout broker.key -out broker.csr
    printf 'subjectAltName=DNS:broker.lab,DNS:localhost,IP:127.0.0.1\n' >ext
    openssl x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile ext -out broker.pem
) >/dev/null 2>&1

# Keys and tokens made for this purpose.
(
    cd "$lab"
    for name in issuer broker web1 ann bob; do "$choria" jwt keys $name.seed $name.public; done
    "$choria" jwt server broker.jwt broker.lab "$(cat broker.public)" issuer.seed
    "$choria" jwt server web1.jwt web1.lab "$(cat web1.public)" issuer.seed --collectives mcollective \
        --collectives ops
    "$choria" jwt client ann.jwt choria=ann issuer.seed --public-key "$(cat ann.public)" --agents '*'
    "$choria" jwt client bob.jwt choria=bob issuer.seed --public-key "$(cat bob.public)" --agents 'ccm.ping'
    chmod 600 ./*.jwt ./*.seed
) >/dev/null

# token_config NAME PORT: prints what all roles have.
token_config() {
    cat <<EOF
identity = $1
logfile = $lab/$1.log
loglevel = info
plugin.security.provider = choria
plugin.security.choria.certificate = $lab/ssl/broker.pem
plugin.security.choria.key = $lab/ssl/broker.key
plugin.security.choria.ca = $lab/ssl/ca.pem
plugin.security.choria.token_file = $lab/${1%.lab}.jwt
plugin.security.choria.seed_file = $lab/${1%.lab}.seed
plugin.security.issuer.names = choria
plugin.security.issuer.choria.public = $(cat "$lab/issuer.public")
plugin.choria.use_srv = false
plugin.choria.middleware_hosts = nats://127.0.0.1:$2
plugin.choria.agent_provider.mcorpc.libdir = $choria_dir/libdir
libdir = $choria_dir/libdir
collectives = mcollective,ops
main_collective = mcollective
EOF
}
{
    token_config broker.lab "$broker_port"
    cat <<EOF
plugin.choria.broker_network = true
plugin.choria.network.listen_address = 127.0.0.1
plugin.choria.network.client_port = $broker_port
plugin.choria.network.stream.store = $lab/streams
plugin.choria.network.system.user = system
plugin.choria.network.system.password = system
EOF
} >"$lab/broker.conf"
for name in ann bob; do
    token_config $name "$broker_port" >"$lab/$name.conf"
    token_config $name "$nats_port" >"$lab/$name-nats.conf"
done
printf 'policy default allow\n' >"$lab/policies/rpcutil.policy"
printf 'policy default deny\nallow\tchoria=ann choria=bob\t*\t*\t*\n' >"$lab/policies/ccm.policy"

# agent_config NAME SERVERS-LINE: prints the configuration of an agent.
agent_config() {
    cat <<EOF
identity: web1.lab
groups: [web]
state_dir: $lab/$1/state
cache_dir: $lab/$1/cache
choria:
  server: true
  collectives: [mcollective, ops]
  token: $lab/web1.jwt
  seed: $lab/web1.seed
  policies: $lab/policies
  issuers:
    - {name: choria, key: $(cat "$lab/issuer.public")}
$2
EOF
}
agent_config broker "  servers: [nats://127.0.0.1:$broker_port]
  ca: $lab/ssl/ca.pem
servers: nats://127.0.0.1:$unused_port" >"$lab/agent-broker.yaml"
agent_config nats "nats_context: $lab/context.json" >"$lab/agent-nats.yaml"
printf '{"url": "nats://127.0.0.1:%s", "ca": "%s"}\n' "$nats_port" "$lab/ssl/ca.pem" >"$lab/context.json"
printf 'listen: 127.0.0.1:%s\ntls {cert_file: "%s", key_file: "%s"}\n' "$nats_port" "$lab/ssl/broker.pem" \
    "$lab/ssl/broker.key" >"$lab/nats.conf"
chmod 600 "$lab"/*.yaml "$lab/context.json"

as() {
    local name=$1
    shift
    USER=$name "$choria" "$@" --config "$lab/$name$suffix.conf"
}

# server_checks WHERE: what a client must see of the agent.
server_checks() {
    # grep reads to the end: choria fails if nobody reads its output.
    sees_node() { as ann ping | grep web1.lab >/dev/null; }
    wait_until sees_node
    check "$1 choria ping" 'web1.lab' as ann ping
    check "$1 choria ping in a sub-collective" 'web1.lab' as ann ping -T ops
    check "$1 choria discover by identity" 'web1.lab' as ann discover -I /web/
    check "$1 choria discover by class" 'web1.lab' as ann discover -C web
    check "$1 choria discover by expression" 'web1.lab' as ann discover -S 'with("web") && with("agent") == false'
    check "$1 choria inventory" 'Version' as ann inventory web1.lab
    check "$1 choria facts" 'web1.lab' as ann facts host.info.os --verbose
    check "$1 rpcutil get_fact" '"value": ?"linux"' as ann req rpcutil get_fact fact=host.info.os --json
    check "$1 rpcutil daemon_stats" '"validated"' as ann req rpcutil daemon_stats --json
    check "$1 ccm ping" '"identity": ?"web1.lab"' as ann req ccm ping --json
    check "$1 ccm ensure" '"changed": ?true' as ann req ccm ensure type=exec name=/bin/true --json
    check "$1 ccm status" '"directory"' as ann req ccm status type=file name=/tmp --json
    check "$1 ccm apply" '"outcome": ?"changed"' as ann req ccm apply \
        'manifest=ccm: {resources: [{exec: {name: /bin/true}}]}' wait=10 --json
    check "$1 token policy allows" '"statuscode": ?0' as bob req ccm ping -I web1.lab --json
    check "$1 token policy denies" 'not authorized' as bob req ccm facts -I web1.lab --json
}

suffix=
"$choria" broker run --config "$lab/broker.conf" >"$lab/broker.out" 2>&1 &
pids+=($!)
wait_until bash -c "exec 3<>/dev/tcp/127.0.0.1/$broker_port"
"$ccm" agent --config "$lab/agent-broker.yaml" >"$lab/agent-broker.log" 2>&1 &
broker_agent=$!
pids+=("$broker_agent")
server_checks "choria broker:"
kill "$broker_agent"
wait "$broker_agent" || true

suffix=-nats
nats-server -c "$lab/nats.conf" >"$lab/nats.out" 2>&1 &
pids+=($!)
wait_until bash -c "exec 3<>/dev/tcp/127.0.0.1/$nats_port"
"$ccm" agent --config "$lab/agent-nats.yaml" >"$lab/agent-nats.log" 2>&1 &
pids+=($!)
server_checks "nats server:"

if [ -n "$record" ]; then
    recorded=$root/tests/data/interop/choria_server
    rm -rf "$recorded"
    mkdir -p "$recorded"
    recorder() { python3 "$root/scripts/lib/choria-recorder.py" "$@"; }
    recorder "nats://127.0.0.1:$nats_port" "$lab/ssl/ca.pem" "$lab/recorded" >"$lab/recorder.out" &
    pids+=($!)
    wait_until grep -q recording "$lab/recorder.out"
    # record_command NAME ARGUMENT...: runs a command of ann and writes its last request and reply.
    record_command() {
        local name=$1 client=-
        shift
        : >"$lab/recorded"
        as ann "$@" >"$lab/client"
        python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$lab/client" 2>/dev/null && client=$lab/client
        recorder pairs "$lab/recorded" "$recorded/$name.json" "$client" "choria $*"
    }
    record_command 01-ping ping
    record_command 02-discover discover -F host.info.os=linux -C web -S 'with("web")'
    record_command 03-inventory inventory web1.lab
    record_command 04-get-fact req rpcutil get_fact fact=host.info.os --json
    record_command 05-ensure req ccm ensure type=exec name=/bin/true --json
    record_command 06-apply req ccm apply 'manifest=ccm: {resources: [{exec: {name: /bin/true}}]}' wait=10 --json
    record_command 07-status req ccm status type=file name=/tmp --json
    record_command 08-run-status req ccm run_status --json
    record_command 09-facts facts host.info.os --json
    printf '{"issuer": "%s"}\n' "$(cat "$lab/issuer.public")" >"$recorded/keys.json"
fi
