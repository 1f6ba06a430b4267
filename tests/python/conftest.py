"""A real crumbd on a socket of its own, that tests may kill and start again."""
import os
import signal
import subprocess
import tempfile

import pytest

import crumbkv

CONFIG = {
    "listen.grpc": "off", "listen.http": "off", "pool.dram_bytes": "32MiB", "nvme.bytes": "64MiB",
    "nvme.segment_bytes": "4MiB", "codec.int2": "accept", "codec.windows": "off", "log.level": "warning",
}


class Daemon:
    def __init__(self, folder):
        self.folder = folder
        self.server = f"unix:{folder}/s"
        self.process = None

    def start(self):
        command = [os.environ["CRUMBD"], "--set", f"data_dir={self.folder}/data", "--set", f"listen.socket={self.folder}/s"]
        for key, value in CONFIG.items():
            command += ["--set", f"{key}={value}"]
        environment = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        with open(f"{self.folder}/log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        line = self.process.stdout.readline()
        if not line.startswith("crumbd ready"):
            self.process.kill()
            self.process.wait()
            raise RuntimeError(open(f"{self.folder}/log").read()[-2000:])

    def end(self, number=signal.SIGTERM):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(60)
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="module")
def daemon():
    with tempfile.TemporaryDirectory(prefix="crumb-py-") as folder:
        one = Daemon(folder)
        one.start()
        yield one
        one.end()


@pytest.fixture
def client(daemon):
    with crumbkv.open(daemon.server, deadline=20.0) as one:
        yield one


def register(client, name="raw", codec="raw", **more):
    fields = dict(name=name, model="example/model", revision="1", namespace=name, kv_heads=4, head_dim=64, layers=3,
                  page_tokens=16, codec=codec)
    fields.update(more)
    return client.register_layout(**fields)


def lend(client, layout, pages=8):
    memory = client.alloc(pages * layout.page_bytes)
    return client.lend(layout, memory), memory
