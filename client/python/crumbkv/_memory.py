"""Where the bytes of a Python object lie: torch, numpy (bfloat16 too), DLPack, the buffer protocol."""
from __future__ import annotations

from . import _crumbkv
from ._errors import InvalidError

TYPE_CHECKING = False  # typing is a good part of the import's time
if TYPE_CHECKING:
    from typing import Any, List, Sequence, Tuple

_CPU, _CUDA, _CUDA_HOST = 1, 2, 3  # DLPack's numbers


class Place:
    """``strides`` are bytes. ``owner`` keeps the memory while it is lent."""

    def __init__(self, address: int, shape: Tuple[int, ...], strides: Tuple[int, ...], itemsize: int, gpu: bool,
                 owner: object) -> None:
        self.address = address
        self.shape = shape
        self.strides = strides
        self.itemsize = itemsize
        self.gpu = gpu
        self.owner = owner

    @property
    def nbytes(self) -> int:
        """From the first byte to the last, gaps included."""
        if 0 in self.shape:
            return 0
        return sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + self.itemsize

    @property
    def contiguous(self) -> bool:
        wanted = self.itemsize
        for n, stride in zip(reversed(self.shape), reversed(self.strides)):
            if n != 1 and stride != wanted:
                return False
            wanted *= n
        return True


def _dense(shape: Sequence[int], itemsize: int) -> Tuple[int, ...]:
    strides: List[int] = []
    step = itemsize
    for n in reversed(shape):
        strides.insert(0, step)
        step *= n
    return tuple(strides)


def _read_only(what: str) -> InvalidError:
    return InvalidError(f"{what}: the memory is read-only, and a get writes to it; lend a writable copy (bytearray, "
                        "numpy.array(x), client.alloc)")


def _of_torch(obj: Any, what: str) -> Place:
    kind = obj.device.type
    if kind not in ("cpu", "cuda"):
        raise InvalidError(f"{what}: a tensor on device {obj.device} cannot be lent; move it to the CPU or a CUDA GPU")
    if obj.layout is not obj.layout or "strided" not in str(obj.layout):
        raise InvalidError(f"{what}: a {obj.layout} tensor cannot be lent; call to_dense()")
    size = obj.element_size()
    return Place(obj.data_ptr(), tuple(obj.shape), tuple(s * size for s in obj.stride()), size, kind == "cuda", obj)


def _of_array(obj: Any, what: str) -> Place:
    info = obj.__array_interface__
    address, read_only = info["data"]
    if read_only:
        raise _read_only(what)
    size = int(info["typestr"][2:])
    if info["typestr"][1] == "U":
        size *= 4
    shape = tuple(info["shape"])
    return Place(address, shape, info["strides"] or _dense(shape, size), size, False, obj)


def _of_buffer(obj: Any, what: str) -> Place:
    view = memoryview(obj)  # while it lives, a bytearray cannot be resized
    if view.readonly:
        raise _read_only(what)
    shape = view.shape if view.shape is not None else (view.nbytes // view.itemsize,)
    strides = view.strides or _dense(shape, view.itemsize)
    return Place(_crumbkv.buffer_address(view), tuple(shape), tuple(strides), view.itemsize, False, view)


def _of_dlpack(obj: Any, what: str) -> Place:
    place = _crumbkv.dlpack_place(obj)
    if not place:
        raise InvalidError(f"{what}: its DLPack tensor cannot be read")
    address, shape, strides, itemsize, read_only, device, _ = place
    if read_only:
        raise _read_only(what)
    if device not in (_CPU, _CUDA, _CUDA_HOST):
        raise InvalidError(f"{what}: memory of DLPack device type {device} cannot be lent; CPU or CUDA can")
    return Place(address, tuple(shape), tuple(strides), itemsize, device == _CUDA, obj)


def place_of(obj: object, what: str) -> Place:
    """Raises InvalidError, which begins with ``what``."""
    if hasattr(obj, "data_ptr") and hasattr(obj, "stride") and hasattr(obj, "element_size"):
        place = _of_torch(obj, what)
    elif hasattr(obj, "__array_interface__"):
        place = _of_array(obj, what)
    else:
        try:
            place = _of_buffer(obj, what)
        except TypeError:
            if not hasattr(obj, "__dlpack__"):
                raise InvalidError(
                    f"{what}: {type(obj).__name__} has no memory to lend; give a torch tensor, a numpy array, a DLPack "
                    "tensor, a buffer (bytearray, memoryview), or what client.alloc() returns") from None
            place = _of_dlpack(obj, what)
    if any(s < 0 for s in place.strides):
        raise InvalidError(f"{what}: negative strides cannot be lent; copy it to a new array")
    if place.nbytes == 0:
        raise InvalidError(f"{what}: it is empty")
    return place
