"""A private crumbd, started for one client and ended with it."""
from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from typing import List, Mapping, Optional

from ._errors import StartError

# sh stands between, so that the daemon ends when this process does, however it dies: its stdin closes.
_GUARD = '"$@" </dev/null & pid=$!; echo "pid $pid"; exec >&-; read _; kill -TERM $pid 2>/dev/null; wait $pid'
_READY_SECONDS = 60.0
_END_SECONDS = 15.0


def find_crumbd(program: Optional[str] = None) -> str:
    """The binary: ``program``, else $CRUMBD, else crumbd of $PATH."""
    named = program or os.environ.get("CRUMBD")
    if named:
        found = shutil.which(named)
        if found is None:
            where = "crumbd=" if program else "$CRUMBD"
            raise StartError(f"{where}: {named} is no program; give the path of crumbd (build/release/cachesvc/server/"
                             "crumbd after deploy/quickstart)")
        return found
    found = shutil.which("crumbd")
    if found is None:
        raise StartError("crumbd was not found: put it on $PATH, set $CRUMBD to its path, or pass crumbd= "
                         "(build/release/cachesvc/server/crumbd after deploy/quickstart)")
    return found


class PrivateDaemon:
    """Its socket, data and log lie in a directory of its own, which goes with it."""

    def __init__(self, program: Optional[str], pool: str, config: Mapping[str, object]) -> None:
        crumbd = find_crumbd(program)
        self.pid = 0
        self._owner = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="crumbkv-")
        self._process: Optional[subprocess.Popen[str]] = None
        self._rope = -1
        try:
            self._start(crumbd, self._command(crumbd, pool, config))
        except BaseException:
            self.stop()
            raise

    @property
    def server(self) -> str:
        return f"unix:{self._folder}/s"

    def _command(self, crumbd: str, pool: str, config: Mapping[str, object]) -> List[str]:
        keys = {
            "data_dir": f"{self._folder}/data",
            "listen.grpc": "off",
            "listen.http": "off",
            "listen.socket": f"{self._folder}/s",
            "pool.dram_bytes": pool,
            "nvme.bytes": "0",
            "ucx.enabled": "false",
            **config,
        }
        command = [crumbd]
        for key, value in keys.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            command += ["--set", f"{key}={text}"]
        return command

    def _start(self, crumbd: str, command: List[str]) -> None:
        read_end, self._rope = os.pipe()
        try:
            with open(f"{self._folder}/log", "wb") as log:
                self._process = subprocess.Popen(
                    ["sh", "-c", _GUARD, "crumbkv", *command], stdin=read_end, stdout=subprocess.PIPE, stderr=log,
                    text=True, start_new_session=True)
        finally:
            os.close(read_end)
        out = self._process.stdout
        assert out is not None
        timer = time.monotonic() + _READY_SECONDS
        for line in out:
            if line.startswith("pid "):
                self.pid = int(line.split()[1])
            if line.startswith("crumbd ready"):
                return
            if time.monotonic() > timer:
                break
        raise StartError(f"{crumbd} did not start: {self._last_words()}")

    def _last_words(self) -> str:
        try:
            with open(f"{self._folder}/log", encoding="utf-8", errors="replace") as log:
                lines = [line.strip() for line in log if line.strip()]
        except OSError:
            lines = []
        return lines[-1] if lines else "it said nothing"

    def stop(self) -> None:
        """Ends the daemon and removes its directory. Idempotent; nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        if self._rope >= 0:
            os.close(self._rope)
            self._rope = -1
        if self._process is not None:
            process, self._process = self._process, None
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                if self.pid:
                    os.kill(self.pid, signal.SIGKILL)
                process.wait(_END_SECONDS)
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
