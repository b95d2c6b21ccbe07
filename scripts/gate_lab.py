#!/usr/bin/env python3
"""Draws what 05_gate_lab recorded, as SVG and, beside it, PNG.

The error of gated linear attention against the strength of its gates, both logarithmic, a line for
each kernel and dtype. Where outputs are not finite there is no error: a cross on the upper edge.
"""

import dataclasses
import os

import results as results_module
from results import ResultsError

import charts
import matplotlib
import matplotlib.pyplot as plt


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A line of the lab's results file: one kernel at gates of one strength."""

    lab: str
    kernel: str
    dtype: str
    strength: float  # the mean of -g, in nats per step
    rel_error: float | None
    not_finite: int  # outputs that are NaN or infinite
    device: str
    toolkit: str
    commit: str
    date: str

    def __post_init__(self):
        if self.lab != "gates":
            raise ValueError(f"'lab' should be gates, not {self.lab}")
        if self.rel_error == 0:
            raise ValueError("'rel_error' is 0")  # it has no logarithm
        if (self.rel_error is None) != (self.not_finite > 0):
            raise ValueError("'rel_error' should be null where outputs are not finite, only there")


def lines(points):
    """{(kernel, dtype): [point]}, by strength; of points measured again the last."""
    found = {}
    for point in points:
        found.setdefault((point.kernel, point.dtype), {})[point.strength] = point
    return {key: [line[x] for x in sorted(line)] for key, line in found.items()}


def draw(points):
    figure, axes = plt.subplots(figsize=(9, 5.6), layout="none")
    figure.subplots_adjust(left=0.1, right=0.73, top=1 - 1.1 / 5.6, bottom=0.7 / 5.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    overflow = None
    for i, ((kernel, dtype), line) in enumerate(lines(points).items()):
        look = {"color": charts.COLOURS[(i + 1) % len(charts.COLOURS)], "linewidth": 2}
        axes.plot(
            [point.strength for point in line],
            [point.rel_error or float("nan") for point in line],  # a gap in the line
            marker=charts.MARKERS[i % len(charts.MARKERS)],
            markersize=6,
            label=f"{charts.kernel_label(kernel)}, {charts.dtype_text(dtype)}",
            **look,
        )
        over = [point.strength for point in line if point.rel_error is None]
        if over:
            on_edge = {"transform": axes.get_xaxis_transform(), "clip_on": False}
            axes.plot(over, [1] * len(over), "x", markersize=9, **look, **on_edge)
            overflow = min(over + ([overflow] if overflow else []))
    if overflow:
        axes.annotate(
            "overflow",
            (overflow, 1),
            (0, -16),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=charts.FAINT,
            bbox=charts.HALO,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 10)  # room below the edge
    axes.grid(color=charts.GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("strength of the gates: the mean of -g, in nats per step")
    axes.set_ylabel("relative error against float64")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    charts.titles(figure, "Gated linear attention: error against the strength of the gates", points)
    return figure


def main():
    parser = charts.Parser(description=__doc__)
    parser.add_argument("file", metavar="RESULTS")
    parser.add_argument("--out", required=True, metavar="CHART.svg")
    arguments = parser.parse_args()
    folder, name = os.path.split(arguments.out)
    name, extension = os.path.splitext(name)
    if extension != ".svg":
        raise ResultsError(f"--out {arguments.out}: a name that ends in .svg is expected")
    points = results_module.load(arguments.file, Point)
    results_module.only_device(points)
    matplotlib.rcParams.update(charts.STYLE)
    try:
        os.makedirs(folder or ".", exist_ok=True)
        charts.save(draw(points), folder or ".", name)
    except OSError as error:
        raise ResultsError(f"{error.filename or arguments.out}: {error.strerror}") from None


if __name__ == "__main__":
    results_module.run_main(main)
