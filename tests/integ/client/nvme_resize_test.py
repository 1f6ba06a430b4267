#!/usr/bin/env python3
"""`crumbctl nvme resize` against a live crumbd: up and down, what is refused, and how it ends.

    nvme_resize_test.py CRUMBD CRUMBCTL
"""
import json
import os
import signal
import subprocess
import sys
import tempfile

MIB = 1 << 20
LAYOUT = """\
name: small
model: org/small
revision: r1
groups:
  - {kind: gqa, kv_heads: 2, k_dim: 64, v_dim: 64, layers: 0-1}
page_tokens: 64
codec: raw
"""
PAGE_BYTES = 2 * 2 * 2 * 64 * 64 * 2
CONFIG = """\
data_dir: {dir}/data
listen: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, socket: {dir}/s}}
pool: {{dram_bytes: 32MiB}}
nvme: {{bytes: {bytes}, segment_bytes: 2MiB}}
log: {{level: warning}}
"""
OK, FAILED, USAGE, UNREACHABLE, REFUSED = range(5)


class Daemon:
    def __init__(self, crumbd, crumbctl, folder, size):
        self.folder = folder
        self.ctl = (crumbctl, "--server", f"unix:{folder}/s")
        config = os.path.join(folder, "crumbd.yaml")
        with open(config, "w") as out:
            out.write(CONFIG.format(dir=folder, bytes=size))
        with open(os.path.join(folder, "log"), "ab") as log:
            self.process = subprocess.Popen([crumbd, "--config", config], stdout=subprocess.PIPE, stderr=log, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("crumbd ready "), (line, open(os.path.join(folder, "log")).read())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0

    def run(self, *arguments, code=OK):
        done = subprocess.run([*self.ctl, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, (arguments, done)
        assert "terminate" not in done.stderr and done.stderr.count("\n") <= 3, done
        return done

    def length(self):
        return os.path.getsize(os.path.join(self.folder, "data/nvme/pages.log"))


def put_pages(daemon):
    with open(os.path.join(daemon.folder, "layout.yaml"), "w") as out:
        out.write(LAYOUT)
    daemon.run("layout", "add", os.path.join(daemon.folder, "layout.yaml"))
    for key in range(4):
        path = os.path.join(daemon.folder, f"page{key}")
        with open(path, "wb") as out:
            out.write(bytes([key, 63]) * (PAGE_BYTES // 2))
        daemon.run("put", "--layout", "small", "--key", str(key), "--durable", path)


def check_pages(daemon):
    for key in range(4):
        out = os.path.join(daemon.folder, "out")
        daemon.run("get", "--layout", "small", "--key", str(key), "-o", out)
        with open(out, "rb") as a, open(os.path.join(daemon.folder, f"page{key}"), "rb") as b:
            assert a.read() == b.read(), key


def check_up_and_down(daemon):
    up = daemon.run("nvme", "resize", "64MiB")
    assert "67108864" in up.stderr and "33554432" in up.stderr, up
    assert "nvme.bytes" in up.stderr and "next start" in up.stderr and not up.stdout, up
    assert daemon.length() == 64 * MIB
    check_pages(daemon)
    down = daemon.run("--json", "nvme", "resize", "16MiB")
    assert json.loads(down.stdout) == {
        "bytes": 16 * MIB, "bytes_before": 64 * MIB, "configured_bytes": 32 * MIB}, down
    assert daemon.length() == 16 * MIB
    capacity = json.loads(daemon.run("--json", "status").stdout)["tiers"]["nvme"]["capacity_bytes"]
    assert 0 < capacity < 16 * MIB, capacity
    check_pages(daemon)
    least = daemon.run("nvme", "resize", str(8 * MIB))  # four segments, in plain bytes
    assert daemon.length() == 8 * MIB, least
    back = daemon.run("nvme", "resize", "32MiB")
    assert "warning" not in back.stderr and daemon.length() == 32 * MIB, back
    same = daemon.run("nvme", "resize", "32MiB")
    assert "33554432" in same.stderr, same
    check_pages(daemon)


def check_bad_values(daemon):
    for words in ((), ("abc",), ("-1",), ("64MiBs",), ("",), ("1e9",), ("0x100",), ("1.5GiB",), ("10 gigs",),
                  ("10GB",), ("99999999999TiB",), ("1025TiB",), ("18446744073709551616",), ("0",),
                  ("64MiB", "64MiB")):
        done = daemon.run("nvme", "resize", "--", *words, code=USAGE)
        assert not done.stdout and done.stderr, (words, done)
        if len(words) == 1:
            assert "BYTES" in done.stderr, (words, done)
    daemon.run("nvme", code=USAGE)
    for size in ("1", "7MiB", str(8 * MIB - 1)):
        done = daemon.run("nvme", "resize", size, code=USAGE)
        assert "4 segments of 2097152" in done.stderr, done
    for size in ("1TiB", "1024TiB"):
        done = daemon.run("nvme", "resize", size, code=REFUSED)
        assert "make room" in done.stderr and "pages.log" in done.stderr, done
    assert daemon.length() == 32 * MIB
    check_pages(daemon)


def check_one_at_a_time(daemon):
    """All arrive while the daemon stands still: it is told to which of them that another one is under way."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        asked = [subprocess.Popen([*daemon.ctl, "nvme", "resize", f"{40 + 8 * i}MiB"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for i in range(6)]
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)
    codes = []
    for process in asked:
        _, words = process.communicate(timeout=60)
        codes.append(process.returncode)
        assert process.returncode in (OK, REFUSED), (process.returncode, words)
        assert process.returncode == OK or "being resized: wait" in words, words
    assert OK in codes, codes
    daemon.run("nvme", "resize", "32MiB")
    check_pages(daemon)


def main(crumbd, crumbctl):
    with tempfile.TemporaryDirectory(prefix="crumb-resize-") as folder:
        with Daemon(crumbd, crumbctl, folder, "32MiB") as daemon:
            put_pages(daemon)
            check_up_and_down(daemon)
            check_bad_values(daemon)
            check_one_at_a_time(daemon)
            daemon.run("nvme", "resize", "16MiB")
        with Daemon(crumbd, crumbctl, folder, "32MiB") as daemon:  # the configuration counts again
            assert daemon.length() == 32 * MIB
            check_pages(daemon)
        done = subprocess.run([*daemon.ctl, "nvme", "resize", "64MiB"], capture_output=True, text=True, timeout=60)
        assert done.returncode == UNREACHABLE and "no crumbd answers" in done.stderr, done
        with Daemon(crumbd, crumbctl, folder, "0") as daemon:
            done = daemon.run("nvme", "resize", "64MiB", code=USAGE)
            assert "nvme.bytes" in done.stderr, done
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:3])
