"""Compares the figures that two builds of the same benchmarks print; used by scripts/bench.

Benchmarks print lines for people. Two lines are the same figure if they are equal without their numbers,
and appear in the same place.
"""

import json
import re
import statistics
import subprocess
import sys

NUMBER = re.compile(r"(?<![\w.,-])(\d[\d,]*(?:\.\d+)?)( ?(?:ns|µs|ms|s|MiB|KiB|x)\b)?")
SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}


def figures(text):
    """Returns the numbers of a benchmark's output, by line without numbers, its place, and column."""
    found, seen = {}, {}
    for line in text.splitlines():
        words = " ".join(NUMBER.sub("#", line).split())
        place = seen[words] = seen.get(words, 0) + 1
        for column, (number, unit) in enumerate(NUMBER.findall(line)):
            value = float(number.replace(",", "")) * SECONDS.get(unit.strip(), 1.0)
            found[words, place, column] = (value, " ".join(line.split()))
    return found


def programs():
    """Reads cargo's messages and prints the name and program of every benchmark."""
    for line in sys.stdin:
        message = json.loads(line)
        is_bench = "bench" in message.get("target", {}).get("kind", [])
        if message["reason"] == "compiler-artifact" and is_bench and message["executable"]:
            print(message["target"]["name"], message["executable"])


def run(rounds, here, there):
    read = lambda file: dict(line.split(maxsplit=1) for line in open(file))
    here, there = read(here), read(there)
    for name in here:
        if name not in there:
            print(f"\n{name}: not in the other commit")
            continue
        results = []
        for number in range(rounds):
            print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr)
            results.append([figures(output(program[name].strip())) for program in (here, there)])
        print("\n".join(comparison(name, results)))


def output(program):
    return subprocess.run([program, "--bench"], check=True, stdout=subprocess.PIPE, text=True).stdout


def comparison(name, results):
    """Returns lines with the ratio of every figure that both print, and the lines that only one prints."""
    lines = ["", f"{name}, this work tree / other commit: median ratio (smallest to largest)"]
    common = set.intersection(*(set(side) for pair in results for side in pair))
    shown = None
    for key in sorted(common, key=list(results[0][0]).index):
        pairs = [(ours[key][0], theirs[key][0]) for ours, theirs in results]
        if len({value for pair in pairs for value in pair}) == 1:
            continue
        line = results[0][0][key][1]
        if line != shown:
            lines.append(f"  {line}")
            shown = line
        if any(theirs == 0 for _, theirs in pairs):
            ours, theirs = (statistics.median(side) for side in zip(*pairs))
            lines.append(f"    number {key[2] + 1}: {ours:g}, {theirs:g} in the other commit")
            continue
        ratios = [ours / theirs for ours, theirs in pairs]
        lines.append(
            f"    number {key[2] + 1}: {statistics.median(ratios):.2f}"
            f" ({min(ratios):.2f} to {max(ratios):.2f})"
        )
    for side, place in enumerate(["this work tree", "the other commit"]):
        # By line: the numbers of one line are not repeated.
        single = {
            key[:2]: line
            for pair in results
            for key, (_, line) in pair[side].items()
            if key not in common
        }
        if single:
            lines.append(f"  only in {place}, or not in every round:")
            lines += [f"    {line}" for line in single.values()]
    return lines


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["programs"]:
            programs()
        case ["run", rounds, here, there]:
            run(int(rounds), here, there)
        case _:
            sys.exit(__doc__)
