"""Client, Region and open()."""
from __future__ import annotations

import os
import weakref

from . import _crumbkv
from ._crumbkv import Buffer, Core, Form, Layout, Question, Results
from ._errors import InvalidError
from ._memory import Place, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

    from ._daemon import PrivateDaemon

    Key = Union[bytes, str]
    Slots = Union[Sequence[int], Sequence[Sequence[int]]]

_PUT, _GET, _LOOKUP, _PREFETCH, _DELETE = range(5)
_PROVENANCE = {"prefill": 0, "decode": 1, "transcoded": 2}
_FORMS = {"raw": 0, "packed": 1, "page": 2}
_PLACES = {"auto": 0, "daemon": 1, "worker": 2}
_REQUEST_KEYS_MAX = 256


def _ms(seconds: Optional[float], name: str) -> int:
    """Milliseconds, rounded up; 0 for None, which is the client's own."""
    if seconds is None:
        return 0
    if not 0 < seconds <= 600:
        raise InvalidError(f"{name}: {seconds!r} is not more than 0 and at most 600 seconds; None is the client's own")
    return max(1, -int(-seconds * 1000 // 1))


def _choice(value: str, choices: Mapping[str, int], name: str) -> int:
    found = choices.get(value)
    if found is None:
        raise InvalidError(f"{name}: {value!r} is none of {', '.join(choices)}")
    return found


class Region:
    """Memory that is lent as slots of pages of one layout; what put and get name. Made by Client.lend."""

    __slots__ = ("layout", "slots", "tokens_per_slot", "_client", "_id", "_owners", "_ask", "__weakref__")

    def __init__(self, client: "Client", layout: Layout, number: int, slots: int, tokens_per_slot: int,
                 owners: List[object]) -> None:
        self.layout = layout
        self.slots = slots
        self.tokens_per_slot = tokens_per_slot
        self._client = weakref.ref(client)
        self._id = number
        self._owners = owners
        self._ask = {verb: Question(verb, layout, number) for verb in (_PUT, _GET)}

    def owned(self, slot: int) -> bool:
        """True while a request that names the slot is unanswered: its bytes may still change or be read."""
        return self._of().slot_is_owned(self._id, slot)

    def unlend(self) -> None:
        """Takes the memory back. BusyError while a request owns slots of it."""
        client = self._client()
        if client is not None:
            client._unlend(self)

    def _of(self) -> Core:
        client = self._client()
        if client is None:
            raise InvalidError("region: its client is gone; keep the client as long as its regions")
        return client._core

    def __enter__(self) -> "Region":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.unlend()

    def __repr__(self) -> str:
        return f"<Region of {self.slots} slots, layout {self.layout.name}>"


def _end(core: Core, regions: Dict[int, Region], shared: List[object], daemon: "Optional[PrivateDaemon]") -> None:
    core.close()
    regions.clear()  # only now may the memory go
    shared.clear()
    if daemon is not None:
        daemon.stop()


class Client:
    """A session with a daemon. Use crumbkv.open() to make one.

    Threads: every method may be called from any thread, at once. The interpreter's lock is given away while a call
    waits. Control calls (register_layout, lend, pin, flush) hold up the others for as long as they take.

    Processes: a client works in the process that opened it. In a forked child every call raises ForkError; children
    that are started with 'spawn' open their own.

    Loss: when the daemon dies, calls under way answer Code.UNAVAILABLE at once and later ones too, without waiting,
    until the client is connected again, which it does by itself. Layouts and regions stay valid.
    """

    def __init__(self, options: _crumbkv.Options, daemon: "Optional[PrivateDaemon]" = None) -> None:
        self._core = Core(options)
        self._regions: Dict[int, Region] = {}
        self._shared: List[object] = []
        self._asks: Dict[Tuple[int, int], Question] = {}
        self._daemon = daemon
        self._finish = weakref.finalize(self, _end, self._core, self._regions, self._shared, daemon)

    # Life

    def close(self) -> None:
        """Says goodbye and ends what is in flight (at most connect_timeout + grace); stops a daemon that open()
        started. Memory that was lent is free afterwards. Idempotent."""
        self._finish()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._core.closed:
            return "<crumbkv.Client, closed>"
        try:
            plane, _ = self._core.state()
        except Exception as error:  # a repr never raises
            return f"<crumbkv.Client, {type(error).__name__}>"
        private = ", private daemon" if self._daemon is not None else ""
        return f"<crumbkv.Client over {plane}, {len(self._regions)} region(s){private}>"

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._core.closed

    @property
    def connected(self) -> bool:
        """False while the daemon is lost."""
        return self._core.state()[1]

    @property
    def data_plane(self) -> str:
        """How pages travel: 'shm PATH', 'grpc' or 'ucx VERSION'."""
        return self._core.state()[0]

    def stats(self) -> Dict[str, int]:
        """Counters since open: requests, completions, timeouts, cancelled, losses, reconnects, refused_busy,
        circuit_opened, circuit_refused; and now: in_flight, unanswered, bytes_in_flight, circuit_open (0 or 1)."""
        return self._core.stats()

    def reconnect(self) -> None:
        """One attempt now, where auto_reconnect is off or too slow. UnavailableError: it failed, or it is too soon."""
        self._core.reconnect()

    # Layouts

    def register_layout(self, *, name: str, model: str, revision: str, layers: "Union[int, str, Sequence[int]]" = 1,
                        kv_heads: int = 1, head_dim: int = 0, k_dim: int = 0, v_dim: Optional[int] = None,
                        kind: str = "gqa", window: int = 0, groups: "Optional[Sequence[Mapping[str, object]]]" = None,
                        page_tokens: int = 64, dtype: str = "bf16", weights_dtype: str = "bf16", namespace: str = "",
                        head_groups: int = 1, codec: str = "", rotation: str = "", effort: str = "",
                        keep_non_finite_raw: bool = False, rope: "Optional[Mapping[str, object]]" = None,
                        k_before_rope: bool = False, metadata: str = "") -> Layout:
        """Says what pages mean. Any difference is another layout; layouts share no pages.

        A raw page holds, for each layer, K [kv_heads][page_tokens][k_dim], then V, in ``dtype`` (bf16, fp16, fp8_e4m3,
        fp8_e5m2, opaque). ``layers`` is a count, "0-35", or layer numbers; models with several geometries give
        ``groups``, each a mapping of kind, kv_heads, k_dim, v_dim, window, layers. ``revision`` is the commit of the
        weights. ``codec``: "raw", "crumb-int2", ... (docs/codec.md); empty is the daemon's choice.
        Raises InvalidError, UnavailableError, DeadlineError, MismatchError. May take seconds for a large model.
        """
        if groups is None:
            k = k_dim or head_dim
            if k <= 0:
                raise InvalidError("head_dim: the elements of a head are needed (or k_dim and v_dim, or groups)")
            groups = [{"kind": kind, "kv_heads": kv_heads, "k_dim": k, "v_dim": k if v_dim is None else v_dim,
                       "window": window, "layers": layers}]
        fields: Dict[str, object] = {
            "name": name, "model": model, "revision": revision, "weights_dtype": weights_dtype, "dtype": dtype,
            "k_before_rope": k_before_rope, "groups": [_group(one) for one in groups], "page_tokens": page_tokens,
            "head_groups": head_groups, "keep_non_finite_raw": keep_non_finite_raw,
        }
        words = {"namespace": namespace, "codec": codec, "rotation": rotation, "effort": effort, "metadata": metadata}
        fields.update({key: text for key, text in words.items() if text})
        if rope is not None:
            fields["rope"] = dict(rope)
        import json  # YAML's own subset, with every string quoted
        return self.register_layout_yaml(json.dumps(fields), name=name)

    def register_layout_yaml(self, source: "Union[str, os.PathLike[str]]", *, name: str = "layout") -> Layout:
        """As register_layout, from the YAML of ``crumbctl layout add``: a path object, or the text."""
        text = source if isinstance(source, str) else open_text(source)
        return self._core.register_layout(_crumbkv.LayoutSpec(text, name))

    def layouts(self) -> List[Layout]:
        """All that the daemon knows, as usable as registered ones."""
        return self._core.list_layouts()

    # Memory

    def alloc(self, nbytes: int) -> Buffer:
        """Memory that the daemon maps too: pages move with one copy. Zeroed; wrap it with numpy.frombuffer,
        torch.frombuffer or memoryview, and lend it. It lives as long as the client (at most 256 of them)."""
        if nbytes <= 0:
            raise InvalidError(f"nbytes: {nbytes} is not more than 0")
        buffer = Buffer(nbytes)
        self._core.share((buffer.fd, 0, buffer.address, buffer.nbytes))
        self._shared.append(buffer)
        return buffer

    def share(self, memory: object, fd: int, offset: int = 0) -> None:
        """Tells of a shared mapping that somebody else made (mmap of /dev/shm, a memfd), before it is lent: the daemon
        then maps it instead of copying. ``memory`` is the whole mapping, page-aligned; ``fd`` its file, which is
        duplicated; ``offset`` where in the file it begins."""
        place = place_of(memory, "memory")
        self._core.share((fd, offset, place.address, place.nbytes))
        self._shared.append(place.owner)

    def lend(self, layout: Layout, memory: object, *, slot_bytes: Optional[int] = None,
             head_group_first: int = 0, head_group_count: int = 0, codec_place: str = "auto") -> Region:
        """Lends memory as slots for pages of ``layout``; put reads from them and get writes into them.

        ``memory`` is one C-contiguous object (what alloc returned, a numpy array, a torch tensor, DLPack, any writable
        buffer): slots of ``slot_bytes`` each (layout.page_bytes), a page in each; dtype and shape do not matter.
        Or a list of paged tensors, K then V of each layer (no V where v_dim is 0), each of shape
        [slots][tokens of a slot][kv_heads][dim] (or [slots][tokens][dim] for one head), any strides but the last, of an
        element of the layout's dtype: a page then takes page_tokens / tokens slots.
        GPU memory (torch, DLPack) is lent to the daemon's kernels: docs/gpu.md; ``head_group_*`` and ``codec_place``
        ("auto", "daemon", "worker") are for it.
        Memory that alloc or share did not name is copied on its way. The region keeps the objects alive until unlend
        or close. Raises InvalidError.
        """
        place = (head_group_first, head_group_count, _choice(codec_place, _PLACES, "codec_place"))
        if isinstance(memory, (list, tuple)):
            return self._lend_tensors(layout, list(memory), place)
        found = place_of(memory, "memory")
        if not found.contiguous:
            raise InvalidError("memory: it is not C-contiguous; give a contiguous array, or a list of paged tensors")
        size = layout.page_bytes if slot_bytes is None else slot_bytes
        if not 0 < size <= found.nbytes:
            raise InvalidError(f"memory: {found.nbytes} bytes hold no slot of {size}; layout {layout.name!r} has pages "
                               f"of {layout.page_bytes} bytes")
        pages = (found.address, found.nbytes, size)
        if found.gpu:
            number = self._core.lend_gpu(layout, [], (pages, 0, 0, *place))
        else:
            number = self._core.lend_pages(layout, pages)
        return self._keep(layout, number, found.nbytes // size, layout.page_tokens, [found.owner])

    def _lend_tensors(self, layout: Layout, tensors: List[object], place: Tuple[int, int, int]) -> Region:
        if not tensors:
            raise InvalidError("memory: the list is empty; it has K and V of each layer")
        found = [place_of(one, f"memory[{i}]") for i, one in enumerate(tensors)]
        rows = [_tensor(one, i) for i, one in enumerate(found)]
        slots, tokens = found[0].shape[0], found[0].shape[1]
        for i, one in enumerate(found):
            if one.shape[:2] != (slots, tokens) or one.gpu != found[0].gpu:
                raise InvalidError(f"memory[{i}]: {one.shape[:2]} slots and tokens, memory[0] has {(slots, tokens)}; all "
                                   "tensors of a region have the same, on one device")
        if found[0].gpu:
            number = self._core.lend_gpu(layout, rows, (None, slots, tokens, *place))
        else:
            number = self._core.lend_tensors(layout, rows, (slots, tokens))
        return self._keep(layout, number, slots, tokens, [one.owner for one in found])

    def _keep(self, layout: Layout, number: int, slots: int, tokens: int, owners: List[object]) -> Region:
        region = Region(self, layout, number, slots, tokens, owners)
        self._regions[number] = region
        return region

    def _unlend(self, region: Region) -> None:
        if region._id in self._regions:
            self._core.unlend(region._id)
            del self._regions[region._id]

    # Data: these never raise for what the daemon does.

    def put(self, region: Region, keys: Sequence[Key], slots: Optional[Slots] = None, *,
            parents: "Optional[Sequence[Optional[Key]]]" = None, start: Optional[int] = None,
            token_starts: Optional[Sequence[int]] = None, token_counts: Optional[Sequence[int]] = None,
            parts: Optional[Sequence[int]] = None, form: str = "raw", value_bytes: Optional[Sequence[int]] = None,
            provenance: str = "prefill", durable: bool = False, deadline: Optional[float] = None,
            stream: int = 0) -> Results:
        """Stores pages out of slots of ``region`` under ``keys`` (1 to 256 bytes each, bytes or str).

        ``slots``: one for each key, or, for paged tensors with several slots per page, a sequence for each; None: 0, 1,
        2... ``start``: the keys are consecutive pages of one sequence from this token on; each one's parent is the key
        before it (the first's may be named in ``parents``). Or give ``parents`` and ``token_starts`` yourself; a page
        without a position is packed at once (docs/windows.md). ``token_counts``: 0 is a full page. ``form``: "raw",
        "packed" or "page", the latter two with ``value_bytes``. ``durable``: answered after the write to disk.
        ``deadline``: seconds; None is the client's. ``stream``: of GPU regions, a cudaStream_t.
        Returns a result for each key: OK, EXISTS (a hit too), or why not. Raises InvalidError for wrong arguments.
        """
        blocks = _blocks(region.layout, keys, slots, parents, start, token_starts, token_counts, parts, value_bytes,
                         _choice(provenance, _PROVENANCE, "provenance"))
        options = (_choice(form, _FORMS, "form"), durable, False, 0, _ms(deadline, "deadline"), True, stream)
        return self._ask(self._question(region, _PUT), blocks, options)

    def get(self, region: Region, keys: Sequence[Key], slots: Optional[Slots] = None, *,
            token_counts: Optional[Sequence[int]] = None, parts: Optional[Sequence[int]] = None, form: str = "raw",
            wait: Optional[float] = None, verify: bool = True, deadline: Optional[float] = None,
            stream: int = 0) -> Results:
        """Fetches pages into slots of ``region``. A slot holds its page exactly if its result is a hit; else its bytes
        are undefined. ``wait``: seconds to wait for a put of a key that is not there. ``verify``: hash what arrived
        (CORRUPT instead of a wrong page). The rest as for put."""
        blocks = _blocks(region.layout, keys, slots, None, None, None, token_counts, parts, None, 0)
        options = (_choice(form, _FORMS, "form"), False, False, _ms(wait, "wait"), _ms(deadline, "deadline"), verify,
                   stream)
        return self._ask(self._question(region, _GET), blocks, options)

    def lookup(self, layout: Layout, keys: Sequence[Key], *, parts: Optional[Sequence[int]] = None,
               stop_at_gap: bool = False, deadline: Optional[float] = None) -> Results:
        """Where pages are, without moving them: tier and precision of each, ``prefix`` keys at the beginning that are
        there, ``raw_tail_tokens`` at its end that are raw. ``stop_at_gap``: what is behind the first miss is a miss."""
        blocks = _blocks(layout, keys, None, None, None, None, None, parts, None, 0)
        options = (0, False, stop_at_gap, 0, _ms(deadline, "deadline"), True, 0)
        return self._ask(self._about(layout, _LOOKUP), blocks, options, stop_at_gap)

    def exists(self, layout: Layout, keys: Sequence[Key], *, deadline: Optional[float] = None) -> List[bool]:
        """True for each key whose page (part 0) is there now. Keeps nothing alive."""
        return self.lookup(layout, keys, deadline=deadline).hits

    def prefetch(self, layout: Layout, keys: Sequence[Key], *, parts: Optional[Sequence[int]] = None,
                 deadline: Optional[float] = None) -> Results:
        """Raises pages from NVMe to memory ahead of their gets; a result's tier says where the page is now."""
        blocks = _blocks(layout, keys, None, None, None, None, None, parts, None, 0)
        return self._ask(self._about(layout, _PREFETCH), blocks, (0, False, False, 0, _ms(deadline, "deadline"), True, 0))

    def delete(self, layout: Layout, keys: Sequence[Key], *, parts: Optional[Sequence[int]] = None) -> Results:
        """Forgets pages in every tier. MISS: it was not there."""
        blocks = _blocks(layout, keys, None, None, None, None, None, parts, None, 0)
        return self._ask(self._about(layout, _DELETE), blocks, (0, False, False, 0, 0, True, 0))

    def pin(self, layout: Layout, keys: Sequence[Key], ttl: float) -> Results:
        """Holds pages in memory for ``ttl`` seconds, all parts of each; 0 lets them go. They end with the client, too.
        Raises InvalidError, UnavailableError, DeadlineError, BusyError."""
        if not 0 <= ttl <= 4_000_000:
            raise InvalidError(f"ttl: {ttl!r} is not 0 or more seconds")
        return self._core.pin(layout, _blocks(layout, keys, None, None, None, None, None, None, None, 0),
                              -int(-ttl * 1000 // 1))

    def flush(self, layout: Layout) -> None:
        """Forgets every page of the layout, in all tiers; durable when it returns. From the daemon's own host alone
        (DeniedError). Raises UnavailableError, DeadlineError."""
        self._core.flush(layout)

    # Asynchronous: submit, then drain.

    def submit_put(self, region: Region, keys: Sequence[Key], slots: Optional[Slots] = None, *,
                   parents: "Optional[Sequence[Optional[Key]]]" = None, start: Optional[int] = None,
                   token_starts: Optional[Sequence[int]] = None, token_counts: Optional[Sequence[int]] = None,
                   parts: Optional[Sequence[int]] = None, form: str = "raw",
                   value_bytes: Optional[Sequence[int]] = None, provenance: str = "prefill", durable: bool = False,
                   deadline: Optional[float] = None, stream: int = 0) -> int:
        """Queues a put of at most 256 keys and returns its ticket; drain() brings its Results. Never waits: BusyError (a
        bound is reached: drain first) and UnavailableError (no daemon) at once. The slots are the request's until then."""
        blocks = _blocks(region.layout, keys, slots, parents, start, token_starts, token_counts, parts, value_bytes,
                         _choice(provenance, _PROVENANCE, "provenance"))
        options = (_choice(form, _FORMS, "form"), durable, False, 0, _ms(deadline, "deadline"), True, stream)
        return self._core.submit(self._question(region, _PUT), blocks, options)

    def submit_get(self, region: Region, keys: Sequence[Key], slots: Optional[Slots] = None, *,
                   token_counts: Optional[Sequence[int]] = None, parts: Optional[Sequence[int]] = None,
                   form: str = "raw", wait: Optional[float] = None, verify: bool = True,
                   deadline: Optional[float] = None, stream: int = 0) -> int:
        """As submit_put, of get."""
        blocks = _blocks(region.layout, keys, slots, None, None, None, token_counts, parts, None, 0)
        options = (_choice(form, _FORMS, "form"), False, False, _ms(wait, "wait"), _ms(deadline, "deadline"), verify,
                   stream)
        return self._core.submit(self._question(region, _GET), blocks, options)

    def submit_lookup(self, layout: Layout, keys: Sequence[Key], *, parts: Optional[Sequence[int]] = None,
                      stop_at_gap: bool = False, deadline: Optional[float] = None) -> int:
        """As submit_put, of lookup."""
        blocks = _blocks(layout, keys, None, None, None, None, None, parts, None, 0)
        options = (0, False, stop_at_gap, 0, _ms(deadline, "deadline"), True, 0)
        return self._core.submit(self._about(layout, _LOOKUP), blocks, options)

    def submit_prefetch(self, layout: Layout, keys: Sequence[Key], *, parts: Optional[Sequence[int]] = None,
                        deadline: Optional[float] = None) -> int:
        """As submit_put, of prefetch."""
        blocks = _blocks(layout, keys, None, None, None, None, None, parts, None, 0)
        return self._core.submit(self._about(layout, _PREFETCH), blocks,
                                 (0, False, False, 0, _ms(deadline, "deadline"), True, 0))

    def submit_delete(self, layout: Layout, keys: Sequence[Key], *, parts: Optional[Sequence[int]] = None) -> int:
        """As submit_put, of delete."""
        blocks = _blocks(layout, keys, None, None, None, None, None, parts, None, 0)
        return self._core.submit(self._about(layout, _DELETE), blocks, (0, False, False, 0, 0, True, 0))

    def drain(self, timeout: Optional[float] = 0.0) -> List[Results]:
        """Results of submitted requests that are answered, each with its ticket. Waits up to ``timeout`` seconds for the
        first one (0: not; None: for ever). Also drives reconnecting: call it, or any verb, now and then."""
        return self._core.drain(4e6 if timeout is None else timeout)

    def cancel(self, ticket: int) -> None:
        """Asks that a submitted request end early; its Results still come, exactly once."""
        self._core.cancel(ticket)

    def fileno(self) -> int:
        """A descriptor for poll and event loops, readable when drain() may have something."""
        return self._core.fileno()

    # Inside

    def _question(self, region: Region, verb: int) -> Question:
        if region._client() is not self:
            raise InvalidError("region: it is another client's; lend the memory with this one")
        if region._id not in self._regions and not self._core.closed:
            raise InvalidError("region: it was taken back (unlend); lend it again")
        return region._ask[verb]

    def _about(self, layout: Layout, verb: int) -> Question:
        # Handles are small numbers of this client; the hash tells them from another's.
        name = (id(layout), verb)
        found = self._asks.get(name)
        if found is None or found.layout is not layout:
            if len(self._asks) > 64:
                self._asks.clear()
            found = self._asks[name] = Question(verb, layout, 0)
        return found

    def _ask(self, question: Question, blocks: Tuple[Any, ...], options: Tuple[Any, ...],
             stop_at_gap: bool = False) -> Results:
        if len(blocks[0]) <= _REQUEST_KEYS_MAX:
            return self._core.ask(question, blocks, options)
        whole: Optional[Results] = None
        for at in range(0, len(blocks[0]), _REQUEST_KEYS_MAX):
            piece = _slice(blocks, at, at + _REQUEST_KEYS_MAX)
            if whole is not None and stop_at_gap and whole.prefix < len(whole):
                answer = _crumbkv.refused(_crumbkv.Code.MISS, "", len(piece[0]))
            else:
                answer = self._core.ask(question, piece, options)
            if whole is None:
                whole = answer
            else:
                whole.append(answer)
        assert whole is not None
        return whole


def _group(group: Mapping[str, object]) -> Dict[str, object]:
    out = dict(group)
    layers = out.get("layers", 1)
    if isinstance(layers, bool) or not isinstance(layers, (int, str, list, tuple, range)):
        raise InvalidError(f"layers: a count, \"0-35\" or layer numbers, not {type(layers).__name__}")
    if isinstance(layers, int):
        if layers < 1:
            raise InvalidError(f"layers: {layers} is not 1 or more")
        out["layers"] = f"0-{layers - 1}"
    elif not isinstance(layers, str):
        out["layers"] = [int(one) for one in layers]
    return out


def _tensor(place: Place, index: int) -> Tuple[int, int, int, int, int]:
    what = f"memory[{index}]"
    if len(place.shape) not in (3, 4):
        raise InvalidError(f"{what}: its shape is {place.shape}; paged tensors are [slots][tokens][heads][dim], or "
                           "[slots][tokens][dim]")
    if place.strides[-1] != place.itemsize and place.shape[-1] != 1:
        raise InvalidError(f"{what}: the elements of a head are {place.strides[-1]} bytes apart; they must be dense")
    head = place.strides[2] if len(place.shape) == 4 else place.shape[2] * place.itemsize
    return (place.address, place.nbytes, place.strides[0], place.strides[1], head)


def _blocks(layout: Layout, keys: Sequence[Key], slots: Optional[Slots],
            parents: "Optional[Sequence[Optional[Key]]]", start: Optional[int], token_starts: Optional[Sequence[int]],
            token_counts: Optional[Sequence[int]], parts: Optional[Sequence[int]],
            value_bytes: Optional[Sequence[int]], provenance: int) -> Tuple[Any, ...]:
    if not isinstance(keys, (list, tuple, str, bytes)):
        if not hasattr(keys, "__iter__"):
            raise InvalidError(f"keys: a sequence is needed, not {type(keys).__name__}")
        keys = list(keys)
    if slots is None and len(keys) > _REQUEST_KEYS_MAX:
        slots = range(len(keys))
    if start is not None:
        if token_starts is not None:
            raise InvalidError("start, token_starts: give one of them")
        first = parents[0] if parents else None
        token_starts = [start + i * layout.page_tokens for i in range(len(keys))]
        parents = [first, *keys[:-1]]
    return (keys, slots, parents, token_starts, token_counts, parts, value_bytes, provenance)


def _slice(blocks: Tuple[Any, ...], begin: int, end: int) -> Tuple[Any, ...]:
    return tuple(one if one is None or isinstance(one, int) else one[begin:end] for one in blocks)


def open_text(path: "os.PathLike[str]") -> str:
    import io
    with io.open(path, encoding="utf-8") as file:
        return file.read()


def open(server: Optional[str] = None, *, start: bool = False, crumbd: Optional[str] = None, pool: str = "256MiB",
         config: "Optional[Mapping[str, object]]" = None, data_plane: str = "auto", deadline: float = 5.0,
         connect_timeout: float = 2.0, grace: float = 1.0, spin: float = 0.0, auto_reconnect: bool = True,
         requests_in_flight: int = 64, bytes_in_flight: int = 1 << 30, bounce_bytes: int = 64 << 20,
         staging_bytes: int = 256 << 20, breaker_failures: int = 5, client_name: str = "crumbkv",
         token_file: str = "", tls_ca: str = "", tls_cert: str = "", tls_key: str = "", ucx_tls: str = "",
         ucx_net_devices: str = "") -> Client:
    """Opens a session with a daemon.

    ``server``: "unix:PATH" or "HOST:PORT"; None: $CRUMB_SERVER, then the usual sockets, then 127.0.0.1:7411.
    ``start``: start a private daemon instead, and end it with the client: the binary is ``crumbd``, $CRUMBD or of $PATH;
    ``pool`` its memory, ``config`` further settings ({"nvme.bytes": "1GiB"}), as of docs/configuration.md.
    ``data_plane``: "auto" (shared memory on the daemon's host, else gRPC), "shm", "grpc", or "ucx", which alone loads UCX
    into this process. Times are seconds: ``deadline`` of every request, ``connect_timeout``, ``grace`` past a deadline,
    ``spin``: poll so long (at most 0.001) before a wait sleeps. The rest: docs/python.md.
    Raises UnavailableError, InvalidError, StartError, ForkError.
    """
    _crumbkv.check_fork()
    options = _crumbkv.Options()
    planes = {one: getattr(_crumbkv.DataPlane, one) for one in ("auto", "shm", "grpc", "ucx")}
    if data_plane not in planes:
        raise InvalidError(f"data_plane: {data_plane!r} is none of {', '.join(planes)}")
    options.data_plane = planes[data_plane]
    options.auto_ucx = False
    options.deadline_ms = _ms(deadline, "deadline")
    options.connect_ms = _ms(connect_timeout, "connect_timeout")
    options.grace_ms = _ms(grace, "grace")
    if not 0 <= spin <= 0.001:
        raise InvalidError(f"spin: {spin!r} is not 0 to 0.001 seconds")
    options.spin_us = int(spin * 1e6)
    options.auto_reconnect = auto_reconnect
    for name, value in (("requests_in_flight", requests_in_flight), ("bytes_in_flight", bytes_in_flight),
                        ("bounce_bytes", bounce_bytes), ("staging_bytes", staging_bytes)):
        if value <= 0:
            raise InvalidError(f"{name}: {value} is not more than 0")
    options.requests_in_flight_max, options.bytes_in_flight_max = requests_in_flight, bytes_in_flight
    options.bounce_bytes, options.staging_bytes = bounce_bytes, staging_bytes
    options.breaker_failures = breaker_failures
    options.client_name = client_name
    options.token_file, options.ucx_tls, options.ucx_net_devices = token_file, ucx_tls, ucx_net_devices
    options.tls_ca, options.tls_cert, options.tls_key = tls_ca, tls_cert, tls_key
    if not start:
        options.server = server or ""
        return Client(options)
    if server is not None:
        raise InvalidError("server, start: a private daemon has an address of its own; give one of them")
    from ._daemon import PrivateDaemon
    daemon = PrivateDaemon(crumbd, pool, config or {})
    try:
        options.server = daemon.server
        return Client(options, daemon)
    except BaseException:
        daemon.stop()
        raise
