#!/usr/bin/env python3
"""Tables what the microscope counted, alone and against Nsight Compute (docs/microscope.md).

Counted: docs/results/work_NN.ndjson, by scripts/record_work.sh. Measured:
docs/results/h200_NN_work.csv, by scripts/gpu_session.sh work: a comment line
`# stage, kernel, dtype, shapes`, then ncu's raw CSV.
A launch is found again by its kernel's name with template arguments, its grid and its block.
Whether a count is exact, docs/results/widths.json says (scripts/widths.py).

Run on its own, it prints for every launch whether its counts are equal: work.py COUNTS... CSV...
"""

import csv
import dataclasses
import json
import os
import re
import sys

import results as results_module
import rewrite
from results import ResultsError, Shape

NOTHING = "No counts are recorded yet."
SECTOR = 32  # bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counted:
    """A kernel's launches at a shape: a line of the counts' file."""

    stage: str
    kernel: str
    operator: str
    inputs: str = ""
    shape: Shape
    dtype: str
    tokens: float
    least_bytes: float
    launches: list
    compiler: str
    commit: str
    date: str


def load(path):
    return results_module.load(path, Counted)


def load_all(paths):
    return [counted for path in paths for counted in load(path)]


# --- Sums -----------------------------------------------------------------------------------------


def sectors(launch):
    return sum(launch[kind]["sectors"] for kind in ("loads", "stores", "atomics"))


def shared(launch, what):
    return sum(
        launch[kind][what] for kind in ("shared_loads", "shared_stores", "shared_copies")
    )


def used(launches):
    """Bytes asked for, over the bytes of the sectors that move."""
    asked = sum(launch[k]["asked"] for launch in launches for k in ("loads", "stores", "atomics"))
    moved = SECTOR * sum(map(sectors, launches))
    return asked / moved if moved else 0


def _figure(value):
    if not value:
        return ""
    if value < 10:
        return f"{value:.2g}" if value < 1 else f"{value:.3g}"
    return f"{value:,.0f}"


def _row(name, launches, counted):
    def per_token(values):
        return _figure(sum(values) / counted.tokens)

    wavefronts = sum(shared(launch, "wavefronts") for launch in launches)
    ideal = sum(shared(launch, "ideal") for launch in launches)
    moved = SECTOR * sum(map(sectors, launches))
    touched = sum(launch["read_bytes"] + launch["written_bytes"] for launch in launches)
    most = max(launch["most_atomics"] for launch in launches)
    return [
        name,
        per_token(launch["loads"]["sectors"] for launch in launches),
        per_token(launch["stores"]["sectors"] for launch in launches),
        per_token(launch["atomics"]["sectors"] for launch in launches),
        f"{100 * used(launches):.0f}%",
        f"{moved / counted.least_bytes:.3g}×",
        f"{moved / touched:.3g}×",
        per_token(shared(launch, "wavefronts") for launch in launches),
        f"{100 * (wavefronts / ideal - 1):.0f}%" if wavefronts > ideal else "",
        f"{most:,}" if most else "",
        per_token(launch["barriers"] for launch in launches),
        per_token(launch["shuffles"] + launch["votes"] for launch in launches),
        per_token(launch["flops"] for launch in launches),
    ]


HEADER = [
    "kernel",
    "sectors read",
    "written",
    "by atomics",
    "of that used",
    "of the least",
    "of those touched",
    "wavefronts",
    "conflicts",
    "adds to one address",
    "barriers",
    "shuffles",
    "flops of mma",
]


def render(everything, stage):
    """The counts of a stage's kernels at the first shape recorded, per token."""
    own = [counted for counted in everything if counted.stage == stage]
    if not own:
        return NOTHING
    shape = own[0].shape
    own = [counted for counted in own if counted.shape == shape]
    rows = []
    several = len({counted.dtype for counted in own}) > 1
    for counted in own:
        name = f"`{counted.kernel}`" + (f" {counted.dtype}" if several else "")
        rows.append(_row(name, counted.launches, counted))
        if len(counted.launches) > 1:
            for launch in counted.launches:
                rows.append(_row(f"· {launch['name']}", [launch], counted))
    least = own[0].least_bytes / SECTOR / own[0].tokens
    text = (
        f"Counted without a GPU at B,H,L,E,M = {shape}, per token (a row of one head); the "
        f"operands themselves are {least:.0f} sectors of 32 bytes in {own[0].dtype}:"
    )
    return text + "\n\n" + rewrite.table(HEADER, rows)


# --- Against Nsight Compute -----------------------------------------------------------------------

REQUESTS = "l1tex__t_requests_pipe_lsu_mem_global_op_{}.sum"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"

# What is compared: a title, what was counted, and ncu's metrics, which are summed.
COMPARED = {
    "load requests": (lambda x: x["loads"]["requests"], [REQUESTS.format("ld")]),
    "load sectors": (lambda x: x["loads"]["sectors"], [SECTORS.format("ld")]),
    "store requests": (lambda x: x["stores"]["requests"], [REQUESTS.format("st")]),
    "store sectors": (lambda x: x["stores"]["sectors"], [SECTORS.format("st")]),
    "atomic requests": (
        lambda x: x["atomics"]["requests"],
        [REQUESTS.format("red"), REQUESTS.format("atom")],
    ),
    "atomic sectors": (
        lambda x: x["atomics"]["sectors"],
        [SECTORS.format("red"), SECTORS.format("atom")],
    ),
    "shared wavefronts": (lambda x: shared(x, "wavefronts"), ["memory_l1_wavefronts_shared"]),
    "of them ideal": (lambda x: shared(x, "ideal"), ["memory_l1_wavefronts_shared_ideal"]),
}


def plain_name(name):
    """A kernel's name as ncu and a C++ demangler have in common: no spaces, no namespaces.

    "void attn::k<attn::Tile<(int)64>, false>(int)" is "k<Tile<64>,0>".
    """
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    name = re.sub(r"\((int|bool|unsigned int|long)\)", "", name)
    name = re.sub(r"^[\w ]+ (?=\w+(::|[<(]|$))", "", name)
    name = re.sub(r"\w+::", "", name)
    depth = 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            name = name[:i]
            break
    name = re.sub(r"\bfalse\b", "0", re.sub(r"\btrue\b", "1", name))
    return name.replace(" ", "")


def _number(text):
    return float(text.replace(",", "")) if text and text[0].isdigit() else 0.0


def load_measured(path):
    """{(stage, kernel, dtype): {(kernel's name, grid, block): ncu's row}}"""
    measured, section, header = {}, None, None
    with open(path, encoding="utf-8", newline="") as file:
        lines = file.read().splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("# "):
            title = line[2:].split(", ")
            if len(title) < 4:
                raise ResultsError(f"{path}:{number}: not '# stage, kernel, dtype, shapes'")
            section, header = measured.setdefault(tuple(title[:3]), {}), None
            continue
        if not line.strip():
            continue
        row = next(csv.reader([line]))
        if row[0] == "ID":
            header = row
        elif row[0].isdigit():
            if section is None or header is None or len(row) != len(header):
                raise ResultsError(f"{path}:{number}: not a row of ncu's raw page")
            values = dict(zip(header, row))
            grid, block = (
                tuple(map(int, re.findall(r"\d+", values[key])))
                for key in ("Grid Size", "Block Size")
            )
            key = (plain_name(values["Kernel Name"]), grid, block)
            section.setdefault(key, values)
    return measured


def load_all_measured(paths):
    merged = {}
    for path in paths:
        merged.update(load_measured(path))
    return merged


def compare(counted, measured):
    """[(counted, launch, {title: (count, measurement)})] of what was measured, too.

    A grid and name that several launches of the kernel share was measured once.
    """
    rows = []
    for one in counted:
        rows_of = measured.get((one.stage, one.kernel, one.dtype), {})
        for launch in one.launches:
            key = (plain_name(launch["full_name"]), tuple(launch["grid"]), tuple(launch["block"]))
            if key not in rows_of:
                continue
            values = rows_of[key]
            pairs = {
                title: (count(launch), sum(_number(values.get(m, "")) for m in metrics))
                for title, (count, metrics) in COMPARED.items()
            }
            rows.append((one, launch, pairs))
    return rows


def _cell(pair):
    count, measurement = pair
    if not count and not measurement:
        return ""
    if count == measurement:
        return f"{count:,.0f}"
    if not measurement:
        return f"{count:,.0f}, not 0"
    return f"{count:,.0f} ({100 * (count / measurement - 1):+.1f}%)"


def load_widths(path):
    """What scripts/widths.py found; nothing where it has not run."""
    return json.loads(rewrite.read(path)) if os.path.exists(path) else {}


def verdict(stage, launch, widths):
    """'exact', or in how many lines nvcc's accesses are of another width; '' if not checked."""
    lines = widths.get(stage, {}).get(plain_name(launch["full_name"]))
    if lines is None:
        return ""
    return "exact" if not lines else f"{len(lines)} line" + ("s" if len(lines) > 1 else "")


def render_against(counted, measured, widths):
    """Every launch that was counted and measured: the count, and in brackets how far off it is."""
    rows = []
    for one, launch, pairs in compare(counted, measured):
        rows.append(
            [
                f"`{one.kernel}` {one.dtype}",
                f"`{launch['name']}`",
                str(one.shape),
                verdict(one.stage, launch, widths),
                *map(_cell, pairs.values()),
            ]
        )
    if not rows:
        return NOTHING
    header = ["kernel", "launch", "B,H,L,E,M", "widths", *COMPARED]
    return rewrite.table(header, rows, left=4)


def main():
    counts = [path for path in sys.argv[1:] if path.endswith(".ndjson")]
    tables = [path for path in sys.argv[1:] if path.endswith(".csv")]
    if not counts or not tables:
        raise ResultsError("usage: work.py COUNTS.ndjson... NCU.csv...")
    rows = compare(load_all(counts), load_all_measured(tables))
    for one, launch, pairs in rows:
        off = [f"{title} {_cell(pair)}" for title, pair in pairs.items() if pair[0] != pair[1]]
        what = "; ".join(off) if off else "equal"
        print(f"{one.kernel} {one.dtype}, {launch['name']} at {one.shape}: {what}")
    print(f"{len(rows)} launches compared")
    return 0


if __name__ == "__main__":
    results_module.run_main(main)
