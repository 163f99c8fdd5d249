#!/usr/bin/env python3
"""Writes inputs of a megabyte: pieces of seeds, said again and again.

usage: stretch.py SEEDS FOLDER

Whatever takes time by the square of its input, or memory by a multiple of it, shows in one of
these long before chance would make one.
"""

import pathlib
import random
import sys

SIZE = 1 << 20
COUNT = 48

seeds = [path.read_bytes() for path in sorted(pathlib.Path(sys.argv[1]).iterdir())] or [b""]
into = pathlib.Path(sys.argv[2])
into.mkdir(parents=True, exist_ok=True)
# The same every time: what was found can be found again.
chance = random.Random(1)
for number in range(COUNT):
    seed = chance.choice(seeds)
    start = chance.randrange(len(seed) + 1)
    piece = seed[start:start + chance.choice([1, 2, 3, 5, 8, 20, len(seed)])] or b" "
    # What comes before the piece may decide how it is read, and what comes after that it is.
    head, tail = chance.choice([(seed[:1], b""), (seed[:start], seed[start:])])
    (into / f"{number:02}").write_bytes(head + piece * (SIZE // len(piece)) + tail)
