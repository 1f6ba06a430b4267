"""crumbkv: put and get KV pages of language models in CrumbKV, from Python.

    import crumbkv
    with crumbkv.open(start=True) as cache:
        layout = cache.register_layout(name="demo", model="example/model", revision="1",
                                       kv_heads=8, head_dim=128, layers=4, codec="raw")
        memory = cache.alloc(8 * layout.page_bytes)       # numpy.frombuffer(memory, ...) wraps it
        pages = cache.lend(layout, memory)                # 8 slots of a page each
        cache.put(pages, ["prompt-1/0", "prompt-1/1"])    # out of slots 0 and 1
        got = cache.get(pages, ["prompt-1/0", "prompt-1/1"], slots=[2, 3])
        print(got.hits)                                   # a miss is an answer, not an exception

A get, put, lookup or delete never raises for what the daemon does: its results say what became of each key.
Exceptions (CrumbError and its kinds) are for wrong arguments and for control calls. docs/python.md is the guide.
"""
from __future__ import annotations

from ._client import Client, Region, open
from ._crumbkv import Buffer, Code, Form, Layout, Precision, Result, Results, Tier
from ._errors import (
    BusyError,
    CancelledError,
    ClosedError,
    CorruptError,
    CrumbError,
    DeadlineError,
    DeniedError,
    ForkError,
    InvalidError,
    IoError,
    MismatchError,
    MissError,
    NoSpaceError,
    NonFiniteError,
    NotDurableError,
    QuotaError,
    StartError,
    UnavailableError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._aio import AsyncClient

__version__ = "0.1.0"

__all__ = [
    "AsyncClient", "Buffer", "BusyError", "CancelledError", "Client", "ClosedError", "Code", "CorruptError",
    "CrumbError", "DeadlineError", "DeniedError", "ForkError", "Form", "InvalidError", "IoError", "Layout",
    "MismatchError", "MissError", "NoSpaceError", "NonFiniteError", "NotDurableError", "Precision", "QuotaError",
    "Region", "Result", "Results", "StartError", "Tier", "UnavailableError", "open",
]


def __getattr__(name: str) -> Any:
    if name == "AsyncClient":  # asyncio is most of the import's time, and few need it
        from ._aio import AsyncClient
        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
