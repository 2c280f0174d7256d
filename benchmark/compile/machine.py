"""What a machine is, which is part of a case's key, and what state it is in, which is not."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from benchmark.compile.case import Case, Identity
from benchmark.cpus import usable_cpus
from gnnprof import __version__, _device

_CPU_INFO = Path("/proc/cpuinfo")
_FREQUENCIES = "devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq"  # kHz
_TEMPERATURES = "class/thermal/thermal_zone*/temp"  # thousandths of a degree
_GPU_FIELDS = ("clocks.sm", "power.draw", "temperature.gpu")  # MHz, W, degrees
_BUSY = 0.5

_NAME_IN_CHILD = """
import json, sys
from benchmark.reporting import pick_device
from gnnprof._device import device_name
print(json.dumps(device_name(pick_device(sys.argv[1]))))
"""


# -- identity --------------------------------------------------------------------------------------


def identity(device: str) -> Identity:
    """Return what a figure of this environment depends on.

    Args:
        device: As in a case. An accelerator is asked in a process of its own, because asking it
            takes some of its memory for as long as the process lives.

    Raises:
        ValueError: If there is no such device here.
    """
    cpu = _device.device_name(torch.device("cpu"))
    return Identity(
        torch=torch.__version__,
        torch_geometric=version("torch_geometric"),
        dgl=version("dgl"),
        gnnprof=__version__,
        python=platform.python_version(),
        device_name=cpu if device == "cpu" else _name_in_child(device),
        cpu=cpu,
    )


def version(package: str) -> str | None:
    """Return the version of an installed package without importing it; None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _name_in_child(device: str) -> str:
    root = str(Path(__file__).resolve().parents[2])
    answer = subprocess.run(
        [sys.executable, "-c", _NAME_IN_CHILD, device],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))},
    )
    if answer.returncode != 0:
        said = (answer.stderr.strip().splitlines() or ["nothing"])[-1]
        raise ValueError(f"device={device!r} cannot be used here: {said}")
    return str(json.loads(answer.stdout.splitlines()[-1]))


# -- state -----------------------------------------------------------------------------------------


def environment(
    case: Case, identity: Identity, *, threads: int, wait_policy: str | None
) -> dict[str, Any]:
    """Return what a record says about the place of its measurement; None is untold.

    Args:
        case: Its device.
        identity: The versions and names that the case's key speaks of.
        threads: CPU threads that torch uses.
        wait_policy: OMP_WAIT_POLICY of the process.

    Returns:
        The identity, and the state of the machine at this moment: load averages over 1, 5 and 15
        minutes, frequencies in MHz, temperatures in degrees Celsius, power in watts.
    """
    return {
        **identity.to_dict(),
        "platform": platform.platform(),
        "device": case.device,
        "cuda": torch.version.cuda,
        "threads": threads,
        "cpus": len(usable_cpus()),
        "omp_wait_policy": wait_policy,
        "hostname": platform.node(),
        **state(case.device),
    }


def state(device: str) -> dict[str, Any]:
    """Return load, frequencies, temperatures and power at this moment; None where untold."""
    gpu = _gpu_state(device) if device.startswith("cuda") else {}
    load = None
    with contextlib.suppress(OSError, AttributeError):  # no such figure on this system
        load = [round(value, 2) for value in os.getloadavg()]
    return {
        "load_average": load,
        "frequencies": _frequencies(),
        "temperatures": _readings(_TEMPERATURES, 1e-3),
        "power": None,
        **gpu,
    }


def _frequencies() -> list[float] | None:
    """Return the frequency of each CPU in MHz."""
    read = _readings(_FREQUENCIES, 1e-3)
    if read is not None or not _CPU_INFO.exists():
        return read
    lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    found = [line.partition(":")[2] for line in lines if line.startswith("cpu MHz")]
    return [float(value) for value in found] or None


def _readings(pattern: str, factor: float) -> list[float] | None:
    values = []
    for file in sorted(Path("/sys").glob(pattern)):
        with contextlib.suppress(OSError, ValueError):  # a sensor that is asleep
            values.append(round(int(file.read_text()) * factor, 1))
    return values or None


def _gpu_state(device: str) -> dict[str, Any]:
    """Ask nvidia-smi for clock, power and temperature of a card; nothing where it is silent."""
    # By its UUID: nvidia-smi counts cards in another order than CUDA does.
    uuid = _device.cuda_uuid(_device.resolve_device(device).index or 0)
    if uuid is None:
        return {}
    command = ["nvidia-smi", f"--query-gpu={','.join(_GPU_FIELDS)}", f"--id=GPU-{uuid}"]
    try:
        answer = subprocess.run(
            [*command, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [_number(field) for field in answer.stdout.strip().split(",")]
    if len(values) != len(_GPU_FIELDS):
        return {}
    return dict(zip(("gpu_clock", "power", "gpu_temperature"), values, strict=True))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # '[N/A]'
        return None


def noise_warning() -> str | None:
    """Say what makes figures of this machine doubtful now, and the remedy; None if nothing does."""
    try:
        busy = os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
    count = len(usable_cpus())
    if busy < _BUSY * count:
        return None
    return (
        f"other work keeps {busy:.1f} of {count} CPUs busy: intervals will be wide. "
        "Stop it, or give more --rounds and --replicates."
    )
