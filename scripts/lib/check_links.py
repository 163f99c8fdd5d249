#!/usr/bin/env python3
"""Checks the links inside of a built book: every page and every anchor that a link names exists.

usage: check_links.py DIRECTORY
"""

import pathlib
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urlparse


class Page(HTMLParser):
    """Collects the anchors and the targets of links of a page."""

    def __init__(self, text):
        super().__init__()
        self.anchors = set()
        self.targets = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value:
                self.targets.append(value)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in root.rglob("*.html")}
    checked = 0
    problems = []
    for path, page in sorted(pages.items()):
        for target in page.targets:
            if urlparse(target).scheme:
                continue
            name, anchor = urldefrag(target)
            file = (path.parent / unquote(name)).resolve() if name else path
            checked += 1
            if not file.exists():
                problems.append(f"{path.relative_to(root)}: {target}: no such file")
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                problems.append(f"{path.relative_to(root)}: {target}: no such anchor")
    for problem in problems:
        print(problem, file=sys.stderr)
    # A book without links was not read correctly.
    if problems or checked < 1000:
        sys.exit(f"{len(problems)} of {checked} links have no target")


main()
