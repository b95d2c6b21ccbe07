"""Reads what Nsight Compute measured (scripts/gpu_session.sh profile) and tables it for a chapter.

The file: a comment line `# stage, kernel, dtype, shape` (an older file has no dtype: f32), then
ncu's raw CSV: a header, a row of units, a row per launch. Of a kernel's launches the longest is the
kernel at that shape; the others set up its output or belong to checks.
"""

import csv
import dataclasses

import rewrite
from results import ResultsError

NOTHING = "No profile is recorded yet."
SECTOR = 32  # bytes
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
# Milliseconds and kibibytes are computed from these; in another unit they would be wrong.
UNITS = {
    "gpu__time_duration.sum": ("ns", "nsecond"),
    "launch__shared_mem_per_block_static": ("byte", "byte/block"),
    "launch__shared_mem_per_block_dynamic": ("byte", "byte/block"),
}


@dataclasses.dataclass(frozen=True)
class Profile:
    stage: str
    kernel: str
    dtype: str
    shape: str
    device: str  # its compute capability: ncu's raw page has no name
    columns: dict  # as ncu names them

    def __call__(self, metric):
        """The metric's value; ValueError where this version of ncu, or this GPU, has none."""
        return float(self.columns.get(metric, "").replace(",", ""))


def _longest(launches):
    return max(launches, key=lambda row: float(row["gpu__time_duration.sum"].replace(",", "")))


def load(path):
    """A Profile of each kernel in the file."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path}: {getattr(error, 'strerror', 'not a text file')}") from None
    sections = []  # [title, number of its line, header, launches]
    for number, line in enumerate(lines, 1):
        if line.startswith("# "):
            sections.append([line[2:].split(", "), number, None, []])
            continue
        if not line.strip():
            continue
        row = next(csv.reader([line]))
        if not sections:
            what = "a line '# stage, kernel, dtype, shape' is missing"
            raise ResultsError(f"{path}:{number}: {what}")
        header = sections[-1][2]
        if row[0] == "ID":
            sections[-1][2] = row
        elif header is None or len(row) != len(header):
            raise ResultsError(f"{path}:{number}: not a row of ncu's raw page")
        elif row[0].isdigit():
            sections[-1][3].append(dict(zip(header, row)))
        else:
            for metric, unit in zip(header, row):
                if unit not in UNITS.get(metric, (unit,)):
                    raise ResultsError(
                        f"{path}:{number}: {metric} in '{unit}'; run ncu with --print-units base"
                    )
    profiles = []
    for title, number, _, launches in sections:
        if len(title) == 3:
            title.insert(2, "f32")
        if len(title) != 4 or not launches:
            raise ResultsError(f"{path}:{number}: no kernel's profile follows")
        try:
            profiles.append(Profile(*title, launches[0].get("CC", ""), _longest(launches)))
        except (KeyError, ValueError):
            what = "a launch without gpu__time_duration.sum"
            raise ResultsError(f"{path}:{number}: {what}") from None
    return profiles


def load_all(paths):
    return [profile for path in paths for profile in load(path)]


# --- The table ------------------------------------------------------------------------------------


def _megabytes(*metrics):
    return lambda p: f"{sum(map(p, metrics)) * SECTOR / 1e6:,.0f} MB"


def _sectors_per_request(kind):
    def cell(p):
        requests = p(f"l1tex__t_requests_pipe_lsu_mem_global_op_{kind}.sum")
        sectors = p(f"l1tex__t_sectors_pipe_lsu_mem_global_op_{kind}.sum")
        return f"{sectors / requests:.1f} of {requests:,.0f}" if requests else ""

    return cell


def _grid(p):
    threads = 1
    for size in p.columns["Block Size"].strip("()").split(","):
        threads *= int(size)
    blocks = p.columns["Grid Size"].strip("()").split(",")[0]
    return f"{int(blocks):,} × {threads}"


def _shared(p):
    static, dynamic = (
        p(f"launch__shared_mem_per_block_{kind}") / 1024 for kind in ("static", "dynamic")
    )
    return f"{static:.1f} + {dynamic:.1f} KiB"


def _per_multiply_add(p):
    in_warps = p("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum") / 32
    return f"{p('smsp__inst_executed.sum') / in_warps:.2f}" if in_warps else ""


def _wavefronts(p):
    found, ideal = p("memory_l1_wavefronts_shared"), p("memory_l1_wavefronts_shared_ideal")
    return f"{found:,.0f}, {ideal:,.0f}" if found else ""


def _spills(p):
    sectors = sum(p(f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum") for op in ("ld", "st"))
    return f"{sectors * SECTOR / 1e6:,.1f} MB" if sectors else ""


def _stalls(p):
    """The four longest, in cycles that a warp waits per instruction it issues."""
    prefix, suffix = STALL.split("{}")
    found = [
        (p(metric), metric[len(prefix) : -len(suffix)].replace("_", " "))
        for metric in p.columns
        if metric.startswith(prefix) and metric.endswith(suffix)
    ]
    return ", ".join(f"{cause} {cycles:.1f}" for cycles, cause in sorted(found)[:-5:-1])


ROWS = {
    "kernel time": lambda p: f"{p('gpu__time_duration.sum') / 1e6:.3g} ms",
    "blocks × threads": _grid,
    "registers per thread": lambda p: f"{p('launch__registers_per_thread'):.0f}",
    "shared memory per block, static + dynamic": _shared,
    "warps active, of what fits the chip": lambda p: (
        f"{p('sm__warps_active.avg.pct_of_peak_sustained_active'):.1f}%"
    ),
    "instructions per cycle and multiprocessor, of 4": lambda p: (
        f"{p('sm__inst_executed.avg.per_cycle_active'):.2f}"
    ),
    "instructions per multiply-add": _per_multiply_add,
    "DRAM, read + written": _megabytes("dram__sectors_read.sum", "dram__sectors_write.sum"),
    "L2, read + written": _megabytes("lts__t_sectors_op_read.sum", "lts__t_sectors_op_write.sum"),
    "L2, atomics": _megabytes("lts__t_sectors_op_atom.sum", "lts__t_sectors_op_red.sum"),
    "sectors per load, of how many loads": _sectors_per_request("ld"),
    "sectors per store, of how many stores": _sectors_per_request("st"),
    "sectors per atomic, of how many atomics": _sectors_per_request("red"),
    "hits in L1": lambda p: f"{p('l1tex__t_sector_hit_rate.pct'):.0f}%",
    "registers spilled to memory": _spills,
    "shared memory wavefronts, ideal": _wavefronts,
    "waits, cycles per instruction of a warp": _stalls,
}


def render(profiles, stage):
    """One column for each kernel of the stage in each dtype, one row for each thing to look at."""
    latest = {(p.kernel, p.dtype): p for p in profiles if p.stage == stage}
    if not latest:
        return NOTHING

    def cell(profile, value):
        try:
            return value(profile)
        except (KeyError, ValueError):  # ncu did not have it, or says n/a
            return ""

    rows = [[label] + [cell(p, value) for p in latest.values()] for label, value in ROWS.items()]
    one = next(iter(latest.values()))
    where = f", compute capability {one.device}" if one.device else ""
    several = len({dtype for _, dtype in latest}) > 1
    names = [f"`{kernel}`" + (f" {dtype}" if several else "") for kernel, dtype in latest]
    header = [f"at {one.shape}{where}"] + names
    return rewrite.table(header, [row for row in rows if any(row[1:])])
