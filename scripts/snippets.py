#!/usr/bin/env python3
"""Fills the pages' code blocks from the source, so that what a chapter quotes is what is compiled.

In the source, two comment lines        In a page, a line before the code block
name a region:                          says which region it quotes:

    // [doc:load]                           <!-- snippet: 03_x/kernel.cuh load -->
    ...                                     ```cpp
    // [/doc:load]                          ```

Regions may nest; lines that mark an inner region are left out of the outer one, and the common
indentation is taken off. Pages: docs/**/*.md, *.md and */README.md. With --check nothing is
written, and a block that differs from its source is exit status 1. A name that is not there,
or markers that do not pair, is exit status 2.
"""

import argparse
import glob
import os
import re
import sys

import rewrite

COMMAND = "scripts/snippets.py"
MARKER = re.compile(r"\s*// \[(/?)doc:([\w.-]+)\]\s*")
SNIPPET = re.compile(r"<!-- snippet: (\S+) ([\w.-]+) -->")
FENCE = re.compile(r"(`{3,})(\w*)")


class SnippetError(Exception):
    """One line for the author: what is wrong, and where."""


def dedent(lines):
    """Without the common indentation, of which #pragma, always at the margin, has no part."""
    width = min((len(x) - len(x.lstrip()) for x in lines if x.strip() and x[0] != "#"), default=0)
    return [line if line.startswith("#") else line[width:] for line in lines]


def regions(path, text):
    """The named regions of a source file, without their common indentation: {name: text}."""
    open_regions = {}  # name -> (line of its marker, lines so far)
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        marker = MARKER.fullmatch(line)
        if not marker:
            if "[doc:" in line or "[/doc:" in line:
                raise SnippetError(
                    f"{path}:{number}: a marker is a line of its own, '// [doc:name]'"
                )
            for _, lines in open_regions.values():
                lines.append(line)
        elif not marker[1]:
            if marker[2] in open_regions or marker[2] in found:
                raise SnippetError(f"{path}:{number}: there is a region '{marker[2]}' already")
            open_regions[marker[2]] = (number, [])
        else:
            if marker[2] not in open_regions:
                raise SnippetError(f"{path}:{number}: region '{marker[2]}' ends but did not begin")
            _, lines = open_regions.pop(marker[2])
            found[marker[2]] = "\n".join(dedent(lines)).strip("\n") + "\n"
    for name, (number, _) in open_regions.items():
        raise SnippetError(f"{path}:{number}: region '{name}' begins but does not end")
    return found


class Sources:
    """The regions of all source files that pages quote, each file read once."""

    def __init__(self, root):
        self.root = root
        self.files = {}

    def region(self, path, name):
        if path not in self.files:
            full = os.path.join(self.root, path)
            if os.path.isabs(path) or ".." in path.split("/") or not os.path.isfile(full):
                raise SnippetError(f"there is no file '{path}'")
            self.files[path] = regions(path, rewrite.read(full))
        if name not in self.files[path]:
            known = ", ".join(sorted(self.files[path])) or "none"
            raise SnippetError(f"{path} has no region '{name}' (it has: {known})")
        return self.files[path][name]


def fill(page, text, sources):
    """The page's text with every quoted block as its source has it."""
    lines = text.splitlines(keepends=True)
    out = []
    i = 0
    while i < len(lines):
        out.append(lines[i])
        snippet = SNIPPET.fullmatch(lines[i].strip())
        i += 1
        if not snippet:
            if out[-1].strip().startswith("<!-- snippet"):
                raise SnippetError(f"{page}:{i}: it should read '<!-- snippet: path name -->'")
            continue
        fence = FENCE.fullmatch(lines[i].strip()) if i < len(lines) else None
        if not fence:
            raise SnippetError(f"{page}:{i}: the next line should open a code block (```cpp)")
        end = next((j for j in range(i + 1, len(lines)) if lines[j].strip() == fence[1]), None)
        if end is None:
            raise SnippetError(f"{page}:{i + 1}: the code block does not end")
        try:
            region = sources.region(snippet[1], snippet[2])
        except SnippetError as error:
            raise SnippetError(f"{page}:{i}: {error}") from None
        out += [lines[i], region, lines[end]]
        i = end + 1
    return "".join(out)


def sources_with_markers(root):
    """Every source file; a broken pair of markers is found also where no page quotes it yet."""
    for top in sorted(glob.glob(os.path.join(root, "[0-9][0-9]_*"))) + [
        os.path.join(root, "common")
    ]:
        for folder, _, names in os.walk(top):
            for name in sorted(names):
                if name.endswith((".cuh", ".cu", ".hpp", ".h", ".cpp")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 if a page is out of date"
    )
    parser.add_argument("--root", default=rewrite.ROOT, help="the repository")
    arguments = parser.parse_args()
    sources = Sources(arguments.root)
    for path in sources_with_markers(arguments.root):
        sources.files[path] = regions(path, rewrite.read(os.path.join(arguments.root, path)))

    differed = rewrite.update_pages(
        arguments.root, lambda name, text: fill(name, text, sources), arguments.check, COMMAND
    )
    if differed and arguments.check:
        print(
            f"{differed} pages differ from the source they quote; run {COMMAND}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SnippetError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
