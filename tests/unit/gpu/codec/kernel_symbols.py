#!/usr/bin/env python3
"""The kernel files, compiled with flags of their own, offer nothing that another file could be linked to by accident.

A weak or unique symbol in one of them (an inline function of a shared header, say) may be the copy that the linker keeps
for the whole program, which would then run instructions that the processor lacks.
    kernel_symbols.py NM ARCHIVE
"""
import re
import subprocess
import sys

MEMBER = re.compile(r"(avx\w+_kernels\.cc\.o):")


def main(nm, archive):
    listed = subprocess.run([nm, "--defined-only", "-A", archive], check=True, capture_output=True, text=True).stdout
    members, bad = set(), []
    for line in listed.splitlines():
        found = MEMBER.search(line)
        if found is None:
            continue
        members.add(found.group(1))
        kind, name = line[found.end():].split()[-2:]
        if kind in "WVuwv":
            bad.append(f"{found.group(1)}: {name} may replace the copy of another file")
    if not members:
        print("this build has no vector kernels")
        return 77
    print("\n".join(bad) or f"{len(members)} kernel files define no symbol that others share")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
