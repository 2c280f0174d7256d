"""Inference of one case: layer by layer, on sampled neighbourhoods, or of the whole graph."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmark.drivers.affinity import bound_workers, cores_for
from benchmark.drivers.batches import (
    Batch,
    Kept,
    WholeGraph,
    limited,
    make_loader,
    sampler_of,
    without_features,
)
from benchmark.drivers.cases import Case, is_layer_wise
from benchmark.drivers.experiment import Setup, Tick, WarmUp, measuring, peak_bytes
from benchmark.drivers.graphs import Graph, in_order
from benchmark.drivers.profiling import itt_ranges
from benchmark.drivers.settings import Settings
from benchmark.drivers.timing import EpochCounts, Measured, PartClock
from gnnprof import Timing, _device


def measure_inference(
    case: Case,
    settings: Settings,
    graph: Graph,
    device: torch.device,
    out: Path,
    tick: Tick = lambda: None,
) -> Measured:
    """Warm up, time the passes, then evaluate and profile if asked.

    Args:
        case: What to measure.
        settings: How.
        graph: The case's data set.
        device: Where the model runs.
        out: Folder for a trace.
        tick: Called after every batch.
    """
    with measuring(settings, device), torch.no_grad():
        return Inference(case, settings, graph, device, tick).measure(out)


class Inference:
    """One model that scores all nodes of the target type.

    Args:
        case: What to measure.
        settings: How.
        graph: The case's data set.
        device: Where the model runs.
        tick: Called after every batch.
    """

    def __init__(
        self, case: Case, settings: Settings, graph: Graph, device: torch.device, tick: Tick
    ) -> None:
        self.case = case
        self.settings = settings
        self.graph = graph
        self.device = device
        self.tick = tick
        self.setup = Setup(case, settings, graph, device)
        self.setup.model.eval()
        self.layer_wise = is_layer_wise(settings, case.model)
        self.loader = self._loader()
        self.batches = (
            Kept(self.loader, self._batches_used()) if settings.cached_loader else self.loader
        )

    def measure(self, out: Path) -> Measured:
        """Return the figures of this model."""
        settings = self.settings
        cores = cores_for(settings)
        warm_up = WarmUp(settings, self.device)
        with bound_workers(self.loader, cores) if cores else nullcontext() as affinity:
            warm_up.run(lambda: self.run(PartClock(self.device)), settings.warmup)
            if isinstance(self.batches, Kept):
                self.batches.fill()
            _device.reset_peak_memory(self.device)
            clock = PartClock(self.device)
            samples = []
            for _ in range(settings.num_epochs):
                with itt_ranges(settings.vtune_profile):
                    seconds, counts, scores = self._timed_pass(clock)
                samples.append(seconds)
            peak, recompiled = peak_bytes(self.device), warm_up.recompiled
            parts, taken = self._parts(clock)
            profile = self.setup.profile(self._profiled_steps, out)
        return Measured(
            unit="pass",
            counts=counts,
            seconds=Timing(tuple(samples)),
            parts=parts,
            parts_taken=taken,
            warm_up_seconds=warm_up.seconds,
            compile_seconds=warm_up.compile_seconds,
            recompiled=recompiled,
            peak_memory=peak,
            sampler=None if settings.full_batch else sampler_of(settings),
            affinity=affinity,
            quality=self._quality(scores) if settings.evaluate else None,
            profile=None if profile is None else profile.rows,
            trace=None if profile is None else profile.trace,
            extra={"way": self.way},
        )

    @property
    def way(self) -> str:
        """How the scores are computed."""
        if self.settings.full_batch:
            return "full batch"
        return "layer by layer" if self.layer_wise else "sampled batches"

    def run(self, clock: PartClock, num_steps: int | None = None) -> tuple[EpochCounts, Tensor]:
        """Score all nodes, or the seeds of so many batches.

        Returns:
            What was gone through, and the scores [N, C] on the host (with
            `reuse_device_for_embeddings` on the device).
        """
        if self.layer_wise:
            return self._layer_by_layer(clock, num_steps)
        counts, scores = EpochCounts(), []
        clock.start()
        for raw in limited(self.batches, num_steps or self.settings.num_steps):
            raw = self.setup.feeder.prepare(raw)
            clock.lap("load")
            batch = self.setup.feeder.transfer(raw)
            clock.lap("transfer")
            scores.append(self.setup.scores(batch).to(self.embedding_device))
            clock.lap("forward")
            counts = counts.plus(batch.num_seeds, batch.num_nodes, batch.num_edges)
            self.tick()
        return counts, torch.cat(scores)

    def _layer_by_layer(
        self, clock: PartClock, num_steps: int | None
    ) -> tuple[EpochCounts, Tensor]:
        """Compute one layer of all nodes after the other, each from all its neighbours.

        No node is computed twice in a layer, which sampled batches do. The batches hold one hop;
        the counts are those of all layers, seeds those of one.
        """
        counts, hidden = EpochCounts(), self.graph.data.x.to(self.embedding_device)
        clock.start()
        for layer in range(self.case.num_layers):
            outputs = []
            for raw in limited(self.batches, num_steps):
                raw = self.setup.feeder.prepare(raw)
                # The features of the batch are those of the layer before.
                raw.x = hidden[raw.n_id.to(hidden.device)]
                clock.lap("load")
                batch = self.setup.feeder.transfer(raw)
                clock.lap("transfer")
                outputs.append(self._layer(layer, batch))
                clock.lap("forward")
                seeds = batch.num_seeds if layer == 0 else 0
                counts = counts.plus(seeds, batch.num_nodes, batch.num_edges)
                self.tick()
            hidden = torch.cat(outputs)
            if num_steps is not None:  # a few batches leave most nodes without inputs
                hidden = hidden.new_zeros(self.graph.num_nodes, hidden.size(1))
        return counts, hidden

    def _layer(self, layer: int, batch: Batch) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
            out: Tensor = self.setup.layer(layer, *batch.inputs, batch.weights, batch.num_seeds)
        return out.float().to(self.embedding_device)

    @property
    def embedding_device(self) -> torch.device:
        """Where results are kept between layers and at the end."""
        return self.device if self.settings.reuse_device_for_embeddings else torch.device("cpu")

    def _timed_pass(self, clock: PartClock) -> tuple[float, EpochCounts, Tensor]:
        _device.synchronize(self.device)
        start = _device.clock()
        counts, scores = self.run(clock)
        _device.synchronize(self.device)
        return _device.clock() - start, counts, scores

    def _parts(self, clock: PartClock) -> tuple[dict[str, Timing], str]:
        """Return the parts: on an accelerator, they take a pass that waits after each."""
        if self.device.type == "cpu":
            return clock.timings(), "the timed passes"
        waiting = PartClock(self.device, synchronise=True)
        self.run(waiting)
        return waiting.timings(), "a pass after them that waits for the device after each part"

    def _profiled_steps(self) -> None:
        steps = None if self.settings.full_batch else self.settings.profile_steps
        self.run(PartClock(self.device), steps)

    def _quality(self, scores: Tensor) -> dict[str, float]:
        """Return the accuracy on each split, of the nodes that were scored."""
        scores = scores[: self.graph.num_nodes].cpu()  # more steps than batches begin anew
        right = scores.argmax(dim=1) == self.graph.store.y.view(-1)[: len(scores)]
        quality = {}
        for split in ("val", "test"):
            nodes = self.graph.split(split)
            nodes = nodes[nodes < len(scores)]
            if len(nodes):
                quality[f"{split}_accuracy"] = int(right[nodes].sum()) / len(nodes)
        return quality

    def _loader(self) -> Iterable[Any]:
        if self.case.batch_size is None:
            return WholeGraph(self.graph, self.setup.feeder)
        loader: Iterable[Any] = make_loader(
            self._sampled_graph(),
            self.settings,
            in_order(self.graph),
            batch_size=self.case.batch_size,
            num_neighbors=self.case.num_neighbors,
        )
        return loader

    def _batches_used(self) -> int | None:
        """Return how many batches the passes and the profile take; None is all of the data."""
        settings = self.settings
        if self.layer_wise or settings.num_steps is None:
            return None
        return max(settings.num_steps, settings.profile_steps if settings.is_profiled else 0)

    def _sampled_graph(self) -> Graph:
        if not self.layer_wise:
            return self.graph
        return without_features(self.graph, normalized=self.case.model == "gcn")
