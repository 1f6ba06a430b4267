#!/usr/bin/env python3
"""Constructs that docs/architecture.md rules out, found in code with comments and strings removed."""
import re
import sys

import tree

CORE = r"^(cachesvc/core|storage|gpu|cachesvc/net)/"
PRODUCT = r"^(cachesvc|gpu|storage|client)/"
BANS = [
    # (pattern, where, except, why)
    (r"\bstd::(recursive_|shared_|timed_)?mutex\b|\babsl::Mutex\b|\bstd::condition_variable\b",
     CORE, None, "no locks here: one thread owns a shard"),
    (r"\bgetenv\s*\(", PRODUCT, r"^cachesvc/server/config|^client/(src|cli)/",
     "the environment is read in cachesvc/server/config.cc only"),
    (r"\bfriend\s+class\b|gtest_prod\.h|\bFRIEND_TEST\b", PRODUCT, None,
     "no access to privates for tests or others"),
    (r"\bsleep_for\b|\busleep\s*\(|\bsleep\s*\(|\bsleep_until\b", r"^tests/unit/|^tests/sim/|^tests/conformance/",
     None, "tests do not sleep: use the clock seam"),
    (r"\bstd::(shuffle|hash\s*<|random_device|mt19937|uniform_\w+_distribution)", PRODUCT, None,
     "must mean the same on two machines: base/rng.h, base/hash.h"),
    (r"\babsl::Hash\b", PRODUCT, None, "not stable between processes: base/hash.h"),
    (r"\brand\s*\(\s*\)|\bsrand\s*\(", r".", None, "use base/rng.h"),
    (r"\bdynamic_cast\b", PRODUCT, None, "a seam that needs it is the wrong seam"),
    (r"\busing\s+namespace\b", r"\.(h|cuh)$", None, "not in headers"),
    (r"^\s*#\s*if(n?def)?\b(?!.*_(H|CUH)_$)", PRODUCT,
     r"^cachesvc/base/config\.h$|^gpu/codec/cuda_tuning\.(h|cuh)$",
     "variants are files picked by CMake"),
    (r"<<<[^,]*(,[^,]*){0,2}>>>", PRODUCT, None, "kernels name their stream: never the default stream"),
    (r"\bcuda\w*Synchronize\b|\bcudaMalloc(Async|Managed)\b", r"^gpu/", r"/cuda_(queue|bench)",
     "nothing waits for a GPU or allocates behind the pool's back"),
    (r"\bstrcpy\s*\(|\bstrcat\s*\(|\bsprintf\s*\(|\bgets\s*\(|\batoi\s*\(|\batol\s*\(", r".", None,
     "unbounded or unchecked C function"),
]


def main(root):
    problems = []
    for path in tree.files(root):
        name = str(path)
        raw = (tree.pathlib.Path(root) / path).read_text()
        lines = tree.strip(raw).splitlines()
        for pattern, where, exempt, why in BANS:
            if not re.search(where, name) or (exempt and re.search(exempt, name)):
                continue
            for number, line in enumerate(lines, 1):
                if re.search(pattern, line):
                    problems.append(f"{name}:{number}: {line.strip()[:60]}: {why}")
        for number, line in enumerate(raw.splitlines(), 1):
            if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
                problems.append(f"{name}:{number}: unfinished: {line.strip()[:60]}")
        if not raw.lstrip().startswith(("//", "/*")):
            problems.append(f"{name}:1: a file opens with a comment: what it is, whose thread it is")
    tree.report("bans", problems)


if __name__ == "__main__":
    main(sys.argv[1])
