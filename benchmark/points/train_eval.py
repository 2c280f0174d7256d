"""Train and evaluate, or only run, one network on one set of point clouds."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from tqdm import tqdm

from benchmark.classification.case_log import CaseLog
from benchmark.classification.classifier import Batch, Classifier
from benchmark.classification.training import (
    Epoch,
    Loaders,
    compiled_graphs,
    fit,
    peak_memory,
    show_profile,
    time_inference,
    warm_up,
)
from benchmark.point_sets import PointSet, load_point_set
from benchmark.points import spatial
from benchmark.points.results import PointsResult
from benchmark.points.settings import Settings
from benchmark.reporting import (
    check_trace_folder,
    cpu_threads,
    pick_device,
    private_random_state,
)
from gnnprof import _device


def run_script(
    network: str,
    net_class: Callable[[int], torch.nn.Module],
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
) -> PointsResult:
    """Do what the command line says, print the result and write the record.

    Args:
        network: Name of the model, for the report.
        net_class: Called with the number of classes. The network maps `pos` [N, 3], the sorted
            `batch` [N] and the number B of clouds to log-probabilities [B, C].
        parser: `points_parser(...)`.
        argv: Arguments; None takes those of the process.
    """
    settings = Settings.from_args(parser.parse_args(argv))
    try:
        log = CaseLog(settings.json)
        check_trace_folder(settings.profile)
        device = pick_device(settings.device)
        dataset = load_point_set(
            settings.dataset,
            settings.root,
            settings.scale,
            num_points=settings.num_points,
            download=settings.download,
        )
    except (OSError, ValueError, ModuleNotFoundError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    print(_heading(network, dataset))
    with cpu_threads(settings.threads), private_random_state(device):
        torch.manual_seed(settings.seed)
        net = net_class(dataset.num_classes)
        result = Experiment(network, net, dataset, settings, device).run()
    print(result.summary())
    log.append(result.to_record())
    return result


class Experiment:
    """One network on one set of clouds: warm-up, the timed epochs, the memory, the profile."""

    def __init__(
        self,
        network: str,
        net: torch.nn.Module,
        dataset: PointSet,
        settings: Settings,
        device: torch.device,
    ) -> None:
        self.network, self.dataset, self.settings = network, dataset, settings
        self.classifier = Classifier(
            net, call_on_points, device, bf16=settings.bf16, compile=settings.compile
        )
        self.test_clouds = at_most(settings.max_clouds, dataset.test)
        train = None
        if not settings.inference:
            clouds = at_most(settings.max_clouds, dataset.train)
            # A rest of one cloud has no variance for a batch normalisation to divide by.
            drop = len(clouds) > settings.batch_size and len(clouds) % settings.batch_size == 1
            train = DataLoader(clouds, settings.batch_size, shuffle=True, drop_last=drop)
        self.loaders = Loaders(train, None, DataLoader(self.test_clouds, settings.batch_size))

    def run(self) -> PointsResult:
        """Measure and, if asked, profile."""
        settings, plan = self.settings, self.settings.plan()
        warm_seconds = warm_up(self.classifier, self.loaders, plan, whole=settings.compile)
        graphs = compiled_graphs() if settings.compile else 0
        torch.manual_seed(settings.seed)
        epochs: tuple[Epoch, ...] = ()
        pass_seconds: tuple[float, ...] = ()
        total = settings.epochs
        with tqdm(total=total, unit="epoch", desc=self.network, disable=None, leave=False) as bar:
            if settings.inference:
                pass_seconds = time_inference(
                    self.classifier, self.loaders.test, total, lambda: _count(bar)
                )
            else:
                epochs = fit(
                    self.classifier,
                    self.loaders,
                    plan,
                    lambda number, epoch: self._show(bar, number, epoch),
                )
        recompiled = compiled_graphs() - graphs if settings.compile else None
        memory = peak_memory(self.classifier, self.loaders, plan)
        return PointsResult(
            network=self.network,
            settings=settings,
            dataset=self.dataset.to_dict(),
            spatial=spatial.spatial_library().name,
            majority=_majority(self.test_clouds),
            epochs=epochs,
            pass_seconds=pass_seconds,
            memory=memory,
            compile_seconds=warm_seconds if settings.compile else None,
            recompiled=recompiled,
            trace=self._profile() if settings.profile else None,
            environment=_device.environment(self.classifier.device),
        )

    def _show(self, bar: tqdm[Any], number: int, epoch: Epoch) -> None:
        bar.write(
            f"Epoch: {number:03d}, Loss: {epoch.train_loss:.4f}, Test: {epoch.test.accuracy:.4f}, "
            f"Duration: {epoch.seconds:.2f}s"
        )
        sys.stdout.flush()  # a log file shows it at once, too
        _count(bar)

    def _profile(self) -> str:
        parts = ("points", self.network, self.dataset.name, self.settings.task)
        return show_profile(self.classifier, self.loaders, self.settings.plan(), parts)


def call_on_points(model: torch.nn.Module, batch: Batch) -> Tensor:
    """Return the log-probabilities [B, C] of a batch of clouds."""
    out: Tensor = model(batch.pos, batch.batch, batch.num_graphs)
    return out


def _count(bar: tqdm[Any]) -> None:
    bar.update()


def at_most(count: int | None, clouds: Sequence[Data]) -> list[Data]:
    """Return `count` clouds from all over the set, whose order may be that of the classes."""
    if count is None or len(clouds) <= count:
        return list(clouds)
    return [clouds[number * len(clouds) // count] for number in range(count)]


def _majority(clouds: Sequence[Data]) -> float:
    classes = Counter(int(cloud.y) for cloud in clouds)
    return max(classes.values()) / len(clouds)


def _heading(network: str, dataset: PointSet) -> str:
    kind = "a generated stand-in" if dataset.is_stand_in else "real data"
    return (
        f"{network} on {dataset.name} ({kind}): {dataset.fingerprint}\n"
        f"Neighbours and samples by {spatial.spatial_library().name}"
    )
