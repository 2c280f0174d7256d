"""One case of the study: what is run, the key it is known by, and the matrix of all of them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmark.cpus import usable_cpus

SCHEMA = "gnnprof.compile-case/1"
"""The form of a record; part of the key, so that a new form makes new records."""

VARIANTS = ("fixes", "no-fixes", "fullgraph")
DYNAMIC = {"auto": None, "true": True, "false": False}

_LEAST = {
    "layers": 1,
    "hidden": 1,
    "heads": 1,
    "threads": 1,
    "rounds": 6,  # fewer have no 95 % interval
    "epochs": 0,
    "sizes": 0,
    "seed": 0,
    "replicate": 0,
    "batch_size": 1,
}
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("framework", "model", "dataset", "mode", "variant", "device"), (str,)),
    **dict.fromkeys(("sampled", "amp"), (bool,)),
    **dict.fromkeys(_LEAST, (int,)),
    "dropout": (int, float),
    "scale": (int, float, type(None)),
    "batch_size": (int, type(None)),
    "dynamic": (bool, type(None)),
}


class AllCpus(int):
    """The number of CPUs of this machine, in a case that was written with threads 'all'."""


@dataclass(frozen=True)
class Case:
    """What one process measures.

    Attributes:
        framework: 'pyg' or 'dgl'.
        model: Name of a registered model.
        dataset: Name of a registered data set; '-like' ends the name of a stand-in.
        scale: Factor on the size of a stand-in; None: the data set's own.
        mode: 'eager' (the model against itself) or a registered mode of torch.compile.
        dynamic: What torch.compile gets: None decides by itself.
        variant: 'fixes', 'no-fixes' or 'fullgraph'.
        sampled: Whether batches of sampled neighbourhoods are fed, not the whole graph.
        amp: Whether the forward runs under bf16 autocast.
        layers: Layers of the model.
        hidden: Width of the hidden layers.
        heads: Attention heads of the hidden layers (GAT).
        dropout: Share of activations that dropout sets to zero in training.
        threads: CPU threads of the process.
        rounds: Samples of each timed phase, eager and compiled in turn.
        epochs: Epochs of the training whose quality is measured; 0 measures none.
        seed: Seed of the data, the parameters and the training.
        replicate: Number of this process among those of one case, from 0.
        device: 'cpu', 'cuda', 'cuda:1', ...
        batch_size: Seeds, pairs, triples or graphs of a batch; None: that of the task.
        num_neighbors: Neighbours drawn per layer, if sampled.
        sizes: Graphs of other sizes that are fed afterwards; only of stand-ins.
    """

    framework: str
    model: str
    dataset: str
    scale: float | None = None
    mode: str = "eager"
    dynamic: bool | None = None
    variant: str = "fixes"
    sampled: bool = False
    amp: bool = False
    layers: int = 3
    hidden: int = 256
    heads: int = 8
    dropout: float = 0.5
    threads: int = 1
    rounds: int = 10
    epochs: int = 0
    seed: int = 0
    replicate: int = 0
    device: str = "cpu"
    batch_size: int | None = None
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    sizes: int = 0

    def __post_init__(self) -> None:
        _check(self)
        # A float of a whole value and its int are the same case and must have the same key.
        object.__setattr__(self, "scale", None if self.scale is None else float(self.scale))
        object.__setattr__(self, "dropout", float(self.dropout))
        object.__setattr__(self, "num_neighbors", tuple(self.num_neighbors))

    @property
    def label(self) -> str:
        """One line for people; the entries that have their usual value are left out."""
        words = [self.framework, self.model, self.dataset, self.mode]
        if self.mode != "eager":
            words.append(f"dynamic={dynamic_word(self.dynamic)}")
        words.append(self.variant)
        usual = {field.name: field.default for field in dataclasses.fields(self)}
        said = ("framework", "model", "dataset", "mode", "dynamic", "variant")
        for name, value in vars(self).items():
            if name not in said and value != usual[name]:
                words.append(f"{name}={value}")
        return " ".join(words)

    @property
    def experiment(self) -> Case:
        """The case in eager mode: what all modes and replicates of one experiment share."""
        return dataclasses.replace(self, mode="eager", dynamic=None, replicate=0)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return {**dataclasses.asdict(self), "num_neighbors": list(self.num_neighbors)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Case:
        """Return the case that `to_dict` or a matrix file describes.

        Raises:
            ValueError: For a field that there is not, or that is missing or wrong.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(fields) - set(known))
        if unknown:
            raise ValueError(f"{unknown[0]!r} is no field of a case; give {', '.join(known)}.")
        missing = [name for name in ("framework", "model", "dataset") if name not in fields]
        if missing:
            raise ValueError(f"a case needs a {missing[0]!r} (got {dict(fields)}).")
        return cls(**fields)


def _check(case: Case) -> None:
    for name, kinds in _KINDS.items():
        value = getattr(case, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__.replace("NoneType", "None") for kind in kinds)
            raise ValueError(f"{name}={value!r} is a {type(value).__name__}; give {wanted}.")
    for name, least in _LEAST.items():
        value = getattr(case, name)
        if value is not None and value < least:
            raise ValueError(f"{name}={value} is too small; give at least {least}.")
    if case.scale is not None and not 0 < case.scale < float("inf"):
        raise ValueError(f"scale={case.scale} must be a positive number.")
    if not 0 <= case.dropout < 1:
        raise ValueError(f"dropout={case.dropout} must lie in [0, 1).")
    if case.variant not in VARIANTS:
        raise ValueError(f"variant={case.variant!r} is unknown; give one of {', '.join(VARIANTS)}.")
    fan_outs = case.num_neighbors
    listed = isinstance(fan_outs, list | tuple) and len(fan_outs) > 0
    if not listed or not all(type(n) is int and (n > 0 or n == -1) for n in fan_outs):
        raise ValueError(f"num_neighbors={fan_outs!r}: give one positive count (or -1) per layer.")


def dynamic_word(dynamic: bool | None) -> str:
    """Return 'auto', 'true' or 'false', as flags and tables say it."""
    return next(word for word, value in DYNAMIC.items() if value is dynamic)


def canonical(case: Case) -> Case:
    """Return the case that stands for all that are the same program.

    Eager mode has no `dynamic`, and `fullgraph` only says how the no-fixes model is compiled.
    Without sampling there are no fan-outs.
    """
    changes: dict[str, Any] = {}
    if case.mode == "eager":
        changes["dynamic"] = None
        if case.variant == "fullgraph":
            changes["variant"] = "no-fixes"
    if not case.sampled:
        usual = {field.name: field.default for field in dataclasses.fields(case)}
        changes["num_neighbors"] = usual["num_neighbors"]
    return dataclasses.replace(case, **changes)


# -- key -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Identity:
    """What a figure depends on beside its case; None is a package that is not installed.

    Attributes:
        torch: Version, as are the next four.
        device_name: The maker's name of the device.
        cpu: The maker's name of the processor.
    """

    torch: str
    torch_geometric: str | None
    dgl: str | None
    gnnprof: str
    python: str
    device_name: str
    cpu: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return dataclasses.asdict(self)


def content_key(case: Case, identity: Identity) -> str:
    """Return the name of a case's record: 16 hexadecimal digits of a SHA-256.

    Two cases have one key only if they are the same program with the same versions on the same
    kind of device: a record is never taken for one of another environment.
    """
    return _digest({"schema": SCHEMA, "case": case.to_dict(), "environment": identity.to_dict()})


def in_shard(case: Case, index: int, count: int) -> bool:
    """Tell whether a case belongs to part `index` (from 0) of `count`.

    Decided by the case as it is written, not by its key or by what 'all' threads are here: workers
    on unlike machines must agree on it.
    """
    threads = "all" if isinstance(case.threads, AllCpus) else case.threads
    return int(_digest({**case.to_dict(), "threads": threads}), 16) % count == index


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# -- matrix ----------------------------------------------------------------------------------------


def expand(blocks: Iterable[Mapping[str, Any]]) -> tuple[Case, ...]:
    """Return the cases of a matrix: of each block the product of its lists, without repetition.

    Args:
        blocks: Mappings from a field of `Case` to a value or a list of values; `num_neighbors` is
            one value although it is a list. `dynamic` takes 'auto', 'true' and 'false' as well,
            `threads` takes 'all', and `replicates` is how many processes run each case.

    Returns:
        The cases in the order of the blocks, each in its `canonical` form. With threads 'all' and
        the same number there are two that are equal, which may belong to two shards.

    Raises:
        ValueError: For a field that there is not, or a value that is wrong.
    """
    cases: dict[tuple[Case, type[int]], Case] = {}
    for block in blocks:
        for case in map(canonical, _product(block)):
            cases.setdefault((case, type(case.threads)), case)
    return tuple(cases.values())


def _product(block: Mapping[str, Any]) -> Iterable[Case]:
    block = dict(block)
    replicates = block.pop("replicates", 1)
    if type(replicates) is not int or replicates < 1:
        raise ValueError(f"replicates={replicates!r}: give a whole number, at least 1.")
    block.setdefault("replicate", list(range(replicates)))
    choices = [[(name, value) for value in _values(name, block[name])] for name in block]
    for chosen in itertools.product(*choices):
        yield Case.from_dict(dict(chosen))


def _values(name: str, value: Any) -> Sequence[Any]:
    if name == "num_neighbors":
        several = isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple)
        return value if several else [value]
    values = value if isinstance(value, list | tuple) else [value]
    if not values:
        raise ValueError(f"{name}=[] leaves no case; give at least one value or leave it out.")
    return [_read(name, item) for item in values]


def _read(name: str, value: Any) -> Any:
    if name == "dynamic" and isinstance(value, str):
        if value.lower() not in DYNAMIC:
            raise ValueError(f"dynamic={value!r} is unknown; give one of {', '.join(DYNAMIC)}.")
        return DYNAMIC[value.lower()]
    if name == "threads" and value == "all":
        return AllCpus(len(usable_cpus()))
    return value
