"""What the package is: light to import, free of UCX, typed, documented, with one list of pins."""
import inspect
import os
import pathlib
import re
import subprocess
import sys

import pytest

import crumbkv

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_import_brings_neither_numpy_nor_torch_nor_ucx():
    code = ("import crumbkv, sys; c = crumbkv.open(start=True, pool='16MiB'); "
            "print([m for m in ('numpy', 'torch', 'asyncio', 'ctypes') if m in sys.modules], "
            "[l for l in open('/proc/self/maps') if '/libuc' in l], c.data_plane); c.close()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] [] shm "), done.stdout


def test_types_are_right():
    mypy = pytest.importorskip("mypy.api")
    out, errors, code = mypy.run(["--strict", "--no-incremental", "--cache-dir=/dev/null", "-p", "crumbkv"])
    assert code == 0, out + errors


def test_stubs_name_what_is_there():
    text = (pathlib.Path(crumbkv.__file__).parent / "_crumbkv.pyi").read_text()
    from crumbkv import _crumbkv
    holder, missing = None, []
    for line in text.splitlines():
        found = re.match(r"(class (\w+)|def (\w+)|    def (\w+)|    (\w+)(:| =))", line)
        if not found:
            continue
        if found.group(2):
            holder = getattr(_crumbkv, found.group(2), None)
        name = found.group(2) or found.group(3)
        inner = found.group(4) or found.group(5)
        if name and not hasattr(_crumbkv, name) or inner and not hasattr(holder, inner):
            missing.append(line.strip())
    missing = [line for line in missing if "__buffer__" not in line and "__iter__" not in line]
    assert not missing
    unnamed = [name for name in vars(_crumbkv) if not name.startswith("_") and not re.search(rf"\b{name}\b", text)]
    assert not unnamed


def test_everything_public_is_documented():
    guide = (ROOT / "docs/python.md").read_text()
    for name in crumbkv.__all__:
        assert inspect.getdoc(getattr(crumbkv, name)), name
        assert name in guide or name.endswith("Error"), name
    for name, member in vars(crumbkv.Client).items():
        if name.startswith("_"):
            continue
        assert inspect.getdoc(member), name
        assert name in guide, name
        if inspect.isfunction(member):
            for parameter in inspect.signature(member).parameters:
                assert parameter == "self" or f"`{parameter}`" in guide, f"{name}({parameter})"
    for parameter in inspect.signature(crumbkv.open).parameters:
        assert f"`{parameter}`" in guide, f"open({parameter})"


def section(name):
    text = (ROOT / "deploy/packages.txt").read_text()
    found = re.search(rf"^\[{re.escape(name)}\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S)
    return [line for line in found.group(1).split("\n") if line and not line.startswith("#")]


def test_the_build_takes_the_versions_of_the_one_list():
    text = (ROOT / "client/python/pyproject.toml").read_text()
    wanted = re.search(r"^requires = \[(.*?)\]", text, re.M).group(1)
    assert sorted(re.findall(r'"(.*?)"', wanted)) == sorted(section("pip-build"))


def test_the_guide_runs(tmp_path):
    guide = (ROOT / "docs/python.md").read_text()
    programs = re.findall(r"```python\n(.*?)```", guide, re.S)
    assert len(programs) >= 2
    for number, program in enumerate(programs):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, f"program {number}:\n{program}\n{done.stderr}"
