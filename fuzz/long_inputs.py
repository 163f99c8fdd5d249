#!/usr/bin/env python3
"""Writes inputs of one megabyte: repeated pieces of seeds.

usage: long_inputs.py SEEDS FOLDER

Quadratic run time or excessive memory use shows with such inputs, which random mutation seldom
produces.
"""

import pathlib
import random
import sys

SIZE = 1 << 20
COUNT = 48

seeds = [path.read_bytes() for path in sorted(pathlib.Path(sys.argv[1]).iterdir())] or [b""]
folder = pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
# A fixed seed, so that every run is the same.
rng = random.Random(1)
for number in range(COUNT):
    seed = rng.choice(seeds)
    start = rng.randrange(len(seed) + 1)
    piece = seed[start:start + rng.choice([1, 2, 3, 5, 8, 20, len(seed)])] or b" "
    # The text before and after the piece may decide whether and how it is parsed.
    head, tail = rng.choice([(seed[:1], b""), (seed[:start], seed[start:])])
    (folder / f"{number:02}").write_bytes(head + piece * (SIZE // len(piece)) + tail)
