"""The tree of modules, phases and ops that the rows of a profile stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gnnprof._layer_table import lines_of
from gnnprof._records import ProfileRow

MODULE, PHASE, OP, OUTSIDE = "module", "phase", "op", "outside"

Read = Callable[[ProfileRow], "float | None"]
"""Reads one figure of a row; None where it was not measured."""


@dataclass(eq=False, slots=True)
class Node:
    """A place in the tree.

    Attributes:
        name: Last part of the row's name: `'0'` for the module `convs.0`, the phase, or the op.
        kind: 'module', 'phase', 'op' or 'outside' (a row for what ran outside the model).
        row: The figures; None for a module that holds others and was not selected itself.
        parent: The node above; None for the model and the rows outside it.
        children: The nodes below, in the order of the rows.
    """

    name: str
    kind: str
    row: ProfileRow | None = None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Names from the model down to this node."""
        above = self.parent.names if self.parent else ()
        return (*above, self.name)

    @property
    def depth(self) -> int:
        """Number of nodes above this one."""
        return len(self.names) - 1

    @property
    def ops(self) -> list[Node]:
        """The ops right under this node."""
        return [child for child in self.children if child.kind == OP]

    def own(self, figure: Read) -> float:
        """A self figure of this node alone: for a module or phase, what no op of it accounts for.

        The own figures of all nodes add up to the sum over the module, phase and outside rows.
        """
        if self.row is None:
            return 0.0
        ops = sum(figure(op.row) or 0.0 for op in self.ops if op.row)
        # Ops are parts of their owner; only rounding could make the rest negative.
        return max(0.0, (figure(self.row) or 0.0) - ops)


def tree(rows: Sequence[ProfileRow], model: str) -> list[Node]:
    """Return a node for every row and for every module between them, parents first.

    Args:
        rows: The rows of one profile.
        model: What to call the model itself.
    """
    nodes: list[Node] = []
    places: dict[tuple[bool, tuple[str, ...]], Node] = {}

    def place(outside: bool, names: tuple[str, ...]) -> Node:
        """The node of that name, made with those above it where there is none."""
        known = places.get((outside, names))
        return known or make(outside, names)

    def make(outside: bool, names: tuple[str, ...]) -> Node:
        parent = place(outside, names[:-1]) if len(names) > 1 else None
        node = places[outside, names] = Node(names[-1], MODULE, parent=parent)
        nodes.append(node)
        if parent:
            parent.children.append(node)
        return node

    for line in lines_of(rows, model):
        at = (line.row.path is None, line.names)
        node = place(*at)
        if node.row is not None:  # a second row of that name, such as another model's
            node = make(*at)
        node.kind, node.row = _kind(line.row), line.row
    return nodes


def sums(nodes: Iterable[Node], figure: Read) -> dict[Node, float]:
    """Add up the own figures of every node and of all nodes below it.

    Args:
        nodes: What `tree` returned.
        figure: A self figure, such as `self_cpu_time`.
    """
    nodes = list(nodes)
    totals = {node: node.own(figure) for node in nodes}
    for node in reversed(nodes):
        if node.parent:
            totals[node.parent] += totals[node]
    return totals


def _kind(row: ProfileRow) -> str:
    if row.op is not None:
        return OP
    if row.path is None:
        return OUTSIDE
    return MODULE if row.phase is None else PHASE
