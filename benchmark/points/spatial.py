"""Neighbours in space and farthest point sampling: the one place that knows who computes them.

A library does it where one that works is installed: `pyg_lib` through torch_geometric, or
`torch_cluster`. Otherwise it is done here: nearest points by scipy's k-d trees on the CPU in few
dimensions, by distances between all pairs of a cloud elsewhere, and farthest points by torch on
whatever device. `spatial_library()` says which one runs, and every record of a benchmark does.

All functions take the points of several clouds in one tensor, cloud after cloud, and the number of
the cloud of each point, as torch_geometric batches them: `x` [N, D] and `batch` [N], sorted. They
give the same as those of torch_geometric, with two things more certain than there: neighbours come
nearest first, and of more than `max_num_neighbors` within a radius the nearest are taken. No
gradient flows through an index, so none is tracked. `torch.compile` leaves these functions out of
its graphs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, ParamSpec

import torch
import torch_geometric.typing
from torch import Tensor

_P = ParamSpec("_P")

TREE_DIMENSIONS = 8  # in more, a k-d tree looks at nearly all points
PAIRS_AT_ONCE = 2**24  # 64 MiB of float32 distances

OWN = "gnnprof"


class SpatialLibrary(NamedTuple):
    """Who computes neighbours: the name to report and the functions; None for those in here."""

    name: str
    functions: Any


@functools.cache
def spatial_library() -> SpatialLibrary:
    """Find out, once, which library computes `fps`, `knn` and `radius` in this process."""
    typing = torch_geometric.typing
    if all(getattr(typing, f"WITH_{what}", False) for what in ("FPS", "KNN", "RADIUS")):
        pool = importlib.import_module("torch_geometric.nn.pool")
        return SpatialLibrary(_with_version("pyg_lib"), pool)
    try:
        return SpatialLibrary(
            _with_version("torch_cluster"), importlib.import_module("torch_cluster")
        )
    except (ImportError, OSError):  # not there, or built for another torch
        pass
    how = "scipy trees and torch" if _has_scipy() else "torch"
    return SpatialLibrary(f"{OWN} ({how})", None)


def _outside_of_graphs(function: Callable[_P, Tensor]) -> Callable[_P, Tensor]:
    """Run without gradients, and keep Dynamo from unrolling the loops into its graphs."""
    disable: Any = torch.compiler.disable
    # No `reason=`, which torch 2.6 and 2.7 do not take.
    wrapped: Callable[_P, Tensor] = disable(torch.no_grad()(function))
    return wrapped


@_outside_of_graphs
def fps(
    pos: Tensor, batch: Tensor | None = None, ratio: float = 0.5, random_start: bool = True
) -> Tensor:
    """Farthest point sampling: each next point is the one farthest from all before it.

    Source: Eldar et al., "The Farthest Point Strategy for Progressive Image Sampling", IEEE
    Transactions on Image Processing 6 (1997), as PointNet++ uses it.

    Args:
        pos: Points [N, D].
        batch: Cloud of each point [N], sorted; None is a single cloud.
        ratio: Share of each cloud's points to take, above 0 and up to 1; the count is rounded up.
        random_start: Whether a cloud's first point is drawn, or is its first one.

    Returns:
        Indices of the points taken [M], cloud after cloud, in the order of sampling.

    Raises:
        ValueError: If `ratio` is outside its range, or the shapes do not fit.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio} is not a share of the points; give one above 0, up to 1.")
    counts = _cloud_sizes("pos", pos, batch)
    library = spatial_library().functions
    if library is not None:
        indices: Tensor = library.fps(_wide(pos), batch, ratio, random_start)
        return indices
    return _farthest_points(pos, counts, ratio, random_start)


@_outside_of_graphs
def knn(
    x: Tensor, y: Tensor, k: int, batch_x: Tensor | None = None, batch_y: Tensor | None = None
) -> Tensor:
    """For each point of `y`, the `k` nearest points of `x` in the same cloud.

    Args:
        x: Points to choose from [N, D].
        y: Points that ask [M, D].
        k: How many; a cloud that has fewer gives all.
        batch_x: Cloud of each point of `x` [N], sorted; None is a single cloud.
        batch_y: Cloud of each point of `y` [M], sorted.

    Returns:
        Pairs [2, E]: row 0 the index in `y`, ascending, row 1 that in `x`, nearest first.

    Raises:
        ValueError: If `k` is not positive, or the shapes do not fit.
    """
    _check_positive("k", k)
    sizes = _paired_sizes(x, y, batch_x, batch_y)
    library = spatial_library().functions
    if library is not None:
        pairs: Tensor = library.knn(_wide(x), _wide(y), k, batch_x, batch_y)
        return pairs
    return _nearest(x, y, sizes, k, math.inf)


@_outside_of_graphs
def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int = 32,
) -> Tensor:
    """For each point of `y`, the points of `x` in the same cloud that are nearer than `r`.

    Args:
        x: Points to choose from [N, D].
        y: Points that ask [M, D].
        r: Distance that a neighbour stays below.
        batch_x: Cloud of each point of `x` [N], sorted; None is a single cloud.
        batch_y: Cloud of each point of `y` [M], sorted.
        max_num_neighbors: How many at most for each point of `y`; the nearest, unless a library
            chooses.

    Returns:
        Pairs [2, E]: row 0 the index in `y`, ascending, row 1 that in `x`.

    Raises:
        ValueError: If `r` or `max_num_neighbors` is not positive, or the shapes do not fit.
    """
    _check_positive("r", r)
    _check_positive("max_num_neighbors", max_num_neighbors)
    sizes = _paired_sizes(x, y, batch_x, batch_y)
    library = spatial_library().functions
    if library is not None:
        pairs: Tensor = library.radius(_wide(x), _wide(y), r, batch_x, batch_y, max_num_neighbors)
        return pairs
    return _nearest(x, y, sizes, max_num_neighbors, r)


def knn_graph(x: Tensor, k: int, batch: Tensor | None = None, loop: bool = False) -> Tensor:
    """Edges from each point's `k` nearest points to it.

    Args:
        x: Points [N, D].
        k: How many; a cloud that has fewer gives all.
        batch: Cloud of each point [N], sorted; None is a single cloud.
        loop: Whether a point is one of its own neighbours.

    Returns:
        `edge_index` [2, E]: source and target; by target ascending, nearest source first.
    """
    return _as_graph(knn(x, x, k if loop else k + 1, batch, batch), k, loop)


def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int = 32,
) -> Tensor:
    """Edges to each point from those nearer than `r`.

    Args:
        x: Points [N, D].
        r: Distance that a neighbour stays below.
        batch: Cloud of each point [N], sorted; None is a single cloud.
        loop: Whether a point is one of its own neighbours.
        max_num_neighbors: How many edges at most lead to a point.

    Returns:
        `edge_index` [2, E]: source and target; by target ascending.
    """
    most = max_num_neighbors if loop else max_num_neighbors + 1
    return _as_graph(radius(x, x, r, batch, batch, most), max_num_neighbors, loop)


# --- checks --------------------------------------------------------------------------------------


def _check_positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name}={value} is not positive; give a number above 0.")


def _paired_sizes(
    x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None
) -> tuple[list[int], list[int]]:
    """Return how many points each cloud has in `x` and in `y`, of the same length."""
    if x.dim() == 2 and y.dim() == 2 and x.size(1) != y.size(1):
        raise ValueError(f"x has {x.size(1)} dimensions and y has {y.size(1)}; they must agree.")
    of_x, of_y = _cloud_sizes("x", x, batch_x), _cloud_sizes("y", y, batch_y)
    clouds = max(len(of_x), len(of_y))
    return of_x + [0] * (clouds - len(of_x)), of_y + [0] * (clouds - len(of_y))


def _cloud_sizes(name: str, points: Tensor, batch: Tensor | None) -> list[int]:
    if points.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(points.shape)}; give points as [N, D].")
    if batch is None:
        return [len(points)]
    if batch.shape != points.shape[:1]:
        raise ValueError(
            f"the batch of {name} has shape {tuple(batch.shape)}; give the cloud of each of the "
            f"{len(points)} points."
        )
    if bool((batch[1:] < batch[:-1]).any()):
        raise ValueError(f"the batch of {name} is not sorted; keep the points of a cloud together.")
    sizes: list[int] = torch.bincount(batch).tolist()
    return sizes


# --- nearest points ------------------------------------------------------------------------------


def _nearest(
    x: Tensor, y: Tensor, sizes: tuple[list[int], list[int]], k: int, limit: float
) -> Tensor:
    """Return pairs of each point of `y` with its at most `k` nearest of `x` nearer than `limit`."""
    search = _by_tree if _use_trees(x) else _by_distances
    found = [torch.empty(2, 0, dtype=torch.long, device=x.device)]
    for run in _runs(*sizes):
        if run.in_x == 0 or run.in_y == 0:
            continue
        of_x = _cut(x, run.first_x, run.clouds, run.in_x)
        of_y = _cut(y, run.first_y, run.clouds, run.in_y)
        near, valid = search(of_x, of_y, min(k, run.in_x), limit)
        first_x = torch.arange(run.clouds, device=x.device).view(-1, 1, 1) * run.in_x + run.first_x
        asking = torch.arange(run.clouds * run.in_y, device=x.device) + run.first_y
        column = near + first_x
        row = asking.view(run.clouds, run.in_y, 1).expand_as(column)
        found.append(torch.stack([row[valid], column[valid]]))
    return torch.cat(found, dim=1)


class _Run(NamedTuple):
    """Clouds of the same sizes, one after the other."""

    first_x: int
    first_y: int
    clouds: int
    in_x: int
    in_y: int


def _runs(sizes_x: list[int], sizes_y: list[int]) -> Iterator[_Run]:
    """Group consecutive clouds of equal sizes, as far as their distances fit into the memory."""
    first_x = first_y = start = 0
    while start < len(sizes_x):
        in_x, in_y = sizes_x[start], sizes_y[start]
        most = max(PAIRS_AT_ONCE // max(in_x * in_y, 1), 1)
        end = start + 1
        while end < len(sizes_x) and end - start < most:
            if (sizes_x[end], sizes_y[end]) != (in_x, in_y):
                break
            end += 1
        yield _Run(first_x, first_y, end - start, in_x, in_y)
        first_x += (end - start) * in_x
        first_y += (end - start) * in_y
        start = end


def _cut(points: Tensor, first: int, clouds: int, size: int) -> Tensor:
    return points[first : first + clouds * size].view(clouds, size, points.size(1))


def _use_trees(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.size(1) <= TREE_DIMENSIONS and _has_scipy()


def _by_tree(x: Tensor, y: Tensor, k: int, limit: float) -> tuple[Tensor, Tensor]:
    """Return the indices [clouds, M, k] of the nearest points, and which of them are there."""
    ranks = range(1, k + 1)  # a sequence keeps the last axis even where it is 1
    found = []
    for of_x, of_y in zip(x, y, strict=True):
        tree = _tree_class()(of_x.detach().double().numpy())
        _, near = tree.query(of_y.detach().double().numpy(), ranks, distance_upper_bound=limit)
        found.append(torch.from_numpy(near))
    indices = torch.stack(found)
    return indices, indices < x.size(1)  # scipy marks what is missing by the number of points


@functools.cache
def _tree_class() -> Any:
    with warnings.catch_warnings():  # scipy adds filters of its own while it is imported
        from scipy.spatial import cKDTree  # heavy, and only needed where no library is
    return cKDTree


def _by_distances(x: Tensor, y: Tensor, k: int, limit: float) -> tuple[Tensor, Tensor]:
    """Return what `_by_tree` returns, from the distances of all pairs of a cloud."""
    x, y = _wide(x), _wide(y)
    exact = x.size(2) <= TREE_DIMENSIONS  # a matrix product rounds more, but is faster in many
    mode = "donot_use_mm_for_euclid_dist" if exact else "use_mm_for_euclid_dist"
    rows = max(PAIRS_AT_ONCE // (len(x) * x.size(1)), 1)
    parts = [
        torch.cdist(y[:, start : start + rows], x, compute_mode=mode).topk(k, largest=False)
        for start in range(0, y.size(1), rows)
    ]
    distances = torch.cat([part.values for part in parts], dim=1)
    return torch.cat([part.indices for part in parts], dim=1), distances < limit


def _as_graph(pairs: Tensor, k: int, loop: bool) -> Tensor:
    """Turn pairs of target and source into edges, at most `k` to a target."""
    target, source = pairs
    if not loop:
        # Where many points coincide a point may not be among its own nearest.
        other = source != target
        target, source = target[other], source[other]
        rank = torch.arange(len(target), device=target.device)
        first = torch.searchsorted(target, target)  # the pairs are sorted by target
        kept = rank - first < k
        target, source = target[kept], source[kept]
    return torch.stack([source, target])


# --- farthest points -----------------------------------------------------------------------------


def _farthest_points(pos: Tensor, sizes: list[int], ratio: float, random_start: bool) -> Tensor:
    """Sample all clouds at the same time, the shorter ones filled up with nothing."""
    device = pos.device
    largest = max(sizes, default=0)
    # 0.07 * 100 is a little more than 7, which would be rounded up to 8.
    taken = [math.ceil(ratio * size - 1e-9) for size in sizes]
    if largest == 0:
        return torch.empty(0, dtype=torch.long, device=device)
    size = torch.tensor(sizes, device=device)
    first = size.cumsum(0) - size
    place = torch.arange(largest, device=device)
    inside = place < size[:, None]
    points = _wide(pos)[(first[:, None] + place).clamp(max=len(pos) - 1)]
    distance = points.new_full(inside.shape, math.inf).masked_fill_(~inside, -math.inf)
    clouds = torch.arange(len(sizes), device=device)
    current = torch.zeros_like(size)
    if random_start:  # drawn on the CPU: the same on every device, and MPS has no doubles
        share = torch.rand(len(sizes), dtype=torch.double)
        current = (share * torch.tensor(sizes)).long().to(device)
    chosen = torch.empty(len(sizes), max(taken), dtype=torch.long, device=device)
    for step in range(max(taken)):
        chosen[:, step] = current
        squared = (points - points[clouds, current, None]).square().sum(dim=-1)
        distance = torch.minimum(distance, squared)
        distance[clouds, current] = -1.0  # never again, even where many points coincide
        current = distance.argmax(dim=1)
    count = torch.tensor(taken, device=device)
    wanted = torch.arange(max(taken), device=device) < count[:, None]
    return (chosen + first[:, None])[wanted]


def _wide(points: Tensor) -> Tensor:
    """Return the points in single precision at least.

    Half is too coarse for distances, and the libraries have no kernels for bfloat16.
    """
    return points if points.dtype == torch.double else points.float()


def _has_scipy() -> bool:
    return importlib.util.find_spec("scipy") is not None


def _with_version(package: str) -> str:
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:  # its distribution may have another name
        return package
