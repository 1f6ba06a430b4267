"""Exceptions: one for each status, each with the remedy. All derive from CrumbError."""
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Type


class CrumbError(Exception):
    """Base of all. ``code`` is the Code's number (None: not of a status), ``remedy`` what to do."""

    code: "int | None" = None
    remedy: str = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} [{self.remedy}]" if self.remedy else text


class MissError(CrumbError, LookupError):
    """The page is not there, or no longer."""

    code = 1
    remedy = "a miss is an answer: compute the page"


class BusyError(CrumbError):
    """A queue is full, or slots still belong to an unanswered request."""

    code = 2
    remedy = "drain, then ask again, or compute the page"


class NoSpaceError(CrumbError):
    """The pool is full of pinned pages."""

    code = 3
    remedy = "let pins go, or raise pool.dram_bytes of the daemon"


class QuotaError(CrumbError):
    """The tenant's bytes are used up."""

    code = 4
    remedy = "flush, or raise the tenant's quota"


class DeadlineError(CrumbError, TimeoutError):
    """The deadline passed. The slots may stay with the request: see Region.owned."""

    code = 5
    remedy = "compute the page; raise deadline= if the daemon is well"


class InvalidError(CrumbError, ValueError):
    """An argument is malformed or out of range; the message names it."""

    code = 6


class UnavailableError(CrumbError, ConnectionError):
    """The daemon is not there, drains, or was restarted."""

    code = 7
    remedy = "the client reconnects by itself; is crumbd running? crumbctl status"


class CorruptError(CrumbError):
    """What arrived does not match its checksum."""

    code = 8
    remedy = "a miss: compute the page; look at the daemon's log"


class IoError(CrumbError, OSError):
    """The daemon's disk failed."""

    code = 9
    remedy = "look at the daemon's log"


class CancelledError(CrumbError):
    """The request was taken back."""

    code = 11
    remedy = "ask again if the page is still wanted"


class NonFiniteError(CrumbError):
    """A put holds NaN or Inf where the layout's codec cannot keep them; the message says where."""

    code = 12
    remedy = "mend the producer, or register the layout with keep_non_finite_raw=True"


class MismatchError(CrumbError):
    """Another layout, codec, version or rotation than this one."""

    code = 13
    remedy = "put the page raw, or register the layout anew"


class NotDurableError(CrumbError):
    """Stored in memory, but the durable write did not happen."""

    code = 14
    remedy = "put it again, or go on: the page may be lost with the daemon"


class DeniedError(CrumbError, PermissionError):
    """The daemon does not trust this caller."""

    code = 64
    remedy = "use its unix socket, as its user; see listen.admin and token_file"


class ForkError(CrumbError, RuntimeError):
    """A forked child used what belongs to its parent."""

    remedy = "open clients after the fork, before any in the parent; or start children with 'spawn'"


class ClosedError(CrumbError, ValueError):
    """The client was closed."""

    remedy = "open another"


class StartError(CrumbError, RuntimeError):
    """A daemon could not be started."""


_BY_CODE: Dict[int, Type[CrumbError]] = {
    kind.code: kind
    for kind in (MissError, BusyError, NoSpaceError, QuotaError, DeadlineError, InvalidError, UnavailableError,
                 CorruptError, IoError, CancelledError, NonFiniteError, MismatchError, NotDurableError, DeniedError)
    if kind.code is not None
}


def error_for(code: int, message: str) -> CrumbError:
    return _BY_CODE.get(code, CrumbError)(message)


def fork_error() -> ForkError:
    return ForkError("this process was forked from one that has a crumbkv client, which works there alone")


def closed_error() -> ClosedError:
    return ClosedError("this crumbkv client is closed")
