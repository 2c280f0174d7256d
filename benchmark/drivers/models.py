"""The models of the drivers, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import GAT, GCN, PNA, EdgeCNN, GraphSAGE

from benchmark.drivers.graphs import Graph
from benchmark.drivers.relational import RelationalNet, gat_layer, mean_layer

HOMOGENEOUS = ("edge_cnn", "gat", "gcn", "pna", "sage")
HETEROGENEOUS = ("rgat", "rgcn")
MODELS = (*HOMOGENEOUS, *HETEROGENEOUS)

PNA_AGGREGATORS = ["mean", "min", "max", "std"]
PNA_SCALERS = ["identity", "amplification", "attenuation"]


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    Attributes:
        hidden_channels: Width of the hidden layers.
        num_layers: Message-passing layers.
        num_heads: Attention heads; of 'gat' and 'rgat' only.
        largest_fan_out: Most neighbours that a node has in a batch, -1 without a limit; of 'pna'
            only, whose scalers need the degrees that the model will see.
        normalize: Whether 'gcn' normalises the edges it is given, by their degrees among
            themselves; otherwise it takes normalised weights.
    """

    hidden_channels: int
    num_layers: int
    num_heads: int = 2
    largest_fan_out: int = -1
    normalize: bool = True


def is_heterogeneous(model: str) -> bool:
    """Say whether a model is for graphs with several types of nodes."""
    return model in HETEROGENEOUS


def build_model(name: str, graph: Graph, shape: Shape) -> torch.nn.Module:
    """Return a model with parameters drawn from torch's random state.

    'gcn', 'sage', 'gat', 'edge_cnn' and 'pna' are PyG's basic models, whose forward takes `x`
    [N, F] and `edge_index` [2, E] or a sparse matrix. 'rgcn' and 'rgat' are `RelationalNet`s.

    Args:
        name: One of `MODELS`.
        graph: What the model is for: features, classes, relations, degrees.
        shape: Its sizes.
    """
    if is_heterogeneous(name):
        layer = mean_layer if name == "rgcn" else gat_layer(shape.num_heads)
        return RelationalNet(graph, shape.hidden_channels, shape.num_layers, layer)
    sizes = (graph.num_features, shape.hidden_channels, shape.num_layers, graph.num_classes)
    model: torch.nn.Module
    if name == "gat":
        model = GAT(*sizes, heads=shape.num_heads)
    elif name == "gcn":
        model = GCN(*sizes, normalize=shape.normalize)
    elif name == "pna":
        model = PNA(
            *sizes,
            aggregators=PNA_AGGREGATORS,
            scalers=PNA_SCALERS,
            deg=degree_histogram(graph, shape.largest_fan_out),
        )
    else:
        model = {"sage": GraphSAGE, "edge_cnn": EdgeCNN}[name](*sizes)
    return model


def layer_output(
    net: Any, layer: int, x: Tensor, edges: Tensor, weights: Tensor | None, num_seeds: int
) -> Tensor:
    """Return what one layer of a homogeneous model makes of a batch's seed nodes, [B, H].

    Args:
        net: One of PyG's basic models, as `build_model` makes them.
        layer: Number of the layer.
        x: Outputs of the layer before, [N, H].
        edges: `edge_index` [2, E], or the transposed sparse matrix, which holds the weights.
        weights: Weights of the edges, [E]; None for layers that take none.
        num_seeds: Seed nodes; they come first.
    """
    conv = net.convs[layer]
    out: Tensor = (conv(x, edges) if weights is None else conv(x, edges, weights))[:num_seeds]
    return out if layer == net.num_layers - 1 else net.act(out)


def degree_histogram(graph: Graph, largest_fan_out: int) -> Tensor:
    """Return how many nodes have 0, 1, 2, ... incoming edges, [D + 1].

    Args:
        graph: A homogeneous graph.
        largest_fan_out: Where sampling cuts the degrees off; -1 is nowhere.
    """
    targets = graph.data.edge_index[1]
    degrees = torch.bincount(targets, minlength=graph.data.num_nodes)
    if largest_fan_out >= 0:
        degrees = degrees.clamp(max=largest_fan_out)
    return torch.bincount(degrees)
