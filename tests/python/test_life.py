"""Daemons that die, processes that fork, threads, memory that must outlive its requests."""
import asyncio
import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest

import crumbkv
from conftest import lend, register

CALLS = int(os.environ.get("CRUMB_PYTHON_CALLS", "100000"))
RSS_KIB_MAX = int(os.environ.get("CRUMB_PYTHON_RSS_KIB", "2048"))


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def states_of(pid):
    """Of all threads: a signal that stops a process takes a moment to reach each."""
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as file:
            yield file.read().rsplit(")", 1)[1].split()[0]


def test_a_daemon_killed_in_mid_run(daemon):
    with crumbkv.open(daemon.server, deadline=2.0) as client:
        layout = register(client, "killed")
        region, memory = lend(client, layout)
        view = memoryview(memory)
        view[:4] = b"\x11\x11\x11\x11"
        client.put(region, ["durable"], durable=True).raise_for_status()
        waiting = client.submit_get(region, ["never"], [3], wait=30)
        daemon.end(signal.SIGKILL)
        (lost,) = client.drain(10)
        assert lost.ticket == waiting and lost.code == crumbkv.Code.UNAVAILABLE
        begin = time.monotonic()
        for _ in range(50):
            assert client.get(region, ["durable"], [1]).codes == [crumbkv.Code.UNAVAILABLE]
            assert client.exists(layout, ["durable"]) == [False]
        assert time.monotonic() - begin < 5, "nothing waits for a daemon that is gone"
        with pytest.raises(crumbkv.UnavailableError):
            client.pin(layout, ["durable"], 1)
        with pytest.raises(crumbkv.UnavailableError):
            client.submit_get(region, ["durable"], [1])
        assert not client.connected
        daemon.start()
        assert until(lambda: client.get(region, ["durable"], [1]).ok), "hits resume by themselves"
        assert bytes(view[layout.page_bytes:layout.page_bytes + 4]) == b"\x11\x11\x11\x11"
        assert client.stats()["losses"] >= 1 and client.connected


def test_a_stopped_daemon_is_a_timeout(daemon):
    with crumbkv.open(daemon.server, deadline=0.3, grace=0.2, connect_timeout=0.5) as client:
        layout = register(client, "stopped")
        region, _ = lend(client, layout)
        daemon.process.send_signal(signal.SIGSTOP)
        assert until(lambda: all(state == "T" for state in states_of(daemon.process.pid)))
        try:
            begin = time.monotonic()
            got = client.get(region, ["x"])
            assert got.codes == [crumbkv.Code.TIMEOUT] and time.monotonic() - begin < 5
            with pytest.raises(crumbkv.DeadlineError):
                got.raise_for_status()
            with pytest.raises((crumbkv.DeadlineError, crumbkv.UnavailableError)):
                client.flush(layout)
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        assert until(lambda: client.put(region, ["x"], [1]).ok)


def test_nobody_there_is_said_at_once(tmp_path):
    begin = time.monotonic()
    with pytest.raises(crumbkv.UnavailableError, match="crumbctl status"):
        crumbkv.open(f"unix:{tmp_path}/none", connect_timeout=1.0)
    assert time.monotonic() - begin < 5


def in_fork(call):
    """What the call raises in a forked child, as text."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            text = "nothing"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write_end, text.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


def test_a_forked_child_gets_words_and_harms_nobody(daemon, client):
    layout = register(client, "fork")
    region, _ = lend(client, layout)
    client.put(region, ["f"]).raise_for_status()
    for call in (lambda: client.get(region, ["f"]), lambda: client.drain(), lambda: client.pin(layout, ["f"], 1),
                 lambda: crumbkv.open(daemon.server)):
        assert in_fork(call).startswith("ForkError: this process was forked")
        assert "spawn" in in_fork(call)
    assert in_fork(client.close) == "nothing"
    assert client.get(region, ["f"], [1]).ok and client.connected


def spawned(server):
    with crumbkv.open(server, deadline=20.0) as client:
        layout = register(client, "fork")
        return client.exists(layout, ["f"])


def test_a_spawned_child_opens_its_own(daemon, client):
    layout = register(client, "fork")
    region, _ = lend(client, layout)
    client.put(region, ["f"])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(spawned, [daemon.server] * 2) == [[True], [True]]


def test_threads_share_a_client(client):
    layout = register(client, "threads", kv_heads=1, layers=1)
    region, memory = lend(client, layout, 8)
    wrong = []

    def work(number):
        view = memoryview(memory)
        mine = slice(number * layout.page_bytes, (number + 1) * layout.page_bytes)
        for i in range(150):
            view[mine] = bytes([number * 8 + i % 8]) * layout.page_bytes
            key = [f"{number}/{i}"]
            if not client.put(region, key, [number]).ok:
                wrong.append((number, i, "put"))
            view[mine] = bytes(layout.page_bytes)
            if not client.get(region, key, [number]).ok or view[mine][0] != number * 8 + i % 8:
                wrong.append((number, i, "get"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert not wrong


def test_python_runs_while_a_call_waits(client):
    layout = register(client)
    region, _ = lend(client, layout)
    waiter = threading.Thread(target=lambda: client.get(region, ["nobody puts this"], [0], wait=1.0))
    waiter.start()
    begin, turns = time.monotonic(), 0
    while waiter.is_alive():
        turns += 1
        assert client.get(region, ["other"], [1]).codes == [crumbkv.Code.MISS]
    assert turns > 20 and time.monotonic() - begin < 20


def test_close_ends_what_waits(daemon):
    client = crumbkv.open(daemon.server, deadline=20.0)
    layout = register(client)
    region, _ = lend(client, layout)
    raised = []

    def wait():
        try:
            client.get(region, ["never"], wait=60)
        except crumbkv.ClosedError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert until(lambda: client.stats()["in_flight"] == 1)
    client.close()
    waiter.join(20)
    assert len(raised) == 1


def test_ctrl_c_ends_a_wait(client):
    layout = register(client)
    region, _ = lend(client, layout)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        client.get(region, ["never"], wait=60)
    assert time.monotonic() - begin < 10
    assert until(lambda: client.drain() == [] and not region.owned(0))
    assert client.get(region, ["x"]).codes == [crumbkv.Code.MISS]


class Memory(bytearray):
    pass


def test_memory_lives_while_it_is_lent(client):
    layout = register(client)
    memory = Memory(4 * layout.page_bytes)
    gone = weakref.ref(memory)
    region = client.lend(layout, memory)
    with pytest.raises(BufferError):
        memory.extend(b"x")  # it may not move
    ticket = client.submit_get(region, ["never"], wait=60)
    del memory
    gc.collect()
    assert gone() is not None
    with pytest.raises(crumbkv.BusyError, match="in use"):
        region.unlend()
    client.cancel(ticket)
    client.drain(20)
    region.unlend()
    del region
    gc.collect()
    assert gone() is None


def test_dropping_everything_ends_the_session(daemon):
    client = crumbkv.open(daemon.server)
    layout = register(client)
    region, memory = lend(client, layout)
    gone = weakref.ref(client)
    view = memoryview(memory)
    del client
    gc.collect()
    assert gone() is None
    view[0] = 1  # the buffer outlives its client
    with pytest.raises(crumbkv.InvalidError, match="its client is gone"):
        region.owned(0)


def test_a_busy_client_waits_and_a_submit_does_not(daemon):
    with crumbkv.open(daemon.server, requests_in_flight=1, deadline=1.0) as client:
        layout = register(client)
        region, _ = lend(client, layout)
        ticket = client.submit_get(region, ["never"], wait=60)
        with pytest.raises(crumbkv.BusyError, match="requests_in_flight"):
            client.submit_get(region, ["other"], [1])
        assert client.get(region, ["other"], [1]).codes == [crumbkv.Code.BUSY]
        threading.Timer(0.2, lambda: client.cancel(ticket)).start()
        assert client.get(region, ["other"], [1]).codes == [crumbkv.Code.MISS]


def rss_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


def test_calls_leave_nothing_behind(client):
    layout = register(client, "flat", kv_heads=1, layers=1)
    region, _ = lend(client, layout)
    keys = ["flat/0", "flat/1"]
    client.put(region, keys)

    def some(count):
        for _ in range(count // 4):
            client.get(region, keys, [2, 3])
            client.lookup(layout, keys).hits
            client.submit_get(region, keys, [2, 3])
            client.drain(None)
            client.exists(layout, ["none"])

    some(max(4000, CALLS // 10))
    gc.collect()
    before, references = rss_kib(), [sys.getrefcount(one) for one in (layout, region, keys[0], client)]
    some(CALLS)
    gc.collect()
    grown = rss_kib() - before
    print(f"{CALLS} calls: RSS grew by {grown} KiB")
    assert [sys.getrefcount(one) for one in (layout, region, keys[0], client)] == references
    assert grown < RSS_KIB_MAX


def test_private_daemon(tmp_path, monkeypatch):
    with crumbkv.open(start=True, pool="16MiB", config={"codec.int2": "accept"}) as client:
        layout = register(client)
        region, _ = lend(client, layout)
        assert client.put(region, ["p"]).ok and "private daemon" in repr(client)
        daemon = client._daemon
        pid, folder = daemon.pid, daemon.server[5:-2]
        assert os.path.isdir(folder)
    assert not os.path.exists(folder) and not os.path.exists(f"/proc/{pid}")
    with pytest.raises(crumbkv.StartError, match="pool.dram_bytes"):
        crumbkv.open(start=True, pool="much")
    with pytest.raises(crumbkv.StartError, match="crumbd=: /none is no program"):
        crumbkv.open(start=True, crumbd="/none")
    monkeypatch.delenv("CRUMBD")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(crumbkv.StartError, match=r"\$PATH.*\$CRUMBD"):
        crumbkv.open(start=True)


KILLED = """
import crumbkv, os, signal
client = crumbkv.open(start=True, pool="16MiB")
print(client._daemon.pid, client._daemon.server[5:], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_private_daemon_ends_with_its_process():
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pid, socket = done.stdout.split()

    def gone():
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            return True

    assert until(gone)
    import shutil
    shutil.rmtree(os.path.dirname(socket), ignore_errors=True)


def test_asyncio(daemon):
    async def run():
        async with crumbkv.AsyncClient.open(daemon.server, deadline=20.0, requests_in_flight=8) as cache:
            layout = register(cache.client, "aio", kv_heads=1, layers=1)
            region, _ = lend(cache.client, layout, 64)
            puts = await asyncio.gather(*(cache.put(region, [f"aio/{i}"], [i]) for i in range(32)))
            assert all(one.ok for one in puts)
            gets = await asyncio.gather(*(cache.get(region, [f"aio/{i}"], [32 + i]) for i in range(32)))
            assert all(one.ok for one in gets)
            assert await cache.exists(layout, ["aio/0", "none"]) == [True, False]
            assert (await cache.delete(layout, ["aio/0"])).ok
            waiting = asyncio.ensure_future(cache.get(region, ["never"], [0], wait=60))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(crumbkv.InvalidError):
                await cache.get(region, [])
            late = asyncio.ensure_future(cache.get(region, ["never"], [1], wait=60))
            await asyncio.sleep(0.05)
        with pytest.raises(crumbkv.ClosedError):
            await late

    asyncio.run(run())


def test_asyncio_close_tells_who_waits_for_a_turn(daemon):
    async def run():
        cache = crumbkv.AsyncClient.open(daemon.server, deadline=20.0, requests_in_flight=1)
        layout = register(cache.client, "aio")
        region, _ = lend(cache.client, layout)
        waiting = [asyncio.ensure_future(cache.get(region, ["never"], [i], wait=60)) for i in range(3)]
        await asyncio.sleep(0.05)
        await cache.close()
        for one in waiting:
            with pytest.raises(crumbkv.ClosedError):
                await asyncio.wait_for(one, 20)
        with pytest.raises(crumbkv.ClosedError):
            await cache.lookup(layout, ["a"])

    asyncio.run(run())


def test_asyncio_without_a_daemon(daemon):
    async def run():
        async with crumbkv.AsyncClient.open(daemon.server, deadline=2.0) as cache:
            layout = register(cache.client, "aio")
            region, _ = lend(cache.client, layout)
            pending = asyncio.ensure_future(cache.get(region, ["never"], [0], wait=30))
            await asyncio.sleep(0.05)
            daemon.end(signal.SIGKILL)
            assert (await pending).code == crumbkv.Code.UNAVAILABLE
            assert (await cache.get(region, ["x"])).codes == [crumbkv.Code.UNAVAILABLE]
            daemon.start()
            for _ in range(1000):
                if (await cache.put(region, ["x"], [1])).ok:
                    return
                await asyncio.sleep(0.02)
            raise AssertionError("never connected again")

    asyncio.run(run())
