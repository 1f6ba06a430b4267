"""Every verb and every kind of memory, against a real daemon."""
import array
import mmap
import os
import select

import pytest

import crumbkv
from conftest import lend, register

np = pytest.importorskip("numpy")


def pattern(count, page_bytes, seed=1):
    """Pages of finite BF16 values: random bytes with the exponent's top bit cleared."""
    data = np.random.default_rng(seed).integers(0, 256, (count, page_bytes), np.uint8)
    data[:, 1::2] &= 0xBF
    return data


@pytest.mark.parametrize("plane", ["shm", "grpc", "auto"])
def test_what_was_put_comes_back(daemon, plane):
    with crumbkv.open(daemon.server, data_plane=plane, deadline=20.0) as client:
        assert client.data_plane.startswith("grpc" if plane == "grpc" else "shm")
        layout = register(client, f"plane-{plane}")
        region, memory = lend(client, layout)
        pages = np.frombuffer(memory, np.uint8)[:8 * layout.page_bytes].reshape(8, -1)
        pages[:4] = pattern(4, layout.page_bytes)
        keys = [f"{plane}/{i}" for i in range(4)]
        put = client.put(region, keys, start=0)
        assert put.ok and put.prefix == 4 and put.codes == [crumbkv.Code.OK] * 4
        found = client.lookup(layout, keys + ["nowhere"])
        assert found.prefix == 4 and found.hits == [True] * 4 + [False]
        assert found[0].tier == crumbkv.Tier.DRAM and found[-1].code == crumbkv.Code.MISS
        got = client.get(region, keys, slots=range(4, 8))
        assert got.ok and got[0].value_bytes == layout.page_bytes
        assert got[0].precision == crumbkv.Precision.RAW
        assert (pages[:4] == pages[4:]).all()
        assert client.put(region, keys[:1]).codes == [crumbkv.Code.EXISTS]


def test_a_missing_key_is_an_answer(client):
    layout = register(client)
    region, _ = lend(client, layout)
    got = client.get(region, ["not there", b"\x00\xff"])
    assert not got.ok and got.hit_count == 0 and got.codes == [crumbkv.Code.MISS] * 2
    assert client.exists(layout, ["not there"]) == [False]
    with pytest.raises(crumbkv.MissError, match="compute the page"):
        got.raise_for_status()
    assert [bool(one) for one in got] == [False, False]


def test_delete_pin_prefetch_flush(client):
    layout = register(client, "verbs")
    other = register(client, "other")
    region, _ = lend(client, layout)
    elsewhere, _ = lend(client, other)
    keys = ["a", "b", "c"]
    client.put(region, keys).raise_for_status()
    client.put(elsewhere, keys).raise_for_status()
    assert client.pin(layout, keys + ["none"], ttl=30).hits == [True] * 3 + [False]
    assert client.pin(layout, keys, ttl=0).ok
    assert client.prefetch(layout, keys)[0].tier == crumbkv.Tier.DRAM
    assert client.delete(layout, ["a", "none"]).hits == [True, False]
    assert client.exists(layout, keys) == [False, True, True]
    client.flush(layout)
    assert client.exists(layout, keys) == [False] * 3
    assert client.exists(other, keys) == [True] * 3
    assert layout.hash in [one.hash for one in client.layouts()]


@pytest.mark.parametrize("codec,worst", [("crumb-int2", 0.8), ("crumb-int4", 0.2)])
def test_packed_layouts_come_back_near(client, codec, worst):
    layout = register(client, codec, codec)
    assert layout.codec.startswith(codec) and layout.packed_bytes[0] < layout.part_bytes[0] / 3
    region, memory = lend(client, layout)
    elements = layout.page_bytes // 2
    values = np.random.default_rng(3).standard_normal(elements).astype(np.float32)
    words = np.frombuffer(memory, np.uint16)
    words[:elements] = values.view(np.uint32) >> 16
    assert client.put(region, ["p"], token_starts=[64]).ok
    got = client.get(region, ["p"], slots=[1])
    assert got.ok and got[0].precision != crumbkv.Precision.RAW
    back = (words[elements:2 * elements].astype(np.uint32) << 16).view(np.float32)
    error = float(np.sqrt(np.mean((back - values) ** 2)))
    assert 0 < error < worst


def test_nan_is_refused_with_its_place(client):
    layout = register(client, "nan", "crumb-int4")
    region, memory = lend(client, layout)
    np.frombuffer(memory, np.uint16)[5] = 0x7FC0
    put = client.put(region, ["nan"])
    assert put.codes == [crumbkv.Code.NON_FINITE] and put[0].note
    with pytest.raises(crumbkv.NonFiniteError, match="keep_non_finite_raw"):
        put.raise_for_status()


def test_packed_form_goes_out_and_in(client):
    layout = register(client, "form", "crumb-int4")
    region, memory = lend(client, layout)
    np.frombuffer(memory, np.uint16)[:layout.page_bytes // 2] = 0x3F80
    assert client.put(region, ["one"], token_starts=[0]).ok
    packed = client.get(region, ["one"], slots=[2], form="packed")
    assert packed.ok and packed[0].value_bytes == layout.packed_bytes[0]
    assert client.put(region, ["two"], [2], form="packed", value_bytes=[packed[0].value_bytes], token_starts=[0]).ok
    assert client.get(region, ["two"], slots=[3]).ok


def kinds_of_memory(nbytes):
    yield "bytearray", bytearray(nbytes)
    yield "array", array.array("B", bytes(nbytes))
    yield "memoryview", memoryview(bytearray(nbytes)).cast("H")
    yield "numpy", np.zeros((2, nbytes // 4), np.float16)
    ml = pytest.importorskip("ml_dtypes")
    yield "bfloat16", np.zeros(nbytes // 2, ml.bfloat16)
    yield "dlpack", OnlyDlpack(np.zeros(nbytes, np.uint8))
    yield "torch-like", TorchLike(np.zeros(nbytes // 2, np.uint16))


class OnlyDlpack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **wishes):
        return self.array.__dlpack__(**wishes)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class TorchLike:
    """What crumbkv asks of a torch tensor."""

    class device:
        type = "cpu"

    layout = "torch.strided"

    def __init__(self, array):
        self.array = array
        self.shape = array.shape

    def data_ptr(self):
        return self.array.ctypes.data

    def element_size(self):
        return self.array.itemsize

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)


def bytes_of(memory):
    if isinstance(memory, (OnlyDlpack, TorchLike)):
        memory = memory.array
    if isinstance(memory, np.ndarray):
        return memory.reshape(-1).view(np.uint8)
    return np.frombuffer(memory, np.uint8)


def test_any_memory_can_be_lent(client):
    layout = register(client, "memory")
    data = pattern(1, layout.page_bytes)[0]
    for name, memory in kinds_of_memory(2 * layout.page_bytes):
        view = bytes_of(memory)
        view[:layout.page_bytes] = data
        with client.lend(layout, memory) as region:
            assert region.slots == 2, name
            assert client.put(region, [name]).ok, name
            assert client.get(region, [name], slots=[1]).ok, name
        assert (view[layout.page_bytes:] == data).all(), name


def test_torch_tensors(client):
    torch = pytest.importorskip("torch")
    layout = register(client, "torch")
    memory = client.alloc(2 * layout.page_bytes)
    pages = torch.frombuffer(memory, dtype=torch.bfloat16).view(2, -1)
    pages[0] = torch.randn(pages.shape[1])
    region = client.lend(layout, pages)
    assert client.put(region, ["t"]).ok and client.get(region, ["t"], slots=[1]).ok
    assert torch.equal(pages[0], pages[1])


def test_paged_tensors_with_strides(client):
    layout = register(client, "tensors", kv_heads=2, layers=2)
    whole = np.zeros((2, 2, 8, 8, 2, 64), np.uint16)  # [layer][K, V][slot][token][head][dim], 8 tokens a slot
    tensors = [whole[layer, side] for layer in range(2) for side in range(2)]
    for i, tensor in enumerate(tensors):
        tensor[2], tensor[5] = 0x3F80 + i, 0x3E00 + i
    region = client.lend(layout, tensors)
    assert (region.slots, region.tokens_per_slot) == (8, 8)
    assert client.put(region, ["page"], [[2, 5]]).ok
    assert client.get(region, ["page"], [[7, 0]]).ok
    for tensor in tensors:
        assert (tensor[7] == tensor[2]).all() and (tensor[0] == tensor[5]).all() and not tensor[1].any()


def test_memory_that_somebody_else_mapped(client):
    layout = register(client, "mapped")
    fd = os.memfd_create("pages")
    os.ftruncate(fd, 1 << 20)
    mapping = mmap.mmap(fd, 1 << 20)
    client.share(mapping, fd)
    region = client.lend(layout, mapping)
    mapping[:layout.page_bytes] = pattern(1, layout.page_bytes)[0].tobytes()
    assert client.put(region, ["m"]).ok and client.get(region, ["m"], slots=[1]).ok
    assert mapping[:layout.page_bytes] == mapping[layout.page_bytes:2 * layout.page_bytes]
    os.close(fd)


def test_allocated_memory_is_wrapped_without_a_copy(client):
    memory = client.alloc(5000)
    assert memory.nbytes == 8192 == len(memory)
    view, array, shared = memoryview(memory), np.frombuffer(memory, np.uint8), np.from_dlpack(memory)
    view[7] = 9
    assert array[7] == 9 == shared[7] and array.ctypes.data == memory.address == shared.ctypes.data
    assert "8192 bytes" in repr(memory)


def test_submit_and_drain_with_a_descriptor(client):
    layout = register(client, "async")
    region, _ = lend(client, layout, 32)
    tickets = [client.submit_put(region, [f"s/{i}"], [i]) for i in range(16)]
    seen = {}
    while len(seen) < 16:
        assert select.select([client], [], [], 20)[0]
        for results in client.drain():
            seen[results.ticket] = results
    assert sorted(seen) == sorted(tickets) and all(one.ok for one in seen.values())
    ticket = client.submit_get(region, ["s/0", "none"], [16, 17])
    (got,) = client.drain(None)
    assert got.ticket == ticket and got.hits == [True, False]
    waiting = client.submit_get(region, ["never"], [20], wait=60)
    assert region.owned(20)
    client.cancel(waiting)
    (cancelled,) = client.drain(20)
    assert cancelled.ticket == waiting and cancelled.code == crumbkv.Code.CANCELLED
    assert not region.owned(20) and client.drain() == [] and client.drain(0.01) == []
    assert not select.select([client], [], [], 0)[0]


def test_more_keys_than_a_request_takes(client):
    layout = register(client, "many", kv_heads=1, layers=1)
    region, memory = lend(client, layout, 600)
    words = np.frombuffer(memory, np.uint16)[:600 * layout.page_bytes // 2].reshape(600, -1)
    words[:300] = np.arange(300)[:, None]
    keys = [f"many/{i}" for i in range(300)]
    assert len(client.put(region, keys, start=0)) == 300
    keys[270] = "hole"
    got = client.get(region, keys, range(300, 600))
    assert got.prefix == 270 and got.hit_count == 299 and len(got) == 300
    assert (words[300:570] == words[:270]).all() and (words[571:] == words[271:300]).all()
    found = client.lookup(layout, ["hole"] + keys, stop_at_gap=True)
    assert found.hit_count == 0 and found.prefix == 0


def test_everything_has_a_repr(client):
    layout = register(client, "repr")
    region, _ = lend(client, layout)
    put = client.put(region, ["r"])
    for one, word in ((client, "shm"), (layout, "raw"), (region, "8 slots"), (put, "1 ok"), (put[0], "ok"),
                      (client.get(region, ["none"]), "1 miss")):
        assert word in repr(one), repr(one)


def test_stats_count(client):
    layout = register(client)
    region, _ = lend(client, layout)
    before = client.stats()
    client.get(region, ["none"])
    after = client.stats()
    assert after["requests"] == before["requests"] + 1 and after["in_flight"] == 0
