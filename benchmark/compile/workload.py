"""The part that all tasks of the study share: settings, records, and the training step."""

from __future__ import annotations

import abc
import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from tqdm import tqdm

from benchmark.compile.modules import Autocast, Edges, ModelSizes
from benchmark.compile.registry import Implementation, ModelEntry, get_model
from benchmark.reporting import private_random_state

Arguments = tuple[Any, ...]

BATCH_SIZES = {"node": 1024, "hetero": 1024, "link": 4096, "kg": 1024, "graph": 64}


class Unsupported(ValueError):
    """The case cannot run; the text is the reason."""


@dataclass(frozen=True)
class WorkloadSettings:
    """What to build.

    Attributes:
        framework: 'pyg' or 'dgl'.
        model: A registered model.
        dataset: A registered data set.
        variant: 'fixes', 'no-fixes' or 'fullgraph'.
        layers: Convolutions.
        hidden: Width between them; of all attention heads together.
        heads: Attention heads of a GAT.
        dropout: Share of each layer's inputs that is set to zero in training.
        sampled: Whether neighbours are sampled around batches of nodes.
        batch_size: Seeds, true pairs, true triples or graphs per batch; None: `BATCH_SIZES`.
        num_neighbors: Edges sampled per node and hop, from the seeds outwards. The last number is
            repeated, or the list cut, to one per layer.
        amp: Whether to run under bfloat16 autocast.
        device: Where.
        seed: Of weights, splits, batches, dropout and stand-ins.
        scale: Factor on the size of a stand-in; None: the set's own.
        root: Folder of real data.
        cache: Folder to keep generated stand-ins in.
        download: Whether real data may be fetched into `root`.
        lr: Step size of Adam.
    """

    framework: str
    model: str
    dataset: str
    variant: str = "no-fixes"
    layers: int = 3
    hidden: int = 256
    heads: int = 8
    dropout: float = 0.5
    sampled: bool = False
    batch_size: int | None = None
    num_neighbors: tuple[int, ...] = (15, 10, 5)
    amp: bool = False
    device: str = "cpu"
    seed: int = 0
    scale: float | None = None
    root: Path | None = None
    cache: Path | None = None
    download: bool = False
    lr: float = 0.01

    def __post_init__(self) -> None:
        """Refuse numbers that no model or loader can take."""
        for name in ("layers", "hidden", "heads", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1.")
        if not self.num_neighbors or any(n < 1 and n != -1 for n in self.num_neighbors):
            raise ValueError(
                f"num_neighbors={self.num_neighbors} must hold a positive number per hop, or -1 "
                "for all neighbours."
            )

    def fan_outs(self) -> list[int]:
        """Return edges per node, one number per layer, seeds first."""
        longer = [*self.num_neighbors, *[self.num_neighbors[-1]] * self.layers]
        return longer[: self.layers]


@dataclass(frozen=True)
class Counts:
    """How much one call works on; a throughput is this divided by seconds.

    Attributes:
        unit: 'nodes' (with an output), 'pairs', 'triplets' or 'graphs'.
        inference: Items per forward pass.
        training: Items per training step.
        edges_inference: Edges per forward pass, as loaded, before self-loops; None without a graph.
        edges_training: Edges per training step.
    """

    unit: str
    inference: int
    training: int
    edges_inference: int | None
    edges_training: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class Quality:
    """How well a model does on the test split.

    Attributes:
        metric: 'accuracy', 'hits@50' or 'mrr'.
        value: Between 0 and 1.
        evaluator: Whose definition computed it.
    """

    metric: str
    value: float
    evaluator: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class LoaderTimes:
    """Medians per batch, in seconds.

    Attributes:
        sampling_seconds: Drawing the neighbours, gathering features, and building the graph in the
            form of framework and variant, all on the CPU.
        transfer_seconds: Moving all of it to the device.
        compute_seconds: The forward pass, or the training step.
        end_to_end_seconds: All three, of the same batches.
        batches: How many were measured, after one that was not.
        compiling_batches: How many were left out, because code was compiled in them.
        fell_back: Whether a recompile limit was reached: batches of new sizes then run eagerly.
    """

    sampling_seconds: float
    transfer_seconds: float
    compute_seconds: float
    end_to_end_seconds: float
    batches: int
    compiling_batches: int = 0
    fell_back: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


class TrainStep:
    """Forward, loss, backward and one step of Adam, on whatever model it is called with.

    The optimizer belongs to the model object given, and is made at its first step, so that a copy
    or a compiled form trains what it holds itself. The training flag is left alone.

    Args:
        loss: Called with the model's output and the arguments it was given.
        lr: Step size.
    """

    def __init__(self, loss: Callable[[Tensor, Arguments], Tensor], lr: float) -> None:
        self._loss = loss
        self._lr = lr
        self._optimizers: weakref.WeakKeyDictionary[nn.Module, torch.optim.Optimizer] = (
            weakref.WeakKeyDictionary()
        )

    def __call__(self, model: nn.Module, *args: Any) -> Tensor:
        """Train once on `args` and return the loss before the step."""
        optimizer = self._optimizers.get(model)
        if optimizer is None:
            optimizer = torch.optim.Adam(model.parameters(), lr=self._lr)
            self._optimizers[model] = optimizer
        optimizer.zero_grad()
        loss = self._loss(model(*args), args)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()


class Workload(abc.ABC):
    """A model and everything that is needed to time it, train it and judge it.

    Attributes:
        model: On the device, in training mode, autocast inside of it if asked for.
        args: What the model is called with.
        shapes: Other arguments, labelled, for `gnnprof.compile_benchmark(shapes=...)`.
        task: A key of `registry.TASKS`.
        metric: What `evaluate` measures.
        counts: What one call works on.
        train_step: Trains the model it is called with, `train_step(model, *args)`.
        fullgraph: Whether graph breaks are to be errors.
        dynamo_settings: What that needs of `torch._dynamo.config`; `dynamo()` applies it.
    """

    task: str
    metric: str
    model: nn.Module
    args: Arguments
    counts: Counts

    def __init__(self, settings: WorkloadSettings, record: dict[str, Any], device: torch.device):
        self.settings = settings
        self.device = device
        self.entry: ModelEntry = get_model(settings.model)
        self.shapes: list[tuple[str, Arguments]] = []
        self.fullgraph = settings.variant == "fullgraph"
        needs = self.entry.fullgraph_settings if self.fullgraph else {}
        self.dynamo_settings: dict[str, bool] = dict(needs)
        self._record = record
        self.train_step = TrainStep(self.loss, settings.lr)
        # Batches are drawn on the CPU by a generator of their own: the same on every device.
        self.generator = torch.Generator().manual_seed(settings.seed)

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of the model: none."""
        return {}

    @abc.abstractmethod
    def loss(self, output: Tensor, args: Arguments) -> Tensor:
        """Return the mean loss of what the model gave for `args`."""

    @abc.abstractmethod
    def batches(self) -> Iterable[Arguments]:
        """Return the arguments of one epoch of training steps."""

    @abc.abstractmethod
    def _evaluate(self, model: nn.Module) -> Quality:
        """Return the quality of a model in evaluation mode, without gradients."""

    def data_record(self) -> dict[str, Any]:
        """Return name, kind and fingerprint of the data, the same for all variants."""
        return dict(self._record)

    @contextlib.contextmanager
    def dynamo(self) -> Iterator[None]:
        """Apply `dynamo_settings` while the body compiles and runs."""
        if not self.dynamo_settings:
            yield
            return
        import torch._dynamo  # heavy, and only of use here

        with torch._dynamo.config.patch(self.dynamo_settings):
            yield

    def fit(self, model: nn.Module, epochs: int, progress_bar: bool = False) -> list[float]:
        """Train, and return the mean loss of each epoch.

        A full graph is one step per epoch. Dropout and batches are drawn from the settings' seed;
        the caller's random state and the training flag are given back.
        """
        losses = []
        with private_random_state(self.device), training_flag(model, True):
            torch.manual_seed(self.settings.seed)
            for _ in tqdm(range(epochs), unit="epoch", disable=not progress_bar, leave=False):
                epoch = [self.train_step(model, *args) for args in self.batches()]
                losses.append(float(torch.stack(epoch).mean()))
        return losses

    def evaluate(self, model: nn.Module) -> Quality:
        """Return how well a model does on the test split; its training flag is given back."""
        with training_flag(model, False), torch.no_grad():
            return self._evaluate(model)

    def loader_times(
        self, model: nn.Module, batches: int = 10, *, training: bool = False
    ) -> LoaderTimes | None:
        """Return where the time per batch goes; None where nothing is sampled."""
        del model, batches, training
        return None

    def to_device(self, arguments: Arguments) -> Arguments:
        """Move tensors, and a DGL graph, to the device."""
        moved: Arguments = pytree.tree_map(
            lambda leaf: leaf.to(self.device) if hasattr(leaf, "to") else leaf, arguments
        )
        return moved

    def graph_arguments(self, edges: Edges) -> Arguments:
        """Return the graph in the form of framework and variant."""
        make = self._implementation().graph_arguments
        if make is None:
            raise Unsupported(f"{self.entry.name} takes no graph.")
        return make(self.settings.variant, edges)

    def build_encoder(
        self, num_features: int, num_outputs: int, num_relations: int = 0
    ) -> nn.Module:
        """Return the model with the initial weights that it has in PyG."""
        settings = self.settings
        sizes = ModelSizes(
            num_features,
            num_outputs,
            settings.layers,
            settings.hidden,
            settings.heads,
            settings.dropout,
            num_relations,
        )
        implementation = self._implementation()
        if implementation.copy_weights is None or "pyg" not in self.entry.implementations:
            return implementation.build(sizes, settings.variant)
        source = self.entry.implementations["pyg"].build(sizes, settings.variant)
        # What DGL draws for its own initial weights must not shift the draws that follow.
        with private_random_state(torch.device("cpu")):
            encoder = implementation.build(sizes, settings.variant)
        implementation.copy_weights(source, encoder)
        return encoder

    def finish(self, model: nn.Module) -> nn.Module:
        """Put autocast around a model, if asked for, and move it to the device."""
        if self.settings.amp:
            model = Autocast(model, self.device.type)
        return model.to(self.device)

    def batch_size(self) -> int:
        """Return the batch size, by the task if none was given."""
        return self.settings.batch_size or BATCH_SIZES[self.task]

    def _implementation(self) -> Implementation:
        return self.entry.implementations[self.settings.framework]


@contextlib.contextmanager
def training_flag(model: nn.Module, flag: bool) -> Iterator[None]:
    """Set the training flag of all modules, and give each its own back."""
    before = [(module, module.training) for module in model.modules()]
    model.train(flag)
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
