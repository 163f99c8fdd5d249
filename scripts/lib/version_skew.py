"""Runs agents and controllers of two versions with each other; see scripts/version-skew.

Four fleets are made, one after the other: old agents with an old controller, old agents with a new controller,
new agents with an old controller, and new agents with a new controller. The older controller creates the trust
directory, the streams and the buckets, as it would before an upgrade; a newer one then updates them, as
docs/install.md says. Every agent enrolls with a token. A fleet has a NATS server on loopback, an approver and
three agents; everything is below one temporary directory.

Work is a function here whose name starts with `do_`. It fails by an exception.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

NODES = ["web1.skew", "web2.skew", "web3.skew"]
LIMIT = 60.0
# The error of work that was not tried.
NO_FLEET = "not tried: no fleet"
MANIFEST = """ccm:
  fail_on_error: true
  resources:
    - file:
        - "{{ Facts.root }}/site.conf":
            {ensure: present, content: "VERSION\\n", owner: root, group: root, mode: "0644"}
    - exec:
        - check:
            {provider: shell, command: "exit 1", unless: 'test ! -e "{{ Facts.root }}/broken"'}
        - reload:
            provider: shell
            command: 'echo reloaded >>"{{ Facts.root }}/reloads"'
            refreshonly: true
            subscribe: ["file#{{ Facts.root }}/site.conf"]
"""


def wait_for(what, condition):
    """Returns the first true value of a condition."""
    end = time.monotonic() + LIMIT
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise RuntimeError(f"timeout: {what}")
        time.sleep(0.1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Fleet:
    """A server, an approver, agents of one program and a controller of another."""

    def __init__(self, directory, agents, controller, first):
        self.directory, self.agents = directory, agents
        self.controller, self.first = controller, first
        self.trust = directory / "trust"
        self.processes = []
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "LANG": "C.UTF-8",
            "CCM_TRUST_DIR": str(self.trust),
        }
        self.port = free_port()
        self.url = f"tls://127.0.0.1:{self.port}"
        listen = f"127.0.0.1:{self.port}"
        self.run(first, ["fleet", "trust", "init", str(self.trust), "--listen", listen])
        self.start("server", ["nats-server", "-c", str(self.trust / "nats.conf")])
        wait_for("NATS server", lambda: "Server is ready" in self.log("server"))
        self.run(first, ["fleet", "init", *self.as_user("controller-main")])
        if controller != first:
            self.run(controller, ["fleet", "trust", "push"])
            self.run(controller, ["fleet", "init", *self.as_user("controller-main")])
        self.start("approver", [controller, "fleet", "enroll", "serve"])
        wait_for("approver", lambda: "serving" in self.log("approver"))
        for node in NODES:
            self.enroll(node)
        wait_for("agents", lambda: len(self.online()) == len(NODES))

    def as_user(self, name):
        return ["--context", str(self.trust / f"contexts/{name}.json")]

    def start(self, name, command, environment=None):
        with open(self.directory / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                command,
                env=self.environment | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def log(self, name):
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def run(self, program, args, codes=(0,), environment=None):
        """Runs a command and returns its standard output."""
        done = subprocess.run(
            [program, *args],
            env=self.environment | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * LIMIT,
        )
        if done.returncode not in codes:
            name = " ".join(word for word in args if not word.startswith("/"))
            raise RuntimeError(f"ccm {name}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def signer(self):
        # The first versions had the seed in the directory itself.
        path = self.trust / "keys/signer.seed"
        return str(path if path.exists() else self.trust / "signer.seed")

    def fleet(self, *args, codes=(0,), user="operator-admin", signed=True):
        """Runs `ccm fleet` of the controller as an operator."""
        sign = ["--sign-with", self.signer()] if signed else []
        return self.run(self.controller, ["fleet", *args, *self.as_user(user), *sign], codes)

    def control(self, *args, codes=(0,)):
        """Runs `ccm fleet rollout` as a controller: operators may not write assignments."""
        return self.fleet("rollout", *args, codes=codes, user="controller-main")

    def document(self, *args, codes=(0,)):
        return json.loads(self.fleet(*args, "--json", codes=codes))

    def root(self, node):
        return self.directory / node / "root"

    def enroll(self, node):
        directory = self.directory / node
        (directory / "root").mkdir(parents=True)
        facts = directory / "config/choria/ccm/facts.yaml"
        facts.parent.mkdir(parents=True)
        facts.write_text(f"root: {directory}/root\n")
        config = directory / "agent.yaml"
        config.write_text(f"state_dir: {directory}/state\ncache_dir: {directory}/cache\nbeat: 1s\n")
        config.chmod(0o600)
        token = self.run(self.controller, ["fleet", "enroll", "token", "create"]).strip()
        enroll = ["agent", "enroll", "--name", node, "--config", str(config), "--token", token]
        self.run(self.agents, enroll)
        self.start_agent(node)

    def start_agent(self, node, program=None):
        directory = self.directory / node
        command = [program or self.agents, "agent", "--config", str(directory / "agent.yaml")]
        environment = {"XDG_CONFIG_HOME": str(directory / "config")}
        process = self.start(f"agent-{node}", command, environment)
        setattr(self, f"agent_{node}", process)

    def stop_agent(self, node):
        process = getattr(self, f"agent_{node}")
        process.terminate()
        process.wait(LIMIT)

    def nodes(self):
        return self.document("nodes")["nodes"]

    def online(self):
        return [node for node in self.nodes() if node["state"] != "offline"]

    def push(self, version):
        directory = self.directory / f"bundle-{version}"
        directory.mkdir(exist_ok=True)
        (directory / "manifest.yaml").write_text(MANIFEST.replace("VERSION", version))
        facts = str(self.directory / NODES[0] / "config/choria/ccm/facts.yaml")
        self.fleet("bundle", "push", str(directory), "--name", "site", "--facts", facts)

    def rollout(self, *flags, codes=(0,)):
        """Starts a rollout and returns its id."""
        self.control("start", "site", "--all", *flags, codes=codes)
        return self.last_rollout()

    def last_rollout(self):
        found = self.document("rollout", "list")
        rows = found["rollouts"] if isinstance(found, dict) else found
        return rows[-1]["id"]

    def expect_site(self, version, nodes=NODES):
        for node in nodes:
            path = self.root(node) / "site.conf"
            wait_for(
                f"{version} on {node}",
                lambda path=path: path.exists() and path.read_text() == f"{version}\n",
            )

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def expect(condition, text):
    if not condition:
        raise RuntimeError(text)


def do_nodes(fleet):
    names = sorted(node["identity"] for node in fleet.online())
    expect(names == NODES, names)


def do_ping(fleet):
    found = fleet.fleet("ping", "--all")
    expect(all(node in found for node in NODES), found)


def do_facts(fleet):
    found = fleet.fleet("facts", NODES[0])
    expect(str(fleet.root(NODES[0])) in found, found)


def do_select(fleet):
    found = fleet.fleet("ping", "--select", f'Facts.root == "{fleet.root(NODES[1])}"')
    expect(NODES[1] in found and NODES[0] not in found, found)


def ensure(fleet, **options):
    path = fleet.root(NODES[0]) / "motd"
    flags = ["--content", "hello\n", "--owner", "root", "--file-group", "root", "--mode", "0644"]
    return path, fleet.fleet("ensure", "file", str(path), *flags, "--node", NODES[0], **options)


def do_ensure(fleet):
    path, found = ensure(fleet)
    expect("changed" in found and path.read_text() == "hello\n", found)
    _, found = ensure(fleet)
    expect("changed" not in found.replace("0 changed", ""), found)


def do_unsigned(fleet):
    (fleet.root(NODES[0]) / "motd").unlink(missing_ok=True)
    path, _ = ensure(fleet, codes=(1,), signed=False)
    expect(not path.exists(), "an unsigned request was executed")


def do_status(fleet):
    ensure(fleet)
    found = fleet.fleet("status", "file", str(fleet.root(NODES[0]) / "motd"), "--node", NODES[0])
    expect("present" in found, found)


def do_apply(fleet):
    manifest = fleet.directory / "apply.yaml"
    manifest.write_text(MANIFEST.replace("VERSION", "applied"))
    fleet.fleet("apply", str(manifest), "--node", NODES[2])
    fleet.expect_site("applied", NODES[2:])


def do_label(fleet):
    fleet.fleet("label", NODES[1], "rack=7")
    found = fleet.fleet("ping", "--fact", "label.rack=7")
    expect(NODES[1] in found and NODES[2] not in found, found)


def do_pause(fleet):
    fleet.fleet("pause", "--node", NODES[1], "--reason", "test")
    wait_for("pause", lambda: "paused" in fleet.fleet("nodes"))
    fleet.fleet("resume", "--node", NODES[1])
    wait_for("resume", lambda: "paused" not in fleet.fleet("nodes"))


def do_rollout(fleet):
    fleet.push("one")
    fleet.rollout("--canary", "1", "--wave", "50%,100%")
    fleet.expect_site("one")


def do_detached(fleet):
    """A rollout that nobody drives until the controller does, as ccm-controller.service."""
    fleet.push("detached")
    start = fleet.rollout("--detach", "--canary", "1", "--wave", "100%")
    fleet.control("drive", start)
    fleet.expect_site("detached")


def do_takeover(fleet):
    """A controller of the first version is killed in the middle of a rollout, and this one continues."""
    fleet.push("takeover")
    flags = ["--all", "--canary", "1", "--wave", "100%", "--bake", "5s", "--lease", "2s"]
    start = ["fleet", "rollout", "start", "site", *flags]
    user = [*fleet.as_user("controller-main"), "--sign-with", fleet.signer()]
    process = fleet.start("takeover", [fleet.first, *start, *user])
    sites = [fleet.root(node) / "site.conf" for node in NODES]
    is_new = lambda path: path.exists() and path.read_text() == "takeover\n"
    wait_for("the canary", lambda: any(is_new(path) for path in sites))
    process.kill()
    process.wait()
    expect(not all(is_new(path) for path in sites), "the rollout was not in the middle")
    fleet.control("drive", fleet.last_rollout())
    fleet.expect_site("takeover")


def do_halt(fleet):
    """A rollout halts at a node that fails, and goes on after the cause was removed."""
    fleet.push("two")
    broken = fleet.root(NODES[0]) / "broken"
    broken.touch()
    halted = fleet.rollout("--canary", "1", "--wave", "100%", "--order-by", "root", codes=(3,))
    found = fleet.control("show", halted, codes=(0, 1, 3))
    expect("halted" in found, found)
    broken.unlink()
    fleet.control("retry", halted)
    fleet.expect_site("two")


def do_rollback(fleet):
    fleet.push("three")
    fleet.rollout("--wave", "100%")
    fleet.push("four")
    fourth = fleet.rollout("--wave", "100%")
    fleet.expect_site("four")
    fleet.control("rollback", fourth)
    fleet.expect_site("three")


def do_drift(fleet):
    fleet.push("drift")
    fleet.rollout("--wave", "100%")
    fleet.fleet("drift", "--refresh")
    (fleet.root(NODES[1]) / "site.conf").write_text("edited\n")
    found = fleet.fleet("drift", "--refresh", codes=(1,))
    expect(NODES[1] in found, found)


def do_events(fleet):
    fleet.push("events")
    fleet.rollout("--wave", "100%")
    lines = fleet.fleet("events", "--since", "1h", "--jsonl").splitlines()
    events = [json.loads(line)["event"] for line in lines]
    ids = {event["event_id"] for event in events}
    expect(len(ids) == len(events), f"{len(events)} events, {len(ids)} ids")
    for node in NODES:
        expect(any(node in json.dumps(event) for event in events), f"no events of {node}")


def do_runs(fleet):
    fleet.push("runs")
    fleet.rollout("--wave", "100%")
    found = fleet.fleet("runs", NODES[0])
    expect(NODES[0] in found, found)


def do_query(fleet):
    found = fleet.fleet("query", "--all")
    expect(all(node in found for node in NODES), found)


def do_page(fleet):
    """The page of the controller shows the nodes."""
    port = free_port()
    context = fleet.as_user("controller-main")
    name = f"page-{port}"
    address = f"127.0.0.1:{port}"
    process = fleet.start(name, [fleet.controller, "fleet", "serve", "--listen", address, *context])
    wait_for("page", lambda: "serving" in fleet.log(name) or process.poll() is not None)

    def summary():
        with socket.create_connection(("127.0.0.1", port)) as page:
            page.sendall(f"GET /api/summary HTTP/1.0\r\nHost: {address}\r\n\r\n".encode())
            reply = b"".join(iter(lambda: page.recv(65536), b"")).decode()
        return re.search(r'"(nodes|total)": ?3\b', reply) or '"idle":3' in reply.replace(" ", "")

    wait_for("three nodes on the page", summary)
    process.terminate()


def do_upgrade(fleet):
    """An agent that is upgraded, or downgraded, to the program of the controller goes on with its state."""
    fleet.push("upgrade")
    fleet.rollout("--wave", "100%")
    fleet.stop_agent(NODES[2])
    fleet.start_agent(NODES[2], fleet.controller)
    wait_for("agent", lambda: len(fleet.online()) == len(NODES))
    fleet.push("upgraded")
    fleet.rollout("--wave", "100%")
    fleet.expect_site("upgraded")
    fleet.stop_agent(NODES[2])
    fleet.start_agent(NODES[2])
    wait_for("agent", lambda: len(fleet.online()) == len(NODES))
    fleet.push("downgraded")
    fleet.rollout("--wave", "100%")
    fleet.expect_site("downgraded")


WORK = {name[3:]: value for name, value in list(globals().items()) if name.startswith("do_")}


def outcomes(title, agents, controller, first, names):
    """Returns what each work came to: nothing, or its error."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix="skew."))
    fleet = Fleet.__new__(Fleet)
    fleet.processes = []
    found = {}
    try:
        fleet.__init__(directory, agents, controller, first)
        found["enroll"] = None
        for name in names:
            print(f"{title}: {name}", file=sys.stderr)
            try:
                WORK[name](fleet)
                found[name] = None
            except Exception as error:
                found[name] = str(error) or repr(error)
    except Exception as error:
        found["enroll"] = str(error) or repr(error)
    finally:
        fleet.end()
        shutil.rmtree(directory, ignore_errors=True)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    names = [name for name in args.only.split(",") if name] or list(WORK)
    unknown = set(names) - set(WORK)
    if unknown:
        parser.error(f"--only: unknown: {', '.join(sorted(unknown))}; known: {', '.join(WORK)}")
    # Cleans up when it is interrupted.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for name, program in [("old", args.old), ("new", args.new)]:
        version = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
        print(f"{name}: {version.stdout.strip()}")
    old, new = args.old, args.new
    fleets = {
        "old + old": outcomes("old + old", old, old, old, names),
        "new + new": outcomes("new + new", new, new, new, names),
        "old agents, new controller": outcomes("old agents, new controller", old, new, old, names),
        "new agents, old controller": outcomes("new agents, old controller", new, old, old, names),
    }
    sys.exit(1 if report(fleets, ["enroll", *names]) else 0)


def report(fleets, names):
    """Prints a table and the errors. Returns the work that fails only with different versions."""
    titles = list(fleets)
    print("\n| | " + " | ".join(titles) + " |\n|---|" + "---|" * len(titles))
    differences, errors = [], []
    for name in names:
        found = [fleets[title].get(name, NO_FLEET) for title in titles]
        print(f"| {name} | " + " | ".join("failed" if error else "ok" for error in found) + " |")
        errors += [
            f"{title}: {name}: {error}"
            for title, error in zip(titles, found)
            if error and error != NO_FLEET
        ]
        if any(found) and not found[0] and not found[1]:
            differences.append(name)
        elif found[1]:
            # The new version alone must do everything.
            differences.append(name)
    for error in errors:
        print("\n" + error.strip())
    if differences:
        print(f"\ndifferences: {', '.join(differences)}")
    return differences


if __name__ == "__main__":
    main()
