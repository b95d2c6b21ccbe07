"""What a page quotes is what the source says, or the check fails."""

import os
import tempfile
import unittest

import sample

SOURCE = """\
#pragma once
namespace attn {
  // [doc:outer]
  for (int t = 0; t < L; ++t) {
    // [doc:inner]
    load(t);

    compute(t);
    // [/doc:inner]
  }
  // [/doc:outer]
}
"""
PAGE = """\
# Chapter

<!-- snippet: 02_stage/kernel.cuh inner -->
```cpp
```

and a block that is nobody's:

```sh
make
```
"""
FILLED = PAGE.replace("```cpp\n```", "```cpp\nload(t);\n\ncompute(t);\n```")


class Snippets(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ("02_stage", "docs", "common"):
            os.mkdir(os.path.join(self.root, name))
        self.source = os.path.join(self.root, "02_stage", "kernel.cuh")
        self.page = os.path.join(self.root, "docs", "02_stage.md")
        self.write(self.source, SOURCE)
        self.write(self.page, PAGE)

    def write(self, path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def read(self):
        with open(self.page, encoding="utf-8") as file:
            return file.read()

    def run_script(self, *arguments):
        return sample.run("snippets.py", "--root", self.root, *arguments)

    def assert_refused(self, what):
        for arguments in ([], ["--check"]):
            status, out, err = self.run_script(*arguments)
            self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
            self.assertIn(what, err)

    def test_fills_and_keeps_the_rest(self):
        self.assertEqual(self.run_script()[0], 0)
        self.assertEqual(self.read(), FILLED)
        self.assertEqual(self.run_script(), (0, "", ""), "the second time there is nothing to do")

    def test_inner_markers_are_left_out(self):
        self.write(self.page, PAGE.replace(" inner ", " outer "))
        self.run_script()
        self.assertIn(
            "```cpp\nfor (int t = 0; t < L; ++t) {\n  load(t);\n\n  compute(t);\n}\n```",
            self.read(),
        )

    def test_a_pragma_at_the_margin_does_not_count_as_indentation(self):
        compute = "    compute(t);"
        self.write(self.source, SOURCE.replace(compute, "#pragma unroll\n" + compute))
        self.run_script()
        self.assertIn("```cpp\nload(t);\n\n#pragma unroll\ncompute(t);\n```", self.read())

    def test_check_finds_a_changed_source(self):
        self.run_script()
        self.assertEqual(self.run_script("--check"), (0, "", ""))
        with sample.changed(self.source, "load(t)", "load(t + 1)"):
            status, out, err = self.run_script("--check")
            self.assertEqual(status, 1)
            self.assertIn("+load(t + 1);", out)
            self.assertIn("1 pages differ", err)
            self.assertEqual(self.read(), FILLED, "--check writes nothing")

    def test_check_finds_a_changed_page(self):
        self.run_script()
        with sample.changed(self.page, "compute(t);", "compute(t, fast);"):
            self.assertEqual(self.run_script("--check")[0], 1)

    def test_a_readme_of_a_stage_is_a_page(self):
        self.page = os.path.join(self.root, "02_stage", "README.md")
        self.write(self.page, PAGE)
        self.run_script()
        self.assertEqual(self.read(), FILLED)

    def test_unknown_names(self):
        self.write(self.page, PAGE.replace(" inner ", " middle "))
        self.assert_refused("docs/02_stage.md:3: 02_stage/kernel.cuh has no region 'middle'")
        self.write(self.page, PAGE.replace("kernel.cuh", "kernels.cuh"))
        self.assert_refused("there is no file '02_stage/kernels.cuh'")
        self.write(self.page, PAGE.replace("02_stage/", "../"))
        self.assert_refused("there is no file '../kernel.cuh'")

    def test_markers_that_do_not_pair(self):
        for old, new, what in [
            ("    // [/doc:inner]\n", "", "kernel.cuh:5: region 'inner' begins but does not end"),
            ("    // [doc:inner]\n", "", "kernel.cuh:8: region 'inner' ends but did not begin"),
            ("[doc:inner]", "[doc:outer]", "kernel.cuh:5: there is a region 'outer' already"),
            (
                "// [doc:inner]",
                "int x;  // [doc:inner]",
                "kernel.cuh:5: a marker is a line of its own",
            ),
        ]:
            with self.subTest(what), sample.changed(self.source, old, new):
                self.assert_refused(what)

    def test_a_broken_pair_is_found_where_no_page_quotes_it(self):
        self.write(os.path.join(self.root, "common", "warp.cuh"), "// [doc:sum]\n")
        self.assert_refused("common/warp.cuh:1: region 'sum' begins")

    def test_pages_that_are_not_understood(self):
        for old, new, what in [
            (
                "-->\n```cpp",
                "-->\n\n```cpp",
                "02_stage.md:3: the next line should open a code block",
            ),
            ("kernel.cuh inner -->", "kernel.cuh -->", "02_stage.md:3: it should read"),
        ]:
            with self.subTest(what), sample.changed(self.page, old, new):
                self.assert_refused(what)
        self.write(self.page, PAGE[: PAGE.index("```cpp") + 7])
        self.assert_refused("the code block does not end")


if __name__ == "__main__":
    unittest.main()
