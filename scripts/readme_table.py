#!/usr/bin/env python3
"""Writes the README's table of results from the recorded ones, docs/results/*.jsonl.

The table stands between <!-- results:begin --> and <!-- results:end -->; whatever is typed there
is replaced. With --check nothing is written, and a table that is out of date is exit status 1.
"""

import argparse
import glob
import os
import sys

import results as results_module
import rewrite
from results import ResultsError, home_stage

BEGIN = "<!-- results:begin -->"
END = "<!-- results:end -->"
COMMAND = "scripts/readme_table.py"


def table(header, rows):
    """A Markdown table; the columns of figures, that is all but the first, stand to the right."""
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def kernel_name(result, everything):
    """'`02_naive_cuda`', or with a stage of several kernels '`04_double_buffer`, low_occupancy'."""
    stage = home_stage(result.kernel, everything)
    return f"`{stage}`" if result.kernel == stage else f"`{stage}`, {result.kernel}"


def milliseconds(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def times(factor):
    return f"{factor:.2f}×" if factor < 10 else f"{factor:.0f}×"


def detail(rungs, everything):
    """Every kernel at one shape."""
    rows = []
    for i, rung in enumerate(rungs):
        rows.append(
            [
                kernel_name(rung, everything),
                milliseconds(rung.median_ms),
                f"{rung.gb_per_s:.0f}",
                f"{100 * rung.gb_per_s / rung.copy_gb_per_s:.0f}%" if rung.copy_gb_per_s else "",
                f"{rung.tflop_per_s:.2f}",
                times(rung.speedup) if rung.speedup and rung.baseline != rung.kernel else "",
                times(rungs[0].median_ms / rung.median_ms) if i else "",
            ]
        )
    header = [
        "kernel",
        "ms",
        "GB/s",
        "of copy",
        "TFLOP/s",
        "over its predecessor",
        "over the first",
    ]
    return table(header, rows)


def overview(shapes, everything):
    """Every kernel at every shape: milliseconds."""
    kernels = results_module.ladder(everything)
    rows = []
    for kernel in kernels:
        row = [kernel_name(kernel, everything)]
        for shape in shapes:
            at_shape = [result for result in everything if result.shape == shape]
            found = [r for r in results_module.ladder(at_shape) if r.kernel == kernel.kernel]
            row.append(milliseconds(found[0].median_ms) if found else "")
        rows.append(row)
    return table(["ms at B,H,L,E,M ="] + [str(shape) for shape in shapes], rows)


def section(results):
    """What is said of the results of one device, operator and dtype."""
    shapes = results_module.shapes_of_first_stage(results)
    rungs = results_module.ladder([result for result in results if result.shape == shapes[0]])
    one = rungs[-1]
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(r.commit for r in results))
    built = one.toolkit if one.on_host else f"CUDA {one.toolkit}, driver {one.driver}"
    text = [
        f"**{one.operator.capitalize()}, {one.dtype}, on {one.device}** "
        f"({built}; commit {commits}; {one.date[:10]}), B,H,L,E,M = {shapes[0]}:",
        detail(rungs, results),
    ]
    if len(shapes) > 1:
        text.append(overview(shapes, results))
    return "\n\n".join(text)


def render(results):
    if not results:
        return "No results are recorded yet."
    groups = {}
    for result in results:
        key = (result.on_host, result.operator, result.dtype, result.device)
        groups.setdefault(key, []).append(result)
    # GPUs first: they are what the tutorial is about.
    return "\n\n".join(section(groups[key]) for key in sorted(groups, key=lambda key: key[0]))


def replace(page, path, text):
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ResultsError(
            f"{path}: '{BEGIN}' and '{END}' should stand there once each, in this order"
        )
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    parser.add_argument("--readme", default=os.path.join(rewrite.ROOT, "README.md"))
    parser.add_argument(
        "--results", default=os.path.join(rewrite.ROOT, "docs", "results"), metavar="DIR"
    )
    arguments = parser.parse_args()
    files = sorted(glob.glob(os.path.join(arguments.results, "*.jsonl")))
    text = render(results_module.load_all(files))
    try:
        page = rewrite.read(arguments.readme)
    except OSError as error:
        raise ResultsError(f"{arguments.readme}: {error.strerror}") from None
    wanted = replace(page, arguments.readme, text)
    differed = rewrite.update(arguments.readme, wanted, arguments.check, COMMAND)
    if differed and arguments.check:
        print(f"{arguments.readme}: the table is out of date; run {COMMAND}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    results_module.run_main(main)
