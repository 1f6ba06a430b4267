#!/usr/bin/env python3
"""What bench_gpu_codec says without a GPU: wrong arguments are wrong there too, and --help is none.
Usage: gpu_codec_test.py PROGRAM"""
import os
import subprocess
import sys
import unittest

PROGRAM = ""


def run(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=60, check=False,
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

    def test_help_is_no_failure(self):
        ran = run("--help")
        self.assertEqual(ran.returncode, 0)
        self.assertIn("Exit 77: no GPU", ran.stdout)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
