#!/usr/bin/env python3
"""The tidy checks can fail: each is run on a small tree with one planted fault, and on a clean one."""
import json
import pathlib
import subprocess
import sys
import tempfile

COMPILER = sys.argv[1] if len(sys.argv) > 1 else "c++"
HERE = pathlib.Path(__file__).parent
GUARD = "CRUMB_CACHESVC_BASE_X_H_"
CLEAN = f"// x\n#ifndef {GUARD}\n#define {GUARD}\nint X();\n#endif\n"
CASES = [
    ("layers", "cachesvc/base/x.cc", '// x\n#include "cachesvc/net/transport.h"\n'),
    ("layers", "storage/device/x.cc", "// x\n#include <ucp/api/ucp.h>\n"),
    ("layers", "gpu/codec/x.cc", '// x\n#include "tests/support/npz.h"\n'),
    ("bans", "cachesvc/core/x.cc", "// x\nstd::mutex m;\n"),
    ("bans", "cachesvc/base/x.cc", "int x;\n"),
    ("bans", "tests/unit/x.cc", "// x\nvoid F() { std::this_thread::sleep_for(x); }\n"),
    ("lengths", "cachesvc/base/x.h", CLEAN + "// y\n" * 151),
    ("lengths", "cachesvc/base/x.cc", "// x\nvoid F() {\n" + "  G();\n" * 71 + "}\n"),
    ("words", "cachesvc/base/x.h", "// x\n#pragma once\n"),
    ("words", "gpu/codec/x.cc", "// x\nvoid FastEncode();\n"),
    ("words", "gpu/codec/cuda_x.cuh", "// x\n#pragma once\n"),
    ("lengths", "gpu/codec/cuda_x.cu", "// x\n__global__ void F(P p) {\n" + "  G();\n" * 71 + "}\n"),
    ("layers", "gpu/codec/x.cc", "// x\n#include <cuda_runtime.h>\n"),
    ("layers", "gpu/codec/cuda_x.h", "// x\n#include <cuda_runtime.h>\n"),
    ("bans", "gpu/codec/cuda_x.cu", "// x\nvoid F() { G<<<1, dim3{2}>>>(); }\n"),
    ("bans", "gpu/codec/cuda_x.cu", "// x\nvoid F() { (void)cudaDeviceSynchronize(); }\n"),
]
# headers: what the own file of a header that needs <vector> begins with, and whether the check has to complain. Only
# an include before everything else lets the build prove the header; all others must be found by compiling it alone.
NEEDS_VECTOR = f"// x\n#ifndef {GUARD}\n#define {GUARD}\nstd::vector<int> X();\n#endif\n"
OWN = '#include "cachesvc/base/x.h"\n'
HEADER_CASES = [
    ("another include first", "// x\n#include <vector>\n" + OWN, 1),
    ("an include in a comment first", f"// x\n/*\n{OWN}*/\n#include <vector>\n" + OWN, 1),
    ("a line comment first", f"// {OWN}#include <vector>\n" + OWN, 1),
    ("a macro first", "// x\n#define Y 1\n" + OWN, 1),
    ("a declaration first", "// x\nnamespace std { template <class T> class vector; }\n" + OWN, 1),
    ("a longer name first", '// x\n#include "cachesvc/base/x.hpp"\n' + OWN, 1),
    ("no file that the build compiles", None, 1),
    # Here the build itself would fail, so the check may leave the header to it.
    ("its own file first", "// x\n\n" + OWN, 0),
]


def run_headers(source, flags=""):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "cachesvc/base").mkdir(parents=True)
        (root / "cachesvc/base/x.h").write_text(NEEDS_VECTOR)
        # The file stands there in any case; only a file in compile_commands.json is compiled.
        path = root / "cachesvc/base/x.cc"
        path.write_text(source or OWN)
        entry = {"directory": folder, "file": str(path), "command": f"c++ {flags} -I{folder} -std=gnu++20 -c {path}"}
        (root / "compile_commands.json").write_text(json.dumps([entry] if source else []))
        return subprocess.run([sys.executable, HERE / "headers.py", folder, folder, COMPILER],
                              capture_output=True, text=True)


def run(check, name, text):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        (root / "CMakeLists.txt").write_text("# x\n")
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_text(text)
        return subprocess.run([sys.executable, HERE / f"{check}.py", folder],
                              capture_output=True, text=True)


failures = []
for check, name, text in CASES:
    done = run(check, name, text)
    if done.returncode != 1:
        failures.append(f"{check} did not see the fault in {name}: {done.stdout}{done.stderr}")
for check in ("layers", "bans", "lengths", "words"):
    done = run(check, "cachesvc/base/x.h", CLEAN)
    if done.returncode != 0:
        failures.append(f"{check} complains about a clean file: {done.stdout}{done.stderr}")
for name, source, want in HEADER_CASES:
    done = run_headers(source)
    if done.returncode != want:
        failures.append(f"headers, {name}: exit {done.returncode}, not {want}: {done.stdout}{done.stderr}")
if run_headers(OWN, "-include vector").returncode != 1:
    failures.append("headers did not see the fault that a forced include hides")
print("\n".join(failures) or f"{len(CASES) + len(HEADER_CASES)} planted faults seen")
sys.exit(1 if failures else 0)
