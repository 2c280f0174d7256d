"""Node classification on sampled neighbourhoods, and where the time of a batch goes.

Both frameworks sample by their own sampler and then run the same mathematics: the model on the
subgraph of all sampled edges, of which the outputs of the seeds count. DGL's blocks are merged
into that subgraph; every node is expanded once, at the hop where it first appears, as PyG's sampler
does.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.compile.dgl_adapter import load_dgl
from benchmark.compile.inputs import NodeInputs
from benchmark.compile.modules import Edges, SeedModel
from benchmark.compile.tasks import MORE_SHAPES, NodeWorkload, accuracy
from benchmark.compile.workload import Arguments, Counts, LoaderTimes, Quality, WorkloadSettings
from gnnprof import _device
from gnnprof._dynamo_records import Watch
from gnnprof._statistics import median

MOST_COMPILING = 100
"""Batches in which code may be compiled; each code object stops at torch's limit, which is 8."""


@dataclass(frozen=True)
class Neighborhood:
    """What a sampler returned for one batch.

    Attributes:
        nodes: Numbers of the sampled nodes in the whole graph, the seeds first, [n].
        edge_index: Sampled edges by position in `nodes`, [2, e].
        edges: Numbers of these edges in the whole graph, [e].
        num_seeds: How many of the nodes are seeds.
    """

    nodes: Tensor
    edge_index: Tensor
    edges: Tensor
    num_seeds: int


class SampledWorkload(NodeWorkload):
    """Classes of nodes, in batches of seeds with sampled neighbourhoods."""

    def __init__(self, settings: WorkloadSettings, inputs: NodeInputs, device: torch.device):
        # Not the parent's: the whole graph is never put on the device.
        super(NodeWorkload, self).__init__(settings, inputs.record, device)
        self.task = inputs.record["task"]
        self.inputs = inputs
        self.model = self.finish(SeedModel(self.build_model()))
        first = []
        for args in self._arguments(inputs.train, shuffle=True):
            first.append(args)
            if len(first) > MORE_SHAPES:
                break
        self.args = self.to_device(first[0][1])
        self.shapes = [
            (f"batch {number}", self.to_device(args))
            for number, (_, args) in enumerate(first[1:], start=1)
        ]
        seeds, edges = len(self.args[0]), first[0][0]
        self.counts = Counts("nodes", seeds, seeds, edges, edges)

    def loss(self, output: Tensor, args: Arguments) -> Tensor:
        """Return the cross-entropy of the seeds."""
        return F.cross_entropy(output, args[0])

    def batches(self) -> Iterator[Arguments]:
        """Return one batch after another until each training node was a seed once."""
        for _, args in self._arguments(self.inputs.train, shuffle=True):
            yield self.to_device(args)

    def loader_times(
        self, model: nn.Module, batches: int = 10, *, training: bool = False
    ) -> LoaderTimes:
        """Return where the time per batch goes; the epoch starts anew if it is too short.

        The first batch is not measured, nor one in which code is compiled: another is taken. Such
        are known inside `compiler_state_kept`, which keeps a record of every compilation.

        Args:
            model: The model, eager or compiled.
            batches: How many to measure.
            training: Whether to train on each batch instead of only running it forward.

        Raises:
            RuntimeError: If batches go on compiling.
        """
        if batches < 1:
            raise ValueError(f"batches={batches} must be at least 1.")
        rows: list[tuple[float, ...]] = []
        compiling = 0
        source, since_start = self._endless(), Watch()
        self._batch_times(model, source, training)
        while len(rows) < batches:
            watch = Watch()
            times = self._batch_times(model, source, training)
            if not watch.read().happened:
                rows.append(times)
                continue
            compiling += 1
            if compiling > MOST_COMPILING:
                raise RuntimeError(f"code was compiled in {compiling} batches, and no end of it.")
        sampling, transfer, compute, whole = (median(column) for column in zip(*rows, strict=True))
        fell_back = bool(since_start.read().limited)
        return LoaderTimes(sampling, transfer, compute, whole, batches, compiling, fell_back)

    def _batch_times(
        self, model: nn.Module, source: Iterator[Arguments], training: bool
    ) -> tuple[float, float, float, float]:
        """Return the seconds of one batch: sampling, transfer, compute, and all of it."""
        start = _device.clock()
        args = next(source)
        sampled = _device.clock()
        args = self.to_device(args)
        _device.synchronize(self.device)
        moved = _device.clock()
        self._compute(model, args, training)
        _device.synchronize(self.device)
        end = _device.clock()
        return sampled - start, moved - sampled, end - moved, end - start

    def _compute(self, model: nn.Module, args: Arguments, training: bool) -> None:
        if training:
            self.train_step(model, *args)
            return
        with torch.no_grad():
            model(*args)

    def _endless(self) -> Iterator[Arguments]:
        while True:
            for _, args in self._arguments(self.inputs.train, shuffle=True):
                yield args

    def _arguments(self, seeds: Tensor, *, shuffle: bool) -> Iterator[tuple[int, Arguments]]:
        """Return (number of sampled edges, arguments on the CPU) of each batch."""
        for batch in self._neighborhoods(seeds, shuffle=shuffle):
            yield batch.edge_index.size(1), self._gather(batch)

    def _neighborhoods(self, seeds: Tensor, *, shuffle: bool) -> Iterator[Neighborhood]:
        """Return what the framework's sampler draws, batch by batch."""
        sample = _dgl_batches if self.settings.framework == "dgl" else _pyg_batches
        epoch_seed = int(torch.randint(0, 1 << 31, (), generator=self.generator))
        if shuffle:  # by ourselves, so that both frameworks see the seeds in the same order
            order = torch.Generator().manual_seed(epoch_seed)
            seeds = seeds[torch.randperm(len(seeds), generator=order)]
        return sample(
            self.inputs.edges, seeds, self.settings.fan_outs(), self.batch_size(), epoch_seed
        )

    def _gather(self, batch: Neighborhood) -> Arguments:
        """Return classes of the seeds, features and graph of one neighbourhood.

        Nodes with features come first: seeds are such, so that they stay where they are.
        """
        inputs = self.inputs
        featured = batch.nodes < len(inputs.x)
        order = torch.cat([featured.nonzero().view(-1), (~featured).nonzero().view(-1)])
        position = torch.empty_like(order)
        position[order] = torch.arange(len(order))
        nodes = batch.nodes[order]
        edge_type = inputs.edges.edge_type
        edges = Edges(
            position[batch.edge_index],
            len(nodes),
            None if edge_type is None else edge_type[batch.edges],
            inputs.edges.num_relations,
        )
        num_featured = int(featured.sum())
        x = inputs.x[nodes[:num_featured]]
        ids = (nodes[num_featured:] - len(inputs.x),) if inputs.num_embeddings else ()
        y = inputs.y[nodes[: batch.num_seeds]]
        return (y, x, *ids, *self.graph_arguments(edges))

    def _evaluate(self, model: nn.Module) -> Quality:
        predicted, y = [], []
        for _, args in self._arguments(self.inputs.test, shuffle=False):
            moved = self.to_device(args)
            predicted.append(model(*moved).argmax(dim=-1))
            y.append(moved[0])
        return accuracy(torch.cat(predicted), torch.cat(y))


def _pyg_batches(
    edges: Edges, seeds: Tensor, fan_outs: list[int], batch_size: int, seed: int
) -> Iterator[Neighborhood]:
    from torch_geometric.data import Data

    from benchmark.sampling import neighbor_loader

    loader = neighbor_loader(
        Data(edge_index=edges.edge_index, num_nodes=edges.num_nodes),
        fan_outs,
        batch_size,
        seeds,
        seed=seed,
    )
    for batch in loader:
        yield Neighborhood(batch.n_id, batch.edge_index, batch.e_id, int(batch.batch_size))


def _dgl_batches(
    edges: Edges, seeds: Tensor, fan_outs: list[int], batch_size: int, seed: int
) -> Iterator[Neighborhood]:
    dgl = load_dgl()
    graph = dgl.graph((edges.edge_index[0], edges.edge_index[1]), num_nodes=edges.num_nodes)
    sampler = dgl.dataloading.NeighborSampler(fan_outs[::-1])  # DGL counts from the outermost hop
    dgl.random.seed(seed)
    loader = dgl.dataloading.DataLoader(graph, seeds, sampler, batch_size=batch_size, num_workers=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Dataloader CPU affinity opt is not enabled")
        batches: Iterable[Any] = iter(loader)
    for nodes, output_nodes, blocks in batches:
        yield _merge_blocks(dgl, nodes, len(output_nodes), blocks)


def _merge_blocks(dgl: Any, nodes: Tensor, num_seeds: int, blocks: list[Any]) -> Neighborhood:
    """Return one subgraph of the blocks, which DGL lists from the outermost hop inwards.

    The targets of a block are the first of its sources, so a position means the same node in all of
    them. A block also draws again for the targets that an inner one has expanded: those edges go.
    """
    pairs, numbers = [], []
    expanded = 0
    for block in reversed(blocks):
        source, target = block.edges()
        new = target >= expanded
        pairs.append(torch.stack([source[new], target[new]]))
        numbers.append(block.edata[dgl.EID][new])
        expanded = block.num_dst_nodes()
    return Neighborhood(nodes, torch.cat(pairs, dim=1), torch.cat(numbers), num_seeds)
