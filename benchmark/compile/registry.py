"""What the study can run: models, data sets and modes, one registered entry each.

An entry knows what it supports. `unsupported` puts that together for one case and returns the
reason why it cannot run, which is what a record of outcome 'unsupported' states.

Nothing here imports a model's framework or reads data before it is asked for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from torch import nn

from benchmark.compile.dgl_adapter import dgl_available
from benchmark.compile.modules import DistMult, Edges, ModelSizes

FRAMEWORKS = ("pyg", "dgl")
VARIANTS = ("fixes", "no-fixes", "fullgraph")
TASKS = {
    "node": "classes of nodes",
    "hetero": "classes of nodes of one type, edges of several types",
    "link": "pairs of nodes",
    "kg": "triples of a knowledge graph",
    "graph": "classes of whole graphs",
}
SAMPLED_TASKS = ("node", "hetero")


@dataclass(frozen=True)
class Implementation:
    """One model in one framework.

    Attributes:
        build: Makes the module from sizes and variant. It is called with features [N, F] and what
            `graph_arguments` returns, and gives [N, num_outputs]; for the task 'kg' it is called
            with triples [..., 3] and gives scores [...].
        graph_arguments: Makes what the module takes after the features, from variant and edges;
            None for the task 'kg'.
        copy_weights: Gives the second module the weights of the first, which is the PyG model of
            the same sizes; None if both frameworks name and lay out their weights alike.
        needs_dgl: Whether dgl must be there.
        no_amp: Why the model cannot run under bfloat16 autocast; None if it can.
    """

    build: Callable[[ModelSizes, str], nn.Module]
    graph_arguments: Callable[[str, Edges], tuple[object, ...]] | None
    copy_weights: Callable[[nn.Module, nn.Module], None] | None = None
    needs_dgl: bool = False
    no_amp: str | None = None


@dataclass(frozen=True)
class ModelEntry:
    """A model by name: what it is for, and how each framework builds it.

    Attributes:
        name: As it is chosen and reported.
        tasks: Keys of `TASKS`.
        implementations: By framework.
        has_heads: Whether the hidden width is shared out among attention heads.
        fullgraph_settings: Settings of `torch._dynamo.config` that `fullgraph=True` needs.
    """

    name: str
    tasks: frozenset[str]
    implementations: Mapping[str, Implementation]
    has_heads: bool = False
    fullgraph_settings: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class DatasetEntry:
    """A data set by name.

    Attributes:
        name: As it is chosen and reported; a stand-in ends in '-like'.
        task: A key of `TASKS`.
        load: Called with `root`, `scale`, `seed`, `download` and `cache` as keywords; returns what
            the loader of its kind in `benchmark.compile.inputs` returns.
    """

    name: str
    task: str
    load: Callable[..., Any]

    @property
    def is_stand_in(self) -> bool:
        """Whether the data are generated and only have the shape of real ones."""
        return self.name.endswith("-like")


@dataclass(frozen=True)
class ModeEntry:
    """One way to run a model.

    Attributes:
        name: As it is chosen and reported.
        torch_mode: The `mode` of torch.compile; None for eager.
        arguments: More keywords for `gnnprof.compile_benchmark`, such as `backend`.
    """

    name: str
    torch_mode: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_eager(self) -> bool:
        """Whether nothing is compiled: the comparison of eager with eager."""
        return self.torch_mode is None

    def benchmark_arguments(self) -> dict[str, Any]:
        """Return the keywords that make `gnnprof.compile_benchmark` run this mode."""
        return {"modes": (self.torch_mode or "eager",), **self.arguments}


Entry = TypeVar("Entry", ModelEntry, DatasetEntry, ModeEntry)


class _Table(Generic[Entry]):
    """Entries of one kind, by name in any case, in the order of registration."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        if entry.name.lower() in self.entries:
            raise ValueError(f"{self.kind} {entry.name!r} is registered already; give a new name.")
        self.entries[entry.name.lower()] = entry

    def get(self, name: str) -> Entry:
        if name.lower() not in self.entries:
            choices = ", ".join(self.names())
            raise ValueError(f"{self.kind}={name!r} is unknown; give one of {choices}.")
        return self.entries[name.lower()]

    def remove(self, name: str) -> None:
        del self.entries[self.get(name).name.lower()]

    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries.values())


MODELS: _Table[ModelEntry] = _Table("model")
DATASETS: _Table[DatasetEntry] = _Table("dataset")
MODES: _Table[ModeEntry] = _Table("mode")


def register_model(entry: ModelEntry) -> None:
    """Add a model.

    Raises:
        ValueError: If the name is taken, or a task or framework is unknown.
    """
    for task in entry.tasks:
        _check("task", task, tuple(TASKS))
    for framework in entry.implementations:
        _check("framework", framework, FRAMEWORKS)
    MODELS.add(entry)


def register_dataset(entry: DatasetEntry) -> None:
    """Add a data set.

    Raises:
        ValueError: If the name is taken, or the task is unknown.
    """
    _check("task", entry.task, tuple(TASKS))
    DATASETS.add(entry)


def register_mode(entry: ModeEntry) -> None:
    """Add a mode.

    Raises:
        ValueError: If the name is taken.
    """
    MODES.add(entry)


def model_names() -> tuple[str, ...]:
    """Return the names of all models."""
    return MODELS.names()


def dataset_names() -> tuple[str, ...]:
    """Return the names of all data sets."""
    return DATASETS.names()


def mode_names() -> tuple[str, ...]:
    """Return the names of all modes, 'eager' first."""
    return MODES.names()


def get_model(name: str) -> ModelEntry:
    """Return a model; ValueError if there is none of that name."""
    return MODELS.get(name)


def get_dataset(name: str) -> DatasetEntry:
    """Return a data set; ValueError if there is none of that name."""
    return DATASETS.get(name)


def get_mode(name: str) -> ModeEntry:
    """Return a mode; ValueError if there is none of that name."""
    return MODES.get(name)


def unsupported(
    *,
    framework: str,
    model: str,
    dataset: str,
    mode: str = "eager",
    variant: str = "no-fixes",
    sampled: bool = False,
    amp: bool = False,
    device: str = "cpu",
    hidden: int = 256,
    heads: int = 8,
) -> str | None:
    """Return why a case cannot run, in one sentence; None if it can be tried.

    Raises:
        ValueError: If a name is unknown: that is a mistake, not a limitation.
    """
    _check("framework", framework, FRAMEWORKS)
    _check("variant", variant, VARIANTS)
    entry, data = get_model(model), get_dataset(dataset)
    get_mode(mode)
    if data.task not in entry.tasks:
        fitting = [name for name in model_names() if data.task in get_model(name).tasks]
        return (
            f"{entry.name} does not do the task of {data.name} ({TASKS[data.task]}); "
            f"{', '.join(fitting) or 'no model'} does."
        )
    if framework not in entry.implementations:
        return f"{entry.name} is not written for {framework}."
    if sampled and data.task not in SAMPLED_TASKS:
        return f"{data.name}: neighbours are sampled for node classification only."
    if entry.has_heads and hidden % heads:
        return f"hidden={hidden} is not a multiple of heads={heads}, so the heads have no width."
    return _unsupported_here(entry.implementations[framework], amp, device)


def _unsupported_here(implementation: Implementation, amp: bool, device: str) -> str | None:
    """Say what this machine, its packages or autocast stand in the way of."""
    if implementation.needs_dgl:
        available, reason = dgl_available(device)
        if not available:
            return reason
    return implementation.no_amp if amp else None


def _check(argument: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{argument}={value!r} is unknown; give one of {', '.join(allowed)}.")


# --- the entries of the study -------------------------------------------------------------------


def _implementation(framework: str, name: str, no_amp: str | None = None) -> Implementation:
    """Return the implementation in `models_pyg` or `models_dgl`, imported on its first use."""
    in_dgl = framework == "dgl"

    def call(function: str, *arguments: Any) -> Any:
        module = importlib.import_module(f"benchmark.compile.models_{framework}")
        return getattr(module, function)(name, *arguments)

    return Implementation(
        build=functools.partial(call, "build"),
        graph_arguments=functools.partial(call, "graph_arguments"),
        copy_weights=functools.partial(call, "copy_weights") if in_dgl else None,
        needs_dgl=in_dgl,
        no_amp=no_amp,
    )


def _distmult(sizes: ModelSizes, variant: str) -> nn.Module:
    del variant  # one program: there is no graph to prepare
    return DistMult(sizes.num_features, sizes.num_relations, sizes.hidden, sizes.dropout)


_FEATURE_TASKS = frozenset({"node", "link", "graph"})
_SHAPES = {"capture_dynamic_output_shape_ops": True}
_DGL_GAT_AMP = (
    "DGL's GATConv under autocast multiplies bfloat16 features by float32 attention, which its "
    "kernels refuse."
)

for _name, _fullgraph in (("GCN", _SHAPES), ("GraphSAGE", {}), ("GAT", _SHAPES), ("GIN", {})):
    register_model(
        ModelEntry(
            _name,
            _FEATURE_TASKS,
            {
                "pyg": _implementation("pyg", _name),
                "dgl": _implementation("dgl", _name, _DGL_GAT_AMP if _name == "GAT" else None),
            },
            has_heads=_name == "GAT",
            fullgraph_settings=_fullgraph,
        )
    )
register_model(
    ModelEntry(
        "RGCN",
        frozenset({"hetero"}),
        {"pyg": _implementation("pyg", "RGCN"), "dgl": _implementation("dgl", "RGCN")},
        fullgraph_settings=_SHAPES,
    )
)
register_model(
    ModelEntry(
        "DistMult",
        frozenset({"kg"}),
        {name: Implementation(_distmult, None) for name in FRAMEWORKS},
    )
)


def _loader(function: str, name: str) -> Callable[..., Any]:
    def load(**request: Any) -> Any:
        inputs = importlib.import_module("benchmark.compile.inputs")
        return getattr(inputs, function)(name, **request)

    return load


for _task, _function, _names in (
    (
        "node",
        "load_nodes",
        "cora-like citeseer-like pubmed-like arxiv-like products-like reddit-like "
        "Cora CiteSeer PubMed ogbn-arxiv ogbn-products Reddit KarateClub",
    ),
    ("hetero", "load_typed_nodes", "mag-like ogbn-mag"),
    ("link", "load_links", "collab-like citation2-like ogbl-collab ogbl-citation2"),
    ("kg", "load_triples", "biokg-like ogbl-biokg UMLS"),
    (
        "graph",
        "load_graphs",
        "mutag-like proteins-like MUTAG PROTEINS ENZYMES NCI1 DD IMDB-BINARY REDDIT-BINARY COLLAB",
    ),
):
    for _name in _names.split():
        register_dataset(DatasetEntry(_name, _task, _loader(_function, _name)))

register_mode(ModeEntry("eager", None))
for _name in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
    register_mode(ModeEntry(_name, _name))
