# The nats command with a node of a fleet. Sourced by scripts/interop.

nats_dir=$work/nats
mkdir -p "$nats_dir/agent"
nats-server -a 127.0.0.1 -p -1 --ports_file_dir "$nats_dir" -js -sd "$nats_dir/store" -l "$nats_dir/log" &
pids+=($!)
ports=$nats_dir/nats-server_$!.ports
wait_until test -s "$ports"
server=$(sed -n 's/.*"nats":\["\([^"]*\)".*/\1/p' "$ports")

"$ccm" fleet init --server "$server" >/dev/null
cat >"$nats_dir/agent.yaml" <<EOF
identity: web1.lab
servers: ["$server"]
groups: [web]
state_dir: $nats_dir/agent/state
cache_dir: $nats_dir/agent/cache
splay: false
EOF
chmod 600 "$nats_dir/agent.yaml"
"$ccm" agent --config "$nats_dir/agent.yaml" 2>"$nats_dir/agent.log" &
pids+=($!)
node=ccm.v1.default.node.web1_lab
wait_until "$nats" --server "$server" req "$node.ping" ''

# With --record the command connects through a proxy that writes what passes.
connect=$server
if [ -n "$record" ]; then
    rm -rf "$root/tests/data/interop/nats"
    mkdir -p "$root/tests/data/interop/nats"
    python3 scripts/lib/record_nats.py "${server#nats://}" "$nats_dir/proxy" "$root/tests/data/interop/nats" &
    pids+=($!)
    wait_until test -s "$nats_dir/proxy"
    connect=nats://$(cat "$nats_dir/proxy")
fi

# nats_check NAME PATTERN ARGUMENT...: as check, with the nats command. Exchanges are numbered: they are replayed in
# this order.
number=0
nats_check() {
    local name=$1 pattern=$2
    shift 2
    number=$((number + 1))
    [ -z "$record" ] || printf '%02d-%s\n%s\n' "$number" "$name" "nats $*" >"$nats_dir/proxy.name"
    check "nats $name" "$pattern" "$nats" --server "$connect" --no-context "$@"
}

request='{"protocol":"io.choria.ccm.v1.resource.ensure.request","type":"exec","properties":{"name":"/bin/true"}}'
nats_check micro-ping '"?ccm"?' micro ping ccm
nats_check micro-list 'ccm' micro list
nats_check micro-info 'ensure' micro info ccm
nats_check micro-stats 'ensure' micro stats ccm
nats_check request-ping '"identity": ?"web1.lab"' req "$node.ping" ''
nats_check request-facts-query '.' req "$node.facts" host.info.os
nats_check request-ensure '"changed": ?true' req --no-templates "$node.ensure" "$request"
nats_check request-ensure-noop '"noop": ?true' req --no-templates -H Ccm-Noop:true "$node.ensure" "$request"
nats_check request-ensure-invalid 'invalid protocol' req --no-templates "$node.ensure" '{"protocol":"x"}'
nats_check request-status 'directory' req --no-templates "$node.status" \
    '{"protocol":"io.choria.ccm.v1.resource.status.request","type":"file","name":"/tmp"}'
nats_check request-apply '"outcome"' req --no-templates "$node.apply" \
    '{"protocol":"io.choria.ccm.v1.manifest.apply.request","manifest":"ccm: {resources: [{exec: {name: /bin/true}}]}","wait":true}'
nats_check request-pause 'disk' req "$node.pause" '{"reason":"disk"}'
nats_check request-resume 'web1.lab' req "$node.resume" ''
nats_check request-all '"identity": ?"web1.lab"' req --replies 1 ccm.v1.default.all.ping ''
nats_check request-group '"identity": ?"web1.lab"' req ccm.v1.default.group.web.ping ''

# Facts of this machine are not recorded.
check "nats request-facts" '"host"' "$nats" --server "$server" req "$node.facts" ''

# What is stored is read by the command itself; nothing of it needs the agent.
check "nats stream info" 'transaction events' "$nats" --server "$server" stream info CCM_EVENTS
check "nats kv info" 'status of each node' "$nats" --server "$server" stream info KV_CCM_NODES
check "nats kv get" 'web1.lab' "$nats" --server "$server" kv get CCM_NODES default.web1_lab --raw
check "nats kv ls" 'CCM_DESIRED' "$nats" --server "$server" kv ls
check "nats object ls" 'CCM_MANIFESTS' "$nats" --server "$server" object ls
