#!/usr/bin/env python3
"""clang-format has nothing to change."""
import subprocess
import sys

import tree


def main(root, clang_format):
    problems = []
    names = [str(tree.pathlib.Path(root) / p) for p in tree.files(root)]
    for start in range(0, len(names), 50):
        done = subprocess.run([clang_format, "--dry-run", "-Werror", *names[start:start + 50]],
                              capture_output=True, text=True)
        problems += [line for line in done.stderr.splitlines() if ": error:" in line]
    tree.report("format (run clang-format -i)", problems)


if __name__ == "__main__":
    main(*sys.argv[1:3])
