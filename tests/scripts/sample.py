"""Results for the tests of the scripts: made up, and never written outside a test's own folder."""

import contextlib
import io
import json
import os
import subprocess
import sys

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")
sys.path.insert(0, SCRIPTS)

import results  # noqa: E402


def record(
    stage="02_naive_cuda", kernel="02_naive_cuda", ms=40.0, shape=(16, 8, 4096, 64, 64), **more
):
    b, h, length, e, m = shape
    moved = 4.0 * b * h * length * (2 * e + 2 * m)
    flops = 4.0 * b * h * length * e * m
    line = {
        "schema": 2,
        "stage": stage,
        "kernel": kernel,
        "home": stage,
        "picked": True,
        "baseline": "",
        "speedup": None,
        "operator": "causal product",
        "inputs": "",
        "shape": {"B": b, "H": h, "L": length, "E": e, "M": m},
        "dtype": "f32",
        "median_ms": ms,
        "min_ms": ms * 0.98,
        "max_ms": ms * 1.03,
        "samples": 30,
        "bytes": moved,
        "flops": flops,
        "gb_per_s": moved / ms / 1e6,
        "tflop_per_s": flops / ms / 1e9,
        "copy_gb_per_s": 4300.0,
        "fma_tflop_per_s": 60.0,
        "mma_tflop_per_s": None,
        "predicted_ms": ms * 0.8,
        "rel_error": 1e-6,
        "max_abs_error": 1e-4,
        "device": "Made-up GPU",
        "sm": "9.0",
        "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201,
        "driver": "13.0",
        "toolkit": "13.0",
        "commit": "0123abcd",
        "date": "2026-11-20T16:30:00Z",
    }
    line.update(more)
    return line


def ladder(shape=(16, 8, 4096, 64, 64), scale=1.0):
    """As the drivers record them: each stage's run times the previous stage's kernel as well."""

    def timed(stage, kernel, ms, baseline="", **more):
        more = {"picked": kernel in (stage, "double_buffer"), "baseline": baseline, **more}
        return record(stage, kernel, ms * scale, shape, **more)

    return [
        timed("02_naive_cuda", "02_naive_cuda", 41.3),
        timed("03_shared_mem", "02_naive_cuda", 41.9, home="02_naive_cuda"),
        timed("03_shared_mem", "03_shared_mem", 5.02, "02_naive_cuda"),
        timed("04_double_buffer", "03_shared_mem", 5.01, home="03_shared_mem"),
        timed("04_double_buffer", "double_buffer", 0.874, "03_shared_mem"),
        timed("04_double_buffer", "low_occupancy", 1.31, "double_buffer"),
    ]


def old(records, baseline):
    """The same as schema 1 had them: all compared with one kernel."""
    base = next(line["median_ms"] for line in records if line["kernel"] == baseline)
    for line in records:
        changed = {"schema": 1, "baseline": baseline, "speedup": base / line["median_ms"]}
        yield {name: value for name, value in (line | changed).items() if name != "home"}


def host(
    ms_of_kernels=(("scalar", 120.0), ("openmp", 61.0), ("chunked", 6.1)),
    shape=(4, 4, 1024, 64, 64),
):
    return [
        record(
            "01_cpu_reference",
            kernel,
            ms,
            shape,
            sm="host",
            device="Made-up CPU",
            copy_gb_per_s=11.0,
            fma_tflop_per_s=None,
            predicted_ms=None,
            baseline={"openmp": "scalar", "chunked": "openmp"}.get(kernel, ""),
            driver="",
            toolkit="g++ 12.2.0",
            sm_clock_mhz=0,
            memory_clock_mhz=0,
        )
        for kernel, ms in ms_of_kernels
    ]


def sweep(kernel="double_buffer", lengths=(2048, 4096, 8192, 16384), power=1.0):
    return [
        record(
            "04_double_buffer", kernel, 0.874 * (length / 4096) ** power, (16, 8, length, 64, 64)
        )
        for length in lengths
    ]


def gated(inputs="mild", dtype="bf16", shapes=((8, 32, 4096, 64, 64),), ms=0.3):
    """As stage 05 records gated linear attention on inputs of one kind."""
    return [
        record(
            "05_chunked_gla",
            kernel,
            slower * ms,
            shape,
            operator="gated linear attention",
            inputs=inputs,
            dtype=dtype,
            mma_tflop_per_s=600.0,
            baseline="recurrent" if kernel == "fused" else "",
            picked=kernel == "fused",
        )
        for shape in shapes
        for kernel, slower in (("recurrent", 20), ("fused", 1))
    ]


def profile(
    stage="03_shared_mem",
    kernel="03_shared_mem",
    launches=((900, {}), (5_020_000, {})),
    dtype="f32",
):
    """As scripts/gpu_session.sh profile writes it: the launches' times in ns, and metrics."""
    metrics = {
        "gpu__time_duration.sum": ("ns", None),
        "launch__registers_per_thread": ("register/thread", "32"),
        "launch__shared_mem_per_block_static": ("byte/block", "2,112"),
        "launch__shared_mem_per_block_dynamic": ("byte/block", "0"),
        "sm__inst_executed.avg.per_cycle_active": ("inst/cycle", "1.234"),
        "dram__sectors_read.sum": ("sector", "2,000,000"),
        "dram__sectors_write.sum": ("sector", "500,000"),
        "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": ("request", "1,000"),
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": ("sector", "2,500"),
        "memory_l1_wavefronts_shared": ("", "n/a"),
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": ("", "3.25"),
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": ("", "12.5"),
    }
    head = ["ID", "Kernel Name", "Block Size", "Grid Size", "CC"]
    rows = [head + list(metrics), [""] * len(head) + [unit for unit, _ in metrics.values()]]
    for number, (nanoseconds, changed) in enumerate(launches):
        values = {name: value for name, (_, value) in metrics.items()}
        values |= {"gpu__time_duration.sum": f"{nanoseconds:,}", **changed}
        launch = [str(number), "a_kernel", "(64, 1, 1)", "(1024, 1, 1)", "9.0"]
        rows.append(launch + list(values.values()))
    lines = [",".join(f'"{cell}"' for cell in row) for row in rows]
    return "\n".join([f"# {stage}, {kernel}, {dtype}, 16,8,4096,64,64", *lines, ""])


def write(path, records):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in records)


def run(script, *arguments, cwd=None):
    """The script as a user runs it; its status, standard output and standard error."""
    done = subprocess.run(
        [sys.executable, os.path.join(SCRIPTS, script), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def run_here(module, *arguments):
    """The same within this process, which need not import matplotlib again."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = [module.__name__, *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            results.run_main(module.main)
    except SystemExit as end:
        return end.code or 0, out.getvalue(), err.getvalue()
    finally:
        sys.argv = argv
    raise AssertionError("run_main() did not exit")


@contextlib.contextmanager
def changed(path, old, new):
    """The file with one text replaced, and afterwards as it was."""
    with open(path, encoding="utf-8") as file:
        before = file.read()
    assert old in before
    with open(path, "w", encoding="utf-8") as file:
        file.write(before.replace(old, new))
    try:
        yield
    finally:
        with open(path, "w", encoding="utf-8") as file:
            file.write(before)
