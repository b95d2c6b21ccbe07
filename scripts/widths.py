#!/usr/bin/env python3
"""Whether the microscope's accesses are those of nvcc's code: the gate for calling a count exact.

For each launch recorded in docs/results/work_NN.ndjson it compares, line by line of the source, how
wide the loads and stores of global and shared memory are: by clang, as counted, and by nvcc, in the
PTX that `nvcc -ptx -lineinfo` makes of the stage. Where a line's widths differ (nvcc joins
neighbouring accesses, or keeps in a register what clang reads again), the count of requests or
wavefronts may too.

    scripts/widths.py [STAGE...]      writes docs/results/widths.json; needs nvcc, no GPU

The file: {stage: {kernel's name: [differences]}}, no differences meaning exact; the names are those
of scripts/work.py. Copies by cp.async and ldmatrix are PTX of our own, of a width that the
source says, and are left out.
"""

import glob
import json
import os
import re
import subprocess
import sys
import tempfile

import results as results_module
import rewrite
import work
from results import ResultsError

ARCHITECTURE = "sm_90a"
LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(?:.*inlined_at\s+(\d+)\s+(\d+))?")
FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]+)"')
ACCESS = re.compile(
    r"\s*(?:@!?%p\d+\s+)?(ld|st|red|atom)((?:\.\w+)*?)(?:\.v([24]))?\.[a-z]+(\d+)\s"
)
ENTRY = re.compile(r"\.entry\s+(\w+)\s*\(")
KINDS = {"ld": "load", "st": "store", "red": "atomic", "atom": "atomic"}


def sources(stage):
    """The .cu files at the top of a stage's folder, and the engine's."""
    folders = (stage, os.path.join("common", "chunked"))
    return [
        path
        for folder in folders
        for path in sorted(glob.glob(os.path.join(rewrite.ROOT, folder, "*.cu")))
    ]


def compile_ptx(source):
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.ptx")
        command = ["nvcc", "-ptx", "-lineinfo", "-std=c++20", f"-arch={ARCHITECTURE}", "-w"]
        command += ["-I", rewrite.ROOT, source, "-o", out]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise ResultsError("nvcc is not installed: widths cannot be checked") from None
        if done.returncode:
            raise ResultsError(f"nvcc -ptx {source}: {done.stderr.strip().splitlines()[-1]}")
        return rewrite.read(out)


def demangled(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True)
    return dict(zip(names, done.stdout.splitlines()))


def accesses(ptx):
    """{mangled kernel: {(file, line, kind, space): {bytes}}}, files relative to the repository."""
    files = {}
    for line in ptx.splitlines():
        found = FILE.match(line)
        if found:
            files[int(found[1])] = os.path.relpath(
                os.path.normpath(os.path.join(rewrite.ROOT, found[2])), rewrite.ROOT
            )
    kernels, current, place = {}, None, None
    for line in ptx.splitlines():
        entry = ENTRY.search(line)
        if entry:
            current = kernels.setdefault(entry[1], {})
            continue
        location = LOC.match(line)
        if location:
            place = files.get(int(location[1]), "?"), int(location[2])
            if location[3] and (place[0].startswith("..") or place[0].startswith("common/ptx")):
                # In a header of CUDA's, or a wrapper: the line that calls it.
                place = files.get(int(location[3]), "?"), int(location[4])
            continue
        found = ACCESS.match(line)
        if not found or current is None or place is None:
            continue
        qualifiers = found[2].split(".")
        if {"param", "local", "const"} & set(qualifiers):
            continue
        space = next((q for q in ("global", "shared") if q in qualifiers), "")
        width = int(found[3] or 1) * int(found[4]) // 8
        current.setdefault((*place, KINDS[found[1]], space), set()).add(width)
    return kernels


def differences(launch, ptx):
    """What is not the same, a line of text for each place."""
    counted = {}
    for at in launch["lines"]:
        if at["what"] in ("load", "store", "atomic"):
            key = at["file"], at["line"], at["what"], at["space"]
            counted.setdefault(key, set()).add(at["bytes"])
    # An address whose space nvcc does not know is in either.
    known = dict(ptx)
    for (file, line, kind, space), widths in ptx.items():
        if not space:
            for each in ("global", "shared"):
                if (file, line, kind, each) in counted:
                    known.setdefault((file, line, kind, each), set()).update(widths)
    # The rows of ldmatrix, which are PTX of our own, are loads here.
    matrices = {(at["file"], at["line"]) for at in launch["lines"] if at["what"] == "ldmatrix"}
    found = []
    for (file, line, kind, space), widths in sorted(counted.items()):
        if (file, line) in matrices:
            continue
        nvcc = known.get((file, line, kind, space), set())
        if widths != nvcc:
            ours, theirs = (
                "+".join(map(str, sorted(w))) if w else "none" for w in (widths, nvcc)
            )
            found.append(f"{file}:{line}: {kind} of {space} memory, {ours} bytes; nvcc: {theirs}")
    return found


def check(stage, counted):
    kernels = {}
    for source in sources(stage):
        of_source = accesses(compile_ptx(source))
        names = demangled(list(of_source))
        kernels |= {work.plain_name(names[name]): of_source[name] for name in of_source}
    verdicts = {}
    for one in counted:
        for launch in one.launches:
            name = work.plain_name(launch["full_name"])
            if name not in kernels:
                raise ResultsError(f"{stage}: nvcc's PTX has no kernel {name}")
            # At another shape other lines may run.
            verdicts.setdefault(name, set()).update(differences(launch, kernels[name]))
    return {name: sorted(found) for name, found in sorted(verdicts.items())}


def main():
    path = os.path.join(rewrite.ROOT, "docs", "results", "widths.json")
    verdicts = json.loads(rewrite.read(path)) if os.path.exists(path) else {}
    counts = sorted(glob.glob(os.path.join(rewrite.ROOT, "docs", "results", "work_*.ndjson")))
    counted = work.load_all(counts)
    for stage in sys.argv[1:] or sorted({one.stage for one in counted}):
        own = [one for one in counted if one.stage == stage]
        if not own:
            raise ResultsError(f"{stage}: no counts of it are recorded")
        verdicts[stage] = check(stage, own)
        for name, found in verdicts[stage].items():
            print(f"{stage}, {name}: {'exact' if not found else ''}")
            for difference in found:
                print(f"  {difference}")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(verdicts, file, indent=1, sort_keys=True)
        file.write("\n")
    return 0


if __name__ == "__main__":
    results_module.run_main(main)
