"""Reading results: what is right is read whole, what is wrong is one line that says where."""

import json
import os
import tempfile
import unittest

import sample
import results


class Loading(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "results.jsonl")

    def write_lines(self, *lines):
        with open(self.path, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)

    def assert_refused(self, where, what):
        with self.assertRaises(results.ResultsError) as caught:
            results.load(self.path)
        message = str(caught.exception)
        self.assertTrue(message.startswith(f"{self.path}{where}"), message)
        self.assertIn(what, message)
        self.assertNotIn("\n", message)

    def test_reads_every_field(self):
        sample.write(self.path, [sample.record(), sample.record(ms=20.0)])
        first, second = results.load(self.path)
        self.assertEqual(first.shape, results.Shape(16, 8, 4096, 64, 64))
        self.assertEqual((first.median_ms, second.median_ms), (40.0, 20.0))
        self.assertEqual(first.commit, "0123abcd")
        self.assertFalse(first.on_host)

    def test_what_the_host_cannot_know_is_null(self):
        sample.write(
            self.path, [sample.record(speedup=None, fma_tflop_per_s=None, predicted_ms=None)]
        )
        self.assertIsNone(results.load(self.path)[0].predicted_ms)
        sample.write(self.path, [sample.record(median_ms=None)])
        self.assert_refused(":1:", "'median_ms' should be a number, not null")

    def test_a_cut_line_is_named(self):
        whole = json.dumps(sample.record())
        self.write_lines(whole, whole[:100])
        self.assert_refused(":2:", "not JSON")

    def test_what_is_no_record_is_named(self):
        for line, what in [
            ("[1, 2]", "not a JSON object"),
            ("{}", "schema null"),
            (json.dumps(sample.record(schema=3)), "schema 3, but this script reads 1 or 2"),
            (json.dumps(sample.record(median_ms="fast")), "'median_ms' should be a number"),
            (json.dumps(sample.record(median_ms=float("nan"))), "NaN"),
            (json.dumps(sample.record(median_ms=0)), "'median_ms' is 0"),
            (json.dumps(sample.record(median_ms=7)).replace("7", "1e999", 1), "'median_ms' is inf"),
            (json.dumps(sample.record(speedup=-1.0)), "'speedup' is -1.0"),
            (json.dumps(sample.record(samples=2.5)), "whole number"),
            (json.dumps(sample.record(picked=1)), "'picked' should be true or false"),
            (json.dumps(sample.record(device=None)), "'device' should be a string"),
            (json.dumps(sample.record(inputs=None)), "'inputs' should be a string"),
            (json.dumps(sample.record(mma_tflop_per_s="x")), "'mma_tflop_per_s' should be a numb"),
            (json.dumps(sample.record(date="yesterday")), "'date' should look like"),
            (json.dumps(sample.record()).replace('"L": 4096', '"L": -4'), "L = -4"),
            (json.dumps(sample.record()).replace('"L": 4096, ', ""), "'shape' should have"),
        ]:
            with self.subTest(line=line[:60]):
                self.write_lines(line)
                self.assert_refused(":1:", what)

    def test_older_files_lack_what_was_not_recorded_yet(self):
        record = sample.record(inputs="mild", mma_tflop_per_s=600.0)
        sample.write(self.path, [record])
        self.assertEqual(results.load(self.path)[0].inputs, "mild")
        self.assertEqual(results.load(self.path)[0].mma_tflop_per_s, 600)
        del record["inputs"], record["mma_tflop_per_s"], record["home"]
        sample.write(self.path, [record])
        self.assertEqual(results.load(self.path)[0].inputs, "")
        self.assertIsNone(results.load(self.path)[0].mma_tflop_per_s)

    def test_every_other_field_is_required(self):
        for name in sample.record().keys() - {"inputs", "mma_tflop_per_s", "home"}:
            with self.subTest(name):
                record = sample.record()
                del record[name]
                sample.write(self.path, [record])
                self.assert_refused(":1:", name if name != "schema" else "schema null")

    def test_no_file_and_no_results(self):
        self.assert_refused(": ", "No such file")
        self.write_lines("")
        self.assert_refused(": ", "no results")

    def test_not_text(self):
        with open(self.path, "wb") as file:
            file.write(b"\xff\xfe\x00")
        self.assert_refused(": ", "not a text file")

    def test_on_the_command_line(self):
        sample.write(self.path, sample.ladder())
        self.assertEqual(sample.run("results.py", self.path)[:2], (0, f"{self.path}: 6 results\n"))
        self.write_lines("nonsense")
        status, out, err = sample.run("results.py", self.path)
        self.assertEqual((status, out, err.count("\n")), (2, "", 1))
        self.assertIn(f"{self.path}:1:", err)

    def test_sweeps_come_last_without_what_is_of_record(self):
        folder = os.path.dirname(self.path)
        paths = [os.path.join(folder, name) for name in ("a_crossover.jsonl", "b_time.jsonl")]
        again, further = sample.record(ms=1.0), sample.record(ms=2.0, shape=(1, 8, 512, 64, 64))
        sample.write(paths[0], [again, further])
        sample.write(paths[1], [sample.record(ms=3.0)])
        self.assertEqual([result.median_ms for result in results.load_all(paths)], [3.0, 2.0])


def parse(records):
    return results.settle([results.parse_line(json.dumps(record)) for record in records])


class Speedups(unittest.TestCase):
    """Over the rung before, and over the first of the run."""

    def speedups(self, records):
        """{(stage, kernel): both, to three digits}"""

        def rounded(value):
            return value and float(f"{value:.3g}")

        return {
            (result.stage, result.kernel): (rounded(result.over_before), rounded(result.over_first))
            for result in parse(records)
        }

    def test_of_three_kernels(self):
        found = self.speedups(sample.host())
        self.assertEqual(found["01_cpu_reference", "scalar"], (None, None))
        self.assertEqual(found["01_cpu_reference", "openmp"], (1.97, 1.97))
        self.assertEqual(found["01_cpu_reference", "chunked"], (10.0, 19.7))

    def test_the_stage_before_is_timed_in_the_same_run(self):
        found = self.speedups(sample.ladder())
        self.assertEqual(found["03_shared_mem", "03_shared_mem"], (8.35, 8.35), "41.9 / 5.02")
        self.assertEqual(found["04_double_buffer", "double_buffer"], (5.73, 5.73))
        self.assertEqual(found["04_double_buffer", "low_occupancy"], (0.667, 3.82))

    def test_older_files_compared_all_with_the_first(self):
        old = list(sample.old(sample.host(), "scalar"))
        self.assertEqual(f"{old[2]['speedup']:.1f}", "19.7")
        self.assertEqual(self.speedups(old), self.speedups(sample.host()))
        old = list(sample.old(sample.ladder()[3:], "03_shared_mem"))
        self.assertEqual(self.speedups(old), self.speedups(sample.ladder()[3:]))

    def test_a_rung_before_that_was_not_timed_is_not_replaced(self):
        scalar, _, chunked = sample.host()
        found = parse([scalar, chunked])[1]
        self.assertIsNone(found.over_before)
        self.assertEqual(found.not_timed, "openmp")
        self.assertAlmostEqual(found.over_first, 120 / 6.1)
        self.assertEqual(parse([scalar])[0].not_timed, "")

    def test_other_shapes_inputs_and_processes_are_other_runs(self):
        first, _, third = sample.host()
        for change in (
            {"shape": {**third["shape"], "L": 8}},
            {"inputs": "mild"},
            {"dtype": "bf16"},
            {"date": "2026-11-21T00:00:00Z"},
            {"commit": "4567cdef"},
            {"device": "Another CPU"},
        ):
            third["baseline"] = "scalar"
            with self.subTest(change):
                self.assertAlmostEqual(parse([first, third])[1].over_before, 120 / 6.1)
                self.assertIsNone(parse([first, {**third, **change}])[1].over_before)

    def test_what_is_timed_again_is_another_run(self):
        again = sample.ladder() + sample.ladder(scale=0.5)
        self.assertAlmostEqual(parse(again)[-2].over_first, 5.01 / 0.874)

    def test_libraries_are_rungs_of_no_ladder(self):
        timed = [sample.record("PyTorch", kernel, schema=1) for kernel in ("cuDNN", "math")]
        self.assertEqual(set(self.speedups(timed).values()), {(None, None)})


class Ladder(unittest.TestCase):
    def parse(self, records):
        return parse(records)

    def test_one_rung_per_kernel_from_its_own_stage(self):
        rungs = results.ladder(self.parse(sample.ladder()))
        self.assertEqual(
            [rung.kernel for rung in rungs],
            ["02_naive_cuda", "03_shared_mem", "double_buffer", "low_occupancy"],
        )
        # 41.9 and 5.01 are what the next stage's driver measured beside its own kernel.
        self.assertEqual([rung.median_ms for rung in rungs], [41.3, 5.02, 0.874, 1.31])

    def test_the_order_of_the_files_does_not_matter(self):
        backwards = results.ladder(self.parse(sample.ladder()[::-1]))
        self.assertEqual([rung.median_ms for rung in backwards][:2], [41.3, 5.02])

    def test_measured_again_the_last_counts(self):
        rungs = results.ladder(self.parse(sample.ladder() + sample.ladder(scale=0.5)))
        self.assertEqual([rung.median_ms for rung in rungs], [20.65, 2.51, 0.437, 0.655])

    def test_two_stages_may_give_kernels_the_same_names(self):
        shape = (8, 32, 4096, 64, 64)
        names = ("recurrent", "packets", "engine")
        records = [
            sample.record(stage, kernel, 3.0 - place, shape, baseline=before)
            for stage in ("05_chunked_gla", "06_rwkv6")
            for place, (before, kernel) in enumerate(zip(("", *names), names))
        ]
        rungs = results.ladder(self.parse(records))
        homes = ["05_chunked_gla"] * 3 + ["06_rwkv6"] * 3
        self.assertEqual([rung.rung for rung in rungs], list(zip(homes, names * 2)))
        self.assertEqual([rung.over_before for rung in rungs], [None, 1.5, 2.0] * 2)

    def test_older_files_tell_the_stage_by_the_name_on_a_device(self):
        older = list(sample.old(sample.host(), "scalar"))
        older += sample.old([sample.record("06_rwkv6", "chunked")], "chunked")
        older += sample.old([sample.record("04_double_buffer", "double_buffer")], "double_buffer")
        older += sample.old([sample.record("05_chunked_gla", "double_buffer")], "double_buffer")
        homes = [result.home[:2] for result in self.parse(older)]
        self.assertEqual(homes, ["01", "01", "01", "06", "04", "04"])

    def test_the_order_is_that_of_the_longest_run(self):
        *first_ones, last = sample.host()
        swept = {**last, "date": "2026-11-19T00:00:00Z"}
        rungs = results.ladder(self.parse([swept, *first_ones, last]))
        self.assertEqual([rung.kernel for rung in rungs], ["scalar", "openmp", "chunked"])

    def test_shapes_of_the_first_stage_leave_a_sweep_out(self):
        some = self.parse(sample.sweep() + sample.ladder() + sample.ladder((1, 8, 16384, 64, 64)))
        self.assertEqual(
            [str(shape) for shape in results.shapes_of_first_stage(some)],
            ["16,8,4096,64,64", "1,8,16384,64,64"],
        )

    def test_the_first_stages_own_sweep_is_left_out_too(self):
        swept = sample.gated(shapes=[(8, 8, 2**power, 64, 64) for power in range(11, 15)])
        timed = sample.gated(shapes=[(8, 32, 4096, 64, 64), (8, 8, 1024, 64, 64)])
        self.assertEqual(
            [str(shape) for shape in results.shapes_of_first_stage(self.parse(timed + swept))],
            ["8,32,4096,64,64", "8,8,1024,64,64"],
        )

    def test_without_gates_it_is_the_causal_product(self):
        plain, mild, ungated = self.parse(
            [sample.record(), sample.gated()[0], sample.gated("ungated")[0]]
        )
        self.assertEqual(plain.workload, ungated.workload)
        self.assertEqual(ungated.workload_text, "Causal product")
        self.assertNotEqual(plain.workload, mild.workload)
        self.assertEqual(mild.workload_text, "Gated linear attention, inputs mild")


if __name__ == "__main__":
    unittest.main()
