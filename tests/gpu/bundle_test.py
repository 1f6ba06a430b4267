#!/usr/bin/env python3
"""tests/gpu/bundle and the run script it makes, over a build folder made up here: no CUDA, no GPU.
Usage: bundle_test.py. Exit 77: a tool that the bundle needs is not installed."""
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
TRUE, FALSE = shutil.which("true"), shutil.which("false")


class BundleTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="crumb-bundle-"))
        self.addCleanup(shutil.rmtree, self.root)
        self.build = self.root / "build"
        self.out = self.root / "out"
        self.build.mkdir()

    def program(self, place, of=TRUE):
        path = self.build / place
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(of, path)
        return path

    def write_tests(self, *tests):
        lines = []
        for name, program, *words in tests:
            quoted = " ".join(f'"{word}"' for word in (program, *words))
            lines.append(f"add_test({name} {quoted})")
            lines.append(f'set_tests_properties({name} PROPERTIES LABELS "gpu" TIMEOUT "20")')
        (self.build / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")

    def bundle(self, *words):
        return subprocess.run([HERE / "bundle", self.build, self.out, "--no-data", *words],
                              capture_output=True, text=True, timeout=120, check=False)

    def run_there(self, *words):
        return subprocess.run([self.out / "run", *words], capture_output=True, text=True,
                              timeout=120, check=False)

    def test_a_program_of_several_tests_is_taken_once(self):
        program = self.program("tests/one")
        self.write_tests(("first", program, "a b"), ("second", program))
        self.program("client/cli/crumbctl")
        made = self.bundle("--program", program)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        self.assertIn("2 tests, 1 programs", made.stdout)
        ran = self.run_there()
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("0 tests failed out of 2", ran.stdout)

    def test_the_tool_comes_along_when_asked_for(self):
        self.write_tests(("first", self.program("tests/one")))
        made = self.bundle("--crumbctl")
        self.assertEqual(made.returncode, 1)
        self.assertIn("client/cli/crumbctl: not built", made.stderr)
        self.program("client/cli/crumbctl")
        self.assertEqual(self.bundle("--crumbctl").returncode, 0)
        self.assertEqual(self.run_there("--", "crumbctl", "bench").returncode, 0)

    def test_two_programs_of_one_name_are_refused(self):
        self.write_tests(("first", self.program("tests/one")), ("second", self.program("other/one", FALSE)))
        made = self.bundle()
        self.assertEqual(made.returncode, 1)
        self.assertIn("another program has that name", made.stderr)

    def test_a_failed_test_is_named(self):
        self.write_tests(("good", self.program("good")), ("bad", self.program("bad", FALSE)))
        self.assertEqual(self.bundle().returncode, 0)
        ran = self.run_there()
        self.assertEqual(ran.returncode, 1)
        self.assertIn("failed: bad (exit 1)", ran.stdout)
        self.assertEqual(self.run_there("--filter", "good").returncode, 0)

    def test_a_program_that_was_not_built_is_named(self):
        self.write_tests(("first", self.program("one")), ("second", self.build / "nowhere"))
        made = self.bundle()
        self.assertEqual(made.returncode, 1)
        self.assertIn("test second: its program is not built", made.stderr)

    def test_bars_come_along_with_their_program_alone(self):
        self.write_tests(("first", self.program("tests/one")))
        made = self.bundle()
        self.assertIn("without tests/bench/bench_gpu_codec", made.stdout)
        self.assertFalse((self.out / "bars").exists())
        self.program("tests/bench/bench_gpu_codec", FALSE)
        self.assertEqual(self.bundle().returncode, 0)
        ran = self.run_there("--bars", "--filter", "^gpu_int4$")
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn("1 bars: 0 hold, 1 fail", ran.stdout)
        (self.out / "bin/bench_gpu_codec").write_text("#!/bin/sh\necho no GPU; exit 77\n")
        ran = self.run_there("--bars")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"(?m)^skip +gpu_decode_original +skipped: no GPU$")
        self.assertEqual(self.run_there("--bars", "--no-skip").returncode, 1)
        self.assertEqual(self.run_there("--bars", "--filter", "nothing").returncode, 2)


if __name__ == "__main__":
    missing = [tool for tool in ("strip", "ctest", "ldd", "true", "false") if not shutil.which(tool)]
    if missing:
        print("skipped: not installed:", ", ".join(missing))
        sys.exit(77)
    unittest.main()
