from __future__ import annotations

import gc
import io
import os
import random
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
import torch_geometric.nn
import torch_geometric.profile as reference
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data, HeteroData, TemporalData

from gnnprof import _device, _nvidia_smi, _tensors
from gnnprof._nvidia_smi import Card, NvidiaSmiError
from gnnprof.utils import (
    byte_to_megabyte,
    count_parameters,
    get_cpu_memory_from_gc,
    get_data_size,
    get_gpu_memory_from_gc,
    get_gpu_memory_from_ipex,
    get_gpu_memory_from_nvidia_smi,
    get_model_size,
    medibyte_to_megabyte,
)

MODELS = {
    "linear": lambda: torch.nn.Linear(32, 128),
    "no parameters": lambda: torch.nn.ReLU(),
    "buffers": lambda: torch.nn.BatchNorm1d(7),
    "gcn": lambda: torch_geometric.nn.GCN(16, 32, 2),
    "gat": lambda: torch_geometric.nn.GAT(16, 32, 3, heads=4),
    "half": lambda: torch.nn.Linear(5, 3).half(),
    "meta": lambda: torch.nn.Linear(32, 128, device="meta"),
}


# -- parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_count_parameters_as_the_reference(kind: str) -> None:
    model = MODELS[kind]()
    assert count_parameters(model) == reference.count_parameters(model)


def test_count_parameters() -> None:
    model = torch.nn.Linear(32, 128)
    assert count_parameters(model) == 32 * 128 + 128
    model.bias.requires_grad = False
    assert count_parameters(model) == 32 * 128
    assert count_parameters(torch.nn.Sequential(model, model)) == 32 * 128


@pytest.mark.parametrize("function", [count_parameters, get_model_size, get_data_size])
@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: torch.nn.LazyLinear(3), r"'weight' of the model itself \(LazyLinear\)"),
        (
            lambda: torch.nn.Sequential(torch.nn.ReLU(), torch.nn.LazyBatchNorm1d()),
            r"'weight' of module '1' \(LazyBatchNorm1d\)",
        ),
        (
            lambda: torch_geometric.nn.GCN(-1, 8, 2),
            r"'weight' of module 'convs\.0\.lin' \(Linear\)",
        ),
    ],
    ids=["root", "sequential", "pyg"],
)
def test_lazy_parameters_are_named_with_the_remedy(function: Any, make: Any, where: str) -> None:
    message = rf"^{function.__name__}\(model\): {where} is lazy, .* run one forward pass"
    if function is get_data_size:
        message = message.replace("(model", "(data")
    with pytest.raises(ValueError, match=message):
        function(make())


def test_lazy_buffer_is_named() -> None:
    model = torch.nn.LazyBatchNorm1d(affine=False)
    assert count_parameters(model) == 0
    with pytest.raises(ValueError, match="'running_mean' of the model itself"):
        get_model_size(model)


def test_lazy_model_has_its_size_after_one_forward() -> None:
    model = torch_geometric.nn.GCN(-1, 8, 2)
    model(torch.zeros(3, 5), torch.tensor([[0, 1], [1, 2]]))
    assert count_parameters(model) == 5 * 8 + 8 + 8 * 8 + 8


@pytest.mark.parametrize("function", [count_parameters, get_model_size])
@pytest.mark.parametrize("model", [None, 3, torch.zeros(3), torch.nn.Linear])
def test_not_a_module(function: Any, model: object) -> None:
    with pytest.raises(
        TypeError, match=rf"^{function.__name__}\(model=.*must be a torch.nn.Module"
    ):
        function(model)


# -- serialised size -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MODELS)
def test_model_size_is_what_torch_save_writes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODELS[kind]()
    buffer, path = io.BytesIO(), tmp_path / "archive.pt"
    torch.save(model.state_dict(), buffer)
    torch.save(model.state_dict(), path)
    size = get_model_size(model)
    assert size == len(buffer.getvalue()) == path.stat().st_size
    # The reference draws a random name, which zip repeats in each record: with torch's own name
    # for an archive the figures are the same.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch_geometric.profile.utils.random.randrange", lambda stop: "archive")
    assert size == reference.get_model_size(model)


def test_model_size_touches_neither_files_nor_random_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o500)
    model = torch.nn.Linear(3, 3)
    states = random.getstate(), torch.get_rng_state()
    get_model_size(model)
    assert os.listdir() == []
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])


def test_model_size_of_meta_model_is_without_weights() -> None:
    big = torch.nn.Linear(1000, 1000, device="meta")
    assert get_model_size(big) < 2000
    assert get_data_size(big) == 4 * (1000 * 1000 + 1000)


# -- data ------------------------------------------------------------------------------------------

edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


class SparseTensor:
    """Stands in for torch_sparse.SparseTensor."""

    def __init__(self, value: Tensor | None = None) -> None:
        self._csr = (torch.tensor([0, 1, 3, 4]), torch.tensor([1, 0, 2, 1]), value)

    def csr(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self._csr


def hetero() -> HeteroData:
    data = HeteroData()
    data["paper"].x = torch.zeros(10, 128)
    data["author"].x = torch.zeros(6, 64)
    data["author"].y = data["author"].x
    data["author", "writes", "paper"].edge_index = edge_index
    return data


X = torch.zeros(10, 128)
GRAPHS = {
    "twice": lambda: Data(x=X, y=X),
    "plain": lambda: Data(x=X, edge_index=edge_index, y=torch.arange(10), name="g", n=3),
    "nested": lambda: Data(x=X, extra={"a": [torch.ones(3), None], "b": (torch.ones(2), X)}),
    "none": lambda: Data(x=None, edge_index=edge_index),
    "empty": lambda: Data(),
    "scalars": lambda: Data(x=torch.tensor(1.0), y=torch.empty(0, 3)),
    "transposed": lambda: Data(x=torch.zeros(3, 7).t(), z=torch.zeros(4, 6)[:, ::2]),
    "sliced": lambda: Data(x=X[:3], y=X[5:]),
    "sparse tensor": lambda: Data(adj_t=SparseTensor(), x=X),
    "weighted sparse tensor": lambda: Data(adj_t=SparseTensor(torch.ones(4)), x=X),
    "hetero": hetero,
    "batch": lambda: Batch.from_data_list([Data(x=X, edge_index=edge_index)] * 3),
    "hetero batch": lambda: Batch.from_data_list([hetero(), hetero()]),
    "temporal": lambda: TemporalData(src=edge_index[0], dst=edge_index[1], t=torch.arange(4)),
    "edge index": lambda: Data(edge_index=EdgeIndex(edge_index, sparse_size=(3, 3)), x=X),
    "meta": lambda: Data(x=torch.zeros(4, 5, device="meta")),
    "numpy view": lambda: Data(x=torch.from_numpy(np.zeros(4)), y=X),
}


@pytest.mark.parametrize("kind", GRAPHS)
def test_data_size_as_the_reference_where_it_is_right(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch_geometric.profile.utils.SparseTensor", SparseTensor)
    data = GRAPHS[kind]()
    assert get_data_size(data) == reference.get_data_size(data)


def test_data_size_where_the_reference_is_wrong() -> None:
    base = np.zeros((10, 4))
    sparse = torch.eye(4).to_sparse_coo()
    meta = [torch.zeros(4, device="meta"), torch.zeros(4, device="meta")]
    edges = [EdgeIndex(edge_index.clone()), EdgeIndex(edge_index.clone())]
    matrix = scipy.sparse.eye(4, format="csr")
    cases: list[tuple[dict[str, Any], int]] = [
        ({"x": X[1:], "y": X}, 5120),
        ({"x": X[0].expand(100, 128)}, 512),
        ({"x": meta[0], "y": meta[1]}, 32),
        ({"adj": sparse}, 2 * 4 * 8 + 4 * 4),
        ({"x": base, "y": torch.from_numpy(base)}, 320),
        ({"x": {X, X}, "y": [{"z": frozenset([X])}]}, 5120),
        ({"a": edges[0], "b": edges[1]}, 2 * 8 * 8),
        ({"adj": matrix}, sum(a.nbytes for a in (matrix.data, matrix.indices, matrix.indptr))),
    ]
    for attributes, expected in cases:
        assert get_data_size(Data(**attributes)) == expected, attributes


def test_data_size_of_what_is_no_graph() -> None:
    assert get_data_size(X) == get_data_size([X, X[3:]]) == get_data_size({"x": X}) == 5120
    assert get_data_size(np.zeros(3)) == 24
    assert get_data_size(torch.nn.Linear(3, 2)) == get_data_size(torch.nn.Linear(3, 2).state_dict())
    assert get_data_size([]) == get_data_size({"a": None}) == 0


@pytest.mark.parametrize("data", [None, 3, "graph.pt", object(), Data, iter([X])])
def test_data_of_unknown_kind(data: object) -> None:
    with pytest.raises(TypeError, match=r"^get_data_size\(data=.* is a .* must be a graph of PyG"):
        get_data_size(data)


# -- garbage collector -----------------------------------------------------------------------------


@pytest.fixture
def quiet_collector() -> Any:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("quiet_collector")
def test_cpu_memory_rises_by_exactly_what_is_allocated() -> None:
    before = get_cpu_memory_from_gc()
    kept: list[Any] = [torch.randn(10, 128)]
    assert get_cpu_memory_from_gc() - before == 10 * 128 * 4
    kept += [kept[0][0], kept[0].t(), kept[0].expand(50, 10, 128), kept[0].detach()]
    assert get_cpu_memory_from_gc() - before == 10 * 128 * 4
    kept.append(torch.empty(1000, 1000, device="meta"))
    assert get_cpu_memory_from_gc() - before == 10 * 128 * 4
    indices, values = torch.zeros(1, 3, dtype=torch.long), torch.ones(3)
    kept.append(torch.sparse_coo_tensor(indices, values, (9,), check_invariants=True))
    del indices, values
    assert get_cpu_memory_from_gc() - before == 10 * 128 * 4 + 3 * 8 + 3 * 4
    del kept
    assert get_cpu_memory_from_gc() == before


@pytest.mark.usefixtures("quiet_collector")
def test_cpu_memory_counts_the_storage_behind_a_view() -> None:
    before = get_cpu_memory_from_gc()
    view = torch.randn(10, 128)[0, :2]
    assert get_cpu_memory_from_gc() - before == 10 * 128 * 4
    assert view.numel() == 2


class Deprecated:
    """Warns, like torch.distributed.reduce_op, whenever someone looks at it."""

    def __getattribute__(self, name: str) -> Any:
        warnings.warn(f"{name} is deprecated", FutureWarning, stacklevel=2)
        return object.__getattribute__(self, name)


class Broken:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("do not look at me")


def test_objects_that_mind_being_looked_at() -> None:
    target = Data()
    awkward = [Deprecated(), Broken(), weakref.proxy(target)]
    del target  # the proxy is dead now, and raises ReferenceError when asked for its class
    filters = list(warnings.filters)
    get_cpu_memory_from_gc()
    get_gpu_memory_from_gc()
    assert warnings.filters == filters
    assert len(awkward) == 3


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (0, 100),
        (1, 230),
        (np.int64(1), 230),
        ("cuda:1", 230),
        ("cuda", 100),
        (torch.device("cuda", 0), 100),
        ("xpu:1", 7),
        (2, 0),
    ],
)
def test_gpu_memory_of_every_form_of_device(
    monkeypatch: pytest.MonkeyPatch, device: Any, expected: int
) -> None:
    def storages(kind: str, index: int, *runs: tuple[int, int]) -> list[_tensors.Runs]:
        where = torch.device(kind, index)
        return [_tensors.Runs(where, where, np.array([start]), size) for start, size in runs]

    runs = [
        *storages("cuda", 0, (1000, 100), (1000, 100)),
        *storages("cuda", 1, (1000, 200), (5000, 30)),
        *storages("xpu", 1, (1000, 7)),
        *storages("meta", 0, (0, 10**6)),
    ]
    monkeypatch.setattr(gc, "get_objects", lambda: [torch.zeros(1)])
    monkeypatch.setattr(_tensors, "_storage_runs", lambda tensor: runs)
    monkeypatch.setattr(_device, "accelerator", lambda: "cuda")
    assert get_gpu_memory_from_gc(device) == expected


@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("cpu", ValueError, r"must be an accelerator; .* call get_cpu_memory_from_gc\(\)"),
        (-1, ValueError, "negative"),
        ("card 1", ValueError, "names no device"),
        (1.0, TypeError, "is a float"),
        (None, TypeError, "is a NoneType"),
    ],
)
def test_gpu_memory_of_no_device(device: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        get_gpu_memory_from_gc(device)


@pytest.mark.cuda
@pytest.mark.usefixtures("quiet_collector")
def test_gpu_memory_rises_by_exactly_what_is_allocated() -> None:
    before = get_gpu_memory_from_gc()
    tensor = torch.randn(10, 128, device="cuda")
    for device in (0, "cuda", "cuda:0", tensor.device, np.int32(0)):
        assert get_gpu_memory_from_gc(device) - before == 10 * 128 * 4


# -- nvidia-smi ------------------------------------------------------------------------------------

CARDS = [
    Card("GPU-aaaa", 0, 1000, 24000),
    Card("GPU-bbbb", 1, 2000, 23000),
    Card("GPU-cccc", 2, None, 22000),
    Card("GPU-dddd", 3, None, None),
]


class Machine:
    """What the tool and the driver of a machine say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cards: list[Card] | NvidiaSmiError = CARDS
        self.uuids: list[str] = []
        self.driver: dict[int, tuple[int, int]] = {}
        self.queries = 0
        monkeypatch.setattr(_nvidia_smi, "query", self.query)
        monkeypatch.setattr(_device, "memory_info", lambda index: self.driver.get(index))
        monkeypatch.setattr(
            _device, "cuda_uuid", lambda index: dict(enumerate(self.uuids)).get(index)
        )
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def query(self) -> list[Card]:
        self.queries += 1
        if isinstance(self.cards, NvidiaSmiError):
            raise self.cards
        return self.cards


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda", 1), np.uint8(1)])
def test_free_and_used_in_the_unit_of_the_reference(machine: Machine, device: Any) -> None:
    assert get_gpu_memory_from_nvidia_smi(device) == (2000 * 1.0485, 23000 * 1.0485)
    assert machine.queries == 1


def test_digits(machine: Machine) -> None:
    assert get_gpu_memory_from_nvidia_smi(device=0, digits=0) == (1048.0, 25164.0)
    assert get_gpu_memory_from_nvidia_smi() == (1048.5, 25164.0)


def test_same_figures_as_the_reference(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def check_output(command: list[str]) -> bytes:
        free = "memory.free" in command[1]
        figures = [str(card.free if free else card.used) + " MiB" for card in CARDS[:2]]
        return "\n".join(["memory.x [MiB]", *figures, ""]).encode()

    monkeypatch.setattr("torch_geometric.profile.utils.sp.check_output", check_output)
    for device in (0, 1):
        ours = get_gpu_memory_from_nvidia_smi(device)
        assert ours == reference.get_gpu_memory_from_nvidia_smi(device)
    for device in (-1, 4):
        with pytest.raises(AttributeError, match=f"GPU {device} not available"):
            get_gpu_memory_from_nvidia_smi(device)
        with pytest.raises(AttributeError, match=f"GPU {device} not available"):
            reference.get_gpu_memory_from_nvidia_smi(device)


def test_the_card_is_found_by_its_uuid(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert get_gpu_memory_from_nvidia_smi(0)[0] == 2097.0
    machine.uuids = ["aaaa", "bbbb"]  # CUDA counts otherwise: fastest first
    assert get_gpu_memory_from_nvidia_smi(0)[0] == 1048.5


@pytest.mark.parametrize("device", [2, 10**12])
def test_index_beyond_the_visible_cards(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, device: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with pytest.raises(AttributeError, match=rf"^GPU {device} not available \(found 2 GPUs\)$"):
        get_gpu_memory_from_nvidia_smi(device)


def test_unknown_figures_stay_unknown(machine: Machine) -> None:
    assert get_gpu_memory_from_nvidia_smi(2) == (None, 22000 * 1.0485)
    assert get_gpu_memory_from_nvidia_smi(3) == (None, None)


def test_unknown_figures_are_asked_of_the_driver(machine: Machine) -> None:
    machine.driver = {3: (300 * 2**20, 1000 * 2**20)}
    assert get_gpu_memory_from_nvidia_smi(3) == (314.55, 733.95)


def test_without_the_tool_the_driver_answers(machine: Machine) -> None:
    machine.cards = NvidiaSmiError("nvidia-smi could not be started")
    machine.driver = {0: (2**29, 2**31)}
    assert get_gpu_memory_from_nvidia_smi(0) == (536.83, 1610.5)


def test_a_part_of_a_card_is_asked_of_the_driver(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-12345678")
    machine.driver = {0: (2**30, 2**30)}
    assert get_gpu_memory_from_nvidia_smi(0) == (round(1024 * 1.0485, 2), 0.0)


def test_neither_tool_nor_driver(machine: Machine) -> None:
    machine.cards = NvidiaSmiError("nvidia-smi could not be started (no such file)")
    with pytest.raises(
        RuntimeError,
        match=r"^get_gpu_memory_from_nvidia_smi\(device=0\): nvidia-smi could not be started "
        r"\(no such file\), and torch.cuda.mem_get_info knows no such device; install",
    ):
        get_gpu_memory_from_nvidia_smi(0)


@pytest.mark.parametrize("function", [get_gpu_memory_from_nvidia_smi, get_gpu_memory_from_ipex])
@pytest.mark.parametrize(
    ("device", "error", "message"),
    [
        ("cpu", ValueError, "'cpu' is not a device of type"),
        ("mps", ValueError, "'mps' is not a device of type"),
        ("card 1", ValueError, "names no device"),
        (1.0, TypeError, "is a float"),
        (None, TypeError, "is a NoneType"),
    ],
)
def test_not_such_a_device(
    machine: Machine, function: Any, device: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        function(device)
    assert machine.queries == 0


@pytest.mark.cuda
def test_figures_of_a_real_card() -> None:
    free, used = get_gpu_memory_from_nvidia_smi(0)
    driver_free, total = torch.cuda.mem_get_info(0)
    assert free is not None
    assert used is not None
    assert free / 1.0485 == pytest.approx(driver_free / 2**20, rel=0.05)
    assert (free + used) / 1.0485 == pytest.approx(total / 2**20, rel=0.05)


# -- XPU -------------------------------------------------------------------------------------------

MIB = 2**20


def test_peaks_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, torch.device]] = []

    def peak_memory(device: torch.device) -> _device.PeakMemory:
        calls.append(("read", device))
        return _device.PeakMemory(allocated=3 * MIB, reserved=20 * MIB, active=None)

    monkeypatch.setattr(_device, "accelerator", lambda: "xpu")
    monkeypatch.setattr(_device, "peak_memory", peak_memory)
    monkeypatch.setattr(
        _device, "reset_peak_memory", lambda device: calls.append(("reset", device))
    )
    for device in (1, "xpu:1", torch.device("xpu", 1), np.int16(1)):
        assert get_gpu_memory_from_ipex(device) == (3.0, 20.0, None)
    assert calls == [("read", torch.device("xpu", 1)), ("reset", torch.device("xpu", 1))] * 4


def test_peaks_from_ipex_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def nested_stats(device: int) -> dict[str, Any]:
        calls.append(device)
        peaks = {"allocated_bytes": MIB, "reserved_bytes": 2 * MIB, "active_bytes": MIB // 3}
        return {kind: {"all": {"peak": peak, "current": 0}} for kind, peak in peaks.items()}

    ipex = types.ModuleType("intel_extension_for_pytorch")
    ipex.xpu = types.SimpleNamespace(  # type: ignore[attr-defined]
        memory_stats_as_nested_dict=nested_stats,
        reset_peak_memory_stats=lambda device: calls.append(("reset", device)),
    )
    monkeypatch.setitem(__import__("sys").modules, "intel_extension_for_pytorch", ipex)
    assert get_gpu_memory_from_ipex(2, digits=3) == (1.0, 2.0, 0.333)
    assert calls == [2, ("reset", 2)]
    assert get_gpu_memory_from_ipex(2) == reference.get_gpu_memory_from_ipex(2) == (1.0, 2.0, 0.33)


def test_no_xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_device, "accelerator", lambda: None)
    with pytest.raises(RuntimeError, match="torch finds no Intel XPU and intel_extension_for_pyto"):
        get_gpu_memory_from_ipex()


@pytest.mark.xpu
def test_peaks_of_a_real_xpu() -> None:
    get_gpu_memory_from_ipex()
    tensor = torch.zeros(8 * MIB, dtype=torch.uint8, device="xpu")
    del tensor
    allocated, reserved, _ = get_gpu_memory_from_ipex()
    assert allocated is not None
    assert reserved is not None
    assert reserved >= allocated >= 8.0


# -- units -----------------------------------------------------------------------------------------


def test_byte_to_megabyte() -> None:
    assert byte_to_megabyte(2**20) == 1.0
    assert byte_to_megabyte(1536 * 1024) == 1.5
    assert byte_to_megabyte(2**20 // 3, digits=4) == 0.3333


def test_medibyte_to_megabyte() -> None:
    assert medibyte_to_megabyte(1) == 1.05
    assert medibyte_to_megabyte(1, digits=4) == 1.0485
    assert medibyte_to_megabyte(40960) == 42946.56
