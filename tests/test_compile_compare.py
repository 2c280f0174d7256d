"""The comparison with eager on tensors whose differences are known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnprof._compile_compare import Effect, Tolerance, compare, compare_phases, largest


def effect(*outputs: Tensor, gradients: tuple[Tensor | None, ...] = (), buffers=()) -> Effect:
    return Effect(tuple(outputs), gradients, tuple(buffers))


ONES = torch.ones(3)


def test_equal_effects_have_no_error():
    errors = compare(
        effect(ONES, gradients=(ONES, None)), effect(ONES, gradients=(ONES, None)), Tolerance()
    )
    assert (errors.max_abs, errors.max_rel) == (0.0, 0.0)
    assert (errors.max_abs_grad, errors.max_rel_grad) == (0.0, 0.0)
    assert errors.wrong is None


def test_the_largest_difference_counts_against_the_tensors_scale():
    reference = torch.tensor([1e-9, 8.0])
    errors = compare(effect(reference), effect(reference + torch.tensor([4e-4, 0.0])), Tolerance())
    assert errors.max_abs == pytest.approx(4e-4)
    assert errors.max_rel == pytest.approx(5e-5)
    assert errors.wrong is None  # 1e-4 of 8 is allowed, whatever the element
    assert errors.max_abs_grad is None
    errors = compare(effect(reference), effect(reference + 1e-3), Tolerance())
    assert errors.wrong == "outputs[0] differs by 0.001, 0.00088 is allowed"


def test_a_gradient_that_is_zero_but_for_rounding_is_measured_by_its_group():
    """A bias in front of a BatchNorm."""
    weight, bias = torch.tensor([100.0]), torch.tensor([1e-6])
    reference = effect(gradients=(weight, bias))
    errors = compare(reference, effect(gradients=(weight, -bias)), Tolerance())
    assert errors.wrong is None
    assert errors.max_rel_grad == pytest.approx(2e-6 / 0.1)  # a thousandth of 100 is its scale
    assert compare(reference, effect(gradients=(weight, bias + 0.1)), Tolerance()).wrong


@pytest.mark.parametrize(
    ("dtype", "fine", "wrong"),
    [
        (torch.float64, 1e-10, 1e-8),
        (torch.float32, 1e-5, 1e-3),
        (torch.float16, 2e-3, 2e-2),
        (torch.bfloat16, 1e-2, 1e-1),
        (torch.complex64, 1e-5j, 1e-3j),
        (torch.complex128, 1e-10, 1e-8j),
    ],
)
def test_the_tolerance_goes_by_the_dtype(dtype, fine, wrong):
    one = torch.ones(3, dtype=dtype)
    assert compare(effect(one), effect(one + fine), Tolerance()).wrong is None
    assert compare(effect(one), effect(one + wrong), Tolerance()).wrong is not None


@pytest.mark.parametrize("one", [torch.tensor([1, 2]), torch.tensor([True, False])])
def test_integers_must_be_equal(one):
    other = one.clone()
    other[1] = 1 - other[1].int() if one.dtype == torch.bool else 3
    assert compare(effect(one), effect(one), Tolerance()).wrong is None
    assert compare(effect(one), effect(other), Tolerance()).wrong is not None


@pytest.mark.parametrize(
    ("reference", "got", "message"),
    [
        (effect(ONES), effect(), "0 outputs instead of 1"),
        (effect(ONES), effect(torch.ones(4)), r"outputs[0]: shape (4,) instead of (3,)"),
        (effect(ONES), effect(ONES.double()), "outputs[0]: dtype torch.float64 instead"),
        (effect(ONES), effect(ONES / 0), "outputs[0]: NaN or infinity"),
        (effect(ONES / 0), effect(-ONES / 0), "outputs[0]: another infinity"),
        (effect(gradients=(ONES,)), effect(gradients=(None,)), "gradients[0]: it is missing"),
        (effect(gradients=(None,)), effect(gradients=(ONES,)), "gradients[0]: there is none"),
        (effect(ONES, buffers=(ONES,)), effect(ONES, buffers=(2 * ONES,)), "buffers[0] differs"),
    ],
)
def test_what_is_wrong_is_told(reference, got, message):
    found = compare(reference, got, Tolerance()).wrong
    assert found is not None
    assert found.startswith(message)


def test_the_same_nan_and_infinity_are_right():
    odd = torch.tensor([float("nan"), float("inf"), 1.0])
    errors = compare(effect(odd), effect(odd.clone()), Tolerance())
    assert (errors.wrong, errors.max_abs) == (None, 0.0)


def test_an_error_against_nothing_but_zeros_has_no_relative_size():
    errors = compare(effect(torch.zeros(2)), effect(torch.tensor([0.0, 1.0])), Tolerance())
    assert (errors.max_abs, errors.max_rel) == (1.0, None)
    assert errors.wrong is not None


def test_float64_decides_where_eager_itself_is_inexact():
    exact = torch.tensor([1.0], dtype=torch.float64)
    eager, other = torch.tensor([1.01]), torch.tensor([0.95])
    with_reference = compare(effect(eager), effect(other), Tolerance(), lambda: effect(exact))
    assert with_reference.wrong is None  # 0.05 is within ten times eager's own 0.01
    assert with_reference.max_abs == pytest.approx(0.06)
    far = compare(effect(eager), effect(torch.tensor([0.8])), Tolerance(), lambda: effect(exact))
    assert far.wrong is not None
    assert compare(effect(eager), effect(other), Tolerance()).wrong is not None
    strict = compare(effect(eager), effect(other), Tolerance(rtol=1e-3), lambda: effect(exact))
    assert strict.wrong is not None  # the user's word is final


def test_complex128_decides_about_complex64():
    exact = torch.tensor([1j], dtype=torch.complex128)
    eager, other = torch.tensor([1.01j]), torch.tensor([0.95j])
    assert compare(effect(eager), effect(other), Tolerance(), lambda: effect(exact)).wrong is None
    far = torch.tensor([0.8j])
    assert compare(effect(eager), effect(far), Tolerance(), lambda: effect(exact)).wrong


def drawing(*outputs: Tensor) -> Effect:
    return Effect(tuple(outputs), (), (), random=True)


def test_phases_are_compared_up_to_the_first_that_draws_random_numbers():
    two = (effect(ONES), drawing(ONES))
    other = (effect(ONES), drawing(2 * ONES))
    assert compare_phases(two, other, Tolerance()).wrong is None
    assert compare_phases(two, (effect(2 * ONES), drawing(ONES)), Tolerance()).wrong
    # What follows on random numbers depends on them.
    assert compare_phases(two[::-1], other[::-1], Tolerance()).max_abs is None
    both = compare_phases(
        (effect(ONES), effect(ONES)), (effect(ONES), effect(2 * ONES)), Tolerance()
    )
    assert both.wrong == "outputs[1] differs by 1, 0.00011 is allowed"
    assert both.max_abs == 1.0


def test_the_precise_run_is_cut_to_the_phases_that_are_compared():
    exact = (effect(torch.tensor([1.0], dtype=torch.float64)), drawing(ONES))
    eager, other = (effect(torch.tensor([value])) for value in (1.01, 0.95))
    phases = ((one, drawing(ONES)) for one in (eager, other))
    assert compare_phases(*phases, Tolerance(), lambda: exact).wrong is None


def test_the_reference_is_asked_for_only_when_needed():
    def never() -> Effect:
        raise AssertionError

    assert compare(effect(ONES), effect(ONES), Tolerance(), never).wrong is None


def test_complex_and_sparse_tensors_are_compared():
    wave = torch.tensor([3 + 4j])
    assert compare(effect(wave), effect(wave + 1j), Tolerance()).max_abs == pytest.approx(1.0)
    sparse = torch.eye(2).to_sparse()
    errors = compare(effect(sparse), effect((2 * torch.eye(2)).to_sparse()), Tolerance())
    assert errors.max_abs == 1.0


def test_numbers_returned_are_compared_as_float32():
    kept = Effect.of(0.1, [], [], random=False)
    assert kept.outputs[0].dtype == torch.float32
    assert kept.tells_something
    assert not Effect.of(None, [None], [], random=False).tells_something


def test_kept_tensors_are_copies():
    x = torch.ones(2)
    kept = Effect.of({"a": [x]}, [x], [x], random=False)
    x.zero_()
    assert largest(kept.outputs[0]) == largest(kept.buffers[0]) == 1.0
    assert largest(torch.ones(0)) == 0.0


@pytest.mark.parametrize(
    ("got", "tolerance", "is_doubt"),
    [
        (effect(ONES, gradients=(ONES, 1.05 * ONES)), Tolerance(), True),
        (effect(ONES, gradients=(ONES, 1.2 * ONES)), Tolerance(), False),  # too much for a kink
        (effect(ONES, gradients=(ONES, 1.05 * ONES)), Tolerance(rtol=1e-3), False),  # the user's
        (effect(1.05 * ONES, gradients=(ONES, 1.05 * ONES)), Tolerance(), False),
        (effect(ONES, gradients=(ONES, 1.05 * ONES), buffers=(ONES,)), Tolerance(), False),
        (effect(ONES, gradients=(ONES, None)), Tolerance(), False),
        (effect(ONES, gradients=(ONES, ONES)), Tolerance(), False),  # nothing is wrong
    ],
)
def test_only_gradients_that_are_a_little_off_are_a_doubt(got, tolerance, is_doubt):
    errors = compare(effect(ONES, gradients=(ONES, ONES)), got, tolerance)
    assert errors.is_doubt is is_doubt
    assert not is_doubt or errors.wrong == "gradients[1] differs by 0.05, 0.00011 is allowed"
