"""Limits of a machine whose speed is known, and real profiles held against the real machine."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE

from gnnprof import _limits
from gnnprof._counting import counting_pass
from gnnprof._limits import Bandwidth, Limit, LimitTime, classify, limit_time, percent_of_limit

CPU = torch.device("cpu")
KIB, MIB = 2**10, 2**20


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(_limits, "_known", {})


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def limit(*samples, work=1):
    return Limit(max(samples), tuple(map(float, samples)), work)


def ladder(*rungs):
    return Bandwidth(tuple(limit(rate, work=size) for size, rate in rungs))


class Machine:
    """Runs nothing; every task takes the time that its work would at a known rate."""

    def __init__(self, monkeypatch, rate):
        self.rate = rate
        self.timed = []
        monkeypatch.setattr(_limits, "_time", self.time)

    def time(self, task, device):
        self.timed.append((task.work, task.runs, torch.get_num_threads()))
        return task.work * task.runs / self.rate(task.work)


# -- figures ---------------------------------------------------------------------------------------


def test_a_limit_is_the_fastest_sample_and_its_noise_the_spread():
    measured = limit(10, 20, 30, 40, 50)
    assert measured.value == 50
    assert measured.noise == (40 - 20) / 30


def test_bandwidth_between_rungs_and_outside():
    memory = ladder((1 * MIB, 80e9), (4 * MIB, 20e9), (16 * MIB, 10e9))
    assert memory.at(4 * MIB) == 20e9
    assert memory.at(2 * MIB) == pytest.approx(40e9)  # half way in both logarithms
    assert memory.at(8 * MIB) == pytest.approx(math.sqrt(20e9 * 10e9))
    assert memory.at(1) == 80e9
    assert memory.at(10**12) == 10e9
    assert memory.largest.value == 10e9


def test_a_small_copy_that_is_all_overhead_is_no_ceiling():
    memory = ladder((64 * KIB, 5e9), (1 * MIB, 60e9), (4 * MIB, 20e9))
    assert memory.at(64 * KIB) == memory.at(256 * KIB) == 60e9


# -- measuring -------------------------------------------------------------------------------------


def test_working_sets_for_which_there_is_no_memory_are_left_out(monkeypatch):
    zeros = torch.zeros

    def full(size, **options):
        if size > 2**20:
            raise torch.OutOfMemoryError("out of memory")
        return zeros(size, **options)

    monkeypatch.setattr(torch, "zeros", full)
    source, target = _limits._copy_buffers(2**18, 2**27, CPU)
    assert len(source) == len(target) == 2**20
    with pytest.raises(RuntimeError):
        _limits._copy_buffers(2**22, 2**27, CPU)
    small, large = (
        _limits.Bandwidth(tuple(_limits.Limit(rate, (rate,), work) for work, rate in rungs))
        for rungs in (((1, 5.0),), ((1, 4.0), (2, 3.0)))
    )
    merged = _limits._merged(small, large)
    assert [(rung.work, rung.value) for rung in merged.rungs] == [(1, 5.0), (2, 3.0)]


def test_copy_bandwidth_finds_the_caches_of_a_machine(monkeypatch, fake_clock, one_thread):
    machine = Machine(monkeypatch, lambda size: 50e9 if size <= 4 * MIB else 10e9)
    memory = _limits.copy_bandwidth(CPU)
    assert [rung.work for rung in memory.rungs] == [2**exponent for exponent in range(18, 28)]
    assert [rung.value for rung in memory.rungs] == pytest.approx([50e9] * 5 + [10e9] * 5)
    assert {rung.noise for rung in memory.rungs} == {0}
    work, runs, _ = machine.timed[0]
    assert work * runs == 2 * MIB  # small copies repeat between two stamps


def test_copying_a_byte_moves_two(monkeypatch, one_thread):
    sizes = []
    monkeypatch.setattr(_limits, "_copy_sizes", lambda device: (1024, 2048, 1))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, of: sizes.append((to.nbytes, of.nbytes)))
    memory = _limits.copy_bandwidth(CPU)
    assert [rung.work for rung in memory.rungs] == [1024, 2048]
    assert set(sizes) == {(512, 512), (1024, 1024)}


def test_sampling_ends_with_its_time_but_not_before_three_rounds(fake_clock):
    def run():
        fake_clock.advance(0.5)

    task = _limits._Task(10, run, 2)
    (slow,) = _limits._sample([task], CPU, seconds=0.1)
    assert slow.samples == (20.0, 20.0, 20.0)  # ten per run, two runs in a second
    (timed,) = _limits._sample([task], CPU, seconds=9.0)
    assert len(timed.samples) == 6  # 1.5 s per round: each is warmed up by a run of its own


def test_a_clock_that_stands_still_ends_the_sampling(fake_clock):
    (still,) = _limits._sample([_limits._Task(1, lambda: None, 1)], CPU, seconds=1.0)
    assert len(still.samples) == 200


def test_tasks_take_turns(fake_clock):
    order = []
    tasks = [_limits._Task(1, lambda name=name: order.append(name), 1) for name in "ab"]
    _limits._sample(tasks, CPU, seconds=0.0)
    assert order[:8] == ["a", "a", "b", "b", "a", "a", "b", "b"]  # warm-up and sample each


def test_the_matrix_product_that_runs_fastest_counts(monkeypatch, fake_clock, one_thread):
    rates = {2 * 128**3: 20e9, 2 * 256**3: 80e9, 2 * 512**3: 60e9, 2 * 1024**3: 50e9}
    Machine(monkeypatch, rates.__getitem__)
    rate = _limits.matmul_rate(CPU, torch.float32)
    assert rate is not None
    assert (rate.value, rate.work) == (pytest.approx(80e9), 2 * 256**3)


def test_products_do_not_grow_beyond_their_time(monkeypatch, fake_clock, one_thread):
    machine = Machine(monkeypatch, lambda work: 0.5e9)  # 256 would take 67 ms, three of them 0.2 s
    _limits.matmul_rate(CPU, torch.float32)
    assert {work for work, *_ in machine.timed} == {2 * 128**3}


def test_a_type_that_cannot_be_multiplied_has_no_rate(monkeypatch, one_thread):
    def refuse(*args, out):
        raise NotImplementedError('"addmm_impl_cpu_" not implemented for this type')

    monkeypatch.setattr(torch, "mm", refuse)
    assert _limits.matmul_rate(CPU, torch.float32) is None
    _limits.measure_again()
    assert _limits.matmul_rate(CPU, torch.float32) is None


def test_one_thread_is_tried_beside_the_current_number(monkeypatch, fake_clock):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        machine = Machine(monkeypatch, lambda work: 1e9)
        machine.rate = lambda work: 3e9 if torch.get_num_threads() == 1 else 1e9
        rate = _limits.matmul_rate(CPU, torch.float32)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert {threads for *_, threads in machine.timed} == {1, 2}
    assert rate is not None
    assert rate.value == pytest.approx(3e9)


def test_a_limit_is_measured_once_for_device_type_and_threads(monkeypatch, fake_clock):
    machine = Machine(monkeypatch, lambda work: 1e9)
    before = torch.get_num_threads()

    def times():
        _limits.matmul_rate(CPU, torch.float32)
        return len(machine.timed)

    try:
        torch.set_num_threads(1)
        first = times()
        assert times() == first
        torch.set_num_threads(2)
        assert times() > first
        second = times()
        _limits.matmul_rate(CPU, torch.float64)
        assert len(machine.timed) > second
    finally:
        torch.set_num_threads(before)


def test_measuring_again_can_only_raise_a_limit(monkeypatch, fake_clock, one_thread):
    machine = Machine(monkeypatch, lambda work: 1e9)
    _limits.matmul_rate(CPU, torch.float32)
    _limits.copy_bandwidth(CPU)
    for rate, expected in ((3e9, 3e9), (2e9, 3e9)):
        machine.rate = lambda work, rate=rate: rate
        _limits.measure_again()
        measured = _limits.matmul_rate(CPU, torch.float32)
        assert measured is not None
        assert measured.value == pytest.approx(expected)
        assert _limits.copy_bandwidth(CPU).at(MIB) == pytest.approx(expected)
    samples = len(_limits.copy_bandwidth(CPU).largest.samples)
    _limits.measure_again()
    assert len(_limits.copy_bandwidth(CPU).largest.samples) > samples


def test_an_op_costs_its_median(monkeypatch, fake_clock, one_thread):
    Machine(monkeypatch, lambda work: 500_000.0)
    assert _limits.op_cost(CPU) == pytest.approx(2e-6)


def test_measuring_draws_no_random_numbers(one_thread):
    before = torch.get_rng_state()
    _limits.matmul_rate(CPU, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


# -- comparing -------------------------------------------------------------------------------------


@pytest.fixture
def known(monkeypatch):
    """A machine of 10 GB/s, 100 GFLOP/s in float32 and 1 in bfloat16."""
    rates = {torch.float32: 100e9, torch.bfloat16: 1e9, torch.float64: 50e9}
    monkeypatch.setattr(_limits, "copy_bandwidth", lambda device: ladder((MIB, 10e9)))
    monkeypatch.setattr(
        _limits,
        "matmul_rate",
        lambda device, dtype: limit(rates[dtype]) if dtype in rates else None,
    )


@pytest.mark.usefixtures("known")
def test_least_time_of_an_op():
    assert limit_time(10**9, 10**9, CPU, torch.float32) == LimitTime(0.1, 0.01, 0.1)
    assert limit_time(10**11, 10**9, CPU, torch.float32) == LimitTime(0.1, 1.0, 1.0)
    assert limit_time(10**9, 0, CPU, torch.float64) == LimitTime(0.0, 0.02, 0.02)
    assert limit_time(0, 10**9, CPU, None) == LimitTime(0.1, 0.0, 0.1)


@pytest.mark.usefixtures("known")
def test_sixteen_bits_are_no_slower_than_float32():
    # In which their elementwise ops compute, whatever the path for their matrix products is.
    assert limit_time(10**9, 0, CPU, torch.bfloat16) == LimitTime(0.0, 0.01, 0.01)


@pytest.mark.usefixtures("known")
def test_what_is_unknown_stays_unknown():
    assert limit_time(None, 10**9, CPU, torch.float32) is None
    assert limit_time(10, 10**9, CPU, torch.float8_e4m3fn) is None
    assert limit_time(10, 10**9, CPU, None) is None
    assert limit_time(10, 10**9, torch.device("meta"), torch.float32) is None


def test_times_of_ops_add_up():
    memory_bound, compute_bound = LimitTime(2.0, 1.0, 2.0), LimitTime(1.0, 3.0, 3.0)
    assert memory_bound + compute_bound == LimitTime(3.0, 4.0, 5.0)
    assert sum([memory_bound, compute_bound], LimitTime()) == LimitTime(3.0, 4.0, 5.0)


def test_the_bound_of_a_row():
    memory, compute = LimitTime(2.0, 1.0, 2.0), LimitTime(1.0, 3.0, 3.0)
    assert classify(memory, seconds=8.0, outside=0.0) == (25.0, "memory")
    assert classify(compute, seconds=6.0, outside=3.0) == (50.0, "compute")  # half is not more
    assert classify(memory, seconds=8.0, outside=4.1) == (25.0, "overhead")
    assert classify(LimitTime(), seconds=1.0, outside=0.0) == (None, "overhead")
    assert classify(memory, seconds=0.0, outside=0.0) == (None, None)


def test_a_limit_that_is_beaten_is_no_limit():
    two = LimitTime(2.0, 0.0, 2.0)
    assert classify(two, seconds=2 / 1.04, outside=0.0) == (pytest.approx(104), "memory")
    assert classify(two, seconds=2 / 1.06, outside=0.0) == (None, "memory")
    assert percent_of_limit(two, 2 / 1.06) == pytest.approx(106)


# -- the real machine ------------------------------------------------------------------------------

NODES, EDGES, WIDTH = 10_000, 200_000, 32
MOVING = ("aten::index_select", "aten::scatter_add_", "aten::scatter_reduce_")


@pytest.fixture(scope="module")
def graph():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.rand(NODES, WIDTH, generator=generator),
        torch.randint(NODES, (2, EDGES), generator=generator),
    )


@pytest.mark.parametrize("model", [GCN, GAT, GIN, GraphSAGE])
def test_gathers_and_scatters_keep_below_the_limit(graph, one_thread, model):
    net = model(WIDTH, WIDTH, 1)
    with torch.no_grad():
        net(*graph)
        with profile(activities=[ProfilerActivity.CPU]) as session:
            net(*graph)
    seconds = {event.key: event.cpu_time_total * 1e-6 for event in session.key_averages()}
    counts = []
    counting_pass(net, graph, {}, counts.append)

    def percents():
        least = defaultdict(LimitTime)
        for op in counts:
            if op.name in MOVING:
                time = limit_time(op.flops, op.nbytes, op.device, op.dtype)
                assert time is not None
                least[op.name] += time
        return {name: percent_of_limit(time, seconds[name]) for name, time in least.items()}

    if max(percents().values()) > _limits.CREDIBLE_PERCENT:
        _limits.measure_again()
    found = percents()
    assert {"aten::index_select", "aten::scatter_add_"} <= found.keys()
    assert all(0 < percent <= 105 for percent in found.values()), found
