"""Train a GCN and look at it with every tool of gnnprof: `make demo`.

The data is a generated stand-in with the shape of Cora, so that nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch_geometric.data import Data

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmark.arguments import COUNT, add_switch
from benchmark.citation.gcn import Net
from benchmark.datasets import GraphDataset, load_dataset
from benchmark.peaks import peak_meaning, peak_mib
from benchmark.reporting import cpu_threads, pick_device, private_random_state
from gnnprof import Profiler, profileit, timeit
from gnnprof._statistics import median

PROFILED_STEPS = 10


@dataclass(frozen=True)
class Demo:
    """What the demo found.

    Attributes:
        accuracy: Share of test nodes classified rightly after training, 0..1.
        majority: Share of the test nodes in their largest class: what guessing reaches.
        step_seconds: Wall time of each training step.
        peak_mib: Highest memory of one training step, in MiB; None where it is unknown.
        coverage: Share of the profiled time that is in the rows of the layer table, 0..1.
        trace: The Chrome trace.
        page: The HTML page.
    """

    accuracy: float
    majority: float
    step_seconds: tuple[float, ...]
    peak_mib: float | None
    coverage: float
    trace: Path
    page: Path


def main(argv: Sequence[str] | None = None) -> Demo:
    """Run the demo and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--epochs", type=COUNT, default=200, help="training steps (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the trace")
    # One thread is enough for so small a graph; more wait for each other on a busy machine.
    parser.add_argument("--threads", type=COUNT, default=1, help="CPU threads (default: 1)")
    add_switch(parser, "--smoke", "a twentieth of the graph and a few epochs")
    args = parser.parse_args(argv)
    if args.smoke:
        args.epochs = min(args.epochs, 4)
    with cpu_threads(args.threads), private_random_state(pick_device(None)):
        return show(args.epochs, 0.05 if args.smoke else 1.0, args.out)


def show(epochs: int, scale: float, out: Path) -> Demo:
    """Train, measure, and say in one line each what is seen."""
    dataset = load_dataset("cora-like", scale=scale, normalize_features=True)
    print(f"A GCN of two layers learns the classes of {dataset.name}, a stand-in for Cora:")
    print(f"  {dataset.fingerprint}.\n")
    state = start(dataset, pick_device(None))
    step_seconds = train(state, epochs)
    accuracy, majority = show_accuracy(state)
    print(
        f"Step time    {median(step_seconds) * 1e3:.2f} ms for forward, backward and optimizer, "
        f"median of {epochs} steps (timeit)"
    )
    peak = show_peak_memory(state)
    prof = show_layers(state)
    out.mkdir(parents=True, exist_ok=True)
    trace = prof.export_chrome_trace(out / "demo-trace.json", overwrite=True)
    print(f"Trace        {trace} (made anew by each demo), the same steps as a time line:")
    print("             open it in https://ui.perfetto.dev or chrome://tracing")
    page = prof.to_html(out / "demo.html", trace=trace.name, overwrite=True)
    print(
        f"Page         {page}: the layer tree to click through, forward and backward; open it in a"
    )
    print("             browser, it needs no network")
    return Demo(accuracy, majority, step_seconds, peak, prof.coverage, trace, page)


class State(NamedTuple):
    """What a training step takes."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    data: Data


def start(dataset: GraphDataset, device: torch.device) -> State:
    """Return a fresh network, its optimizer and its graph."""
    torch.manual_seed(0)
    model = Net(dataset.num_features, dataset.num_classes, hidden=16, dropout=0.5).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    return State(model, optimizer, dataset.data.to(device))


def train(state: State, epochs: int) -> tuple[float, ...]:
    """Train, and return the seconds of each step."""
    timer = timeit(log=False)
    timed_step = timer(train_step)
    for _ in range(epochs):
        timed_step(*state)
    return timer.laps


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, data: Data) -> None:
    """Forward, loss on the training nodes, backward, optimizer."""
    model.train()
    optimizer.zero_grad()
    out = model(data.x, data.edge_index)
    F.nll_loss(out[data.train_mask], data.y[data.train_mask]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


@torch.no_grad()
def show_accuracy(state: State) -> tuple[float, float]:
    """Return the accuracy on the test nodes, and that of always naming the largest class."""
    state.model.eval()
    mask = state.data.test_mask
    y = state.data.y[mask]
    predicted = state.model(state.data.x, state.data.edge_index)[mask].argmax(dim=1)
    accuracy = float((predicted == y).float().mean())
    majority = float(torch.bincount(y).max() / len(y))
    print(
        f"Accuracy     {accuracy:.1%} of the test nodes; always the largest class: {majority:.1%}"
    )
    print("             (generated data: it shows that the model learns, and says nothing of Cora)")
    return accuracy, majority


def show_peak_memory(state: State) -> float | None:
    """Return the peak of one step in MiB."""
    state.optimizer.zero_grad()  # or the step would begin by freeing what an earlier one allocated
    _, stats = profileit()(train_step)(*state)
    print(f"Peak memory  {shown_peak(vars(stats))}, in one step (profileit)")
    return peak_mib(vars(stats))


def shown_peak(memory: Mapping[str, Any]) -> str:
    """Return the peak with its unit and what it is the memory of."""
    peak = peak_mib(memory)
    return f"{'n/a' if peak is None else f'{peak:.1f} MiB'} {peak_meaning(memory)}"


def show_layers(state: State) -> Profiler:
    """Return the profile of a few training steps."""
    with Profiler(state.model, use_cuda=state.data.x.device.type in ("cuda", "xpu")) as prof:
        for _ in range(PROFILED_STEPS):
            train_step(*state)
    print(f"\nWhere {PROFILED_STEPS} steps spend their time: each layer, and inside it each phase")
    print(
        "of message passing, forward and backward (Profiler). The last rows ran outside the model."
    )
    print(prof.table(ops=False))
    print(f"\nCoverage     {prof.coverage:.2%} of the time is in a named row above")
    return prof


if __name__ == "__main__":
    main()
