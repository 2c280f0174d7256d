"""What training and inference of one case have in common: data, model, device, warm-up, profile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from benchmark.drivers.batches import Batch, Feeder, csr_warnings_ignored
from benchmark.drivers.cases import Case, is_layer_wise
from benchmark.drivers.graphs import Graph
from benchmark.drivers.models import Shape, build_model, layer_output
from benchmark.drivers.profiling import Profile, take_profile, trace_path
from benchmark.drivers.settings import Settings
from benchmark.reporting import private_random_state
from gnnprof import _device

Tick = Callable[[], object]
"""What a driver calls after every batch: it moves the progress bar."""


class Setup:
    """One case made ready: its graph, its model on the device, and how a batch gets there.

    Args:
        case: What is to be measured.
        settings: How.
        graph: The case's data set.
        device: Where the model runs.
        wrap: What the model is wrapped in before it is compiled.
    """

    def __init__(
        self,
        case: Case,
        settings: Settings,
        graph: Graph,
        device: torch.device,
        wrap: Callable[[torch.nn.Module], torch.nn.Module] = lambda net: net,
    ) -> None:
        self.case = case
        self.settings = settings
        self.graph = graph
        self.device = device
        self.feeder = Feeder(graph, device, sparse=settings.use_sparse_tensor, trim=settings.trim)
        shape = Shape(
            case.hidden_channels,
            case.num_layers,
            settings.num_heads,
            largest_fan_out(case),
            normalize=not is_layer_wise(settings, case.model),
        )
        self.net = build_model(case.model, graph, shape).to(device)
        if settings.checkpoint is not None:
            load_parameters(self.net, settings.checkpoint)
        self.model = wrap(self.net)
        self.layer: Callable[..., Tensor] = partial(layer_output, self.net)
        if settings.compile:
            # Otherwise the models of earlier cases count towards Dynamo's limit of recompilations.
            torch._dynamo.reset()
            # Sampled batches all differ in size, so that one graph has to serve for all.
            dynamic = None if case.batch_size is None else True
            self.model = cast("torch.nn.Module", torch.compile(self.model, dynamic=dynamic))
            self.layer = torch.compile(self.layer, dynamic=dynamic)

    def scores(self, batch: Batch, model: torch.nn.Module | None = None) -> Tensor:
        """Return the scores [B, C] of a batch's seed nodes, in single precision.

        Args:
            batch: The batch, on the device.
            model: What to call instead of the wrapped and compiled model.
        """
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
            out: Tensor = (model or self.model)(*batch.inputs, **batch.options)
        return out[: batch.num_seeds].float()

    def profile(self, steps: Callable[[], object], out: Path) -> Profile | None:
        """Profile some steps if that was asked for, and write the trace into `out`."""
        settings = self.settings
        if not settings.is_profiled:
            return None
        wants_trace = settings.profile and settings.export_chrome_trace
        return take_profile(
            steps,
            self.model,
            name=self.case.model,
            device=self.device,
            trace=trace_path(out, self.case.file_parts()) if wants_trace else None,
            show=settings.profile,
        )


def largest_fan_out(case: Case) -> int:
    """Return the most neighbours that a node of a case's batches has, -1 without a limit."""
    return -1 if -1 in case.num_neighbors or not case.num_neighbors else max(case.num_neighbors)


def load_parameters(net: torch.nn.Module, path: Path) -> None:
    """Fill a model with the parameters that training has saved.

    Raises:
        ValueError: If they are of another model.
    """
    try:
        net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"--ckpt_path={path} does not fit the model ({first}); give the file of the same "
            "model, data set and sizes."
        ) from error


@contextmanager
def measuring(settings: Settings, device: torch.device) -> Iterator[None]:
    """Seed the random state for the body and put it back; silence what torch says of CSR."""
    with private_random_state(device), csr_warnings_ignored():
        torch.manual_seed(settings.seed)
        yield


class WarmUp:
    """Seconds of a warm-up, what Dynamo compiled in it, and what it compiles afterwards."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self._compiles = settings.compile
        self._device = device
        self.seconds: float | None = None
        self.compile_seconds: float | None = None
        self._graphs = 0

    def run(self, steps: Callable[[], object], times: int) -> None:
        """Run the warm-up so many times."""
        if times == 0:
            return
        compiled_before = self._compile_seconds()
        _device.synchronize(self._device)
        start = _device.clock()
        for _ in range(times):
            steps()
        _device.synchronize(self._device)
        self.seconds = _device.clock() - start
        if self._compiles:
            self.compile_seconds = self._compile_seconds() - compiled_before
            self._graphs = self._compiled_graphs()

    @property
    def recompiled(self) -> int | None:
        """Graphs compiled since the warm-up; None without compiling."""
        return self._compiled_graphs() - self._graphs if self._compiles else None

    def _compile_seconds(self) -> float:
        if not self._compiles:
            return 0.0
        from torch._dynamo.utils import calculate_time_spent  # heavy, and only of use here

        return float(calculate_time_spent()["total_wall_time"])

    def _compiled_graphs(self) -> int:
        from torch._dynamo.utils import counters

        return int(counters["stats"]["unique_graphs"])


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak of an accelerator's allocator since it was reset; None on a CPU."""
    return _device.peak_memory(device).allocated
