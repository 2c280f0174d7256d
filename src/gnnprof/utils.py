"""Sizes of models and data, and memory in use on CPU and accelerator."""

from __future__ import annotations

import gc
import importlib
import io
import operator
import os
from collections.abc import Iterator, Mapping
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from gnnprof import _device, _nvidia_smi, _tensors

__all__ = [
    "byte_to_megabyte",
    "count_parameters",
    "get_cpu_memory_from_gc",
    "get_data_size",
    "get_gpu_memory_from_gc",
    "get_gpu_memory_from_ipex",
    "get_gpu_memory_from_nvidia_smi",
    "get_model_size",
    "medibyte_to_megabyte",
]

# -- sizes -----------------------------------------------------------------------------------------


def count_parameters(model: torch.nn.Module) -> int:
    """Counts the trainable parameters of a model: elements, not tensors; shared ones once.

    Args:
        model: The model; meta parameters count like any others.

    Returns:
        Number of elements of all parameters that require gradients.

    Raises:
        TypeError: If ``model`` is not a module.
        ValueError: If a trainable parameter is lazy and not yet initialised.
    """
    _check_module("count_parameters", model)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    _refuse_lazy("count_parameters(model)", model, trainable)
    return sum(parameter.numel() for parameter in trainable.values())


def get_model_size(model: torch.nn.Module) -> int:
    """Returns the bytes that ``torch.save(model.state_dict(), file)`` writes.

    They are counted in memory: no file is written, and the weights are not held twice. The figure
    is that of a file object, for which torch names the archive ``archive``. A file saved by path
    repeats its own name in every record of the archive, and so differs by some bytes per tensor.

    A model on the meta device has no weights to write: the result is the bytes of the names and
    shapes alone. ``get_data_size(model)`` tells what its weights would occupy.

    Args:
        model: The model.

    Returns:
        Bytes: weights, buffers, and what the format adds.

    Raises:
        TypeError: If ``model`` is not a module.
        ValueError: If a parameter or buffer is lazy and not yet initialised.
    """
    _check_module("get_model_size", model)
    _refuse_lazy("get_model_size(model)", model, dict(_named_tensors(model)))
    counter = _ByteCounter()
    torch.save(model.state_dict(), counter)
    return counter.count


class _ByteCounter(io.BytesIO):
    """A file that forgets what is written to it and only counts the bytes."""

    count = 0

    def write(self, chunk: Any) -> int:
        size = memoryview(chunk).nbytes
        self.count += size
        return size


def get_data_size(data: Any) -> int:
    """Returns the bytes that the tensors and arrays of a graph, or of any container, occupy.

    Memory that several tensors share counts once: a tensor held twice, overlapping views, a NumPy
    array and the tensor made from it. Only elements count, so a slice counts what it shows of
    its storage, and an expanded tensor the part that it repeats. Sparse tensors count by their
    components, ``SparseTensor`` by its CSR form, ``EdgeIndex`` by its indices without what it
    caches, and meta tensors by what they would occupy.

    Args:
        data: A ``Data``, ``HeteroData``, ``TemporalData`` or batch of PyG, a tensor, an array, a
            SciPy sparse matrix, a module (parameters and buffers), or any nesting of lists,
            tuples, sets, mappings and dataclasses of these. Members of other kinds count 0.

    Returns:
        Bytes.

    Raises:
        TypeError: If ``data`` itself is of none of these kinds.
        ValueError: If it holds a lazy parameter that is not yet initialised.

    Example:
        >>> x = torch.zeros(10, 128)
        >>> get_data_size([x, x[:5]])
        5120
    """
    if isinstance(data, torch.nn.Module):
        _refuse_lazy("get_data_size(data)", data, dict(_named_tensors(data)))
    arrays = list(_tensors.iter_arrays(data))
    if not arrays and not _tensors.is_measurable(data):
        raise TypeError(
            f"get_data_size(data={data!r}): data is a {type(data).__name__}, and must be a graph "
            "of PyG, a tensor, an array, a module or a container of these."
        )
    return _tensors.distinct_bytes(arrays)


def _check_module(function: str, model: object) -> None:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"{function}(model={model!r}): model is a {type(model).__name__}, and must be a "
            "torch.nn.Module."
        )


def _named_tensors(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _refuse_lazy(call: str, model: torch.nn.Module, named: Mapping[str, Tensor]) -> None:
    for name, tensor in named.items():
        if is_lazy(tensor):
            path, _, own_name = name.rpartition(".")
            kind = type(model.get_submodule(path)).__name__
            where = f"module {path!r} ({kind})" if path else f"the model itself ({kind})"
            raise ValueError(
                f"{call}: {own_name!r} of {where} is lazy, so its size is not known "
                "yet; run one forward pass with a sample input first."
            )


# -- memory in use ---------------------------------------------------------------------------------


def get_cpu_memory_from_gc() -> int:
    """Returns the bytes of CPU memory behind all tensors that Python's garbage collector knows.

    Every storage counts once and whole, however many views show how little of it; sparse tensors
    count by their components; meta tensors have no memory. Tensors that only C++ holds, such as
    those saved for backward, are unknown to the collector.

    Returns:
        Bytes.
    """
    return _tensors.storage_bytes(_live_tensors(), lambda device: device.type == "cpu")


def get_gpu_memory_from_gc(device: int | str | torch.device = 0) -> int:
    """Returns the bytes of one accelerator's memory behind all tensors that Python knows.

    Counted as in :func:`get_cpu_memory_from_gc`. What the caching allocator holds in reserve, and
    what it adds to round an allocation up, is not in it.

    Args:
        device: Index of the accelerator, ``'cuda:1'``, or a ``torch.device``.

    Returns:
        Bytes.

    Raises:
        TypeError: If ``device`` is no form of a device.
        ValueError: If there is no such device, or it is the CPU.
    """
    wanted = _device.resolve_device(device)
    if wanted.type == "cpu":
        raise ValueError(
            f"get_gpu_memory_from_gc(device={device!r}): device must be an accelerator; for the "
            "CPU, call get_cpu_memory_from_gc()."
        )
    return _tensors.storage_bytes(_live_tensors(), lambda found: found == wanted)


def _live_tensors() -> list[Tensor]:
    # The type is asked for, not isinstance(): that would read __class__ of every object alive, on
    # which proxies raise and deprecated objects warn.
    return [obj for obj in gc.get_objects() if issubclass(type(obj), Tensor)]


def get_gpu_memory_from_nvidia_smi(
    device: int | str | torch.device = 0, digits: int = 2
) -> tuple[float | None, float | None]:
    """Returns free and used memory of a card in megabytes, as reported by ``nvidia-smi``.

    The figures are those of the whole card, all processes together, and include the CUDA context
    and what torch's allocator holds in reserve. They are MiB times 1.0485, the reference's
    approximation of megabytes (10**6 bytes), unlike the MiB of the allocator's figures.

    The device is found by its UUID, so that ``CUDA_VISIBLE_DEVICES`` does not lead to another card.
    What ``nvidia-smi`` does not tell is asked of the driver (``torch.cuda.mem_get_info``), in the
    same unit.

    Args:
        device: Index as torch counts the devices, ``'cuda:1'``, or a ``torch.device``.
        digits: Decimals to round to.

    Returns:
        ``(free, used)``; a figure that neither source knows is None.

    Raises:
        AttributeError: If there is no such device.
        RuntimeError: If ``nvidia-smi`` has no figures for the device, nor has the driver.
        TypeError: If ``device`` is no form of a device.
        ValueError: If ``device`` names a device other than a CUDA device.
    """
    if isinstance(device, SupportsIndex) and operator.index(device) < 0:
        raise AttributeError(f"GPU {device} not available: the first GPU is 0")
    index = _index_on("cuda", device)
    free, used = _card_memory(index)
    return (
        None if free is None else medibyte_to_megabyte(free, digits),
        None if used is None else medibyte_to_megabyte(used, digits),
    )


def _card_memory(index: int) -> tuple[float | None, float | None]:
    """Returns free and used MiB of a CUDA device from nvidia-smi, else from the driver."""
    free: float | None = None
    used: float | None = None
    failure: _nvidia_smi.NvidiaSmiError | None = None
    try:
        cards = _nvidia_smi.query()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        card = _nvidia_smi.find_card(cards, index, _device.cuda_uuid(index), visible)
        free, used = card.free, card.used
    except _nvidia_smi.NvidiaSmiError as error:
        failure = error
    if free is not None and used is not None:
        return free, used
    info = _device.memory_info(index)
    if info is not None:
        free_bytes, total_bytes = info
        return free_bytes / 2**20, (total_bytes - free_bytes) / 2**20
    if failure is not None:
        raise RuntimeError(
            f"get_gpu_memory_from_nvidia_smi(device={index}): {failure}, and "
            "torch.cuda.mem_get_info knows no such device; install the NVIDIA driver and a build "
            "of torch for CUDA."
        ) from None
    return free, used


def get_gpu_memory_from_ipex(
    device: int | str | torch.device = 0, digits: int = 2
) -> tuple[float | None, float | None, float | None]:
    """Returns the peaks of an Intel XPU's memory in MiB and starts the peak counters anew.

    They come from torch's own XPU allocator, or from ``intel_extension_for_pytorch`` where that is
    installed, and cover the time since the counters were last reset.

    Args:
        device: Index of the XPU, ``'xpu:1'``, or a ``torch.device``.
        digits: Decimals to round to.

    Returns:
        ``(allocated, reserved, active)`` in MiB: held by live tensors, held from the driver, and
        held by tensors and by blocks that a stream still uses. What is unknown is None.

    Raises:
        RuntimeError: If there is no XPU.
        TypeError: If ``device`` is no form of a device.
        ValueError: If ``device`` names a device other than an XPU.
    """
    index = _index_on("xpu", device)
    try:
        ipex = importlib.import_module("intel_extension_for_pytorch")
    except ImportError:
        peaks = _peaks_from_torch(index)
    else:
        peaks = _peaks_from_ipex(ipex.xpu, index)
    allocated, reserved, active = (
        None if peak is None else byte_to_megabyte(peak, digits) for peak in peaks
    )
    return allocated, reserved, active


def _peaks_from_ipex(ipex_xpu: Any, index: int) -> list[int | None]:
    stats = ipex_xpu.memory_stats_as_nested_dict(index)
    ipex_xpu.reset_peak_memory_stats(index)
    kinds = ("allocated_bytes", "reserved_bytes", "active_bytes")
    return [stats[kind]["all"]["peak"] for kind in kinds]


def _peaks_from_torch(index: int) -> list[int | None]:
    if _device.accelerator() != "xpu":
        raise RuntimeError(
            f"get_gpu_memory_from_ipex(device={index}): torch finds no Intel XPU and "
            "intel_extension_for_pytorch is not installed; install a build of torch for XPU."
        )
    xpu = torch.device("xpu", index)
    peak = _device.peak_memory(xpu)
    _device.reset_peak_memory(xpu)
    return [peak.allocated, peak.reserved, peak.active]


def _index_on(kind: str, device: int | str | torch.device) -> int:
    """Returns the index that any form of a device gives, refusing one of another kind by name."""
    resolved = _device.resolve_device(device)
    if not isinstance(device, str | torch.device):
        return operator.index(device)  # a torch.device holds eight bits of it
    if resolved.type != kind:
        raise ValueError(
            f"device={device!r} is not a device of type {kind!r}; give an index or '{kind}:INDEX'."
        )
    return resolved.index


# -- units -----------------------------------------------------------------------------------------


def byte_to_megabyte(value: float, digits: int = 2) -> float:
    """Converts bytes to MiB (2**20 bytes), the unit that the reference calls a megabyte.

    Args:
        value: Bytes.
        digits: Decimals to round to.

    Returns:
        MiB.

    Example:
        >>> byte_to_megabyte(2**20)
        1.0
    """
    return round(value / 2**20, digits)


def medibyte_to_megabyte(value: float, digits: int = 2) -> float:
    """Converts MiB (2**20 bytes) to megabytes (10**6 bytes) by the reference's factor 1.0485.

    Args:
        value: MiB.
        digits: Decimals to round to.

    Returns:
        Megabytes, 0.0073 % less than the exact factor 1.048576 gives.

    Example:
        >>> medibyte_to_megabyte(1000)
        1048.5
    """
    return round(1.0485 * value, digits)
