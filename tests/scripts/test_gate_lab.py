"""The gate lab's chart: its lines, its marks of overflow, and what is refused."""

import os
import tempfile
import unittest
import xml.etree.ElementTree

import sample
import gate_lab
import results


def point(kernel="recurrent", strength=0.1, rel_error=1e-7, not_finite=0, **more):
    line = {
        "schema": 1,
        "lab": "gates",
        "kernel": kernel,
        "dtype": "f32",
        "strength": strength,
        "rel_error": rel_error,
        "not_finite": not_finite,
        "device": "Made-up GPU",
        "toolkit": "13.0",
        "commit": "0123abcd",
        "date": "2026-11-20T16:30:00Z",
    }
    return {key: value for key, value in (line | more).items() if value != "leave out"}


STRENGTHS = (0.1, 1.0, 10.0)
LAB = [point(strength=strength) for strength in STRENGTHS]
LAB += [point("naive_factored", 0.1, 2e-7)]
LAB += [point("naive_factored", strength, None, 7) for strength in STRENGTHS[1:]]


class GateLab(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.results = os.path.join(folder.name, "lab.ndjson")
        self.chart = os.path.join(folder.name, "charts", "lab.svg")

    def draw(self, records):
        sample.write(self.results, records)
        return sample.run_here(gate_lab, self.results, "--out", self.chart)

    def assert_refused(self, done, what):
        status, out, err = done
        self.assertEqual((status, out, err.count("\n")), (2, "", 1), err)
        self.assertIn(what, err)
        self.assertFalse(os.path.exists(self.chart))

    def test_the_chart_as_a_user_draws_it(self):
        sample.write(self.results, LAB)
        status, out, err = sample.run("gate_lab.py", self.results, "--out", self.chart)
        self.assertEqual((status, err), (0, ""))
        self.assertIn(self.chart, out)
        xml.etree.ElementTree.parse(self.chart)
        with open(self.chart, encoding="utf-8") as file:
            text = file.read()
        for wanted in [
            "naive factored, fp32",
            "recurrent, fp32",
            "overflow",
            "Made-up GPU   |   commit 0123abcd   |   2026-11-20",
        ]:
            self.assertIn(f"<!-- {wanted} -->", text)

    def test_lines_and_marks_are_where_the_results_are(self):
        sample.write(self.results, LAB)
        axes = gate_lab.draw(results.load(self.results, gate_lab.Point)).axes[0]
        recurrent, naive, overflow = axes.lines
        self.assertEqual(list(recurrent.get_xydata().flat), [0.1, 1e-7, 1, 1e-7, 10, 1e-7])
        self.assertEqual(list(naive.get_xydata()[0]), [0.1, 2e-7])
        self.assertTrue(all(y != y for y in naive.get_ydata()[1:]))  # NaN: no line
        self.assertEqual(list(overflow.get_xydata().flat), [1, 1, 10, 1])  # 1: the upper edge
        self.assertEqual(overflow.get_color(), naive.get_color())

    def test_without_overflow_nothing_is_marked(self):
        self.assertEqual(self.draw(LAB[:3])[0], 0)
        with open(self.chart, encoding="utf-8") as file:
            self.assertNotIn("<!-- overflow -->", file.read())

    def test_of_two_runs_the_last_counts(self):
        sample.write(self.results, [point(rel_error=0.5), point(rel_error=0.25)])
        points = results.load(self.results, gate_lab.Point)
        self.assertEqual([p.rel_error for p in gate_lab.lines(points)["recurrent", "f32"]], [0.25])

    def test_what_is_no_result_is_named_and_nothing_is_drawn(self):
        for wrong, what in [
            (point(schema=2), "schema 2"),
            (point(lab="heat"), "'lab' should be gates"),
            (point(rel_error=None), "'rel_error' should be null"),
            (point(not_finite=3), "'rel_error' should be null"),
            (point(rel_error=0), "'rel_error' is 0"),
            (point(strength=0), "'strength' is 0"),
            (point(date="today"), "'date'"),
            *(
                (point(**{name: "leave out"}), f"'{name}' is missing")
                for name in LAB[0]
                if name != "schema"
            ),
        ]:
            with self.subTest(what):
                self.assert_refused(self.draw([*LAB, wrong]), f"{self.results}:7: ")
                self.assert_refused(self.draw([*LAB, wrong]), what)
        self.assert_refused(self.draw([]), "no results")
        self.assert_refused(self.draw([*LAB, point(device="Another")]), "several devices")

    def test_an_output_that_cannot_be(self):
        self.chart = os.path.join(self.results, "lab.svg")
        self.assert_refused(self.draw(LAB), "lab.ndjson")
        self.chart = os.path.join(os.path.dirname(self.results), "lab.pdf")
        self.assert_refused(self.draw(LAB), "ends in .svg")


if __name__ == "__main__":
    unittest.main()
