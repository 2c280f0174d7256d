"""The models of the study in DGL, with the mathematics of their PyG counterparts.

DGL leaves self-loops to whoever builds the graph, so they are in it under every variant. What is
computed in every forward pass under 'no-fixes' and 'fullgraph', and once under 'fixes', is the
normalisation of GCN and R-GCN and the search for nodes without incoming edges.

`GraphConv(norm='both')` scales a source by its out-degree, PyG by its in-degree: the same on
symmetric graphs only. The layer here scales by in-degrees, so that directed graphs agree, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmark.compile.dgl_adapter import load_dgl
from benchmark.compile.models_pyg import with_self_loops
from benchmark.compile.modules import Edges, ModelSizes, Stack, gin_mlp


class GCNLayer(nn.Module):
    """D^-1/2 (A + I) D^-1/2 X W + b, on a graph that has its self-loops; D holds in-degrees."""

    def __init__(self, width_in: int, width_out: int, *, fixed: bool) -> None:
        super().__init__()
        self.conv = _layers().GraphConv(
            width_in, width_out, norm="none", bias=False, allow_zero_in_degree=fixed
        )
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, x: Tensor, graph: Any, scale: Tensor | None = None) -> Tensor:
        """Return [N, H]; without `scale` [N, 1], which is D^-1/2, it is computed here."""
        if scale is None:
            scale = _inverse_root_degrees(graph, x.dtype)
        out: Tensor = self.conv(graph, x * scale) * scale + self.bias
        return out


class SAGELayer(nn.Module):
    """DGL's SAGEConv with the mean, called like PyG's."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = _layers().SAGEConv(width_in, width_out, "mean")

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Return [N, H] of `x` [N, F]."""
        out: Tensor = self.conv(graph, x)
        return out


class GATLayer(nn.Module):
    """DGL's GATConv, its heads side by side in the output."""

    def __init__(self, width_in: int, width_out: int, heads: int, *, fixed: bool) -> None:
        super().__init__()
        self.conv = _layers().GATConv(
            width_in, width_out // heads, heads, allow_zero_in_degree=fixed
        )

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Return [N, heads x H] of `x` [N, F]."""
        out: Tensor = self.conv(graph, x).flatten(1)
        return out


class GINLayer(nn.Module):
    """DGL's GINConv with the sum and a learned epsilon, called like PyG's."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.conv = _layers().GINConv(gin_mlp(width_in, width_out), "sum", learn_eps=True)

    def forward(self, x: Tensor, graph: Any) -> Tensor:
        """Return [N, H] of `x` [N, F]."""
        out: Tensor = self.conv(graph, x)
        return out


class RGCNLayer(nn.Module):
    """DGL's RelGraphConv, averaging the messages of each relation."""

    def __init__(self, width_in: int, width_out: int, num_relations: int) -> None:
        super().__init__()
        self.conv = _layers().RelGraphConv(width_in, width_out, num_relations, regularizer=None)
        self.num_relations = num_relations

    def forward(
        self, x: Tensor, graph: Any, edge_type: Tensor, edge_weight: Tensor | None = None
    ) -> Tensor:
        """Return [N, H]; without `edge_weight` [E, 1] the shares of a mean are computed here."""
        if edge_weight is None:
            target = graph.edges()[1]
            edge_weight = _mean_weights(
                target, edge_type, graph.num_nodes(), self.num_relations, x.dtype
            )
        out: Tensor = self.conv(graph, x, edge_type, edge_weight)
        return out


def build(name: str, sizes: ModelSizes, variant: str) -> Stack:
    """Return the stack of `sizes.layers` convolutions called `name`; as in `models_pyg`.

    Raises:
        DGLUnavailable: If dgl cannot be imported.
    """
    load_dgl()
    convs = [_conv(name, sizes, variant == "fixes", number) for number in range(sizes.layers)]
    return Stack(convs, sizes.hidden, sizes.dropout, F.elu if name == "GAT" else F.relu)


def graph_arguments(
    name: str, variant: str, edges: Edges, dtype: torch.dtype = torch.float32
) -> tuple[object, ...]:
    """Return what a model takes after the features; as in `models_pyg`, from the same edges.

    Every sparse format of the graph is built here, and not by the first pass that needs it.

    Raises:
        DGLUnavailable: If dgl cannot be imported.
    """
    fixed = variant == "fixes"
    num_nodes = edges.num_nodes
    if name == "RGCN":
        edge_type = edges.relations()
        graph = _graph(edges.edge_index, num_nodes)
        if not fixed:
            return (graph, edge_type)
        weight = _mean_weights(
            edges.edge_index[1], edge_type, num_nodes, edges.num_relations, dtype
        )
        return (graph, edge_type, weight)
    if name in ("GCN", "GAT"):
        graph = _graph(with_self_loops(edges.edge_index, num_nodes), num_nodes)
        return (graph, _inverse_root_degrees(graph, dtype)) if name == "GCN" and fixed else (graph,)
    return (_graph(edges.edge_index, num_nodes),)


def copy_weights(name: str, pyg_model: nn.Module, dgl_model: nn.Module) -> None:
    """Give a DGL model the parameters and buffers of the PyG model of the same name and sizes.

    Args:
        name: As for `build`.
        pyg_model: A stack of `models_pyg`, or a module that holds one (with a link head, ...).
        dgl_model: The same of `models_dgl`.

    Raises:
        RuntimeError: If a name or a shape has no counterpart.
    """
    dgl_model.load_state_dict(weights_to_dgl(name, pyg_model.state_dict()))


def copy_weights_back(name: str, dgl_model: nn.Module, pyg_model: nn.Module) -> None:
    """Give a PyG model the parameters and buffers of a DGL model: `copy_weights` reversed."""
    pyg_model.load_state_dict(weights_to_pyg(name, dgl_model.state_dict()))


def weights_to_dgl(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a PyG model's tensors under the names, and in the layout, of the DGL model.

    Any tensors with the names of the parameters will do: gradients, too.
    """
    return _renamed(state, _PARAMETERS[name], name == "GCN")


def weights_to_pyg(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a DGL model's tensors under the names, and in the layout, of the PyG model."""
    backwards = {theirs: ours for ours, theirs in _PARAMETERS[name].items()}
    return _renamed(state, backwards, name == "GCN")


def _renamed(
    state: Mapping[str, Tensor], names: Mapping[str, str], transposed: bool
) -> dict[str, Tensor]:
    """Rename what belongs to a convolution; GraphConv keeps its weight transposed."""
    renamed = {}
    for key, tensor in state.items():
        layer = _CONV.match(key)
        if layer is None:
            renamed[key] = tensor
            continue
        part = key[layer.end() :]
        known = next(name for name in names if part == name or part.startswith(f"{name}."))
        turned = tensor.t() if transposed and part.endswith("weight") else tensor
        renamed[f"{layer[0]}{names[known]}{part[len(known) :]}"] = turned
    return renamed


_CONV = re.compile(r"(?:.*\.)?convs\.\d+\.")

_PARAMETERS = {
    "GCN": {"lin.weight": "conv.weight", "bias": "bias"},
    "GraphSAGE": {
        "lin_l.weight": "conv.fc_neigh.weight",
        "lin_l.bias": "conv.fc_self.bias",  # of the sum of both terms, so on either of them
        "lin_r.weight": "conv.fc_self.weight",
    },
    "GAT": {
        "lin.weight": "conv.fc.weight",
        "att_src": "conv.attn_l",
        "att_dst": "conv.attn_r",
        "bias": "conv.bias",
    },
    "GIN": {"eps": "conv.eps", "nn": "conv.apply_func"},
    "RGCN": {"weight": "conv.linear_r.W", "root": "conv.loop_weight", "bias": "conv.h_bias"},
}
"""What a PyG layer's parameters, or its inner modules, are called in the layers here."""


def _graph(edge_index: Tensor, num_nodes: int) -> Any:
    graph = load_dgl().graph((edge_index[0], edge_index[1]), num_nodes=num_nodes)
    graph.create_formats_()
    return graph


def _inverse_root_degrees(graph: Any, dtype: torch.dtype) -> Tensor:
    """Return 1 / sqrt(in-degree) of each node, [N, 1]."""
    scale: Tensor = graph.in_degrees().to(dtype).rsqrt().unsqueeze(-1)
    return scale


def _mean_weights(
    target: Tensor, edge_type: Tensor, num_nodes: int, num_relations: int, dtype: torch.dtype
) -> Tensor:
    """Return 1 / (edges of that relation into that target) per edge, [E, 1]."""
    group = target * num_relations + edge_type
    count = torch.zeros(num_nodes * num_relations, dtype=dtype, device=target.device)
    count = count.index_add(0, group, torch.ones_like(group, dtype=dtype))
    return count[group].reciprocal().unsqueeze(-1)


def _layers() -> Any:
    return load_dgl().nn.pytorch


def _conv(name: str, sizes: ModelSizes, fixed: bool, number: int) -> nn.Module:
    """Return one layer of a stack, without what `graph_arguments` did if it is `fixed`."""
    width_in, width_out = sizes.widths()[number : number + 2]
    if name == "GCN":
        return GCNLayer(width_in, width_out, fixed=fixed)
    if name == "GraphSAGE":
        return SAGELayer(width_in, width_out)
    if name == "GAT":
        return GATLayer(width_in, width_out, sizes.heads_of(number), fixed=fixed)
    if name == "GIN":
        return GINLayer(width_in, width_out)
    if name == "RGCN":
        return RGCNLayer(width_in, width_out, sizes.num_relations)
    raise ValueError(f"name={name!r} is unknown; give GCN, GraphSAGE, GAT, GIN or RGCN.")
