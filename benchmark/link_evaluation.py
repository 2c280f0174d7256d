"""Hits@K and mean reciprocal rank as OGB defines them, by OGB's evaluator where it is installed.

The definitions are those of the Open Graph Benchmark (Hu et al., 2020). Scores go up with belief.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmark.ogb_data import import_ogb, ogb_version

OWN = "gnnprof"


@dataclass(frozen=True)
class Evaluation:
    """One figure of merit, from 0 to 1, and whose code computed it.

    Attributes:
        metric: 'hits@K' or 'mrr'.
        value: The figure.
        evaluator: 'ogb' and its version, or 'gnnprof'.
    """

    metric: str
    value: float
    evaluator: str


def hits_at_k(positive: Tensor, negative: Tensor, k: int) -> float:
    """Return the share of positives that score above the k-th best negative.

    It is 1 where there are fewer than k negatives, as with OGB.

    Args:
        positive: Scores of true edges, [P].
        negative: Scores of false edges, shared by all positives, [N].
        k: Rank of the negative to beat.
    """
    if len(negative) < k:
        return 1.0
    to_beat = negative.topk(k).values[-1]
    return float((positive > to_beat).double().mean())


def reciprocal_ranks(positive: Tensor, negative: Tensor) -> Tensor:
    """Return one over the rank of each positive among its own negatives, [M].

    Between equal scores the rank is the middle of the best and the worst it could be.

    Args:
        positive: Score of each true edge, [M].
        negative: Scores of its false edges, [M, K]; minus infinity for one that does not count.
    """
    better = (negative > positive[:, None]).sum(dim=1)
    not_worse = (negative >= positive[:, None]).sum(dim=1)
    return 1 / ((better + not_worse) / 2 + 1)


def mean_reciprocal_rank(positive: Tensor, negative: Tensor) -> float:
    """Return the mean of `reciprocal_ranks`."""
    return float(reciprocal_ranks(positive, negative).double().mean())


def evaluate(metric: str, positive: Tensor, negative: Tensor) -> Evaluation:
    """Return a figure of merit, by OGB's evaluator if ogb is installed.

    Args:
        metric: 'mrr', or 'hits@' and a number.
        positive: Scores of true edges, [M].
        negative: Scores of false edges: [N] for hits, [M, K] for mrr.

    Raises:
        ValueError: If the metric is unknown, or the shapes do not fit it.
    """
    hits = re.fullmatch(r"hits@([1-9]\d*)", metric)
    if hits is None and metric != "mrr":
        raise ValueError(f"metric={metric!r} is unknown; give 'mrr' or 'hits@K', such as hits@50.")
    k = int(hits[1]) if hits else None
    wanted = f"negatives [{len(positive)}, K]" if k is None else "negatives [N]"
    fits = negative.dim() == (2 if k is None else 1) and len(positive) > 0
    if not fits or positive.dim() != 1 or (k is None and len(negative) != len(positive)):
        raise ValueError(
            f"{metric} needs one positive score or more, [M], and {wanted}; got "
            f"{list(positive.shape)} and {list(negative.shape)}."
        )
    version = ogb_version()
    if version is None:
        value = _own(k, positive, negative)
        return Evaluation(metric, value, OWN)
    return Evaluation(metric, _by_ogb(k, positive, negative), f"ogb {version}")


def _own(k: int | None, positive: Tensor, negative: Tensor) -> float:
    if k is None:
        return mean_reciprocal_rank(positive, negative)
    return hits_at_k(positive, negative, k)


def _by_ogb(k: int | None, positive: Tensor, negative: Tensor) -> float:
    """Ask OGB's evaluator of a data set with that metric."""
    evaluator = import_ogb("linkproppred").Evaluator(
        "ogbl-citation2" if k is None else "ogbl-collab"
    )
    scores = {"y_pred_pos": positive, "y_pred_neg": negative}
    if k is None:
        return float(torch.as_tensor(evaluator.eval(scores)["mrr_list"]).double().mean())
    evaluator.K = k
    return float(evaluator.eval(scores)[f"hits@{k}"])
