"""Training of one case: epochs of sampled batches or of the whole graph."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmark.drivers.affinity import bound_workers, cores_for
from benchmark.drivers.batches import Batch, WholeGraph, limited, make_loader, sampler_of
from benchmark.drivers.cases import Case
from benchmark.drivers.experiment import Setup, Tick, WarmUp, measuring, peak_bytes
from benchmark.drivers.graphs import Graph
from benchmark.drivers.profiling import itt_ranges
from benchmark.drivers.settings import Settings
from benchmark.drivers.timing import EpochCounts, Measured, PartClock, TimedEpochs
from gnnprof import Timing, _device
from gnnprof._files import write_atomically

LEARNING_RATE = 0.001


def measure_training(
    case: Case,
    settings: Settings,
    graph: Graph,
    device: torch.device,
    out: Path,
    tick: Tick = lambda: None,
) -> Measured:
    """Warm up, time the epochs, then evaluate and profile if asked.

    Args:
        case: What to measure.
        settings: How.
        graph: The case's data set.
        device: Where to train.
        out: Folder for a trace and for parameters.
        tick: Called after every batch.
    """
    with measuring(settings, device):
        return Training(case, settings, graph, device, tick).measure(out)


class Training:
    """One model in training.

    Args:
        case: What to measure.
        settings: How.
        graph: The case's data set.
        device: Where to train.
        tick: Called after every batch.
        seeds: Nodes to train on; by default the whole training split.
    """

    def __init__(
        self,
        case: Case,
        settings: Settings,
        graph: Graph,
        device: torch.device,
        tick: Tick,
        seeds: torch.Tensor | None = None,
    ) -> None:
        self.case = case
        self.settings = settings
        self.graph = graph
        self.device = device
        self.tick = tick
        self.setup = Setup(case, settings, graph, device, self.wrapped)
        self.optimizer = torch.optim.Adam(self.setup.net.parameters(), lr=LEARNING_RATE)
        nodes = graph.split("train") if seeds is None else seeds
        self.batches = self._batches(nodes, shuffle=True)
        self._full_nodes = nodes

    def wrapped(self, net: torch.nn.Module) -> torch.nn.Module:
        """Return what trains: the model itself."""
        return net

    def cores(self) -> tuple[int, ...]:
        """Return the CPUs of the loader's workers; none where they are not bound."""
        return cores_for(self.settings)

    def measure(self, out: Path) -> Measured:
        """Return the figures of this model."""
        settings = self.settings
        cores = self.cores()
        warm_up = WarmUp(settings, self.device)
        with bound_workers(self.batches, cores) if cores else nullcontext() as affinity:
            warm_up.run(lambda: self.epoch(PartClock(self.device)), settings.warmup)
            clock = PartClock(self.device)
            timed = self._timed_epochs(clock)
            recompiled = warm_up.recompiled
            # Parts and profile may train on; what is told and kept is of the timed epochs.
            quality = self._quality(timed.val_accuracies)
            if settings.save_model:
                self._save(out)
            parts, taken = self._parts(clock)
            profile = self.setup.profile(self._profiled_steps, out)
        return Measured(
            unit="epoch",
            counts=timed.counts,
            seconds=Timing(tuple(timed.seconds)),
            parts=parts,
            parts_taken=taken,
            warm_up_seconds=warm_up.seconds,
            compile_seconds=warm_up.compile_seconds,
            recompiled=recompiled,
            peak_memory=timed.peak_memory,
            sampler=None if settings.full_batch else sampler_of(settings),
            affinity=affinity,
            quality=quality,
            profile=None if profile is None else profile.rows,
            trace=None if profile is None else profile.trace,
        )

    def epoch(self, clock: PartClock, num_steps: int | None = None) -> EpochCounts:
        """Train on every batch once, or on so many; return what was gone through."""
        counts = EpochCounts()
        self.setup.model.train()
        self.loss = torch.zeros((), device=self.device)
        clock.start()
        for raw in limited(self.batches, num_steps or self.settings.num_steps):
            raw = self.setup.feeder.prepare(raw)
            clock.lap("load")
            batch = self.setup.feeder.transfer(raw)
            clock.lap("transfer")
            self._step(batch, clock)
            seeds = len(self._full_nodes) if self.settings.full_batch else batch.num_seeds
            counts = counts.plus(seeds, batch.num_nodes, batch.num_edges)
            self.tick()
        return counts

    def _step(self, batch: Batch, clock: PartClock) -> None:
        self.optimizer.zero_grad()
        scores, labels = self.setup.scores(batch), batch.labels
        if self.settings.full_batch:
            scores, labels = scores[self._full_nodes], labels[self._full_nodes]
        loss = F.cross_entropy(scores, labels)
        clock.lap("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        clock.lap("backward")
        self.optimizer.step()
        clock.lap("optimizer")
        self.loss = loss.detach()

    def _timed_epochs(self, clock: PartClock) -> TimedEpochs:
        timed = TimedEpochs()
        for number in range(self.settings.num_epochs):
            _device.reset_peak_memory(self.device)
            with itt_ranges(self.settings.vtune_profile):
                seconds, counts = self.timed_epoch(clock)
            timed.seconds.append(seconds)
            timed.peaks.append(peak_bytes(self.device))
            if number == 0:
                timed.counts = counts
            if self.settings.evaluate:
                timed.val_accuracies.append(self.accuracy("val"))
        return timed

    def timed_epoch(self, clock: PartClock) -> tuple[float, EpochCounts]:
        """Train for an epoch from an idle device to an idle device; return its seconds."""
        _device.synchronize(self.device)
        start = _device.clock()
        counts = self.epoch(clock)
        _device.synchronize(self.device)
        return _device.clock() - start, counts

    def _parts(self, clock: PartClock) -> tuple[dict[str, Timing], str]:
        """Return the parts: on an accelerator, they take an epoch that waits after each."""
        if self.device.type == "cpu":
            return clock.timings(), "the timed epochs"
        waiting = PartClock(self.device, synchronise=True)
        self.epoch(waiting)
        return waiting.timings(), "an epoch after them that waits for the device after each part"

    def _profiled_steps(self) -> None:
        steps = self.settings.profile_steps
        self.epoch(PartClock(self.device), None if self.settings.full_batch else steps)

    @torch.no_grad()
    def accuracy(self, split: str) -> float:
        """Return the share of a split's nodes that is classified rightly.

        Sampled batches are evaluated on sampled neighbourhoods of the training's sizes.
        """
        # Not what it is wrapped in, which may wait for other processes.
        net = self.setup.net.eval()
        nodes = self.graph.split(split)
        right = 0
        # The whole graph is on the device already.
        whole = self.settings.full_batch
        for raw in self.batches if whole else self._batches(nodes, shuffle=False):
            batch = self.setup.feeder.transfer(self.setup.feeder.prepare(raw))
            scores, labels = self.setup.scores(batch, net), batch.labels
            if whole:
                scores, labels = scores[nodes], labels[nodes]
            right += int((scores.argmax(dim=1) == labels).sum())
        return right / len(nodes)

    def _quality(self, val_accuracies: list[float]) -> dict[str, float]:
        quality = {"train_loss": float(self.loss)}
        if not math.isfinite(quality["train_loss"]):
            raise FloatingPointError(f"the training loss is {quality['train_loss']}: it diverged.")
        if self.settings.evaluate:
            quality["val_accuracy"] = val_accuracies[-1]
            quality["test_accuracy"] = self.accuracy("test")
        return quality

    def _batches(self, nodes: torch.Tensor, *, shuffle: bool) -> Iterable[Any]:
        if self.case.batch_size is None:
            return WholeGraph(self.graph, self.setup.feeder)
        loader: Iterable[Any] = make_loader(
            self.graph,
            self.settings,
            nodes,
            batch_size=self.case.batch_size,
            num_neighbors=self.case.num_neighbors,
            shuffle=shuffle,
        )
        return loader

    def _save(self, out: Path) -> None:
        path = out / f"{'-'.join(['model', *self.case.file_parts()])}.pt"
        state = self.setup.net.state_dict()
        write_atomically(path, lambda file: torch.save(state, file), overwrite=True)
