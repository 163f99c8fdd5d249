# A Choria broker and server with our agent, and the choria command. Sourced by scripts/interop.

choria_dir=$work/choria
mkdir -p "$choria_dir"/{ssl,streams,libdir,plugin.d,policies}
port=$(free_ports 1)

# Keys of an authority made for this purpose.
(
    cd "$choria_dir/ssl"
    openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=interop -keyout ca.key -out ca.pem
    for name in broker.lab web1.lab ann.mcollective; do
        openssl req -newkey rsa:2048 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.csr"
        printf 'subjectAltName=DNS:%s,DNS:localhost,IP:127.0.0.1\n' "$name" >ext
        openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile ext \
            -out "$name.pem"
    done
) >/dev/null 2>&1

# config NAME: prints what all roles have.
config() {
    cat <<EOF
identity = $1
logfile = $choria_dir/$1.log
loglevel = info
plugin.security.provider = file
plugin.security.file.certificate = $choria_dir/ssl/$1.pem
plugin.security.file.key = $choria_dir/ssl/$1.key
plugin.security.file.ca = $choria_dir/ssl/ca.pem
plugin.choria.use_srv = false
plugin.choria.middleware_hosts = nats://127.0.0.1:$port
plugin.choria.agent_provider.mcorpc.libdir = $choria_dir/libdir
libdir = $choria_dir/libdir
collectives = mcollective
main_collective = mcollective
EOF
}
{
    config broker.lab
    cat <<EOF
plugin.choria.broker_network = true
plugin.choria.network.listen_address = 127.0.0.1
plugin.choria.network.client_port = $port
plugin.choria.network.stream.store = $choria_dir/streams
plugin.choria.network.system.user = system
plugin.choria.network.system.password = system
EOF
} >"$choria_dir/broker.conf"
{
    config web1.lab
    cat <<EOF
rpcauthorization = 1
rpcauthprovider = action_policy
plugin.actionpolicy.allow_unconfigured = 1
EOF
} >"$choria_dir/server.conf"
printf 'policy default deny\nallow\tchoria=ann.mcollective\t*\t*\t*\n' >"$choria_dir/policies/ccm.policy"
config ann.mcollective >"$choria_dir/client.conf"
printf 'state_dir = %s/state\n' "$choria_dir" >"$choria_dir/plugin.d/ccm"

"$ccm" choria install --libdir "$choria_dir/libdir" >/dev/null
agent=$choria_dir/libdir/mcollective/agent/ccm
if [ -n "$record" ]; then
    rm -rf "$root/tests/data/interop/choria"
    mkdir -p "$root/tests/data/interop/choria"
    mv "$agent" "$agent.real"
    cat >"$agent" <<EOF
#!/bin/sh
# Keeps what the server passes and what the agent replies.
"$agent.real" "\$@"
status=\$?
cp "\$CHORIA_EXTERNAL_REQUEST" $choria_dir/last.request
cp "\$CHORIA_EXTERNAL_REPLY" $choria_dir/last.reply
exit \$status
EOF
    chmod 755 "$agent"
fi

# choria_command ARGUMENT...: the choria command as ann.
choria_command() {
    "$choria" "$@" --config "$choria_dir/client.conf"
}

"$choria" broker run --config "$choria_dir/broker.conf" >"$choria_dir/broker.out" 2>&1 &
pids+=($!)
wait_until bash -c "exec 3<>/dev/tcp/127.0.0.1/$port"
"$choria" server run --config "$choria_dir/server.conf" >"$choria_dir/server.out" 2>&1 &
pids+=($!)
responds() { choria_command req ccm ping --json 2>/dev/null | grep -q '"statuscode": 0'; }
wait_until responds

# choria_check NAME PATTERN ARGUMENT...: as check, with choria req ccm. Exchanges are numbered: they are replayed in
# this order.
number=0
choria_check() {
    local name=$1 pattern=$2
    shift 2
    number=$((number + 1))
    check "choria $name" "$pattern" choria_command req ccm "$@" --json
    [ -z "$record" ] || record_exchange "$name" "$@"
}

# record_exchange NAME ARGUMENT...: writes the last request, its reply and the output of the client.
record_exchange() {
    local name
    name=$(printf '%02d-%s' "$number" "$1")
    shift
    choria_command req ccm "$@" --json >"$choria_dir/last.client"
    python3 - "$choria_dir" "$root/tests/data/interop/choria/$name.json" "choria req ccm $*" <<'EOF'
import json, sys
directory, file, command = sys.argv[1:]
read = lambda name: json.load(open(f"{directory}/last.{name}"))
document = {"command": command, "request": read("request"), "reply": read("reply"), "client": read("client")}
json.dump(document, open(file, "w"), indent=2, sort_keys=True)
open(file, "a").write("\n")
EOF
}

choria_check ping '"version"' ping
choria_check facts '"value"' facts query=host.info.os
choria_check status '"directory"' status type=file name=/tmp
choria_check ensure '"changed": ?true' ensure type=exec name=/bin/true
choria_check ensure-noop '"noop": ?true' ensure type=exec name=/bin/true noop=true
choria_check ensure-properties '"changed": ?true' ensure type=exec name=check 'properties={"command":"/bin/true"}'
choria_check apply '"run_id"' apply 'manifest=ccm: {resources: [{exec: {name: /bin/true}}]}' wait=10
choria_check run-status '"outcome"' run_status
choria_check invalid-resource 'must be absolute' ensure type=file name=relative ensure=present
check "choria plugin doc" 'run_status' choria_command plugin doc agent/ccm
check "choria ping" 'web1.lab' choria_command ping
