"""Each wrong argument: an error that names the thing and the remedy, and nothing happens."""
import pytest

import crumbkv
from conftest import lend, register

np = pytest.importorskip("numpy")


@pytest.fixture
def setup(client):
    layout = register(client, "arguments")
    region, _ = lend(client, layout, 4)
    return client, layout, region


BAD = {
    "one key, not a list": (lambda c, l, r: c.get(r, "key"), "keys: a sequence.*put it into a list"),
    "no keys": (lambda c, l, r: c.get(r, []), "keys: 0 of them"),
    "a number as key": (lambda c, l, r: c.put(r, [b"a", 7]), r"keys\[1\]: keys are bytes or str, not int"),
    "an empty key": (lambda c, l, r: c.lookup(l, ["a", ""]), r"keys\[1\]: .*1 to 256 bytes"),
    "a long key": (lambda c, l, r: c.lookup(l, ["a" * 257]), r"keys\[0\].*257.*hash longer ones"),
    "a lone surrogate": (lambda c, l, r: c.lookup(l, ["\ud800"]), "no valid Unicode"),
    "keys of None": (lambda c, l, r: c.lookup(l, None), "keys: a sequence is needed, not NoneType"),
    "too few slots": (lambda c, l, r: c.get(r, ["a", "b"], [0]), "slots: 1 of them for 2 keys"),
    "a slot that is not there": (lambda c, l, r: c.get(r, ["a"], [4]), "slot 4 of lent memory with 4"),
    "a negative slot": (lambda c, l, r: c.get(r, ["a"], [-1]), r"slots\[0\]: -1"),
    "a fractional slot": (lambda c, l, r: c.get(r, ["a"], [1.5]), r"slots\[0\]: a sequence|whole number"),
    "several slots": (lambda c, l, r: c.get(r, ["a"], [[0, 1]]), "2 slots named"),
    "a wrong part": (lambda c, l, r: c.get(r, ["a"], parts=[3]), "part 3 of a layout with 1"),
    "too many tokens": (lambda c, l, r: c.put(r, ["a"], token_counts=[17]), "token_count 17"),
    "two positions": (lambda c, l, r: c.put(r, ["a"], start=0, token_starts=[0]), "start, token_starts"),
    "unknown form": (lambda c, l, r: c.get(r, ["a"], form="zip"), "form: 'zip' is none of raw, packed, page"),
    "unknown provenance": (lambda c, l, r: c.put(r, ["a"], provenance="x"), "provenance"),
    "packed without length": (lambda c, l, r: c.put(r, ["a"], form="packed"), "value_bytes"),
    "a deadline of nothing": (lambda c, l, r: c.get(r, ["a"], deadline=0), "deadline: 0 is not"),
    "a negative deadline": (lambda c, l, r: c.get(r, ["a"], deadline=-1), "deadline"),
    "an endless deadline": (lambda c, l, r: c.get(r, ["a"], deadline=float("nan")), "deadline"),
    "too many at once": (lambda c, l, r: c.submit_get(r, [f"{i}" for i in range(257)]), "257 of them"),
    "a negative timeout": (lambda c, l, r: c.drain(-1), "timeout"),
    "a negative ttl": (lambda c, l, r: c.pin(l, ["a"], -1), "ttl"),
    "no memory": (lambda c, l, r: c.lend(l, 7), "memory: int has no memory.*alloc"),
    "read-only bytes": (lambda c, l, r: c.lend(l, bytes(100000)), "memory: the memory is read-only"),
    "a small buffer": (lambda c, l, r: c.lend(l, bytearray(10)), "10 bytes hold no slot"),
    "an empty buffer": (lambda c, l, r: c.lend(l, bytearray()), "memory: it is empty"),
    "a strided array": (lambda c, l, r: c.lend(l, np.zeros((9, 99999), np.uint8)[:, ::2]), "not C-contiguous"),
    "a reversed array": (lambda c, l, r: c.lend(l, np.zeros(99999, np.uint8)[::-1]), "negative strides"),
    "a read-only array": (lambda c, l, r: c.lend(l, np.broadcast_to(np.zeros(1), (99999,))), "read-only"),
    "no tensors": (lambda c, l, r: c.lend(l, []), "memory: the list is empty"),
    "flat tensors": (lambda c, l, r: c.lend(l, [np.zeros(8)] * 6), r"memory\[0\]: its shape"),
    "too few tensors": (lambda c, l, r: c.lend(l, [np.zeros((4, 16, 4, 64), np.uint16)]), "tensors"),
    "tensors that differ": (
        lambda c, l, r: c.lend(l, [np.zeros((4, 16, 4, 64), np.uint16), np.zeros((5, 16, 4, 64), np.uint16)]),
        r"memory\[1\]"),
    "an unknown place": (lambda c, l, r: c.lend(l, bytearray(99999), codec_place="moon"), "codec_place"),
    "no bytes": (lambda c, l, r: c.alloc(0), "nbytes: 0"),
    "no head_dim": (lambda c, l, r: c.register_layout(name="x", model="m", revision="1"), "head_dim"),
    "no layers": (lambda c, l, r: register(c, layers=0), "layers: 0"),
    "an unknown dtype": (lambda c, l, r: register(c, dtype="float99"), "dtype|float99"),
    "an unknown codec": (lambda c, l, r: register(c, codec="zip"), "codec|zip"),
    "an unknown group key": (lambda c, l, r: register(c, groups=[{"headz": 1}]), "headz"),
    "broken YAML": (lambda c, l, r: c.register_layout_yaml("{"), "layout"),
}


@pytest.mark.parametrize("name", BAD)
def test_wrong_arguments_are_named(setup, name):
    call, words = BAD[name]
    with pytest.raises(crumbkv.InvalidError, match=f"(?s){words}"):
        call(*setup)
    assert setup[0].stats()["in_flight"] == 0


@pytest.mark.parametrize("options,words", [
    ({"server": "nonsense"}, "no port"),
    ({"server": "unix:"}, "path is empty"),
    ({"data_plane": "pigeon"}, "data_plane: 'pigeon'"),
    ({"deadline": 0}, "deadline"),
    ({"spin": 1}, "spin"),
    ({"requests_in_flight": 0}, "requests_in_flight"),
    ({"bounce_bytes": -1}, "bounce_bytes"),
    ({"server": "unix:/x", "start": True}, "server, start"),
])
def test_wrong_options_are_named(options, words):
    with pytest.raises(crumbkv.InvalidError, match=words):
        crumbkv.open(**options)


def test_what_belongs_to_another_client_is_refused(daemon, setup):
    client, layout, region = setup
    with crumbkv.open(daemon.server) as other:
        with pytest.raises(crumbkv.InvalidError, match="region: it is another client's"):
            other.get(region, ["a"])
        register(other, "something else")
        with pytest.raises(crumbkv.InvalidError, match="layout: .* another client's"):
            other.lookup(layout, ["a"])


def test_after_unlend_and_close(daemon):
    client = crumbkv.open(daemon.server)
    layout = register(client)
    region, _ = lend(client, layout)
    region.unlend()
    region.unlend()
    with pytest.raises(crumbkv.InvalidError, match="taken back"):
        client.get(region, ["a"])
    client.close()
    client.close()
    assert client.closed and "closed" in repr(client)
    for call in (lambda: client.lookup(layout, ["a"]), lambda: client.get(region, ["a"]), client.drain, client.stats, client.fileno):
        with pytest.raises(crumbkv.ClosedError, match="open another"):
            call()


def test_each_status_has_its_exception():
    codes = {kind.code for kind in vars(crumbkv).values()
             if isinstance(kind, type) and issubclass(kind, crumbkv.CrumbError) and kind.code is not None}
    successes = {crumbkv.Code.OK, crumbkv.Code.EXISTS}
    assert codes == {int(code) for code in crumbkv.Code if code not in successes}
    assert issubclass(crumbkv.DeadlineError, TimeoutError) and issubclass(crumbkv.InvalidError, ValueError)
    assert issubclass(crumbkv.UnavailableError, ConnectionError) and issubclass(crumbkv.IoError, OSError)
