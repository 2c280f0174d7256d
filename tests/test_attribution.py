"""Hand-built events whose rows can be worked out on paper."""

from __future__ import annotations

import pytest

from gnnprof._attribution import (
    SESSION_MARKER,
    Attribution,
    RowKey,
    Site,
)
from gnnprof._events import Events, HostEvent, MemoryEvent
from gnnprof._rows import rows_of

ROOT = Site(("",), "Net")
CONV = Site(("conv",), "Conv")
MESSAGE = Site(("conv",), "Conv", "message")


def host(*ranges: tuple[str, int, int], thread: int = 1) -> list[HostEvent]:
    """Ranges as (name, start, end)."""
    return [
        HostEvent(thread, start, start - end, order, name, launch=100 * thread + order)
        for order, (name, start, end) in enumerate(ranges)
    ]


def events(*ranges, others=(), memory=(), kernels=None, unlinked=0) -> Events:
    everything = sorted([*host((SESSION_MARKER, 0, 1000), *ranges), *others])
    return Events(everything, sorted(memory), kernels or {}, unlinked)


def rows(events: Events, *sites: Site, layout=None, device=False, memory=False):
    layout = layout or [(path, site) for site in sites for path in site.paths]
    attribution = Attribution(sites)
    attribution.add(events)
    return {
        (row.path, row.phase, row.op): row
        for row in rows_of(attribution, layout, with_device=device, with_memory=memory)
    }


def ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e9)


FORWARD = (
    (ROOT.marker, 100, 600),
    ("aten::relu", 110, 150),
    ("aten::clamp_min", 120, 145),
    (CONV.marker, 200, 500),
    ("aten::linear", 210, 260),
    (MESSAGE.marker, 300, 400),
    ("aten::mul", 310, 390),
)


def test_own_times_and_totals_by_hand():
    table = rows(events(*FORWARD), ROOT, CONV, MESSAGE)
    assert {key: (ns(row.self_cpu_time), ns(row.cpu_time)) for key, row in table.items()} == {
        ("", None, None): (200, 500),
        ("", None, "aten::relu"): (15, 40),
        ("", None, "aten::clamp_min"): (25, 25),
        ("conv", None, None): (200, 300),
        ("conv", None, "aten::linear"): (50, 50),
        ("conv", "message", None): (100, 100),
        ("conv", "message", "aten::mul"): (80, 80),
        (None, "outside", None): (500, 500),
    }
    assert all(row.calls == 1 for row in table.values())
    assert sum(ns(row.self_cpu_time) for row in table.values() if row.op is None) == 1000


def test_rows_come_in_the_order_of_the_tree_with_the_costliest_op_first():
    assert list(rows(events(*FORWARD), ROOT, CONV, MESSAGE)) == [
        ("", None, None),
        ("", None, "aten::clamp_min"),
        ("", None, "aten::relu"),
        ("conv", None, None),
        ("conv", None, "aten::linear"),
        ("conv", "message", None),
        ("conv", "message", "aten::mul"),
        (None, "outside", None),
    ]


def test_recursion_counts_each_call_but_the_time_once():
    table = rows(events((CONV.marker, 100, 500), (CONV.marker, 200, 300)), CONV)
    row = table["conv", None, None]
    assert (row.calls, ns(row.self_cpu_time), ns(row.cpu_time)) == (2, 400, 400)


def test_an_op_inside_an_op_of_the_same_name_counts_the_time_once():
    table = rows(
        events((CONV.marker, 100, 500), ("aten::to", 150, 250), ("aten::to", 160, 200)), CONV
    )
    row = table["conv", None, "aten::to"]
    assert (row.calls, ns(row.self_cpu_time), ns(row.cpu_time)) == (2, 100, 100)


def test_a_module_called_inside_an_op_is_not_the_ops_own_time():
    table = rows(
        events((ROOT.marker, 100, 500), ("my range", 150, 450), (CONV.marker, 200, 300)), ROOT, CONV
    )
    assert ns(table["", None, "my range"].self_cpu_time) == 200
    assert ns(table["", None, None].self_cpu_time) == 300
    assert ns(table["conv", None, None].self_cpu_time) == 100


def test_modules_never_called_are_rows_and_phases_never_entered_are_not():
    table = rows(events((ROOT.marker, 100, 200)), ROOT, CONV, MESSAGE)
    assert table["conv", None, None].calls == 0
    assert ("conv", "message", None) not in table


def test_other_threads_are_attributed_and_add_to_the_whole():
    others = host((CONV.marker, 50, 250), ("aten::mm", 60, 160), ("aten::cat", 300, 330), thread=2)
    recorded = events((ROOT.marker, 100, 600), others=others)
    table = rows(recorded, ROOT, CONV)
    assert ns(table["conv", None, None].self_cpu_time) == 200
    assert ns(table["conv", None, "aten::mm"].self_cpu_time) == 100
    assert ns(table[None, "outside", "aten::cat"].self_cpu_time) == 30
    assert ns(table[None, "outside", None].self_cpu_time) == 500 + 30
    attribution = Attribution([ROOT, CONV])
    attribution.add(recorded)
    assert (attribution.session_ns, attribution.other_threads_ns) == (1000, 230)
    assert sum(ns(row.self_cpu_time) for row in table.values() if row.op is None) == 1230


def test_what_the_profiler_does_around_the_block_is_left_out():
    table = rows(events(("aten::empty", 1100, 1200), (ROOT.marker, 100, 200)), ROOT)
    assert set(table) == {("", None, None), (None, "outside", None)}


def test_kernels_go_to_the_op_that_launched_them_and_to_what_encloses_it():
    recorded = events(*FORWARD, kernels={107: 1000, 105: 50}, unlinked=7)
    table = rows(recorded, ROOT, CONV, MESSAGE, device=True)
    figures = {key: (ns(r.self_device_time), ns(r.device_time)) for key, r in table.items()}
    assert figures["conv", "message", "aten::mul"] == (1000, 1000)
    assert figures["conv", "message", None] == (1000, 1000)
    assert figures["conv", None, "aten::linear"] == (50, 50)
    assert figures["conv", None, None] == (50, 1050)
    assert figures["", None, None] == (0, 1050)
    assert figures[None, "outside", None] == (7, 7)
    assert sum(own for (_, _, op), (own, _) in figures.items() if op is None) == 1057


def test_memory_goes_to_the_innermost_row_and_to_what_encloses_it():
    memory = [
        MemoryEvent(1, 320, 4000, on_device=False),
        MemoryEvent(1, 450, -1000, on_device=False),
        MemoryEvent(1, 330, 64, on_device=True),
        MemoryEvent(1, 900, -3000, on_device=False),
    ]
    table = rows(events(*FORWARD, memory=memory), ROOT, CONV, MESSAGE, device=True, memory=True)
    figures = {key: (r.self_cpu_memory, r.cpu_memory) for key, r in table.items()}
    assert figures["conv", "message", "aten::mul"] == (4000, 4000)
    assert figures["conv", "message", None] == (4000, 4000)
    assert figures["conv", None, None] == (-1000, 3000)
    assert figures["", None, None] == (0, 3000)
    assert figures[None, "outside", None] == (-3000, -3000)
    assert table["conv", "message", None].self_device_memory == 64
    assert table["", None, None].device_memory == 64


def test_what_was_not_asked_for_is_none():
    row = rows(events(*FORWARD), ROOT, CONV, MESSAGE)["", None, None]
    assert row.self_device_time is None
    assert row.device_time is None
    assert row.cpu_memory is None
    assert row.self_device_memory is None


def test_a_module_of_two_names_shows_its_calls_twice_and_its_time_once():
    twice, inner = Site(("a", "b"), "Block"), Site(("a.lin", "b.lin"), "Linear")
    layout = [("", ROOT), ("a", twice), ("a.lin", inner), ("b", twice), ("b.lin", inner)]
    table = rows(
        events((ROOT.marker, 100, 500), (twice.marker, 110, 210), (inner.marker, 120, 180)),
        ROOT,
        twice,
        inner,
        layout=layout,
    )
    assert ns(table["a", None, None].self_cpu_time) == 40
    for name, total in (("b", 100), ("b.lin", 60)):
        row = table[name, None, None]
        assert (row.calls, ns(row.self_cpu_time), ns(row.cpu_time)) == (1, 0, total)
        assert row.shared_with == name.replace("b", "a")
    assert sum(ns(row.self_cpu_time) for row in table.values() if row.op is None) == 1000


def test_a_lost_session_is_an_error_and_not_an_empty_profile():
    with pytest.raises(RuntimeError, match="another torch profiler session was started inside"):
        Attribution([]).add(Events(host(("aten::mm", 0, 10)), [], {}, 0))


def test_tallies_are_keyed_by_path_and_phase():
    attribution = Attribution([ROOT, CONV, MESSAGE])
    attribution.add(events(*FORWARD))
    assert attribution.tallies[RowKey("conv", "message")].ops["aten::mul"].forward.calls == 1
