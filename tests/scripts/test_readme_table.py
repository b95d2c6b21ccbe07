"""The README's table says what was recorded, and nothing else."""

import os
import tempfile
import unittest

import sample

PAGE = "# Title\n\n<!-- results:begin -->\nold\n<!-- results:end -->\n\nThe end.\n"


class ReadmeTable(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.readme = os.path.join(self.folder, "README.md")
        self.write_page(PAGE)

    def write_page(self, text):
        with open(self.readme, "w", encoding="utf-8") as file:
            file.write(text)

    def page(self):
        with open(self.readme, encoding="utf-8") as file:
            return file.read()

    def record(self, name, records):
        sample.write(os.path.join(self.folder, name), records)

    def run_script(self, *arguments):
        return sample.run(
            "readme_table.py", "--readme", self.readme, "--results", self.folder, *arguments
        )

    def test_the_table(self):
        self.record("time.jsonl", sample.ladder() + sample.ladder((1, 8, 16384, 64, 64), scale=0.5))
        self.record("sweep.jsonl", sample.sweep(lengths=(2048, 8192, 16384)))
        self.assertEqual(self.run_script()[0], 0)
        page = self.page()
        self.assertTrue(page.startswith("# Title\n\n<!-- results:begin -->\n"))
        self.assertTrue(page.endswith("<!-- results:end -->\n\nThe end.\n"))
        self.assertNotIn("old", page)
        self.assertIn(
            "on Made-up GPU** (CUDA 13.0, driver 13.0; commit `0123abcd`; 2026-11-20)", page
        )
        # 0.874 ms of 0.54 GB and 8.6 GFLOP; 5.7 is the driver's own, 47 = 41.3 / 0.874.
        self.assertIn(
            "| `04_double_buffer`, double_buffer | 0.874 | 614 | 14% | 9.83 | 5.70× | 47× |", page
        )
        self.assertIn("| `02_naive_cuda` | 41.3 | 13 | 0% | 0.21 |  |  |", page)
        self.assertIn("| ms at B,H,L,E,M = | 16,8,4096,64,64 | 1,8,16384,64,64 |", page)
        self.assertIn("| `03_shared_mem` | 5.02 | 2.51 |", page)
        self.assertNotIn("16,8,8192", page)

    def test_check(self):
        self.record("time.jsonl", sample.ladder())
        status, out, err = self.run_script("--check")
        self.assertEqual(status, 1)
        self.assertIn("-old", out)
        self.assertIn("out of date", err)
        self.assertEqual(self.page(), PAGE, "--check writes nothing")
        self.assertEqual(self.run_script()[0], 0)
        self.assertEqual(self.run_script("--check"), (0, "", ""))
        with sample.changed(self.readme, "0.874", "0.474"):
            self.assertEqual(self.run_script("--check")[0], 1)

    def test_the_host_has_a_table_of_its_own(self):
        self.record("time.jsonl", sample.host() + sample.ladder())
        self.run_script()
        page = self.page()
        self.assertLess(page.index("Made-up GPU"), page.index("Made-up CPU"))
        self.assertIn("| `01_cpu_reference`, chunked | 6.1 |", page)

    def test_nothing_recorded(self):
        self.assertEqual(self.run_script()[0], 0)
        self.assertIn("No results are recorded yet.", self.page())

    def test_bad_input_leaves_the_page(self):
        self.record("time.jsonl", sample.ladder())
        for page in [
            "# no markers\n",
            PAGE + PAGE,
            PAGE.replace("begin", "x").replace("end", "begin"),
        ]:
            self.write_page(page)
            status, _, err = self.run_script()
            self.assertEqual((status, err.count("\n")), (2, 1))
            self.assertEqual(self.page(), page)
        self.write_page(PAGE)
        with open(os.path.join(self.folder, "broken.jsonl"), "w", encoding="utf-8") as file:
            file.write("{\n")
        status, _, err = self.run_script()
        self.assertEqual(status, 2)
        self.assertIn("broken.jsonl:1:", err)
        self.assertEqual(self.page(), PAGE)


if __name__ == "__main__":
    unittest.main()
