"""The parts of a model that need neither PyG nor DGL, and are the same under both.

A convolution here is any module that is called with node features [N, F] and then whatever its
framework calls a graph: `conv(x, *graph)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ModelSizes:
    """The shape of a model.

    Attributes:
        num_features: Width of the input features.
        num_outputs: Width of the last layer: classes, or the width of an embedding.
        layers: Convolutions.
        hidden: Width between them; in a GAT of all heads together.
        heads: Attention heads of a GAT, but for the last layer, which has one.
        dropout: Share of the inputs of each layer that is set to zero in training.
        num_relations: Edge types of an R-GCN; 0 for graphs with one.
    """

    num_features: int
    num_outputs: int
    layers: int = 3
    hidden: int = 256
    heads: int = 8
    dropout: float = 0.5
    num_relations: int = 0

    def widths(self) -> tuple[int, ...]:
        """Return the widths before, between and after the layers: `layers + 1` of them."""
        return (self.num_features, *[self.hidden] * (self.layers - 1), self.num_outputs)

    def heads_of(self, number: int) -> int:
        """Return the attention heads of layer `number`, the first being 0."""
        return 1 if number == self.layers - 1 else self.heads


@dataclass(frozen=True)
class Edges:
    """The edges of a (sub)graph, as every framework and variant is given them.

    Attributes:
        edge_index: Source and target of each edge, [2, E].
        num_nodes: Nodes, isolated ones included.
        edge_type: Relation of each edge, [E], for an R-GCN; else None.
        num_relations: Relations there are, for an R-GCN.
    """

    edge_index: Tensor
    num_nodes: int
    edge_type: Tensor | None = None
    num_relations: int = 0

    def relations(self) -> Tensor:
        """Return `edge_type`.

        Raises:
            ValueError: If there is none.
        """
        if self.edge_type is None:
            raise ValueError("edge_type=None: an R-GCN needs the relation of each edge.")
        return self.edge_type


class Stack(nn.Module):
    """Layers of dropout, convolution, batch normalisation and activation; the last one is raw.

    Args:
        convs: The convolutions, in order.
        width: Width between them.
        dropout: Share of each layer's inputs to set to zero in training.
        activation: What follows a normalisation.
    """

    def __init__(
        self, convs: Sequence[nn.Module], width: int, dropout: float, activation: Activation
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in convs[1:])
        self.dropout = dropout
        self.activation = activation

    def forward(self, x: Tensor, *graph: object) -> Tensor:
        """Return the last layer's output [N, num_outputs] of features `x` [N, F]."""
        for conv, norm in zip(self.convs, self.norms, strict=False):  # the last one has no norm
            x = F.dropout(x, self.dropout, self.training)
            x = self.activation(norm(conv(x, *graph)))
        x = F.dropout(x, self.dropout, self.training)
        out: Tensor = self.convs[-1](x, *graph)
        return out


def gin_mlp(width_in: int, width_out: int) -> nn.Sequential:
    """Return the network inside a GIN layer: Linear, batch normalisation, ReLU, Linear."""
    return nn.Sequential(
        nn.Linear(width_in, width_out),
        nn.BatchNorm1d(width_out),
        nn.ReLU(),
        nn.Linear(width_out, width_out),
    )


class WithEmbedding(nn.Module):
    """A model for a graph whose nodes do not all have features: those without get learned ones.

    Args:
        encoder: Called with the features of all nodes, those with given features first.
        num_embeddings: Nodes without features.
        width: Width of the features.
    """

    def __init__(self, encoder: nn.Module, num_embeddings: int, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.embedding = nn.Embedding(num_embeddings, width)

    def forward(self, x: Tensor, ids: Tensor, *graph: object) -> Tensor:
        """Return the encoder's output for all nodes.

        Args:
            x: Features of the nodes that have them, [N1, F].
            ids: Rows of the embedding for the other nodes of this (sub)graph, [N2].
            *graph: The graph of the N1 + N2 nodes.
        """
        out: Tensor = self.encoder(torch.cat([x, self.embedding(ids)]), *graph)
        return out


class SeedModel(nn.Module):
    """A model on a sampled neighbourhood, of which only the first nodes, the seeds, count."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, y: Tensor, *inputs: object) -> Tensor:
        """Return the outputs of the seeds [B, C].

        Args:
            y: Class of each seed, [B]; only its length is used.
            *inputs: What the model takes for all sampled nodes.
        """
        out: Tensor = self.model(*inputs)
        return out[: y.size(0)]


class LinkModel(nn.Module):
    """Scores pairs of nodes by the dot product of their embeddings."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, pairs: Tensor, x: Tensor, *graph: object) -> Tensor:
        """Return a score (logit) [P] per pair `pairs` [2, P]."""
        return score_pairs(self.encoder(x, *graph), pairs)


def score_pairs(embedding: Tensor, pairs: Tensor) -> Tensor:
    """Return dot products [P] of the rows of `embedding` [N, H] that `pairs` [2, P] names."""
    return (embedding[pairs[0]] * embedding[pairs[1]]).sum(dim=-1)


class GraphModel(nn.Module):
    """Classifies whole graphs: the sum over each graph's nodes, then a linear layer."""

    def __init__(self, encoder: nn.Module, width: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, num_classes)

    def forward(self, y: Tensor, assignment: Tensor, x: Tensor, *graph: object) -> Tensor:
        """Return class scores [G, C].

        Args:
            y: Class of each graph, [G]; only its length is used.
            assignment: Number of the graph of each node, [N].
            x: Features of the nodes of all graphs, [N, F].
            *graph: Their edges, one graph of G parts.
        """
        nodes = self.encoder(x, *graph)
        # The number of graphs comes as a shape: the largest number in `assignment` would have to
        # be read from the device, and breaks a compiled graph in two.
        pooled = nodes.new_zeros(y.size(0), nodes.size(1)).index_add(0, assignment, nodes)
        out: Tensor = self.head(pooled)
        return out


class DistMult(nn.Module):
    """Scores of triples: sum over (head x relation x tail), elementwise (Yang et al., 2015).

    Args:
        num_entities: Rows of the entity embedding.
        num_relations: Rows of the relation embedding.
        width: Columns of both.
        dropout: Share of the head's and tail's entries that is set to zero in training.
    """

    def __init__(
        self, num_entities: int, num_relations: int, width: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.entities = nn.Embedding(num_entities, width)
        self.relations = nn.Embedding(num_relations, width)
        self.dropout = dropout
        nn.init.xavier_uniform_(self.entities.weight)
        nn.init.xavier_uniform_(self.relations.weight)

    def forward(self, triples: Tensor) -> Tensor:
        """Return a score [...] per (head, relation, tail) in `triples` [..., 3]."""
        head, relation, tail = triples.unbind(dim=-1)
        ends = self.entities(head) * self.entities(tail)
        ends = F.dropout(ends, self.dropout, self.training)
        score: Tensor = (ends * self.relations(relation)).sum(dim=-1)
        return score


class Autocast(nn.Module):
    """A model that computes in bfloat16 where torch's autocast allows it, and returns float32.

    The context lies inside `forward`, so that it is compiled with the model, and so that weights
    cast for one call are not kept for a later one, after an optimizer has changed them.
    """

    def __init__(self, model: nn.Module, device_type: str) -> None:
        super().__init__()
        self.model = model
        self.device_type = device_type

    def forward(self, *inputs: object) -> Tensor:
        """Return the model's output in float32."""
        with torch.autocast(self.device_type, torch.bfloat16):
            out: Tensor = self.model(*inputs)
        return out.float()
