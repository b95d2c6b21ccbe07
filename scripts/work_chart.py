#!/usr/bin/env python3
"""Draws the work ladder from what the microscope counted.

    work        sectors of global memory, and passes over shared memory's banks, of every stage's
                kernels at one shape, beside the least that the operands need

The counts are the same on every machine, and say nothing of time: docs/microscope.md.
"""

import os
import sys

import charts
import matplotlib
import matplotlib.pyplot as plt
import results as results_module
import work
from results import ResultsError

PARTS = [("loads", "read", charts.COLOURS[1]), ("stores", "written", charts.COLOURS[2])]
ATOMICS = ("atomics", "by atomics", charts.COLOURS[4])
WAVEFRONTS = [
    ("ideal", "as few as can be", charts.COLOURS[1]),
    ("conflicts", "conflicts", charts.COLOURS[4]),
]


def rungs_of(counted):
    """One per kernel, by stage, at the shape of the first; its last count, in its first dtype."""
    shape = counted[0].shape
    found = {}
    for one in counted:
        if one.shape == shape:
            seen = found.get((one.stage, one.kernel))
            if seen is None or seen.dtype == one.dtype:
                found[one.stage, one.kernel] = one
    return sorted(found.values(), key=lambda one: one.stage)  # within a stage as recorded


def label(one):
    name = one.kernel if one.kernel[:2].isdigit() else f"{one.stage[:2]} {one.kernel}"
    return name.replace("_", " ") + ("" if one.dtype == "f32" else f", {one.dtype}")


def per_token(one, value):
    return sum(map(value, one.launches)) / one.tokens


def stack(axes, rungs, parts, title):
    places = range(len(rungs) - 1, -1, -1)
    left = [0.0] * len(rungs)
    for values, name, colour in parts:
        lengths = [values(one) for one in rungs]
        axes.barh(places, lengths, left=left, color=colour, label=name, height=0.7)
        left = [a + b for a, b in zip(left, lengths)]
    # One bar far beyond all others would leave nothing of them to see: it leaves the picture instead.
    *_, second, longest = sorted([0, 0, *left])
    end = second if longest > 4 * second > 0 else longest
    for place, total in zip(places, left):
        text = f"{total:,.0f}" if total >= 10 else f"{total:.1f}"
        inside = total <= end
        if total:
            axes.annotate(
                text if inside else f"{text} →",
                (total if inside else 1.15 * end, place),
                (4 if inside else -4, 0),
                textcoords="offset points",
                ha="left" if inside else "right",
                va="center",
                fontsize=9,
            )
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlim(0, 1.15 * end or 1)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=charts.GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right", frameon=False, fontsize=9)


def sectors_of(kind):
    return lambda one: per_token(one, lambda launch: launch[kind]["sectors"])


def wavefronts_of(one, what):
    ideal = per_token(one, lambda launch: work.shared(launch, "ideal"))
    if what == "ideal":
        return ideal
    return per_token(one, lambda launch: work.shared(launch, "wavefronts")) - ideal


def draw(rungs):
    height = 1.9 + 0.36 * len(rungs)
    figure, (sectors, wavefronts) = plt.subplots(
        1, 2, figsize=(11, height), sharey=True, gridspec_kw={"width_ratios": [3, 2]}
    )
    parts = [(sectors_of(kind), name, colour) for kind, name, colour in [*PARTS, ATOMICS]]
    stack(sectors, rungs, parts, "sectors of 32 bytes, global memory")
    for place, one in zip(range(len(rungs) - 1, -1, -1), rungs):
        least = one.least_bytes / work.SECTOR / one.tokens
        sectors.plot([least] * 2, [place - 0.42, place + 0.42], color=charts.INK, linewidth=1.5)
    sectors.plot([], [], color=charts.INK, linewidth=1.5, label="the operands once")
    sectors.legend(loc="lower right", frameon=False, fontsize=9)
    stack(
        wavefronts,
        rungs,
        [
            (lambda one, what=what: wavefronts_of(one, what), name, colour)
            for what, name, colour in WAVEFRONTS
        ],
        "passes over shared memory's banks",
    )
    sectors.set_yticks(range(len(rungs) - 1, -1, -1), [label(one) for one in rungs])
    for axes in (sectors, wavefronts):
        axes.spines["left"].set_visible(False)
    figure.subplots_adjust(
        left=0.2, right=0.98, top=1 - 1.15 / height, bottom=0.35 / height, wspace=0.06
    )
    text = "What each kernel asks of memory, per token and head"
    figure.text(0.02, 1 - 0.32 / height, text, fontsize=14, fontweight="bold", va="center")
    where = charts.shape_text(rungs[0].shape) + "   |   counted without a GPU"
    figure.text(0.02, 1 - 0.60 / height, where, fontsize=10, color=charts.FAINT, va="center")
    return figure


def main():
    parser = charts.Parser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="COUNTS")
    parser.add_argument("--out", required=True, metavar="DIR", help="made if it does not exist")
    arguments = parser.parse_args()
    counted = work.load_all(arguments.files)
    matplotlib.rcParams.update(charts.STYLE)
    try:
        os.makedirs(arguments.out, exist_ok=True)
        charts.save(draw(rungs_of(counted)), arguments.out, "work")
    except OSError as error:
        raise ResultsError(f"{error.filename or arguments.out}: {error.strerror}") from None
    return 0


if __name__ == "__main__":
    sys.exit(results_module.run_main(main))
