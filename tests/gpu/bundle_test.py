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
        self.assertIn("there: ./run", made.stdout)
        large = self.bundle("--limit", "0")
        self.assertEqual(large.returncode, 1)
        self.assertNotIn("there: ./run", large.stdout)
        for words in ((), ("abc",), ("-1",), ("28", "a", "third")):
            self.assertEqual(self.bundle("--limit", *words).returncode, 2, words)
        self.assertTrue((self.out / "run").exists(), "wrong words must leave what is there")
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

    def test_the_daemon_comes_with_its_tests_when_asked_for(self):
        self.write_tests(("first", self.program("tests/one")))
        with open(self.build / "CTestTestfile.cmake", "a") as file:
            file.write(f'add_test(second "{self.program("tests/two")}")\n'
                       'set_tests_properties(second PROPERTIES LABELS "gpu_daemon")\n')
        self.assertIn("1 tests", self.bundle().stdout)
        made = self.bundle("--daemon")
        self.assertEqual(made.returncode, 1)
        for program in ("client/cli/crumbctl", "cachesvc/server/crumbd", "tests/integ/client/gpu_pages"):
            self.assertIn(f"{program}: not built", made.stderr)
            self.program(program)
        made = self.bundle("--daemon")
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        self.assertIn("2 tests, 5 programs", made.stdout)
        self.assertIn("(at most 64)", made.stdout)
        self.assertEqual(self.run_there("--", "crumbd", "--version").returncode, 0)
        self.assertIn("1 tests", self.bundle("--daemon", "--only", "^sec").stdout)
        self.assertIn("none has a name like third", self.bundle("--only", "third").stderr)
        self.assertEqual(self.bundle("--only", "(").returncode, 2)

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
        self.assertNotIn("there: ./run", made.stdout)

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
        count = len(list((HERE.parent / "bars").glob("gpu_*")))
        self.assertIn(f"{count} bars: 0 hold, 0 fail, {count} skipped: nothing was measured", ran.stdout)
        ran = self.run_there("--bars", "--no-skip")
        self.assertEqual(ran.returncode, 1)
        self.assertIn(f"{count} bars: 0 hold, 0 fail, {count} skipped: nothing was measured", ran.stdout)
        self.assertIn("failed: gpu_int4 (skipped)", ran.stdout)
        self.assertEqual(self.run_there("--bars", "--filter", "nothing").returncode, 2)
        ran = self.run_there("--bars", "--exclude", "^gpu_[^i]")
        self.assertIn("1 bars: 0 hold, 0 fail, 1 skipped", ran.stdout)

    def test_tests_that_were_all_skipped_are_no_success_to_speak_of(self):
        skips = self.program("skips")
        self.write_tests(("good", self.program("good")), ("no_gpu", skips), ("no_gpu_either", skips))
        self.assertEqual(self.bundle().returncode, 0)
        (self.out / "bin/skips").write_text("#!/bin/sh\necho no GPU; exit 77\n")
        ran = self.run_there("--exclude", "good")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("0 passed, 0 failed, 2 skipped: nothing was tested", ran.stdout)
        self.assertNotIn("%", ran.stdout)
        ran = self.run_there("--filter", "no_gpu", "--no-skip")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("0 passed, 0 failed, 2 skipped: nothing was tested", ran.stdout)
        self.assertIn("failed: no_gpu_either (skipped)", ran.stdout)
        ran = self.run_there()
        self.assertEqual(ran.returncode, 0)
        self.assertIn("100% tests passed, 0 tests failed out of 3 (2 skipped)", ran.stdout)
        ran = self.run_there("--no-skip")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("33% tests passed, 2 tests failed out of 3 (2 skipped)", ran.stdout)

    def test_what_is_excluded_does_not_run(self):
        self.write_tests(("good", self.program("good")), ("bad", self.program("bad", FALSE)))
        self.assertEqual(self.bundle().returncode, 0)
        ran = self.run_there("--exclude", "^bad$")
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("out of 1", ran.stdout)
        self.assertEqual(self.run_there("--filter", "bad", "--exclude", "^b").returncode, 2)

    def test_wrong_words_are_named(self):
        self.write_tests(("good", self.program("good")), ("other", self.program("other")))
        self.assertEqual(self.bundle().returncode, 0)
        for words, message in (
                (["--filter", "("], "--filter '(' is no regular expression"),
                (["--exclude", "["], "--exclude '[' is no regular expression"),
                (["--bars", "--filter", "("], "--filter '(' is no regular expression"),
                (["--with", "no-such-sanitizer -x"], "no-such-sanitizer: not found"),
                (["--with", " "], "--with needs"), (["--bars", "--with", "env"], "--with is for tests"),
                (["--", "nosuch"], "no program 'nosuch' in bin/, there are: good other"),
                (["--", ".."], "no program '..' in bin/"), (["--"], "-- needs"),
                (["--logs"], "--logs needs"), (["--filter"], "--filter needs"),
                (["--logs", ""], "--logs needs"), (["--nosuch"], "unknown option: --nosuch")):
            with self.subTest(words):
                ran = self.run_there(*words)
                self.assertEqual(ran.returncode, 2, ran.stdout + ran.stderr)
                self.assertIn(message, ran.stderr)
        self.assertIn("run [--filter REGEX]", self.run_there("--").stderr)
        self.assertEqual(self.run_there("--with", "env A=1").returncode, 0)
        self.assertIn("exit 0 only if nothing failed", self.run_there("--help").stdout)


if __name__ == "__main__":
    missing = [tool for tool in ("strip", "ctest", "ldd", "true", "false") if not shutil.which(tool)]
    if missing:
        print("skipped: not installed:", ", ".join(missing))
        sys.exit(77)
    unittest.main()
