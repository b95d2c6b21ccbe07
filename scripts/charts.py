#!/usr/bin/env python3
"""Draws the charts of results files, as SVG and PNG.

    speedup       the ladder: every kernel at one shape, how many times faster than the first, and
                  beside each bar how many times faster than the one before
    length        time against sequence length L, both logarithmic, with the slope of each line
    crossover     the same for linear and softmax attention in one chart, with the lengths at which
                  they take the same time

A chart has one operator, on inputs of one kind, in one dtype: of each operator, those with the most
results. Without a prefix they are of the causal product; gated_linear_attention_ and the like mark
those of other operators, cpu_ those of what was timed on the host (stage 01). A shape's name is
appended where --shape asks for one. The same results give the same SVG, byte for byte, so that a
recorded chart changes only when its results do.
"""

import argparse
import math
import os
import sys
import tempfile

import results as results_module
from results import ResultsError, Shape

try:
    import matplotlib
except ImportError:
    print("charts.py: no matplotlib; ./tour and ./test install it into .venv", file=sys.stderr)
    sys.exit(2)

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator  # noqa: E402

# Okabe and Ito's colours, which colour-blind readers can tell apart, the bright yellow left out.
COLOURS = ["#999999", "#56b4e9", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
# Of a column beside an axis, in parts of the axis' length.
COLUMN_END = 1.23
INK = "#222222"
FAINT = "#666666"
GRID = "#dddddd"

# Behind a label, so that the grid does not strike it through.
HALO = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}

STYLE = {
    "svg.hashsalt": "attention-tour",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # matplotlib brings it along
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": INK,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
}


def kernel_label(kernel):
    """How a kernel is called on an axis: without the underscores of its name."""
    return kernel.replace("_", " ")


def bar_label(result):
    """Number of the stage and name of the kernel: '04 double buffer'."""
    if result.kernel == result.home:
        return kernel_label(result.home)
    home = results_module.PEERS.get(result.home, result.home[:2])
    return f"{home} {kernel_label(result.kernel)}"


def milliseconds(value):
    return f"{value:.3g} ms" if value < 1000 else f"{value:,.0f} ms"


def times(factor):
    """A factor with about two significant digits: 0.93x, 5.1x, 48x."""
    if factor == 1:
        return "1×"
    digits = 2 if factor < 1 else 1 if factor < 10 else 0
    return f"{factor:,.{digits}f}×"


def dtype_text(dtype):
    return {"f32": "fp32"}.get(dtype, dtype)


def shape_text(shape, without_length=False):
    heads = f"E=M={shape.E}" if shape.E == shape.M else f"E={shape.E}, M={shape.M}"
    length = "" if without_length else f"L={shape.L}, "
    return f"B={shape.B}, H={shape.H}, {length}{heads}"


def provenance(results):
    commits = ", ".join(dict.fromkeys(result.commit for result in results))
    days = sorted({result.date[:10] for result in results})
    day = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f"{results[0].device}   |   commit {commits}   |   {day}"


def titles(figure, title, results):
    """Title and provenance at the figure's left edge, whatever the length of the axis labels."""
    height = figure.get_size_inches()[1]
    size = 14 if len(title) <= 70 else 14 * 70 / len(title)  # a long one in the same width
    figure.text(0.02, 1 - 0.32 / height, title, fontsize=size, fontweight="bold", va="center")
    figure.text(0.02, 1 - 0.60 / height, provenance(results), fontsize=10, color=FAINT, va="center")


def limit_of_device(result):
    """The least time the operator could take here, and what sets it: its bytes, or its arithmetic.

    (None, None) where that is not known: nobody measured the arithmetic of the host. Tensor cores
    take fp32 operands too, rounded to tf32, at half the rate of bf16.
    """
    if not result.copy_gb_per_s or (result.dtype == "f32" and not result.fma_tflop_per_s):
        return None, None
    limits = [(result.bytes / (result.copy_gb_per_s * 1e6), "memory")]
    if result.mma_tflop_per_s:
        rate = result.mma_tflop_per_s / (2 if result.dtype == "f32" else 1)
        limits.append((result.flops / (rate * 1e9), "tensor cores, mma.sync"))
    elif result.dtype == "f32":
        limits.append((result.flops / (result.fma_tflop_per_s * 1e9), "fp32 arithmetic"))
    return max(limits)


def log_ticks(low, high):
    steps = (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return ticks if len(ticks) <= 9 else [tick for tick in ticks if f"{tick:e}".startswith("1")]


def over_before(result, above):
    """As beside a bar; names the rung before where it is not the bar above."""
    if not result.rung_before:
        return f"{kernel_label(result.not_timed)}\nnot timed" if result.not_timed else ""
    in_bar_above = above and above.rung == result.rung_before.rung
    name = "" if in_bar_above else f"\n({kernel_label(result.rung_before.kernel)})"
    return times(result.over_before) + name


def column_over_before(axes, places, rungs):
    """To the right of the bars."""
    texts = [over_before(rung, above) for rung, above in zip(rungs, [None, *rungs])]
    if not any(texts):
        return
    look = {"ha": "right", "fontsize": 9, "xycoords": ("axes fraction", "data")}
    for place, text in zip(places, texts):
        axes.annotate(text, (COLUMN_END, place), va="center", **look)
    axes.annotate(
        "over the\none before",
        (COLUMN_END, places[0] + 0.5),
        (0, 3),
        textcoords="offset points",
        va="bottom",
        color=FAINT,
        **look,
    )


def draw_speedup(results, shape):
    """The ladder at one shape. Bars, on a logarithmic axis: equal steps are equal factors."""
    rungs = results_module.ladder([result for result in results if result.shape == shape])
    base = rungs[0]
    speedups = [base.median_ms / rung.median_ms for rung in rungs]
    limit_ms, limit_by = limit_of_device(base)
    limit = base.median_ms / limit_ms if limit_ms else None

    left = min(speedups) / 1.6  # so that the shortest bar is a bar too
    right = max(speedups + ([limit] if limit else [])) * 1.25
    figure, axes = plt.subplots(figsize=(9, 2.1 + 0.52 * len(rungs)), layout="none")
    height = figure.get_size_inches()[1]
    figure.subplots_adjust(left=0.235, right=0.84, top=1 - 1.0 / height, bottom=0.72 / height)
    axes.set_xscale("log")
    # Room for the label of the longest bar, in parts of the axis' length.
    span = math.log(right / left)
    longest = math.log(max(speedups) / left) / span
    if longest + 0.27 > 1:
        right = left * math.exp(span * (longest + 0.27))
    axes.set_xlim(left, right)

    places = list(range(len(rungs)))[::-1]
    # A colour for each stage; for each kernel, where they are all of one.
    groups = [rung.home for rung in rungs]
    if len(set(groups)) == 1:
        groups = [rung.kernel for rung in rungs]
    order = list(dict.fromkeys(groups))
    colours = [COLOURS[order.index(group) % len(COLOURS)] for group in groups]
    axes.barh(places, [s - left for s in speedups], left=left, height=0.66, color=colours)
    for place, rung, speedup in zip(places, rungs, speedups):
        text = times(speedup)
        axes.annotate(
            text,
            (speedup, place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontweight="bold",
            bbox=HALO,
        )
        axes.annotate(
            milliseconds(rung.median_ms),
            (speedup, place),
            (14 + 8 * len(text), 0),
            textcoords="offset points",
            va="center",
            color=FAINT,
            bbox=HALO,
        )
    if limit and limit < right:
        axes.axvline(limit, color=INK, linestyle=(0, (4, 3)), linewidth=1, zorder=0)
        side = "right" if math.log(limit / left) > 0.5 * math.log(right / left) else "left"
        axes.annotate(
            f"limit of this device: {milliseconds(limit_ms)} ({limit_by})",
            (limit, len(rungs) - 0.5),
            (-5 if side == "right" else 5, 3),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=9,
            color=FAINT,
        )

    column_over_before(axes, places, rungs)
    axes.set_yticks(places, [bar_label(rung) for rung in rungs])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(-0.5, len(rungs) - 0.5)
    axes.xaxis.set_major_locator(FixedLocator(log_ticks(left, right)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel(f"times faster than {bar_label(base)} (logarithmic)")
    titles(
        figure,
        f"{base.workload_text}, {dtype_text(base.dtype)}, {shape_text(shape)}",
        rungs,
    )
    return figure


def slope(points):
    """The exponent p of time = c * L^p, by least squares on the logarithms."""
    xs = [math.log(length) for length, _ in points]
    ys = [math.log(ms) for _, ms in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / sum(
        (x - mean_x) ** 2 for x in xs
    )


def sweeps(results):
    """The results that differ in L only, of 3 lengths at least.

    {(B, H, E, M): {rung: {L: result}}}
    """
    groups = {}
    for result in results:
        key = (result.shape.B, result.shape.H, result.shape.E, result.shape.M)
        at_lengths = groups.setdefault(key, {}).setdefault(result.rung, {})
        at_lengths[result.shape.L] = result  # measured again: the last counts
    long_enough = {}
    for key, kernels in groups.items():
        kernels = {rung: points for rung, points in kernels.items() if len(points) >= 3}
        if kernels:
            long_enough[key] = kernels
    return long_enough


# What the crossover chart compares: operators, each on inputs of one kind, and their names there.
CONTENDERS = {
    ("gated linear attention", "mild"): "gated linear attention (05)",
    ("RWKV-6", "exponential"): "RWKV-6 (06)",
    ("softmax attention", "causal"): "softmax attention, causal (07)",
}
SOFTMAX = ("softmax attention", "causal")


def contenders(results):
    """{workload: {L: result}} of the sweeps that softmax attention shares with others, in bf16: of
    each length what the stage picks. None where there are none.
    """
    by_shape = {}
    for result in results:
        if result.workload in CONTENDERS and result.picked and result.dtype == "bf16":
            key = (result.shape.B, result.shape.H, result.shape.E, result.shape.M)
            lines = by_shape.setdefault(key, {})
            lines.setdefault(result.workload, {})[result.shape.L] = result
    for lines in by_shape.values():
        lines = {workload: points for workload, points in lines.items() if len(points) >= 3}
        if SOFTMAX in lines and len(lines) >= 2:
            return {workload: lines[workload] for workload in CONTENDERS if workload in lines}
    return None


def crossing(line, other):
    """(L, ms) from which on `line` is the slower one, between lengths at which both were timed, on
    straight lines of the logarithms; None if it never becomes so.
    """
    lengths = sorted(set(line) & set(other))
    gaps = [math.log(line[length].median_ms / other[length].median_ms) for length in lengths]
    for (left, gap), (right, next_gap) in zip(zip(lengths, gaps), zip(lengths[1:], gaps[1:])):
        if gap <= 0 < next_gap:
            part = gap / (gap - next_gap)
            ms = line[left].median_ms * (line[right].median_ms / line[left].median_ms) ** part
            return left * (right / left) ** part, ms
    return None


def draw_crossover(lines):
    figure, axes = plt.subplots(figsize=(9, 5.6), layout="none")
    figure.subplots_adjust(left=0.1, right=0.97, top=1 - 1.0 / 5.6, bottom=0.7 / 5.6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    everything = [result for points in lines.values() for result in points.values()]
    for i, (workload, points) in enumerate(lines.items()):
        lengths = sorted(points)
        axes.plot(
            lengths,
            [points[length].median_ms for length in lengths],
            color=COLOURS[(i + 2) % len(COLOURS)],
            linewidth=2,
            marker=MARKERS[i % len(MARKERS)],
            markersize=7,
            label=CONTENDERS[workload],
        )
    softmax = lines[SOFTMAX]
    for i, (workload, points) in enumerate(lines.items()):
        found = crossing(softmax, points) if workload != SOFTMAX else None
        if not found:
            continue
        print(f"{CONTENDERS[workload]}: as fast as softmax attention at L = {found[0]:.0f}")
        axes.plot(*found, marker="o", markersize=13, markerfacecolor="none", color=INK)
        axes.annotate(
            f"L = {found[0]:,.0f}",
            found,
            (40, -30 - 24 * i),
            textcoords="offset points",
            color=INK,
            bbox=HALO,
            arrowprops={"arrowstyle": "-", "color": FAINT, "shrinkB": 6},
        )
    lengths = sorted({result.shape.L for result in everything})
    axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.5)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(FixedLocator(log_ticks(*axes.get_ylim())))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("sequence length L")
    axes.set_ylabel("median time in ms")
    axes.legend(loc="upper left", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)
    shape = shape_text(everything[0].shape, without_length=True)
    titles(figure, f"Linear against softmax attention, bf16, {shape}", everything)
    return figure


def draw_length(kernels):
    """Time against L for the kernels of one sweep."""
    figure, axes = plt.subplots(figsize=(9, 5.6), layout="none")
    figure.subplots_adjust(left=0.1, right=0.97, top=1 - 1.0 / 5.6, bottom=0.7 / 5.6)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    everything = [result for points in kernels.values() for result in points.values()]
    labelled = []
    for i, rung in enumerate(sorted(kernels, key=lambda rung: rung[0])):
        points = [(length, kernels[rung][length].median_ms) for length in sorted(kernels[rung])]
        fitted = slope(points)
        label = bar_label(next(iter(kernels[rung].values())))
        print(f"{label}: time ~ L^{fitted:.3f} from L = {points[0][0]} to {points[-1][0]}")
        axes.plot(
            [x for x, _ in points],
            [y for _, y in points],
            color=COLOURS[(i + 2) % len(COLOURS)],
            linewidth=2,
            marker=MARKERS[i % len(MARKERS)],
            markersize=7,
            label=f"{label}: slope {fitted:.2f}",
        )
        if all(abs(math.log(points[-1][1] / other)) > 0.4 for other in labelled):  # no overlap
            axes.annotate(
                milliseconds(points[-1][1]),
                points[-1],
                (0, 10),
                ha="center",
                fontsize=9,
                textcoords="offset points",
                color=FAINT,
                bbox=HALO,
            )
            labelled.append(points[-1][1])

    lengths = sorted({result.shape.L for result in everything})
    axes.set_xlim(lengths[0] / 1.3, lengths[-1] * 1.5)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(axes.get_ylim()[0] / 1.2, axes.get_ylim()[1] * 1.5)
    axes.yaxis.set_major_locator(FixedLocator(log_ticks(*axes.get_ylim())))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.set_xlabel("sequence length L")
    axes.set_ylabel("median time in ms")
    axes.legend(loc="upper left", frameon=True, facecolor="white", edgecolor="none", framealpha=0.9)
    one = everything[0]
    titles(
        figure,
        f"{one.workload_text}, {dtype_text(one.dtype)}, "
        f"{shape_text(one.shape, without_length=True)}: time against length",
        everything,
    )
    return figure


def save(figure, out, name):
    """Writes both formats. Each is renamed into place when whole: nobody sees half a chart."""
    for extension in ("svg", "png"):
        path = os.path.join(out, f"{name}.{extension}")
        metadata = {"Date": None, "Creator": None} if extension == "svg" else {"Software": None}
        handle, temporary = tempfile.mkstemp(dir=out, suffix=f".{extension}")
        try:
            with os.fdopen(handle, "wb") as file:
                figure.savefig(file, format=extension, metadata=metadata, dpi=160)
            os.chmod(temporary, 0o644)  # mkstemp's file is the owner's alone
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        print(path)
    plt.close(figure)


def largest_groups(results):
    """By operator, the results of one workload and one dtype: a chart never mixes them. Those with
    the most results.
    """
    groups = {}
    for result in results:
        operator, inputs = result.workload
        of_operator = groups.setdefault(operator, {})
        of_operator.setdefault((inputs, result.dtype), []).append(result)
    return {operator: max(found.values(), key=len) for operator, found in groups.items()}


def draw_all(results, shapes, out, prefix):
    results_module.only_device(results)
    for operator, group in largest_groups(results).items():
        name = "" if operator == results_module.CAUSAL_PRODUCT else operator.lower().replace(" ", "_") + "_"
        draw_group(group, shapes, out, prefix + name)
    lines = contenders(results)
    if lines:
        save(draw_crossover(lines), out, f"{prefix}crossover")


def draw_group(results, shapes, out, prefix):
    recorded = {result.shape for result in results}
    for shape in shapes or results_module.shapes_of_first_stage(results)[:1]:
        if shape in recorded:
            name = f"{prefix}speedup" + (f"_{str(shape).replace(',', '_')}" if shapes else "")
            save(draw_speedup(results, shape), out, name)
    found = sweeps(results)
    if found:
        longest = max(found.values(), key=lambda kernels: max(map(max, kernels.values())))
        save(draw_length(longest), out, f"{prefix}length")
    else:
        print(f"no {prefix}length chart: no kernel was timed at three lengths")


def parse_shape(text):
    try:
        shape = Shape(*(int(part) for part in text.split(",")))
    except (ValueError, TypeError):
        raise ResultsError(f"--shape {text}: five sizes are expected, B,H,L,E,M") from None
    return shape


class Parser(argparse.ArgumentParser):
    def error(self, message):  # one line, where argparse prints its usage as well
        raise ResultsError(f"{self.prog}: {message}")


def main():
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="RESULTS")
    parser.add_argument("--out", required=True, metavar="DIR", help="made if it does not exist")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="B,H,L,E,M",
        help="draw the ladder at this shape (may be given several times); "
        "default: the shape that the first stage was timed at first",
    )
    arguments = parser.parse_args()
    shapes = [parse_shape(text) for text in arguments.shape]
    results = results_module.load_all(arguments.files)
    for shape in shapes:
        if all(result.shape != shape for result in results):
            raise ResultsError(f"--shape {shape}: nothing was recorded at this shape")
    matplotlib.rcParams.update(STYLE)
    try:
        os.makedirs(arguments.out, exist_ok=True)
        for on_host, prefix in ((False, ""), (True, "cpu_")):
            part = [result for result in results if result.on_host == on_host]
            if part:
                draw_all(part, shapes, arguments.out, prefix)
    except OSError as error:
        raise ResultsError(f"{error.filename or arguments.out}: {error.strerror}") from None


if __name__ == "__main__":
    results_module.run_main(main)
