"""AsyncClient: the verbs of Client as coroutines of one event loop."""
from __future__ import annotations

import asyncio

from . import _crumbkv
from ._client import Client, Region
from ._client import open as open_client
from ._crumbkv import Code, Layout, Results
from ._errors import BusyError, ClosedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any, Callable, Dict, List, Optional, Sequence, Type

    from ._client import Key


class AsyncClient:
    """Wraps a Client for asyncio: ``async with AsyncClient.open(start=True) as cache: await cache.get(...)``.

    Used by the one event loop in which its first verb ran. Data verbs are coroutines that return Results and never raise
    for what the daemon does, as Client's do; layouts and memory are set up with the plain calls of ``.client``, which
    take milliseconds. A cancelled task takes its request back; the slots stay the request's until it is answered
    (Region.owned). More requests than may be in flight wait for their turn.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._fd = -1
        self._waiting: Dict[int, "asyncio.Future[Results]"] = {}
        self._room: "asyncio.Future[None] | None" = None

    @classmethod
    def open(cls, *args: Any, **options: Any) -> "AsyncClient":
        """As crumbkv.open(); blocks for as long as that does."""
        return cls(open_client(*args, **options))

    async def put(self, region: Region, keys: Sequence[Key], slots: Any = None, **options: Any) -> Results:
        """Client.put, of at most 256 keys."""
        return await self._run(lambda: self.client.submit_put(region, keys, slots, **options), len(keys))

    async def get(self, region: Region, keys: Sequence[Key], slots: Any = None, **options: Any) -> Results:
        """Client.get, of at most 256 keys."""
        return await self._run(lambda: self.client.submit_get(region, keys, slots, **options), len(keys))

    async def lookup(self, layout: Layout, keys: Sequence[Key], **options: Any) -> Results:
        """Client.lookup, of at most 256 keys."""
        return await self._run(lambda: self.client.submit_lookup(layout, keys, **options), len(keys))

    async def exists(self, layout: Layout, keys: Sequence[Key], **options: Any) -> List[bool]:
        """Client.exists, of at most 256 keys."""
        return (await self.lookup(layout, keys, **options)).hits

    async def prefetch(self, layout: Layout, keys: Sequence[Key], **options: Any) -> Results:
        """Client.prefetch, of at most 256 keys."""
        return await self._run(lambda: self.client.submit_prefetch(layout, keys, **options), len(keys))

    async def delete(self, layout: Layout, keys: Sequence[Key], **options: Any) -> Results:
        """Client.delete, of at most 256 keys."""
        return await self._run(lambda: self.client.submit_delete(layout, keys, **options), len(keys))

    async def close(self) -> None:
        """Ends what is in flight (its awaiters get ClosedError), then the client."""
        self._unwatch()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ClosedError("the client was closed while a request was in flight"))
        self._waiting.clear()
        await asyncio.get_running_loop().run_in_executor(None, self.client.close)
        self._make_room()  # who waited for its turn is told by the closed client

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<crumbkv.AsyncClient, {len(self._waiting)} in flight, of {self.client!r}>"

    def _bind(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._fd = self.client.fileno()
            self._loop = loop
            loop.add_reader(self._fd, self._on_readable)
        elif self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to one event loop; open another for this one")
        return loop

    async def _run(self, submit: Callable[[], int], count: int) -> Results:
        loop = self._bind()
        while True:
            try:
                ticket = submit()
                break
            except UnavailableError as error:
                return _crumbkv.refused(Code.UNAVAILABLE, str(error), count)
            except BusyError as error:
                if not self._waiting:
                    return _crumbkv.refused(Code.BUSY, str(error), count)
                if self._room is None:
                    self._room = loop.create_future()
                await asyncio.shield(self._room)
        waiting: "asyncio.Future[Results]" = loop.create_future()
        self._waiting[ticket] = waiting
        try:
            return await waiting
        except asyncio.CancelledError:
            if not self.client.closed and ticket in self._waiting:
                self.client.cancel(ticket)
            raise

    def _on_readable(self) -> None:
        try:
            answers = self.client.drain(0)
        except ClosedError:  # by Client.close, behind our back
            self._unwatch()
            return
        for results in answers:
            waiting = self._waiting.pop(results.ticket, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(results)
        if answers:
            self._make_room()

    def _unwatch(self) -> None:
        if self._fd >= 0 and self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._fd = -1

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)
