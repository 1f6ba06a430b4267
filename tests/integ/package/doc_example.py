#!/usr/bin/env python3
"""docs/client.md shows docs/examples/*.cc, byte for byte, and crumbctl.md every command.
usage: doc_example.py ROOT"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
doc = (root / "docs/client.md").read_text()
for name in ("first_page", "shared_memory", "gpu_pages"):
    code = (root / f"docs/examples/{name}.cc").read_text()
    if f"```cpp\n{code}```" not in doc:
        sys.exit(f"docs/client.md does not hold docs/examples/{name}.cc as it is: copy it again")
tool = (root / "docs/crumbctl.md").read_text()
commands = set()
for source in (root / "client/cli").glob("*.cc"):
    text = source.read_text()
    commands |= set(re.findall(r'add_subcommand\(\s*"([a-z]+)"', text))
    commands |= set(re.findall(r'AddKeysCommand\(app, "([a-z]+)"', text))
    commands |= set(re.findall(r'AddVerb\(bench, context, BenchVerb::\w+, "([a-z]+)"', text))
missing = sorted(name for name in commands if not re.search(rf"\b{name}\b", tool))
if missing:
    sys.exit(f"docs/crumbctl.md does not name: {missing}")
print(f"{len(commands)} commands documented, the examples are the files")
