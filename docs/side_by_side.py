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
import copy
import functools
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
import threading
import time
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # two lines on stderr per session otherwise

import torch
from torch import nn

REFERENCE = "torch_geometric.profile"
PACKAGES = (REFERENCE, "gnnprof")
LONGEST = 150  # characters of an error


@dataclass(frozen=True)
class Case:
    """Something that both packages are made to do.

    Attributes:
        what: What is done, in a few words.
        do: Does it with one package and says what came out.
        crashes: Whether it may kill the process.
    """

    what: str
    do: Callable[[Any], object]
    crashes: bool = False


CASES: dict[str, Case] = {}


def case(what: str, *, crashes: bool = False) -> Callable[[Callable[[Any], object]], None]:
    """Register the decorated function under its name, with dashes for underscores."""

    def register(do: Callable[[Any], object]) -> None:
        CASES[do.__name__.replace("_", "-")] = Case(what, do, crashes)

    return register


# -- the Profiler ----------------------------------------------------------------------------------


def profiler_of(package: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a Profiler, which the reference does not export."""
    return importlib.import_module(f"{package.__name__}.profiler").Profiler(*args, **kwargs)


def two_linears() -> nn.Sequential:
    """A model of which the second layer is the cheaper one."""
    return nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 2))


@case("torch_profile inside torch_profile", crashes=True)
def nested_sessions(package: Any) -> str:
    with package.torch_profile(), package.torch_profile():
        torch.ones(2).add(1)
    return "both blocks ran"


@case("two threads call a model under one Profiler", crashes=True)
def two_threads(package: Any) -> str:
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


@case("share of the model's op time that is found in rows (3 layers, hidden 64, Cora-sized)")
def share_in_rows(package: Any) -> str:
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
            model(*inputs)
    ops = [row for row in prof.rows if row.op is not None and row.path is not None]
    if package.__name__ == REFERENCE:  # it gives rows to the modules without children
        leaves = {name for name, module in model.named_modules() if not list(module.children())}
        found = [row for row in ops if row.path in leaves and row.phase is None]
    else:
        found = ops
    return sum(row.self_cpu_time for row in found) / sum(row.self_cpu_time for row in ops)


@case("rows of a GCN's first layer: labels, less the ops")
def rows(package: Any) -> str:
    from torch_geometric.nn import GCN

    model = GCN(4, 4, 2, 4)
    with profiler_of(package, model) as prof:
        model(torch.ones(3, 4), torch.tensor([[0, 1], [1, 2]]))
    labels = [label for label in prof.get_trace()[3] if label.startswith("-convs--0")]
    return ", ".join(dict.fromkeys(re.sub("-+[a-z]+::.*", "", label) for label in labels))


@case("columns of the table with profile_memory=True")
def memory_columns(package: Any) -> str:
    model = two_linears()
    with profiler_of(package, model, profile_memory=True) as prof:
        model(torch.ones(8, 64))
    return ", ".join(heading.strip() for heading in str(prof).splitlines()[0].split("|"))


@case("use_cuda=True on a machine without CUDA")
def use_cuda(package: Any) -> str:
    with profiler_of(package, two_linears(), use_cuda=True):
        pass
    return "no error"


@case("modules that got rows with paths=['Sequential/0']")
def slash_paths(package: Any) -> str:
    return _labels_with(package, [["Sequential/0"]])


@case("modules that got rows with paths=['typo']")
def unknown_path(package: Any) -> str:
    return _labels_with(package, [["typo"]])


def _labels_with(package: Any, paths: list[Any]) -> str:
    model = two_linears()
    with profiler_of(package, model, paths=paths[0]) as prof:
        model(torch.ones(8, 64))
    labels = {label.split("--")[0] for label in prof.get_trace()[3]}
    return ", ".join(sorted(labels)) or "none"


@case("weights that a copy of the model made after the block computes with")
def copies(package: Any) -> str:
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    with profiler_of(package, model):
        model(torch.ones(1))
    copied = copy.deepcopy(model)
    nn.init.constant_(model[0].weight, 5.0)  # type: ignore[arg-type]
    nn.init.constant_(copied[0].weight, 7.0)  # type: ignore[arg-type]
    left = "forward" in vars(model[0])
    return f"those of {'the original' if copied(torch.ones(1)) == 5 else 'the copy'}; " + (
        "'forward' stays on the layer" if left else "nothing stays on the layer"
    )


@case("a compiled model: the table, and the graphs that Dynamo made of it")
def compiled_model(package: Any) -> str:
    import torch._dynamo as dynamo
    from torch._dynamo.testing import CompileCounter

    from torch_geometric.nn import GCN

    dynamo.reset()
    counter = CompileCounter()
    model = torch.compile(GCN(4, 4, 2, 4), backend=counter)
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


@case("labels of the two layers of a model, one of which is named 'pre-norm'")
def names_with_dashes(package: Any) -> str:
    model = nn.Sequential()
    model.add_module("pre-norm", nn.Tanh())
    model.add_module("act", nn.Tanh())
    with profiler_of(package, model) as prof:
        model(torch.ones(2))
    return ", ".join(label for label in prof.get_trace()[3] if "::" in label)


@case("raw_results['aten::linear'] of two layers called once each: calls")
def raw_results(package: Any) -> str:
    model = two_linears()
    with profiler_of(package, model) as prof:
        model(torch.ones(8, 64))
    return str(prof.get_trace()[2]["aten::linear"][-1])


@case("a layer that runs no op: its number of calls")
def layers_without_ops(package: Any) -> str:
    model = nn.Sequential(nn.Identity(), nn.Tanh())
    with profiler_of(package, model) as prof:
        model(torch.ones(2))
    line = next((line for line in str(prof).splitlines() if re.search(r"\b0\b", line)), "no row")
    return line.split("|")[-1].strip() or "not told"


@case("the same Profiler entered a second time")
def second_block(package: Any) -> str:
    model = two_linears()
    prof = profiler_of(package, model)
    for _ in range(2):
        with prof:
            model(torch.ones(8, 64))
    return f"the second block starts clean: {prof.get_trace()[2]['aten::linear'][-1]} calls"


@case("leaving a Profiler that was never entered")
def exit_only(package: Any) -> object:
    return profiler_of(package, two_linears()).__exit__(None, None, None)


# -- profileit and its summary ---------------------------------------------------------------------


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One step to profile."""
    return model(x)  # type: ignore[no-any-return]


@case("when profileit('tpu') is refused")
def bad_device(package: Any) -> str:
    try:
        decorated = package.profileit("tpu")(step)
    except AttributeError:
        return "where it is written"
    try:
        decorated(two_linears(), torch.ones(8, 64))
    except AttributeError:
        return "at the first call"
    return "never"


@case("name of a function decorated with profileit('cuda')")
def wraps(package: Any) -> object:
    return package.profileit("cuda")(step).__name__


@case("profileit() without a device, on the CPU")
def no_device(package: Any) -> str:
    _, stats = package.profileit()(step)(two_linears(), torch.ones(8, 64))
    return re.sub(r"time=[^ ]+", "time=...", re.sub(r", max_rss.*", ", ...)", repr(stats)))


@case("summary of one record of 2 s")
def one_record(package: Any) -> str:
    stats_class = importlib.import_module(f"{package.__name__}.profile").GPUStats
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        summary = package.get_stats_summary([stats_class(2.0, 1.0, 1.0, 1.0)])
    return f"time_std {summary.time_std}, {len(caught)} warnings"


@case("summary of no records")
def no_records(package: Any) -> object:
    return package.get_stats_summary([])


@case("mean of 100.000001 s and 100.000002 s")
def small_differences(package: Any) -> object:
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


@case("a card whose memory nvidia-smi tells as [N/A]: (free, used), and starts of nvidia-smi")
def smi_unknown(package: Any) -> str:
    with fake_nvidia_smi() as starts:
        memory = package.get_gpu_memory_from_nvidia_smi(0)
        return f"{memory}, {len(starts.read_text())} starts"


@case("CUDA_VISIBLE_DEVICES=1, where card 1 has 2000 MiB free and 100 MiB used, and device=0")
def smi_visible(package: Any) -> object:
    with fake_nvidia_smi(), mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "1"}):
        return package.get_gpu_memory_from_nvidia_smi(0)


@case("a machine without nvidia-smi")
def smi_missing(package: Any) -> object:
    with mock.patch.dict(os.environ, {"PATH": os.devnull}):
        return package.get_gpu_memory_from_nvidia_smi(0)


# -- torch_profile and its files -------------------------------------------------------------------


@case("torch_profile(write_csv='prof')")
def write_csv(package: Any) -> str:
    columns: defaultdict[str, list[Any]] = defaultdict(list)
    with package.torch_profile(False, csv_data=columns, write_csv="prof"):
        torch.ones(64, 64).mm(torch.ones(64, 64))
    return ", ".join(columns)


@case("what `with torch_profile() as prof` gives")
def what_it_yields(package: Any) -> str:
    with package.torch_profile(False) as prof:
        torch.ones(2).add(1)
    return type(prof).__name__


@case("a torch_profile block that raises")
def raising_block(package: Any) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(LookupError):
        with package.torch_profile():
            raise LookupError
    table = "table printed" if printed.getvalue() else "nothing printed"
    return f"{table}, {'trace' if Path('timeline.json').exists() else 'no trace'} written"


@case("xpu_profile on a machine without XPU")
def xpu(package: Any) -> str:
    with package.xpu_profile(False):
        pass
    return "no error"


@case("rename_profile_file('run', 3)")
def rename_numbers(package: Any) -> str:
    Path("timeline.json").touch()
    package.rename_profile_file("run", 3)
    return _files_here()


@case("rename_profile_file('a') with a profile-a.json of an earlier run: files afterwards")
def rename_over(package: Any) -> str:
    Path("profile-a.json").write_text("earlier")
    Path("timeline.json").touch()
    package.rename_profile_file("a")
    return _files_here()


@case("files of two ranks of torch.distributed in one folder")
def ranks(package: Any) -> str:
    for rank in range(2):
        with (
            mock.patch("torch.distributed.is_initialized", lambda: True),
            mock.patch("torch.distributed.get_world_size", lambda: 2),
            mock.patch("torch.distributed.get_rank", lambda rank=rank: rank),
            package.torch_profile(),
        ):
            torch.ones(2).add(1)
    return _files_here()


def _files_here() -> str:
    return ", ".join(sorted(path.name for path in Path().iterdir()))


@case("format_prof_time(1234.0), microseconds in")
def prof_time(package: Any) -> object:
    return importlib.import_module(f"{package.__name__}.profile").format_prof_time(1234.0)


# -- timeit ----------------------------------------------------------------------------------------


@case("the system clock is set back by 60 s during the block")
def clock_step(package: Any) -> str:
    step_back = itertools.chain([1060.0], itertools.repeat(1000.0))
    with mock.patch("time.time", lambda: next(step_back)):
        with package.timeit(log=False) as timer:
            pass
    return "a negative duration" if timer.duration < 0 else "not affected"


@case("one timer, entered again inside: 0.1 s before the inner block; the outer duration")
def nested_timer(package: Any) -> str:
    timer = package.timeit(log=False)
    with timer:
        time.sleep(0.1)
        with timer:
            pass
    return f"{timer.duration:.1f} s"


@case("a decorated coroutine function that sleeps for 0.1 s")
def coroutine(package: Any) -> str:
    timer = package.timeit(log=False)

    @timer  # type: ignore[untyped-decorator]
    async def sleep() -> None:
        await asyncio.sleep(0.1)

    asyncio.run(sleep())
    return f"{timer.duration:.1f} s"


@case("reset() before the timer was started")
def reset_first(package: Any) -> object:
    return package.timeit().reset()


@case("durations kept of a function called three times")
def laps(package: Any) -> str:
    timer = package.timeit(log=False)
    call = timer(lambda: None)
    for _ in range(3):
        call()
    return str(len(getattr(timer, "laps", [timer.duration])))


@case("avg_time_divisor=-5")
def negative_divisor(package: Any) -> str:
    with package.timeit(log=False, avg_time_divisor=-5):
        pass
    return "no error"


# -- benchmark -------------------------------------------------------------------------------------


def benchmark_table(package: Any, *args: Any, **kwargs: Any) -> list[str]:
    """Names and first figures of the table that benchmark prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        package.benchmark(*args, num_steps=1, num_warmups=1, **kwargs)
    cells = [line.split("|")[1:-1] for line in printed.getvalue().splitlines()]
    return [row[0].strip() for row in cells if len(row) > 1][1:]


def double(x: torch.Tensor) -> torch.Tensor:
    """A function that succeeds."""
    return x * 2


def fail(x: torch.Tensor) -> torch.Tensor:
    """A function that does not."""
    raise ArithmeticError("too hot")


@case("backward from the output {'layers': [x, None], 'n': 3}")
def nested_outputs(package: Any) -> str:
    def layers(x: torch.Tensor) -> dict[str, Any]:
        return {"layers": [x * 2, None], "n": 3}

    return f"rows: {', '.join(benchmark_table(package, [layers], (torch.ones(3),), backward=True))}"


@case("three functions and a list of two argument tuples: rows")
def short_args(package: Any) -> str:
    names = benchmark_table(package, [double] * 3, [(torch.ones(3),)] * 2)
    return ", ".join(names)


@case("the second of three functions raises ArithmeticError: rows")
def failing_function(package: Any) -> str:
    return ", ".join(benchmark_table(package, [double, fail, torch.relu], (torch.ones(3),)))


@case("what benchmark returns")
def returns(package: Any) -> str:
    returned = package.benchmark([double], (torch.ones(3),), num_steps=3, num_warmups=1)
    if returned is None:
        return "None"
    return f"{type(returned[0]).__name__} with {len(returned[0].forward.samples)} samples"


@case("the model's .grad, and torch's random state, after backward=True")
def what_is_left(package: Any) -> str:
    model, x = nn.Linear(2, 2), torch.ones(3, 2)
    state = torch.get_rng_state()
    benchmark_table(package, [model], (x,), backward=True)
    moved = not torch.equal(state, torch.get_rng_state())
    return f".grad {'is set' if model.weight.grad is not None else 'is None'}, random state " + (
        "moved on" if moved else "as before"
    )


@case("names of two partials, two lambdas, a compiled model")
def names(package: Any) -> str:
    partials = [functools.partial(torch.sum, dim=dim) for dim in (0, 1)]
    lambdas = [lambda x: x + 1, lambda x: x + 2]
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    found = benchmark_table(package, [*partials, *lambdas, compiled], (torch.ones(2, 2),))
    return ", ".join(found)


@case("a coroutine function")
def coroutines(package: Any) -> str:
    async def later(x: torch.Tensor) -> torch.Tensor:
        return x

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
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


@case("a decorated function raises")
def nvtx_exception(package: Any) -> str:
    with fake_cuda(package) as log, contextlib.suppress(ArithmeticError):
        package.nvtxit()(fail)(torch.ones(1))
    return _end_capture(package, log)


def _end_capture(package: Any, log: list[str]) -> str:
    """Reset the reference's flag, which an exception leaves on."""
    module = importlib.import_module(f"{package.__name__}.nvtx")
    if hasattr(module, "CUDA_PROFILE_STARTED"):
        module.CUDA_PROFILE_STARTED = False
    return ", ".join(log)


@case("labels of two functions with one decorator object")
def nvtx_labels(package: Any) -> str:
    decorate = package.nvtxit()
    with fake_cuda(package) as log:
        for func in (double, torch.relu):
            decorate(func)(torch.ones(1))
    return ", ".join(entry for entry in log if entry.startswith("push"))


@case("a decorated coroutine function: when its body runs")
def nvtx_coroutine(package: Any) -> str:
    with fake_cuda(package) as log:

        async def work() -> None:
            log.append("body")

        asyncio.run(package.nvtxit()(work)())
    return ", ".join(entry for entry in log if entry not in ("start", "stop"))


# -- sizes -----------------------------------------------------------------------------------------


def data_size(package: Any, **attributes: Any) -> object:
    """Size of a Data object with these attributes."""
    from torch_geometric.data import Data

    return package.get_data_size(Data(**attributes))


@case("get_data_size of a sparse CSR tensor with 3 values (12 bytes) and indices")
def size_sparse(package: Any) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return data_size(package, adj=torch.eye(3).to_sparse_csr())


@case("get_data_size of 1,000 floats and a view of the last 999")
def size_views(package: Any) -> object:
    x = torch.zeros(1000)
    return data_size(package, x=x, rest=x[1:])


@case("get_data_size of two meta tensors of 1,000 floats each")
def size_meta(package: Any) -> object:
    return data_size(
        package, x=torch.zeros(1000, device="meta"), y=torch.zeros(1000, device="meta")
    )


@case("get_data_size of a NumPy array of 1,000 doubles")
def size_numpy(package: Any) -> object:
    import numpy

    return data_size(package, x=numpy.zeros(1000))


@case("get_data_size of a list of tensors, without a Data around it")
def size_list(package: Any) -> object:
    return package.get_data_size([torch.zeros(1000)])


@case("get_model_size of one layer, five times: different figures; Python's random state")
def model_size(package: Any) -> str:
    model = nn.Linear(2, 2)
    state = random.getstate()
    random.seed(0)
    start = random.getstate()
    figures = {package.get_model_size(model) for _ in range(5)}
    moved = random.getstate() != start
    random.setstate(state)
    return f"{len(figures)} figure(s); {'moved on' if moved else 'as before'}"


@case("get_model_size in a folder that cannot be written to")
def model_size_folder(package: Any) -> str:
    gone = tempfile.mkdtemp()
    here = Path.cwd()
    os.chdir(gone)
    os.rmdir(gone)
    try:
        return f"{type(package.get_model_size(nn.Linear(2, 2))).__name__}"
    finally:
        os.chdir(here)


@case("count_parameters of a model with a lazy layer")
def lazy(package: Any) -> object:
    return package.count_parameters(nn.Sequential(nn.LazyLinear(2)))


@case("get_cpu_memory_from_gc: bytes that ten views of 1,000 floats add")
def gc_views(package: Any) -> int:
    x = torch.zeros(1000)
    before = int(package.get_cpu_memory_from_gc())
    views = [x[i:] for i in range(10)]
    added = int(package.get_cpu_memory_from_gc()) - before
    del views
    return added


@case("get_cpu_memory_from_gc: warning filters left behind")
def gc_filters(package: Any) -> int:
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
            with contextlib.redirect_stdout(io.StringIO()):
                return str(CASES[name].do(package))
        except Exception as error:  # noqa: BLE001  # whatever a package raises is the answer
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
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
    lines = [f"{name}: {CASES[name].what}"]
    for package in PACKAGES:
        see = seen_apart if CASES[name].crashes else seen
        lines.append(f"  {package + ':':<24} {see(name, package)}")
    return "\n".join(lines)


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
