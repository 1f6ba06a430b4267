#!/usr/bin/env python3
"""Every header is self-contained.

A header that a compiled file includes before anything else is proven so by the build itself; only the other headers
are compiled alone here, with the flags that the build uses for a file of their folder.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import tree


# Nothing but comments and blank lines may stand before the include: a macro or a declaration could help the header.
FIRST_INCLUDE = re.compile(r'(?:\s|//[^\n]*\n|/\*.*?\*/)*#[ \t]*include[ \t]*"([^"\n]+)"', re.S)


def proven_by_build(root, entries):
    """Headers that a file of this build includes first, before any other text, relative to root."""
    root = pathlib.Path(root).resolve()
    proven = set()
    for entry in entries:
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        args = shlex.split(entry["command"])
        # A forced include (a precompiled header is one) comes before the first line and proves nothing.
        if root not in path.parents or not path.is_file() or any(a.startswith(("-include", "-imacros")) for a in args):
            continue
        first = FIRST_INCLUDE.match(path.read_text())
        if first is None:
            continue
        name = pathlib.Path(first.group(1))
        public = pathlib.Path("client/include") / name
        proven.add(str(public if (root / public).is_file() else name))
    return proven


def flags_by_folder(entries):
    """Longest folder prefix -> include and define flags, from compile_commands.json."""
    table = {}
    for entry in entries:
        args = shlex.split(entry["command"])
        keep, index = [], 0
        while index < len(args):
            arg = args[index]
            if arg in ("-isystem", "-I", "-D"):
                keep += args[index:index + 2]
                index += 1
            elif arg.startswith(("-I", "-D", "-std=", "-isystem")):
                keep.append(arg)
            index += 1
        table.setdefault(str(pathlib.Path(entry["file"]).parent), set()).update([tuple(keep)])
    return table


def main(root, build, compiler):
    root = pathlib.Path(root).resolve()  # as compile_commands.json names it
    entries = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    table = flags_by_folder(entries)
    proven = proven_by_build(root, entries)
    headers = [path for path in tree.files(root) if path.suffix == ".h"]
    jobs = []
    for path in headers:
        if str(path) in proven:
            continue
        # The Python module is a project of its own: its build proves its headers, which need nanobind.
        if str(path).startswith("client/python"):
            continue
        folder = (pathlib.Path(root) / path).parent
        if str(path).startswith("client/include"):
            folder = pathlib.Path(root) / "client/src"
        flags = sorted(table.get(str(folder), set()), key=len)
        extra = list(flags[-1]) if flags else [f"-I{root}", "-std=gnu++20"]
        # -O0 and no sanitizers: only the declarations matter.
        jobs.append((str(path), [compiler, *extra, f"-I{root}", "-Wall", "-Wextra", "-Wno-pragma-once-outside-header",
                                 "-fsyntax-only", "-x", "c++", str(pathlib.Path(root) / path)]))
    problems = []

    def run(job):
        name, command = job
        done = subprocess.run(command, capture_output=True, text=True)
        return None if done.returncode == 0 else f"{name} does not compile alone:\n{done.stderr[:600]}"

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        problems = [p for p in pool.map(run, jobs) if p]
    print(f"{len(headers)} headers, {len(jobs)} of them compiled alone")
    tree.report("headers", problems)


if __name__ == "__main__":
    main(*sys.argv[1:4])
