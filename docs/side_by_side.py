"""Do the same with torch_geometric.profile and with gnnprof, and print what each of them does.

    python docs/side_by_side.py                     every case
    python docs/side_by_side.py totals copies       some
    python docs/side_by_side.py > docs/source/side_by_side.txt

A case is one function, called once with either package. What kills the process runs in a process of
its own. The page "Differences" shows the recorded output; a test compares it with what is seen now.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import io
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # two lines on stderr per session otherwise

import torch
from torch import nn

REFERENCE = "torch_geometric.profile"
PACKAGES = (REFERENCE, "gnnprof")
LONGEST = 240  # characters of an error
INDENT = 27
WIDTH = 88  # what fits on the page


Case = Callable[[Any], object]
"""Does something with one package and says what came out; its docstring says what is done."""

CASES: dict[str, Case] = {}
CRASHING = {"nested-sessions", "two-threads"}
"""Cases that may kill the process."""


def case(do: Case) -> Case:
    """Register a case under its name, with dashes for underscores."""
    CASES[do.__name__.replace("_", "-")] = do
    return do


# -- the Profiler ----------------------------------------------------------------------------------


def profiler_of(package: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a Profiler, which the reference does not export."""
    return importlib.import_module(f"{package.__name__}.profiler").Profiler(*args, **kwargs)


def two_linears() -> nn.Sequential:
    """A model of which the second layer is the cheaper one."""
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))


@case
def nested_sessions(package: Any) -> str:
    """torch_profile inside torch_profile."""
    with package.torch_profile(), package.torch_profile():
        torch.ones(2).add(1)
    return "both blocks ran"


@case
def two_threads(package: Any) -> str:
    """Two threads call a model under one Profiler."""
    model, x = two_linears(), torch.ones(8, 64)

    def call() -> None:
        for _ in range(200):
            model(x)

    with profiler_of(package, model) as prof:
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    table = str(prof)
    calls = [line.split()[-1] for line in table.splitlines() if "aten::linear" in line]
    return f"calls of aten::linear in the two layers: {', '.join(calls)}"


def cora_sized() -> tuple[torch.Tensor, torch.Tensor]:
    """Random features and edges of Cora's size."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2708, 1433, generator=generator)
    return x, torch.randint(2708, (2, 10556), generator=generator)


@case
def share_in_rows(package: Any) -> str:
    """Share of the model's op time that is found in rows (3 layers, hidden 64, Cora-sized)."""
    from torch_geometric.nn import models

    x, edge_index = cora_sized()
    shares = []
    for name in ("GCN", "GraphSAGE", "GAT", "GIN"):
        model = getattr(models, name)(x.size(1), 64, 3, 7)
        shares.append(f"{name} {share_of_ops_in_rows(package, model, (x, edge_index)):.0%}")
    return ", ".join(shares)


def share_of_ops_in_rows(package: Any, model: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Op time of one profile, in the modules to which a package gives rows, by all op time."""
    from gnnprof import Profiler

    with torch.no_grad():
        model(*inputs)
        with Profiler(model) as prof:
            for _ in range(10):
                model(*inputs)
    ops = [row for row in prof.rows if row.op is not None and row.path is not None]
    if package.__name__ == REFERENCE:  # it gives rows to the modules without children
        leaves = {name for name, module in model.named_modules() if not list(module.children())}
        found = [row for row in ops if row.path in leaves and row.phase is None]
    else:
        found = ops
    return sum(row.self_cpu_time for row in found) / sum(row.self_cpu_time for row in ops)


@case
def rows(package: Any) -> str:
    """Rows of a GCN's first layer: labels, less the ops."""
    from torch_geometric.nn import GCN

    model = GCN(4, 4, 2, 4)
    with profiler_of(package, model) as prof:
        model(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]]))
    labels = [label for label in prof.get_trace()[3] if label.startswith("-convs--0")]
    return ", ".join(dict.fromkeys(re.sub("-+[a-z]+::.*", "", label) for label in labels))


@case
def memory_columns(package: Any) -> str:
    """Columns of the table with profile_memory=True."""
    model = two_linears()
    with profiler_of(package, model, profile_memory=True) as prof:
        model(torch.ones(8, 64))
    return ", ".join(heading.strip() for heading in str(prof).splitlines()[0].split("|"))


@case
def use_cuda(package: Any) -> str:
    """use_cuda=True on a machine without CUDA."""
    with profiler_of(package, two_linears(), use_cuda=True):
        pass
    return "no error"


@case
def slash_paths(package: Any) -> str:
    """Modules that got rows with paths=['Sequential/0']."""
    return _labels_with(package, "Sequential/0")


@case
def unknown_path(package: Any) -> str:
    """Modules that got rows with paths=['typo']."""
    return _labels_with(package, "typo")


def _labels_with(package: Any, path: str) -> str:
    model = two_linears()
    with profiler_of(package, model, paths=[path]) as prof:
        model(torch.ones(8, 64))
    labels = {label.split("--")[0] for label in prof.get_trace()[3]}
    return ", ".join(sorted(label for label in labels if "::" not in label)) or "none"


@case
def replicas(package: Any) -> str:
    """A data-parallel replica of a layer, made after the block: whose weights it computes with."""
    layer = nn.Linear(1, 1, bias=False)
    with profiler_of(package, layer):
        layer(torch.ones(1))
    replica = layer._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    replica._parameters = {"weight": nn.Parameter(layer.weight.detach() + 1), "bias": None}
    whose = "the original's" if replica(torch.ones(1)) == layer(torch.ones(1)) else "its own"
    return f"{whose} (attribute 'forward' {'stays' if 'forward' in vars(layer) else 'not'} set)"


@case
def compiled_model(package: Any) -> str:
    """A compiled model: the table, and the graphs that Dynamo made of it."""
    from torch_geometric.nn import GraphSAGE

    dynamo: Any = importlib.import_module("torch._dynamo")
    testing: Any = importlib.import_module("torch._dynamo.testing")
    dynamo.reset()
    counter = testing.CompileCounter()
    model: Any = torch.compile(GraphSAGE(4, 4, 2, 4), backend=counter)
    inputs = torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]])
    model(*inputs)
    before = counter.frame_count
    with profiler_of(package, model) as prof:
        model(*inputs)
    graphs = f"graphs {before} before, {counter.frame_count} after"
    try:
        lines = str(prof).splitlines()
    except KeyError as error:
        return f"{graphs}; the table raises KeyError: {error}"
    finally:
        dynamo.reset()
    return f"{graphs}; first row {lines[2].split('|')[0].strip()}"


@case
def names_with_dashes(package: Any) -> str:
    """Labels of the two layers of a model, one of which is named 'pre-norm'."""
    model = nn.Sequential()
    model.add_module("pre-norm", nn.Tanh())
    model.add_module("act", nn.Tanh())
    x = torch.ones(2)
    with profiler_of(package, model) as prof:
        model(x)
    return ", ".join(label for label in prof.get_trace()[3] if "::" in label)


@case
def raw_results(package: Any) -> str:
    """raw_results['aten::linear'] of two layers called once each: calls."""
    model = two_linears()
    with profiler_of(package, model) as prof:
        model(torch.ones(8, 64))
    return str(prof.get_trace()[2]["aten::linear"][-1])


@case
def layers_without_ops(package: Any) -> str:
    """A layer that runs no op: its number of calls."""
    model = nn.Sequential(nn.Identity(), nn.Tanh())
    with profiler_of(package, model) as prof:
        model(torch.ones(2))
    line = next((line for line in str(prof).splitlines() if re.search(r"\b0\b", line)), "no row")
    return line.split("|")[-1].strip() or "not told"


@case
def second_block(package: Any) -> str:
    """The same Profiler entered a second time."""
    model = two_linears()
    prof = profiler_of(package, model)
    for _ in range(2):
        with prof:
            model(torch.ones(8, 64))
    return f"the second block starts clean: {prof.get_trace()[2]['aten::linear'][-1]} calls"


@case
def shared_layer(package: Any) -> str:
    """A layer that the model holds under two names, each called once: its rows."""
    layer = nn.Tanh()
    model = nn.Sequential(layer, layer)
    with profiler_of(package, model) as prof:
        model(torch.ones(2))
    lines = [line for line in str(prof).splitlines() if re.match(r" *-*[01]\b", line)]
    return "; ".join(" ".join(line.split("|")[0].split()) for line in lines)


@case
def unknown_figures(package: Any) -> str:
    """The CUDA time of a layer on a machine without CUDA: raw figure and text."""
    model = two_linears()
    with profiler_of(package, model) as prof:
        model(torch.ones(8, 64))
    _, headings, raw, labels, stats = prof.get_trace()
    column = headings.index("CUDA total")
    label = labels.index("-0--aten::linear")
    return f"{raw['aten::linear'][column - 1]}, {stats[label][column - 1]!r}"


@case
def profiler_repr(package: Any) -> str:
    """repr() of a Profiler after its block."""
    model = nn.Tanh()
    with profiler_of(package, model) as prof:
        model(torch.ones(2))
    return repr(prof).splitlines()[0]


@case
def exit_only(package: Any) -> object:
    """Leaving a Profiler that was never entered."""
    return profiler_of(package, two_linears()).__exit__(None, None, None)


# -- profileit and its summary ---------------------------------------------------------------------


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One step to profile."""
    return model(x)  # type: ignore[no-any-return]


@case
def bad_device(package: Any) -> str:
    """When profileit('tpu') is refused."""
    try:
        decorated = package.profileit("tpu")(step)
    except AttributeError:
        return "where it is written"
    try:
        decorated(two_linears(), torch.ones(8, 64))
    except AttributeError:
        return "at the first call"
    return "never"


@case
def wraps(package: Any) -> object:
    """Name of a function decorated with profileit('cuda')."""
    return package.profileit("cuda")(step).__name__


@case
def no_device(package: Any) -> str:
    """profileit() without a device, on the CPU."""
    _, stats = package.profileit()(step)(two_linears(), torch.ones(8, 64))
    return re.sub(r"time=[^ ]+", "time=...", re.sub(r", max_rss.*", ", ...)", repr(stats)))


@case
def one_record(package: Any) -> str:
    """Summary of one record of 2 s."""
    stats_class = importlib.import_module(f"{package.__name__}.profile").GPUStats
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = package.get_stats_summary([stats_class(2.0, 1.0, 1.0, 1.0)])
    return f"time_std {summary.time_std}, {len(caught)} warnings"


@case
def no_records(package: Any) -> object:
    """Summary of no records."""
    return package.get_stats_summary([])


@case
def small_differences(package: Any) -> object:
    """Mean of 100.000001 s and 100.000002 s."""
    stats_class = importlib.import_module(f"{package.__name__}.profile").GPUStats
    seconds = (100.000001, 100.000002)
    return package.get_stats_summary([stats_class(s, 1.0, 1.0, 1.0) for s in seconds]).time_mean


# -- nvidia-smi ------------------------------------------------------------------------------------

CARDS = (("GPU-a", 0, "[N/A]", "[N/A]"), ("GPU-b", 1, "2000", "100"))


@contextlib.contextmanager
def fake_nvidia_smi() -> Iterator[Path]:
    """Put an nvidia-smi with two cards on the path; yields the file that counts its starts."""
    with tempfile.TemporaryDirectory() as folder:
        tool, starts = Path(folder, "nvidia-smi"), Path(folder, "starts")
        tool.write_text(
            f"#!{sys.executable}\n"
            "import sys\n"
            f"open({str(starts)!r}, 'a').write('x')\n"
            f"cards = {CARDS!r}\n"
            "query = next(a for a in sys.argv if a.startswith('--query-gpu=')).split('=')[1]\n"
            "fields = [('uuid index memory.free memory.used').split().index(f)\n"
            "          for f in query.split(',')]\n"
            "bare = any('nounits' in a for a in sys.argv)\n"
            "if not any('noheader' in a for a in sys.argv): print(query)\n"
            "for card in cards:\n"
            "    texts = [str(card[f]) for f in fields]\n"
            "    print(', '.join(t + ' MiB' if f > 1 and t.isdigit() and not bare else t\n"
            "                    for f, t in zip(fields, texts)))\n"
        )
        tool.chmod(0o755)
        with mock.patch.dict(os.environ, {"PATH": folder}):
            yield starts


@case
def smi_unknown(package: Any) -> str:
    """A card whose memory nvidia-smi tells as [N/A]: (free, used), starts of nvidia-smi."""
    with fake_nvidia_smi() as starts:
        memory = package.get_gpu_memory_from_nvidia_smi(0)
        return f"{memory}, {len(starts.read_text())}"


@case
def smi_visible(package: Any) -> object:
    """CUDA_VISIBLE_DEVICES=1, where card 1 has 2000 MiB free and 100 MiB used, and device=0."""
    with fake_nvidia_smi(), mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "1"}):
        return package.get_gpu_memory_from_nvidia_smi(0)


@case
def smi_missing(package: Any) -> object:
    """A machine without nvidia-smi."""
    with tempfile.TemporaryDirectory() as empty, mock.patch.dict(os.environ, {"PATH": empty}):
        return package.get_gpu_memory_from_nvidia_smi(0)


# -- torch_profile and its files -------------------------------------------------------------------


@case
def write_csv(package: Any) -> str:
    """torch_profile(write_csv='prof')."""
    columns: defaultdict[str, list[Any]] = defaultdict(list)
    with package.torch_profile(False, csv_data=columns, write_csv="prof"):
        torch.ones(64, 64).mm(torch.ones(64, 64))
    return ", ".join(columns)


@case
def what_it_yields(package: Any) -> str:
    """What `with torch_profile() as prof` gives."""
    with package.torch_profile(False) as prof:
        torch.ones(2).add(1)
    return type(prof).__name__


@case
def raising_block(package: Any) -> str:
    """A torch_profile block that raises."""
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        contextlib.suppress(LookupError),
        package.torch_profile(),
    ):
        raise LookupError
    table = "table printed" if printed.getvalue() else "nothing printed"
    return f"{table}, {'trace' if Path('timeline.json').exists() else 'no trace'} written"


@case
def xpu(package: Any) -> str:
    """xpu_profile on a machine without XPU."""
    with package.xpu_profile(False):
        pass
    return "no error"


@case
def rename_numbers(package: Any) -> str:
    """rename_profile_file('run', 3)."""
    Path("timeline.json").touch()
    package.rename_profile_file("run", 3)
    return _files_here()


@case
def rename_over(package: Any) -> str:
    """rename_profile_file('a') with a profile-a.json of an earlier run: files afterwards."""
    Path("profile-a.json").write_text("earlier")
    Path("timeline.json").touch()
    package.rename_profile_file("a")
    return _files_here()


@case
def ranks(package: Any) -> str:
    """Files of two ranks of torch.distributed in one folder."""
    distributed = torch.distributed
    store = Path("store").absolute().as_uri()
    distributed.init_process_group("gloo", store, rank=0, world_size=1)
    try:
        for rank in range(2):
            with (
                mock.patch.object(distributed, "get_world_size", return_value=2),
                mock.patch.object(distributed, "get_rank", return_value=rank),
                package.torch_profile(),
            ):
                torch.ones(2).add(1)
    finally:
        distributed.destroy_process_group()
    return _files_here()


def _files_here() -> str:
    return ", ".join(sorted(path.name for path in Path().glob("*.json")))


@case
def prof_time(package: Any) -> object:
    """format_prof_time(1234.0), microseconds in."""
    return importlib.import_module(f"{package.__name__}.profile").format_prof_time(1234.0)


# -- timeit ----------------------------------------------------------------------------------------


@case
def clock_step(package: Any) -> str:
    """The system clock is set back by 60 s during the block."""
    step_back = itertools.chain([1060.0], itertools.repeat(1000.0))
    with mock.patch("time.time", side_effect=step_back), package.timeit(log=False) as timer:
        pass
    return "a negative duration" if timer.duration < 0 else "not affected"


@case
def nested_timer(package: Any) -> str:
    """One timer, entered again inside: whether the outer time holds the 0.1 s before that."""
    timer = package.timeit(log=False)
    with timer:
        time.sleep(0.1)
        with timer:
            pass
    return "yes" if timer.duration >= 0.1 else "no"


@case
def coroutine(package: Any) -> str:
    """A decorated coroutine function sleeps for 0.1 s: whether that is in the time."""
    timer = package.timeit(log=False)

    @timer  # type: ignore[untyped-decorator]
    async def sleep() -> None:
        await asyncio.sleep(0.1)

    asyncio.run(sleep())
    return "yes" if timer.duration >= 0.1 else "no"


@case
def reset_first(package: Any) -> object:
    """reset() before the timer was started."""
    return package.timeit().reset()


@case
def laps(package: Any) -> str:
    """Durations kept of a function called three times."""
    timer = package.timeit(log=False)
    call = timer(lambda: None)
    for _ in range(3):
        call()
    return str(len(getattr(timer, "laps", [timer.duration])))


@case
def negative_divisor(package: Any) -> str:
    """avg_time_divisor=-5."""
    with package.timeit(log=False, avg_time_divisor=-5):
        pass
    return "no error"


# -- benchmark -------------------------------------------------------------------------------------


def benchmark_table(package: Any, *args: Any, **kwargs: Any) -> list[str]:
    """Names and first figures of the table that benchmark prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        package.benchmark(*args, num_steps=1, num_warmups=1, **kwargs)
    cells = [line.split("|")[1:-1] for line in printed.getvalue().splitlines()]
    return [row[0].strip() for row in cells if len(row) > 1][1:]


def double(x: torch.Tensor) -> torch.Tensor:
    """A function that succeeds."""
    return x * 2


def fail(_: torch.Tensor) -> torch.Tensor:
    """A function that does not."""
    raise ArithmeticError("too hot")


@case
def nested_outputs(package: Any) -> str:
    """Backward from the output {'layers': [x, None], 'n': 3}."""

    def layers(x: torch.Tensor) -> dict[str, Any]:
        return {"layers": [x * 2, None], "n": 3}

    return f"rows: {', '.join(benchmark_table(package, [layers], (torch.ones(3),), backward=True))}"


@case
def short_args(package: Any) -> str:
    """Three functions and a list of two argument tuples: rows."""
    names = benchmark_table(package, [double] * 3, [(torch.ones(3),)] * 2)
    return ", ".join(names)


@case
def failing_function(package: Any) -> str:
    """The second of three functions raises ArithmeticError: rows."""
    return ", ".join(benchmark_table(package, [double, fail, torch.relu], (torch.ones(3),)))


@case
def returns(package: Any) -> str:
    """What benchmark returns."""
    returned = package.benchmark([double], (torch.ones(3),), num_steps=3, num_warmups=1)
    if returned is None:
        return "None"
    return f"{type(returned[0]).__name__} with {len(returned[0].forward.samples)} samples"


@case
def what_is_left(package: Any) -> str:
    """The model's .grad, and torch's random state, after backward=True."""
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    state = torch.get_rng_state()
    benchmark_table(package, [model], (x,), backward=True)
    moved = not torch.equal(state, torch.get_rng_state())
    return f".grad {'is set' if model.weight.grad is not None else 'is None'}, random state " + (
        "moved on" if moved else "as before"
    )


@case
def names(package: Any) -> str:
    """Names of two partials, two lambdas, a compiled model."""
    partials = [functools.partial(torch.sum, dim=dim) for dim in (0, 1)]
    lambdas = [
        lambda x: x + 1,
        lambda x: x + 2,
    ]
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    found = benchmark_table(package, [*partials, *lambdas, compiled], (torch.ones(2, 2),))
    return ", ".join(found)


@case
def coroutines(package: Any) -> str:
    """A coroutine function."""

    async def later(x: torch.Tensor) -> torch.Tensor:
        return x

    return f"rows: {', '.join(benchmark_table(package, [later], (torch.ones(3),)))}"


# -- nvtxit ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def fake_cuda(package: Any) -> Iterator[list[str]]:
    """Put a mock behind the module's torch.cuda; yields what it is asked to do."""
    log: list[str] = []
    cuda = mock.MagicMock()
    cuda.nvtx.range_push.side_effect = lambda label: log.append(f"push {label}")
    cuda.nvtx.range_pop.side_effect = lambda: log.append("pop")
    cuda.cudart().cudaProfilerStart.side_effect = lambda: log.append("start")
    cuda.cudart().cudaProfilerStop.side_effect = lambda: log.append("stop")
    with mock.patch(f"{package.__name__}.nvtx.torch.cuda", cuda):
        yield log


@case
def nvtx_exception(package: Any) -> str:
    """A decorated function raises."""
    with fake_cuda(package) as log, contextlib.suppress(ArithmeticError):
        package.nvtxit()(fail)(torch.ones(1))
    return _end_capture(package, log)


def _end_capture(package: Any, log: list[str]) -> str:
    """Reset the reference's flag, which an exception leaves on."""
    module: Any = importlib.import_module(f"{package.__name__}.nvtx")
    if hasattr(module, "CUDA_PROFILE_STARTED"):
        module.CUDA_PROFILE_STARTED = False
    return ", ".join(log)


@case
def nvtx_labels(package: Any) -> str:
    """Labels of two functions with one decorator object."""
    decorate = package.nvtxit()
    with fake_cuda(package) as log:
        for func in (double, torch.relu):
            decorate(func)(torch.ones(1))
    return ", ".join(entry for entry in log if entry.startswith("push"))


@case
def nvtx_coroutine(package: Any) -> str:
    """A decorated coroutine function: when its body runs."""
    with fake_cuda(package) as log:

        async def work() -> None:
            log.append("body")

        asyncio.run(package.nvtxit()(work)())
    return ", ".join(entry for entry in log if entry not in ("start", "stop"))


@case
def nvtx_bare(package: Any) -> str:
    """The decorator written without parentheses: what a decorated function returns."""
    decorated = package.nvtxit(double)
    return type(decorated(torch.ones(1))).__name__


# -- sizes -----------------------------------------------------------------------------------------


def data_size(package: Any, **attributes: Any) -> object:
    """Size of a Data object with these attributes."""
    from torch_geometric.data import Data

    return package.get_data_size(Data(**attributes))


@case
def size_sparse(package: Any) -> object:
    """get_data_size of a sparse CSR tensor with 3 values (12 bytes) and 7 indices (56)."""
    return data_size(package, adj=torch.eye(3).to_sparse_csr())


@case
def size_views(package: Any) -> object:
    """get_data_size of 1,000 floats and a view of the last 999."""
    x = torch.zeros(1000)
    return data_size(package, x=x, rest=x[1:])


@case
def size_meta(package: Any) -> object:
    """get_data_size of two meta tensors of 1,000 floats each."""
    return data_size(
        package, x=torch.zeros(1000, device="meta"), y=torch.zeros(1000, device="meta")
    )


@case
def size_numpy(package: Any) -> object:
    """get_data_size of a NumPy array of 1,000 doubles."""
    import numpy

    return data_size(package, x=numpy.zeros(1000))


@case
def size_list(package: Any) -> object:
    """get_data_size of a list of tensors, without a Data around it."""
    return package.get_data_size([torch.zeros(1000)])


@case
def model_size(package: Any) -> str:
    """get_model_size of one layer, five times: different figures; Python's random state."""
    model = nn.Linear(2, 2)
    state = random.getstate()
    random.seed(0)
    start = random.getstate()
    figures = {package.get_model_size(model) for _ in range(5)}
    moved = random.getstate() != start
    random.setstate(state)
    return f"{len(figures)} figure(s); {'moved on' if moved else 'as before'}"


@case
def model_size_folder(package: Any) -> str:
    """get_model_size in a folder that cannot be written to."""
    gone = tempfile.mkdtemp()
    here = Path.cwd()
    os.chdir(gone)
    os.rmdir(gone)
    try:
        return f"{type(package.get_model_size(nn.Linear(2, 2))).__name__}"
    finally:
        os.chdir(here)


@case
def lazy(package: Any) -> object:
    """count_parameters of a model with a lazy layer."""
    return package.count_parameters(nn.Sequential(nn.LazyLinear(2)))


@case
def gc_views(package: Any) -> int:
    """get_cpu_memory_from_gc: bytes that ten views of 1,000 floats add."""
    gc.collect()  # or it could run in between, and tensors of others go
    x = torch.zeros(1000)
    before = int(package.get_cpu_memory_from_gc())
    views = [x[i:] for i in range(10)]
    added = int(package.get_cpu_memory_from_gc()) - before
    del views
    return added


@case
def gc_filters(package: Any) -> int:
    """get_cpu_memory_from_gc: warning filters left behind."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        package.get_cpu_memory_from_gc()
        return len(warnings.filters)


# -- running them ----------------------------------------------------------------------------------


def seen(name: str, package_name: str) -> str:
    """Do one case with one package, in this process; errors are what was seen."""
    package: types.ModuleType = importlib.import_module(package_name)
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return str(CASES[name](package))
        except Exception as error:  # noqa: BLE001  # whatever a package raises is the answer
            message = re.sub("0x[0-9a-f]+", "0x...", " ".join(str(error).split()))
            text = f"{type(error).__name__}: {message}"
            return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."
        finally:
            os.chdir(here)


def seen_apart(name: str, package_name: str) -> str:
    """Do one case with one package in a process of its own."""
    command = [sys.executable, __file__, "--apart", name, package_name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode < 0:
        return f"the process is killed by {signal.Signals(-done.returncode).name}"
    return done.stdout.strip()


def report(name: str) -> str:
    """What was seen of one case, as three lines."""
    what = (CASES[name].__doc__ or "").removesuffix(".")
    lines = _wrapped(f"{name}: {what}", indent=2)
    for package in PACKAGES:
        see = seen_apart if name in CRASHING else seen
        lines += _wrapped(f"  {package + ':':<{INDENT - 2}}{see(name, package)}", INDENT)
    return "\n".join(lines)


def _wrapped(line: str, indent: int) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)


def main(arguments: list[str]) -> None:
    """Print the cases named, by default all."""
    if arguments[:1] == ["--apart"]:
        sys.stdout.write(seen(*arguments[1:]) + "\n")
        return
    torch.set_num_threads(1)
    for name in arguments or CASES:
        if name not in CASES:
            raise SystemExit(f"no case {name!r}; there are {', '.join(CASES)}")
        sys.stdout.write(report(name) + "\n\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
