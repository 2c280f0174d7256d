"""Figures of gnnprof against known answers on a CUDA device; ``gpu_check.sh`` runs it last.

Every check plants what it then measures: seconds of a kernel that spins, bytes that are allocated,
ranges that are opened. A figure with bounds is right or wrong; one without is for information.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: two stderr lines per session

import torch

from gnnprof import _device, _files
from gnnprof.benchmark import benchmark
from gnnprof.nvtx import nvtxit
from gnnprof.profile import profileit, timeit, torch_profile
from gnnprof.profiler import Profiler
from gnnprof.utils import get_gpu_memory_from_nvidia_smi

MIB = 2**20


@dataclass(frozen=True)
class Figure:
    """One measured figure and the bounds it has to lie within; None is no bound."""

    check: str
    name: str
    measured: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.low is None and self.high is None and self.measured is not None:
            return "info"
        if self.measured is None:
            return "FAIL"
        above = self.low is None or self.measured >= self.low
        below = self.high is None or self.measured <= self.high
        return "ok" if above and below else "FAIL"


def near(
    check: str, name: str, measured: float | None, expected: float, within: float, unit: str
) -> Figure:
    note = f"expected {expected:.6g}"
    return Figure(check, name, measured, unit, expected - within, expected + within, note)


class Lab:
    """A device on which known work can be planted."""

    side = 4096  # of the square matrices that are multiplied

    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._cycles_per_second = 1e9
        self.seconds_of(lambda: self.spin(0.1))  # brings the clock up
        self._cycles_per_second *= 0.1 / self.seconds_of(lambda: self.spin(0.1))

    def spin(self, seconds: float) -> None:
        """Queue a kernel that takes about so long; `seconds_of` tells how long exactly."""
        torch.cuda._sleep(int(seconds * self._cycles_per_second))

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Time a piece of work with device events: the truth to compare with."""
        with self.events() as elapsed:
            work()
        return elapsed[0]

    @contextlib.contextmanager
    def events(self) -> Iterator[list[float]]:
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        elapsed: list[float] = []
        begin.record()
        yield elapsed
        end.record()
        torch.cuda.synchronize(self.device)
        elapsed.append(begin.elapsed_time(end) / 1000)

    def plant(self, nbytes: int) -> torch.Tensor:
        """Allocate so many bytes, until the tensor is dropped."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def allocated(self) -> int:
        return int(torch.cuda.memory_stats(self.device)["allocated_bytes.all.current"])

    def ones(self, *shape: int) -> torch.Tensor:
        return torch.ones(*shape, device=self.device)

    def gcn(self) -> tuple[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]]:
        """A two-layer GCN and a graph of 20,000 nodes and 200,000 edges, seeded."""
        from torch_geometric.nn import GCN

        generator = torch.Generator().manual_seed(0)
        x = torch.randn(20_000, 128, generator=generator)
        edge_index = torch.randint(0, 20_000, (2, 200_000), generator=generator)
        model = GCN(128, 64, num_layers=2, out_channels=16)
        return model.to(self.device).eval(), (x.to(self.device), edge_index.to(self.device))


# -- the checks ------------------------------------------------------------------------------------


def check_timeit(lab: Lab) -> list[Figure]:
    with timeit(log=False) as timer, lab.events() as truth:
        lab.spin(0.05)
    seconds = timer.duration
    lab.spin(0.05)
    with timeit(log=False) as idle:
        pass
    return [
        Figure("timeit", "50 ms of kernel", seconds, "s", truth[0], truth[0] + 0.005),
        Figure("timeit", "empty block after 50 ms queued", idle.duration, "s", 0.0, 0.005),
    ]


def check_profileit_time(lab: Lab) -> list[Figure]:
    truth: list[float] = []

    @profileit("cuda")
    def step(model: torch.nn.Module, x: torch.Tensor) -> None:
        with lab.events() as elapsed:
            lab.spin(0.03)
        truth.extend(elapsed)

    lab.spin(0.05)  # queued earlier, which is not to count
    _, stats = step(torch.nn.Identity(), lab.ones(1))
    return [Figure("profileit", "30 ms of kernel", stats.time, "s", truth[0], truth[0] + 0.005)]


class Planting(torch.autograd.Function):
    """The identity, with memory allocated for a moment in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, lab: Lab, forward: int, backward: int) -> torch.Tensor:
        ctx.lab, ctx.nbytes = lab, backward
        lab.plant(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.lab.plant(ctx.nbytes)
        return gradient, None, None, None


class PlantingModel(torch.nn.Module):
    def __init__(self, lab: Lab, forward: int, backward: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(lab.ones(4))
        self.lab = lab
        self.planted = (forward, backward)

    def forward(self, x: torch.Tensor) -> Any:
        return Planting.apply(x * self.weight, self.lab, *self.planted)  # type: ignore[no-untyped-call]


class PlantingSGD(torch.optim.SGD):
    def __init__(self, model: PlantingModel, nbytes: int) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.lab, self.nbytes = model.lab, nbytes

    def step(self, closure: Any = None) -> Any:
        self.lab.plant(self.nbytes)
        return super().step(closure)


def check_profileit_peaks(lab: Lab) -> list[Figure]:
    """Plant the highest memory in each phase in turn, among lower ones in the others."""
    del_me = lab.plant(2048 * MIB)  # a peak of the past, which is not to count
    del del_me
    figures = []
    for phase in ("forward", "backward", "optimizer"):
        planted = {"forward": 64 * MIB, "backward": 32 * MIB, "optimizer": 16 * MIB}
        planted[phase] = 512 * MIB
        model = PlantingModel(lab, planted["forward"], planted["backward"])
        optimizer = PlantingSGD(model, planted["optimizer"])

        @profileit("cuda")
        def step(model: PlantingModel, x: torch.Tensor, optimizer: Any = optimizer) -> None:
            model(x).sum().backward()
            optimizer.step()

        x = lab.ones(4)
        before = lab.allocated()
        _, stats = step(model, x)
        expected = (before + planted[phase]) / MIB
        measured = stats.max_allocated_gpu
        figures.append(near("profileit", f"peak in {phase}", measured, expected, 1.0, "MiB"))
    held = stats.max_reserved_gpu
    figures.append(Figure("profileit", "reserved", held, "MiB", stats.max_allocated_gpu))
    return figures


def check_nvidia_smi(lab: Lab) -> list[Figure]:
    index = lab.device.index
    info = _device.memory_info(index)
    total = None if info is None else info[1] / MIB * 1.0485
    _, used_before = get_gpu_memory_from_nvidia_smi(lab.device)
    planted = lab.plant(4096 * MIB)
    free, used = get_gpu_memory_from_nvidia_smi(index)
    del planted
    grown = None if used is None or used_before is None else used - used_before
    whole = None if used is None or free is None else free + used
    return [
        near("nvidia-smi", "growth by 4 GiB", grown, 4096 * 1.0485, 64.0, "MB"),
        # nvidia-smi keeps some memory of the card apart, as neither free nor used.
        Figure("nvidia-smi", "free + used", whole, "MB", (total or 0) * 0.97, (total or 0) * 1.03),
    ]


def check_torch_profile(lab: Lab) -> list[Figure]:
    x = lab.ones(lab.side, lab.side)
    lab.seconds_of(lambda: x @ x)  # warm-up
    truth = lab.seconds_of(lambda: [x @ x for _ in range(10)])
    columns: dict[str, list[Any]] = {}
    quiet = contextlib.redirect_stdout(io.StringIO())
    with quiet, torch_profile(export_chrome_trace=False, csv_data=columns, write_csv="prof"):
        for _ in range(10):
            x @ x
    calls = columns["# OF CALLS"][0] if columns["NAME"][0] == "aten::mm" else None
    share = sum(columns["SELF CUDA %"])
    return [
        near("torch_profile", "calls of aten::mm, the first row", calls, 10, 0, ""),
        near("torch_profile", "its device time", columns["SELF CUDA"][0], truth, truth / 4, "s"),
        Figure("torch_profile", "self shares together", share, "%", 90.0, 100.001),
    ]


def device_seconds_by_torch(work: Callable[[], object]) -> float:
    """Sum the kernels of a piece of work as torch's own profiler sees them."""
    activities = _device.profiler_activities("cuda")
    with torch.profiler.profile(activities=activities) as prof:
        work()
        torch.cuda.synchronize()
    kernels = (op for op in prof.key_averages() if op.device_type == torch.autograd.DeviceType.CUDA)
    return sum(op.self_device_time_total for op in kernels if not op.is_user_annotation) / 1e6


@torch.no_grad()
def check_profiler(lab: Lab) -> list[Figure]:
    model, args = lab.gcn()
    for _ in range(3):
        model(*args)
    truth = device_seconds_by_torch(lambda: model(*args))
    before = lab.allocated()
    with Profiler(model, use_cuda=True, profile_memory=True) as prof:
        out = model(*args)
    grown = (lab.allocated() - before) / MIB
    places = [row for row in prof.rows if row.op is None and row.shared_with is None]
    ops = [row for row in prof.rows if row.op is not None]
    device = sum(row.self_device_time or 0.0 for row in places)
    by_op = sum(row.self_device_time or 0.0 for row in ops)
    messages = sum(row.calls for row in places if row.phase == "message")
    memory = sum(row.self_device_memory or 0 for row in places) / MIB
    del out
    return [
        Figure("Profiler", "coverage", prof.coverage, "", 0.995, 1.0),
        near("Profiler", "device time of all rows", device, truth, truth / 4, "s"),
        near("Profiler", "device time of all op rows", by_op, device, device / 100, "s"),
        near("Profiler", "calls of message", messages, 2, 0, ""),
        near("Profiler", "device memory of all rows", memory, grown, 0.01, "MiB"),
    ]


def check_nvtx(lab: Lab) -> list[Figure]:
    seen: list[str] = []
    push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop

    def recording_push(name: str) -> Any:
        seen.append(name)
        return push(name)

    def recording_pop() -> Any:
        seen.append("pop")
        return pop()

    @nvtxit("step", n_warmups=1, n_iters=2)
    def step() -> None:
        lab.spin(0.001)

    torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = recording_push, recording_pop
    try:
        for _ in range(4):
            step()
    finally:
        torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop = push, pop
    right = seen == ["step_1", "pop", "step_2", "pop"]
    return [Figure("nvtxit", f"ranges {' '.join(seen)}", float(right), "", 1.0, 1.0)]


def check_benchmark(lab: Lab) -> list[Figure]:
    truth = lab.seconds_of(lambda: lab.spin(0.01))

    def spin(x: torch.Tensor) -> torch.Tensor:
        lab.spin(0.01)
        return x

    with contextlib.redirect_stdout(io.StringIO()):
        results = benchmark([spin], (lab.ones(1),), num_steps=7, num_warmups=2)
    forward = results[0].forward
    measured = None if forward is None else forward.median
    return [Figure("benchmark", "10 ms of kernel", measured, "s", truth * 0.95, truth + 0.005)]


@torch.no_grad()
def check_cost(lab: Lab) -> list[Figure]:
    """What the tools cost on this machine, in microseconds of the calling thread."""
    timer = timeit(log=False)
    ranged = nvtxit("cost")(lambda: None)
    model, args = lab.gcn()

    def timed() -> None:
        with timer:
            pass

    def profiled() -> None:
        with Profiler(model, use_cuda=True) as prof:
            for _ in range(20):
                model(*args)
        prof.table()

    def plain() -> None:
        for _ in range(20):
            model(*args)
        torch.cuda.synchronize(lab.device)

    ratio = _microseconds(profiled, 3) / _microseconds(plain, 3)
    return [
        Figure("cost", "timeit(log=False), entered and left", _microseconds(timed, 200), "us"),
        Figure("cost", "nvtxit, one call", _microseconds(ranged, 200), "us"),
        Figure("cost", "Profiler and table over 20 plain forwards", ratio, "x"),
    ]


def _microseconds(work: Callable[[], object], times: int) -> float:
    work()
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return sorted(samples)[times // 2] * 1e6


CHECKS: tuple[Callable[[Lab], list[Figure]], ...] = (
    check_timeit,
    check_profileit_time,
    check_profileit_peaks,
    check_nvidia_smi,
    check_torch_profile,
    check_profiler,
    check_nvtx,
    check_benchmark,
    check_cost,
)


# -- running and telling ---------------------------------------------------------------------------


def run_checks(lab: Lab) -> list[Figure]:
    figures = []
    for check in CHECKS:
        try:
            figures += check(lab)
        except Exception as error:  # noqa: BLE001  # the other checks are worth their answers
            traceback.print_exc()
            note = f"{type(error).__name__}: {error}"
            figures.append(
                Figure(check.__name__.removeprefix("check_"), "raised", None, "", note=note)
            )
    return figures


def figures_of_tests(junit: Path) -> list[Figure]:
    """Count what pytest has written with ``--junitxml``."""
    if not junit.exists():
        return [Figure("tests", "pytest wrote no results", None, "")]
    counts: dict[str, int] = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for suite in ElementTree.parse(junit).getroot().iter("testsuite"):
        for name in counts:
            counts[name] += int(suite.get(name, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    return [
        Figure("tests", "passed", passed, "", low=1),
        Figure("tests", "failed", failed, "", high=0),
        Figure("tests", "skipped", counts["skipped"], ""),
    ]


def table_of(figures: list[Figure]) -> str:
    lines = []
    for figure in figures:
        measured = "n/a" if figure.measured is None else f"{figure.measured:.6g}"
        bounds = f"[{_bound(figure.low)}, {_bound(figure.high)}]"
        shown = bounds if bounds != "[-, -]" else ""
        cells = f"{figure.verdict:5}{figure.check:14}{figure.name:42}{measured:>12} {figure.unit:4}"
        lines.append(f"{cells}{shown:26}{figure.note}".rstrip())
    failed = sum(figure.verdict == "FAIL" for figure in figures)
    return "\n".join([*lines, f"{failed} of {len(figures)} figures failed"])


def _bound(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def record_of(figures: list[Figure], seconds: float) -> dict[str, Any]:
    return {
        "schema": "gnnprof.gpu_check/1",
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torch_geometric": version("torch_geometric"),
        "device": torch.cuda.get_device_name(),
        "seconds": seconds,
        "figures": [asdict(figure) | {"verdict": figure.verdict} for figure in figures],
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--junit", type=Path, help="results of pytest to count in")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu_check needs a CUDA device, and torch finds none")
        return 1
    start = time.perf_counter()
    figures = run_checks(Lab())
    if options.junit is not None:
        figures += figures_of_tests(options.junit)
    out = os.environ.get("OUT")
    if out:
        record = json.dumps(record_of(figures, time.perf_counter() - start), indent=1)
        target = Path(out) / "gpu_check.json"
        _files.write_atomically(target, lambda path: path.write_text(record), overwrite=True)
    print(table_of(figures))
    return int(any(figure.verdict == "FAIL" for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
