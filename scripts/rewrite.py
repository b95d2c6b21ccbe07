"""What the scripts that keep Markdown pages in step with their sources share."""

import difflib
import glob
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def pages(root):
    """The pages that quote sources and results."""
    found = []
    for pattern in ("*.md", "*/README.md", "docs/**/*.md"):
        found += glob.glob(os.path.join(root, pattern), recursive=True)
    return sorted(set(found))


def table(header, rows, left=1):
    """A Markdown table, without the columns in which no row has anything.

    The first `left` columns stand to the left, the figures after them to the right.
    """
    used = [i for i in range(len(header)) if any(row[i] for row in rows)]
    lines = [header, ["---" if i < left else "---:" for i in range(len(header))], *rows]
    return "\n".join("| " + " | ".join(line[i] for i in used) + " |" for line in lines)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    """Replaces the file as a whole, or not at all."""
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, os.stat(path).st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def update(path, wanted, check, command):
    """Brings a page to its wanted text, or with `check` shows what differs. True if it did."""
    found = read(path)
    if found == wanted:
        return False
    if check:
        name = os.path.relpath(path)
        sys.stdout.writelines(
            difflib.unified_diff(
                found.splitlines(True),
                wanted.splitlines(True),
                name,
                f"{name} as {command} writes it",
            )
        )
    else:
        write(path, wanted)
        print(f"updated {os.path.relpath(path)}")
    return True


def update_pages(root, fill, check, command):
    """Brings every page to `fill(its name, its text)`. Returns how many pages differed.

    All pages are filled before the first is written: an error leaves every page as it was.
    """
    wanted = {page: fill(os.path.relpath(page, root), read(page)) for page in pages(root)}
    return sum(update(page, text, check, command) for page, text in wanted.items())
