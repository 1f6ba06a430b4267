#!/usr/bin/env python3
"""Installs the package out of a build into a virtual environment of that build, then runs pytest.

    run.py BUILD_DIR CRUMBD CXX SANITIZERS [PYTEST_ARGUMENT]...

With the address sanitizer the module and the client library have it, too: it is loaded into Python before them.
Exit 77 with the reason where no environment can be made (no venv, no packages).
"""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
# RSS is that of the sanitizers as well: freed memory waits in their quarantine.
SANITIZED = {
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:intercept_tls_get_addr=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "CRUMB_PYTHON_RSS_KIB": "8192",
    "PYTHONMALLOC": "pymalloc",
}


def library(compiler, name):
    done = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    return os.path.realpath(done.stdout.strip())


def main(build, crumbd, compiler, sanitizers, *more):
    build = pathlib.Path(build).resolve()
    venv = build / "python-venv"
    made = subprocess.run([str(ROOT / "deploy/install_packages"), "--venv", str(venv), "pip-build", "pip-test"])
    if made.returncode != 0:
        print("skipped: no virtual environment with the packages of deploy/packages.txt; the reason is above")
        sys.exit(77)
    python = str(venv / "bin/python")
    environment = dict(os.environ, CRUMB_BUILD=str(build))
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-build-isolation",
                    "--no-deps", "--force-reinstall", "-C", "cmake.define.CRUMB_WERROR=ON",
                    "-C", f"build-dir={build}/python-module", "-C", f"cmake.define.CMAKE_CXX_COMPILER={compiler}",
                    str(ROOT / "client/python")], check=True, env=environment)
    environment = dict(os.environ, CRUMBD=crumbd, PYTHONDONTWRITEBYTECODE="1")
    if "address" in sanitizers:
        environment.update(SANITIZED, LD_PRELOAD=f"{library(compiler, 'libasan.so')}:{library(compiler, 'libstdc++.so')}")
    done = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5",
                           str(ROOT / "tests/python"), *more], env=environment)
    # pytest's 5: no test ran, which is no success.
    sys.exit(1 if done.returncode == 5 else done.returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
