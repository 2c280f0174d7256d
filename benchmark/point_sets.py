"""Sets of point clouds with one class each: ModelNet by `root`, a stand-in without download."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Data
from torch_geometric.datasets import ModelNet
from torch_geometric.transforms import Compose, NormalizeScale, SamplePoints

from benchmark.data_request import (
    DataRequest,
    check_raw_files,
    check_request,
    content_hash,
    download_failed,
)
from benchmark.planted import FloatArray, IntArray
from benchmark.surfaces import SURFACES, Points, directions, turn_about_z, uniform

NUM_TRAIN, NUM_TEST = 3_991, 908  # of ModelNet10
LEAST_TEST = 20  # clouds: two of each class
LEAST_POINTS = 16

SHORTEST_AXIS = 0.7  # each axis of a cloud is scaled by a factor from here to 1
JITTER = 0.01  # standard deviation of the noise on each coordinate, before the cloud is normalised
STEP = 1 << 16  # points lie on a grid of this many steps per unit, so that sums are exact

STAND_IN = "modelnet-like"
MODELNET_CLASSES = (
    *("bathtub", "bed", "chair", "desk", "dresser", "monitor"),
    *("night_stand", "sofa", "table", "toilet"),
)
"""The folders that PyG's ModelNet looks for in its raw folder, for either set."""
REAL_NAMES = ("ModelNet10", "ModelNet40")
POINT_SET_NAMES = (*REAL_NAMES, STAND_IN)


@dataclass(frozen=True)
class PointFingerprint:
    """What tells one set of point clouds from another: its counts, and a hash of its content.

    Attributes:
        num_train: Clouds to train on.
        num_test: Clouds to test on.
        num_points: Points per cloud.
        num_classes: Classes.
        sha256: Hash of the positions and classes of all clouds, training ones first.
    """

    num_train: int
    num_test: int
    num_points: int
    num_classes: int
    sha256: str

    def __str__(self) -> str:
        counts = f"{self.num_train:,} + {self.num_test:,} clouds of {self.num_points:,} points"
        return f"{counts}, {self.num_classes} classes, sha256 {self.sha256[:12]}"

    def to_dict(self) -> dict[str, int | str]:
        """Return the fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True)
class PointSet:
    """Point clouds to classify, and what a result must say about them.

    Attributes:
        name: The name to report, '-like' at its end if it is a stand-in.
        train: Clouds to train on, each with `pos` [P, 3] within [-1, 1] about its centre, `y` [1]
            and, if asked for, `normal` [P, 3].
        test: Clouds to test on.
        num_points: Points per cloud, P.
        num_classes: Classes.
        class_names: Their names, in the order of `y`.
        is_stand_in: Whether the clouds are generated.
        scale: Number of clouds of a stand-in as a share of ModelNet10's; None for real data.
        fingerprint: Counts and content hash.
    """

    name: str
    train: list[Data]
    test: list[Data]
    num_points: int
    num_classes: int
    class_names: tuple[str, ...]
    is_stand_in: bool
    scale: float | None
    fingerprint: PointFingerprint

    def to_dict(self) -> dict[str, object]:
        """Return all but the clouds, as JSON takes it."""
        return {
            "name": self.name,
            "is_stand_in": self.is_stand_in,
            "scale": self.scale,
            "fingerprint": self.fingerprint.to_dict(),
        }


def load_point_set(
    name: str,
    root: str | os.PathLike[str] | None = None,
    scale: float | None = None,
    seed: int = 0,
    *,
    num_points: int = 1024,
    normals: bool = False,
    download: bool = False,
) -> PointSet:
    """Return a set of point clouds by name.

    Args:
        name: One of `POINT_SET_NAMES`, in any case.
        root: Folder of real data as PyG's `ModelNet` lays it out: `root/ModelNet10/raw`. PyG keeps
            what it has processed beside it.
        scale: Factor on the number of clouds of the stand-in; by default 1.
        seed: Seed of the stand-in, and of the points that are drawn from real meshes.
        num_points: Points per cloud. They are drawn once; every epoch sees the same.
        normals: Whether each point gets the normal of its surface.
        download: Whether real files that are not in `root` may be fetched into it.

    Raises:
        ValueError: For an unknown name, or a bad scale, seed or number of points.
        FileNotFoundError: If a real set is not in `root` and may not be downloaded.
        ConnectionError: If the download fails.
    """
    request = check_request(name, POINT_SET_NAMES, {STAND_IN: 1.0}, root, scale, seed, download)
    if num_points < LEAST_POINTS:
        raise ValueError(f"num_points={num_points} is too few; give at least {LEAST_POINTS}.")
    if request.is_stand_in:
        train, test, class_names = _generate(request, num_points, normals)
    else:
        train, test, class_names = _sample_meshes(request, num_points, normals)
    fingerprint = PointFingerprint(
        num_train=len(train),
        num_test=len(test),
        num_points=num_points,
        num_classes=len(class_names),
        sha256=_hash([*train, *test]),
    )
    return PointSet(
        request.name,
        train,
        test,
        num_points,
        len(class_names),
        class_names,
        request.is_stand_in,
        request.scale,
        fingerprint,
    )


def _hash(clouds: list[Data]) -> str:
    positions = np.stack([cloud.pos.numpy() for cloud in clouds])
    return content_hash([positions, np.array([int(cloud.y) for cloud in clouds])])


def _generate(
    request: DataRequest, num_points: int, normals: bool
) -> tuple[list[Data], list[Data], tuple[str, ...]]:
    """Return seeded clouds; the points are the same with and without normals."""
    num_train = round(NUM_TRAIN * request.stand_in_scale)
    num_test = round(NUM_TEST * request.stand_in_scale)
    if num_test < LEAST_TEST:
        raise ValueError(
            f"scale={request.scale} leaves {num_test} clouds to test on; give a scale of at least "
            f"{LEAST_TEST / NUM_TEST + 5e-4:.3f}."
        )
    rng = np.random.Generator(np.random.PCG64(request.seed))
    parts = []
    for count in (num_train, num_test):
        y = rng.permutation(np.arange(count) % len(SURFACES))
        pos, normal = _clouds(y, num_points, rng)
        parts.append(_to_data(pos, normal if normals else None, y))
    return parts[0], parts[1], tuple(SURFACES)


def _clouds(
    y: IntArray, num_points: int, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return positions and normals, [N, P, 3] each, of clouds of the given classes [N]."""
    pos = np.empty((len(y), num_points, 3))
    normal = np.empty_like(pos)
    for label, surface in enumerate(SURFACES.values()):
        members = np.flatnonzero(y == label)
        points, normals = surface(len(members) * num_points, rng)
        pos[members] = points.reshape(-1, num_points, 3)
        normal[members] = normals.reshape(-1, num_points, 3)
    axes = SHORTEST_AXIS + (1 - SHORTEST_AXIS) * uniform((len(y), 1, 3), rng)
    cos, sin = directions(len(y), 2, rng).T
    pos = turn_about_z(pos * axes + _noise(pos.shape, rng), cos, sin)
    normal = turn_about_z(_unit(normal / axes), cos, sin)
    return _centred(pos), normal.astype(np.float32)


def _noise(shape: tuple[int, ...], rng: np.random.Generator) -> Points:
    """Return bell-shaped noise: four uniform bytes, whose standard deviation is 148."""
    total = np.zeros(shape, dtype=np.int64)
    for _ in range(4):
        total += rng.integers(0, 256, shape, dtype=np.uint8)
    return (total - 510).astype(np.float64) * (JITTER / 148)


def _unit(vectors: Points) -> Points:
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    lengths: Points = np.sqrt(x * x + y * y + z * z)
    return vectors / lengths[..., None]


def _centred(pos: Points) -> FloatArray:
    """Move the centre of each cloud to 0 and its farthest coordinate to 1 or -1."""
    steps: NDArray[np.int64] = np.floor(pos * STEP).astype(np.int64)
    steps -= steps.sum(axis=1, keepdims=True) // pos.shape[1]
    farthest = np.abs(steps).max(axis=(1, 2), keepdims=True)
    centred: FloatArray = (steps / farthest).astype(np.float32)
    return centred


def _to_data(pos: FloatArray, normal: FloatArray | None, y: IntArray) -> list[Data]:
    clouds = [
        Data(pos=torch.from_numpy(points), y=torch.tensor([int(label)]))
        for points, label in zip(pos, y, strict=True)
    ]
    if normal is not None:
        for cloud, vectors in zip(clouds, normal, strict=True):
            cloud.normal = torch.from_numpy(vectors)
    return clouds


def _sample_meshes(
    request: DataRequest, num_points: int, normals: bool
) -> tuple[list[Data], list[Data], tuple[str, ...]]:
    """Return clouds drawn from real meshes, uniformly by area, after PyG's normalisation."""
    layout = f"{request.name}/raw/CLASS/train and test/*.off"
    root = check_raw_files(request, request.name, MODELNET_CLASSES, layout, STAND_IN)
    folder = root / request.name
    kind = request.name.removeprefix("ModelNet")
    draw = Compose([SamplePoints(num_points, include_normals=normals)])
    try:
        sets = [
            ModelNet(str(folder), kind, train=train, pre_transform=NormalizeScale())
            for train in (True, False)
        ]
    except OSError as error:
        raise download_failed(request, error, STAND_IN) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(request.seed)
        train, test = ([draw(mesh) for mesh in meshes] for meshes in sets)
    return train, test, _class_names(folder)


def _class_names(folder: Path) -> tuple[str, ...]:
    """Return the folders of the classes, in the order in which PyG numbers them."""
    raw = folder / "raw"
    if not raw.is_dir():
        return ()
    return tuple(sorted(path.name for path in raw.iterdir() if path.is_dir()))
