"""The study's sheets, and the workbook that holds them: known figures from records made by hand."""

from __future__ import annotations

import math

import pytest
from benchmark.compile.analysis.sheets import SHEETS, sheets
from benchmark.compile.analysis.workbook import write_workbook
from tests import studies
from tests.compile_records import record, samples, small_study
from tests.studies import cells_of, dicts, sheet_of, study_of

pytest.importorskip("xlsxwriter")
openpyxl = pytest.importorskip("openpyxl")

analyzed = studies.analyzed

# --- sheets ----------------------------------------------------------------------------------


def test_there_are_24_sheets():
    assert [builder.name for builder in SHEETS] == [
        "Research Questions",
        "Eager",
        "Default",
        "Reduce Overhead",
        "Max Autotune",
        "Max Autotune No CudaGraphs",
        "Mode Summary (auto)",
        "Mode Summary (true)",
        "Mode Summary (false)",
        "Mode Summary (no-fixes)",
        "DGL Summary",
        "PyG Summary",
        "DGL vs PyG (eager)",
        "DGL vs PyG (all modes)",
        "DGL eager vs PyG compiled",
        "Compile Modes vs Eager",
        "Memory 1 (by model)",
        "Memory 2 (by mode)",
        "Memory 3 (inference)",
        "Memory 4 (training)",
        "Memory 5 (eager vs compiled)",
        "Auto vs No-Fixes",
        "GIN 300 vs 20 epochs",
        "Error Summary",
    ]
    assert len(SHEETS) == 24


def test_the_summary_of_a_mode_counts_every_row():
    records = [record(2.0, dataset="a"), record(0.5, dataset="b"), record(1.0, dataset="c")]
    records += [record(dataset="d", outcome="oom")]
    records += [record(None, dataset="e")]
    records += [record(9.0, mode="max-autotune", row_changes={"effective": "default"})]
    (table,) = sheet_of(records, "Mode Summary (auto)").tables
    default, tuned = (r for r in dicts(table) if r["Phase"].value == "inference")
    counts = ("Cases", "Faster", "Slower", "Undecided", "Not exercised", "Failed", "Not measured")
    assert [default[name].value for name in counts] == [5, 1, 1, 1, 0, 1, 1]
    assert default["Mean speedup"].value == pytest.approx(1.0)
    assert default["Mean speedup"].tone is None
    assert default["Common cases"].value == 3
    assert default["Break-even, median where it pays [calls]"].value == 2000
    assert [tuned[name].value for name in counts] == [1, 0, 0, 0, 1, 0, 0]
    assert tuned["Mean speedup"] == ("not measured", "void")


def test_frameworks_are_compared_between_processes():
    # PyG's eager call takes 10 and 11 ms in its two processes, DGL's 20 and 20.
    records = [
        record(1.0, mode="eager"),
        record(2.0, row_changes={"eager": 0.011}),
        record(1.0, mode="eager", framework="dgl", row_changes={"eager": 0.020}),
        record(1.0, framework="dgl", row_changes={"eager": 0.020}),
    ]
    means, table = sheet_of(records, "DGL vs PyG (eager)").tables
    (found,) = [r for r in dicts(table) if r["Phase"].value == "inference"]
    assert found["PyG eager [ms]"].value == pytest.approx(math.sqrt(110))
    assert found["PyG / DGL time"].value == pytest.approx(math.sqrt(110) / 20)
    assert found["PyG / DGL time"].tone == "worse"  # DGL is slower
    # The second smallest of the 10 ms samples over the second largest of the 20 ms ones.
    assert found["Low"].value == pytest.approx(
        sorted(samples(0.010))[1] / sorted(samples(0.02))[-2]
    )
    assert found["High"].value == pytest.approx(
        sorted(samples(0.011))[-2] / sorted(samples(0.02))[1]
    )
    assert (found["PyG processes"].value, found["DGL processes"].value) == (2, 2)
    (mean,) = [r for r in dicts(means) if r["Phase"].value == "inference"]
    assert mean["Mean of PyG / DGL time"].value == found["PyG / DGL time"].value
    _, crossed = sheet_of(records, "DGL eager vs PyG compiled").tables
    (found,) = [r for r in dicts(crossed) if r["Phase"].value == "inference"]
    assert found["PyG / DGL time"].value == pytest.approx(5.5 / 20)
    _, modes = sheet_of(records, "DGL vs PyG (all modes)").tables
    ratios = {r["Mode"].value: r["PyG / DGL time"].value for r in dicts(modes)[::2]}
    assert ratios == {"eager": pytest.approx(math.sqrt(110) / 20), "default": pytest.approx(0.275)}


def test_one_process_of_each_framework_decides_nothing():
    records = [record(1.0, mode="eager"), record(9.0, mode="eager", framework="dgl")]
    records[1]["inference"]["eager_samples"] = samples(0.5)
    _, table = sheet_of(records, "DGL vs PyG (eager)").tables
    found = dicts(table)[0]
    assert found["PyG / DGL time"] == (pytest.approx(0.02), None)


def test_modes_stand_side_by_side():
    records = [record(1.5), record(2.5, mode="max-autotune", row_changes={"effective": "default"})]
    records += [record(mode="reduce-overhead", outcome="oom")]
    (table,) = sheet_of(records, "Compile Modes vs Eager").tables
    found = dicts(table)[0]
    assert found["Speedup, default"] == (1.5, "better")
    assert found["Speedup, reduce-overhead"] == ("oom", "failed")
    assert found["Speedup, max-autotune"] == ("not exercised on CPU (ran as default)", "void")
    assert found["Low, max-autotune"].value is None
    assert found["Speedup, max-autotune-no-cudagraphs"] == ("not measured", "void")


def test_memory_is_compared_by_model_by_mode_and_by_case():
    records = [
        record(model=m, dataset=d, row_changes={"peak": p * 2**20, "eager_peak": 8 * 2**20})
        for m, d, p in (("GCN", "a", 4), ("GCN", "b", 4), ("GAT", "a", 16), ("GAT", "b", 16))
    ]
    records += [record(1.0, mode="eager", dataset="a", row_changes={"peak": 9 * 2**20})]
    (by_model,) = sheet_of(records, "Memory 1 (by model)").tables
    means = {r["Model and mode"].value: r["Mean of compiled / eager peak"] for r in dicts(by_model)}
    assert means["GCN, default"] == (pytest.approx(0.5), "better")
    assert means["GAT, default"] == (pytest.approx(2.0), "worse")
    (by_mode,) = sheet_of(records, "Memory 2 (by mode)").tables
    mean = dicts(by_mode)[0]
    assert mean["Mean of compiled / eager peak"] == (pytest.approx(1.0), None)
    assert (mean["Cases with both peaks"].value, mean["Common cases"].value) == (4, 4)
    for name, phase in (("Memory 3 (inference)", "inference"), ("Memory 4 (training)", "training")):
        (table,) = sheet_of(records, name).tables
        assert {r["Phase"].value for r in dicts(table)} == {phase}
        assert dicts(table)[0]["Peak memory [MiB]"].value == 4.0
        assert dicts(table)[0]["Compiled / eager peak"] == (0.5, None)
    (wide,) = sheet_of(records, "Memory 5 (eager vs compiled)").tables
    assert dicts(wide)[0]["eager [MiB]"].value == 9.0
    assert dicts(wide)[0]["default [MiB]"].value == 4.0


def test_variants_stand_side_by_side():
    records = [record(2.0), record(1.25, variant="no-fixes", row_changes={"breaks": 4})]
    records += [record(1.6, variant="fullgraph")]
    (table,) = sheet_of(records, "Auto vs No-Fixes").tables
    found = dicts(table)[0]
    speedups = [found[f"Speedup, {name}"].value for name in ("fixes", "no-fixes", "fullgraph")]
    assert speedups == [2.0, 1.25, 1.6]
    assert (found["Graph breaks, fixes"].value, found["Graph breaks, no-fixes"].value) == (0, 4)
    assert found["Where it breaks, no-fixes"].value.startswith("aten.nonzero (loop.py:650); aten")
    # 10 ms / 1.25 over 10 ms / 2, from one process each.
    assert found["No-fixes / fixes compiled time"] == (pytest.approx(1.6), None)


def test_gin_after_few_and_many_epochs():
    records = [
        record(model="GIN", dataset="arxiv-like", mode="eager", epochs=e, seed=s, quality=q)
        for e, s, q in (
            (20, 0, ("accuracy", 0.50, 20)),
            (20, 1, ("accuracy", 0.54, 20)),
            (300, 0, ("accuracy", 0.62, 300)),
            (5, 0, ("accuracy", 0.30, 5)),
        )
    ]
    records += [record(model="GCN", quality=("accuracy", 0.9, 20))]
    records += [record(model="GIN", quality=("accuracy", 0.9, 20))]
    (table,) = sheet_of(records, "GIN 300 vs 20 epochs").tables
    short, both = sorted(dicts(table), key=lambda r: r["Mode"].value)
    assert both["20 epochs, mean [%]"].value == pytest.approx(52)
    assert both["20 epochs, lowest [%]"].value == pytest.approx(50)
    assert (both["20 epochs, runs"].value, both["300 epochs, runs"].value) == (2, 1)
    assert both["Gain from 20 to 300 epochs [points]"].value == pytest.approx(10)
    assert both["Other epochs run"].value == "5"
    assert short["300 epochs, mean [%]"] == ("not measured", "void")
    assert short["Gain from 20 to 300 epochs [points]"] == ("not measured", "void")


def test_errors_are_listed_whole():
    slow = {"harness_seconds": 20.0, "harness_allowed": 14.0}
    records = [
        record(),
        record(model="GAT", outcome="oom", record_changes={"stderr": "x" * 2000 + "last words"}),
        record(model="GIN", training_row={"error": "ValueError: no"}, record_changes=slow),
    ]
    counts, failed, phases, skipped, late = sheet_of(records, "Error Summary").tables
    assert {(r["Model"].value, r["ok"].value, r["oom"].value) for r in dicts(counts)} == {
        ("GCN", 1, 0),
        ("GAT", 0, 1),
        ("GIN", 1, 0),
    }
    (crash,) = dicts(failed)
    assert (crash["Outcome"], crash["Reason"].value) == (("oom", "failed"), "oom it was")
    assert crash["End of stderr"].value.endswith("last words")
    assert ("error", "ValueError: no") in {
        (r["Verdict"].value, r["Reason"].value) for r in dicts(phases)
    }
    assert (skipped.rows, skipped.empty) == ((), "none")
    assert [(r["Model"].value, r["Harness [s]"].value) for r in dicts(late)] == [("GIN", 20.0)]


# --- the workbook ----------------------------------------------------------------------------


def fill(cell):
    return cell.fill.fgColor.rgb[2:] if cell.fill.fill_type == "solid" else None


def test_the_workbook_has_24_sheets_with_headings_and_the_legend(analyzed):
    book = openpyxl.load_workbook(analyzed[1] / "study.xlsx")
    assert book.sheetnames == [builder.name for builder in SHEETS]
    for sheet in book:
        texts = [cell.value for cells in sheet.iter_rows(max_row=8) for cell in cells]
        assert "faster, or less memory: the 95 % interval excludes 1" in texts
        assert "no colour: undecided" in texts
    assert "variant fixes, dynamic=auto" in book["Research Questions"]["A2"].value
    assert "Generated stand-ins" in book["Research Questions"]["A4"].value


def test_the_workbook_equals_the_records(analyzed):
    records, out = analyzed
    cells = cells_of(openpyxl.load_workbook(out / "study.xlsx")["Default"], "Framework")
    raw = {
        ({"pyg": "PyG", "dgl": "DGL"}[r["case"]["framework"]], r["case"]["model"],
         r["case"]["dataset"], phase): r[phase]
        for r in records
        for phase in ("inference", "training")
        if r["case"]["mode"] == "default" and r["outcome"] == "ok"
    }  # fmt: skip
    checked = 0
    for found in cells:
        name = found["Data"].value.removesuffix(" (stand-in)")
        key = (found["Framework"].value, found["Model"].value, name, found["Phase"].value)
        if key not in raw:
            assert found["Verdict"].value == "oom"
            continue
        expected, checked = raw[key], checked + 1
        for heading, field, factor in (
            ("Time [ms]", "median", 1e3),
            ("Time low [ms]", "median_low", 1e3),
            ("Time high [ms]", "median_high", 1e3),
            ("Speedup", "speedup", 1),
            ("Speedup low", "speedup_low", 1),
            ("Speedup high", "speedup_high", 1),
            ("Cold compile [s]", "compile_seconds_cold", 1),
            ("Warm compile [s]", "compile_seconds_warm", 1),
            ("Peak memory [MiB]", "peak_memory", 2**-20),
            ("Eager peak memory [MiB]", "eager_peak_memory", 2**-20),
            ("Max abs error of outputs", "max_abs_error", 1),
        ):
            assert found[heading].value == pytest.approx(expected[field] * factor, rel=1e-12)
        for heading, field in (
            ("Graphs", "graphs"),
            ("Graph breaks", "graph_breaks"),
            ("Distinct kernels", "kernels"),
            ("Kernel launches per call", "kernel_launches"),
        ):
            assert found[heading].value == expected[field]
        assert found["Verdict"].value == expected["verdict"]
        assert found["Break-even, cold [calls]"].value == (expected["break_even_calls"] or "n/a")
        colours = {"faster": "C6E7CE", "slower": "F7CFC9", "undecided": None}
        assert fill(found["Speedup"]) == colours[expected["verdict"]]
    assert checked == len(raw) == 32


def test_the_means_equal_those_of_the_records(analyzed):
    records, out = analyzed
    cells = cells_of(openpyxl.load_workbook(out / "study.xlsx")["Mode Summary (auto)"], "Mode")
    for framework, name in (("pyg", "PyG"), ("dgl", "DGL")):
        for phase in ("inference", "training"):
            gains = [
                r[phase]["speedup"]
                for r in records
                if r["outcome"] == "ok"
                and (r["case"]["mode"], r["case"]["framework"]) == ("default", framework)
            ]
            (found,) = [
                c
                for c in cells
                if (c["Mode"].value, c["Framework"].value, c["Phase"].value)
                == ("default", name, phase)
            ]
            product = math.prod(gains) ** (1 / len(gains))
            assert found["Mean speedup"].value == pytest.approx(product)
            assert found["Common cases"].value == len(gains) == 8


def test_no_mode_that_did_not_run_has_a_figure(analyzed):
    book = openpyxl.load_workbook(analyzed[1] / "study.xlsx")
    for name in ("Reduce Overhead", "Max Autotune", "Max Autotune No CudaGraphs"):
        for found in cells_of(book[name], "Framework"):
            assert found["Speedup"].value == "not exercised on CPU (ran as default)"
            assert fill(found["Speedup"]) == "E7E9EC"
            for heading in ("Time [ms]", "Cold compile [s]", "Throughput", "Peak memory [MiB]"):
                assert found[heading].value == "n/a"


def test_text_never_becomes_a_formula_a_link_or_a_number(tmp_path):
    names = ["=1+1", "+1", "-1", "@x", "https://x.y", "12", "a\x00b\x0bc", "\ud800", "ab" * 40_000]
    records = [record(model=name) for name in names]
    write_workbook(tmp_path / "x.xlsx", sheets(study_of(records)))
    book = openpyxl.load_workbook(tmp_path / "x.xlsx")
    cells = [cell for sheet in book for row_ in sheet.iter_rows() for cell in row_]
    assert not [cell for cell in cells if cell.data_type == "f" or cell.hyperlink]
    found = {c["Model"].value for c in cells_of(book["Default"], "Framework")}
    assert {"=1+1", "+1", "-1", "@x", "https://x.y", "12", "?"} < found
    assert max(map(len, found)) == 32_767


def test_the_workbook_of_the_same_records_is_the_same(tmp_path):
    records = small_study()[:20]
    for name, some_records in (("a.xlsx", records), ("b.xlsx", records[::-1])):
        write_workbook(tmp_path / name, sheets(study_of(some_records)))
    first, second = (
        [[c.value for c in cells] for s in openpyxl.load_workbook(tmp_path / n) for cells in s]
        for n in ("a.xlsx", "b.xlsx")
    )
    assert first == second


def test_the_workbook_is_never_written_over(tmp_path):
    made = sheets(study_of([record()]))
    (tmp_path / "x.xlsx").write_text("mine")
    with pytest.raises(FileExistsError):
        write_workbook(tmp_path / "x.xlsx", made)
    assert (tmp_path / "x.xlsx").read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["x.xlsx"]
