"""Records to a profile for https://www.speedscope.app."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gnnprof._records import ProfileRow
from gnnprof._tree import MODULE, Node, Read, tree
from gnnprof._version import __version__

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(rows: Sequence[ProfileRow], name: str) -> dict[str, Any]:
    """Return the layer tree as speedscope's JSON, in seconds of host time.

    A node's own time is one sample with its stack, so the weights of the profiles together are
    the self times of all module, phase and outside rows. The time of a module or phase in no op
    is a sample of its own. Samples stand in the order of the tree, not of time.

    Args:
        rows: The rows of one profile.
        name: What to call the model and the profile.

    Returns:
        What `json.dump` takes: one profile `forward` and, when a backward ran, one `backward`. An
        op or phase is the same frame in every layer, so that the Sandwich view adds it up.
    """
    nodes, frames = tree(rows, name), _Frames()
    profiles = [_profile("forward", nodes, frames, lambda row: row.self_cpu_time)]
    if any(row.self_backward_cpu_time is not None for row in rows):
        profiles.append(_profile("backward", nodes, frames, lambda row: row.self_backward_cpu_time))
    return {
        "$schema": SCHEMA,
        "exporter": f"gnnprof@{__version__}",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in frames.number]},
        "profiles": profiles,
    }


class _Frames:
    """Frames by name, numbered in the order of their first use."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def stack(self, node: Node) -> list[int]:
        """Numbers of the frames from the model down to a node."""
        above = self.stack(node.parent) if node.parent else []
        return [*above, self.number.setdefault(_frame_name(node), len(self.number))]


def _frame_name(node: Node) -> str:
    if node.kind != MODULE:
        return node.name
    path = ".".join(node.names[1:]) or node.name
    return f"{path} ({node.row.module})" if node.row and node.parent else path


def _profile(view: str, nodes: Sequence[Node], frames: _Frames, figure: Read) -> dict[str, Any]:
    samples = [(frames.stack(node), own) for node in nodes if (own := node.own(figure))]
    return {
        "type": "sampled",
        "name": view,
        "unit": "seconds",
        "startValue": 0,
        "endValue": math.fsum(own for _, own in samples),
        "samples": [stack for stack, _ in samples],
        "weights": [own for _, own in samples],
    }
