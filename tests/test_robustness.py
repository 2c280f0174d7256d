"""What users do to a profiler that a profiler must survive; each was seen to break it once."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch
from torch import nn
from torch.profiler import profile
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GCNConv

from conftest import module_state
from gnnprof import Profiler, _recorder, benchmark, get_stats_summary, timeit, torch_profile
from gnnprof._interrupts import interrupts_deferred
from test_profiler import check_sums, row_of

X = torch.ones(3, 4)


class Slow(nn.Module):
    def forward(self, x):
        time.sleep(0.1)
        return x


def test_a_forward_on_another_thread_survives_the_start_of_a_session():
    model, errors = Slow(), []

    def work() -> None:
        try:
            model(X)
        except RuntimeError as error:
            errors.append(error)

    with Profiler(model, skip=1) as prof:
        model(X)
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.03)
        model(X)
        thread.join()
    assert not errors
    assert prof.steps == 1


def test_switching_it_off_inside_the_block_leaves_nothing_behind():
    model = nn.Linear(4, 4)
    before = module_state(model)
    with Profiler(model) as prof:
        model(X)
        prof.enabled = False
        prof.profile_memory = True
    assert module_state(model) == before
    assert row_of(prof, "").calls == 1
    assert row_of(prof, "").cpu_memory is None


@pytest.mark.filterwarnings("ignore")
def test_a_session_lost_at_a_cut_is_told_by_the_rows_and_not_by_the_forward(monkeypatch):
    monkeypatch.setattr(_recorder, "_FIRST_SESSION", 5)
    model = nn.Linear(4, 4)
    with Profiler(model) as prof:
        for step in range(20):
            model(X)
            if step == 3:
                with profile():
                    model(X)
    with pytest.raises(RuntimeError, match="the recording ended early, after"):
        _ = prof.rows


def test_with_memory_the_block_is_left_on_its_own_thread():
    model, errors = nn.Linear(4, 4), []
    prof = Profiler(model, profile_memory=True)

    def leave() -> None:
        try:
            prof.__exit__(None, None, None)
        except RuntimeError as error:
            errors.append(str(error))

    with prof:
        thread = threading.Thread(target=leave)
        thread.start()
        thread.join()
        model(X)
    assert "must be left by the thread that entered it" in errors[0]
    assert row_of(prof, "").calls == 1


def test_a_loss_over_many_forwards_is_attributed_across_all_cuts(monkeypatch):
    monkeypatch.setattr(_recorder, "_FIRST_SESSION", 4)
    monkeypatch.setattr(_recorder, "_LATER_SESSION", 4)
    model = nn.Sequential(nn.Linear(4, 4))
    with Profiler(model) as prof:
        cost = torch.zeros(())
        for _ in range(12):
            cost = cost + model(X).sum()
        cost.backward()
    check_sums(prof)
    assert row_of(prof, "0", op="aten::addmm").calls == 12
    nodes = row_of(prof, "0").backward_calls
    assert nodes == 2 * 12  # AddmmBackward0 and TBackward0 of every forward


def test_a_module_list_with_a_forward_of_its_own():
    class Chain(nn.ModuleList):
        def forward(self, x):
            for layer in self:
                time.sleep(0.02)
                x = layer(x)
            return x

    model = Chain([nn.Linear(4, 4) for _ in range(3)])
    with Profiler(model) as prof:
        model(X)
    assert prof.steps == 1
    assert row_of(prof, "").self_cpu_time == pytest.approx(0.06, abs=0.03)
    assert row_of(prof, None, "outside").self_cpu_time < 0.02


def test_overlapping_models_in_one_block():
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = self.encoder(x)
            time.sleep(0.05)
            return self.head(x)

    whole = Whole()
    with Profiler(nn.ModuleDict({"whole": whole, "encoder": whole.encoder})) as prof:
        whole(X)
    assert prof.steps == 1
    assert row_of(prof, "whole").self_cpu_time == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputation_is_no_step(reentrant):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = X.clone().requires_grad_()
    with Profiler(model) as prof:
        for _ in range(3):
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
    check_sums(prof)
    assert prof.steps == 3
    assert (row_of(prof, "0").calls, row_of(prof, "0").recomputed_calls) == (3, 3)


def test_a_wrapper_that_delegates_attributes_has_no_phases_of_its_own():
    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

        def forward(self, *args):
            return self.inner(*args)

    with Profiler(Wrapper(GCNConv(4, 4))) as prof:
        prof(X, torch.tensor([[0, 1], [1, 2]]))
    assert {row.path for row in prof.rows if row.phase == "message"} == {"inner"}
    assert row_of(prof, "inner", "message").calls == 1


def test_a_stream_without_isatty_is_no_terminal(monkeypatch):
    class Log:
        def write(self, text: str) -> int:
            return len(text)

    model = nn.Linear(4, 4)
    with Profiler(model) as prof:
        model(X)
    for stream in (Log(), None):
        monkeypatch.setattr("sys.stdout", stream)
        assert "of which rows cover" in str(prof)


def test_selected_modules_that_are_not_called_are_named_as_such():
    holder = Holder(nn.Linear(4, 4))
    with Profiler(holder, paths=["unused"]) as prof:
        holder(X)
    assert "None of the modules that 'paths' selects was called" in str(prof)
    with Profiler(holder, paths=["unused"]) as prof:
        holder.inner(X)
    assert "The model was not called in the block" in str(prof)


class Holder(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


def test_only_markers_that_were_recorded_are_told():
    model = nn.Linear(4, 4)
    with Profiler(model, skip=2, active=3) as prof:
        for _ in range(10):
            model(X)
    assert "Profiler: 3 markers" in str(prof)
    assert prof._summary()["overhead"]["markers"] == 3


def test_a_block_without_a_recorded_step_says_so(tmp_path):
    model = nn.Linear(4, 4)
    with Profiler(model, skip=5) as prof:
        model(X)
    note = "Nothing was recorded: the model ran 1 steps, and skip \\+ warmup is 5"
    assert note.replace("\\", "") in str(prof)
    assert prof.coverage == 0
    with pytest.raises(RuntimeError, match="nothing was recorded, so there is no trace"):
        prof.export_chrome_trace(tmp_path / "trace.json")


@pytest.mark.filterwarnings("ignore")
def test_compiling_in_place_inside_the_block_stays():
    torch._dynamo.reset()
    model = nn.Linear(4, 4)
    model.compile(backend="eager")
    with Profiler(model):
        model.compile(backend="eager", dynamic=True)
        compiled = model._compiled_call_impl
    assert model._compiled_call_impl is compiled
    torch._dynamo.reset()


@pytest.mark.parametrize("paths", [3, [3], [None], [("0", 1)], [b"0"]])
def test_bad_paths_are_type_errors_with_a_sentence(paths):
    with pytest.raises(TypeError, match="paths"):
        Profiler(nn.Sequential(nn.Linear(2, 2)), paths=paths)


def test_bad_arguments_of_the_other_doors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for bad, error in (("logs", IsADirectoryError), ("", TypeError), (3.5, TypeError)):
        with pytest.raises(error, match="export_chrome_trace="), torch_profile(bad):
            pytest.fail("the body must not run")
    with (
        pytest.raises(TypeError, match="csv_data is a list"),
        torch_profile(False, csv_data=[], write_csv="prof"),
    ):
        pytest.fail("the body must not run")
    with pytest.raises(TypeError, match="stats_list is None"):
        get_stats_summary(None)
    with pytest.raises(TypeError, match="with parentheses"):
        timeit(len)
    assert list(tmp_path.iterdir()) == [tmp_path / "logs"]


def test_a_trace_goes_where_it_was_meant_to_go(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with torch_profile("run.json"):
        torch.ones(3)
        os.chdir("elsewhere")
    assert (tmp_path / "run.json").is_file()
    os.chdir(tmp_path)


def test_a_name_as_long_as_names_can_be(tmp_path):
    with Profiler(nn.Linear(4, 4)) as prof:
        prof(X)
    assert prof.to_json(tmp_path / f"{'n' * 250}.json").is_file()


def test_benchmark_takes_functions_it_cannot_look_into(capsys):
    def function(x):
        return late * x if x is None else x + 1  # late is a name without a value

    (result,) = benchmark([function], (X,), num_steps=2, num_warmups=1, backward=True)
    late = 1
    assert result.error is None
    assert len(result.forward.samples) == 2


def test_the_overhead_is_the_paired_ratio_of_a_step(fake_clock):
    model = nn.Linear(4, 4)

    def step() -> None:
        model(X)
        fake_clock.advance(1.5 if torch.autograd.profiler._is_profiler_enabled else 1.0)

    with Profiler(model) as prof:
        step()
    assert prof.measure_overhead(step, rounds=3) == 1.5
    assert "Overhead: a step takes 1.50 times as long" in str(prof)
    assert prof._summary()["overhead"]["ratio"] == 1.5
    assert row_of(prof, "").calls == 1


def test_ctrl_c_waits_until_the_hooks_are_in_order():
    def interrupted() -> None:
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            done.append("finished")

    done: list[str] = []
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert done == ["finished"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_ctrl_c_ends_a_forward_that_is_repeated_to_be_counted():
    class Interrupts(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 2:
                os.kill(os.getpid(), signal.SIGINT)
                pytest.fail("went on")
            return x * 2

    model = Interrupts()
    before = module_state(model)
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), Profiler(model, counts=True) as prof:
            model(X)
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert row_of(prof, "").calls == 1
    model.calls = 0
    assert module_state(model) == before


def test_ctrl_c_is_not_lost_where_the_block_raises():
    def interrupted() -> None:
        with interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            raise ValueError

    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            interrupted()
    finally:
        signal.signal(signal.SIGINT, earlier)
    assert isinstance(caught.value.__context__, ValueError)


def test_replicas_of_data_parallel_are_attributed_to_the_model_s_own_rows():
    # What nn.DataParallel does on several GPUs, step by step: copies of the modules, a thread each.
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    replicas = [replica_of(model) for _ in range(2)]
    outputs: list[torch.Tensor] = []

    with Profiler(model) as prof:
        threads = [
            threading.Thread(target=lambda r=replica: outputs.append(r(torch.ones(3, 4))))
            for replica in replicas
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        nn.DataParallel(model)(torch.ones(3, 4))  # without a GPU this calls the model itself

    calls = {row.path: row.calls for row in prof.rows if row.op is None and row.path is not None}
    assert calls == {"": 3, "0": 3, "1": 3, "2": 3}
    assert all(torch.equal(out, model(torch.ones(3, 4))) for out in outputs)
    linear = {row.path: row.calls for row in prof.rows if row.op == "aten::addmm"}
    assert linear == {"0": 3, "2": 3}
    assert not any(module._forward_hooks for r in replicas for module in r.modules())


def replica_of(module: nn.Module) -> nn.Module:
    """A copy as torch.nn.parallel.replicate makes it: parameters and hooks are shared."""
    replica = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(replica, name, parameter)
    for name, child in module._modules.items():
        replica._modules[name] = None if child is None else replica_of(child)
    return replica
