"""The adapter to dgl: it works where it can, and gives a reason and leaves nothing where not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from benchmark.compile import dgl_adapter
from benchmark.compile.dgl_adapter import dgl_available, load_dgl
from benchmark.compile.registry import (
    unsupported,
)
from benchmark.compile.tasks import Unsupported, WorkloadSettings, build_workload
from tests import compile_workloads
from tests.compile_workloads import (
    needs_dgl,
)

one_thread_and_own_random_state = compile_workloads.one_thread_and_own_random_state
pytestmark = pytest.mark.usefixtures("one_thread_and_own_random_state")


ROOT = Path(__file__).resolve().parents[1]


def test_without_dgl_there_is_a_reason(monkeypatch):
    monkeypatch.setattr(dgl_adapter, "_import_once", lambda: (None, dgl_adapter.MISSING))
    assert dgl_available() == (False, 'dgl is not installed; pip install "gnnprof[dgl]"')
    case = {"dataset": "cora-like", "framework": "dgl"}
    assert unsupported(**case, model="GCN") == dgl_adapter.MISSING
    assert unsupported(**{**case, "dataset": "UMLS"}, model="DistMult") is None
    with pytest.raises(Unsupported, match="not installed"):
        build_workload(WorkloadSettings(**case, model="GCN"))


@pytest.fixture
def without_dgl_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has not imported dgl; the modules come back after the test."""
    for name in [name for name in sys.modules if name.split(".")[0] == "dgl"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise FileNotFoundError('no graphbolt library')", "FileNotFoundError: no graphbolt lib"),
        ("from . import part\nraise ImportError('libdgl.so: undefined')", "ImportError: libdgl.so"),
        (
            "raise OSError('libcudart.so: cannot open\\nmore')",
            "OSError: libcudart.so: cannot",
        ),
        ("raise RuntimeError", "RuntimeError: no message"),
        ("import warnings; warnings.warn('old'); import nowhere", "ModuleNotFoundError: No module"),
        ("import os; raise KeyError(os.environ['DGLBACKEND'])", "KeyError: 'pytorch'"),
    ],
)
def test_a_broken_dgl_is_a_reason_and_leaves_nothing(
    tmp_path, monkeypatch, capfd, without_dgl_modules, body, reason
):
    (tmp_path / "dgl").mkdir()
    (tmp_path / "dgl" / "__init__.py").write_text(body + "\n")
    (tmp_path / "dgl" / "part.py").touch()
    (tmp_path / "dgl-0.0.dist-info").mkdir()
    (tmp_path / "dgl-0.0.dist-info" / "METADATA").write_text("Name: dgl\nVersion: 0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DGLBACKEND", "mxnet")
    before = dict(os.environ), list(warnings.filters), set(sys.modules)
    monkeypatch.setattr(dgl_adapter, "_import_once", dgl_adapter._import_once.__wrapped__)
    available, said = dgl_available()
    assert not available
    assert said.startswith(f"import dgl: {reason}")
    assert "\n" not in said
    assert (dict(os.environ), list(warnings.filters), set(sys.modules)) == before
    assert capfd.readouterr() == ("", "")
    with pytest.raises(dgl_adapter.DGLUnavailable, match=re.escape(said)):
        load_dgl()


def test_ctrl_c_during_the_import_is_no_reason(tmp_path, monkeypatch, without_dgl_modules):
    (tmp_path / "dgl").mkdir()
    (tmp_path / "dgl" / "__init__.py").write_text("raise KeyboardInterrupt")
    (tmp_path / "dgl-0.0.dist-info").mkdir()
    (tmp_path / "dgl-0.0.dist-info" / "METADATA").write_text("Name: dgl\nVersion: 0.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        dgl_adapter._import_once.__wrapped__()
    assert "dgl.graphbolt" not in sys.modules


@needs_dgl
@pytest.mark.dgl
def test_importing_dgl_leaves_no_trace_but_its_modules(tmp_path):
    script = """
import os, sys, warnings, logging
import benchmark.compile.registry
assert "dgl" not in sys.modules
before = dict(os.environ), list(warnings.filters)
from benchmark.compile.dgl_adapter import dgl_available, load_dgl, dgl_version
assert dgl_available() == (True, None), dgl_available()
assert load_dgl().__version__ == dgl_version()
assert (dict(os.environ), list(warnings.filters)) == before
assert not vars(sys.modules["dgl.graphbolt"]).get("__file__")
"""
    environment = {name: value for name, value in os.environ.items() if name != "DGLBACKEND"}
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={**environment, "PYTHONPATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []  # DGL writes .dgl/config.json by itself


@needs_dgl
@pytest.mark.dgl
def test_a_device_that_dgl_cannot_use_is_a_reason():
    if torch.cuda.is_available():
        pytest.skip("asks for a device that is not there")
    available, reason = dgl_available("cuda")
    assert not available
    assert reason.startswith("dgl 2")
    assert "on cuda" in reason
