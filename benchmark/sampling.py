"""Mini-batches by neighbour sampling, with whichever sampler is installed.

PyG samples by pyg_lib or torch_sparse. Where neither is installed, its loader gets the sampler of
`benchmark.neighbor_sampler` instead. The batches have the same layout either way.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Iterator
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

import torch
import torch_geometric.typing
from torch import Tensor
from torch.utils.data import RandomSampler
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.loader.utils import get_input_nodes, index_select
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from benchmark.neighbor_sampler import FanOuts, TorchNeighborSampler, read_fan_outs
from gnnprof import _device

InputNodes = Tensor | str | tuple[str, Tensor | None] | None

TORCH_SAMPLER = "gnnprof (torch)"
SAMPLERS = ("auto", "torch", "pyg")


def _installed_sampler() -> str | None:
    """Return library and version of what PyG samples by, in its own order of preference."""
    if torch_geometric.typing.WITH_PYG_LIB:
        return f"pyg_lib {importlib.metadata.version('pyg_lib')}"
    if torch_geometric.typing.WITH_TORCH_SPARSE:
        return f"torch_sparse {importlib.metadata.version('torch_sparse')}"
    return None


SAMPLER = _installed_sampler() or TORCH_SAMPLER
"""Which sampler runs unless one is asked for."""


def sampler_name(sampler: str) -> str:
    """Return library and version of what runs for an argument `sampler` of `neighbor_loader`."""
    return TORCH_SAMPLER if sampler == "torch" else SAMPLER


def sampler_by_hop() -> str:
    """Return an argument `sampler` with which batches hold their `num_sampled_nodes`.

    pyg_lib and our own sampler tell them, torch_sparse does not.
    """
    return "auto" if torch_geometric.typing.WITH_PYG_LIB else "torch"


class LoaderTimes(NamedTuple):
    """Where the time of one batch went, in seconds, measured in the process that made it.

    Attributes:
        sampling: Choosing nodes and edges and numbering them.
        gather: Copying the rows of every tensor with one row per node or per edge.
        collate: The rest: looking up the seeds and putting the batch together.
    """

    sampling: float
    gather: float
    collate: float

    @property
    def total(self) -> float:
        """Seconds of all three."""
        return self.sampling + self.gather + self.collate


def neighbor_loader(
    data: Data | HeteroData,
    num_neighbors: FanOuts,
    batch_size: int = 1,
    input_nodes: InputNodes = None,
    *,
    replace: bool = False,
    subgraph_type: str = "directional",
    seed: int = 0,
    record_times: bool = False,
    sampler: str = "auto",
    **kwargs: Any,
) -> NeighborLoader:
    """Return PyG's neighbour loader, with the sampler that there is.

    Batches hold what PyG's hold: the rows of every node- and edge-level tensor, `edge_index` in
    local numbers, `n_id`, `e_id`, `input_id`, `batch_size`, `num_sampled_nodes` and
    `num_sampled_edges` by hop; the seeds come first. torch_sparse does not tell the last two.

    Args:
        data: The graph, homogeneous or heterogeneous.
        num_neighbors: Incoming edges to draw per node, for each hop; -1 takes all. For a
            heterogeneous graph also a dictionary from each edge type to such a list.
        batch_size: Seeds per batch.
        input_nodes: Seeds: ids [M] or a mask [N]; for a heterogeneous graph their type, or a pair
            of type and ids. By default all nodes (of the type).
        replace: Whether a node may draw one edge more than once.
        subgraph_type: 'directional', 'bidirectional' or 'induced', as PyG has them.
        seed: Seed of the order of the seeds and of our sampler's draws. (pyg_lib and torch_sparse
            draw from random states of their own.)
        record_times: Whether each batch carries its times; read them by `take_times`.
        sampler: 'torch' for ours, 'pyg' for PyG's, 'auto' for PyG's if it can run.
        **kwargs: Further arguments of PyG's loader and torch's: `shuffle`, `num_workers`,
            `drop_last`, `persistent_workers`, `worker_init_fn`, `filter_per_worker`, `transform`.

    Raises:
        ValueError: If an argument is not of that form, or seeds are not nodes of the graph.
        ModuleNotFoundError: If PyG's sampler is asked for and cannot run.
    """
    use_pyg = _chooses_pyg(sampler)
    _check_seeds(data, input_nodes)
    types = list(data.edge_types) if isinstance(data, HeteroData) else [("", "", "")]
    read_fan_outs(num_neighbors, types)
    own = None
    if not use_pyg:
        own = TorchNeighborSampler(
            data, num_neighbors, replace=replace, subgraph_type=subgraph_type, seed=seed
        )
    kwargs.setdefault("generator", torch.Generator().manual_seed(seed))
    if kwargs.pop("shuffle", False):
        # torch draws the seeds of new workers, and not of living ones, from the loader's generator.
        # The order has its own, so that it does not depend on the workers.
        order = torch.Generator().manual_seed(seed)
        count = len(get_input_nodes(data, input_nodes)[1])
        kwargs["sampler"] = RandomSampler(range(count), generator=order)
    return _Loader(
        data,
        num_neighbors,
        input_nodes,
        record_times=record_times,
        replace=replace,
        subgraph_type=subgraph_type,
        neighbor_sampler=own,
        batch_size=batch_size,
        **kwargs,
    )


def take_times(batch: Data | HeteroData) -> LoaderTimes:
    """Return the times of a batch and remove them from it.

    Raises:
        ValueError: If the loader was made without `record_times`.
    """
    if "times" not in batch:
        raise ValueError("the batch carries no times; make its loader with record_times=True.")
    times: LoaderTimes = batch.times
    del batch.times
    return times


def _chooses_pyg(sampler: str) -> bool:
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler={sampler!r} is unknown; give one of {', '.join(SAMPLERS)}.")
    installed = _installed_sampler()
    if sampler == "pyg" and installed is None:
        raise ModuleNotFoundError(
            "sampler='pyg' needs pyg_lib or torch_sparse, and neither is installed; sampler="
            "'torch' needs neither."
        )
    return sampler != "torch" and installed is not None


def _check_seeds(data: Data | HeteroData, input_nodes: InputNodes) -> None:
    seeds, count = input_nodes, 0
    if isinstance(data, HeteroData):
        kind, seeds = input_nodes if isinstance(input_nodes, tuple) else (input_nodes, None)
        if kind not in data.node_types:
            raise ValueError(
                f"input_nodes={input_nodes!r}: a heterogeneous graph needs the type of the seeds, "
                f"one of {', '.join(data.node_types)}."
            )
        count = int(data[kind].num_nodes)
    else:
        count = int(data.num_nodes)
    if not isinstance(seeds, Tensor) or seeds.dtype == torch.bool or not len(seeds):
        return
    if int(seeds.min()) < 0 or int(seeds.max()) >= count:
        raise ValueError(f"input_nodes go from {seeds.min()} to {seeds.max()}; there are {count}.")


class _Loader(NeighborLoader):  # type: ignore[misc]
    """PyG's loader, which counts its passes for our sampler and can take times."""

    data: Data | HeteroData

    def __init__(self, data: Data | HeteroData, *args: Any, record_times: bool, **kwargs: Any):
        self._record_times = record_times
        self._transform = kwargs.pop("transform", None) if record_times else None
        self._frame = _without_rows(data) if record_times else None
        super().__init__(data, *args, **kwargs)

    def __iter__(self) -> Iterator[Data | HeteroData]:
        if isinstance(self.node_sampler, TorchNeighborSampler):
            self.node_sampler.epoch += 1
        batches: Iterator[Data | HeteroData] = super().__iter__()
        return batches

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if get_spawning_popen() is not None:
            # A spawned worker gets the loader with its `collate_fn`, and needs no order of seeds.
            # Generators would not survive: torch shares their state by a file that it then closes.
            state.update(dict.fromkeys(("generator", "sampler", "batch_sampler", "_iterator")))
        return state

    def collate_fn(self, index: Any) -> Any:
        """Make a batch of the seeds at these positions."""
        if not self._record_times:
            return super().collate_fn(index)
        begin = _device.clock()
        seeds = self.input_data[index]
        looked_up = _device.clock()
        out = self.node_sampler.sample_from_nodes(seeds)
        sampled = _device.clock()
        out.metadata = (*out.metadata, LoaderTimes(sampled - looked_up, 0.0, looked_up - begin))
        return self.filter_fn(out) if self.filter_per_worker else out

    def filter_fn(self, out: SamplerOutput | HeteroSamplerOutput) -> Data | HeteroData:
        """Join sampled nodes and edges with their rows of every tensor."""
        if not self._record_times:
            batch: Data | HeteroData = super().filter_fn(out)
            return batch
        times = out.metadata[2]
        begin = _device.clock()
        data, self.data = self.data, self._frame
        try:
            batch = super().filter_fn(out)
        finally:
            self.data = data
        joined = _device.clock()
        _gather_rows(data, batch)
        gathered = _device.clock()
        if self._transform is not None:
            batch = self._transform(batch)
        collate = times.collate + joined - begin + _device.clock() - gathered
        batch.times = LoaderTimes(times.sampling, gathered - joined, collate)
        return batch


def _without_rows(data: Data | HeteroData) -> Data | HeteroData:
    """Return the graph without the tensors whose rows a batch gathers."""
    frame = copy.copy(data)
    for store, kept in zip(data.stores, frame.stores, strict=True):
        for key in _row_keys(store):
            del kept[key]
        if hasattr(store, "num_nodes") and store.num_nodes is not None:
            kept.num_nodes = store.num_nodes
    return frame


def _row_keys(store: Any) -> dict[str, str]:
    """Return which tensors of a store have one row per node or edge, and the name of their ids."""
    keys = {}
    for key, value in store.items():
        if not isinstance(value, Tensor) or key == "edge_index":
            continue
        if hasattr(store, "is_node_attr") and store.is_node_attr(key):
            keys[key] = "n_id"
        elif hasattr(store, "is_edge_attr") and store.is_edge_attr(key):
            keys[key] = "e_id"
    return keys


def _gather_rows(data: Data | HeteroData, batch: Data | HeteroData) -> None:
    """Copy into the batch the rows of its nodes and edges."""
    for store, out in zip(data.stores, batch.stores, strict=True):
        for key, ids in _row_keys(store).items():
            dim = data.__cat_dim__(key, store[key], store)
            # A worker's rows are written where the main process can read them.
            value, chosen = store[key], out.get(ids)
            out[key] = None if chosen is None else index_select(value, chosen.to(value.device), dim)
        if "num_nodes" not in store and "num_nodes" in out:
            del out["num_nodes"]
