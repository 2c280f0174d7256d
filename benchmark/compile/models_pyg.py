"""The models of the study in PyG, and the graph in the form that each of them takes.

What a variant changes is where self-loops and normalisation are computed; never what comes out:

- 'no-fixes' and 'fullgraph': by the layer, in every forward pass, as is the library's default;
- 'fixes': once, by `graph_arguments`.

GraphSAGE and GIN need neither, and are one program in all variants.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, GINConv, RGCNConv, SAGEConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, remove_self_loops

from benchmark.compile.modules import Edges, ModelSizes, Stack, gin_mlp


class SplitRGCNConv(RGCNConv):  # type: ignore[misc]
    """An R-GCN layer whose edges come sorted into relations, instead of being masked each time."""

    def forward(self, x: Tensor, edges: tuple[Tensor, ...]) -> Tensor:
        """Return [N, H] of `x` [N, F] and one `edge_index` [2, E_r] per relation."""
        out: Tensor = x @ self.root + self.bias
        for edge_index, weight in zip(edges, self.weight, strict=True):
            out = out + self.propagate(edge_index, x=x, edge_type_ptr=None, size=None) @ weight
        return out


def build(name: str, sizes: ModelSizes, variant: str) -> Stack:
    """Return the stack of `sizes.layers` convolutions called `name`.

    Args:
        name: 'GCN', 'GraphSAGE', 'GAT', 'GIN' or 'RGCN'.
        sizes: Widths, depth, dropout.
        variant: 'fixes', 'no-fixes' or 'fullgraph'; it must be that of `graph_arguments`.
    """
    convs = [_conv(name, sizes, variant == "fixes", number) for number in range(sizes.layers)]
    return Stack(convs, sizes.hidden, sizes.dropout, F.elu if name == "GAT" else F.relu)


def graph_arguments(
    name: str, variant: str, edges: Edges, dtype: torch.dtype = torch.float32
) -> tuple[object, ...]:
    """Return what a model of that name and variant takes after the features.

    Args:
        name: As for `build`.
        variant: As for `build`.
        edges: The edges as they were loaded.
        dtype: Of precomputed weights; it should be that of the model.
    """
    edge_index = edges.edge_index
    if name == "RGCN":
        edge_type = edges.relations()
        if variant != "fixes":
            return (edge_index, edge_type)
        return (tuple(edge_index[:, edge_type == r] for r in range(edges.num_relations)),)
    if variant == "fixes" and name == "GCN":
        # An edge weighs 1 / sqrt(in-degree of its source x in-degree of its target), self-loops
        # counted (Kipf and Welling, 2017); by the function that the layer itself would call.
        looped, weight = gcn_norm(edge_index, None, edges.num_nodes, dtype=dtype)
        return (looped, weight)
    if variant == "fixes" and name == "GAT":
        return (with_self_loops(edge_index, edges.num_nodes),)
    return (edge_index,)


def with_self_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Return the edges with exactly one self-loop per node, [2, E']."""
    edges, _ = remove_self_loops(edge_index)
    looped: Tensor = add_self_loops(edges, num_nodes=num_nodes)[0]
    return looped


def _conv(name: str, sizes: ModelSizes, fixed: bool, number: int) -> nn.Module:
    """Return one layer of a stack, without what `graph_arguments` did if it is `fixed`."""
    width_in, width_out = sizes.widths()[number : number + 2]
    if name == "GCN":
        return GCNConv(width_in, width_out, normalize=not fixed)  # type: ignore[no-any-return]
    if name == "GraphSAGE":
        return SAGEConv(width_in, width_out, aggr="mean")  # type: ignore[no-any-return]
    if name == "GAT":
        heads = sizes.heads_of(number)
        # No dropout of the attention: DGL's layer, with which this one is compared, has none.
        return GATConv(width_in, width_out // heads, heads, add_self_loops=not fixed)  # type: ignore[no-any-return]
    if name == "GIN":
        return GINConv(gin_mlp(width_in, width_out), train_eps=True)  # type: ignore[no-any-return]
    if name == "RGCN":
        kind = SplitRGCNConv if fixed else RGCNConv
        return kind(width_in, width_out, sizes.num_relations)
    raise ValueError(f"name={name!r} is unknown; give GCN, GraphSAGE, GAT, GIN or RGCN.")
