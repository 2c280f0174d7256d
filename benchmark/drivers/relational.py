"""Networks for heterogeneous graphs: one convolution per relation, summed per node type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.utils import trim_to_layer

from benchmark.drivers.graphs import Graph

Relation = tuple[str, str, str]
Layer = Callable[[int, int, bool], nn.Module]
"""Makes the convolution of one relation from input width, output width, whether it is the last."""


def mean_layer(in_channels: int, out_channels: int, _last: bool) -> nn.Module:
    """Return the term of one relation in R-GCN: a linear map of the mean of the neighbours.

    Source: Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks",
    2018, equation 2, without a basis decomposition.
    """
    widths = (in_channels, in_channels)
    conv: nn.Module = SAGEConv(widths, out_channels, aggr="mean", root_weight=False, bias=False)
    return conv


def gat_layer(num_heads: int) -> Layer:
    """Return what makes attention over the neighbours of one relation.

    The heads share the output width; those of the last layer are averaged, as in GAT.
    """

    def make(in_channels: int, out_channels: int, last: bool) -> nn.Module:
        widths = (in_channels, in_channels)
        width = out_channels if last else out_channels // num_heads
        conv: nn.Module = GATConv(
            widths, width, heads=num_heads, concat=not last, add_self_loops=False, bias=False
        )
        return conv

    return make


class RelationalNet(nn.Module):
    """Layers `h_t' = W_t h_t + b + sum over relations r into t of conv_r(h_source, h_t)`.

    A node type with features is first mapped to the hidden width, one without is given learnable
    embeddings. A layer has convolutions only for the relations that the target type can still
    hear of, so that every parameter has a gradient.

    Args:
        graph: Node types, relations, features, target type and classes.
        hidden_channels: Width between the layers.
        num_layers: Message-passing layers.
        layer: Makes the convolution of one relation.
    """

    def __init__(self, graph: Graph, hidden_channels: int, num_layers: int, layer: Layer) -> None:
        super().__init__()
        self.target = str(graph.target)
        self.num_layers = num_layers
        reached = _reached_types(self.target, graph.relations, num_layers)
        self.inputs = nn.ModuleDict(
            {
                node_type: _input(graph, node_type, hidden_channels)
                for node_type in sorted(reached[0])
            }
        )
        self.roots = nn.ModuleList()
        self.convs = nn.ModuleList()
        for step in range(num_layers):
            last = step == num_layers - 1
            width = graph.num_classes if last else hidden_channels
            goals = sorted(reached[step + 1])
            self.roots.append(nn.ModuleDict({t: nn.Linear(hidden_channels, width) for t in goals}))
            self.convs.append(
                nn.ModuleDict(
                    {
                        _name(relation): layer(hidden_channels, width, last)
                        for relation in graph.relations
                        if relation[2] in reached[step + 1]
                    }
                )
            )

    def forward(
        self,
        x: Mapping[str, Tensor],
        edge_index: Mapping[Relation, Tensor],
        node_ids: Mapping[str, Tensor],
        nodes_per_hop: Mapping[str, Sequence[int]] | None = None,
        edges_per_hop: Mapping[Relation, Sequence[int]] | None = None,
    ) -> Tensor:
        """Return the scores [N, C] of the nodes of the target type.

        Args:
            x: Features [N_t, F_t] of the types that have some.
            edge_index: Edges [2, E_r], or the transposed sparse matrix, by relation.
            node_ids: Numbers in the whole graph of the types without features, [N_t].
            nodes_per_hop: Sampled nodes by type; with `edges_per_hop`, each layer leaves out what
                the later ones do not need.
            edges_per_hop: Sampled edges by relation.
        """
        hidden: dict[str, Tensor] = {
            node_type: module(x[node_type] if node_type in x else node_ids[node_type])
            for node_type, module in self.inputs.items()
        }
        edges: dict[Relation, Any] = dict(edge_index)
        for step in range(self.num_layers):
            if nodes_per_hop is not None:
                hidden, edges, _ = trim_to_layer(step, nodes_per_hop, edges_per_hop, hidden, edges)
            hidden = {node_type: h.relu() for node_type, h in hidden.items()}
            hidden = self._step(step, hidden, edges)
        return hidden[self.target]

    def _step(
        self, step: int, hidden: dict[str, Tensor], edges: Mapping[Relation, Tensor]
    ) -> dict[str, Tensor]:
        roots: Any = self.roots[step]
        convs: Any = self.convs[step]
        out = {node_type: root(hidden[node_type]) for node_type, root in roots.items()}
        for relation, edge_index in edges.items():
            name = _name(relation)
            if name in convs:
                source, _, goal = relation
                out[goal] = out[goal] + convs[name]((hidden[source], hidden[goal]), edge_index)
        return out


def _reached_types(target: str, relations: Sequence[Relation], num_layers: int) -> list[set[str]]:
    """Return the node types whose state before each layer, and after the last, matters."""
    reached = [{target}]
    for _ in range(num_layers):
        later = reached[0]
        sources = {source for source, _, goal in relations if goal in later}
        reached.insert(0, later | sources)
    return reached


def _input(graph: Graph, node_type: str, hidden_channels: int) -> nn.Module:
    store = graph.data[node_type]
    if "x" in store:
        return nn.Linear(store.x.size(1), hidden_channels)
    return nn.Embedding(store.num_nodes, hidden_channels)


def _name(relation: Relation) -> str:
    return "__".join(relation)
