"""Layers that look at points in space, each a module, so that each has its row in a profile."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import EdgeConv, global_mean_pool

from benchmark.points import spatial


class FarthestPoints(nn.Module):
    """Samples each cloud; see `spatial.fps`. The start is drawn in training and fixed otherwise.

    Args:
        ratio: Share of the points to keep.
    """

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, pos: Tensor, batch: Tensor) -> Tensor:
        """Return the indices of the points to keep out of `pos` [N, 3]."""
        # A sample in the order of the points keeps what follows reproducible and local.
        return spatial.fps(pos, batch, self.ratio, self.training).sort().values


class KNNGraph(nn.Module):
    """Connects each point with its nearest ones, itself included; see `spatial.knn_graph`.

    Args:
        k: How many.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        """Return `edge_index` [2, N * k] among `x` [N, D]."""
        return spatial.knn_graph(x, self.k, batch, loop=True)


class RadiusGraph(nn.Module):
    """Connects the points nearer to each other than a radius; see `spatial.radius_graph`.

    Args:
        r: The radius.
    """

    def __init__(self, r: float) -> None:
        super().__init__()
        self.r = r

    def forward(self, pos: Tensor, batch: Tensor) -> Tensor:
        """Return `edge_index` [2, E] among `pos` [N, 3]."""
        return spatial.radius_graph(pos, self.r, batch)


class BallQuery(nn.Module):
    """Connects sampled centres with all points around them; see `spatial.radius`.

    Args:
        r: The radius.
        most: How many points a centre takes at most.
    """

    def __init__(self, r: float, most: int = 64) -> None:
        super().__init__()
        self.r, self.most = r, most

    def forward(self, pos: Tensor, batch: Tensor, centres: Tensor) -> Tensor:
        """Return `edge_index` [2, E]: from the points `pos` [N, 3] to the `centres` [M] of them."""
        pairs = spatial.radius(
            pos, pos[centres], self.r, batch, batch[centres], max_num_neighbors=self.most
        )
        return pairs.flip(0)


class DynamicEdgeConv(nn.Module):
    """Edge convolution among the nearest points in feature space, found anew at each call.

    Source: Wang et al., "Dynamic Graph CNN for Learning on Point Clouds", ACM TOG 38 (2019).

    Args:
        edge_nn: Maps [x_i, x_j - x_i] of each edge to its message.
        k: Nearest points, the point itself being one.
    """

    def __init__(self, edge_nn: nn.Module, k: int) -> None:
        super().__init__()
        self.graph = KNNGraph(k)
        self.conv = EdgeConv(edge_nn, aggr="max")

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        """Return features [N, out] of `x` [N, in]."""
        out: Tensor = self.conv(x, self.graph(x, batch))
        return out


class XConv(nn.Module):
    """Convolution that first learns to weigh and order the nearest points of each point.

    Of K * dilation nearest points every `dilation`-th is taken. Their positions relative to the
    point are lifted to features and stand beside the features that the points bring; a K x K
    matrix learnt from the same positions mixes the K rows, and a depthwise and a pointwise
    convolution make the output. Source: Li et al., "PointCNN: Convolution On X-Transformed
    Points", NeurIPS 2018, algorithm 1; the networks have the sizes of torch_geometric's layer.

    Args:
        in_channels: Features per point; 0 where there are only positions.
        out_channels: Features per point afterwards.
        dim: Coordinates of a point.
        kernel_size: K.
        hidden_channels: Features that the positions are lifted to.
        dilation: See above.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dim: int,
        kernel_size: int,
        hidden_channels: int,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.graph = KNNGraph(kernel_size * dilation)
        self.lift = nn.Sequential(
            nn.Linear(dim, hidden_channels),
            nn.ELU(),
            nn.BatchNorm1d(hidden_channels),
            nn.Linear(hidden_channels, hidden_channels),
            nn.ELU(),
            nn.BatchNorm1d(hidden_channels),
        )
        self.transform = _transform(dim, kernel_size)
        channels = in_channels + hidden_channels
        depth = math.ceil(out_channels / channels)
        self.depthwise = nn.Conv1d(channels, channels * depth, kernel_size, groups=channels)
        self.pointwise = nn.Linear(channels * depth, out_channels)

    def forward(self, x: Tensor | None, pos: Tensor, batch: Tensor) -> Tensor:
        """Return features [N, out].

        Args:
            x: Features [N, in]; None where `in_channels` is 0.
            pos: Positions [N, D].
            batch: Cloud of each point [N], sorted.

        Raises:
            ValueError: If a cloud has fewer points than K * dilation.
        """
        near = self._neighbours(pos, batch)
        relative = pos[near] - pos.unsqueeze(1)  # [N, K, D]
        features = self.lift(relative.flatten(0, 1)).view(*near.shape, -1)
        if x is not None:
            features = torch.cat([features, x[near].to(features.dtype)], dim=-1)
        matrix = self.transform(relative.flatten(1)).view(-1, *2 * (self.kernel_size,))
        mixed = features.transpose(1, 2) @ matrix  # [N, C, K]
        out: Tensor = self.pointwise(self.depthwise(mixed).squeeze(-1))
        return out

    def _neighbours(self, pos: Tensor, batch: Tensor) -> Tensor:
        """Return the indices [N, K] of the neighbours, nearest first."""
        source: Tensor = self.graph(pos, batch)[0]
        wanted = self.kernel_size * self.dilation
        if len(source) != len(pos) * wanted:
            raise ValueError(
                f"a cloud has fewer than the {wanted} points that kernel_size={self.kernel_size} "
                f"with dilation={self.dilation} looks at; give larger clouds."
            )
        return source.view(len(pos), wanted)[:, :: self.dilation]


def _transform(dim: int, k: int) -> nn.Sequential:
    """Return the network that makes a K x K matrix of the positions of K points."""
    return nn.Sequential(
        nn.Linear(dim * k, k * k),
        nn.ELU(),
        nn.BatchNorm1d(k * k),
        nn.Unflatten(1, (k, k)),
        nn.Conv1d(k, k * k, k, groups=k),
        nn.ELU(),
        nn.Flatten(),
        nn.BatchNorm1d(k * k),
        nn.Unflatten(1, (k, k)),
        nn.Conv1d(k, k * k, k, groups=k),
        nn.Flatten(),
        nn.BatchNorm1d(k * k),
    )


class RadiusNet(nn.Module):
    """Three convolutions on fewer and fewer points, a mean over the cloud, three layers.

    Args:
        conv: Called with a radius and the numbers of features in and out, makes a layer that maps
            features, positions and batch to features.
        act: Activation of the layers behind the mean.
        num_classes: Number of classes.
    """

    def __init__(
        self,
        conv: Callable[[float, int, int], nn.Module],
        act: Callable[[Tensor], Tensor],
        num_classes: int,
    ) -> None:
        super().__init__()
        self.conv1 = conv(0.2, 1, 64)
        self.sample1 = FarthestPoints(0.5)
        self.conv2 = conv(0.4, 64, 64)
        self.sample2 = FarthestPoints(0.25)
        self.conv3 = conv(1.0, 64, 128)
        self.lin1 = nn.Linear(128, 256)
        self.lin2 = nn.Linear(256, 256)
        self.lin3 = nn.Linear(256, num_classes)
        self.act = act

    def forward(self, pos: Tensor, batch: Tensor, size: int) -> Tensor:
        """Return log-probabilities [B, C] of `pos` [N, 3] in `size` = B clouds."""
        x = self.conv1(pos.new_ones(len(pos), 1), pos, batch)
        kept = self.sample1(pos, batch)
        x, pos, batch = x[kept], pos[kept], batch[kept]
        x = self.conv2(x, pos, batch)
        kept = self.sample2(pos, batch)
        x, pos, batch = x[kept], pos[kept], batch[kept]
        x = global_mean_pool(self.conv3(x, pos, batch), batch, size)
        x = self.act(self.lin1(x))
        x = self.act(self.lin2(x))
        x = F.dropout(x, 0.5, self.training)
        return F.log_softmax(self.lin3(x), dim=1)
