#!/usr/bin/env python3
"""Reads the results files that the stage drivers write: JSON Lines, one timed kernel per line.

Whatever cannot be trusted to be a result is an error that names file and line; nothing is skipped.
Run on its own, it checks files: results.py FILE...
"""

import dataclasses
import json
import math
import os
import re
import sys
import typing


class ResultsError(Exception):
    """One line for the reader: what is wrong, and where."""


@dataclasses.dataclass(frozen=True, order=True)
class Shape:
    B: int
    H: int
    L: int
    E: int
    M: int

    def __str__(self):
        return f"{self.B},{self.H},{self.L},{self.E},{self.M}"


# The operator that stages 02 to 05 share.
CAUSAL_PRODUCT = "causal product"
# The "stages" of results that are not ours, the libraries that scripts/peers.py times; and what they
# are called on a chart.
PEERS = {"PyTorch": "PyTorch", "flash-linear-attention": "FLA"}


def _derived():
    """A field that no file has: settle() fills it in."""
    return dataclasses.field(default=None, repr=False, compare=False, metadata={"derived": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A line of a results file. Older files lack what has a default."""

    # In schema 1 the baseline was the first of the run, unless a kernel named another one. In schema
    # 2 it is the rung before.
    SCHEMAS: typing.ClassVar = (1, 2)

    schema: int
    stage: str  # the stage whose driver timed it
    kernel: str
    home: str = ""  # the stage that the kernel belongs to
    picked: bool
    baseline: str
    speedup: float | None  # over the baseline; none where that was not timed beside it
    operator: str
    inputs: str = ""  # what they were drawn from, where the stage has a choice
    shape: Shape
    dtype: str
    median_ms: float
    min_ms: float
    max_ms: float
    samples: int
    bytes: float
    flops: float
    gb_per_s: float
    tflop_per_s: float
    copy_gb_per_s: float
    fma_tflop_per_s: float | None  # on the host none is known
    mma_tflop_per_s: float | None = None  # bf16, on tensor cores
    predicted_ms: float | None
    rel_error: float
    max_abs_error: float
    device: str
    sm: str
    sm_clock_mhz: float
    memory_clock_mhz: float
    driver: str
    toolkit: str
    commit: str
    date: str
    # Kernels of other operators that were timed beside it at the same shape: what names each, and its
    # median_ms. Not to be compared like for like.
    others: list | None = None
    # Of the same run: the rung before, and the first of all; none for itself.
    rung_before: "Result | None" = _derived()
    rung_first: "Result | None" = _derived()

    @property
    def rung(self):
        """What names a kernel: stages may give theirs the same names."""
        return self.home, self.kernel

    @property
    def run(self):
        """What the records of one process have in common that can be compared."""
        inputs = self.operator, self.inputs, self.dtype, self.shape
        return self.stage, self.device, self.commit, self.date, *inputs

    @property
    def over_before(self):
        """How many times faster it is than the rung before; none where that was not timed beside it."""
        return self.rung_before and self.rung_before.median_ms / self.median_ms

    @property
    def over_first(self):
        return self.rung_first and self.rung_first.median_ms / self.median_ms

    @property
    def not_timed(self):
        """The rung before, by name, where there is one that was not timed beside it."""
        return self.baseline if self.schema > 1 and not self.rung_before else ""

    @property
    def on_host(self):
        return self.sm == "host"

    @property
    def workload(self):
        """What was computed, operator and inputs: results of one workload can be compared.

        Without its gates, gated linear attention is the causal product.
        """
        if self.inputs == "ungated":
            return CAUSAL_PRODUCT, ""
        return self.operator, self.inputs

    @property
    def workload_text(self):
        operator, inputs = self.workload
        return operator[:1].upper() + operator[1:] + (f", inputs {inputs}" if inputs else "")


# Without these a chart would divide by zero or take the logarithm of nothing.
POSITIVE = {"speedup", "median_ms", "min_ms", "max_ms", "samples", "strength"}
DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def _reject_constant(name):
    raise ValueError(f"{name} is not a measurement")


def _number(name, value):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"'{name}' should be a number, not {json.dumps(value)}")
    if not math.isfinite(value) or value < 0 or (name in POSITIVE and value == 0):
        raise ValueError(f"'{name}' is {value}")
    return value


def _shape(value):
    letters = [field.name for field in dataclasses.fields(Shape)]
    if not isinstance(value, dict) or sorted(value) != sorted(letters):
        raise ValueError("'shape' should have B, H, L, E and M")
    for letter in letters:
        if type(value[letter]) is not int or value[letter] < 1:
            raise ValueError(f"'shape' has {letter} = {json.dumps(value[letter])}")
    return Shape(**value)


def _others(values):
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError("'others' should be a list of objects")
    for value in values:
        for name in ("operator", "inputs", "kernel"):
            if not isinstance(value.get(name), str):
                raise ValueError(f"one of 'others' should have '{name}', a string")
        _number("median_ms", value.get("median_ms"))


def parse_line(line, kind=Result):
    """The record on one line, of a dataclass; ValueError says what is wrong with it."""
    try:
        record = json.loads(line, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    schemas = getattr(kind, "SCHEMAS", (1,))
    if record.get("schema") not in schemas:
        readable = " or ".join(map(str, schemas))
        raise ValueError(
            f"schema {json.dumps(record.get('schema'))}, but this script reads {readable}"
        )

    values = {}
    for field in dataclasses.fields(kind):
        if field.metadata.get("derived"):
            continue
        if field.name not in record:
            if field.default is not dataclasses.MISSING:
                continue
            raise ValueError(f"'{field.name}' is missing")
        value = record[field.name]
        if field.type is Shape:
            value = _shape(value)
        elif field.type is float or (field.type == float | None and value is not None):
            value = _number(field.name, value)
        elif field.type is int:
            if type(value) is not int:
                raise ValueError(
                    f"'{field.name}' should be a whole number, not {json.dumps(value)}"
                )
            value = _number(field.name, value)
        elif field.type in (str, bool) and type(value) is not field.type:
            kind = {str: "a string", bool: "true or false"}[field.type]
            raise ValueError(f"'{field.name}' should be {kind}, not {json.dumps(value)}")
        values[field.name] = value
    if values.get("others") is not None:
        _others(values["others"])
    if not DATE.fullmatch(values["date"]):
        raise ValueError(f"'date' should look like 2026-11-20T16:30:00Z, not '{values['date']}'")
    return kind(**values)


def load(path, kind=Result):
    """All records of one file, in the order they were recorded."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise ResultsError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ResultsError(f"{path}: not a text file") from None
    results = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            results.append(parse_line(line, kind))
        except ValueError as error:
            raise ResultsError(f"{path}:{number}: {error}") from None
    if not results:
        raise ResultsError(f"{path}: no results in it")
    return results


def is_sweep(path):
    """Whether a file has a kernel's time against the length of the sequence, and is not of record."""
    return any(word in os.path.basename(path) for word in ("sweep", "crossover"))


def load_all(paths):
    """All records of several files, those of sweeps last, and without what is of record already."""

    def point(result):
        return (result.device, result.stage, result.rung, result.workload, result.dtype, result.shape)

    paths = sorted(paths, key=is_sweep)
    of_files = [load(path) for path in paths]
    of_record = sum(len(found) for path, found in zip(paths, of_files) if not is_sweep(path))
    everything = settle([result for found in of_files for result in found])
    points = {point(result) for result in everything[:of_record]}
    return everything[:of_record] + [
        result for result in everything[of_record:] if point(result) not in points
    ]


def _home(result, lowest):
    """Older files do not say it. There, names of a device's kernels were unique, and the next stage's
    driver timed the kernel too, beside its own."""
    if result.home or result.stage in PEERS:
        return result.home or result.stage
    if re.match(r"\d\d_", result.kernel):
        return result.kernel
    return lowest[result.device, result.kernel]


def _rung_before(result, run):
    """Of the results before it in its run. In schema 1 that is the one before it: no run left out
    a rung between others."""
    if result.schema == 1:
        return run[-1] if run else None
    return next((other for other in reversed(run) if other.kernel == result.baseline), None)


def settle(results):
    """The results, each with its kernel's stage and with what it is compared with.

    The order of a run's records is the ladder's: the kernel of the stage before, then the stage's.
    """
    lowest = {}
    for result in sorted(results, key=lambda result: result.stage):
        lowest.setdefault((result.device, result.kernel), result.stage)
    runs = {}
    settled = []
    for result in results:
        result = dataclasses.replace(result, home=_home(result, lowest))
        run = runs.setdefault(result.run, [])
        if result.stage in PEERS or any(other.rung == result.rung for other in run):
            run.clear()  # peers are rungs of no ladder; what comes twice was timed again
        before = _rung_before(result, run)
        first = run[0] if run else None
        settled.append(dataclasses.replace(result, rung_before=before, rung_first=first))
        run.append(settled[-1])
    return settled


def _places(results):
    """{rung: its place}: by stage, then as in a run of its stage, of which the longest has most to
    say."""
    runs = {}
    for result in results:
        if result.home == result.stage:
            runs.setdefault(result.run, []).append(result.rung)
    rungs = [rung for run in sorted(runs.values(), key=len, reverse=True) for rung in run]
    rungs += [result.rung for result in results]
    in_order = sorted(dict.fromkeys(rungs), key=lambda rung: rung[0])
    return {rung: place for place, rung in enumerate(in_order)}


def ladder(results):
    """One result per kernel, in the order the reader meets them: by stage, then as in its run.

    Where a kernel was timed more than once, its own stage's run counts, and of those the last.
    """
    chosen = {}
    for result in results:
        seen = chosen.get(result.rung)
        if seen is None or result.stage == result.home or seen.stage != result.home:
            chosen[result.rung] = result
    places = _places(results)
    return sorted(chosen.values(), key=lambda result: places[result.rung])


def only_device(results):
    """The results' device; an error if there are several, since they cannot be compared."""
    devices = sorted({result.device for result in results})
    if len(devices) > 1:
        raise ResultsError(f"results of several devices cannot share a chart: {', '.join(devices)}")
    return devices[0]


def shapes_of_first_stage(results):
    """The shapes at which the lowest stage was timed, in the order recorded.

    They show the whole ladder. Of a sweep over L, three lengths or more, the first stands for all.
    """
    first = min(result.stage for result in results)
    families = {}  # what differs in L only
    for result in results:
        if result.stage == first:
            shape = result.shape
            family = families.setdefault((shape.B, shape.H, shape.E, shape.M), [])
            if shape not in family:
                family.append(shape)
    return [
        shape
        for family in families.values()
        for shape in (family if len(family) < 3 else family[:1])
    ]


def run_main(main):
    """Runs a script's main; what the reader did wrong costs one line and exit status 2."""
    try:
        sys.exit(main())
    except ResultsError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


def main():
    if len(sys.argv) < 2:
        raise ResultsError("usage: results.py FILE...")
    for path in sys.argv[1:]:
        print(f"{path}: {len(load(path))} results")


if __name__ == "__main__":
    run_main(main)
