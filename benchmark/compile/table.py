"""Forward, backward and total time of PyG's basic models, eager and compiled, on a random graph.

    python benchmark/compile/table.py

The graph and the models are those of the table in PyG's documentation of torch.compile: 10,000
nodes, 200,000 random directed edges, 3 layers of width 64. Eager and compiled calls are timed in
turn; a speedup is the median over the rounds of eager / compiled, of forward and backward together,
with its 95 % interval. Compilation and warm-up are not in it.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import nn
from torch_geometric.nn.models import GAT, GCN, GIN, GraphSAGE

if not __package__:  # run as a script, from whatever folder
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from benchmark.arguments import COUNT, PROBABILITY, add_run_flags, number
from benchmark.compile.models_pyg import graph_arguments
from benchmark.compile.modules import Edges
from benchmark.compile.registry import VARIANTS
from benchmark.reporting import (
    check_record_path,
    cpu_threads,
    pick_device,
    private_random_state,
    write_record,
)
from gnnprof import _device
from gnnprof.compilation import MODES, CompileReport, CompileRow, PhaseTiming, compile_benchmark

SCHEMA = "gnnprof.compile-table/1"
MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "GCN": GCN,
    "GraphSAGE": GraphSAGE,
    "GIN": GIN,
    "GAT": GAT,
}
DEFAULT_MODELS = ("GCN", "GraphSAGE", "GIN")
DEFAULT_MODES = ("default",)
FIXES: Mapping[str, dict[str, bool]] = {
    "GCN": {"normalize": False},
    "GAT": {"add_self_loops": False},
}
"""What a model is built with when `graph_arguments` has done that part."""

SMOKE = {"nodes": 200, "edges": 1000, "hidden": 16, "layers": 2, "rounds": 6, "warmup": 1}
SMOKE_BACKEND = "aot_eager"  # traces as any other, and skips the compiler, which takes ten seconds
DYNAMIC: Mapping[str, bool | None] = {"auto": None, "true": True, "false": False}


@dataclass(frozen=True)
class Settings:
    """What was asked for; the fields are the flags."""

    models: tuple[str, ...]
    modes: tuple[str, ...]
    variant: str
    dynamic: str
    nodes: int
    edges: int
    hidden: int
    layers: int
    heads: int
    dropout: float
    rounds: int
    warmup: int
    backend: str
    seed: int
    device: str | None
    threads: int | None
    json: Path | None
    smoke: bool

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> Settings:
        """Return the settings, cut down to seconds under `--smoke`."""
        values = {**vars(args), "models": tuple(args.models), "modes": tuple(args.modes)}
        if args.backend is None:
            values["backend"] = SMOKE_BACKEND if args.smoke else "inductor"
        settings = cls(**values)
        if not settings.smoke:
            return settings
        return dataclasses.replace(
            settings, **{name: min(getattr(settings, name), most) for name, most in SMOKE.items()}
        )


@dataclass(frozen=True)
class TableResult:
    """One report of `gnnprof.compile_benchmark` per model.

    Attributes:
        settings: What was asked for.
        reports: By model.
        device: Where it ran.
    """

    settings: Settings
    reports: Mapping[str, CompileReport]
    device: torch.device

    def to_record(self) -> dict[str, object]:
        """Return everything as JSON takes it, raw samples included."""
        return {
            "schema": SCHEMA,
            "settings": dataclasses.asdict(self.settings),
            "models": {name: report.to_dict() for name, report in self.reports.items()},
            "environment": _device.environment(self.device),
        }


def main(argv: Sequence[str] | None = None) -> TableResult:
    """Run the script with the given arguments, by default those of the process."""
    parser = _parser()
    settings = Settings.from_args(parser.parse_args(argv))
    try:
        check_record_path(settings.json)
        device = pick_device(settings.device)
        if "GAT" in settings.models and settings.hidden % settings.heads:
            raise ValueError(
                f"--hidden={settings.hidden} is not a multiple of --heads={settings.heads}, which "
                "share it in a GAT; give another of both."
            )
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: error: {error}\n")
    with cpu_threads(settings.threads), private_random_state(device):
        print(_heading(settings, device), end="\n\n")
        reports = {name: _measure(name, settings, device) for name in settings.models}
    print(render(reports))
    result = TableResult(settings, reports, device)
    if settings.json is not None:
        write_record(settings.json, result.to_record())
    return result


# --- measure ------------------------------------------------------------------------------------


def build_model(name: str, settings: Settings) -> nn.Module:
    """Return one of PyG's basic models in the variant asked for."""
    keywords: dict[str, Any] = {"dropout": settings.dropout}
    if name == "GAT":
        keywords["heads"] = settings.heads
    if settings.variant == "fixes":
        keywords |= FIXES.get(name, {})
    width = settings.hidden
    return MODELS[name](width, width, num_layers=settings.layers, **keywords)


def build_arguments(
    name: str, settings: Settings, device: torch.device
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return features and edges, and the edge weights that a fixed GCN takes as a keyword."""
    generator = torch.Generator().manual_seed(settings.seed)
    x = torch.randn(settings.nodes, settings.hidden, generator=generator).to(device)
    size = (2, settings.edges)
    edge_index = torch.randint(0, settings.nodes, size, generator=generator).to(device)
    edges, *weight = graph_arguments(name, settings.variant, Edges(edge_index, settings.nodes))
    return (x, edges), {"edge_weight": weight[0]} if weight else {}


def _measure(name: str, settings: Settings, device: torch.device) -> CompileReport:
    torch.manual_seed(settings.seed)
    model = build_model(name, settings).to(device)
    args, kwargs = build_arguments(name, settings, device)
    print(f"{name} ...", file=sys.stderr)
    return compile_benchmark(
        model,
        args,
        kwargs,
        modes=settings.modes,
        dynamic=DYNAMIC[settings.dynamic],
        fullgraph=settings.variant == "fullgraph",
        rounds=settings.rounds,
        warmup=settings.warmup,
        backend=settings.backend,
        seed=settings.seed,
        progress_bar=sys.stderr.isatty(),
    )


# --- render -------------------------------------------------------------------------------------

COLUMNS = ("Model", "Mode", "Forward [ms]", "Backward [ms]", "Total [ms]", "Speedup [95 %]", "")


def render(reports: Mapping[str, CompileReport]) -> str:
    """Return the table, and below it what it cannot show: what really ran, errors, the noise."""
    notes: list[str] = []
    lines = [_line(name, row, notes) for name, report in reports.items() for row in report.rows]
    table = tabulate(
        lines, COLUMNS, "simple", disable_numparse=True, colalign=("left",) * 2 + ("right",) * 4
    )
    floors = [_floor(name, report) for name, report in reports.items() if report.noise_floor]
    marked = [f"[{number}] {note}" for number, note in enumerate(notes, start=1)]
    return "\n".join([table, "", *floors, *marked])


def _line(name: str, row: CompileRow, notes: list[str]) -> list[str]:
    mode = row.mode
    note = _note(name, row)
    if note is not None:
        if note not in notes:
            notes.append(note)
        mode = f"{mode} [{notes.index(note) + 1}]"
    phases = (row.forward, row.backward, row.step)
    times = [_milliseconds(phase) for phase in phases]
    if row.mode == "eager":
        return [name, mode, *times, "", ""]
    return [name, mode, *times, _speedup(row), row.verdict or row.status]


def _note(name: str, row: CompileRow) -> str | None:
    """Return what the figures of a row do not say."""
    if row.status != "ok":
        return f"{name}: {row.status}: {row.reason or 'no reason was given'}"
    if row.effective_mode not in (None, row.mode):
        return f"ran as '{row.effective_mode}': {row.reason}"
    return row.reason


def _milliseconds(phase: PhaseTiming | None) -> str:
    return "n/a" if phase is None else f"{phase.median * 1e3:.3f}"


def _speedup(row: CompileRow) -> str:
    if row.speedup is None:
        return "n/a"
    if row.speedup_low is None or row.speedup_high is None:
        return f"{row.speedup:.2f}x [n/a]"
    return f"{row.speedup:.2f}x [{row.speedup_low:.2f}, {row.speedup_high:.2f}]"


def _floor(name: str, report: CompileReport) -> str:
    floor = report.noise_floor
    assert floor is not None
    return (
        f"{name}: eager against eager {floor.ratio:.3f} [{floor.low:.3f}, {floor.high:.3f}]: "
        f"what is closer to 1 than {100 * floor.half_width:.1f} % is noise."
    )


def _heading(settings: Settings, device: torch.device) -> str:
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return (
        f"{settings.nodes:,} nodes, {settings.edges:,} directed edges (random), "
        f"{settings.layers} layers of width {settings.hidden}, {settings.variant}, "
        f"backend {settings.backend}, {settings.rounds} rounds, torch {torch.__version__} on "
        f"{device}{threads}"
    )


# --- flags --------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    group = parser.add_argument_group("what")
    group.add_argument(
        "--models",
        nargs="+",
        choices=tuple(MODELS),
        default=DEFAULT_MODELS,
        metavar="MODEL",
        help=f"of {', '.join(MODELS)} (default: {' '.join(DEFAULT_MODELS)})",
    )
    group.add_argument(
        "--modes",
        nargs="+",
        choices=MODES,
        default=DEFAULT_MODES,
        metavar="MODE",
        help=f"of {', '.join(MODES)} (default: default)",
    )
    group.add_argument(
        "--variant",
        choices=VARIANTS,
        default="no-fixes",
        help="where self-loops and normalisation are computed: in each forward pass (no-fixes), "
        "the same in one graph (fullgraph), or once beforehand (fixes) (default: %(default)s)",
    )
    group.add_argument(
        "--dynamic",
        choices=tuple(DYNAMIC),
        default="auto",
        help="torch.compile's `dynamic` (default: %(default)s)",
    )
    group.add_argument("--backend", help="of torch.compile (default: inductor)")
    sizes: tuple[tuple[str, Callable[[str], float], float, str], ...] = (
        ("--nodes", COUNT, 10_000, "nodes"),
        ("--edges", COUNT, 200_000, "directed edges"),
        ("--hidden", COUNT, 64, "width of features and layers"),
        ("--layers", COUNT, 3, "layers"),
        ("--heads", COUNT, 8, "attention heads of a GAT"),
        ("--dropout", PROBABILITY, 0.0, "share of features that dropout sets to zero"),
        ("--rounds", number(int, least=6), 12, "samples of each phase"),
        ("--warmup", COUNT, 3, "calls before the timed ones"),
    )
    for flag, kind, default, meaning in sizes:
        group.add_argument(
            flag, type=kind, default=default, help=f"{meaning} (default: %(default)s)"
        )
    add_run_flags(parser)
    return parser


if __name__ == "__main__":
    main()
