"""The charts are really drawn, and looked at: their texts, their pixels, their files."""

import json
import os
import re
import tempfile
import unittest
import xml.etree.ElementTree

import sample
import charts
import matplotlib.image
import numpy
import results


def texts(path):
    """The texts of an SVG whose letters are outlines: matplotlib notes each as a comment."""
    with open(path, encoding="utf-8") as file:
        return [text.strip() for text in re.findall(r"<!--(.*?)-->", file.read(), re.DOTALL)]


class Charts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.results = os.path.join(self.folder, "results.jsonl")
        self.out = os.path.join(self.folder, "made", "charts")

    def draw(self, records, *arguments):
        sample.write(self.results, records)
        return sample.run_here(charts, self.results, "--out", self.out, *arguments)

    def drawn(self):
        return sorted(os.listdir(self.out)) if os.path.isdir(self.out) else []

    def path(self, name):
        return os.path.join(self.out, name)

    def assert_drawn(self, name, least_colours):
        """A whole SVG, and a PNG of sensible size that is not blank."""
        xml.etree.ElementTree.parse(self.path(name + ".svg"))
        picture = matplotlib.image.imread(self.path(name + ".png"))
        height, width = picture.shape[:2]
        self.assertGreater(width, 1000)
        self.assertGreater(height, 400)
        colours = numpy.unique(picture[::4, ::4, :3].reshape(-1, 3), axis=0)
        strong = colours[colours.max(axis=1) - colours.min(axis=1) > 0.4]
        self.assertGreaterEqual(len(strong), least_colours, "the bars or lines are not there")

    def assert_refused(self, done, what):
        status, out, err = done
        self.assertEqual((status, err.count("\n")), (2, 1), err)
        self.assertIn(what, err)
        self.assertEqual(out, "")
        self.assertEqual(self.drawn(), [])

    def test_the_crossover(self):
        def swept(stage, operator, inputs, ms_of):
            return [
                sample.record(
                    stage,
                    operator + "'s",
                    ms_of(length),
                    (1, 16, length, 128, 128),
                    operator=operator,
                    inputs=inputs,
                    dtype="bf16",
                )
                for length in (256, 1024, 4096, 16384)
            ]

        linear = swept("05_chunked_gla", "gated linear attention", "mild", lambda n: n / 1024)
        softmax = swept("07_flash", "softmax attention", "causal", lambda n: n * n / 2048**2)
        status, out, err = self.draw(linear + softmax)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("as fast as softmax attention at L = 4096\n", out)
        self.assert_drawn("crossover", least_colours=2)
        self.assertIn("L = 4,096", texts(self.path("crossover.svg")))

    def test_one_operator_has_no_crossover(self):
        self.draw(sample.gated(shapes=[(1, 16, 256 * 4**i, 128, 128) for i in range(4)]))
        self.assertNotIn("crossover.svg", self.drawn())

    def test_the_ladder(self):
        sample.write(self.results, sample.ladder())
        status, out, err = sample.run("charts.py", self.results, "--out", self.out)
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(self.drawn(), ["speedup.png", "speedup.svg"])
        self.assertIn(self.path("speedup.svg"), out)
        self.assertIn("no length chart", out)
        self.assert_drawn("speedup", least_colours=2)  # a colour a stage, and the first one is grey
        found = texts(self.path("speedup.svg"))
        for text in [
            "02 naive cuda",
            "03 shared mem",
            "04 double buffer",
            "04 low occupancy",
            "41.3 ms",
            "5.02 ms",
            "0.874 ms",
            "1.31 ms",
            "1×",
            "8.2×",
            "47×",
            "32×",
            "over the",
            "one before",
            "8.3×",  # 41.9 / 5.02, in one run
            "5.7×",
            "0.67×",
            "Causal product, fp32, B=16, H=8, L=4096, E=M=64",
            "Made-up GPU   |   commit 0123abcd   |   2026-11-20",
            "limit of this device: 0.143 ms (fp32 arithmetic)",
        ]:
            self.assertIn(text, found)

    def test_a_rung_before_that_is_not_the_bar_above_is_named(self):
        first, second, third = results.settle(
            [results.parse_line(json.dumps(line)) for line in sample.ladder()[3:]]
        )
        self.assertEqual(charts.over_before(first, None), "")
        self.assertEqual(charts.over_before(third, second), "0.67×")
        self.assertEqual(charts.over_before(third, first), "0.67×\n(double buffer)")
        alone = results.settle([third])[0]
        self.assertEqual(charts.over_before(alone, None), "double buffer\nnot timed")

    def test_bars_are_as_long_as_their_speedup(self):
        sample.write(self.results, sample.ladder())
        loaded = results.load_all([self.results])
        axes = charts.draw_speedup(loaded, loaded[0].shape).axes[0]
        ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
        for end, wanted in zip(ends, [1, 41.3 / 5.02, 41.3 / 0.874, 41.3 / 1.31], strict=True):
            self.assertAlmostEqual(end, wanted)

    def test_a_ladder_that_goes_down_is_drawn_too(self):
        slower = [
            sample.record("02_naive_cuda", "02_naive_cuda", 1.0),
            sample.record("03_shared_mem", "03_shared_mem", 8.0),
        ]
        self.assertEqual(self.draw(slower)[0], 0)
        self.assertIn("0.12×", texts(self.path("speedup.svg")))

    def test_the_same_results_give_the_same_bytes(self):
        everything = sample.ladder() + sample.sweep()
        first = {}
        for again in (False, True):
            self.assertEqual(self.draw(everything)[0], 0)
            for name in ("speedup.svg", "length.svg", "speedup.png"):
                with open(self.path(name), "rb") as file:
                    content = file.read()
                if again:
                    self.assertEqual(content, first[name], name)
                first[name] = content
                self.assertNotIn(b"dc:date", content)

    def test_time_against_length(self):
        sweep = sample.sweep() + sample.sweep("low_occupancy", power=1.5)
        status, out, _ = self.draw(sample.ladder() + sweep)
        self.assertEqual(status, 0)
        self.assert_drawn("length", least_colours=2)
        self.assertIn("04 double buffer: time ~ L^1.000 from L = 2048 to 16384", out)
        self.assertIn("04 low occupancy: time ~ L^1.500 from L = 2048 to 16384", out)
        found = texts(self.path("length.svg"))
        for text in [
            "04 double buffer: slope 1.00",
            "04 low occupancy: slope 1.50",
            "2,048",
            "16,384",
            "sequence length L",
            "median time in ms",
        ]:
            self.assertIn(text, found)

    def test_the_slope_is_a_least_squares_fit(self):
        self.assertAlmostEqual(charts.slope([(1, 5.0), (2, 10.0), (4, 20.0)]), 1.0)
        self.assertAlmostEqual(charts.slope([(1, 1.0), (2, 4.0), (8, 64.0)]), 2.0)
        # By hand: x = 0, 1, 2 and y = 0, 1, 1 in powers of two.
        self.assertAlmostEqual(charts.slope([(1, 1.0), (2, 2.0), (4, 2.0)]), 0.5)

    def test_two_lengths_make_no_line(self):
        _, out, _ = self.draw(sample.sweep(lengths=(2048, 4096)))
        self.assertIn("no length chart", out)
        self.assertNotIn("length.svg", self.drawn())

    def test_host_and_gpu_are_never_in_one_chart(self):
        self.assertEqual(self.draw(sample.host() + sample.ladder())[0], 0)
        self.assertEqual(
            self.drawn(), ["cpu_speedup.png", "cpu_speedup.svg", "speedup.png", "speedup.svg"]
        )
        self.assertIn("01 chunked", texts(self.path("cpu_speedup.svg")))
        self.assertNotIn("01 chunked", texts(self.path("speedup.svg")))

    def test_a_chart_has_one_operator_on_one_kind_of_inputs(self):
        shape = (16, 8, 4096, 64, 64)
        records = sample.ladder()
        records += sample.gated("ungated", "f32", [shape], ms=0.2)
        records += sample.gated("mild", "bf16", [(8, 32, 4096, 64, 64), shape], ms=0.31)
        records += sample.gated("strong", "bf16", [(8, 32, 4096, 64, 64)], ms=0.32)
        self.assertEqual(self.draw(records)[0], 0)
        names = ["gated_linear_attention_speedup", "speedup"]
        self.assertEqual(self.drawn(), [f"{n}.{kind}" for n in names for kind in ("png", "svg")])
        found = texts(self.path("speedup.svg"))
        for text in ["05 fused", "0.2 ms", "05 recurrent", "0.874 ms"]:
            self.assertIn(text, found)
        self.assertIn("Causal product, fp32, B=16, H=8, L=4096, E=M=64", found)
        found = texts(self.path("gated_linear_attention_speedup.svg"))
        title = "Gated linear attention, inputs mild, bf16, B=8, H=32, L=4096, E=M=64"
        for text in [title, "05 fused", "0.31 ms"]:
            self.assertIn(text, found)
        for text in ["0.32 ms", "04 double buffer"]:
            self.assertNotIn(text, found)

    def test_what_limits_the_device(self):
        def limit(**more):
            return charts.limit_of_device(results.parse_line(json.dumps(sample.record(**more))))

        # 0.537 GB at 4.3 TB/s, 8.59 GFLOP.
        self.assertEqual(limit(fma_tflop_per_s=None), (None, None))
        self.assertAlmostEqual(limit()[0], 0.1432, 4)
        self.assertEqual(limit()[1], "fp32 arithmetic")
        self.assertAlmostEqual(limit(dtype="bf16")[0], 0.1249, 4)
        self.assertEqual(limit(dtype="bf16", mma_tflop_per_s=600.0)[1], "memory")
        self.assertEqual(limit(mma_tflop_per_s=600.0)[1], "memory")
        # As tf32, at half the rate.
        self.assertAlmostEqual(limit(mma_tflop_per_s=60.0)[0], 0.2863, 4)
        self.assertEqual(limit(mma_tflop_per_s=60.0)[1], "tensor cores, mma.sync")

    def test_another_shape(self):
        other = (1, 8, 16384, 64, 64)
        both = sample.ladder() + sample.ladder(other, scale=0.5)
        self.assertEqual(self.draw(both, "--shape", "1,8,16384,64,64")[0], 0)
        self.assertEqual(
            self.drawn(), ["speedup_1_8_16384_64_64.png", "speedup_1_8_16384_64_64.svg"]
        )
        self.assertIn("0.437 ms", texts(self.path("speedup_1_8_16384_64_64.svg")))

    def test_bad_input_is_one_line_and_no_chart(self):
        self.assert_refused(self.draw(sample.ladder(), "--shape", "1,2,3"), "--shape 1,2,3")
        self.assert_refused(
            self.draw(sample.ladder(), "--shape", "1,1,1,1,1"), "nothing was recorded"
        )
        self.assert_refused(self.draw(sample.ladder(), "--colour", "red"), "--colour")
        self.assert_refused(self.draw([]), "no results")
        mixed = sample.ladder() + [sample.record(device="Another GPU")]
        sample.write(self.results, mixed)
        status, _, err = sample.run_here(charts, self.results, "--out", self.out)
        self.assertEqual((status, err.count("\n")), (2, 1))
        self.assertIn("Another GPU, Made-up GPU", err)

    def test_a_file_that_cannot_be_parsed_is_named(self):
        sample.write(self.results, sample.ladder())
        with open(self.results, "a", encoding="utf-8") as file:
            file.write('{"schema": 1, "stage"')
        done = sample.run_here(charts, self.results, "--out", self.out)
        self.assert_refused(done, f"{self.results}:7: not JSON")

    def test_an_output_folder_that_cannot_be(self):
        sample.write(self.results, sample.ladder())
        done = sample.run_here(charts, self.results, "--out", os.path.join(self.results, "charts"))
        self.assert_refused(done, "results.jsonl")

    def test_nothing_half_written_is_left(self):
        with tempfile.TemporaryDirectory() as out:

            class Broken:
                def savefig(self, file, **_):
                    file.write(b"<svg")
                    raise OSError("the disk is full")

            with self.assertRaises(OSError):
                charts.save(Broken(), out, "speedup")
            self.assertEqual(os.listdir(out), [])


if __name__ == "__main__":
    unittest.main()
