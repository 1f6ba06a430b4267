#!/usr/bin/env python3
"""The tidy checks can fail: each is run on a small tree with one planted fault, and on a clean one."""
import pathlib
import subprocess
import sys
import tempfile

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
]


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
print("\n".join(failures) or f"{len(CASES)} planted faults seen")
sys.exit(1 if failures else 0)
