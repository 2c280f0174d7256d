"""Records of the torch.compile study made by hand: every figure follows from the arguments."""

from __future__ import annotations

import hashlib
import json
import math

ENVIRONMENT = {
    "torch": "2.13.0+cpu",
    "torch_geometric": "2.8.1",
    "dgl": "2.1.0",
    "gnnprof": "0.1",
    "python": "3.11.7",
    "device_name": "Test CPU",
    "cpu": "Test CPU",
    "platform": "Linux",
    "device": "cpu",
    "cuda": None,
    "threads": 1,
    "omp_wait_policy": "PASSIVE",
    "hostname": "here",
    "load_average": [0.5, 0.4, 0.3],
}
TASKS = {"collab": "link", "citation2": "link", "biokg": "kg", "UMLS": "kg", "mag": "hetero"}
ROUNDS = 10


def case(**changes):
    """A case as the sweep writes it."""
    return {
        "framework": "pyg",
        "model": "GCN",
        "dataset": "cora-like",
        "scale": 1.0,
        "mode": "default",
        "dynamic": None,
        "variant": "fixes",
        "sampled": False,
        "amp": False,
        "layers": 3,
        "hidden": 256,
        "heads": 8,
        "dropout": 0.5,
        "threads": 1,
        "rounds": ROUNDS,
        "epochs": 0,
        "seed": 0,
        "replicate": 0,
        "device": "cpu",
        "batch_size": 1024,
        "num_neighbors": [15, 10, 5],
        "sizes": 0,
    } | changes


def samples(middle, spread=0.02):
    """Ten samples, evenly around a middle which is their median."""
    return [middle * (1 + spread * (i - (ROUNDS - 1) / 2) / ROUNDS) for i in range(ROUNDS)]


def row(
    mode="default",
    speedup=1.5,
    *,
    eager=0.010,
    width=0.05,
    verdict=None,
    effective=None,
    status="ok",
    cold=10.0,
    warm=2.0,
    breaks=0,
    peak=1000 * 1024,
    eager_peak=2000 * 1024,
    phase="forward",
    **changes,
):
    """A `CompileRow.to_dict`: the interval is the speedup times and over `1 + width`."""
    if mode == "eager":
        cold, warm, verdict = None, None, verdict or "undecided"
    time = eager / speedup
    low, high = speedup / (1 + width), speedup * (1 + width)
    verdict = verdict or ("faster" if low > 1 else "slower" if high < 1 else "undecided")
    gain = eager - time
    ok = status == "ok"
    return {
        "mode": mode,
        "effective_mode": effective or mode,
        "dynamic": None,
        "fullgraph": False,
        "status": status,
        "reason": None,
        "phase": phase,
        "samples": samples(time) if ok else [],
        "eager_samples": samples(eager) if ok else [],
        "median": time if ok else None,
        "median_low": time * 0.99 if ok else None,
        "median_high": time * 1.01 if ok else None,
        "speedup": speedup if ok else None,
        "speedup_low": low if ok else None,
        "speedup_high": high if ok else None,
        "verdict": verdict if ok else None,
        "compile_seconds_cold": cold,
        "compile_seconds_warm": warm,
        "first_call_seconds": cold and cold + 1,
        "break_even_calls": math.ceil(cold / gain) if ok and cold and verdict == "faster" else None,
        "graphs": breaks + 1,
        "graph_breaks": breaks,
        "breaks": [
            {"reason": "aten.nonzero", "location": f"loop.py:{650 + i}", "count": 1}
            for i in range(breaks)
        ],
        "recompiles": 0,
        "recompile_reasons": [],
        "cudagraph_skips": 0,
        "kernels": 7,
        "kernel_launches": 9,
        "peak_memory": peak,
        "eager_peak_memory": eager_peak,
        "max_abs_error": 2e-7,
        "max_rel_error": 1e-6,
        "max_abs_error_grad": 3e-6,
        "max_rel_error_grad": 1e-5,
        "compared_in": "eval",
        "sizes": [],
        "bimodal": False,
    } | changes


def record(
    speedup=1.5,
    *,
    training=1.2,
    outcome="ok",
    environment=None,
    inference_row=None,
    training_row=None,
    quality=None,
    noise=0.03,
    record_changes=None,
    row_changes=None,
    **case_changes,
):
    """A whole record of one case.

    Args:
        speedup: Of inference; None leaves the phase out.
        training: Of training; None leaves the phase out.
        outcome: How the case ended; other than 'ok' it has no phases unless rows are given.
        environment: Entries that differ.
        inference_row: What stands under `inference`, instead of a row of the speedup.
        training_row: What stands under `training`.
        quality: (metric, value, epochs).
        noise: Half width of the A/A interval, in log ratio.
        record_changes: Entries of the record that differ.
        row_changes: Arguments of `row` for both phases.
        case_changes: Entries of the case that differ.
    """
    of_case = case(**case_changes)
    mode, more = of_case["mode"], row_changes or {}
    if outcome == "ok":
        if inference_row is None and speedup is not None:
            inference_row = row(mode, speedup, **more)
        if training_row is None and training is not None:
            training_row = row(mode, training, **{"eager": 0.040, "phase": "step"} | more)
    entries = ENVIRONMENT | {"threads": of_case["threads"]} | (environment or {})
    text = json.dumps([of_case, environment], sort_keys=True)
    family = of_case["dataset"].removesuffix("-like").removeprefix("ogbl-").removeprefix("ogbn-")
    data = {
        "name": of_case["dataset"],
        "is_stand_in": of_case["dataset"].endswith("-like"),
        "fingerprint": {"nodes": 100},
        "task": TASKS.get(family, "node"),
    }
    throughput = {"unit": "nodes/s", "inference": 1e6 * (speedup or 1), "training": 2e5}
    return {
        "schema": "gnnprof.compile-case/1",
        "key": hashlib.sha256(text.encode()).hexdigest()[:16],
        "case": of_case,
        "outcome": outcome,
        "reason": None if outcome == "ok" else f"{outcome} it was",
        "stderr": "",
        "exit_code": 0,
        "started": "2026-01-01T00:00:00+00:00",
        "wall_seconds": 30.0,
        "measured_seconds": 24.0,
        "harness_seconds": 6.0,
        "harness_allowed": 14.0,
        "environment": entries,
        "data": data if outcome == "ok" else None,
        "inference": inference_row,
        "training": training_row,
        "noise_floor": {"half_width": noise} if inference_row and noise is not None else None,
        "noise_floor_training": None,
        "warm": None,
        "quality": quality and dict(zip(("metric", "value", "epochs"), quality, strict=True)),
        "throughput": throughput if outcome == "ok" else None,
        "loader": None,
        "cpu_utilisation": 0.97,
    } | (record_changes or {})


def write(folder, records):
    """Write records as the sweep does, and return the folder of the sweep."""
    place = folder / "records"
    place.mkdir(parents=True, exist_ok=True)
    for entry in records:
        (place / f"{entry['key']}.json").write_text(json.dumps(entry), encoding="utf-8")
    return folder


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def small_study():
    """A study as a CPU machine would leave it: PyG and DGL, three sizes, links, one failure.

    On a CPU only 'default' is a mode of its own: the others ran as it.
    """
    records = []
    speedups = {"cora-like": 1.1, "pubmed-like": 1.4, "arxiv-like": 2.0, "collab-like": 1.3}
    for framework, factor in (("pyg", 1.0), ("dgl", 0.6)):
        for model, extra in (("GCN", 1.0), ("GraphSAGE", 1.1)):
            for dataset, speedup in speedups.items():
                who = {"framework": framework, "model": model, "dataset": dataset}
                records.append(record(1.0, training=1.01, mode="eager", **who))
                for mode in MODES:
                    effective = {"effective": "default"} if mode != "default" else {}
                    gain = speedup * factor * extra
                    records.append(record(gain, mode=mode, row_changes=effective, **who))
    records.append(record(outcome="oom", model="GAT", dataset="arxiv-like"))
    return records
