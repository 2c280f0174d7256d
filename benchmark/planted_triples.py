"""A generated knowledge graph with the entity types and relations of ogbl-biokg.

Entities of each type fall into groups, and a relation prefers to join a head of one group with a
tail of the group that it pairs with it. All draws are integers of one seeded generator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmark.planted import IntArray, WeightedNodes, draw_classes, planted_links

ENTITIES = {
    "disease": 10_687,
    "drug": 10_533,
    "function": 45_085,
    "protein": 17_499,
    "sideeffect": 9_969,
}
NUM_TRIPLES, NUM_VALID, NUM_TEST = 5_088_434, 162_886, 162_870
NUM_NEGATIVES = 500  # heads and tails per triple; fewer where a type has fewer than twice as many

HOMOPHILY = 75  # percent of the triples that join paired groups
ENTITIES_PER_GROUP = 20  # of the smallest type
LEAST_ENTITIES = 60  # of the smallest type: three groups
MOST_ROUNDS = 1000  # of drawing negatives anew


@dataclass(frozen=True)
class RelationFamily:
    """Relations between the same two types, and their share of all triples, in per mille."""

    head: str
    tail: str
    relations: int
    per_mille: int


FAMILIES = (
    RelationFamily("disease", "protein", 1, 15),
    RelationFamily("drug", "disease", 1, 1),
    RelationFamily("drug", "drug", 38, 250),
    RelationFamily("drug", "protein", 1, 25),
    RelationFamily("drug", "sideeffect", 1, 33),
    RelationFamily("function", "function", 1, 300),
    RelationFamily("protein", "function", 1, 163),
    RelationFamily("protein", "protein", 7, 213),
)
"""The 51 relations of ogbl-biokg; their shares are near the real ones."""


@dataclass(frozen=True)
class TripleArrays:
    """A generated knowledge graph.

    Attributes:
        entity_types: For each type the first id of its entities and the id after its last.
        relation_names: Names of the relations.
        parts: Heads, relations and tails, [3, M], of training, validation and test.
        negatives: For each part the false heads and the false tails, [M, K] each, or None.
    """

    entity_types: dict[str, tuple[int, int]]
    relation_names: tuple[str, ...]
    parts: tuple[IntArray, IntArray, IntArray]
    negatives: tuple[tuple[IntArray | None, IntArray | None], ...]


def generate_triples(name: str, scale: float, seed: int) -> TripleArrays:
    """Return the stand-in.

    Args:
        name: What an error calls it.
        scale: Factor on entities and triples; relations keep their number.
        seed: Seed of every draw.

    Raises:
        ValueError: If so small a scale leaves too few entities of a type.
    """
    counts = {kind: round(count * scale) for kind, count in ENTITIES.items()}
    smallest = min(counts.values())
    if smallest < LEAST_ENTITIES:
        least = LEAST_ENTITIES / min(ENTITIES.values())
        raise ValueError(
            f"scale={scale} leaves {smallest} entities of a type of {name}; give a scale of at "
            f"least {least + 5e-5:.4f}."
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    ends = np.cumsum(list(counts.values())).tolist()
    types = {kind: (end - counts[kind], end) for kind, end in zip(counts, ends, strict=True)}
    triples, names = _draw_triples(counts, types, scale, rng)
    triples = triples[:, rng.permutation(triples.shape[1])]
    end_valid = round(NUM_VALID * scale)
    valid, test, train = np.split(triples, [end_valid, end_valid + round(NUM_TEST * scale)], axis=1)
    per_triple = min(NUM_NEGATIVES, smallest // 2)
    draw = _Negatives(triples, types, per_triple, rng)
    negatives = ((None, None), (draw(valid, 0), draw(valid, 2)), (draw(test, 0), draw(test, 2)))
    return TripleArrays(types, names, (train, valid, test), negatives)


def _draw_triples(
    counts: dict[str, int],
    types: dict[str, tuple[int, int]],
    scale: float,
    rng: np.random.Generator,
) -> tuple[IntArray, tuple[str, ...]]:
    """Return all triples [3, M] with ids of all types in one row, and the relations' names."""
    num_groups = min(counts.values()) // ENTITIES_PER_GROUP
    groups = {kind: draw_classes(count, num_groups, rng) for kind, count in counts.items()}
    entities = {kind: WeightedNodes(group, rng) for kind, group in groups.items()}
    parts, names = [], list[str]()
    for family in FAMILIES:
        wanted = round(NUM_TRIPLES * scale * family.per_mille / (1000 * family.relations))
        for i in range(family.relations):
            # An involution of the groups, so that a symmetric score (DistMult's) can express it.
            paired = (rng.integers(0, num_groups) - groups[family.head]) % num_groups
            head, tail = planted_links(
                paired,
                entities[family.head],
                entities[family.tail],
                wanted,
                HOMOPHILY,
                rng,
                loops=family.head != family.tail,
            )
            relation = np.full(len(head), len(names))
            parts.append(
                np.stack([head + types[family.head][0], relation, tail + types[family.tail][0]])
            )
            suffix = f"_{i}" if family.relations > 1 else ""
            names.append(f"{family.head}-{family.tail}{suffix}")
    return np.concatenate(parts, axis=1), tuple(names)


class _Negatives:
    """Draws entities of the right type that do not make a known triple."""

    def __init__(
        self,
        known: IntArray,
        types: dict[str, tuple[int, int]],
        per_triple: int,
        rng: np.random.Generator,
    ) -> None:
        self._num_entities = max(end for _, end in types.values())
        self._known = np.sort(self._keys(known[0], known[1], known[2]))
        self._ends = np.array([end for _, end in types.values()])
        self._begins = np.array([begin for begin, _ in types.values()])
        self._per_triple, self._rng = per_triple, rng

    def _keys(self, head: IntArray, relation: IntArray, tail: IntArray) -> IntArray:
        return (relation * self._num_entities + head) * self._num_entities + tail

    def __call__(self, triples: IntArray, side: int) -> IntArray:
        """Return entities [M, K] for the heads (side 0) or the tails (side 2) of triples [3, M]."""
        kind = np.searchsorted(self._ends, triples[side], side="right")
        row = np.repeat(np.arange(triples.shape[1]), self._per_triple)
        begin, end = self._begins[kind][row], self._ends[kind][row]
        drawn = np.empty_like(row)
        left = np.arange(len(row))  # what is still to draw
        for _ in range(MOST_ROUNDS):
            drawn[left] = self._rng.integers(begin[left], end[left])
            columns = [column[row[left]] for column in triples]
            columns[side] = drawn[left]
            keys = self._keys(columns[0], columns[1], columns[2])
            place = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
            left = left[self._known[place] == keys]
            if len(left) == 0:
                return drawn.reshape(-1, self._per_triple)
        raise ValueError("an entity is joined with all others of a type; give a larger scale.")
