#!/usr/bin/env python3
"""Writes the seed corpus of the fuzz targets: one folder per target, from the project's test data.

usage: seeds.py FOLDER

Most seeds come from tests/data and examples/. Archives and netlink datagrams are generated here, so
that no binary files have to be stored.
"""

import base64
import gzip
import hashlib
import io
import json
import pathlib
import re
import struct
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data"
FOLDER = pathlib.Path(sys.argv[1])

# Longer seeds slow the fuzzer down.
MAX_SEED = 64 * 1024


def write_seed(target, seed):
    """Writes a seed to a file named by its digest, so that equal seeds are stored once."""
    seed = seed if isinstance(seed, bytes) else seed.encode()
    if len(seed) <= MAX_SEED:
        folder = FOLDER / target
        folder.mkdir(parents=True, exist_ok=True)
        (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)


def cases(path):
    return json.loads((DATA / path).read_text())


def documents():
    """Yields every document in the examples and the documentation."""
    for path in sorted([*ROOT.glob("examples/**/*.yaml"), *ROOT.glob("examples/**/*.json")]):
        yield path.read_text()
    for path in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md"]):
        yield from re.findall(r"```(?:yaml|json)\n(.*?)```", path.read_text(), re.DOTALL)


def strings(value):
    """Yields every text in a test case, at any depth."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        yield from strings(inner)


def templates():
    for name, targets in {"gotemplate": ["go", "jinja"], "gotemplate-recorded": ["go", "jinja"],
                          "jet": ["jet", "jinja"], "expressions": ["expr", "gjson"]}.items():
        for case in cases(f"vectors/{name}.json"):
            for text in strings(case["input"]):
                for target in targets:
                    write_seed(target, text)


def data():
    for case in cases("vectors/hiera.json"):
        for text in strings(case["input"]):
            for target in ["hiera", "document", "manifest"]:
                write_seed(target, text)
    for text in documents():
        for target in ["document", "manifest", "hiera", "config", "request"]:
            write_seed(target, text)
    for path in sorted(DATA.glob("secrets/*")):
        write_seed("secrets", path.read_text())
    for path in sorted(DATA.glob("goss/*.yaml")):
        write_seed("health", path.read_text())
        write_seed("document", path.read_text())
    write_seed("health", "OK - all is well | 'free space'=12.5MB;10;5;0;100 load=U;;;;\nmore | time=0,5s")


def requests():
    properties = {
        "file": {"name": "/srv/motd", "ensure": "present", "content": "hi\n", "mode": "0644"},
        "exec": {"name": "/bin/true", "subscribe": ["file#/a"], "timeout": "10s", "onlyif": "x"},
        "group": {"name": "app", "gid": 990, "system": True},
        "user": {"name": "app", "uid": 990, "groups": ["www-data"], "expiry": "never", "locked": True},
        "line": {"name": "/etc/hosts", "match": "^a", "line": "a b", "after": "^#"},
        "link": {"name": "/srv/current", "target": "../a", "force": True},
        "package": {"name": "zsh", "ensure": "5.9-1"},
        "service": {"name": "nginx", "ensure": "running", "enable": True},
        "archive": {"name": "/tmp/a.zip", "url": "https://h/a.zip", "extract_parent": "/srv"},
        "scaffold": {"name": "/srv/app", "source": "/a", "engine": "jet", "post": [{"*.go": "x"}]},
        "apply": {"name": "/srv/manifest.yaml", "data": {"a": 1.5}},
    }
    for name, given in properties.items():
        protocol = "io.choria.ccm.v1.resource.ensure.request"
        write_seed("request", json.dumps({"protocol": protocol, "type": name, "properties": given}))
        check = {"command": "check_it -w 1", "tries": 2, "try_sleep": "1s"}
        entry = {"cluster": "a", "service": "b", "protocol": "tcp", "address": "10.0.0.1",
                 "port": "{{ Data.port }}", "priority": 1, "ttl": "10m"}
        more = {"health_checks": [check], "register_when_stable": [entry], "require": ["file#/b"],
                "control": {"if": "true"}, "alias": "it"}
        full = {"protocol": protocol, "type": name, "properties": {**given, **more}}
        write_seed("request", json.dumps(full))
        write_seed("manifest", json.dumps({"data": {"port": 80}, "ccm": {"resources": [{name: given}]}}))
    status = "io.choria.ccm.v1.resource.status.request"
    write_seed("request", json.dumps({"protocol": status, "type": "file", "name": "/a"}))
    apply = "io.choria.ccm.v1.manifest.apply.request"
    for body in [{"source": "obj://CCM/app.tgz", "noop": True, "data": {"a": [1, 2.5]}},
                 {"manifest": {"ccm": {"resources": []}}, "wait": True}, {"manifest": "ccm: {}"}]:
        write_seed("request", json.dumps({"protocol": apply, **body}))
    fact = {"fact": "os.name", "operator": "=~", "value": "^deb"}
    filters = {"identity": ["/web/", "a.b"], "cf_class": ["web"], "fact": [fact],
               "compound": [[{"expr": "with('os.name=debian') and facts.a > 1"}]]}
    write_seed("message", json.dumps(filters))
    head = {"Ccm-Request-Id": "r1", "Ccm-Noop": "true", "Ccm-Caller": "ann",
            "Ccm-Deadline": "2027-01-15T08:00:00Z", "Ccm-Filter": json.dumps(filters),
            "Ccm-Signer": "UABC", "Ccm-Signature": "AA", "Ccm-Timestamp": "2027-01-15T08:00:00Z"}
    write_seed("envelope", "\n".join(f"{name}: {value}" for name, value in head.items()) + "\0{}")
    for file in sorted(ROOT.glob("tests/data/interop/choria_server/[0-9]*.json")):
        exchange = json.loads(file.read_text())
        for key in ["request", "reply"]:
            secure = json.loads(base64.b64decode(exchange[key]["data"]))
            inner = base64.b64decode(secure[key]).decode()
            token = secure["caller" if key == "request" else "sender"]
            write_seed("choria", json.dumps(exchange[key]))
            write_seed("choria", json.dumps(secure) + "\0" + token)
            write_seed("choria", inner + "\0" + token)
    write_seed("choria", "# ours\npolicy default allow\ndeny\t/^choria=bob/ ops\tapply ping\t*\t*\n"
                         "allow\tchoria=ann\t*\trole=/web/ os.size>=2\tweb /^db/\n")


def messages():
    time, ksuid = "2027-01-15T08:00:00.25Z", "3Ouil37bUs2V3TmTG2OoEYtuLS3"
    bundle = {"name": "app", "digest": "ab" * 32}
    check = {"status": 0, "tries": 1, "output": "fine", "name": "it", "format": "nagios"}
    event = {"protocol": "io.choria.ccm.v1.transaction.event", "event_id": ksuid, "timestamp": time,
             "type": "file", "provider": "posix", "name": "/a", "requested_ensure": "present",
             "final_ensure": "present", "duration": 1500, "properties": {"name": "/a"},
             "status": {"ensure": "present"}, "noop_message": "would", "health_check": [check, None],
             "error": None, "changed": True, "refreshed": False, "failed": False, "skipped": False,
             "noop": False, "unmet_requirements": ["file#/b"]}
    counts = ["total_resources", "unique_resources", "changed_resources", "failed_resources",
              "skipped_resources", "stable_resources", "refreshed_count", "total_errors",
              "requirements_unmet_count", "health_checked_count", "health_check_ok_count",
              "health_check_warning_count", "health_check_critical_count",
              "health_check_unknown_count"]
    summary = {"start_time": time, "end_time": time, "total_duration": 5, **dict.fromkeys(counts, 1)}
    run = {"protocol": "io.choria.ccm.v1.run.summary", "event_id": ksuid, "run_id": ksuid,
           "identity": "a.b", "collective": "default", "source": "obj://a/b", "trigger": "interval",
           "outcome": "changed", "generation": 3, "timestamp": time, "summary": summary}
    status = {"protocol": "io.choria.ccm.v1.node.status", "identity": "a.b", "collective": "c",
              "groups": ["web"], "version": "1", "started": time, "timestamp": time, "beat": 30,
              "current_run": {"run_id": ksuid, "source": "x", "trigger": "start", "since": time},
              "last_run": run, "pause": {"reason": "r", "since": time, "until": time},
              "spool": {"pending": 1, "dropped": 0}, "generation": 2, "facts": {"a": 0.1}}
    assignment = {"protocol": "io.choria.ccm.v1.node.assignment", "generation": 7,
                  "manifests": [bundle], "data": {"a": [1, 2.5, None]}, "noop": True,
                  "rollout": "r1", "assigned": time,
                  "signature": {"signer": "UA", "signature": "AA"}}
    drift = {"type": "file", "name": "/a", "message": "m", "since": time}
    report = {"protocol": "io.choria.ccm.v1.node.report", "identity": "a.b", "generation": 1,
              "manifests": [bundle], "run": run, "drift": [drift], "timestamp": time}
    entry = {"cluster": "a", "service": "b", "protocol": "tcp", "address": "::1", "port": 80,
             "priority": 5, "annotations": {"a": "b"}, "ttl": "never"}
    audit = {"protocol": "io.choria.ccm.v1.audit.event", "event_id": ksuid, "timestamp": time,
             "identity": "a", "collective": "c", "subject": "s", "verb": "ensure",
             "decision": "denied", "run_id": ksuid, "unrecorded": 3}
    applied = {"protocol": "io.choria.ccm.v1.manifest.apply.response", "run_id": ksuid,
               "state": "finished", "run": run, "events": [event], "diff": "-a\n+b\n"}
    settings = {"canary": 1, "waves": ["5%", "10"], "order_by": "role", "bake": 5, "parallel": 3,
                "health_gate": True, "node_timeout": 9, "deadline": time,
                "budget": {"max_failures": 1, "max_failures_percent": "2.5%", "min_sample": 2,
                           "max_unreachable": "10%"}}
    plan = {"waves": [{"name": "canary", "canary": True, "nodes": ["a"]},
                      {"name": "1", "nodes": ["b", "c"]}],
            "left_out": [{"node": "d", "reason": "offline"}]}
    before = [{"assignment": assignment, "nodes": {"a": 1, "b": 2}},
              {"assignment": None, "nodes": {"c": 0}}]
    for state in [{"name": "running"}, {"name": "baking", "until": time},
                  {"name": "paused", "reason": "r"}, {"name": "halted", "reason": "r"},
                  {"name": "rolling_back"}, {"name": "done"}]:
        nodes = {"a": {"assigned": {"generation": 3, "at": time}}, "b": {"failed": {"reason": "x"}},
                 "c": "ok"}
        rollout = {"protocol": "io.choria.ccm.v1.rollout", "id": "r1", "bundle": bundle,
                   "data": {"a": 1}, "created": time, "settings": settings, "plan": plan,
                   "state": state, "wave": 1, "nodes": nodes, "previous": before,
                   "forgiven": {"failed": 1}, "lease": {"holder": "h", "until": time}}
        write_seed("rollout", json.dumps(rollout))
        write_seed("rollout", gzip.compress(json.dumps(rollout).encode(), mtime=0))
    start = {"protocol": "io.choria.ccm.v1.session.start", "event_id": ksuid, "timestamp": time}
    everything = [event, summary, run, status, assignment, report, entry, audit, applied, settings,
                  plan, start, check, {"role": "web"}, status["pause"]]
    for message in everything:
        write_seed("message", json.dumps(message))
        write_seed("node_reply", b"\0" + json.dumps(message).encode())
        write_seed("node_reply", b"\0" + json.dumps({"protocol": "p", "state": message}).encode())
    write_seed("node_reply", b'403 denied by policy\0{"error":"no\\nway"}')


def identifiers():
    for word in ["3Ouil37bUs2V3TmTG2OoEYtuLS3", "a.example.net", "role=web", "5%", "2.25%", "10",
                 "ccm.v1.default.event.>", "os.name=~^deb", "a>=2", "app@0123456789ab", "1h30m",
                 "obj://CCM/app.tgz", "file#/a", "/a/../b//c", "one 'two three' \"four\\\" five\"",
                 "nats://ann:p%40w@h:4222", "a\nb # c\n{\"identity\":\"d\"}\n", '["a", "b"]',
                 "UABUTEEIXQBEB57L2N2V2M373ZFQQKDLORGEJN25BHDYNZQ2YSFOKERO"]:
        write_seed("identifier", word)
    for servers in ["nats://ann:p%40w@h:4333,tls://[::1]:4222", "tok@h", "example.net",
                    '{"url":"nats://h:1","user":"a","password":"b","tls_first":true}',
                    '{"url":"h","creds":"~/a.creds","nkey":"$HOME/x","token":"env://HOME"}']:
        write_seed("context", servers)
    for name in ["debian_versions", "generic_versions"]:
        for case in cases(f"vectors/{name}.json"):
            write_seed("version", f"{case['a']}\n{case['b']}\n1.0")


def command_output():
    """Outputs of commands in the provider test cases, after the request of CFEngine."""
    for path in sorted(DATA.glob("provider/*/*.json")):
        choice = bytes([{"apt": 0, "dnf": 1}.get(path.stem, 2)])
        for case in json.loads(path.read_text()):
            request = case.get("input", "").encode()
            for text in strings(case):
                write_seed("output", choice + request + b"\0" + text.encode())


def fact_files():
    source = (ROOT / "fuzz/fuzz_targets/facts.rs").read_text()
    files = re.findall(r'^    "([^"]+)",$', source, re.MULTILINE)
    for choice, file in enumerate(files):
        for path in sorted(DATA.glob(f"facts/*/{file}")):
            write_seed("facts", bytes([choice]) + path.read_bytes())
    write_seed("facts", bytes([files.index("config/facts.json")]) + b'{"a": {"b": 0.1}}')
    write_seed("facts", bytes([files.index("config/facts.yaml")]) + b"a:\n  - 1\n  - x\n")
    attribute = lambda kind, value: struct.pack("=HH", len(value) + 4, kind) + value + bytes(-len(value) % 4)
    message = lambda kind, body: struct.pack("=IHHII", len(body) + 16, kind, 0, 0, 0) + body
    link = struct.pack("=BBHiII", 0, 0, 1, 2, 0x1043, 0) + attribute(1, b"\2\0\0\0\0\1")
    link += attribute(3, b"eth0\0") + attribute(4, struct.pack("=I", 1500))
    near = struct.pack("=BBBBI", 2, 24, 0, 0, 2) + attribute(1, bytes([10, 0, 0, 1]))
    far = struct.pack("=BBBBI", 10, 64, 0, 0, 2) + attribute(2, bytes(15) + b"\1")
    write_seed("facts", b"\0" + message(16, link) + message(20, near) + message(20, far) + message(3, bytes(4)))


def archives():
    def tar(form):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=form) as archive:
            for name, kind, text in [("d", tarfile.DIRTYPE, ""), ("d/f", tarfile.REGTYPE, "text"),
                                     ("d/" + "long" * 30, tarfile.REGTYPE, "x"),
                                     ("d/s", tarfile.SYMTYPE, "../d/f"),
                                     ("d/h", tarfile.LNKTYPE, "d/f")]:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode, entry.mtime = kind, 0o6755, 1_000_000_000
                is_file = kind == tarfile.REGTYPE
                entry.size, entry.linkname = (len(text), "") if is_file else (0, text)
                archive.addfile(entry, io.BytesIO(text.encode()) if is_file else None)
        return out.getvalue()

    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, mode, text in [("d/", 0o40755, ""), ("d/f", 0o100644, "text" * 50),
                                 ("d/s", 0o120777, "f")]:
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text)
    for rules in [0, 0x80]:
        for form in [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]:
            # The first byte modulo three selects the format, as in the target.
            kind = lambda number: bytes([next(n for n in range(rules, 256) if n % 3 == number)])
            write_seed("archive", kind(0) + tar(form))
            write_seed("archive", kind(1) + gzip.compress(tar(form), mtime=0))
        write_seed("archive", kind(2) + zipped.getvalue())


for make in [templates, data, requests, messages, identifiers, command_output, fact_files, archives]:
    make()
