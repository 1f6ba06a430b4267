#!/usr/bin/env python3
"""Words of public claims: kernels and functions are not called fast; headers guard themselves."""
import re
import sys

import tree


def main(root):
    problems = []
    for path in tree.files(root):
        name = str(path)
        text = (tree.pathlib.Path(root) / path).read_text()
        code = tree.strip(text)
        for number, line in enumerate(code.splitlines(), 1):
            if re.search(r"\b(class|struct|void|auto|bool|int\w*|uint\w*)\s+\w*([Ff]ast|[Oo]ptimi[sz]ed)\w*\b", line):
                problems.append(f"{name}:{number}: names do not claim speed: {line.strip()[:60]}")
        if name.endswith((".h", ".cuh")):
            trimmed = re.sub(r"^client/include/", "", name)
            guard = "CRUMB_" + re.sub(r"[^A-Z0-9]", "_", re.sub(r"^crumb/", "", trimmed).upper()) + "_"
            if f"#ifndef {guard}\n#define {guard}\n" not in text:
                problems.append(f"{name}: include guard must be {guard}")
    tree.report("words", problems)


if __name__ == "__main__":
    main(sys.argv[1])
