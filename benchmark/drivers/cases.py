"""One combination of data set, model and sizes, and which of them can be run."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import asdict, dataclass

from benchmark.drivers.graphs import canonical_name, is_heterogeneous_set
from benchmark.drivers.models import MODELS, is_heterogeneous
from benchmark.drivers.settings import Settings, hops_for


@dataclass(frozen=True)
class Case:
    """What is measured at once.

    Attributes:
        dataset: Name of the data set.
        model: Name of the model.
        batch_size: Seed nodes per batch; None for the whole graph.
        num_layers: Layers of the model.
        hidden_channels: Width of the hidden layers.
        num_neighbors: Neighbours sampled per hop, -1 for all; empty for the whole graph.
    """

    dataset: str
    model: str
    batch_size: int | None
    num_layers: int
    hidden_channels: int
    num_neighbors: tuple[int, ...]

    @property
    def key(self) -> str:
        """What tells this case from every other: 16 hexadecimal digits."""
        return key_of(self.to_dict())

    def to_dict(self) -> dict[str, object]:
        """Return the fields as JSON takes them."""
        return {**asdict(self), "num_neighbors": list(self.num_neighbors)}

    def file_parts(self) -> tuple[str, ...]:
        """Return the parts of the name of a file that belongs to this case."""
        size = "full" if self.batch_size is None else str(self.batch_size)
        hops = "_".join(map(str, self.num_neighbors)) or "all"
        return (
            *(self.model, self.dataset, size),
            *(str(self.num_layers), str(self.hidden_channels), hops),
        )

    def __str__(self) -> str:
        size = "full batch" if self.batch_size is None else f"batch size {self.batch_size}"
        hops = f", neighbours {list(self.num_neighbors)}" if self.num_neighbors else ""
        return (
            f"{self.model} on {self.dataset}: {size}, {self.num_layers} layers, hidden "
            f"{self.hidden_channels}{hops}"
        )


def key_of(case: dict[str, object]) -> str:
    """Return the key of a case given as JSON takes it."""
    text = json.dumps(case, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cases_of(settings: Settings) -> tuple[list[Case], list[str]]:
    """Return the cases in the order to run them, and a sentence for each pair left out.

    Homogeneous models run on homogeneous graphs and heterogeneous ones on heterogeneous graphs.

    Raises:
        ValueError: If a model or data set is unknown, a width cannot be shared out among the
            heads, no pair fits, or a case cannot be cut short or trimmed.
    """
    fitting, left_out = _pairs(settings)
    cases: dict[Case, None] = {}  # as an ordered set: sizes that do not matter give equal cases
    for (dataset, model), batch_size, layers, hidden in itertools.product(
        fitting, settings.batch_sizes, settings.num_layers, settings.hidden_channels
    ):
        _check_heads(model, hidden, settings.num_heads)
        cases[_case(settings, dataset, model, batch_size, layers, hidden)] = None
    return list(cases), left_out


def _case(
    settings: Settings, dataset: str, model: str, batch_size: int, layers: int, hidden: int
) -> Case:
    if settings.full_batch:
        return Case(dataset, model, None, layers, hidden, ())
    if is_layer_wise(settings, model):
        if settings.num_steps is not None and not settings.smoke:
            raise ValueError(
                f"--num-steps={settings.num_steps}: inference layer by layer needs all nodes; "
                "leave it out, or add --batch-wise."
            )
        if settings.trim:
            raise ValueError(
                f"--trim cuts sampled batches, and inference of {model} goes layer by layer; add "
                "--batch-wise, or leave --trim out."
            )
        return Case(dataset, model, batch_size, layers, hidden, (-1,))
    hops = hops_for(settings.num_neighbors, layers)
    return Case(dataset, model, batch_size, layers, hidden, hops)


def is_layer_wise(settings: Settings, model: str) -> bool:
    """Say whether a model's inference computes one layer of all nodes after the other."""
    return (
        settings.driver == "inference"
        and not (settings.batch_wise or settings.full_batch)
        and not is_heterogeneous(model)
    )


def _pairs(settings: Settings) -> tuple[list[tuple[str, str]], list[str]]:
    for model in settings.models:
        if model not in MODELS:
            raise ValueError(f"--models={model!r} is unknown; give some of {', '.join(MODELS)}.")
    fitting, left_out = [], []
    for name in settings.datasets:
        dataset = canonical_name(name)
        for model in settings.models:
            if is_heterogeneous(model) == is_heterogeneous_set(dataset):
                fitting.append((dataset, model))
            else:
                kind = "heterogeneous" if is_heterogeneous(model) else "homogeneous"
                left_out.append(f"{model} on {dataset}: the model is for {kind} graphs.")
    if not fitting:
        raise ValueError(
            "no model given fits a data set given; rgat and rgcn are for mag-like and ogbn-mag, "
            "the others for the other sets."
        )
    return fitting, left_out


def _check_heads(model: str, hidden: int, heads: int) -> None:
    if model in ("gat", "rgat") and hidden % heads:
        raise ValueError(
            f"--hidden-channels={hidden} cannot be shared out among --num-heads={heads} of "
            f"{model}; give a multiple."
        )
