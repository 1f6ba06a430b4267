#!/usr/bin/env python3
"""The bars of the GPU's codec over a program that prints figures made up here: each holds, each can
fail, and each says 77 where there is no GPU, or another one than its microseconds are promised for. Laid
out as in a bundle. And tests/bars/run, which builds what the bars need. Usage: bars_test.py"""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BARS = pathlib.Path(__file__).resolve().parent.parent / "bars"
STUB = r'''#!/usr/bin/env python3
import argparse, json, os, sys
faults = json.loads(os.environ["STUB"])
if faults.get("no_gpu"):
    sys.exit(print("bench_gpu_codec: no usable GPU", file=sys.stderr) or 77)
if faults.get("broken"):
    sys.exit(print("bench_gpu_codec: work failed", file=sys.stderr) or 1)
parser = argparse.ArgumentParser()
for name, default in (("kind", ""), ("effort", "normal")):
    parser.add_argument("--" + name, default=default)
for name, default in (("dim", 128), ("layers", 1), ("burst", 7)):
    parser.add_argument("--" + name, type=int, default=default)
parser.add_argument("--pages", type=int, nargs="+", default=[4096])
for way in ("encode", "decode", "original", "rotated"):
    parser.add_argument("--no-" + way, action="store_true")
args = parser.parse_args()
print(faults.get("device", "NVIDIA H200") + ": a copy moves 4.24 TB/s")
code = 0
ways = [] if args.no_encode else ["encode"]
if not args.no_decode:
    ways += [] if args.no_original else ["decode"]
    ways += [] if args.no_rotated else ["rotated"]
bits = 4.5 if "int4" in args.kind else 2.28
for way in ways:
    if way == faults.get("none"):
        print(f"{args.kind:14} d={args.dim} {way:8} none: no kernel here")
        code = 1
        continue
    for pages in args.pages:
        floor = pages * args.layers * 2 * 8 * 64 * args.dim * (2 + bits / 8) / 4.24e6
        ratio = faults.get(way, 1.1) * faults.get("dims", {}).get(str(args.dim), 1.0)
        time = floor * ratio + faults.get("launch_us", 1.0)
        print(f"{args.kind:14} d={args.dim} pages={pages} x {args.layers} layers {way:8} burst "
              f"{time * 1.1:8.1f} us ({time * 1.1 / floor:.2f} x) sustained {time:8.1f} us "
              f"({time / floor:.2f} x) floor {floor:.1f} us")
sys.exit(code)
'''
# What makes each bar fail, the smaller the nearer to its bound. (floor: 289 us, int4 321 us)
FAULTS = {
    "gpu_encode_oscar_int2": {"encode": 1.85},
    "gpu_decode_original": {"decode": 1.32},
    "gpu_decode_rotated": {"rotated": 1.25},
    "gpu_encode_crumb_normal": {"encode": 6.0},
    "gpu_encode_crumb_best": {"encode": 21.0},
    "gpu_int4": {"decode": 2.1},
    "gpu_hadamard_int2": {"encode": 1.8},
    "gpu_small_batches": {"launch_us": 9.0},
    "gpu_head_dims": {"dims": {"64": 1.4}},
}
HOLDS = {
    "gpu_encode_oscar_int2": {"encode": 1.75},
    "gpu_decode_original": {"decode": 1.25},
    "gpu_decode_rotated": {"rotated": 1.15},
    "gpu_encode_crumb_normal": {"encode": 5.7},
    "gpu_encode_crumb_best": {"encode": 20.0},
    "gpu_int4": {"decode": 1.9},
    "gpu_hadamard_int2": {"encode": 1.6},
    "gpu_small_batches": {"launch_us": 4.0},
    "gpu_head_dims": {"dims": {"64": 1.25, "256": 2.5}},
}

MICROSECONDS = ["gpu_encode_oscar_int2", "gpu_decode_original", "gpu_encode_crumb_normal",
                "gpu_encode_crumb_best", "gpu_small_batches"]


class BarsTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="crumb-bars-"))
        self.addCleanup(shutil.rmtree, self.root)
        (self.root / "bars").mkdir()
        for bar in [*BARS.glob("gpu_*"), BARS / "gpu.sh"]:
            shutil.copy(bar, self.root / "bars")
        self.program = self.root / "bin" / "bench_gpu_codec"
        self.program.parent.mkdir()
        self.program.write_text(STUB)
        self.program.chmod(0o755)

    def run_bar(self, name, faults, **more):
        environment = dict(os.environ, STUB=json.dumps(faults), **more)
        environment.pop("CRUMB_BUILD", None)
        environment.update(more)
        done = subprocess.run([self.root / "bars" / name], capture_output=True, text=True,
                              env=environment, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    def each(self, code, faults):
        names = sorted(path.name for path in BARS.glob("gpu_*"))
        self.assertEqual(names, sorted(FAULTS))
        for name in names:
            with self.subTest(name):
                got, text = self.run_bar(name, faults(name))
                self.assertEqual(got, code, text)

    def test_each_holds_just_under_its_bound(self):
        self.each(0, lambda name: HOLDS[name])

    def test_each_fails_just_over_it(self):
        self.each(1, lambda name: FAULTS[name])

    def test_elsewhere_microseconds_are_shown_and_not_judged(self):
        for device in ("NVIDIA A100-SXM4-80GB", "NVIDIA H200 MIG 3g.71gb", "NVIDIA GH200 480GB"):
            for name in MICROSECONDS:
                with self.subTest(name + " on " + device):
                    # Of small batches, half the rate is judged anywhere.
                    faults = (HOLDS if name == "gpu_small_batches" else FAULTS)[name]
                    code, text = self.run_bar(name, dict(faults, device=device))
                    self.assertEqual(code, 77, text)
                    last = text.splitlines()[-1]
                    self.assertTrue(last.startswith("skipped: "), last)
                    self.assertIn(device, last)
                    self.assertRegex(last, r"\d+\.\d us")

    def test_elsewhere_multiples_are_judged(self):
        for name in sorted(set(FAULTS) - set(MICROSECONDS)):
            with self.subTest(name):
                self.assertEqual(self.run_bar(name, dict(HOLDS[name], device="NVIDIA B200"))[0], 0)
                self.assertEqual(self.run_bar(name, dict(FAULTS[name], device="NVIDIA B200"))[0], 1)
        # Eight pages at less than half of the rate.
        code, text = self.run_bar("gpu_small_batches", {"launch_us": 40.0, "device": "NVIDIA B200"})
        self.assertEqual(code, 1, text)
        self.assertNotIn("1 page, encode, us", text.split("over:", 1)[1])

    def test_without_a_gpu_each_is_skipped(self):
        self.each(77, lambda name: {"no_gpu": True})

    def test_a_program_that_fails_is_no_skip(self):
        self.each(1, lambda name: {"broken": True})

    def test_a_missing_kernel_is_a_failure_that_says_so(self):
        for name, way in (("gpu_encode_crumb_normal", "encode"), ("gpu_int4", "decode")):
            code, text = self.run_bar(name, {"none": way})
            self.assertEqual(code, 1, text)
            self.assertIn("no kernel here", text)

    def test_the_last_line_has_the_figures(self):
        code, text = self.run_bar("gpu_encode_oscar_int2", {"encode": 1.5})
        self.assertEqual(code, 0, text)
        self.assertRegex(text.splitlines()[-1], r"oscar-int2 encode \d+\.\d us sustained \(1\.5\d x")

    def test_without_the_program_each_is_skipped_and_crumb_build_names_one(self):
        build = self.root / "elsewhere"
        (build / "tests/bench").mkdir(parents=True)
        shutil.move(self.program, build / "tests/bench")
        code, text = self.run_bar("gpu_int4", {})
        self.assertEqual(code, 77, text)
        self.assertIn("no bench_gpu_codec", text)
        code, text = self.run_bar("gpu_int4", {}, CRUMB_BUILD=str(build))
        self.assertEqual(code, 0, text)


class RunTest(unittest.TestCase):
    """tests/bars/run with a cmake that only notes what it is asked for."""

    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="crumb-run-"))
        self.addCleanup(shutil.rmtree, self.root)
        bars = self.root / "tests/bars"
        bars.mkdir(parents=True)
        for bar in (BARS / "run", BARS / "gpu.sh", BARS / "gpu_int4"):
            shutil.copy(bar, bars)
        self.script(bars / "codec_one", "echo 1 of 1")
        self.script(self.root / "deploy/install_packages", "")
        self.tools = self.root / "tools"

    def script(self, path, body):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/bash\n" + body + "\n")
        path.chmod(0o755)

    def run_bars(self, pattern, gpu, targets):
        """gpu: is there one; targets: what the CUDA build has."""
        self.script(self.tools / "nvidia-smi", "exit 0" if gpu else "exit 9")
        self.script(self.tools / "cmake", f"""echo "$*" >>{self.root}/asked
if [[ "$*" == *"--target help"* ]]; then echo '{targets}'; exit; fi
[[ "$*" != *bench_gpu_codec* || '{targets}' == *bench_gpu_codec* ]]""")
        (self.root / "asked").write_text("")
        environment = dict(os.environ, PATH=f"{self.tools}:{os.environ['PATH']}")
        environment.pop("CRUMB_BUILD", None)
        done = subprocess.run([self.root / "tests/bars/run", pattern], capture_output=True,
                              text=True, env=environment, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr, (self.root / "asked").read_text()

    def test_without_nvcc_the_gpu_bars_are_skipped_with_the_reason(self):
        code, text, _ = self.run_bars("gpu_*", gpu=True, targets="crumbctl: phony")
        self.assertEqual(code, 0, text)
        self.assertIn("0 passed, 0 failed, 1 skipped", text)
        self.assertRegex(text, r"(?m)^skip +gpu_int4 .*no bench_gpu_codec .*where nvcc is")
        code, text, _ = self.run_bars("*", gpu=True, targets="crumbctl: phony")
        self.assertEqual(code, 0, text)
        self.assertIn("1 passed, 0 failed, 1 skipped", text)

    def test_only_what_the_pattern_matches_is_built(self):
        have = "tests/bench/all: phony\nbench_gpu_codec: phony"
        code, text, asked = self.run_bars("codec_*", gpu=True, targets=have)
        self.assertEqual(code, 0, text)
        self.assertNotIn("cuda", asked)
        self.assertIn("build/release", asked)
        code, text, asked = self.run_bars("gpu_*", gpu=True, targets=have)
        self.assertEqual(code, 0, text)
        self.assertIn("--build build/cuda", asked)
        self.assertIn("--target bench_gpu_codec", asked)
        self.assertNotIn("release", asked)

    def test_without_a_gpu_no_cuda_build_is_made(self):
        code, text, asked = self.run_bars("gpu_*", gpu=False, targets="")
        self.assertEqual(code, 0, text)
        self.assertEqual(asked, "")
        self.assertIn("1 skipped", text)

    def test_a_pattern_without_bars_builds_nothing(self):
        code, text, asked = self.run_bars("nosuch", gpu=True, targets="")
        self.assertEqual(code, 2)
        self.assertIn("no bar matches 'nosuch'", text)
        self.assertEqual(asked, "")


if __name__ == "__main__":
    unittest.main()
