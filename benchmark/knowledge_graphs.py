"""Knowledge graphs: UMLS and ogbl-biokg by `root`, and a stand-in of the latter's shape."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmark.data_request import DataRequest, check_request, content_hash, data_is_missing
from benchmark.ogb_data import edge_split, load_ogb
from benchmark.planted_triples import TripleArrays, generate_triples

STAND_IN = "biokg-like"
KNOWLEDGE_GRAPH_NAMES = ("UMLS", "ogbl-biokg", STAND_IN)
DEFAULT_SCALE = 0.02
PARTS = ("train", "valid", "test")


@dataclass(frozen=True)
class Triples:
    """True triples of one part and the false ones they are ranked against.

    Attributes:
        head: Entity ids, [M].
        relation: Relation ids, [M].
        tail: Entity ids, [M].
        head_neg: Entities to put in the place of each head, [M, K]; None for training.
        tail_neg: Entities to put in the place of each tail, [M, K]; None for training.
        head_neg_mask: Which of `head_neg` count, [M, K]; None if all do. Where it is False the
            triple is true as well: give it a score of minus infinity.
        tail_neg_mask: The same for `tail_neg`.
    """

    head: Tensor
    relation: Tensor
    tail: Tensor
    head_neg: Tensor | None = None
    tail_neg: Tensor | None = None
    head_neg_mask: Tensor | None = None
    tail_neg_mask: Tensor | None = None

    def __len__(self) -> int:
        """Return the number of triples."""
        return len(self.head)


@dataclass(frozen=True)
class TripleFingerprint:
    """What tells one knowledge graph from another: its counts, and a hash of its content.

    Attributes:
        num_entities: Entities.
        num_relations: Relations.
        num_train: Triples to train on.
        num_valid: Triples to validate on.
        num_test: Triples to test on.
        sha256: Hash of the triples of the three parts and, where they are given, the negatives.
    """

    num_entities: int
    num_relations: int
    num_train: int
    num_valid: int
    num_test: int
    sha256: str

    def __str__(self) -> str:
        counts = f"{self.num_entities:,} entities, {self.num_relations} relations"
        parts = f"{self.num_train:,} + {self.num_valid:,} + {self.num_test:,} triples"
        return f"{counts}, {parts}, sha256 {self.sha256[:12]}"

    def to_dict(self) -> dict[str, int | str]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class KnowledgeGraph:
    """Triples of entities and relations, and what a result must say about them.

    Attributes:
        name: The name to report, '-like' at its end if it is a stand-in.
        num_entities: Entities of all types.
        num_relations: Relations.
        entity_types: For each type the first id of its entities and the id after its last.
        relation_names: Names of the relations, in the order of their ids.
        train: Triples to train on.
        valid: Triples to validate on.
        test: Triples to test on.
        is_stand_in: Whether the triples are generated.
        scale: Size of a stand-in as a share of the real set's; None for real data.
        fingerprint: Counts and content hash.
        metric: Always 'mrr', the mean of both directions' ranks.
    """

    name: str
    num_entities: int
    num_relations: int
    entity_types: dict[str, tuple[int, int]]
    relation_names: tuple[str, ...]
    train: Triples
    valid: Triples
    test: Triples
    is_stand_in: bool
    scale: float | None
    fingerprint: TripleFingerprint
    metric: str = "mrr"

    def to_dict(self) -> dict[str, object]:
        """Return all but the triples, as JSON takes it."""
        return {
            "name": self.name,
            "is_stand_in": self.is_stand_in,
            "scale": self.scale,
            "metric": self.metric,
            "fingerprint": self.fingerprint.to_dict(),
        }


def load_knowledge_graph(
    name: str,
    root: str | os.PathLike[str] | None = None,
    scale: float | None = None,
    seed: int = 0,
    download: bool = False,
) -> KnowledgeGraph:
    """Return a knowledge graph by name.

    Args:
        name: One of `KNOWLEDGE_GRAPH_NAMES`, in any case.
        root: Folder of real data: `root/umls` with train.txt, valid.txt and test.txt (head,
            relation and tail, separated by tabs), or `root/ogbl_biokg` as OGB lays it out.
        scale: Factor on entities and triples of the stand-in; by default 0.02.
        seed: Seed of the stand-in.
        download: Whether real files that are not in `root` may be fetched into it. UMLS cannot.

    Raises:
        ValueError: For an unknown name, a bad scale or seed, or a file that is not of that form.
        FileNotFoundError: If a real set is not in `root` and may not be downloaded.
        ModuleNotFoundError: If ogb, which reads ogbl-biokg, is not installed.
        ConnectionError: If the download fails.
    """
    defaults = {STAND_IN: DEFAULT_SCALE}
    request = check_request(name, KNOWLEDGE_GRAPH_NAMES, defaults, root, scale, seed, download)
    if request.is_stand_in:
        arrays = generate_triples(request.name, request.stand_in_scale, request.seed)
        return _from_arrays(request, arrays)
    if request.name == "UMLS":
        return _read_umls(request)
    return _load_biokg(request)


def _build(
    request: DataRequest,
    entity_types: dict[str, tuple[int, int]],
    relation_names: tuple[str, ...],
    parts: list[Triples],
) -> KnowledgeGraph:
    num_entities = max(end for _, end in entity_types.values())
    arrays = []
    for part in parts:
        columns = (part.head, part.relation, part.tail)
        # Entities to rank against are no content where they are simply all of them.
        given = (part.head_neg, part.tail_neg) if part.head_neg_mask is None else ()
        arrays += [column.numpy() for column in (*columns, *given) if column is not None]
    fingerprint = TripleFingerprint(
        num_entities,
        len(relation_names),
        len(parts[0]),
        len(parts[1]),
        len(parts[2]),
        content_hash(arrays),
    )
    return KnowledgeGraph(
        request.name,
        num_entities,
        len(relation_names),
        entity_types,
        relation_names,
        parts[0],
        parts[1],
        parts[2],
        request.is_stand_in,
        request.scale,
        fingerprint,
    )


def _from_arrays(request: DataRequest, arrays: TripleArrays) -> KnowledgeGraph:
    parts = []
    for columns, negatives in zip(arrays.parts, arrays.negatives, strict=True):
        tensors = [torch.from_numpy(column.copy()) for column in columns]
        chosen = [None if side is None else torch.from_numpy(side) for side in negatives]
        parts.append(Triples(*tensors, *chosen))
    return _build(request, arrays.entity_types, arrays.relation_names, parts)


def _read_umls(request: DataRequest) -> KnowledgeGraph:
    """Return UMLS; each triple is ranked against all entities that do not make a true one."""
    folder = None if request.root is None else request.root / "umls"
    files = [] if folder is None else [folder / f"{part}.txt" for part in PARTS]
    missing = [file for file in files if not file.is_file()]
    if folder is None or missing:
        first = missing[0] if missing else None
        raise data_is_missing(
            request, first, "umls/train.txt, valid.txt, test.txt", STAND_IN, fetchable=False
        )
    rows = [_read_rows(file) for file in files]
    everything = np.concatenate(rows)
    entities, ids = np.unique(everything[:, [0, 2]], return_inverse=True)
    relations, kinds = np.unique(everything[:, 1], return_inverse=True)
    ids = ids.reshape(-1, 2)
    triples = torch.from_numpy(np.stack([ids[:, 0], kinds.reshape(-1), ids[:, 1]]).astype(np.int64))
    train, *held_out = torch.split(triples, [len(part) for part in rows], dim=1)
    ranked = [_against_all(part, triples, len(entities)) for part in held_out]
    names = tuple(str(relation) for relation in relations)
    return _build(request, {"entity": (0, len(entities))}, names, [Triples(*train), *ranked])


def _read_rows(file: os.PathLike[str]) -> np.ndarray[Any, np.dtype[np.str_]]:
    with open(file, encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines if line.strip()]
    bad = next((i for i, row in enumerate(rows, start=1) if len(row) != 3), None)
    if bad is not None or not rows:
        where = "is empty" if bad is None else f"has no three columns in triple {bad}"
        raise ValueError(f"{file} {where}; give head, relation and tail separated by tabs.")
    return np.array(rows)


def _against_all(part: Tensor, known: Tensor, num_entities: int) -> Triples:
    """Return triples [3, M] with all entities as negatives, masked where the triple is known."""
    head, relation, tail = part
    everyone = torch.arange(num_entities).expand(len(head), -1)
    base = int(known[1].max()) + 1
    keys = (known[0] * base + known[1]) * num_entities + known[2]
    other_heads = (everyone * base + relation[:, None]) * num_entities + tail[:, None]
    other_tails = ((head * base + relation) * num_entities)[:, None] + everyone
    return Triples(
        head,
        relation,
        tail,
        everyone,
        everyone,
        ~torch.isin(other_heads, keys),
        ~torch.isin(other_tails, keys),
    )


def _load_biokg(request: DataRequest) -> KnowledgeGraph:
    """Return ogbl-biokg with entity ids of all types in one row, by OGB's loader and split."""
    dataset = load_ogb(request, STAND_IN)
    graph, split = dataset[0], edge_split(dataset)
    entity_types, first = {}, 0
    for kind, count in graph.num_nodes_dict.items():
        entity_types[kind] = (first, first + int(count))
        first += int(count)
    names = {int(ids.flatten()[0]): kind[1] for kind, ids in graph.edge_reltype.items()}
    relation_names = tuple(names[i] for i in range(len(names)))
    parts = [_with_global_ids(split[part], entity_types) for part in PARTS]
    return _build(request, entity_types, relation_names, parts)


def _with_global_ids(given: Mapping[str, Any], entity_types: dict[str, tuple[int, int]]) -> Triples:
    columns = {}
    for side in ("head", "tail"):
        begin = torch.tensor([entity_types[kind][0] for kind in given[f"{side}_type"]])
        columns[side] = torch.as_tensor(given[side]) + begin
        if f"{side}_neg" in given:
            columns[f"{side}_neg"] = torch.as_tensor(given[f"{side}_neg"]) + begin[:, None]
    return Triples(
        columns["head"],
        torch.as_tensor(given["relation"]),
        columns["tail"],
        columns.get("head_neg"),
        columns.get("tail_neg"),
    )
