"""The tensors that an object holds, and the bytes of memory behind them.

Two questions, two halves:

* :func:`iter_tensors` and :func:`iter_arrays` walk containers. They know nested lists, tuples
  (named ones too), sets, mappings, dataclasses, ``SimpleNamespace``, modules, NumPy object
  arrays, SciPy sparse matrices, ``SparseTensor`` and every graph of PyG, and neither recurse nor
  hang on structures that contain themselves.
* :func:`distinct_bytes` and :func:`storage_bytes` measure. Memory is counted by address, so
  that whatever is shared (views, a NumPy array and the tensor made from it) counts once.

Nothing here imports PyG, SciPy or torch_sparse: an object of theirs can only exist once they are
imported, and is recognised by what it offers.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array: TypeAlias = "npt.NDArray[np.generic]"
Addresses: TypeAlias = "npt.NDArray[np.int64]"

# Kinds without tensors inside, some of which would iterate (a string yields strings for ever).
_ATOMS = (str, bytes, bytearray, memoryview, int, float, complex, type(None), np.generic, range)

_COMPONENTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


# -- walking ---------------------------------------------------------------------------------------


def iter_tensors(obj: object) -> Iterator[Tensor]:
    """Yields every tensor that ``obj`` holds, in order, each tensor object once.

    Tensors come as they are found: a sparse tensor, an ``EdgeIndex`` or a nested tensor is one
    tensor here. ``next(iter_tensors((args, kwargs)), None)`` is the first tensor of a call.

    Args:
        obj: A tensor or any container the module docstring lists. Objects of other kinds hold
            no tensors; iterators are left alone, because walking would use them up.

    Yields:
        Each tensor, depth first.
    """
    return (leaf for leaf in iter_arrays(obj) if isinstance(leaf, Tensor))


def iter_arrays(obj: object) -> Iterator[Tensor | Array]:
    """Yields every tensor and every NumPy array that ``obj`` holds, in order, each once.

    Args:
        obj: As in :func:`iter_tensors`.

    Yields:
        Each tensor or array of numbers, depth first.
    """
    pending = [obj]
    # The objects are kept beside their ids: the id of a temporary would be given out again.
    seen: dict[int, object] = {}
    while pending:
        current = pending.pop()
        if isinstance(current, _ATOMS) or id(current) in seen:
            continue
        seen[id(current)] = current
        if _is_array(current):
            yield current  # type: ignore[misc]  # _is_array has looked
        else:
            pending.extend(reversed(list(_members_of(current) or ())))


def is_measurable(obj: object) -> bool:
    """Tells whether ``obj`` is a tensor, an array or a container that the walk knows."""
    if isinstance(obj, _ATOMS):
        return False
    return _is_array(obj) or _members_of(obj) is not None


def _is_array(obj: object) -> bool:
    return isinstance(obj, Tensor) or (isinstance(obj, np.ndarray) and not obj.dtype.hasobject)


def _members_of(obj: object) -> Iterable[object] | None:
    """Returns what a container holds, None for an object that is no container."""
    if isinstance(obj, type):
        return None
    for members in _CONTAINERS:
        held = members(obj)
        if held is not None:
            return held
    return None


def _of_module(obj: object) -> Iterable[object] | None:
    if not isinstance(obj, torch.nn.Module):
        return None
    return [*obj.parameters(), *obj.buffers()]


def _of_collection(obj: object) -> Iterable[object] | None:
    if isinstance(obj, Mapping):
        return list(obj.values())
    if isinstance(obj, Sequence | AbstractSet | ValuesView):
        return list(obj)
    if isinstance(obj, np.ndarray):
        return list(obj.flat)  # only arrays of objects come here
    return None


def _of_fields(obj: object) -> Iterable[object] | None:
    if isinstance(obj, types.SimpleNamespace):
        return vars(obj).values()
    if dataclasses.is_dataclass(obj):
        return [getattr(obj, field.name, None) for field in dataclasses.fields(obj)]
    return None


def _of_sparse_matrix(obj: object) -> Iterable[object] | None:
    """Members of a SciPy sparse matrix, or of a ``SparseTensor`` in its CSR form."""
    if any(kind.__name__ == "SparseTensor" for kind in type(obj).__mro__):
        csr = getattr(obj, "csr", None)
        return None if csr is None else csr()
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is not None and scipy_sparse.issparse(obj):
        return vars(obj).values()
    return None


def _of_graph(obj: object) -> Iterable[object] | None:
    stores = getattr(obj, "stores", None)  # what every graph object of PyG offers
    return stores if isinstance(stores, Sequence) else None


_CONTAINERS: tuple[Callable[[object], Iterable[object] | None], ...] = (
    _of_module,
    _of_collection,
    _of_fields,
    _of_sparse_matrix,
    _of_graph,
)


# -- measuring -------------------------------------------------------------------------------------


class Runs(NamedTuple):
    """Equally long stretches of memory.

    Attributes:
        device: Where the memory lies.
        space: Runs overlap only within one address space: a device, or one tensor without
            addresses.
        starts: First byte of each run.
        length: Bytes of each run.
    """

    device: torch.device
    space: Hashable
    starts: Addresses
    length: int


def distinct_bytes(arrays: Iterable[Tensor | Array]) -> int:
    """Returns the bytes that the elements of ``arrays`` occupy, shared ones counted once.

    Only the elements count, not the rest of a storage that a view keeps alive: ``x[:, 0]`` of a
    float32 matrix holds four bytes per row, an expanded tensor the row it repeats. Sparse and
    nested tensors count by their components. Tensors without memory (meta and fake tensors)
    count what they would occupy; two of them are distinct unless one is a view of the other.

    Args:
        arrays: Tensors of any layout and device, NumPy arrays.

    Returns:
        Bytes.

    Raises:
        ValueError: If a tensor is a lazy parameter or buffer that is not yet initialised.
    """
    kept = list(arrays)  # keeps storages, and with them their identities, alive while we measure
    with torch._C.DisableTorchFunction():  # subclasses and modes are not to notice
        return _union(run for array in kept for run in _element_runs(array))


def storage_bytes(tensors: Iterable[Tensor], on: Callable[[torch.device], bool]) -> int:
    """Returns the bytes of the storages that ``tensors`` keep alive, each storage once.

    Args:
        tensors: Tensors of any layout and device. Meta and fake tensors have no memory.
        on: Which devices' storages to count.

    Returns:
        Bytes.
    """
    kept = list(tensors)
    runs = (run for tensor in kept for part in _parts(tensor) for run in _storage_runs(part))
    with torch._C.DisableTorchFunction():
        return _union(run for run in runs if run.device.type != "meta" and on(run.device))


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Takes a tensor apart into tensors that are one block of memory each."""
    inner = _inner_tensors(tensor)
    if inner is None:
        yield tensor
    else:
        for part in inner:
            yield from _parts(part)


def _inner_tensors(tensor: Tensor) -> list[Tensor] | None:
    """Returns the tensors that a compound tensor consists of, None for a plain one."""
    if tensor.layout in _COMPONENTS:
        return [getattr(tensor, name)() for name in _COMPONENTS[tensor.layout]]
    if hasattr(tensor, "as_tensor"):
        # PyG's Index and EdgeIndex, by their indices: cached pointers are not part of the graph.
        return [tensor.as_tensor()]
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [getattr(tensor, name) for name in names]
    if tensor.is_nested:
        return [tensor.values()]
    return None


def _element_runs(array: Tensor | Array) -> Iterator[Runs]:
    if isinstance(array, Tensor):
        _refuse_lazy(array)
        for part in _parts(array):
            yield from _tensor_runs(part)
    elif array.size:
        address = array.__array_interface__["data"][0]
        starts, length = _layout_runs(array.shape, array.strides, array.itemsize)
        cpu = torch.device("cpu")
        yield Runs(cpu, cpu, starts + address, length)


def _refuse_lazy(tensor: Tensor) -> None:
    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(
            "The size of a lazy parameter is unknown until it is initialised: run one forward "
            "pass with a sample input first."
        )


def _tensor_runs(tensor: Tensor) -> Iterator[Runs]:
    storage = _storage_of(tensor)
    if storage is None:
        yield from _theoretical_run(tensor)
    elif tensor.numel() and storage.length:
        itemsize = tensor.element_size()
        strides = tuple(stride * itemsize for stride in tensor.stride())
        starts, length = _layout_runs(tuple(tensor.shape), strides, itemsize)
        starts += storage.starts[0] + tensor.storage_offset() * itemsize
        yield Runs(storage.device, storage.space, starts, length)


def _storage_runs(tensor: Tensor) -> Iterator[Runs]:
    storage = _storage_of(tensor)
    if storage is not None:
        yield storage
    elif tensor.layout == torch._mkldnn:  # type: ignore[attr-defined]  # no stub
        yield from _theoretical_run(tensor)
    # Otherwise the tensor wraps others, which are counted where they are found.


def _theoretical_run(tensor: Tensor) -> Iterator[Runs]:
    """The bytes of a tensor that does not tell where its memory lies: it shares with none."""
    if not tensor._is_zerotensor():  # a tensor of zeros that exist only as a flag
        length = tensor.numel() * tensor.element_size()
        yield Runs(tensor.device, id(tensor), np.zeros(1, np.int64), length)


def _storage_of(tensor: Tensor) -> Runs | None:
    """Returns the storage behind a tensor as one run, None if the tensor has none of its own."""
    try:
        storage = tensor.untyped_storage()
        if storage.device.type == "meta":  # meta and fake tensors are known by their storage
            identity = ("meta", storage._cdata)
            return Runs(storage.device, identity, np.zeros(1, np.int64), storage.nbytes())
        address = storage.data_ptr()
    except RuntimeError:  # tensors of torch.func and mkldnn, wrapper subclasses, zeros as a flag
        return None
    if address == 0 and storage.nbytes() > 0:  # wrapper subclasses of earlier versions of torch
        return None
    starts = np.array([address], np.int64)
    return Runs(storage.device, storage.device, starts, storage.nbytes())


def _layout_runs(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[Addresses, int]:
    """Returns the runs of bytes, relative to the first element, that a strided layout covers.

    Dimensions are added from the smallest stride upwards: one that continues the run so far makes
    it longer, any other repeats it. So every dense layout, whatever its order of dimensions, is
    one run.

    Args:
        shape: Sizes, none of them 0.
        strides: Bytes from one element to the next, of either sign.
        itemsize: Bytes of an element.

    Returns:
        Starts of the runs and their common length in bytes.
    """
    starts, length = np.zeros(1, np.int64), itemsize
    steps = [(stride, size) for stride, size in zip(strides, shape, strict=True) if stride]
    for stride, size in sorted(steps, key=lambda step: abs(step[0])):
        if stride < 0:
            starts = starts + stride * (size - 1)
        stride = abs(stride)
        if len(starts) == 1 and stride <= length:
            length += stride * (size - 1)
        else:
            starts = (starts[:, None] + stride * np.arange(size)).ravel()
    return starts, length


def _union(runs: Iterable[Runs]) -> int:
    """Returns the number of bytes that at least one of the runs covers."""
    spaces: dict[Hashable, list[Runs]] = {}
    for run in runs:
        spaces.setdefault(run.space, []).append(run)
    return sum(_covered(members) for members in spaces.values())


def _covered(runs: Sequence[Runs]) -> int:
    starts = np.concatenate([run.starts for run in runs])
    ends = np.concatenate([run.starts + run.length for run in runs])
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    # What each run adds is what lies beyond the furthest end of all runs before it.
    reach = np.concatenate([starts[:1], np.maximum.accumulate(ends)[:-1]])
    return int(np.maximum(ends - np.maximum(starts, reach), 0).sum())
