"""The traces of tests/data/traces replayed by crumbctl, for the bars of eviction and of the NVMe tier."""

import json
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
TRACES = ("mooncake_conversation", "mooncake_synthetic", "lmcache_agent")
PERCENTS = (1, 5, 10, 20, 50)
TOKEN_BYTES = {"lmcache_agent": 4096}  # of small blocks; sizes in bytes do not matter here


def crumbctl():
    build = pathlib.Path(os.environ.get("CRUMB_BUILD", ROOT / "build/release"))
    program = build / "client/cli/crumbctl"
    if not program.exists():
        sys.exit(f"no {program}: build the target crumbctl first")
    return program


def lines_of(trace):
    with lzma.open(ROOT / f"tests/data/traces/{trace}.jsonl.xz", "rt") as file:
        return file.readlines()


def replay(trace, lines, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(lines)
        file.flush()
        command = [crumbctl(), "--json", "replay", file.name, "--precision", "raw", *options]
        command += ["--token-bytes", str(TOKEN_BYTES.get(trace, 131072))]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def default_of(key):
    """What the daemon does unless told otherwise: a test holds the document against the daemon."""
    text = (ROOT / "docs/configuration.md").read_text()
    return re.search(rf"^\| `{re.escape(key)}` \| `(\w+)` \|", text, re.MULTILINE).group(1)
