#!/usr/bin/env python3
"""Every header compiles alone, with the flags that the build uses for a file of its folder."""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

import tree


def flags_by_folder(build):
    """Longest folder prefix -> include and define flags, from compile_commands.json."""
    table = {}
    for entry in json.loads((pathlib.Path(build) / "compile_commands.json").read_text()):
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
    table = flags_by_folder(build)
    jobs = []
    for path in tree.files(root):
        if path.suffix != ".h":
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

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        problems = [p for p in pool.map(run, jobs) if p]
    print(f"{len(jobs)} headers")
    tree.report("headers", problems)


if __name__ == "__main__":
    main(*sys.argv[1:4])
