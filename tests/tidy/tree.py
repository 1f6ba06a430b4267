"""The source files of the project, and how every tidy check reports."""
import pathlib
import re
import sys

TOP = ("proto", "cachesvc", "gpu", "storage", "client", "deploy", "tests")
CODE = {".h", ".cc", ".cu", ".cuh"}


def files(root, tops=TOP, suffixes=CODE):
    """Files under the given top-level folders, relative to root, sorted."""
    root = pathlib.Path(root)
    found = []
    for top in tops:
        for path in (root / top).rglob("*"):
            if path.suffix in suffixes and path.is_file() and "build" not in path.parts:
                found.append(path.relative_to(root))
    return sorted(found)


def strip(text):
    """Code without comments and string literals, newlines kept."""
    pattern = re.compile(
        r'R"(?P<d>[^()\s\\]{0,16})\(.*?\)(?P=d)"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'
        r"(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S)

    def blank(match):
        text = match.group(0)
        keep = '""' if text.startswith(('"', 'R"')) else ""
        return keep + "\n" * text.count("\n")

    return pattern.sub(blank, text)


def report(name, problems):
    """Prints the problems and exits 1 if there are any."""
    for problem in problems:
        print(problem)
    print(f"{name}: {len(problems)} problem(s)")
    sys.exit(1 if problems else 0)
