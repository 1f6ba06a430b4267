#!/usr/bin/env python3
"""Headers <= 150 lines, functions <= 70, files <= 600, root CMakeLists.txt <= 120."""
import re
import sys

import tree

HEADER, FUNCTION, FILE, ROOT_CMAKE = 150, 70, 600, 120


def long_functions(text):
    """(line, length) of brace blocks at namespace or class level that exceed FUNCTION lines."""
    depth_names = []  # True for namespace / class / enum / extern blocks, False for bodies
    found = []
    pending = ""
    line = 1
    start = 0
    for char in text:
        if char == "\n":
            line += 1
        if char == "{":
            head = pending.strip()
            outer_is_scope = all(depth_names)
            scope = bool(re.search(r"(^|\s)(namespace|class|struct|union|enum|extern)\b[^;()=]*$", head))
            if outer_is_scope and not scope:
                start = line
            depth_names.append(scope)
            pending = ""
        elif char == "}":
            if depth_names:
                scope = depth_names.pop()
                if not scope and all(depth_names) and line - start - 1 > FUNCTION:
                    found.append((start, line - start - 1))
            pending = ""
        elif char == ";":
            pending = ""
        else:
            pending += char
    return found


def main(root):
    problems = []
    for path in tree.files(root):
        name = str(path)
        text = (tree.pathlib.Path(root) / path).read_text()
        count = text.count("\n")
        if name.endswith(".h") and not name.startswith("tests/") and count > HEADER:
            problems.append(f"{name}: {count} lines; a header fits in {HEADER}")
        if count > FILE and not name.startswith("tests/"):
            problems.append(f"{name}: {count} lines; a file fits in {FILE}: split it by its ideas")
        if not name.startswith("tests/"):
            stripped = re.sub(r"^\s*#.*$", "", tree.strip(text), flags=re.M)
            for start, length in long_functions(stripped):
                if re.search(r"\bk[A-Z]\w*\s*(\[[^\]]*\])*\s*=\s*\{?\s*$",
                             "\n".join(stripped.splitlines()[max(0, start - 2):start])):
                    continue  # a table of constants
                problems.append(f"{name}:{start}: a body of {length} lines; a function fits in {FUNCTION}")
    cmake = (tree.pathlib.Path(root) / "CMakeLists.txt").read_text().count("\n")
    if cmake > ROOT_CMAKE:
        problems.append(f"CMakeLists.txt: {cmake} lines; at most {ROOT_CMAKE}")
    tree.report("lengths", problems)


if __name__ == "__main__":
    main(sys.argv[1])
