"""The pages' tables say what was recorded, and nothing else."""

import os
import re
import tempfile
import unittest

import sample

README = "# Title\n\n<!-- results:begin -->\nold\n<!-- results:end -->\n\nThe end.\n"
CHAPTER = """\
# Chapter

<!-- results:begin stage=04_double_buffer -->
<!-- results:end -->

between

<!-- profile:begin stage=03_shared_mem -->
old
<!-- profile:end -->
"""


class Tables(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("docs/results", "02_naive_cuda", "03_shared_mem", "04_double_buffer"):
            os.makedirs(os.path.join(self.root, name))
        self.write("README.md", README)
        self.write("docs/04.md", CHAPTER)

    def path(self, name):
        return os.path.join(self.root, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def record(self, name, records):
        sample.write(self.path(f"docs/results/{name}"), records)

    def run_script(self, *arguments):
        return sample.run("tables.py", "--root", self.root, *arguments)

    def filled(self, name):
        status, _, err = self.run_script()
        self.assertEqual((status, err), (0, ""))
        return self.read(name)

    def assert_refused(self, what):
        before = self.read("README.md"), self.read("docs/04.md")
        for arguments in ([], ["--check"]):
            status, out, err = self.run_script(*arguments)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(what, err)
        self.assertEqual((self.read("README.md"), self.read("docs/04.md")), before)

    def test_the_readme(self):
        self.record("time.jsonl", sample.ladder() + sample.ladder((1, 8, 16384, 64, 64), scale=0.5))
        self.record("sweep.jsonl", sample.sweep(lengths=(2048, 8192, 16384)))
        page = self.filled("README.md")
        self.assertTrue(page.startswith("# Title\n\n<!-- results:begin -->\n"))
        self.assertTrue(page.endswith("<!-- results:end -->\n\nThe end.\n"))
        self.assertNotIn("old", page)
        self.assertIn(
            "on Made-up GPU** (CUDA 13.0, driver 13.0; commit `0123abcd`; 2026-11-20)", page
        )
        # 0.874 ms of 0.54 GB and 8.6 GFLOP; 5.73 = 5.01 / 0.874 in one run, 47 = 41.3 / 0.874.
        self.assertIn(
            "| `04_double_buffer`, double_buffer | 0.874 | 614 | 14% | 9.83 | 5.73× | 47× |", page
        )
        self.assertIn("| 6.56 | 0.67× | 32× |", page)
        self.assertIn("| kernel | ms | GB/s | of copy | TFLOP/s | over the one before | over the", page)
        self.assertIn("| `02_naive_cuda` | 41.3 | 13 | 0.3% | 0.208 |  |  |", page)
        self.assertIn("| ms at B,H,L,E,M = | 16,8,4096,64,64 | 1,8,16384,64,64 |", page)
        self.assertIn("| `03_shared_mem` | 5.02 | 2.51 |", page)
        self.assertNotIn("16,8,8192", page)

    def test_a_chapter(self):
        self.record("time.jsonl", sample.ladder())
        self.record("sweep.jsonl", sample.sweep(lengths=(2048, 8192)))
        page = self.filled("docs/04.md")
        self.assertIn("copies at 4300 GB/s (read and written), fp32 multiply-adds at 60.0", page)
        # The kernel of the stage before, as this stage's driver timed it, is the yardstick.
        self.assertIn(
            "| 16,8,4096,64,64 | `03_shared_mem` | 4.01 | 5.01 | 4.91 .. 5.16 | 107 | 2.5% |",
            page,
        )
        self.assertIn(
            "|  | `04_double_buffer`, double_buffer (picked) | 0.699 | 0.874 | 0.857 .. 0.9 "
            "| 614 | 14% | 9.83 | 5.73× | 5.73× |",
            page,
        )
        self.assertIn("|  | `04_double_buffer`, low_occupancy | 1.05 | 1.31 |", page)
        self.assertIn("| 410 | 9.5% | 6.56 | 0.67× | 3.82× |", page)
        self.assertNotIn("02_naive_cuda", page)
        # What only this stage was timed at is told in short.
        self.assertIn("| ms at B,H,L,E,M = | 16,8,2048,64,64 | 16,8,8192,64,64 |", page)
        self.assertIn("| `04_double_buffer`, double_buffer | 0.437 | 1.75 |", page)

    def test_inputs_of_one_kind_are_a_table_of_their_own(self):
        os.makedirs(self.path("05_chunked_gla"))
        self.write("docs/04.md", CHAPTER.replace("04_double_buffer", "05_chunked_gla"))
        shape = (16, 8, 4096, 64, 64)
        records = sample.ladder()
        records += sample.gated("mild", ms=0.31) + sample.gated("strong", ms=0.32)
        records += sample.gated("ungated", "f32", [shape], ms=0.2)
        self.record("time.jsonl", records)
        page = self.filled("README.md")
        causal, mild = page.split("\n**")[1:]  # further inputs are the chapter's
        self.assertTrue(causal.startswith("Causal product, f32, on Made-up GPU**"), causal)
        self.assertIn("| `04_double_buffer`, double_buffer | 0.874 |", causal)
        self.assertIn("| `05_chunked_gla`, fused | 0.2 |", causal)
        self.assertTrue(mild.startswith("Gated linear attention, inputs mild, bf16, on "), mild)
        self.assertIn("| `05_chunked_gla`, fused | 0.31 |", mild)
        self.assertNotIn("0.32", mild)
        page = self.filled("docs/04.md")
        self.assertIn("**Gated linear attention, inputs strong, bf16, ", page)
        self.assertEqual(page.count("bf16 mma.sync at 600 TFLOP/s"), 3)
        self.assertIn("| 16,8,4096,64,64 | `05_chunked_gla`, recurrent | 3.2 | 4 |", page)

    def test_a_rung_before_that_is_not_the_row_above_is_named(self):
        shape = (16, 8, 4096, 64, 64)
        records = sample.ladder()
        recurrent, fused = sample.gated("ungated", "f32", [shape], ms=0.2)
        previous = {**recurrent, "kernel": "double_buffer", "home": "04_double_buffer"}
        records += [previous, {**recurrent, "baseline": "double_buffer"}, fused]
        self.record("time.jsonl", records)
        page = self.filled("README.md")
        self.assertIn("`04_double_buffer`, low_occupancy | 1.31 | 410 | 9.5% | 6.56 | 0.67× |", page)
        named = r"\| 1.00× \(double_buffer\) \| 10× \|"
        self.assertRegex(page, r"`05_chunked_gla`, recurrent \| 4 \|.*" + named)
        self.assertRegex(page, r"`05_chunked_gla`, fused \| 0.2 \|.*\| 20× \| 206× \|")

    def test_a_rung_before_that_was_not_timed_is_named(self):
        third = sample.ladder()[-1]
        self.record("time.jsonl", [third])
        self.assertIn("| 6.56 | double_buffer not timed |", self.filled("docs/04.md"))

    def test_another_operator_is_marked_as_such(self):
        other = {"operator": "older product", "inputs": "mild", "kernel": "03_older", "median_ms": 2.0}
        self.record(
            "a.jsonl", [sample.record(stage="04_double_buffer", kernel="fast", ms=3.0, others=[other])]
        )
        chapter = self.filled("docs/04.md")
        self.assertIn("**another operator**", chapter)
        self.assertIn("| older product, inputs mild | `03_older` | 2 | 3 (fast) | 1.50× |", chapter)

    def test_a_lone_kernel_has_no_columns_for_speedups(self):
        self.write("docs/04.md", CHAPTER.replace("04_double_buffer", "02_naive_cuda"))
        self.record("time.jsonl", sample.ladder())
        page = self.filled("docs/04.md")
        self.assertIn("| of copy | TFLOP/s |\n", page)
        self.assertIn("| 16,8,4096,64,64 | `02_naive_cuda` | 33 | 41.3 |", page)

    def test_the_host_has_a_table_of_its_own(self):
        self.record("time.jsonl", sample.host() + sample.ladder())
        page = self.filled("README.md")
        self.assertLess(page.index("Made-up GPU"), page.index("Made-up CPU"))
        self.assertIn("| `01_cpu_reference`, chunked | 6.1 |", page)

    def test_check(self):
        self.record("time.jsonl", sample.ladder())
        status, out, err = self.run_script("--check")
        self.assertEqual(status, 1)
        self.assertIn("-old", out)
        self.assertIn("2 pages have tables out of date", err)
        self.assertEqual(self.read("README.md"), README, "--check writes nothing")
        self.assertEqual(self.run_script()[0], 0)
        self.assertEqual(self.run_script("--check"), (0, "", ""))
        for page in ("README.md", "docs/04.md"):
            with sample.changed(self.path(page), "0.874", "0.474"):
                self.assertEqual(self.run_script("--check")[0], 1)

    def test_nothing_recorded(self):
        self.assertIn("No results are recorded yet.", self.filled("README.md"))
        self.assertIn(
            "<!-- results:begin stage=04_double_buffer -->\nNo results are recorded yet.\n"
            "<!-- results:end -->\n\nbetween\n\n"
            "<!-- profile:begin stage=03_shared_mem -->\nNo profile is recorded yet.\n",
            self.read("docs/04.md"),
        )

    def test_nothing_recorded_of_this_stage(self):
        self.record("time.jsonl", [sample.record()])
        self.assertIn("No results are recorded yet.", self.filled("docs/04.md"))

    def test_a_profile(self):
        self.write("docs/results/h200_profile.csv", sample.profile())
        page = self.filled("docs/04.md")
        self.assertIn(
            "| at 16,8,4096,64,64, compute capability 9.0 | `03_shared_mem` |\n| --- | ---: |\n"
            "| kernel time | 5.02 ms |\n| blocks × threads | 1,024 × 64 |\n",
            page,
        )
        self.assertIn("| shared memory per block, static + dynamic | 2.1 + 0.0 KiB |", page)
        self.assertIn("| DRAM, read + written | 80 MB |", page)  # 2.5 million sectors
        self.assertIn("| sectors per load, of how many loads | 2.5 of 1,000 |", page)
        self.assertIn("| long scoreboard 12.5, barrier 3.2 |", page)
        self.assertNotIn("wavefronts", page, "n/a is no row")
        self.assertNotIn("L2", page, "neither is what was not measured")

    def test_a_profile_in_two_dtypes(self):
        both = [sample.profile(dtype=dtype) for dtype in ("f32", "bf16")]
        self.write("docs/results/h200_profile.csv", "".join(both))
        self.assertIn("| `03_shared_mem` f32 | `03_shared_mem` bf16 |", self.filled("docs/04.md"))
        # Files of before: their kernels were all f32.
        self.write("docs/results/h200_profile.csv", both[0].replace(", f32, ", ", "))
        self.assertIn("compute capability 9.0 | `03_shared_mem` |", self.filled("docs/04.md"))

    def test_profiles_that_are_not_understood(self):
        whole = sample.profile()
        for old, new, what in [
            ("# 03_shared_mem, 03_shared_mem, f32, ", "# ", ":1: "),
            ("# 03_shared_mem, 03_shared_mem, f32, 16,8,4096,64,64\n", "", ":1: a line '# stage"),
            ('"ns"', '"ms"', "gpu__time_duration.sum in 'ms'"),
            (',"3.25"', "", ":4: not a row"),
            ("gpu__time_duration.sum", "gpu__time", ":1: a launch without gpu__time_duration"),
            (whole[whole.index('"0",') :], "", ":1: no kernel's profile follows"),
        ]:
            self.assertIn(old, whole)
            self.write("docs/results/h200_profile.csv", whole.replace(old, new))
            with self.subTest(what):
                self.assert_refused("docs/results/h200_profile.csv:")
                self.assert_refused(what)

    def test_bad_results_leave_the_pages(self):
        self.write("docs/results/broken.jsonl", "{\n")
        self.assert_refused("broken.jsonl:1:")

    def test_markers_that_are_not_understood(self):
        for old, new, what in [
            ("<!-- results:end -->\n", "", "04.md:7: begin and end of profile do not pair"),
            ("<!-- profile:end -->\n", "", "04.md:8: profile begins but does not end"),
            ("<!-- results:begin stage=04_double_buffer -->\n", "", "04.md:3: begin and end"),
            ("stage=04_double_buffer", "stage=04_double", "04.md:3: there is no stage '04_double'"),
            ("profile:begin stage=03_shared_mem", "profile:begin", "04.md:8: whose profile?"),
            ("results:begin stage", "results:begins stage", "04.md:3: not a marker"),
        ]:
            with self.subTest(what), sample.changed(self.path("docs/04.md"), old, new):
                self.assert_refused(what)


def markdown_tables(text):
    """[[{column: cell}]]"""
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines()]
        yield [dict(zip(header, row)) for row in rows]


class TheReadmeOfTheRepository(unittest.TestCase):
    """Its speedups are those of the milliseconds that stand beside them."""

    # The kernel of the stage before was timed again in the stage's own run.
    SPREAD = 0.03

    def setUp(self):
        with open(os.path.join(sample.SCRIPTS, "..", "README.md"), encoding="utf-8") as page:
            tables = markdown_tables(page.read())
        self.ladders = [table for table in tables if "over the one before" in table[0]]

    def assert_speedup(self, cell, slower, row):
        factor = float(slower["ms"]) / float(row["ms"])
        said = float(cell.split("×")[0])
        self.assertAlmostEqual(said, factor, delta=self.SPREAD * factor + 0.5 * (said >= 10) + 0.01)

    def rung_before(self, rows, place):
        named = re.search(r"\((.*)\)", rows[place]["over the one before"])
        if not named:
            return rows[place - 1]
        return next(row for row in rows[:place] if row["kernel"].endswith(f", {named[1]}"))

    def test_speedups_are_over_the_row_before_and_over_the_first(self):
        self.assertTrue(self.ladders)
        for rows in self.ladders:
            for place, row in enumerate(rows):
                with self.subTest(row["kernel"], before=row["over the one before"]):
                    if "×" in row["over the one before"]:
                        before = self.rung_before(rows, place)
                        self.assert_speedup(row["over the one before"], before, row)
                    if place:
                        self.assert_speedup(row["over the first"], rows[0], row)

    def test_every_rung_of_a_stage_but_its_first_has_a_rung_before(self):
        for rows in self.ladders:
            for above, row in zip(rows, rows[1:]):
                if above["kernel"].split(",")[0] == row["kernel"].split(",")[0]:
                    with self.subTest(row["kernel"]):
                        self.assertRegex(row["over the one before"], r"^[\d.]+×$")


if __name__ == "__main__":
    unittest.main()
