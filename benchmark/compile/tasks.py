"""What is run and timed: a model, its arguments, a training step, and a measure of its quality.

`build_workload` makes one of four kinds, by the task of the data set. In all of them the model is
called as `model(*args)`, and the loss can be computed from its output and `args` alone, so that
other arguments of the same form (another batch) are trained on by the same step.

| task | args | loss |
|---|---|---|
| node, hetero | features, graph | cross-entropy on the training nodes |
| the same, sampled | classes of the seeds, features, graph | cross-entropy on the seeds |
| link | pairs (first half edges, second half not), features, graph | logistic |
| kg | triples [B, 1 + K, 3], the first of each row true | logistic |
| graph | class and node assignment of each graph, features, graph | cross-entropy |

Two frameworks get the same data, the same initial weights (those of the PyG model) and the same
random numbers; variants likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.compile.inputs import GraphInputs, LinkInputs, NodeInputs, TripleInputs
from benchmark.compile.modules import (
    Autocast,
    Edges,
    GraphModel,
    LinkModel,
    WithEmbedding,
    score_pairs,
)
from benchmark.compile.registry import get_dataset, unsupported
from benchmark.compile.workload import (
    Arguments,
    Counts,
    Quality,
    Unsupported,
    Workload,
    WorkloadSettings,
)
from benchmark.reporting import pick_device, private_random_state

__all__ = ["Counts", "Quality", "Unsupported", "Workload", "WorkloadSettings", "build_workload"]

FALSE_PER_TRIPLE = 32
MORE_SHAPES = 3
"""Further batches that a sampled or graph-level workload offers as other input sizes."""
TEST_PERCENT = 20  # of graph sets, which come without a split
SCORES_AT_ONCE = 1 << 22


def build_workload(settings: WorkloadSettings) -> Workload:
    """Load the data and build the model.

    Raises:
        Unsupported: If framework, model, data set and machine do not go together; with the reason.
        ValueError: For an unknown name or a bad number.
        FileNotFoundError: If real data are not there.
        ModuleNotFoundError: If a package that reads them is not installed.
    """
    reason = unsupported(
        framework=settings.framework,
        model=settings.model,
        dataset=settings.dataset,
        variant=settings.variant,
        sampled=settings.sampled,
        amp=settings.amp,
        device=settings.device,
        hidden=settings.hidden,
        heads=settings.heads,
    )
    if reason is not None:
        raise Unsupported(reason)
    entry = get_dataset(settings.dataset)
    inputs = entry.load(
        root=settings.root,
        scale=settings.scale,
        seed=settings.seed,
        download=settings.download,
        cache=settings.cache,
    )
    kind: type[Workload] = _KINDS[entry.task]
    if settings.sampled:
        from benchmark.compile.sampled import SampledWorkload

        kind = SampledWorkload
    device = pick_device(settings.device)
    with private_random_state(device):
        torch.manual_seed(settings.seed)
        return kind(settings, inputs, device)


class NodeWorkload(Workload):
    """Classes of nodes, on the whole graph at once."""

    metric = "accuracy"

    def __init__(self, settings: WorkloadSettings, inputs: NodeInputs, device: torch.device):
        super().__init__(settings, inputs.record, device)
        self.task = inputs.record["task"]
        self.inputs = inputs
        self.model = self.finish(self.build_model())
        ids = (torch.arange(inputs.num_embeddings),) if inputs.num_embeddings else ()
        self.args = self.to_device((inputs.x, *ids, *self.graph_arguments(inputs.edges)))
        self.y, self.train, self.test = self.to_device((inputs.y, inputs.train, inputs.test))
        nodes, edges = inputs.edges.num_nodes, inputs.edges.edge_index.size(1)
        self.counts = Counts("nodes", nodes, nodes, edges, edges)

    def build_model(self) -> nn.Module:
        """Return the model, with an embedding of the nodes that have no features."""
        inputs = self.inputs
        width = inputs.x.size(1)
        model = self.build_encoder(width, inputs.num_classes, inputs.edges.num_relations)
        if inputs.num_embeddings:
            return WithEmbedding(model, inputs.num_embeddings, width)
        return model

    def loss(self, output: Tensor, args: Arguments) -> Tensor:
        """Return the cross-entropy of the training nodes."""
        del args
        return F.cross_entropy(output[self.train], self.y[self.train])

    def batches(self) -> Iterable[Arguments]:
        """Return the whole graph, once."""
        return [self.args]

    def _evaluate(self, model: nn.Module) -> Quality:
        predicted = model(*self.args)[self.test].argmax(dim=-1)
        return accuracy(predicted, self.y[self.test])


class LinkWorkload(Workload):
    """Pairs of nodes, on the whole graph at once."""

    task = "link"

    def __init__(self, settings: WorkloadSettings, inputs: LinkInputs, device: torch.device):
        super().__init__(settings, inputs.record, device)
        self.metric = inputs.metric
        self.inputs = inputs
        encoder = self.build_encoder(inputs.x.size(1), settings.hidden)
        self.model = self.finish(LinkModel(encoder))
        self.graph = self.to_device((inputs.x, *self.graph_arguments(inputs.edges)))
        self.args = next(iter(self.batches()))
        pairs, edges = self.args[0].size(1), inputs.edges.edge_index.size(1)
        self.counts = Counts("pairs", pairs, pairs, edges, edges)

    def loss(self, output: Tensor, args: Arguments) -> Tensor:
        """Return the logistic loss; the first half of the pairs are edges."""
        del args
        half = output.size(0) // 2
        return F.softplus(-output[:half]).mean() + F.softplus(output[half:]).mean()

    def batches(self) -> Iterator[Arguments]:
        """Return batches of training edges and as many random pairs, all of one size."""
        train = self.inputs.train
        size = min(self.batch_size(), train.size(1))
        order = torch.randperm(train.size(1), generator=self.generator)
        for begin in range(0, train.size(1) - size + 1, size):
            true = train[:, order[begin : begin + size]]
            nodes = self.inputs.edges.num_nodes
            false = torch.randint(0, nodes, true.shape, generator=self.generator)
            yield (torch.cat([true, false], dim=1).to(self.device), *self.graph)

    def _evaluate(self, model: nn.Module) -> Quality:
        embedding = _inner(model, LinkModel).encoder(*self.graph).float().cpu()
        true = score_pairs(embedding, self.inputs.test)
        negatives = self.inputs.test_negatives
        if self.metric == "mrr":
            heads = self.inputs.test[0].unsqueeze(1).expand_as(negatives)
            false = _in_chunks(embedding, torch.stack([heads, negatives]))
        else:
            false = score_pairs(embedding, negatives.t())
        return _ranked(self.metric, true, false)


class TripleWorkload(Workload):
    """Triples of a knowledge graph."""

    task = "kg"
    metric = "mrr"

    def __init__(self, settings: WorkloadSettings, inputs: TripleInputs, device: torch.device):
        super().__init__(settings, inputs.record, device)
        self.inputs = inputs
        # A row of the embedding per entity is a linear layer on one-hot features.
        model = self.build_encoder(inputs.num_entities, settings.hidden, inputs.num_relations)
        self.model = self.finish(model)
        self.args = next(iter(self.batches()))
        triples = self.args[0].shape[:-1].numel()
        self.counts = Counts("triplets", triples, triples, None, None)

    def loss(self, output: Tensor, args: Arguments) -> Tensor:
        """Return the logistic loss of one true and `FALSE_PER_TRIPLE` false triples per row."""
        del args
        return F.softplus(-output[:, 0]).mean() + F.softplus(output[:, 1:]).mean()

    def batches(self) -> Iterator[Arguments]:
        """Return batches of training triples, all of one size, each with false ones.

        One half of these has another head, the other another tail.
        """
        train = self.inputs.train
        size = min(self.batch_size(), len(train))
        order = torch.randperm(len(train), generator=self.generator)
        for begin in range(0, len(train) - size + 1, size):
            triples = train[order[begin : begin + size]]
            triples = triples.unsqueeze(1).repeat(1, 1 + FALSE_PER_TRIPLE, 1)
            shape = (size, FALSE_PER_TRIPLE // 2)
            for end, first in ((0, 1), (2, 1 + FALSE_PER_TRIPLE // 2)):
                others = torch.randint(0, self.inputs.num_entities, shape, generator=self.generator)
                triples[:, first : first + shape[1], end] = others
            yield (triples.to(self.device),)

    def _evaluate(self, model: nn.Module) -> Quality:
        module = _inner(model, nn.Module)
        inputs = self.inputs
        true = _score(module, inputs.test, self.device)
        both = []
        for end, others, mask in (
            (0, inputs.test_heads, inputs.head_mask),
            (2, inputs.test_tails, inputs.tail_mask),
        ):
            scores = []
            rows = max(1, SCORES_AT_ONCE // (self.settings.hidden * others.size(1)))
            parts = zip(torch.split(inputs.test, rows), torch.split(others, rows), strict=True)
            for triples, replaced in parts:
                false = triples.unsqueeze(1).repeat(1, replaced.size(1), 1)
                false[..., end] = replaced
                scores.append(_score(module, false, self.device))
            negative = torch.cat(scores)
            both.append(negative if mask is None else negative.masked_fill(~mask, -torch.inf))
        return _ranked("mrr", torch.cat([true, true]), torch.cat(both))


class GraphWorkload(Workload):
    """Classes of whole graphs, in batches of fixed membership."""

    task = "graph"
    metric = "accuracy"

    def __init__(self, settings: WorkloadSettings, inputs: GraphInputs, device: torch.device):
        super().__init__(settings, inputs.record, device)
        encoder = self.build_encoder(inputs.num_features, settings.hidden)
        self.model = self.finish(GraphModel(encoder, settings.hidden, inputs.num_classes))
        order = torch.randperm(len(inputs.graphs), generator=self.generator).tolist()
        num_test = len(order) * TEST_PERCENT // 100
        graphs = [inputs.graphs[number] for number in order]
        self._test = self._collated(graphs[:num_test])
        self._train = self._collated(graphs[num_test:])
        self.args = self._train[0][1]
        self.shapes = [
            (f"batch {number}", args)
            for number, (_, args) in enumerate(self._train[1 : 1 + MORE_SHAPES], start=1)
        ]
        edges = self._train[0][0]
        graphs_at_once = len(self.args[0])
        self.counts = Counts("graphs", graphs_at_once, graphs_at_once, edges, edges)

    def loss(self, output: Tensor, args: Arguments) -> Tensor:
        """Return the cross-entropy of all graphs of the batch."""
        return F.cross_entropy(output, args[0])

    def batches(self) -> Iterator[Arguments]:
        """Return the training batches in random order."""
        for number in torch.randperm(len(self._train), generator=self.generator).tolist():
            yield self._train[number][1]

    def _collated(self, graphs: Sequence[Any]) -> list[tuple[int, Arguments]]:
        """Return (number of edges, arguments) of each batch of graphs."""
        from torch_geometric.data import Batch

        batches = []
        for begin in range(0, len(graphs), self.batch_size()):
            batch = Batch.from_data_list(list(graphs[begin : begin + self.batch_size()]))
            edges = Edges(batch.edge_index, int(batch.num_nodes))
            args = (batch.y.view(-1), batch.batch, batch.x, *self.graph_arguments(edges))
            batches.append((batch.edge_index.size(1), self.to_device(args)))
        return batches

    def _evaluate(self, model: nn.Module) -> Quality:
        predicted = [model(*args).argmax(dim=-1) for _, args in self._test]
        return accuracy(torch.cat(predicted), torch.cat([args[0] for _, args in self._test]))


_KINDS: dict[str, Any] = {
    "node": NodeWorkload,
    "hetero": NodeWorkload,
    "link": LinkWorkload,
    "kg": TripleWorkload,
    "graph": GraphWorkload,
}


def accuracy(predicted: Tensor, y: Tensor) -> Quality:
    """Return the share of classes predicted rightly."""
    return Quality("accuracy", float((predicted == y).double().mean()), "gnnprof")


def _inner(model: nn.Module, kind: type[nn.Module]) -> Any:
    """Return the module of that kind under what compiled it or put autocast around it."""
    model = getattr(model, "_orig_mod", model)
    if isinstance(model, Autocast):
        model = model.model
    if not isinstance(model, kind):
        raise TypeError(f"{type(model).__name__} is not the {kind.__name__} of this workload.")
    return model


def _in_chunks(embedding: Tensor, pairs: Tensor) -> Tensor:
    """Return the scores [P, K] of pairs [2, P, K] without gathering all of them at once."""
    rows = max(1, SCORES_AT_ONCE // (embedding.size(1) * pairs.size(2)))
    parts = [score_pairs(embedding, part) for part in torch.split(pairs, rows, dim=1)]
    return torch.cat(parts)


def _score(model: nn.Module, triples: Tensor, device: torch.device) -> Tensor:
    scores: Tensor = model(triples.to(device)).float().cpu()
    return scores


def _ranked(metric: str, true: Tensor, false: Tensor) -> Quality:
    from benchmark.link_evaluation import evaluate

    result = evaluate(metric, true, false)
    return Quality(result.metric, result.value, result.evaluator)
