"""Continuous B-spline kernels: the basis, and the layer of SplineCNN on top of it.

Source: Fey, Lenssen, Weichert and Müller, "SplineCNN: Fast Geometric Deep Learning with Continuous
B-Spline Kernels", CVPR 2018. torch_geometric has the layer too, but its basis is in a library that
not every torch has a build of.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing


def spline_basis(pseudo: Tensor, kernel_size: int, degree: int = 1) -> tuple[Tensor, Tensor]:
    """Return which control points of an open B-spline a coordinate sees, and how much of each.

    Along each dimension `kernel_size` control points are spread over [0, 1]; a coordinate sees the
    `degree + 1` next to it, and in D dimensions the products of those: S = (degree + 1)**D.

    Args:
        pseudo: Coordinates [E, D] within [0, 1].
        kernel_size: Control points along each dimension, more than `degree`.
        degree: 1 (linear), 2 or 3.

    Returns:
        The values of the basis functions [E, S], which add up to 1 for each edge, and the number
        of the control point of each [E, S], out of `kernel_size**D`; the first dimension counts
        fastest.

    Raises:
        ValueError: If `degree` is another, or `kernel_size` is too small for it.
    """
    if degree not in (1, 2, 3):
        raise ValueError(f"degree={degree} is not offered; give 1, 2 or 3.")
    if kernel_size <= degree:
        raise ValueError(f"kernel_size={kernel_size} must be above the degree, {degree}.")
    spans = kernel_size - degree
    place = pseudo * spans
    # The coordinate 1 belongs to the last span, not to one behind it.
    span = place.floor().clamp(0, spans - 1)
    values = torch.stack(_pieces(place - span, degree), dim=-1)  # [E, D, degree + 1]
    points = span.long().unsqueeze(-1) + torch.arange(degree + 1, device=pseudo.device)
    strides = torch.tensor(
        [kernel_size**dim for dim in range(pseudo.size(1))], device=pseudo.device
    )
    points = points * strides.unsqueeze(-1)
    basis, index = [], []
    for choice in itertools.product(range(degree + 1), repeat=pseudo.size(1)):
        chosen = list(enumerate(choice))
        basis.append(torch.stack([values[:, dim, piece] for dim, piece in chosen]).prod(dim=0))
        index.append(torch.stack([points[:, dim, piece] for dim, piece in chosen]).sum(dim=0))
    return torch.stack(basis, dim=1), torch.stack(index, dim=1)


def _pieces(v: Tensor, degree: int) -> list[Tensor]:
    """Return the pieces of the uniform B-spline that cover `v` in [0, 1]; they add up to 1."""
    if degree == 1:
        return [1 - v, v]
    if degree == 2:
        return [(1 - v) ** 2 / 2, (1 + 2 * v - 2 * v**2) / 2, v**2 / 2]
    return [
        (1 - v) ** 3 / 6,
        (3 * v**3 - 6 * v**2 + 4) / 6,
        (-3 * v**3 + 3 * v**2 + 3 * v + 1) / 6,
        v**3 / 6,
    ]


class SplineConv(MessagePassing):  # type: ignore[misc]  # torch_geometric has no types
    """Convolution with a kernel that is continuous in the coordinates of the edges.

    Each node gets the mean over its edges of x_j times the kernel's matrix at the edge's
    coordinates, plus its own features times a matrix of their own. The kernel is linear in its
    control points, so that the neighbours are first summed up per control point and then multiplied
    by that point's matrix once per node, not once per edge.

    Args:
        in_channels: Features per node.
        out_channels: Features per node afterwards.
        dim: Coordinates per edge.
        kernel_size: Control points along each of them.
        degree: Degree of the B-spline.
    """

    def __init__(
        self, in_channels: int, out_channels: int, dim: int, kernel_size: int, degree: int = 1
    ) -> None:
        super().__init__(aggr="sum")
        self.kernel_size, self.degree = kernel_size, degree
        self.control_points = kernel_size**dim
        self.weight = torch.nn.Parameter(
            torch.empty(self.control_points, in_channels, out_channels)
        )
        self.lin = torch.nn.Linear(in_channels, out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        super().reset_parameters()
        bound = 1 / math.sqrt(self.control_points * self.weight.size(1))
        torch.nn.init.uniform_(self.weight, -bound, bound)
        self.lin.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor, pseudo: Tensor) -> Tensor:
        """Return features [N, out] of `x` [N, in], `edge_index` [2, E], `pseudo` [E, D] in 0..1."""
        basis, point = spline_basis(pseudo, self.kernel_size, self.degree)
        degree = torch.bincount(edge_index[1], minlength=len(x)).clamp(min=1)
        basis = basis / degree[edge_index[1], None]  # the mean over the edges
        summed = self.propagate(edge_index, x=x, basis=basis, point=point)
        out: Tensor = summed.flatten(1) @ self.weight.flatten(0, 1) + self.lin(x)
        return out

    def message(self, x_j: Tensor) -> Tensor:
        """Send the features of the neighbour; each control point takes its share of them."""
        return x_j

    def aggregate(
        self,
        inputs: Tensor,
        index: Tensor,
        basis: Tensor,
        point: Tensor,
        dim_size: int | None = None,
    ) -> Tensor:
        """Sum the neighbours up per node and control point: [N, K, in]."""
        nodes = int(index.max()) + 1 if dim_size is None else dim_size
        sums = inputs.new_zeros(nodes * self.control_points, inputs.size(1))
        for share, nearby in zip(basis.unbind(1), point.unbind(1), strict=True):
            cell = index * self.control_points + nearby
            sums.index_add_(0, cell, (inputs * share.unsqueeze(1)).to(sums.dtype))
        return sums.view(nodes, self.control_points, inputs.size(1))
