#!/usr/bin/env python3
"""The exit codes of bench_gpu_codec: without a GPU, where wrong arguments are wrong too, and over kernels
that only count. Usage: gpu_codec_test.py PROGRAM PROGRAM_OVER_FAKES"""
import os
import subprocess
import sys
import unittest

PROGRAM = FAKE = ""


def run(*words, program=None):
    return subprocess.run([program or PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False,
                          env=dict(os.environ, CUDA_VISIBLE_DEVICES=""))


class GpuCodecTest(unittest.TestCase):
    def test_wrong_arguments_are_exit_2_and_named(self):
        for words, message in (
                ("--nosuch", "--nosuch"), ("--kind zip", "zip"), ("--effort heroic", "heroic"),
                ("--dim 100", "100"), ("--dim x", "x"), ("--device -1", "-1"), ("--device x", "x"),
                ("--heads 0", "0"), ("--layers 65", "65"), ("--page-tokens 17", "multiples of 16"),
                ("--pages 0", "0 pages"), ("--pages 8 2000000", "2000000 pages"),
                ("--pages", "--pages"), ("--burst 1001", "1001"),
                ("--no-encode --no-decode", "nothing to measure"),
                ("--no-encode --no-original --no-rotated", "nothing to measure")):
            with self.subTest(words):
                ran = run(*words.split())
                self.assertEqual(ran.returncode, 2, ran.stdout + ran.stderr)
                self.assertIn(message, ran.stderr)

    def test_without_a_gpu_it_is_skipped(self):
        for words in ("", "--kind raw", "--pages 8 1 --dim 64 --no-encode"):
            ran = run(*words.split())
            self.assertEqual(ran.returncode, 77, ran.stdout + ran.stderr)
            self.assertIn("bench_gpu_codec: ", ran.stderr)

    def test_a_way_without_a_kernel_is_exit_1_with_the_reason(self):
        small = "--heads 2 --pages 8 --burst 0 --sustained 10".split()
        ran = run(*small, "--kind", "naive-int2", program=FAKE)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"(?m)^naive-int2 +d=128 pages=8 x 1 layers encode +burst")
        ran = run(*small, "--kind", "raw", program=FAKE)
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertRegex(ran.stdout, r"(?m)^raw +d=128 encode +none: .*no kernel")

    def test_a_device_or_memory_that_is_not_there_is_no_skip(self):
        ran = run("--device", "1", program=FAKE)
        self.assertEqual(ran.returncode, 2, ran.stdout + ran.stderr)
        ran = run("--heads", "64", "--pages", "1048576", program=FAKE)
        self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
        self.assertIn("MiB are free", ran.stderr)
        ran = run("--kind", "zip", program=FAKE)
        self.assertEqual((ran.returncode, ran.stdout), (2, ""))

    def test_help_is_no_failure(self):
        ran = run("--help")
        self.assertEqual(ran.returncode, 0)
        self.assertIn("Exit 77: no GPU", ran.stdout)


if __name__ == "__main__":
    PROGRAM, FAKE = sys.argv.pop(1), sys.argv.pop(1)
    unittest.main()
