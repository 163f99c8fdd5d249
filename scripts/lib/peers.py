"""Measures configuration management programs with the same work; see scripts/peers.

The work, always in the same tree: one file in its wanted state (start-up), N files from nothing, N files in
their wanted state, and 200 packages in their wanted state. Every peer gets its work in the form that its
documentation advises: lists of packages in one task where it has such lists, no gathering of facts that are
not used, no server.

A work is repeated until it has taken BUDGET seconds. A program whose run with N files takes longer than the
limit gets a tenth of the files, and is compared with ccm and as many files.

A run counts only if it succeeds, if all files have the right content, mode and owner afterwards, and if a
stable run changes neither a file nor the package database.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
import resource  # noqa: F401, os.wait4 imports it, which is too late in the chroot
import shutil
import signal
import subprocess
import sys
import textwrap
import time

WORK = pathlib.Path("/srv/peers")
OUT = WORK / "out"
PACKAGES = 200
BUDGET = 30.0
# From this time of a run on, the program that reports its memory does not matter for it.
LONG = 1.0
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
WORKS = ["one file, stable", "files, from nothing", "files, stable", "packages, stable"]
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


def content(number):
    return f"setting_{number} = on\nsecond line of file {number}\n"


def write(name, text):
    path = WORK / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


class Ccm:
    name, program = "ccm-fleet", "/usr/local/bin/ccm"
    version = [program, "--version"]

    def files(self, numbers):
        lines = ["ccm:", "  resources:", "    - file:"]
        for number in numbers:
            lines += [
                f"        - {OUT}/file-{number}:",
                "            ensure: present",
                f"            content: {json.dumps(content(number))}",
                "            owner: root",
                "            group: root",
                '            mode: "0644"',
            ]
        return self.apply(f"files-{len(numbers)}", lines)

    def packages(self, packages):
        lines = ["ccm:", "  resources:", "    - package:"]
        lines += [f"        - {name}: {{ensure: '{version}'}}" for name, version in packages]
        return self.apply("packages", lines)

    def apply(self, name, lines):
        manifest = write(f"ccm/{name}.yaml", "\n".join(lines) + "\n")
        return [self.program, "apply", manifest]


class Upstream(Ccm):
    name, program = "Choria CCM", "/usr/local/bin/upstream-ccm"
    version = [program, "--version"]


class Cfengine:
    name, program = "CFEngine", "/usr/bin/cf-agent"
    version = [program, "--version"]

    def files(self, numbers):
        lines = [
            "body common control { bundlesequence => { \"main\" }; }",
            "body perms owned { mode => \"0644\"; owners => { \"root\" }; groups => { \"root\" }; }",
            "bundle agent main",
            "{",
            "  files:",
        ]
        for number in numbers:
            text = content(number).replace("\n", "$(const.n)")
            lines.append(
                f'    "{OUT}/file-{number}" create => "true", content => "{text}", perms => owned;'
            )
        return self.run(f"files-{len(numbers)}", lines + ["}"])

    def packages(self, packages):
        lines = [
            'body common control { inputs => { "/usr/share/cfengine3/masterfiles/lib/packages.cf",',
            '  "/usr/share/cfengine3/masterfiles/lib/paths.cf", "/usr/share/cfengine3/masterfiles/lib/files.cf",',
            '  "/usr/share/cfengine3/masterfiles/lib/common.cf" };',
            '  bundlesequence => { "main" }; }',
            "bundle agent main",
            "{",
            "  packages:",
        ]
        lines += [
            f'    "{name}" policy => "present", version => "{version}", package_module => apt_get;'
            for name, version in packages
        ]
        return self.run("packages", lines + ["}"])

    def run(self, name, lines):
        policy = write(f"cfengine/{name}.cf", "\n".join(lines) + "\n")
        os.chmod(policy, 0o600)
        return [self.program, "--no-lock", "--file", policy]


class Puppet:
    name, program = "Puppet", "/usr/bin/puppet"
    version = [program, "--version"]

    def files(self, numbers):
        lines = ["File { ensure => file, owner => 'root', group => 'root', mode => '0644' }"]
        lines += [
            f"file {{ '{OUT}/file-{number}': content => {json.dumps(content(number))} }}"
            for number in numbers
        ]
        return self.apply(f"files-{len(numbers)}", lines)

    def packages(self, packages):
        lines = [f"package {{ '{name}': ensure => '{version}' }}" for name, version in packages]
        return self.apply("packages", lines)

    def apply(self, name, lines):
        return [self.program, "apply", write(f"puppet/{name}.pp", "\n".join(lines) + "\n")]


class Salt:
    name, program = "Salt", "/opt/salt/bin/salt-call"
    version = [program, "--version"]

    def files(self, numbers):
        states = {}
        for number in numbers:
            states[f"{OUT}/file-{number}"] = {
                "file.managed": [
                    {"contents": content(number)},
                    {"user": "root"},
                    {"group": "root"},
                    {"mode": "0644"},
                ]
            }
        return self.apply(f"files{len(numbers)}", states)

    def packages(self, packages):
        pkgs = [{name: version} for name, version in packages]
        return self.apply("packages", {"packages": {"pkg.installed": [{"pkgs": pkgs}]}})

    def apply(self, name, states):
        # JSON is YAML; the renderer is the default one.
        write(f"salt/states/{name}.sls", json.dumps(states, indent=1) + "\n")
        write(
            "salt/minion",
            f"file_client: local\nid: peer\nroot_dir: {WORK}/salt/root\n"
            f"file_roots: {{base: [{WORK}/salt/states]}}\n",
        )
        (WORK / "salt/root").mkdir(exist_ok=True)
        directory = f"--config-dir={WORK}/salt"
        return [self.program, "--local", "--retcode-passthrough", directory, "state.apply", name]


class Ansible:
    name, program = "Ansible", "/opt/ansible/bin/ansible-playbook"
    version = [program, "--version"]

    def files(self, numbers):
        items = [{"name": f"{OUT}/file-{n}", "content": content(n)} for n in numbers]
        task = {
            "name": "file",
            "ansible.builtin.copy": {
                "dest": "{{ item.name }}",
                "content": "{{ item.content }}",
                "owner": "root",
                "group": "root",
                "mode": "0644",
            },
            "loop": items,
            "loop_control": {"label": "{{ item.name }}"},
        }
        return self.play(f"files-{len(numbers)}", task)

    def packages(self, packages):
        names = [f"{name}={version}" for name, version in packages]
        return self.play("packages", {"name": "packages", "ansible.builtin.apt": {"name": names}})

    def play(self, name, task):
        play = {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            # As https://docs.ansible.com advises for speed: modules are not copied to files first.
            "vars": {"ansible_python_interpreter": "/usr/bin/python3", "ansible_pipelining": True},
            "tasks": [task],
        }
        playbook = write(f"ansible/{name}.yaml", json.dumps([play], indent=1) + "\n")
        return [self.program, "--inventory", "localhost,", playbook]


class Pyinfra:
    name, program = "pyinfra", "/opt/pyinfra/bin/pyinfra"
    version = [program, "--version"]

    def files(self, numbers):
        return self.deploy(
            f"files_{len(numbers)}",
            "from io import StringIO\n"
            "from pyinfra.operations import files\n"
            f"for number in range({numbers[0]}, {numbers[-1] + 1}):\n"
            "    files.put(\n"
            '        src=StringIO(f"setting_{number} = on\\nsecond line of file {number}\\n"),\n'
            f'        dest=f"{OUT}/file-{{number}}", user="root", group="root", mode="644",\n'
            "    )\n",
        )

    def packages(self, packages):
        names = [f"{name}={version}" for name, version in packages]
        return self.deploy(
            "packages", f"from pyinfra.operations import apt\napt.packages(packages={names})\n"
        )

    def deploy(self, name, text):
        return [self.program, "-y", "@local", write(f"pyinfra/{name}.py", text)]


def installed():
    """Returns packages of the tree with their versions."""
    form = "-f=${db:Status-Status} ${Package} ${Version}\n"
    text = subprocess.run(["dpkg-query", "-W", form], check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = [line.split() for line in text.splitlines()]
    return [(name, version) for status, name, version in rows if status == "installed"][:PACKAGES]


class TooSlow(Exception):
    """A run took longer than the limit."""


@contextlib.contextmanager
def limited(seconds, process):
    """Kills a process and its children after this time."""

    def end(*_):
        os.killpg(process, signal.SIGKILL)
        raise TooSlow(f"a run took longer than {seconds:.0f} s")

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def spawn(command, options):
    """Runs a command and returns its time; its output only if it fails."""
    log = WORK / "log"
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    began = time.perf_counter()
    process = os.posix_spawn(command[0], command, ENVIRONMENT, file_actions=actions, setpgroup=0)
    with limited(options.limit, process):
        _, status, usage = os.wait4(process, 0)
    took = usage.ru_utime + usage.ru_stime if options.cpu_time else time.perf_counter() - began
    if status != 0:
        raise RuntimeError(f"{command}: status {status}\n{log.read_text()[-2000:]}")
    return took


def peak(command, options):
    """Runs a command and returns its time and the peak memory of its largest process, in KiB."""
    report = WORK / "peak"
    took = spawn(["/usr/bin/time", "--format=%M", f"--output={report}", *command], options)
    return took, int(report.read_text().split()[-1])


def check_files(numbers):
    for number in numbers:
        path = OUT / f"file-{number}"
        found = path.stat()
        if path.read_text() != content(number) or (found.st_mode & 0o7777, found.st_uid) != (0o644, 0):
            raise RuntimeError(f"{path}: wrong content, mode or owner")


def snapshot():
    """Returns what a stable run must not change."""
    files = sorted((entry.name, entry.stat().st_mtime_ns) for entry in os.scandir(OUT))
    return files, hashlib.sha256(pathlib.Path("/var/lib/dpkg/status").read_bytes()).digest()


def measure(peer, options, lock, packages):
    """Returns the best time and the peak memory of each work."""

    def best(command, prepare, check):
        with locked(lock):
            prepare()
            took, memory = peak(command, options)
            check()
            times, spent = [took] if took > LONG else [], took
            while not times or (len(times) < options.rounds and spent < BUDGET):
                prepare()
                times.append(spawn(command, options))
                check()
                spent += times[-1]
        return [min(times), memory]

    def clear():
        shutil.rmtree(OUT, ignore_errors=True)
        OUT.mkdir(parents=True)

    def stable(command):
        before = snapshot()

        def check():
            if snapshot() != before:
                raise RuntimeError(f"{command}: changed something")

        return best(command, lambda: None, check)

    def both(files):
        command = peer.files(range(files))
        return [best(command, clear, lambda: check_files(range(files))), stable(command)]

    clear()
    spawn(peer.files([0]), options)
    one = stable(peer.files([0]))
    result = {"name": peer.name, "files": options.files}
    try:
        many = both(options.files)
    except TooSlow as error:
        result["note"] = f"{peer.name}: {error} with {options.files:,} files"
        result["files"] = fewer(options.files)
        many = both(result["files"])
    if type(peer) is Ccm:
        result["fewer"] = both(fewer(options.files))
    # The first run fills the caches that some programs have.
    spawn(peer.packages(packages), options)
    result["costs"] = [one, *many, stable(peer.packages(packages))]
    version = subprocess.run(
        peer.version, check=True, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ).stdout
    result["version"] = re.search(r"\d+(\.\w+)+", version)[0]
    return result


def fewer(files):
    """Returns the number of files for a program that is too slow for this number."""
    return max(1, files // 10)


@contextlib.contextmanager
def locked(lock):
    """Holds the lock of a file, if there is one, so that nothing else runs that respects it."""
    if lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if lock:
            fcntl.flock(lock, fcntl.LOCK_UN)


def measure_in(root, peer, options):
    """Returns the results of a program in a tree, or its error. A child process enters the tree, so that
    nothing runs between its clock and the program."""
    read, write_end = os.pipe()
    lock = open(options.lock, "ab") if options.lock else None
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            os.chroot(root)
            os.chdir("/")
            WORK.mkdir(parents=True, exist_ok=True)
            result = measure(peer, options, lock, installed())
        except Exception as error:
            result = {"name": peer.name, "error": str(error) or repr(error)}
        os.write(write_end, json.dumps(result).encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"name": peer.name, "error": "the measuring process was killed"}


def seconds(value):
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.1f} s"


def ratio(value, ours):
    return f"{value / ours:.1f} x" if value < 10 * ours else f"{value / ours:,.0f} x"


def titles(files):
    return [name.replace("files", f"{files:,} files").replace("packages", f"{PACKAGES} packages") for name in WORKS]


def table(results, files):
    """Returns a table of the measured programs, with ratios to ccm if it was measured."""
    names = titles(files)
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    ours = next((result for result in results if result["name"] == Ccm.name), None)
    for result in results:
        cells = []
        for index, (took, memory) in enumerate(result["costs"]):
            text = f"{seconds(took)}, {memory / 1024:.0f} MiB"
            if has_fewer(result, index, files):
                text = f"{result['files']:,} files: {text}"
            if ours and result is not ours:
                our_time, our_memory = (
                    ours["fewer"][index - 1] if has_fewer(result, index, files) else ours["costs"][index]
                )
                text += f" ({ratio(took, our_time)}, {ratio(memory, our_memory)})"
            cells.append(text)
        lines.append(f"| {result['name']} {result['version']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def has_fewer(result, index, files):
    """Returns whether a program did a work with fewer files than the others."""
    return "files" in WORKS[index] and result.get("files", files) != files


def not_measured(failures):
    """Returns a list of the programs that were not measured, with the reasons."""
    return "".join(f"\n- Not measured: {it['name']}: {one_line(it['error'])}" for it in failures)


def one_line(text):
    """Returns the first and the last line of an error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["unknown error"]
    return ": ".join(dict.fromkeys([lines[0], lines[-1]]))[:300]


def report(results, options):
    """Returns the text of the documentation: a table, what was not measured, and the circumstances."""
    measured = [result for result in results if "error" not in result]
    failures = [result for result in results if "error" in result]
    parts = [table(measured, options.files)] if measured else []
    if failures:
        parts.append(not_measured(failures).strip())
    times = "CPU times" if options.cpu_time else "Elapsed times"
    text = f"{times}, the fastest of up to {options.rounds} runs on {os.cpu_count()} cores"
    if options.lock:
        text += " that had no other work."
    else:
        if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
            text += ", with real-time priority over other work"
        text += f"; load at the end: {os.getloadavg()[0]:.1f}."
    notes = [result["note"] for result in measured if "note" in result]
    if notes:
        text += f" {'; '.join(notes)}: the ratios are to ccm-fleet with as many files."
    parts.append("\n".join(textwrap.wrap(text, 119, break_on_hyphens=False)))
    return "\n\n".join(parts)


def picture(results, files):
    """Returns an SVG with one group of bars for each work, on a logarithmic scale of time."""
    import math

    left, width, bar, gap = 150, 760, 16, 34
    low = min(cost[0] for result in results for cost in result["costs"])
    high = max(cost[0] for result in results for cost in result["costs"])
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    scale = (width - left - 120) / (last - first)
    x = lambda value: left + (math.log10(value) - first) * scale
    rows, y = [], 30
    for index, title in enumerate(titles(files)):
        rows.append(f'<text x="4" y="{y + 12}" class="title">{title}</text>')
        y += 20
        for result in results:
            took = result["costs"][index][0]
            fewer_files = f", {result['files']:,} files" if has_fewer(result, index, files) else ""
            kind = "ours" if result["name"] == Ccm.name else "peer"
            rows.append(f'<text x="{left - 8}" y="{y + 12}" class="name">{result["name"]}</text>')
            rows.append(
                f'<rect x="{left}" y="{y}" width="{x(took) - left:.1f}" height="{bar - 3}" class="{kind}"/>'
            )
            rows.append(f'<text x="{x(took) + 4:.1f}" y="{y + 11}">{seconds(took)}{fewer_files}</text>')
            y += bar
        y += gap - 20
    grid = [
        f'<line x1="{x(10**power):.1f}" x2="{x(10**power):.1f}" y1="22" y2="{y - 8}"/>'
        f'<text x="{x(10**power):.1f}" y="16" class="axis">{seconds(10.0**power)}</text>'
        for power in range(first, last + 1)
    ]
    style = (
        "text{font:12px sans-serif;fill:#444}.title{font-weight:bold}.name{text-anchor:end}"
        ".axis{text-anchor:middle;fill:#888}.ours{fill:#2a7de1}.peer{fill:#a9b4c0}line{stroke:#ddd}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" role="img" '
        f'aria-label="Times of the same work with different programs, on a logarithmic scale">\n'
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(grid + rows)
        + "\n</svg>\n"
    )


def update(text, image):
    page = pathlib.Path("docs/performance.md")
    old = page.read_text()
    before, rest = old.split(BEGIN)
    _, after = rest.split(END)
    link = "![Times of the same work](img/peers.svg)"
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{link}\n\n{END}{after}")
    pathlib.Path("docs/img/peers.svg").write_text(image)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=100)
    parser.add_argument("--lock")
    parser.add_argument("--only", default="")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    peers = [Ccm(), Upstream(), Cfengine(), Puppet(), Salt(), Pyinfra(), Ansible()]
    wanted = {name for name in args.only.lower().split(",") if name}
    unknown = wanted - {key(peer) for peer in peers}
    if unknown:
        parser.error(f"--only: unknown: {', '.join(sorted(unknown))}; known: {', '.join(map(key, peers))}")
    if wanted:
        peers = [peer for peer in peers if key(peer) in wanted]
    results = []
    for peer in peers:
        reason = missing(args.root, peer)
        result = (
            {"name": peer.name, "error": reason}
            if reason
            else measure_in(args.root, peer, args)
        )
        print(json.dumps(result), file=sys.stderr)
        results.append(result)
    text = report(results, args)
    print(text)
    measured = [result for result in results if "error" not in result]
    if args.update:
        if not any(result["name"] == Ccm.name for result in measured):
            sys.exit("nothing was written: without ccm-fleet there are no ratios")
        update(text, picture(measured, args.files))
    # A program that was not given is no failure.
    failed = [it for it in results if "error" in it and it["name"] != Upstream.name]
    sys.exit(1 if failed else 0)


def key(peer):
    """Returns the name of a peer in --only, and that of the file about its failed installation."""
    return type(peer).__name__.lower()


def missing(root, peer):
    """Returns why a program is not installed, or nothing."""
    if os.path.exists(root + peer.program):
        return None
    if isinstance(peer, Upstream):
        return "no program given (--upstream FILE)"
    log = pathlib.Path(root, "opt/failed", key(peer))
    return f"not installed: {one_line(log.read_text())}" if log.exists() else "not installed"


if __name__ == "__main__":
    main()
