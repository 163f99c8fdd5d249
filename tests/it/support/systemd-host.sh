#!/bin/sh
# Boots a Debian tree with a real systemd in a container and watches over it: prints the process
# id of systemd-nspawn, then waits for the end of its own standard input. That is a pipe from the
# tests, so however they end, the container ends with them.
#
# usage: systemd-host.sh TREE SUITE PROGRAM PACKAGES NETWORK
#
# TREE is made if it is missing and never changed by a boot; PROGRAM is the ccm found inside. PACKAGES are
# installed in addition to systemd, separated by commas. NETWORK is an option of systemd-nspawn.
set -eu
tree=$1 suite=$2 program=$3 packages=$4 network=$5

for tool in mmdebstrap systemd-nspawn nsenter unshare flock; do
    command -v "$tool" >/dev/null || {
        echo "$tool is missing: scripts/test installs it" >&2
        exit 1
    }
done

mkdir -p "$(dirname "$tree")"
# One boot per tree at a time; the lock is held until the container is gone.
exec 9>"$tree.lock"
flock 9

if [ ! -d "$tree" ]; then
    rm -rf "$tree.new"
    # With mounts of its own, which are gone if it is killed: the next rm -rf must find none.
    unshare --mount mmdebstrap --quiet --variant=minbase --include="systemd,systemd-sysv,dbus,libpam-systemd$packages" \
        "$suite" "$tree.new" >&2
    mv "$tree.new" "$tree"
fi

systemd-nspawn --quiet --directory="$tree" --volatile=overlay --register=no --keep-unit \
    "$network" --bind-ro="$program:/usr/local/bin/ccm" --boot --console=pipe \
    </dev/null >"$tree.log" 2>&1 9>&- &
nspawn=$!
echo "$nspawn"

cat >/dev/null

# Killing systemd-nspawn alone would leave its container behind. Stopped first, it can't start
# another process while we look.
kill -STOP "$nspawn" 2>/dev/null || true
# shellcheck disable=SC2046 # one word per process
kill -KILL $(cat "/proc/$nspawn/task/$nspawn/children") "$nspawn" 2>/dev/null || true
{ wait "$nspawn" || true; } 2>/dev/null
