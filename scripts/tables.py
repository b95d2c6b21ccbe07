#!/usr/bin/env python3
"""Writes the pages' tables of results from what was recorded in docs/results.

    <!-- results:begin -->                   every stage: its place is the README
    <!-- results:begin stage=03_x -->        one stage: predicted, measured, faster than what
    <!-- profile:begin stage=03_x -->        the same stage as Nsight Compute saw it
    <!-- work:begin stage=03_x -->           what the microscope counted of it
    <!-- work:begin -->                      every count against Nsight Compute's, all stages

A table stands between such a line and <!-- results:end -->, <!-- profile:end --> or
<!-- work:end -->; whatever is typed there is replaced. Pages: docs/**/*.md, *.md and */README.md.
Results: docs/results/*.jsonl, *profile.csv, work_*.ndjson, *_work.csv and widths.json. With --check
nothing is written, and a table that is out of date is exit status 1.
"""

import argparse
import glob
import os
import re
import sys

import profiles
import results as results_module
import rewrite
import work
from results import ResultsError

COMMAND = "scripts/tables.py"
MARKER = re.compile(r"<!-- (results|profile|work):(begin|end)(?: stage=(\S+))? -->")
NOTHING = "No results are recorded yet."


def kernel_name(result):
    """'`02_naive_cuda`', or with a stage of several kernels '`04_double_buffer`, low_occupancy'."""
    home, kernel = result.rung
    return f"`{home}`" if kernel == home else f"`{home}`, {kernel}"


def figure(value):
    """Three digits: more than most measurements have."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def percent(part):
    return f"{100 * part:.0f}%" if part >= 0.1 else f"{100 * part:.1f}%"


def times(factor):
    return f"{factor:.2f}×" if factor < 10 else f"{factor:.0f}×"


def over_before(result, above):
    """The speedup over the rung before, which is named where it is not the row above."""
    if not result.rung_before:
        return f"{result.not_timed} not timed" if result.not_timed else ""
    in_row_above = above and above.rung == result.rung_before.rung
    return times(result.over_before) + ("" if in_row_above else f" ({result.rung_before.kernel})")


RATES = ["GB/s", "of copy", "TFLOP/s", "over the one before"]


def rates(result, above):
    return [
        figure(result.gb_per_s),
        percent(result.gb_per_s / result.copy_gb_per_s) if result.copy_gb_per_s else "",
        figure(result.tflop_per_s),
        over_before(result, above),
    ]


def with_row_above(rungs):
    return zip(rungs, [None, *rungs])


def provenance(results):
    one = results[-1]
    commits = ", ".join(f"`{commit}`" for commit in dict.fromkeys(r.commit for r in results))
    built = one.toolkit if one.on_host else f"CUDA {one.toolkit}, driver {one.driver}"
    return (
        f"**{one.workload_text}, {one.dtype}, on {one.device}** "
        f"({built}; commit {commits}; {one.date[:10]})"
    )


def at_shape(shape, results):
    return results_module.ladder([result for result in results if result.shape == shape])


def overview(shapes, results):
    """Every kernel at every shape: milliseconds."""
    rows = []
    for kernel in results_module.ladder(results):
        row = [kernel_name(kernel)]
        for shape in shapes:
            found = [r for r in at_shape(shape, results) if r.rung == kernel.rung]
            row.append(figure(found[0].median_ms) if found else "")
        rows.append(row)
    return rewrite.table(["ms at B,H,L,E,M ="] + [str(shape) for shape in shapes], rows)


def ladder_section(results):
    """The README's part for the results of one device, workload and dtype."""
    shapes = results_module.shapes_of_first_stage(results)
    rungs = at_shape(shapes[0], results)
    first = rungs[0]
    rows = [
        [kernel_name(rung), figure(rung.median_ms), *rates(rung, above)]
        + [times(first.median_ms / rung.median_ms) if rung is not first else ""]
        for rung, above in with_row_above(rungs)
    ]
    text = [
        f"{provenance(results)}, B,H,L,E,M = {shapes[0]}:",
        rewrite.table(["kernel", "ms", *RATES, "over the first"], rows),
    ]
    if len(shapes) > 1:
        text.append(overview(shapes, results))
    return "\n\n".join(text)


def other_operators(rungs):
    """What was timed beside the stage's own kernels but computes something else, if anything was."""
    rows = []
    for rung in rungs:
        for other in (rung.others or []) if rung.picked else []:
            ms = other["median_ms"]
            inputs = other["inputs"]
            rows.append(
                [
                    str(rung.shape),
                    other["operator"] + (f", inputs {inputs}" if inputs else ""),
                    f"`{other['kernel']}`",
                    figure(ms),
                    f"{figure(rung.median_ms)} ({rung.kernel})",
                    times(rung.median_ms / ms),
                ]
            )
    if not rows:
        return []
    header = ["B,H,L,E,M", "another operator", "its kernel", "its ms", "ms here", "here over it"]
    return ["Timed beside them, **another operator**:", rewrite.table(header, rows, left=3)]


def stage_section(results, peers, everything):
    """A chapter's part for what its stage's driver recorded, the previous stage's kernel included,
    and what peers were recorded beside it.

    In full at the shapes at which every stage was timed; a sweep over lengths in short.
    """
    shapes = list(dict.fromkeys(result.shape for result in results))
    everywhere = results_module.shapes_of_first_stage(everything)
    detailed = [shape for shape in shapes if shape in everywhere] or shapes
    rows = []
    for shape in detailed:
        rungs = at_shape(shape, results + peers)
        own = [rung for rung in rungs if rung.home == rung.stage]
        for rung, above in with_row_above(rungs):
            picked = " (picked)" if rung.picked and len(own) > 1 else ""
            spread = f"{figure(rung.min_ms)} .. {figure(rung.max_ms)}"
            rows.append(
                [
                    str(shape) if rung is rungs[0] else "",
                    kernel_name(rung) + picked,
                    figure(rung.predicted_ms) if rung.predicted_ms else "",
                    figure(rung.median_ms),
                    spread,
                    *rates(rung, above),
                    times(rung.over_first) if rung.over_first else "",
                ]
            )
    header = ["B,H,L,E,M", "kernel", "predicted ms", "measured ms", "min .. max", *RATES]
    header.append("over the first")
    one = results[-1]
    limits = f"copies at {one.copy_gb_per_s:.0f} GB/s (read and written)"
    if one.fma_tflop_per_s:
        limits += f", fp32 multiply-adds at {one.fma_tflop_per_s:.1f} TFLOP/s"
    if one.mma_tflop_per_s:
        limits += f", bf16 mma.sync at {one.mma_tflop_per_s:.0f} TFLOP/s"
    caption = f"{provenance(results)}; in the same run, {limits}:"
    text = [caption, rewrite.table(header, rows, left=2)]
    text += other_operators([rung for shape in detailed for rung in at_shape(shape, results)])
    short = [shape for shape in shapes if shape not in detailed]
    if short:
        swept = [result for result in results if result.shape in short]
        text.append(overview(short, swept))
    return "\n\n".join(text)


def groups(results):
    """By what can be compared: device, workload and dtype. GPUs first: they are the subject."""
    found = {}
    for result in results:
        key = (result.on_host, result.workload, result.dtype, result.device)
        found.setdefault(key, []).append(result)
    return [found[key] for key in sorted(found, key=lambda key: key[0])]


def defaults(results):
    """Of each device and operator the inputs and the dtype that were recorded first: what a stage is
    judged by. The chapters have the others.
    """
    found = {}
    for group in groups(results):
        found.setdefault((group[0].device, group[0].workload[0]), group)
    return sorted(
        found.values(), key=lambda group: (group[0].on_host, min(r.stage for r in group))
    )


def results_text(results, stage):
    if not stage:
        of_stages = [result for result in results if result.stage not in results_module.PEERS]
        return "\n\n".join(map(ladder_section, defaults(of_stages))) or NOTHING
    sections = []
    for everything in groups(results):
        of_stage = [result for result in everything if result.stage == stage]
        if of_stage:
            shapes = {result.shape for result in of_stage}
            of_peers = [
                result
                for result in everything
                if result.stage in results_module.PEERS and result.shape in shapes
            ]
            sections.append(stage_section(of_stage, of_peers, everything))
    return "\n\n".join(sections) or NOTHING


def fill(page, text, render):
    """The page's text with render(kind, stage) between its markers."""
    out = []
    begun = None
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        marker = MARKER.fullmatch(line.strip())
        if not marker:
            if line.strip().startswith(("<!-- results", "<!-- profile", "<!-- work")):
                raise ResultsError(f"{page}:{number}: not a marker that {COMMAND} knows")
            if not begun:
                out.append(line)
            continue
        kind, side, stage = marker.groups()
        if (side == "end") != bool(begun) or (begun and kind != begun[0]):
            raise ResultsError(f"{page}:{number}: begin and end of {kind} do not pair")
        if side == "begin":
            try:
                out += [line, render(kind, stage), "\n"]
            except ValueError as error:
                raise ResultsError(f"{page}:{number}: {error}") from None
            begun = kind, number
        else:
            out.append(line)
            begun = None
    if begun:
        raise ResultsError(f"{page}:{begun[1]}: {begun[0]} begins but does not end")
    return "".join(out)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    parser.add_argument("--root", default=rewrite.ROOT, help="the repository")
    arguments = parser.parse_args()

    def recorded(pattern):
        return sorted(glob.glob(os.path.join(arguments.root, "docs", "results", pattern)))

    results = results_module.load_all(recorded("*.jsonl"))
    of_record = results_module.load_all(
        path for path in recorded("*.jsonl") if not results_module.is_sweep(path)
    )
    profiled = profiles.load_all(recorded("*profile.csv"))
    counted = work.load_all(recorded("work_*.ndjson"))
    measured = work.load_all_measured(recorded("*_work.csv"))
    widths = work.load_widths(os.path.join(arguments.root, "docs", "results", "widths.json"))

    def render(kind, stage):
        if stage and not os.path.isdir(os.path.join(arguments.root, stage)):
            raise ValueError(f"there is no stage '{stage}'")
        if kind == "results":
            return results_text(results if stage else of_record, stage)
        if kind == "work":
            if stage:
                return work.render(counted, stage)
            return work.render_against(counted, measured, widths)
        if not stage:
            raise ValueError("whose profile? stage=... is missing")
        return profiles.render(profiled, stage)

    differed = rewrite.update_pages(
        arguments.root, lambda name, text: fill(name, text, render), arguments.check, COMMAND
    )
    if differed and arguments.check:
        print(f"{differed} pages have tables out of date; run {COMMAND}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    results_module.run_main(main)
