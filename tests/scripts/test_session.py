"""What scripts/gpu_session.sh runs on a machine with a GPU, by programs that only note it."""

import os
import subprocess
import tempfile
import unittest

import sample

# Lists one kernel in each dtype that it has, and refuses the others as a driver does.
DRIVER = """#!/bin/sh
case " $* " in
  *" --list "*)
    case " $* " in
      *" --dtype bf16 "*) [ "{bf16}" ] || exit 2; echo in_bf16 ;;
      *) echo in_f32 ;;
    esac
    echo "picked at 1,1,1,1,1: in_f32" ;;
  *) echo "{stage} $*" >>"$CALLS" ;;
esac
"""
SANITIZER = """#!/bin/sh
echo "sanitizer $*" >>"$CALLS"
echo "========= ERROR SUMMARY: 0 errors"
"""


class Session(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in [
            ("bin/nvidia-smi", "#!/bin/sh\n"),
            ("bin/compute-sanitizer", SANITIZER),
            ("build/tests/a_test", DRIVER.format(stage="a_test", bf16="")),
        ]:
            self.program(name, text)
        for stage in ("01_cpu_reference", "03_shared_mem", "04_double_buffer"):
            self.program(f"build/{stage}/{stage}", DRIVER.format(stage=stage, bf16=""))
        gla = "05_chunked_gla"
        self.program(f"build/{gla}/{gla}", DRIVER.format(stage=gla, bf16="yes"))
        example = f"{gla}/05_gla_layer"
        self.program(f"build/{example}", DRIVER.format(stage=example, bf16=""))
        self.program(f"build/{gla}/05_gate_lab", DRIVER.format(stage="05_gate_lab", bf16=""))

    def program(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def run_session(self, *arguments):
        """Its exit status, its output, and the programs it called."""
        calls = os.path.join(self.folder, "calls")
        environment = os.environ | {
            "CALLS": calls,
            "PATH": os.path.join(self.folder, "bin") + ":" + os.environ["PATH"],
        }
        script = os.path.join(sample.SCRIPTS, "gpu_session.sh")
        build, out = (os.path.join(self.folder, name) for name in ("build", "out"))
        done = subprocess.run(
            ["bash", script, build, out, *arguments],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        called = []
        if os.path.exists(calls):
            with open(calls, encoding="utf-8") as file:
                called = file.read().splitlines()
            os.unlink(calls)
        return done.returncode, done.stdout + done.stderr, called

    def test_each_stage_is_verified_in_each_dtype_and_its_examples(self):
        status, out, called = self.run_session("verify")
        self.assertEqual(status, 0, out)
        self.assertEqual(called[0], "a_test --gtest_brief=1")
        for call in [
            "01_cpu_reference --dtype f32 --verify-only",
            "05_chunked_gla --dtype f32 --verify-only",
            "05_chunked_gla --dtype bf16 --verify-only",
            "05_chunked_gla/05_gla_layer ",
        ]:
            self.assertIn(call, called)
        self.assertNotIn("04_double_buffer --dtype bf16 --verify-only", called)

    def test_the_jitter_build_is_verified_and_is_no_example(self):
        for name in ("07_flash", "07_flash_jitter"):
            self.program(f"build/07_flash/{name}", DRIVER.format(stage=name, bf16="yes"))
        status, out, called = self.run_session("--stage", "07_flash", "verify")
        self.assertEqual(status, 0, out)
        jitter = [call for call in called if call.startswith("07_flash_jitter")]
        self.assertEqual(jitter, ["07_flash_jitter --kernel hopper --dtype bf16 --verify-only"])

    def test_a_failure_is_named_and_the_rest_runs(self):
        self.program("build/03_shared_mem/03_shared_mem", "#!/bin/sh\nexit 1\n")
        status, out, called = self.run_session("verify")
        self.assertEqual(status, 1)
        self.assertIn("FAILED: list 03_shared_mem f32", out)
        self.assertIn("05_chunked_gla --dtype bf16 --verify-only", called)

    def test_what_is_timed(self):
        results = os.path.join(self.folder, "out", "time.jsonl")
        status, out, called = self.run_session("time")
        self.assertEqual(status, 0, out)
        gla = [call for call in called if call.startswith("05")]
        self.assertEqual(len(gla), 7)
        self.assertEqual(
            gla[1],
            "05_chunked_gla --dtype bf16 --inputs strong --benchmark_min_time=0.3s "
            f"--shape 8,32,4096,64,64 --results {results}",
        )
        # Like for like: one shape at which stages 03 to 05 all are timed.
        self.assertIn("--dtype f32 --inputs ungated", gla[5])
        self.assertIn("--shape 16,8,4096,64,64", gla[5])
        for stage in ("03", "04"):
            self.assertTrue(any(c.startswith(stage) and "16,8,4096,64,64" in c for c in called))

    def test_sweeps_begin_at_stage_04(self):
        _, out, called = self.run_session("sweep")
        self.assertEqual([call[:2] for call in called], ["04", "05", "05"], out)
        self.assertIn(" --shape 16,8,131072,64,64 --results ", called[0])
        self.assertIn("--dtype bf16 ", called[1])
        self.assertIn(" --shape 1,8,2048,64,64 --shape 1,8,4096,64,64 ", called[1])
        self.assertIn(" --shape 1,8,262144,64,64 --results ", called[1])

    def test_the_lab(self):
        status, out, called = self.run_session("lab")
        results = os.path.join(self.folder, "out", "lab.ndjson")
        self.assertEqual((status, called), (0, [f"05_gate_lab --results {results}"]), out)
        self.assertEqual(self.run_session("--stage", "03_shared_mem", "lab")[2], [])

    def test_one_stage_alone(self):
        status, out, called = self.run_session("--stage", "05_chunked_gla", "verify", "sanitize")
        self.assertEqual(status, 0, out)
        self.assertTrue(all("05_" in call for call in called), called)
        sanitized = [call for call in called if call.startswith("sanitizer")]
        self.assertEqual(len(sanitized), 4 * 2)  # tools, kernels
        self.assertIn(
            "--kernel in_f32 --dtype f32 --inputs resets --shape 1,2,17,1,1 ", sanitized[0]
        )
        self.assertIn("--kernel in_bf16 --dtype bf16 ", sanitized[1])

    def test_bad_input_is_one_line(self):
        for arguments, what in [
            (["--stage"], "--stage lacks its NAME"),
            (["--stage", "09_none"], "--stage 09_none: there is none; it may be: 01_cpu_reference"),
            (["sleep"], "unknown part 'sleep'"),
        ]:
            status, out, called = self.run_session(*arguments)
            self.assertEqual((status, out.count("\n"), called), (2, 1, []), out)
            self.assertIn(what, out)


if __name__ == "__main__":
    unittest.main()
