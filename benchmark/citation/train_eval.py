"""Train and evaluate, or only run, one network on one citation graph."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from benchmark.citation.results import CitationResult, TrainingRun
from benchmark.citation.settings import Settings
from benchmark.datasets import GraphDataset, load_dataset, with_random_split
from benchmark.reporting import (
    check_record_path,
    check_trace_folder,
    cpu_threads,
    pick_device,
    private_random_state,
    write_record,
)
from gnnprof import Profiler, _device, rename_profile_file, timeit, torch_profile
from gnnprof._statistics import mean

WARM_UP_STEPS = 3  # more than one: a layer that caches takes another path at its second call


def run_script(
    network: str,
    net_class: Callable[..., torch.nn.Module],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
) -> CitationResult:
    """Do what the command line says, print the result and write the record.

    Args:
        network: Name of the model, for the report.
        net_class: Called with the numbers of features and of classes, and the script's own flags as
            keywords. The network maps `x` [N, F] and `edge_index` [2, E] to log-probabilities
            [N, C], and has `reset_parameters()`.
        parser: `citation_parser(...)` and the script's own flags.
        argv: Arguments; None takes those of the process.
    """
    settings = Settings.from_args(parser.parse_args(argv))
    try:
        check_record_path(settings.json)
        check_trace_folder(settings.profile)
        device = pick_device(settings.device)
        dataset = _load(settings)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    with cpu_threads(settings.threads), private_random_state(device):
        net = net_class(dataset.num_features, dataset.num_classes, **settings.model)
        print(_heading(network, dataset, settings))
        result = Experiment(network, net, dataset, settings, device).run()
    print(result.summary())
    if settings.json is not None:
        write_record(settings.json, result.to_record())
    return result


class Experiment:
    """One network on one graph: warm-up, then the timed runs, then the profile."""

    def __init__(
        self,
        network: str,
        net: torch.nn.Module,
        dataset: GraphDataset,
        settings: Settings,
        device: torch.device,
    ) -> None:
        self.network = network
        self.dataset = dataset
        self.settings = settings
        self.device = device
        self.net = net.to(device)
        self.data = dataset.data.to(device)
        # A compiled module is a module, which torch.compile's annotation does not tell.
        self.model = cast("torch.nn.Module", torch.compile(net)) if settings.compile else self.net

    def run(self) -> CitationResult:
        """Measure and, if asked, profile."""
        compile_seconds = self._warm_up()
        graphs = _compiled_graphs(self.settings)
        runs: tuple[TrainingRun, ...] = ()
        if self.settings.inference:
            step_seconds = self._time_inference()
        else:
            runs = self._train_runs()
            step_seconds = runs[-1].step_seconds
        recompiled = _compiled_graphs(self.settings) - graphs
        if self.settings.profile:
            self._profile()
        return CitationResult(
            network=self.network,
            settings=self.settings,
            dataset=self.dataset.to_dict(),
            runs=runs,
            step_seconds=step_seconds,
            compile_seconds=compile_seconds if self.settings.compile else None,
            recompiled=recompiled if self.settings.compile else None,
            environment=_device.environment(self.device),
        )

    def train_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Forward, loss on the training nodes, backward, optimizer."""
        self.net.train()
        optimizer.zero_grad()
        mask = self.data.train_mask
        F.nll_loss(self._forward()[mask], self.data.y[mask]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    @torch.no_grad()
    def evaluate(self) -> tuple[float, float]:
        """Return the validation loss and the share of test nodes classified rightly."""
        self.net.eval()
        out, y = self._forward(), self.data.y
        val, test = self.data.val_mask, self.data.test_mask
        loss = F.nll_loss(out[val], y[val])
        right = out[test].argmax(dim=1) == y[test]
        return float(loss), int(right.sum()) / len(right)

    @torch.no_grad()
    def infer(self) -> None:
        """One forward pass as it is deployed: no dropout, no gradients."""
        self.net.eval()
        self._forward()

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.settings.inference:
            self.infer()
        else:
            self.train_step(optimizer)

    def _forward(self) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bf16):
            out: Tensor = self.model(self.data.x, self.data.edge_index)
        return out.float()  # the loss in single precision also under bfloat16

    def _restart(self, seed: int) -> torch.optim.Optimizer:
        torch.manual_seed(seed)
        self.net.reset_parameters()  # type: ignore[operator]
        if self.settings.random_splits:
            self.data = with_random_split(self.data)
        return torch.optim.Adam(
            self.net.parameters(), lr=self.settings.lr, weight_decay=self.settings.weight_decay
        )

    def _warm_up(self) -> float:
        """Take every path that the timed part takes, and return the seconds of that."""
        optimizer = self._restart(self.settings.seed)
        start = _device.clock()
        for _ in range(WARM_UP_STEPS):
            self._step(optimizer)
            if not self.settings.inference:
                self.evaluate()
        _device.synchronize(self.device)
        return _device.clock() - start

    def _time_inference(self) -> tuple[float, ...]:
        self._restart(self.settings.seed)
        self.infer()  # fills the caches that the restart has emptied
        with self._bar(self.settings.epochs, "pass") as bar:
            return tuple(self._timed_pass(bar) for _ in range(self.settings.epochs))

    def _timed_pass(self, bar: tqdm[Any]) -> float:
        seconds = self._timed(self.infer)
        bar.update()
        return seconds

    def _bar(self, total: int, unit: str) -> tqdm[Any]:
        """Return a progress bar, drawn on a terminal only."""
        return tqdm(total=total, unit=unit, desc=self.network, disable=None, leave=False)

    def _timed(self, step: Callable[[], None]) -> float:
        with timeit(log=False) as timer:
            step()
        return timer.duration

    def _train_runs(self) -> tuple[TrainingRun, ...]:
        seeds = range(self.settings.seed, self.settings.seed + self.settings.runs)
        with self._bar(self.settings.runs * self.settings.epochs, "epoch") as bar:
            return tuple(self._train_run(seed, bar) for seed in seeds)

    def _train_run(self, seed: int, bar: tqdm[Any]) -> TrainingRun:
        optimizer = self._restart(seed)
        val_losses: list[float] = []
        step_seconds: list[float] = []
        best = (math.inf, 0.0)
        _device.synchronize(self.device)
        start = _device.clock()
        for epoch in range(1, self.settings.epochs + 1):
            step_seconds.append(self._timed(lambda: self.train_step(optimizer)))
            val_loss, accuracy = self.evaluate()
            if val_loss < best[0]:
                best = (val_loss, accuracy)
            val_losses.append(val_loss)
            bar.update()
            if stops_early(val_losses, self.settings):
                bar.update(self.settings.epochs - epoch)
                break
        _device.synchronize(self.device)
        seconds = _device.clock() - start
        if best[0] == math.inf:
            raise FloatingPointError(
                f"lr={self.settings.lr}: the validation loss was never finite in the run with "
                f"seed {seed}; give a smaller --lr."
            )
        return TrainingRun(seed, len(val_losses), *best, seconds, tuple(step_seconds))

    def _profile(self) -> None:
        """Trace one more step, then take the layer table of another."""
        optimizer = self._restart(self.settings.seed)
        self._step(optimizer)
        with torch_profile():
            self._step(optimizer)
        trace = rename_profile_file(*trace_name(self.network, self.dataset.name, self.settings))
        with Profiler(self.model, use_cuda=self.device.type in ("cuda", "xpu")) as prof:
            self._step(optimizer)
        print(prof)
        print(f"Trace of one step, for chrome://tracing or https://ui.perfetto.dev: {trace}")


def stops_early(val_losses: Sequence[float], settings: Settings) -> bool:
    """Say whether the last validation loss ends the run.

    It does in the second half of the epochs, when it exceeds the mean of the `early_stopping`
    losses before it (the rule of PyG's citation benchmark).
    """
    before = val_losses[-settings.early_stopping - 1 : -1]
    if settings.early_stopping == 0 or not before:
        return False
    return len(val_losses) > settings.epochs // 2 and val_losses[-1] > mean(before)


def trace_name(network: str, dataset: str, settings: Settings) -> tuple[str, ...]:
    """Return the parts of the trace's file name, different for all that `run.sh` runs."""
    task = "inference" if settings.inference else "training"
    split = "random_splits" if settings.random_splits else "public_split"
    return ("citation", network, dataset, split, task)


def _load(settings: Settings) -> GraphDataset:
    return load_dataset(
        settings.dataset,
        settings.root,
        settings.scale,
        normalize_features=not settings.no_normalize_features,
        cache=settings.cache,
        download=settings.download,
    )


def _heading(network: str, dataset: GraphDataset, settings: Settings) -> str:
    kind = "a generated stand-in" if dataset.is_stand_in else "real data"
    split = "random splits" if settings.random_splits else "fixed split"
    return f"{network} on {dataset.name} ({kind}, {split}): {dataset.fingerprint}"


def _compiled_graphs(settings: Settings) -> int:
    """Return how many graphs Dynamo has compiled in this process; 0 without --compile."""
    if not settings.compile:
        return 0
    from torch._dynamo.utils import counters  # heavy, and only of use here

    return int(counters["stats"]["unique_graphs"])
