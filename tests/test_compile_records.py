"""Hand-made rows of the torch.compile study: round trips, tables, recommendations."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from gnnprof._compile_records import (
    CompileRow,
    GraphBreak,
    NoiseFloor,
    PhaseTiming,
    Recompile,
    SizeTiming,
)
from gnnprof._compile_report import CompileReport
from gnnprof._compile_tables import latex_escaped, noise_text, sizes_table


def timing(speedup: float, verdict: str, eager: float = 0.2) -> PhaseTiming:
    compiled = eager / speedup
    return PhaseTiming(
        samples=(compiled,) * 6,
        eager_samples=(eager,) * 6,
        median=compiled,
        median_low=compiled,
        median_high=compiled,
        eager_median=eager,
        speedup=speedup,
        speedup_low=speedup * 0.95,
        speedup_high=speedup * 1.05,
        verdict=verdict,
    )


def row(mode: str = "default", speedup: float = 2.0, verdict: str = "faster") -> CompileRow:
    return CompileRow(
        mode=mode,
        effective_mode=mode,
        dynamic=None,
        fullgraph=False,
        status="ok",
        reason=None,
        phase="step",
        forward=timing(speedup, verdict, 0.05),
        backward=timing(speedup, verdict, 0.15),
        step=timing(speedup, verdict),
        compile_seconds_cold=12.5,
        compile_seconds_warm=1.5,
        first_call_seconds=13.0,
        break_even_calls=125 if verdict == "faster" else None,
        graphs=5,
        graph_breaks=4,
        breaks=(GraphBreak("Dynamic shape operator: aten.nonzero", "net.py:7", 4),),
        recompiles=1,
        recompile_reasons=(Recompile("size mismatch", "forward (net.py:5)", 1),),
        cudagraph_skips=0,
        kernels=7,
        kernel_launches=9,
        peak_memory=2048,
        eager_peak_memory=4096,
        max_abs_error=1e-7,
        max_rel_error=1e-6,
        max_abs_error_grad=2e-6,
        max_rel_error_grad=3e-6,
        compared_in="as timed",
        sizes=(SizeTiming("big", 1.25, 1, True, timing(1.1, "undecided")),),
    )


def eager_row() -> CompileRow:
    return CompileRow(
        "eager", "eager", None, False, "ok", None, "step", step=timing(1.0, "undecided")
    )


def failed(status: str = "wrong_result", mode: str = "max-autotune") -> CompileRow:
    return CompileRow(mode, None, None, False, status, "outputs[0] differs by 1", "step")


FLOOR = NoiseFloor((0.2,) * 6, (0.2,) * 6, ratio=1.001, low=0.99, high=1.03, half_width=0.03)


def report(*rows: CompileRow) -> CompileReport:
    return CompileReport((eager_row(), *rows), FLOOR, {"torch": "2.13"}, {"rounds": 6})


def test_a_row_speaks_of_its_main_phase():
    assert row().samples == (0.1,) * 6
    assert (row().median, row().speedup, row().verdict) == (0.1, 2.0, "faster")
    forward = replace(row(), phase="forward")
    assert forward.median == pytest.approx(0.025)
    assert failed().samples == ()
    assert failed().speedup is failed().verdict is failed().median is None


@pytest.mark.parametrize("one", [row(), failed(), eager_row()], ids=lambda one: one.mode)
def test_a_row_survives_json(one):
    entry = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    assert entry == one.to_dict()
    assert CompileRow.from_dict(entry) == one
    assert {"samples", "speedup_low", "verdict", "compile_seconds_cold"} <= set(entry)


def test_a_report_survives_its_file(tmp_path):
    written = report(row(), failed())
    path = written.to_json(tmp_path / "report.json")
    entry = json.loads(path.read_text(encoding="utf-8"))
    assert entry["schema"] == "gnnprof.compile-report/1"
    assert entry["recommendation"] == written.recommendation
    assert CompileReport.from_dict(entry) == written
    with pytest.raises(FileExistsError, match="overwrite=True"):
        written.to_json(path)
    with pytest.raises(ValueError, match="other/1"):
        CompileReport.from_dict({**entry, "schema": "other/1"})


def test_pandas_has_a_line_for_each_row():
    frame = report(row(), failed()).to_pandas()
    assert list(frame["mode"]) == ["eager", "default", "max-autotune"]
    assert frame["speedup"][1] == 2.0
    assert frame["graph_breaks"][1] == 4


def test_without_pandas_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"gnnprof\[report\]"):
        report(row()).to_pandas()


def cells(text: str, line: str) -> list[str]:
    """The cells of the first line with that label."""
    found = next(one for one in text.splitlines() if one.startswith(f"| {line}"))
    return [cell.strip() for cell in found.strip("|").split("|")]


def figures(text: str, label: str) -> dict[str, str]:
    """What the tables say of a row, by heading."""
    lines = [one for one in text.splitlines() if one.startswith("| ")]
    found: dict[str, str] = {}
    for line in lines:
        parts = [cell.strip() for cell in line.strip("|").split("|")]
        if parts[0] == "Mode":
            headings = parts
        elif parts[0] == label:
            found |= dict(zip(headings, parts, strict=True))
    return found


def test_the_tables_have_units_and_say_what_was_not_measured():
    text = str(report(replace(row(), sizes=()), failed()))
    default = figures(text, "default")
    assert default["Step [ms]"] == "100"
    assert default["Forward [ms]"] == "25"
    assert default["Speedup [95 %]"] == "2.00 [1.90, 2.10]"
    assert default["Compile [s]"] == "12.50"
    assert default["Break-even [calls]"] == "125"
    assert default["Peak memory"] == "2.00 KiB"
    assert default["Max grad error"] == "2.0e-06"
    assert (default["Graphs"], default["Breaks"], default["Recompiles"]) == ("5", "4", "1")
    wrong = figures(text, "max-autotune [1]")
    assert wrong["Status"] == "wrong_result"
    assert wrong["Speedup [95 %]"] == wrong["Step [ms]"] == wrong["Graphs"] == "n/a"
    assert figures(text, "eager")["Graphs"] == ""
    assert "[1] outputs[0] differs by 1" in text
    assert "graph break at net.py:7 (4x): Dynamic shape operator: aten.nonzero" in text
    assert max(len(line) for line in text.splitlines() if line[0] not in "|+") <= 100


def test_columns_without_figures_are_left_out():
    text = str(report(replace(row(), forward=None, backward=None, kernels=None, sizes=())))
    for heading in ("Forward", "Backward", "Kernels", "Size"):
        assert heading not in text


def test_other_sizes_stand_in_a_table_of_their_own():
    assert cells(sizes_table([row()]), "default") == [
        "default",
        "big",
        "181.8",
        "200",
        "1.10 [1.04, 1.16]",
        "1.25",
        "1",
        "eager",
    ]
    unknown = replace(row(), sizes=(SizeTiming("big", 0.0, 0, False, None),))
    assert cells(sizes_table([unknown]), "default")[2:5] == ["n/a"] * 3
    assert sizes_table([failed()]) == ""


def test_only_the_first_recompiles_are_listed():
    reasons = tuple(Recompile(f"guard {n}", "forward", 1) for n in range(5))
    text = str(report(replace(row(), recompile_reasons=reasons, recompiles=5)))
    assert "guard 2" in text
    assert "guard 3" not in text
    assert "recompiled for 2 more reasons" in text


def test_latex_is_escaped():
    assert latex_escaped("a_b & 50% {x}\n~^\\ <$#>") == (
        r"a\_b \& 50\% \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} "
        r"\textless{}\$\#\textgreater{}"
    )
    table = report(row()).to_latex()
    assert table.startswith("\\begin{tabular}{lllrrrrl")
    assert r"Speedup [95 \%]" in table
    lines = [line for line in table.splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in lines}) == 1
    assert len(lines) == 3


def test_the_noise_floor_says_what_is_called():
    assert "more than 3.0% from 1" in noise_text(FLOOR)
    assert "noisy" not in noise_text(FLOOR)
    assert "more than 2.0% from 1" in noise_text(replace(FLOOR, half_width=0.001))
    assert "noisy" in noise_text(replace(FLOOR, half_width=0.2))


def test_the_fastest_mode_is_recommended_with_its_price():
    text = report(row("default", 1.5), row("max-autotune", 2.0)).recommendation
    assert text.startswith("Use torch.compile(mode='max-autotune'): 2.00x [1.90, 2.10]")
    assert "Compiling takes 12.5 s, which 125 steps win back." in text
    assert "Up to 4 graph breaks" in text
    assert "normalize=False" in text


def test_of_modes_that_are_equally_fast_the_cheapest_to_compile_is_recommended():
    dear = replace(row("max-autotune", 2.0), compile_seconds_cold=60.0)
    assert "mode='default'" in report(row("default", 1.96), dear).recommendation


def test_a_recommended_mode_is_quoted_with_its_own_figures():
    # On a CPU the other modes run as the default one: they are more samples of the same, no rivals.
    twin = replace(row("reduce-overhead", 1.6), effective_mode="default", compile_seconds_cold=3.0)
    text = report(row("default", 1.5), twin).recommendation
    assert "Use torch.compile(mode='default'): 1.50x" in text
    assert "Compiling takes 12.5 s" in text


def test_behind_a_recompile_limit_the_mode_that_ran_speaks_for_itself():
    partly = replace(row("default", 1.5), effective_mode="partly eager")
    twin = replace(row("max-autotune", 1.6), effective_mode="default", compile_seconds_cold=3.0)
    text = report(partly, twin).recommendation
    assert "Use torch.compile(mode='default'): 1.50x" in text
    undecided = replace(row("default", 1.1, "undecided"), effective_mode="partly eager")
    assert "Stay eager for now: max-autotune was" in report(undecided, twin).recommendation


def test_the_recommendation_names_the_mode_that_ran():
    same = replace(row("reduce-overhead"), effective_mode="default")
    assert "mode='default'" in report(same).recommendation


def test_modes_that_ran_alike_must_agree():
    alike = replace(row("reduce-overhead", 1.5), effective_mode="default")
    undecided = row("default", 1.1, "undecided")
    text = report(undecided, alike).recommendation
    assert text.startswith(
        "Stay eager for now: reduce-overhead was faster (1.50x), but default ran"
    )
    other = row("max-autotune", 1.4)
    assert "mode='max-autotune'" in report(undecided, alike, other).recommendation
    failed_twin = replace(failed("oom", "default"), effective_mode="default")
    assert "mode='default'" in report(failed_twin, alike).recommendation


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ((row(verdict="undecided", speedup=1.01),), "Stay eager: no difference beyond the noise"),
        ((row(verdict="slower", speedup=0.5),), "slower: default (down to 0.50x)"),
        ((failed(), failed("oom", "default")), "Stay eager: no mode could be measured."),
        ((failed(),), "Not usable (wrong_result): max-autotune."),
        ((), "Only eager was measured"),
    ],
)
def test_otherwise_eager_is_recommended(rows, expected):
    assert expected in report(*rows).recommendation


def test_a_wrong_mode_is_never_recommended_however_fast():
    assert "mode='default'" in report(row("default", 1.2), failed()).recommendation
