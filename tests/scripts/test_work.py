"""scripts/work.py and scripts/widths.py, on a launch of which everything is known."""

import json
import os
import tempfile
import unittest

import sample  # noqa: F401  (finds the scripts)
import widths
import work
from results import ResultsError


def launch(**changes):
    nothing = {"requests": 0, "sectors": 0, "asked": 0}
    idle = {"requests": 0, "wavefronts": 0, "ideal": 0}
    return {
        "name": "copy_kernel",
        "full_name": "attn::copy_kernel<attn::Tile<64>, true>",
        "grid": [2, 1, 1],
        "block": [64, 1, 1],
        "loads": {"requests": 4, "sectors": 16, "asked": 512},
        "stores": {"requests": 4, "sectors": 32, "asked": 512},
        "atomics": nothing,
        "most_atomics": 0,
        "read_bytes": 512,
        "written_bytes": 256,
        "shared_loads": {"requests": 4, "wavefronts": 6, "ideal": 4},
        "shared_stores": idle,
        "shared_copies": idle,
        "barriers": 4,
        "shuffles": 0,
        "votes": 0,
        "flops": 0,
        "lines": [],
    } | changes


def counted(**changes):
    return {
        "schema": 1,
        "stage": "03_x",
        "kernel": "x",
        "operator": "copy",
        "shape": {"B": 1, "H": 1, "L": 16, "E": 8, "M": 8},
        "dtype": "f32",
        "tokens": 16,
        "least_bytes": 1024,
        "launches": [launch()],
        "compiler": "clang",
        "commit": "abc",
        "date": "2026-11-20T16:30:00Z",
    } | changes


HEADER = ["ID", "Kernel Name", "Block Size", "Grid Size"] + [
    metric for _, metrics in work.COMPARED.values() for metric in metrics
]


def ncu(values):
    name = "void copy_kernel<Tile<(int)64>, (bool)1>(const float *, float *)"
    row = ["0", name, "(64, 1, 1)", "(2, 1, 1)"] + [values.get(m, "0") for m in HEADER[4:]]
    return "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in (HEADER, row))


class Work(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def counted(self, **changes):
        return work.load(self.file("work_03.ndjson", json.dumps(counted(**changes)) + "\n"))

    def measured(self, values):
        text = "# 03_x, x, f32, 1,1,16,8,8\n" + ncu(values)
        return work.load_measured(self.file("h200_03_work.csv", text))

    def test_names_of_both_sides_are_one(self):
        self.assertEqual(
            work.plain_name("void attn::k<attn::Tile<(int)64>, (bool)0>(const float *)"),
            work.plain_name("attn::k<attn::Tile<64>, false>"),
        )
        self.assertEqual(work.plain_name("attn::naive::k(attn::View<float const>)"), "k")
        self.assertEqual(work.plain_name("attn::(anonymous namespace)::k"), "k")

    def test_table_per_token(self):
        table = work.render(self.counted(), "03_x")
        row = table.splitlines()[-1]
        # 16 sectors read and 32 written for 16 tokens; 1024 of 1536 bytes used; 1.5 of the least;
        # twice the 768 bytes touched; 6 wavefronts, half of 4 too many; 4 barriers.
        self.assertEqual(row, "| `x` | 1 | 2 | 67% | 1.5× | 2× | 0.38 | 50% | 0.25 |")

    def test_nothing_recorded(self):
        self.assertEqual(work.render([], "03_x"), work.NOTHING)
        self.assertEqual(work.render_against([], {}, {}), work.NOTHING)

    def test_equal_counts_stand_alone_and_others_say_how_far_off(self):
        measured = self.measured(
            {
                work.REQUESTS.format("ld"): "4",
                work.SECTORS.format("ld"): "20",
                work.REQUESTS.format("st"): "4",
                work.SECTORS.format("st"): "32",
                "memory_l1_wavefronts_shared": "6",
                "memory_l1_wavefronts_shared_ideal": "4",
            }
        )
        exact = {"03_x": {"copy_kernel<Tile<64>,1>": []}}
        table = work.render_against(self.counted(), measured, exact)
        row = table.splitlines()[-1]
        self.assertEqual(
            row,
            "| `x` f32 | `copy_kernel` | 1,1,16,8,8 | exact | 4 | 16 (-20.0%) | 4 | 32 | 6 | 4 |",
        )

    def test_a_launch_that_was_not_measured_is_left_out(self):
        other = self.counted(launches=[launch(grid=[3, 1, 1])])
        self.assertEqual(work.compare(other, self.measured({})), [])

    def test_a_row_before_its_header_is_an_error(self):
        path = self.file("bad.csv", '"0","kernel"\n')
        with self.assertRaisesRegex(ResultsError, "bad.csv:1"):
            work.load_measured(path)


PTX = """
.file 1 "{root}/03_x/kernel.cuh"
.file 2 "/usr/include/atomic.hpp"
.visible .entry copy(
	.param .u64 copy_param_0
)
{{
	.loc	1 10 5
	ld.param.u64 	%rd1, [copy_param_0];
	ld.global.nc.v4.f32 	{{%f1, %f2, %f3, %f4}}, [%rd1];
	.loc	1 11 5
	@%p1 st.shared.f32 	[%r1], %f1;
	.loc	2 99 1, function_name $L__info_string0, inlined_at 1 12 3
	red.global.add.f32 	[%rd1], %f1;
	.loc	1 13 5
	ld.f32 	%f5, [%rd2];
}}
"""


def at(line, what, space, width):
    return {"file": "03_x/kernel.cuh", "line": line, "what": what, "space": space, "bytes": width}


class Widths(unittest.TestCase):
    def setUp(self):
        self.found = widths.accesses(PTX.format(root=widths.rewrite.ROOT))["copy"]

    def test_accesses_of_ptx(self):
        file = "03_x/kernel.cuh"
        self.assertEqual(
            self.found,
            {
                (file, 10, "load", "global"): {16},
                (file, 11, "store", "shared"): {4},
                (file, 12, "atomic", "global"): {4},
                (file, 13, "load", ""): {4},
            },
        )

    def test_the_same_widths(self):
        lines = [
            at(10, "load", "global", 16),
            at(11, "store", "shared", 4),
            at(12, "atomic", "global", 4),
            at(13, "load", "shared", 4),
        ]
        self.assertEqual(widths.differences({"lines": lines}, self.found), [])

    def test_another_width_and_an_access_that_nvcc_has_not(self):
        lines = [at(10, "load", "global", 4), at(20, "load", "global", 4)]
        first, second = widths.differences({"lines": lines}, self.found)
        self.assertEqual(first, "03_x/kernel.cuh:10: load of global memory, 4 bytes; nvcc: 16")
        self.assertEqual(second, "03_x/kernel.cuh:20: load of global memory, 4 bytes; nvcc: none")


if __name__ == "__main__":
    unittest.main()
