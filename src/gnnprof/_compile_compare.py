"""Compares what two runs of a model did: outputs, buffers, gradients.

The rule, for each tensor: the largest difference may be at most
``atol + rtol * (largest element of the eager tensor)``. A GNN's gradients are sums over nodes and
edges whose order a compiler changes, so that an element near 0 has no relative accuracy of its own;
the tensor's scale is what rounding errors grow with. Without a tolerance of the user, `rtol` is
1e-9 for float64, 1e-4 for float32, 5e-3 for float16 and 3e-2 for bfloat16, and `atol` a tenth of it
times the largest element in the whole group (all outputs, or all gradients): the gradient of a bias
in front of a BatchNorm is 0 but for rounding. Of complex numbers the parts are compared, by the
tolerance of their precision. Integers must be equal.

Where a tensor lies outside and the user gave no tolerance, a float64 run of eager decides: the
compiled tensor may be ten times as far from it as eager's own. So low precision (autocast inside a
training step, say) is judged by what eager itself loses.

One thing remains: an activation that is 0 but for rounding may be on the other side of ReLU's kink
in the compiled model. The outputs hardly differ, but the gradients of that activation come or go as
a whole. So gradients that are outside while the outputs are not are called a `doubt`, which the
caller settles by comparing the two models in float64, where no activation is that close to 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnprof._tensors import iter_tensors

_RTOL = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 5e-3,
    torch.bfloat16: 3e-2,
    torch.complex128: 1e-9,
    torch.complex64: 1e-4,
}
_ATOL_SHARE = 0.1
_TIMES_EAGER = 10.0
_KINDS = ("outputs", "gradients", "buffers")
_MOST_BY_KINKS = 0.1
_LEAST_SCALE = 1e-3  # of the group's largest element: what is smaller may be 0 but for rounding


@dataclass(frozen=True)
class Effect:
    """What one call did, in tensors of its own.

    Attributes:
        outputs: The tensors, and the numbers, that it returned.
        gradients: Gradients of the parameters and inputs that require them; None where none came.
        buffers: The model's buffers afterwards.
        random: Whether it drew random numbers of torch.
    """

    outputs: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    buffers: tuple[Tensor, ...]
    random: bool = False

    @classmethod
    def of(
        cls,
        returned: Any,
        gradients: Iterable[Tensor | None],
        buffers: Iterable[Tensor],
        *,
        random: bool,
    ) -> Effect:
        """Copy what a call returned and left behind."""
        if isinstance(returned, (bool, int, float)):
            # float32 at most is what a model's loss carries, however Python widens it.
            returned = torch.tensor(returned, dtype=torch.float32)
        return cls(
            tuple(_kept(tensor) for tensor in iter_tensors(returned)),
            tuple(None if gradient is None else _kept(gradient) for gradient in gradients),
            tuple(_kept(buffer) for buffer in buffers),
            random,
        )

    def then(self, later: Effect) -> Effect:
        """Return the effect of this call and a later one together."""
        return Effect(
            self.outputs + later.outputs,
            self.gradients + later.gradients,
            later.buffers,
            self.random or later.random,
        )

    @property
    def tells_something(self) -> bool:
        """Whether there is anything to compare."""
        return bool(self.outputs) or any(gradient is not None for gradient in self.gradients)


@dataclass(frozen=True)
class Tolerance:
    """What the user allows; None for the defaults of the module's docstring."""

    rtol: float | None = None
    atol: float | None = None

    @property
    def is_default(self) -> bool:
        """Whether the user left the rule to us."""
        return self.rtol is None and self.atol is None

    def allowed(self, reference: Tensor, largest_of_group: float) -> float:
        """The largest difference from a reference that is no error."""
        rtol = _RTOL.get(reference.dtype, 0.0) if self.rtol is None else self.rtol
        if self.atol is not None:
            floor = self.atol
        else:
            floor = _ATOL_SHARE * rtol * largest_of_group if self.rtol is None else 0.0
        return floor + rtol * largest(reference)


@dataclass(frozen=True)
class Errors:
    """How far a run is from eager.

    Attributes:
        max_abs: Largest difference of an output element; None where nothing can be compared.
        max_rel: Largest, over the outputs, of that difference over the output's largest element
            (over a thousandth of the largest of all outputs, where that is more).
        max_abs_grad: As `max_abs`, of the gradients.
        max_rel_grad: As `max_rel`, of the gradients.
        wrong: What is wrong; None if the run agrees with eager.
        is_doubt: Whether what is wrong may be an activation on a kink: nothing but gradients, and
            those, as one vector, by at most 10 % of its length.
    """

    max_abs: float | None
    max_rel: float | None
    max_abs_grad: float | None
    max_rel_grad: float | None
    wrong: str | None
    is_doubt: bool = False

    @property
    def figures(self) -> dict[str, float | None]:
        """The differences, by the names of the fields of a row."""
        return {
            "max_abs_error": self.max_abs,
            "max_rel_error": self.max_rel,
            "max_abs_error_grad": self.max_abs_grad,
            "max_rel_error_grad": self.max_rel_grad,
        }


@dataclass(frozen=True)
class _Group:
    max_abs: float | None = None
    max_rel: float | None = None
    wrong: str | None = None


def compare(
    reference: Effect,
    got: Effect,
    tolerance: Tolerance,
    precise: Callable[[], Effect | None] = lambda: None,
) -> Errors:
    """Compare a run with eager's.

    Args:
        reference: What eager did.
        got: What the other run did.
        tolerance: What is allowed.
        precise: Gives eager's effect in float64, or None if that cannot be had; asked only where
            the default tolerance is exceeded.
    """
    groups = {
        kind: _compare_group(kind, getattr(reference, kind), getattr(got, kind), tolerance)
        for kind in _KINDS
    }
    wrong = {kind: groups[kind].wrong for kind in _KINDS if groups[kind].wrong}
    if wrong and tolerance.is_default and _is_rounding(reference, got, precise()):
        wrong = {}
    outputs, gradients = groups["outputs"], groups["gradients"]
    return Errors(
        outputs.max_abs,
        outputs.max_rel,
        gradients.max_abs,
        gradients.max_rel,
        next(iter(wrong.values()), None),
        is_doubt=[*wrong] == ["gradients"]
        and tolerance.is_default
        and _relative_distance(reference.gradients, got.gradients) <= _MOST_BY_KINKS,
    )


def comparable_phases(reference: Sequence[Effect]) -> int:
    """How many phases come before the first one in which eager drew random numbers.

    That one cannot be compared, because compiled code draws others, nor can what follows on it.
    """
    drew = [effect.random for effect in reference]
    return drew.index(True) if True in drew else len(drew)


def compare_phases(
    reference: Sequence[Effect],
    got: Sequence[Effect],
    tolerance: Tolerance,
    precise: Callable[[], Sequence[Effect] | None] = lambda: None,
) -> Errors:
    """Compare the phases of a call that can be compared; without any, all figures are None.

    Args:
        reference: What eager did, one effect for each phase.
        got: What the other run did, likewise.
        tolerance: What is allowed.
        precise: As in `compare`, one effect for each phase.
    """
    count = comparable_phases(reference)
    if count == 0:
        return Errors(None, None, None, None, None)

    def precise_effect() -> Effect | None:
        effects = precise()
        return None if effects is None else joined(effects[:count])

    return compare(joined(reference[:count]), joined(got[:count]), tolerance, precise_effect)


def joined(effects: Sequence[Effect]) -> Effect:
    """Return the effect of phases that ran one after the other."""
    return functools.reduce(Effect.then, effects)


def _relative_distance(reference: Sequence[Tensor | None], got: Sequence[Tensor | None]) -> float:
    """Distance of two gradients as vectors, over the length of the first; infinite without one."""
    if len(reference) != len(got) or any(
        _mismatch(eager, other) is not None for eager, other in zip(reference, got, strict=True)
    ):
        return math.inf
    pairs = [
        (_plain(eager), _plain(other))
        for eager, other in zip(reference, got, strict=True)
        if eager is not None and other is not None
    ]
    length = math.hypot(*(float(eager.norm()) for eager, _ in pairs))
    distance = math.hypot(*(float((other - eager).norm()) for eager, other in pairs))
    return distance / length if length > 0 else math.inf


def largest(tensor: Tensor) -> float:
    """Largest finite magnitude of a tensor, 0.0 for an empty one."""
    if tensor.numel() == 0:
        return 0.0
    values = _plain(tensor).abs()
    return float(torch.where(torch.isfinite(values), values, 0).max())


def _compare_group(
    kind: str,
    reference: Sequence[Tensor | None],
    got: Sequence[Tensor | None],
    tolerance: Tolerance,
) -> _Group:
    if len(reference) != len(got):
        return _Group(wrong=f"{len(got)} {kind} instead of {len(reference)}")
    scale = max((largest(one) for one in reference if one is not None), default=0.0)
    worst: float | None = None
    worst_relative: float | None = None
    wrong = None
    for number, (eager, other) in enumerate(zip(reference, got, strict=True)):
        name = f"{kind}[{number}]"
        mismatch = _mismatch(eager, other)
        if mismatch is not None:
            return _Group(wrong=f"{name}: {mismatch}")
        if eager is None or other is None:
            continue
        difference, size = largest_difference(eager, other), largest(eager)
        worst = max(worst or 0.0, difference)
        if max(size, scale) > 0:
            relative = difference / max(size, _LEAST_SCALE * scale)
            worst_relative = max(worst_relative or 0.0, relative)
        allowed = tolerance.allowed(eager, scale)
        if difference > allowed and wrong is None:
            wrong = f"{name} differs by {difference:.3g}, {allowed:.3g} is allowed"
    return _Group(worst, worst_relative, wrong)


def _mismatch(eager: Tensor | None, other: Tensor | None) -> str | None:
    """Tell what cannot be put into a difference: presence, dtype, shape, NaN and infinity."""
    if eager is None or other is None:
        if eager is other:
            return None
        return "there is none in eager" if eager is None else "it is missing"
    if eager.dtype != other.dtype:
        return f"dtype {other.dtype} instead of {eager.dtype}"
    if eager.shape != other.shape:
        return f"shape {tuple(other.shape)} instead of {tuple(eager.shape)}"
    left, right = _plain(eager), _plain(other)
    finite = torch.isfinite(left)
    if not torch.equal(finite, torch.isfinite(right)):
        return "NaN or infinity where eager has none, or the other way round"
    same = torch.eq(left, right) | (torch.isnan(left) & torch.isnan(right)) | finite
    return None if bool(same.all()) else "another infinity than in eager"


def largest_difference(eager: Tensor, other: Tensor) -> float:
    """Largest difference between two tensors of one shape, where both are finite."""
    if eager.numel() == 0:
        return 0.0
    left, right = _plain(eager), _plain(other)
    difference = (left - right).abs()
    return float(torch.where(torch.isfinite(left), difference, 0).max())


def _is_rounding(reference: Effect, got: Effect, precise: Effect | None) -> bool:
    """Tell whether a run is about as close to a float64 run as eager is."""
    if precise is None:
        return False
    for kind in _KINDS:
        group = list(
            zip(getattr(reference, kind), getattr(got, kind), getattr(precise, kind), strict=False)
        )
        if len(group) != len(getattr(reference, kind)) or len(group) != len(getattr(got, kind)):
            return False
        if not all(_as_close(*three) for three in group):
            return False
    return True


def _as_close(eager: Tensor | None, other: Tensor | None, precise: Tensor | None) -> bool:
    if eager is None or other is None or precise is None:
        return eager is None and other is None
    if _mismatch(eager, other) is not None or eager.shape != precise.shape:
        return False
    if eager.dtype not in _RTOL:
        return torch.equal(eager, other)
    own = largest_difference(precise, eager)  # in float64, whatever they are
    least = torch.finfo(eager.dtype).eps * largest(precise)
    return largest_difference(precise, other) <= _TIMES_EAGER * max(own, least)


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _plain(tensor: Tensor) -> Tensor:
    """A dense tensor that can be subtracted: float64, in which every integer up to 2**53 is exact.

    float64 also keeps the difference itself from rounding.
    """
    dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
    if dense.is_complex():
        dense = torch.view_as_real(dense.resolve_conj())
    return dense.to(torch.float64) if dense.device.type != "mps" else dense.to(torch.float32)
