"""Drawing neighbours of many nodes at once, without a loop over the nodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RANDOM_BITS = 1 << 62  # so wide that the remainder by a degree is even to within 1e-9
MOST_BY_REJECTION = 32  # above, comparing each draw with all earlier ones costs more than sorting


def pick_neighbors(
    degree: Tensor, fan_out: int, replace: bool, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw neighbours of many nodes at once.

    Args:
        degree: Neighbours of each node, [N].
        fan_out: Neighbours to draw per node; -1 takes all of them.
        replace: Whether one neighbour may be drawn more than once. A node with any neighbour then
            gets exactly `fan_out`, otherwise at most as many as it has.
        generator: Source of the draws.

    Returns:
        For each of the M draws the position of its node, [M], ascending, and the position of the
        drawn neighbour among the node's own, [M].
    """
    if fan_out < 0:
        counts = degree
    elif replace:
        counts = torch.where(degree > 0, fan_out, 0)
    else:
        counts = degree.clamp(max=fan_out)
    node = torch.repeat_interleave(counts)
    if replace and fan_out >= 0:
        return node, _random(node.shape, generator).remainder_(degree[node])
    first_draw = counts.cumsum(0) - counts
    offset = torch.arange(len(node)) - first_draw[node]
    has_more = degree > counts
    if fan_out > 0 and bool(has_more.any()):
        choose = _distinct_by_rejection if fan_out <= MOST_BY_REJECTION else _distinct_by_sorting
        offset[has_more[node]] = choose(degree[has_more], fan_out, generator).view(-1)
    return node, offset


def _random(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.randint(RANDOM_BITS, tuple(shape), generator=generator)


def _distinct_by_rejection(degree: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` distinct numbers below each degree, [N, count]; each degree is larger.

    Floyd's algorithm (Bentley, "Programming pearls: a sample of brilliance", 1987): the i-th draw
    is one of the first `degree - count + i + 1` numbers, or the last of these if it was drawn.
    """
    draws = _random((len(degree), count), generator)
    chosen = torch.empty_like(draws)
    for i in range(count):
        last = degree - count + i
        draw = draws[:, i].remainder(last + 1)
        drawn_before = (chosen[:, :i] == draw[:, None]).any(dim=1)
        chosen[:, i] = torch.where(drawn_before, last, draw)
    return chosen


def _distinct_by_sorting(degree: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` distinct numbers below each degree, [N, count]: the first of a shuffle."""
    node = torch.repeat_interleave(degree)
    first = degree.cumsum(0) - degree
    order = _random(node.shape, generator).argsort()
    order = order[node[order].argsort(stable=True)]
    in_shuffle = order - first[node]
    return in_shuffle[first[:, None] + torch.arange(count)]
