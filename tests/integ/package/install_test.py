#!/usr/bin/env python3
"""Installs the client into a prefix of its own and builds a small project against it: once by the
CMake package, once by pkg-config. Then checks that the library shows our symbols only.
usage: install_test.py BUILD_DIR CONSUMER_DIR CXX [SANITIZERS]"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


def run(command, **options):
    print("+", " ".join(str(word) for word in command), flush=True)
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True, **options)
    if done.returncode != 0:
        sys.exit(f"failed ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout


def main(build, consumer, compiler, sanitizers):
    flags = [f"-fsanitize={sanitizers}"] if sanitizers else []
    with tempfile.TemporaryDirectory(prefix="crumb-install-") as scratch:
        prefix = pathlib.Path(scratch) / "prefix"
        run(["cmake", "--install", build, "--prefix", prefix, "--component", "client"])
        # A moved tree must work as well: nothing may hold the prefix.
        moved = pathlib.Path(scratch) / "elsewhere"
        shutil.move(prefix, moved)
        tree = pathlib.Path(scratch) / "consumer-build"
        run(["cmake", "-S", consumer, "-B", tree, f"-DCMAKE_PREFIX_PATH={moved}",
             f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_CXX_FLAGS={' '.join(flags)}"])
        run(["cmake", "--build", tree])
        print(run([tree / "consumer"]))
        library_dir = next(moved.glob("lib*/**/libcrumb_client.so")).parent
        environment = dict(os.environ, PKG_CONFIG_PATH=str(library_dir / "pkgconfig"))
        words = run(["pkg-config", "--cflags", "--libs", "crumb"], env=environment).split()
        binary = pathlib.Path(scratch) / "by-pkg-config"
        run([compiler, "-std=c++20", *flags, pathlib.Path(consumer) / "main.cc", "-o", binary, *words,
             f"-Wl,-rpath,{library_dir}"])
        print(run([binary]))
        symbols = run(["nm", "-D", "--defined-only", "-C", library_dir / "libcrumb_client.so"])
        foreign = [line for line in symbols.splitlines()
                   if line.split(" ", 2)[1] in "TD" and "crumb::client::" not in line]
        if foreign and not sanitizers:
            sys.exit("the library shows symbols that are not its API:\n" + "\n".join(foreign[:20]))
        print(f"{len(symbols.splitlines())} symbols")


if __name__ == "__main__":
    main(*sys.argv[1:4], sys.argv[4] if len(sys.argv) > 4 else "")
