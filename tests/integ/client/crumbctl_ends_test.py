#!/usr/bin/env python3
"""How crumbctl ends when its reader or its user goes: closed pipes and Ctrl-C, against a real crumbd and a silent one.

    crumbctl_ends_test.py CRUMBD CRUMBCTL
"""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

CLOSED_PIPE = 141  # what a shell reports of a writer whose reader went
LAYOUT = """\
name: small
model: org/small
revision: r1
groups:
  - {kind: gqa, kv_heads: 8, k_dim: 128, v_dim: 128, layers: 0-7}
page_tokens: 64
codec: raw
"""
PAGE_BYTES = 8 * 2 * 8 * 64 * 128 * 2  # more than a pipe holds
CONFIG = """\
data_dir: {dir}/data
listen: {{grpc: 127.0.0.1:0, http: 127.0.0.1:0, socket: {dir}/s}}
pool: {{dram_bytes: 64MiB}}
nvme: {{bytes: 64MiB, segment_bytes: 4MiB}}
log: {{level: warning}}
"""


def start(*command, **options):
    # A shell that starts something in the background would leave SIGINT ignored.
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, restore_signals=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **options)


def closed_pipe(*command, read=0):
    """Exit code and words of a command whose reader takes `read` bytes and goes."""
    reader, writer = os.pipe()
    process = start(*command, stdout=writer)
    os.close(writer)
    if read:
        assert os.read(reader, read)
    os.close(reader)
    _, words = process.communicate(timeout=60)
    return process.returncode, words


def check_closed_pipes(ctl, folder):
    page = os.path.join(folder, "page")
    with open(page, "wb") as out:
        out.write(bytes(PAGE_BYTES))
    with open(os.path.join(folder, "layout.yaml"), "w") as out:
        out.write(LAYOUT)
    for command in (("layout", "add", os.path.join(folder, "layout.yaml")),
                    ("put", "--layout", "small", "--key", "k", page)):
        done = subprocess.run([*ctl, *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
    get = (*ctl, "get", "--layout", "small", "--key", "k", "-o", "-")
    # Words of the daemon, of the parser, and a page that does not fit into the pipe.
    for command in ((*ctl, "status"), (*ctl, "--json", "status"), (*ctl, "layout", "ls"), (*ctl, "--help"),
                    (*ctl, "bench", "--help"), get):
        assert closed_pipe(*command) == (CLOSED_PIPE, ""), (command, closed_pipe(*command))
    assert closed_pipe(*get, read=16) == (CLOSED_PIPE, "")
    # What was wrong stays what it was: the pipe does not hide it.
    code, words = closed_pipe(*ctl, "get", "--layout", "small", "--key", "absent", "-o", "-")
    assert code == 1 and "miss" in words, (code, words)
    code, words = closed_pipe(*ctl, "nonsense")
    assert code == 2 and words, (code, words)
    # A full disk is no closed pipe.
    with open("/dev/full", "w") as full:
        done = subprocess.run([*ctl, "status"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode == 1 and "could not be written" in done.stderr, done
        done = subprocess.run(get, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert done.returncode in (1, 2) and "No space left" in done.stderr, done


def interrupt(process, code):
    process.send_signal(signal.SIGINT)
    out, words = process.communicate(timeout=60)
    assert process.returncode == code, (process.returncode, out, words)
    assert "terminate" not in words and "backtrace" not in words and "SIG" not in words, words
    return out, words


def check_ctrl_c_of_a_silent_server(crumbctl, folder):
    """Takes connections and says nothing: every command waits, and Ctrl-C ends it."""
    path = os.path.join(folder, "silent")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        for command in (("status",), ("layout", "ls"), ("flush",)):
            process = start(crumbctl, "--deadline-ms", "600000", "--server", "unix:" + path, *command,
                            stdout=subprocess.PIPE)
            taken, _ = server.accept()
            with taken:
                interrupt(process, -signal.SIGINT)


def values(ctl):
    done = subprocess.run([*ctl, "--json", "status"], capture_output=True, text=True, timeout=60)
    document = json.loads(done.stdout)
    return document["operations"]["put"]["requests"], sum(t["pages"] for t in document["tiers"].values())


def wait_for_puts(ctl, more_than):
    """Until the daemon took a put, which says that the benchmark moves pages; asking takes its time, so no sleep."""
    for _ in range(2000):
        if values(ctl)[0] > more_than:
            return
    raise SystemExit("the benchmark did not begin")


def check_ctrl_c(ctl, folder):
    out = os.path.join(folder, "waited")
    process = start(*ctl, "--deadline-ms", "600000", "get", "--layout", "small", "--key", "absent", "--wait", "600000",
                    "-o", out, stdout=subprocess.PIPE)
    while not json.loads(subprocess.run([*ctl, "--json", "status"], capture_output=True, text=True,
                                        timeout=60).stdout)["operations"]["get"]["in_flight"]:
        assert process.poll() is None
    interrupt(process, -signal.SIGINT)
    assert not [name for name in os.listdir(folder) if name.startswith("waited")], os.listdir(folder)
    # A benchmark ends early: report when it measured, and no page of it stays.
    before, pages = values(ctl)
    process = start(*ctl, "bench", "put", "--transport", "grpc", "--value-bytes", "4096", "--seconds", "600",
                    stdout=subprocess.PIPE)
    wait_for_puts(ctl, before)
    text, _ = interrupt(process, 0)
    assert "pages" in text, text
    assert values(ctl)[1] == pages, values(ctl)
    before = values(ctl)[0]
    process = start(*ctl, "bench", "get", "--transport", "grpc", "--value-bytes", "4096", "--keys", "4194304",
                    "--seconds", "600", stdout=subprocess.PIPE)
    wait_for_puts(ctl, before)
    text, words = interrupt(process, 130)
    assert not text and "interrupted" in words, (text, words)
    assert values(ctl)[1] == pages, values(ctl)


def pins(ctl):
    done = subprocess.run([*ctl, "--json", "status"], capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)["clients"]["pins"]


def hold(ctl, ttl=600000, names=("k",)):
    """A crumbctl that holds pages, from when it says so."""
    process = start(*ctl, "pin", "--layout", "small", "--ttl", str(ttl), *names, stdout=subprocess.PIPE)
    line = process.stderr.readline()
    assert line.startswith(f"holding {len(names)} page") and line.endswith("; Ctrl-C lets go\n"), line
    return process


def check_pins(ctl, folder):
    page = os.path.join(folder, "page")
    for key in ("k", "l"):
        subprocess.run([*ctl, "put", "--layout", "small", "--key", key, page], check=True, capture_output=True, timeout=60)
    for number in (signal.SIGINT, signal.SIGTERM):
        process = hold(ctl, names=("k", "l"))
        assert pins(ctl) == 2, pins(ctl)
        process.send_signal(number)
        out, words = process.communicate(timeout=60)
        assert process.returncode == 128 + number and not words, (process.returncode, words)
        assert out.count(" ok ") == 2, out
        assert pins(ctl) == 0, pins(ctl)
    # To its end: past one renewal.
    process = hold(ctl, ttl=1200)
    assert pins(ctl) == 1, pins(ctl)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 0 and not words, (process.returncode, words)
    assert pins(ctl) == 0, pins(ctl)
    # A page that somebody deletes is not held, and said so.
    process = hold(ctl)
    subprocess.run([*ctl, "rm", "--layout", "small", "k"], check=True, capture_output=True, timeout=60)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 1 and "k is not held any more: miss" in words, (process.returncode, words)
    assert pins(ctl) == 0, pins(ctl)


def check_pin_of_a_lost_daemon(ctl, daemon):
    process = hold(ctl, names=("l",))
    daemon.kill()
    _, words = process.communicate(timeout=60)
    assert process.returncode == 3 and words, (process.returncode, words)


def main(crumbd, crumbctl):
    with tempfile.TemporaryDirectory(prefix="crumb-ends-") as folder:
        with open(os.path.join(folder, "crumbd.yaml"), "w") as out:
            out.write(CONFIG.format(dir=folder))
        ctl = (crumbctl, "--server", f"unix:{folder}/s")
        with open(os.path.join(folder, "log"), "wb") as log:
            daemon = subprocess.Popen([crumbd, "--config", os.path.join(folder, "crumbd.yaml")],
                                      stdout=subprocess.PIPE, stderr=log, text=True)
            try:
                line = daemon.stdout.readline()
                assert line.startswith("crumbd ready "), (line, open(log.name).read())
                check_closed_pipes(ctl, folder)
                check_ctrl_c_of_a_silent_server(crumbctl, folder)
                check_ctrl_c(ctl, folder)
                check_pins(ctl, folder)
                check_pin_of_a_lost_daemon(ctl, daemon)
            finally:
                daemon.terminate()
                daemon.wait(timeout=60)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:3])
