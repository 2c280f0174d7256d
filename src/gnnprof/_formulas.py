"""How much one op computes and how much memory it moves, from its arguments and results alone.

FLOPs: one addition, multiplication, comparison or call of an elementary function on floating-point
numbers is one, so that a multiply-add is two. Bytes: the distinct input bytes that the op reads
and the output bytes that it writes. Both are properties of the op, not of a machine: what a cache
saves or a kernel wastes is for a measurement to show.

The tables below name every op that the rules do not cover. ``docs/source/counting.rst`` prints
them for users, and a test holds the two together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload

from gnnprof._tensors import distinct_bytes, iter_tensors


def _names(text: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in text.split())


BATCH_NORMS = _names(
    "native_batch_norm _native_batch_norm_legit cudnn_batch_norm miopen_batch_norm"
)
"""Ops that write their running statistics in training, most without saying so in their schema."""


@dataclass(frozen=True)
class OpCall:
    """One op as the dispatcher saw it.

    Attributes:
        func: The op.
        args: Positional arguments, as given.
        kwargs: Keyword arguments, as given.
        result: What the op returned.
        arguments: All given arguments by the names in the op's schema.
        mutated: Names of the arguments that the op writes.
        discarded: Names of those among them whose earlier contents do not matter (`out=`).
    """

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    arguments: Mapping[str, Any]
    mutated: frozenset[str]
    discarded: frozenset[str]

    @classmethod
    def of(cls, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> OpCall:
        """Name the arguments of a call by its schema; a higher-order op has none."""
        if not isinstance(func, OpOverload):
            named = {str(position): value for position, value in enumerate(args)}
            return cls(func, args, kwargs, result, {**named, **kwargs}, frozenset(), frozenset())
        schema = func._schema.arguments
        # A schema may have more arguments than the call gives: the rest are defaults.
        arguments = {formal.name: value for formal, value in zip(schema, args, strict=False)}
        written = [a for a in schema if a.alias_info is not None and a.alias_info.is_write]
        return cls(
            func,
            args,
            kwargs,
            result,
            {**arguments, **kwargs},
            frozenset(a.name for a in written),
            frozenset(a.name for a in written if a.is_out),
        )

    @property
    def name(self) -> str:
        """Name as the torch profiler gives it: `'aten::scatter_add_'`."""
        if isinstance(self.func, OpOverload):
            return str(self.func._schema.name)
        return f"higher_order::{self.func.name()}"

    @property
    def base(self) -> str:
        """Name without the underscore of the in-place variant, which computes the same."""
        name = self.name
        return name[:-1] if name.endswith("_") and not name.endswith("__") else name

    @functools.cached_property
    def inputs(self) -> list[Tensor]:
        """Every tensor among the arguments."""
        return list(iter_tensors(list(self.arguments.values())))

    @functools.cached_property
    def outputs(self) -> list[Tensor]:
        """Every tensor that the op returned."""
        return list(iter_tensors([self.result]))

    @functools.cached_property
    def is_view(self) -> bool:
        """Whether the op gave nothing but tensors in the memory of its inputs, and wrote none.

        Either its schema says so, or the results add nothing to the memory of the inputs.
        """
        outputs, inputs = self.outputs, self.inputs
        if not outputs or self.mutated or not isinstance(self.func, OpOverload):
            return False
        if all(returned.alias_info is not None for returned in self.func._schema.returns):
            return True
        new = distinct_bytes([*inputs, *outputs]) - distinct_bytes(inputs)
        return new == 0 and distinct_bytes(outputs) > 0

    @functools.cached_property
    def written(self) -> list[Tensor]:
        """Every tensor that holds a result: returned, changed in place, or both."""
        changed = [self.arguments[name] for name in self.mutated if name in self.arguments]
        return list(iter_tensors([self.result, changed, hidden_writes(self)]))

    def tensor(self, name: str) -> Tensor:
        """Return an argument that is a tensor by the op's schema."""
        value: Tensor = self.arguments[name]
        return value


def hidden_writes(call: OpCall) -> list[Tensor]:
    """Return the arguments that an op changes although its schema does not say so."""
    if call.name not in BATCH_NORMS or not call.arguments["training"]:
        return []
    running = (call.arguments.get("running_mean"), call.arguments.get("running_var"))
    return [statistic for statistic in running if statistic is not None]


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def stored(tensor: Tensor) -> Tensor:
    """Return the elements that a tensor stores: itself, or the values of a sparse one."""
    if tensor.layout == torch.sparse_coo:
        return tensor._values()
    return tensor.values() if tensor.layout in _COMPRESSED else tensor


def elements(tensor: Tensor) -> int:
    """Return the number of elements that a tensor stores; of a sparse one, its values."""
    return stored(tensor).numel()


def is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor stores only some of its elements."""
    return tensor.layout == torch.sparse_coo or tensor.layout in _COMPRESSED


def is_numeric(tensor: Tensor) -> bool:
    """Whether the elements are floating-point or complex numbers."""
    return tensor.is_floating_point() or tensor.is_complex()


# -- floating-point operations ---------------------------------------------------------------------

Formula: TypeAlias = "Callable[[OpCall], int | None]"


def count_flops(call: OpCall) -> int | None:
    """Return the floating-point operations of one call.

    In this order: a view and an op without floating-point results compute none; the table of this
    module; torch's own registry (`torch.utils.flop_counter`); one operation per element written
    for every op that torch tags as pointwise.

    Returns:
        The number, or None if none of these knows the op.
    """
    if call.is_view or not any(is_numeric(result) for result in call.written):
        return 0
    formula = FORMULAS.get(call.base) or _registered(call.func)
    if formula is not None:
        return formula(call)
    return _first_elements(call) if _is_pointwise(call.func) else None


def _registered(func: Any) -> Formula | None:
    """Look an op up in torch's registry."""
    # Imported here because it looks for triton, which takes a moment where that is installed.
    from torch.utils.flop_counter import flop_registry

    formula = flop_registry.get(getattr(func, "overloadpacket", func))
    if formula is None:
        return None
    return lambda call: int(formula(*call.args, **call.kwargs, out_val=call.result))


@functools.lru_cache(maxsize=1024)
def _is_pointwise(func: Any) -> bool:
    """Whether torch tags an op, or any other overload of it, as pointwise."""
    if not isinstance(func, OpOverload):
        return False
    packet = func.overloadpacket
    tags = [getattr(packet, overload).tags for overload in packet.overloads()]
    return any(torch.Tag.pointwise in of_overload for of_overload in tags)


def _first_elements(call: OpCall) -> int:
    """Return the elements of the main result: the first one written."""
    return elements(call.written[0])


def _per_result(count: int) -> Formula:
    return lambda call: count * _first_elements(call)


def _per_input(count: int) -> Formula:
    return lambda call: count * elements(call.inputs[0])


def _per_argument(name: str) -> Formula:
    return lambda call: elements(call.tensor(name))


def _nothing(_call: OpCall) -> int:
    return 0


def _scatter(call: OpCall) -> int:
    """One operation per element that is combined with another, none where elements replace."""
    if "reduce" not in call.arguments:
        return 0
    combined = elements(call.tensor("index"))
    divisions = _first_elements(call) if call.arguments["reduce"] == "mean" else 0
    return combined + divisions


def _index_put(call: OpCall) -> int:
    if not call.arguments.get("accumulate", False):
        return 0
    return _indexed(call.tensor("self"), call.arguments["indices"])


def _matrix_product(call: OpCall) -> int | None:
    """Two per stored element of one factor and row or column of the other.

    `2 m k n` of a dense product and `2 nnz n` of a sparse-dense one, with or without a matrix that
    is added (which torch's registry does not count either).
    """
    given = [t for name, t in call.arguments.items() if name not in call.discarded]
    left, right = [t for t in given if isinstance(t, Tensor)][-2:]
    if is_sparse(left) and is_sparse(right):
        return None  # depends on where the two patterns meet
    if is_sparse(right):
        return 2 * elements(right) * left.shape[-2]
    return 2 * elements(left) * (right.shape[-1] if right.dim() > 1 else 1)


def _normalisation(call: OpCall) -> int:
    """Eight per element in training, less what is left out.

    Mean (one addition), variance (subtract, square, add), normalising (subtract, multiply), weight
    (multiply) and bias (add).
    """
    statistics = 4 if call.arguments.get("training", True) else 0
    affine = 2 if call.arguments.get("weight") is not None else 0
    return (statistics + 2 + affine) * _first_elements(call)


def _attention(call: OpCall) -> int:
    """`2 b h s_q s_k (d_k + d_v)`: the two matrix products, as torch counts its other variants."""
    query, key, value = (call.tensor(name).shape for name in ("query", "key", "value"))
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


MOVES: tuple[str, ...] = _names(
    "clone copy _to_copy contiguous cat stack repeat roll flip constant_pad_nd "
    "to_dense _to_dense _to_sparse _to_sparse_csr _to_sparse_csc sparse_mask "
    "index_select gather index embedding take masked_select where masked_fill masked_scatter "
    "index_copy index_fill select_scatter slice_scatter select_backward slice_backward "
    "unfold_backward value_selecting_reduction_backward tril triu sort topk kthvalue unique_dim "
    "fill zero zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full "
    "scalar_tensor arange linspace eye empty empty_like new_empty empty_strided new_empty_strided "
    "rand rand_like randn randn_like bernoulli normal normal_functional uniform exponential random "
    "lift_fresh _local_scalar_dense resize set"
)
"""Ops that move, select, create or order numbers and compute none."""

PER_RESULT: dict[str, int] = {
    **dict.fromkeys(
        _names(
            "leaky_relu_backward elu_backward hardtanh_backward log_sigmoid_forward "
            "log_sigmoid_backward _prelu_kernel glu rrelu_with_noise cumsum cumprod"
        ),
        1,
    ),
    **dict.fromkeys(_names("native_dropout native_dropout_backward"), 2),
    **dict.fromkeys(_names("addcmul addcdiv lerp mse_loss_backward"), 3),
    **dict.fromkeys(_names("_softmax_backward_data _log_softmax_backward_data"), 4),
    **dict.fromkeys(_names("_softmax _log_softmax"), 5),
    **dict.fromkeys(
        _names("native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward"), 9
    ),
    "aten::native_layer_norm_backward": 13,
    "aten::native_group_norm_backward": 13,
}
"""Operations per element of the main result, for ops that are not pointwise or take several."""

PER_INPUT: dict[str, int] = {
    **dict.fromkeys(
        _names(
            "sum mean nansum prod amax amin max min segment_reduce _segment_reduce_backward "
            "embedding_dense_backward _coalesce"
        ),
        1,
    ),
    **dict.fromkeys(_names("linalg_vector_norm norm"), 2),
    **dict.fromkeys(_names("logsumexp mse_loss"), 3),
    **dict.fromkeys(_names("var std var_mean std_mean"), 4),
}
"""Operations per element of the first input: reductions."""

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(MOVES, _nothing),
    **{name: _per_result(count) for name, count in PER_RESULT.items()},
    **{name: _per_input(count) for name, count in PER_INPUT.items()},
    "aten::scatter": _scatter,
    "aten::scatter_reduce": _scatter,
    "aten::scatter_add": _per_argument("index"),
    "aten::index_add": _per_argument("source"),
    "aten::index_reduce": _per_argument("source"),
    "aten::index_put": _index_put,
    "aten::_index_put_impl": _index_put,
    "aten::nll_loss_forward": _per_argument("target"),
    "aten::nll_loss_backward": _per_argument("target"),
    **dict.fromkeys(
        _names(
            "mm addmm bmm baddbmm mv addmv dot vdot _sparse_mm _sparse_addmm _sparse_mm_reduce_impl"
        ),
        _matrix_product,
    ),
    **dict.fromkeys((*BATCH_NORMS, *_names("native_layer_norm native_group_norm")), _normalisation),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
}
"""The formulas of this package, by the name of the op without the underscore of in-place ops."""


# -- bytes -----------------------------------------------------------------------------------------

GATHERS = frozenset(_names("index_select gather index embedding take"))
"""Ops that read those elements of their source that an index names."""

SCATTERS = frozenset(
    _names(
        "scatter_ scatter_add_ scatter_reduce_ index_add_ index_reduce_ index_copy_ index_fill_ "
        "index_put_ _index_put_impl_"
    )
)
"""Ops that change those elements of their target that an index names."""

OVERWRITES = frozenset(
    _names(
        "copy_ fill_ zero_ bernoulli_ normal_ uniform_ exponential_ random_ geometric_ "
        "log_normal_ cauchy_ index_copy_ index_fill_"
    )
)
"""In-place ops that write without reading what was there."""

UNINITIALISED = frozenset(
    _names("empty empty_like new_empty empty_strided new_empty_strided resize_ set_")
)
"""Ops that touch no elements: they reserve memory, or change what a tensor refers to."""

READS_ONLY = frozenset(_names("_local_scalar_dense equal"))
"""Ops that read elements and give no tensor."""

SKIPS_SELF_AT_BETA_0 = frozenset(_names("addmm addmv addbmm baddbmm _sparse_addmm"))
"""Ops that do not look at the matrix to be added where it is multiplied by zero."""


def count_bytes(call: OpCall) -> int:
    """Return the bytes that one call moves: distinct input bytes read, plus output bytes written.

    Bytes are those of :func:`gnnprof._tensors.distinct_bytes`: the elements of a tensor, whatever
    they share counted once. So an expanded index counts the row that it repeats, and `x * x` reads
    `x` once. An argument changed in place is read and written; one that is overwritten (`copy_`,
    `out=`) only written. A view, whose elements all lie in the memory of the inputs, moves nothing.

    A gather reads no more of its source than it returns, and a scatter touches no more of its
    target than its index names: `min(source, result)` and `min(target, named elements)` bytes.
    """
    if call.name in UNINITIALISED or call.is_view:
        return 0
    if not call.written and call.name not in READS_ONLY:
        return 0  # asks for a shape or a device
    if call.name in GATHERS:
        return _gather_bytes(call)
    if call.name in SCATTERS:
        return _scatter_bytes(call)
    return distinct_bytes(_read(call)) + distinct_bytes(call.written)


def _read(call: OpCall) -> list[Tensor]:
    """Return the tensors whose elements a call reads."""
    return list(
        iter_tensors([value for name, value in call.arguments.items() if _is_read(call, name)])
    )


def _is_read(call: OpCall, name: str) -> bool:
    if name in call.discarded:
        return False
    if name != "self":
        return True
    operator = call.name.removeprefix("aten::")
    only_its_shape = operator.startswith("new_") or operator.endswith("_like")
    times_zero = call.base in SKIPS_SELF_AT_BETA_0 and call.arguments.get("beta") == 0
    return not (call.name in OVERWRITES or only_its_shape or times_zero)


def _gather_bytes(call: OpCall) -> int:
    source, *indices = (t for name, t in _named_tensors(call) if name not in call.discarded)
    written = distinct_bytes(call.written)
    return min(distinct_bytes([source]), written) + distinct_bytes(indices) + written


def _scatter_bytes(call: OpCall) -> int:
    target = call.tensor("self")
    others = [tensor for name, tensor in _named_tensors(call) if name != "self"]
    touched = min(distinct_bytes([target]), _named_elements(call) * target.element_size())
    return (0 if _replaces(call) else touched) + distinct_bytes(others) + touched


def _named_tensors(call: OpCall) -> Iterable[tuple[str, Tensor]]:
    for name, value in call.arguments.items():
        for tensor in iter_tensors([value]):
            yield name, tensor


def _replaces(call: OpCall) -> bool:
    """Whether a scatter writes its elements without combining them with what was there."""
    if call.base in ("aten::index_put", "aten::_index_put_impl"):
        return not call.arguments.get("accumulate", False)
    plain_scatter = call.name == "aten::scatter_" and "reduce" not in call.arguments
    return plain_scatter or call.name in OVERWRITES


def _named_elements(call: OpCall) -> int:
    """Return how many elements of the target the index of a scatter names, repeats included."""
    target = call.tensor("self")
    if "indices" in call.arguments:
        return _indexed(target, call.arguments["indices"])
    named = call.tensor("index").numel()
    if call.name.startswith("aten::scatter"):
        return named
    dim: int = call.arguments["dim"]
    others = [size for position, size in enumerate(target.shape) if position != dim % target.dim()]
    return named * math.prod(others)


def _indexed(target: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Return the number of elements of `target[indices]`; with masks, the most it can be."""
    given = [index for index in indices if index is not None]
    if any(not _is_integer(index) for index in given):
        return target.numel()
    shapes = (index.shape for index in given)
    places = math.prod(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    padded = [*indices, *[None] * (target.dim() - len(indices))]
    slices = [size for size, index in zip(target.shape, padded, strict=True) if index is None]
    return int(places * math.prod(slices))


def _is_integer(index: Tensor) -> bool:
    return index.dtype not in (torch.bool, torch.uint8)
