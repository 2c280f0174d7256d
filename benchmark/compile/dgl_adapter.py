"""The one place that imports dgl, and what can go wrong when it does.

`import dgl` loads `dgl.graphbolt`, whose C++ library exists only for the torch versions that a
wheel was built for, and which the study does not need: message passing and the classic samplers
live in dgl's own library. An empty stand-in is therefore registered under that name before the
import. Nothing on disk is changed, and `sys.modules`, the environment and the warning filters are
as before if the import fails.

A missing or broken dgl is a reason that a result can state, never an exception on the way there.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

GRAPHBOLT = "dgl.graphbolt"
MISSING = 'dgl is not installed; pip install "gnnprof[dgl]"'


class DGLUnavailable(RuntimeError):
    """Dgl cannot be imported; the text is the reason."""


def dgl_version() -> str | None:
    """Return the installed version, without an import; None if dgl is not installed."""
    try:
        return importlib.metadata.version("dgl")
    except importlib.metadata.PackageNotFoundError:
        return None


def load_dgl() -> Any:
    """Return the module `dgl`.

    Raises:
        DGLUnavailable: If it cannot be imported. The same reason is given at every later call: a
            second attempt in one process would load dgl's C++ library twice.
    """
    module, reason = _import_once()
    if module is None:
        raise DGLUnavailable(reason)
    return module


def dgl_available(device: str | torch.device = "cpu") -> tuple[bool, str | None]:
    """Say whether dgl works here and, if not, why.

    Args:
        device: Where the graphs are to live; most wheels of dgl know the CPU only.
    """
    module, reason = _import_once()
    if module is None:
        return False, reason
    reason = _device_reason(torch.device(device))
    return reason is None, reason


@functools.cache
def _import_once() -> tuple[types.ModuleType | None, str | None]:
    if "dgl" not in sys.modules and dgl_version() is None:
        return None, MISSING
    try:
        with _stand_in(), _pytorch_backend(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module("dgl")
            # Imported by dgl's layers on their first use otherwise, beyond the filters.
            importlib.import_module("dgl.nn.pytorch")
    # A boundary: the module body of a foreign package may raise whatever it likes.
    except Exception as error:  # noqa: BLE001
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        return None, f"import dgl: {type(error).__name__}: {first_line}"
    return module, None


@contextlib.contextmanager
def _stand_in() -> Iterator[None]:
    """Register the empty `dgl.graphbolt`; take back all of dgl's modules if the body fails."""
    if "dgl" in sys.modules:  # the user's own import, made in whatever way worked
        yield
        return
    before = dict(sys.modules)
    graphbolt = types.ModuleType(GRAPHBOLT, "An empty stand-in: see benchmark.compile.dgl_adapter")
    graphbolt.__path__ = []
    sys.modules[GRAPHBOLT] = graphbolt
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - set(before):
            if name == "dgl" or name.startswith("dgl."):
                del sys.modules[name]
        if GRAPHBOLT in before:
            sys.modules[GRAPHBOLT] = before[GRAPHBOLT]
        raise


@contextlib.contextmanager
def _pytorch_backend() -> Iterator[None]:
    """Name the backend while dgl looks for it; it writes a file into the home folder otherwise."""
    before = os.environ.get("DGLBACKEND")
    os.environ["DGLBACKEND"] = "pytorch"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("DGLBACKEND", None)
        else:
            os.environ["DGLBACKEND"] = before


@functools.cache
def _device_reason(device: torch.device) -> str | None:
    """Say why dgl cannot keep a graph on a device, by trying it; None if it can."""
    if device.type == "cpu":
        return None
    dgl = load_dgl()
    ends = torch.zeros(1, dtype=torch.int64)
    try:
        dgl.graph((ends, ends)).to(device)
    # A boundary: dgl's C++ errors come as its own type, torch's as several others.
    except Exception as error:  # noqa: BLE001
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
        return f"dgl {dgl_version()} on {device}: {type(error).__name__}: {first_line}"
    return None
