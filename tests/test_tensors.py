from __future__ import annotations

import sys
from collections import OrderedDict, UserDict, UserList, deque, namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch_geometric import EdgeIndex, Index
from torch_geometric.data import Batch, Data, HeteroData, TemporalData

from gnnprof._tensors import distinct_bytes, is_measurable, iter_arrays, iter_tensors, storage_bytes

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Sample:
    x: Any
    y: Any = None


class SparseTensor:
    """Has what torch_sparse.SparseTensor offers."""

    def __init__(self, value: Tensor | None) -> None:
        self.parts = (torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1]), value)

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.parts


a, b, c = torch.zeros(2), torch.ones(3), torch.arange(4)


@pytest.mark.parametrize(
    "container",
    [
        [a, b, c],
        (a, [b, (c,)]),
        {"a": a, "rest": {"b": b, "none": None, "c": c}},
        OrderedDict(a=a, b=[b, {"c": c}]),
        Pair(a, Pair(b, c)),
        Sample(a, Sample(b, [c])),
        SimpleNamespace(a=a, rest=SimpleNamespace(b=b, c=c)),
        deque([a, b, c]),
        UserList([a, b, c]),
        UserDict(a=a, b=b, c=c),
        {"a": a, "b": b, "c": c}.values(),
        {"a": a, "b": b, "c": c}.items(),
        np.array([a, None, [b, c]], dtype=object),
        [1, "text", b"bytes", None, 2.5, range(10**12), a, object(), Sample, len, b, c],
        [a, a, b, [a], c, b],
        Data(x=a, y=b, z=c, name="graph", size=3),
        [TemporalData(src=a, dst=b), c],
    ],
    ids=lambda container: type(container).__name__,
)
def test_tensors_come_in_order_and_once(container: object) -> None:
    assert [id(tensor) for tensor in iter_tensors(container)] == [id(a), id(b), id(c)]


def test_sets() -> None:
    assert {id(tensor) for tensor in iter_tensors([{a, b}, frozenset([c])])} == {
        id(a),
        id(b),
        id(c),
    }


def test_heterogeneous_graph() -> None:
    data = HeteroData()
    data.y = a
    data["paper"].x = b
    data["paper", "cites", "paper"].edge_index = c
    assert [id(tensor) for tensor in iter_tensors(data)] == [id(a), id(b), id(c)]


def test_first_tensor_of_a_call() -> None:
    arguments = (1, "two", {"graph": Data(x=b)}), {"weight": a}
    assert next(iter_tensors(arguments), None) is b
    assert next(iter_tensors((1, None)), None) is None


def test_containers_that_hold_themselves() -> None:
    loop: list[Any] = [a]
    loop += [loop, {"loop": loop, "b": b}]
    ring = Sample(loop)
    ring.y = ring
    assert [id(tensor) for tensor in iter_tensors([ring, loop])] == [id(a), id(b)]


def test_nesting_deeper_than_the_recursion_limit() -> None:
    nested: list[Any] = [a]
    for _ in range(10 * sys.getrecursionlimit()):
        nested = [nested]
    assert list(iter_tensors(nested)) == [a]
    while nested:  # a list this deep must not be left to one destructor
        nested = nested[0] if isinstance(nested[0], list) else []


def test_iterators_are_not_used_up() -> None:
    iterator = iter([a])
    assert list(iter_tensors([iterator, (x for x in [b])])) == []
    assert next(iterator) is a


def test_arrays_are_found_beside_tensors() -> None:
    array = np.zeros(3)
    assert [id(x) for x in iter_arrays([array, a])] == [id(array), id(a)]


@pytest.mark.parametrize(
    "obj", [None, 1, 2.5, "text", b"x", len, Sample, object(), range(3), iter([])]
)
def test_what_is_not_measurable(obj: object) -> None:
    assert not is_measurable(obj)


@pytest.mark.parametrize(
    "obj",
    [[], {}, (), set(), a, np.zeros(1), Sample(1), Data(), HeteroData(), torch.nn.ReLU()],
    ids=lambda obj: type(obj).__name__,
)
def test_what_is_measurable(obj: object) -> None:
    assert is_measurable(obj)


# -- bytes of one tensor ---------------------------------------------------------------------------

x = torch.zeros(10, 128)  # 5,120 bytes


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (x, 5120),
        (x.to(torch.float64), 10240),
        (x.to(torch.complex64), 10240),
        (x > 0, 1280),
        (torch.tensor(1.0), 4),
        (torch.empty(0, 5), 0),
        (x.t(), 5120),
        (torch.zeros(2, 3, 4, 5).permute(3, 1, 0, 2), 480),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), 480),
        (x[:5], 2560),
        (x[3:5], 1024),
        (x[:, 0], 40),
        (x[:, ::2], 2560),
        (x[::2, ::2], 1280),
        (x[1:9:3, 5:9], 48),
        (torch.zeros(1, 128).expand(1000, 128), 512),
        (torch.zeros(10, 1).expand(10, 128), 40),
        (torch.tensor(2.0).expand(5, 5), 4),
        (torch.zeros(100).unfold(0, 10, 1), 400),  # overlapping windows
        (torch.zeros(100).as_strided((10, 3), (10, 2)), 120),
        (torch.zeros(20).as_strided((4, 3), (2, 2)), 24),  # both dimensions walk the same elements
        (torch.nn.Parameter(x), 5120),
        (torch.conj(torch.zeros(4, dtype=torch.complex64)), 32),
    ],
)
def test_strided_tensors(tensor: Tensor, expected: int) -> None:
    assert distinct_bytes([tensor]) == expected
    assert distinct_bytes([tensor, tensor.detach(), tensor.reshape(tensor.shape)]) == expected


@pytest.mark.parametrize("seed", range(20))
def test_random_views_against_a_count_of_every_byte(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    base = torch.zeros(400, dtype=torch.int32)
    views, taken = [], np.zeros(1600, bool)
    for _ in range(pick(1, 5)):
        shape = [pick(1, 5) for _ in range(pick(0, 4))]
        strides = [pick(0, 25) for _ in shape]
        offset = pick(0, 50)
        views.append(base.as_strided(shape, strides, offset))
        for index in np.ndindex(*shape):
            first = 4 * (offset + int(np.dot(index, strides)))
            taken[first : first + 4] = True
    assert distinct_bytes(views) == taken.sum()


def compressed(layout: torch.layout, pointers: int, entries: int, values: Tensor) -> Tensor:
    """A 4 by 4 matrix with one entry, a number or a block of 2 by 2, in each row."""
    starts, positions = torch.arange(pointers), torch.arange(entries)
    return torch.sparse_compressed_tensor(starts, positions, values, (4, 4), layout=layout)


def layouts() -> dict[str, tuple[Tensor, int]]:
    eye = torch.eye(4)  # four elements that are not zero
    return {
        "coo": (eye.to_sparse_coo(), 2 * 4 * 8 + 4 * 4),
        "uncoalesced": (torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,)), 2 * 8 + 2 * 4),
        "hybrid": (eye.to_sparse(1), 4 * 8 + 16 * 4),
        "csr": (compressed(torch.sparse_csr, 5, 4, torch.ones(4)), 5 * 8 + 4 * 8 + 4 * 4),
        "csc": (compressed(torch.sparse_csc, 5, 4, torch.ones(4)), 5 * 8 + 4 * 8 + 4 * 4),
        "bsr": (compressed(torch.sparse_bsr, 3, 2, torch.ones(2, 2, 2)), 3 * 8 + 2 * 8 + 8 * 4),
        "bsc": (compressed(torch.sparse_bsc, 3, 2, torch.ones(2, 2, 2)), 3 * 8 + 2 * 8 + 8 * 4),
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), 5 * 4),
        "jagged": (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            5 * 4 + 3 * 8,
        ),
        "quantised": (torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8), 12),
        "mkldnn": (torch.ones(3, 4).to_mkldnn(), 48),
        "zero": (torch._efficientzerotensor((3, 4)), 0),
        "Index": (Index([0, 1, 1], dim_size=2, is_sorted=True).fill_cache_(), 3 * 8),
        "EdgeIndex": (
            EdgeIndex([[0, 1, 1], [1, 0, 1]], sparse_size=(2, 2), sort_order="row").fill_cache_(),
            6 * 8,
        ),
    }


KINDS = ["coo", "uncoalesced", "hybrid", "csr", "csc", "bsr", "bsc", "nested", "jagged"]
KINDS += ["quantised", "mkldnn", "zero", "Index", "EdgeIndex"]


@pytest.mark.filterwarnings("ignore")  # torch calls half of these layouts beta or deprecated
@pytest.mark.parametrize("kind", KINDS)
def test_other_layouts_count_by_their_components(kind: str) -> None:
    tensor, expected = layouts()[kind]
    assert distinct_bytes([tensor]) == expected
    assert distinct_bytes([tensor, tensor]) == expected
    other, _ = layouts()[kind]
    assert distinct_bytes([tensor, other]) == 2 * expected
    assert storage_bytes([tensor], lambda device: device.type == "cpu") == expected


def test_components_are_shared_with_other_tensors() -> None:
    values = torch.ones(3)
    matrix = torch.sparse_coo_tensor(
        torch.zeros(1, 3, dtype=torch.long), values, (4,), check_invariants=True
    )
    assert distinct_bytes([matrix, values]) == 3 * 8 + 3 * 4


def test_wrappers_of_torch_func() -> None:
    counted = []

    def count(x: Tensor) -> Tensor:
        counted.append((distinct_bytes([x, x]), storage_bytes([x], lambda device: True)))
        return x.sum()

    torch.vmap(count)(torch.ones(3, 4))
    torch.func.grad(count)(torch.ones(3))
    assert counted == [(16, 0), (12, 0)]


def test_meta_tensors_count_what_they_would_occupy() -> None:
    one, other = torch.empty(10, 128, device="meta"), torch.empty(10, 128, device="meta")
    assert distinct_bytes([one]) == 5120
    assert distinct_bytes([one, other]) == 10240
    assert distinct_bytes([one, one[2:], one.t()]) == 5120
    assert storage_bytes([one], lambda device: True) == 0


def test_fake_tensors_count_what_they_would_occupy() -> None:
    with FakeTensorMode():
        fake = torch.ones(10, 128)
        other = torch.ones(2)
    assert distinct_bytes([fake, fake[1:], other]) == 5128
    assert storage_bytes([fake], lambda device: True) == 0


def test_freed_storage_counts_nothing() -> None:
    freed = torch.ones(10)
    freed.untyped_storage().resize_(0)
    assert distinct_bytes([freed, torch.ones(1)]) == 4


class Counted(Tensor):
    """A subclass that notes every operation on it."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counted.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(Tensor):
    """A subclass without memory of its own that does not tell what it wraps."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)  # type: ignore

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("nothing is to be computed")


def test_subclasses_do_not_notice() -> None:
    counted = x.as_subclass(Counted)
    Counted.seen = 0
    assert distinct_bytes([counted, x]) == 5120
    assert storage_bytes([counted, x], lambda device: True) == 5120
    assert Counted.seen == 0


def test_wrappers_count_in_theory_but_hold_no_memory() -> None:
    wrapper = Wrapper(x)
    assert distinct_bytes([wrapper, wrapper]) == 5120
    assert storage_bytes([wrapper], lambda device: True) == 0


def test_modes_do_not_notice() -> None:
    matrix = torch.eye(4).to_sparse_coo()
    with torch.device("meta"):
        assert distinct_bytes([matrix]) == 80


def test_lazy_parameters_hold_no_memory() -> None:
    assert storage_bytes(torch.nn.LazyLinear(3).parameters(), lambda device: True) == 0


def test_lazy_parameters_have_no_size() -> None:
    with pytest.raises(ValueError, match=r"lazy parameter is unknown .* run one forward pass"):
        distinct_bytes([torch.nn.LazyLinear(3).weight])


# -- bytes of several ------------------------------------------------------------------------------


def test_overlapping_views_count_their_union() -> None:
    assert distinct_bytes([x[:6], x[4:]]) == 5120
    assert distinct_bytes([x[:2], x[8:]]) == 2048
    assert distinct_bytes([x[:, :64], x[:, 32:96]]) == 10 * 96 * 4
    assert distinct_bytes([x[:, 0], x[0]]) == (10 + 128 - 1) * 4
    assert distinct_bytes([x.view(torch.uint8)[:, :2], x[:, 0]]) == 40


def test_arrays_and_tensors_of_one_memory_count_once() -> None:
    array = np.zeros((10, 4))
    tensor = torch.from_numpy(array)
    assert distinct_bytes([array]) == 320
    assert distinct_bytes([array, tensor, torch.from_numpy(array)]) == 320
    assert distinct_bytes([array[:5], tensor[3:]]) == 320


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((10, 4), np.float32)[::-1], 160),
        (np.zeros((10, 4), np.float32)[::-2, 3:1:-1], 40),
        (np.broadcast_to(np.zeros(4), (100, 4)), 32),
        (np.asfortranarray(np.zeros((3, 5))), 120),
        (np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]), 36),
        (np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])["b"], 24),
        (np.zeros((0, 4)), 0),
        (np.array("text"), 16),
    ],
)
def test_numpy_arrays(array: Any, expected: int) -> None:
    assert distinct_bytes(iter_arrays([array, None, array])) == expected


def test_sparse_matrices() -> None:
    eye = scipy.sparse.eye(4, format="csr")
    assert distinct_bytes(iter_arrays([eye])) == 5 * 4 + 4 * 4 + 4 * 8
    assert distinct_bytes(iter_arrays(scipy.sparse.coo_array(np.eye(4)))) == 2 * 4 * 4 + 4 * 8
    diagonal = scipy.sparse.dia_matrix(np.eye(4))
    assert distinct_bytes(iter_arrays(diagonal)) == diagonal.data.nbytes + diagonal.offsets.nbytes


def test_sparse_tensor_of_torch_sparse_counts_by_its_csr() -> None:
    assert distinct_bytes(iter_arrays(SparseTensor(torch.ones(3)))) == 3 * 8 + 3 * 8 + 3 * 4
    assert distinct_bytes(iter_arrays([SparseTensor(None)])) == 48


def test_modules_count_parameters_and_buffers() -> None:
    norm = torch.nn.BatchNorm1d(4)
    shared = torch.nn.Sequential(norm, norm)
    assert distinct_bytes(iter_arrays(shared)) == 4 * 4 * 4 + 8


def test_batches() -> None:
    graphs = [Data(x=torch.zeros(2, 3), edge_index=torch.zeros(2, 5, dtype=torch.long))] * 2
    batch = Batch.from_data_list(graphs)
    # x, edge_index, batch, ptr
    assert distinct_bytes(iter_arrays(batch)) == 2 * 24 + 2 * 80 + 4 * 8 + 3 * 8


def test_storages_count_once_and_whole() -> None:
    base = torch.zeros(10, 128)
    views = [base[0], base.t(), base[:, 3], base.expand(7, 10, 128)]
    assert storage_bytes(views, lambda device: device == torch.device("cpu")) == 5120
    assert storage_bytes(views, lambda device: device.type == "cuda") == 0
