"""Point clouds: surfaces against their equations, seeds, splits, and real meshes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmark import point_sets
from benchmark.point_sets import load_point_set
from benchmark.surfaces import SURFACES, TORUS_TUBE, directions, disc, turn_about_z

COUNT = 4000


def rng() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(0))


# --- surfaces ------------------------------------------------------------------------------------


def on_box(p: np.ndarray) -> np.ndarray:
    return np.abs(p).max(axis=1) - 0.7


def on_planes(p: np.ndarray) -> np.ndarray:
    return np.abs(p[:, 2]) - 0.4


def on_cylinder(p: np.ndarray) -> np.ndarray:
    around = np.hypot(p[:, 0], p[:, 1])
    return np.maximum(around / 0.5, np.abs(p[:, 2])) - 1


def on_cone(p: np.ndarray) -> np.ndarray:
    around = np.hypot(p[:, 0], p[:, 1])
    return np.maximum(around / 0.75 - (0.75 - p[:, 2]) / 1.5, -0.75 - p[:, 2])


def on_torus(p: np.ndarray) -> np.ndarray:
    around = np.hypot(p[:, 0], p[:, 1])
    return np.hypot(around - 1, p[:, 2]) - TORUS_TUBE


def on_pyramid(p: np.ndarray) -> np.ndarray:
    around = np.abs(p[:, :2]).max(axis=1)
    return np.maximum(around / 0.8 - (0.65 - p[:, 2]) / 1.3, -0.65 - p[:, 2])


EQUATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sphere": lambda p: (p**2).sum(axis=1) - 1,
    "ellipsoid": lambda p: ((p / [0.45, 0.6, 1.0]) ** 2).sum(axis=1) - 1,
    "cube": on_box,
    "planes": on_planes,
    "cylinder": on_cylinder,
    "cone": on_cone,
    "torus": on_torus,
    "pyramid": on_pyramid,
    "saddle": lambda p: p[:, 2] - (p[:, 0] ** 2 - p[:, 1] ** 2) / 2,
}
"""Zero on the surface. The helix has none: it is tested by its normals and its extent."""


@pytest.mark.parametrize("name", EQUATIONS)
def test_points_lie_on_their_surface(name):
    position, normal = SURFACES[name](COUNT, rng())
    assert position.shape == normal.shape == (COUNT, 3)
    assert np.abs(EQUATIONS[name](position)).max() < 1e-12


@pytest.mark.parametrize("name", EQUATIONS)
def test_normals_are_unit_vectors_along_which_the_equation_grows_most(name):
    position, normal = SURFACES[name](COUNT, rng())
    assert np.allclose(np.linalg.norm(normal, axis=1), 1)
    step = 1e-6
    equation = EQUATIONS[name]
    gradient = np.stack(
        [
            (equation(position + step * axis) - equation(position - step * axis)) / (2 * step)
            for axis in np.eye(3)
        ],
        axis=1,
    )
    cosine = (gradient * normal).sum(axis=1) / np.linalg.norm(gradient, axis=1)
    # Difference quotients fail on an edge, of which a seeded draw hits hardly any.
    assert (cosine > 0.999).mean() > 0.995


def test_normals_of_the_helix_point_away_from_its_centre_line():
    position, normal = SURFACES["helix"](COUNT, rng())
    assert np.allclose(np.linalg.norm(normal, axis=1), 1)
    around = np.hypot(position[:, 0], position[:, 1])
    outward = (position[:, :2] * normal[:, :2]).sum(axis=1)
    assert (outward[around > 0.9] > 0).all()
    assert (outward[around < 0.6] < 0).all()
    assert 0.53 - 1e-9 <= around.min() <= around.max() <= 0.97 + 1e-9
    assert position[:, 2].max() - position[:, 2].min() == pytest.approx(0.022 * 125 + 0.44, 0.02)


def chi_square(counts: np.ndarray, shares: np.ndarray) -> float:
    expected = counts.sum() * shares
    return float(((counts - expected) ** 2 / expected).sum())


def test_directions_and_discs_are_uniform():
    circle = directions(20_000, 2, rng())
    angles = np.histogram(np.arctan2(circle[:, 1], circle[:, 0]), 16, (-np.pi, np.pi))[0]
    assert chi_square(angles, np.full(16, 1 / 16)) < 37.7  # 0.1 % of fair draws exceed it
    ball = directions(20_000, 3, rng())
    heights = np.histogram(ball[:, 2], 16, (-1, 1))[0]  # uniform by Archimedes
    assert chi_square(heights, np.full(16, 1 / 16)) < 37.7
    radius = np.histogram((disc(20_000, rng()) ** 2).sum(axis=1), 16, (0, 1))[0]
    assert chi_square(radius, np.full(16, 1 / 16)) < 37.7


@pytest.mark.parametrize(
    ("name", "part", "share"),
    [
        ("cylinder", lambda p: np.abs(p[:, 2]) > 1 - 1e-12, 0.2),
        ("cone", lambda p: p[:, 2] < -0.75 + 1e-12, 1 / (1 + 5**0.5)),
        ("pyramid", lambda p: p[:, 2] < -0.65 + 1e-12, 0.344),
        ("torus", lambda p: np.hypot(p[:, 0], p[:, 1]) > 1, 0.5 + TORUS_TUBE / np.pi),
        ("cube", lambda p: p[:, 0] > 0.7 - 1e-12, 1 / 6),
    ],
)
def test_each_part_of_a_surface_has_its_share_by_area(name, part, share):
    position, _ = SURFACES[name](40_000, rng())
    error = (share * (1 - share) / 40_000) ** 0.5
    assert part(position).mean() == pytest.approx(share, abs=4 * error)


def test_turning_is_about_z():
    vectors = np.array([[[1.0, 0, 5], [0, 2, 6]]])
    turned = turn_about_z(vectors, np.array([0.0]), np.array([1.0]))  # a quarter
    assert turned.tolist() == [[[0, 1, 5], [-2, 0, 6]]]


# --- the stand-in --------------------------------------------------------------------------------


def test_the_stand_in_has_the_split_of_modelnet10_and_balanced_classes():
    point_set = load_point_set("modelnet-like", scale=0.05, num_points=32)
    assert (len(point_set.train), len(point_set.test)) == (200, 45)
    assert point_set.class_names == tuple(SURFACES)
    assert point_set.num_classes == 10
    y = torch.cat([cloud.y for cloud in point_set.train])
    assert torch.bincount(y).tolist() == [20] * 10
    assert point_set.is_stand_in
    assert (point_sets.NUM_TRAIN, point_sets.NUM_TEST) == (3991, 908)


def test_clouds_are_centred_and_scaled_into_the_unit_cube():
    point_set = load_point_set("modelnet-like", scale=0.05, num_points=256)
    for cloud in point_set.train[:30]:
        assert cloud.pos.shape == (256, 3)
        assert cloud.pos.dtype == torch.float32
        assert float(cloud.pos.abs().max()) == 1
        assert float(cloud.pos.mean(dim=0).abs().max()) < 1e-4


def test_normals_are_given_when_asked_and_change_nothing_else():
    plain = load_point_set("modelnet-like", scale=0.03, num_points=64)
    with_normals = load_point_set("modelnet-like", scale=0.03, num_points=64, normals=True)
    assert plain.fingerprint == with_normals.fingerprint
    assert "normal" not in plain.train[0]
    for cloud in with_normals.train:
        assert torch.allclose(cloud.normal.norm(dim=1), torch.ones(64))
    sphere = next(cloud for cloud in with_normals.train if int(cloud.y) == 0)
    # Scaled axes make the sphere an ellipsoid: its normals lean away from the radius, but not far.
    cosine = (sphere.pos * sphere.normal).sum(dim=1) / sphere.pos.norm(dim=1)
    assert float(cosine.min()) > 0.8


def test_clouds_of_one_class_are_turned_and_stretched_differently():
    clouds = load_point_set("modelnet-like", scale=0.05, num_points=512).train
    planes = [cloud.pos for cloud in clouds if int(cloud.y) == 3]
    widths = torch.stack([pos.max(dim=0).values - pos.min(dim=0).values for pos in planes])
    assert float(widths.std(dim=0).min()) > 0.02


def test_one_seed_gives_one_set_on_every_platform():
    first = load_point_set("modelnet-like", scale=0.03, num_points=64)
    assert first.fingerprint.sha256[:12] == "5823750d8e42"
    again = load_point_set("ModelNet-Like", scale=0.03, num_points=64)
    assert again.fingerprint == first.fingerprint
    other = load_point_set("modelnet-like", scale=0.03, num_points=64, seed=1)
    assert other.fingerprint.sha256 != first.fingerprint.sha256
    assert str(first.fingerprint).startswith("120 + 27 clouds of 64 points, 10 classes, sha256 ")
    assert first.to_dict() == {
        "name": "modelnet-like",
        "is_stand_in": True,
        "scale": 0.03,
        "fingerprint": first.fingerprint.to_dict(),
    }


def test_the_shapes_can_be_told_apart_by_their_points():
    """A nearest neighbour on sorted distances from the centre, far above the 10 % of chance."""
    point_set = load_point_set("modelnet-like", scale=0.1, num_points=256)

    def describe(clouds: list) -> tuple[torch.Tensor, torch.Tensor]:
        distances = torch.stack([cloud.pos.norm(dim=1).sort().values for cloud in clouds])
        heights = torch.stack([cloud.pos[:, 2].sort().values for cloud in clouds])
        return torch.cat([distances, heights], dim=1), torch.cat([cloud.y for cloud in clouds])

    (known, labels), (asked, expected) = describe(point_set.train), describe(point_set.test)
    nearest = torch.cdist(asked, known).argmin(dim=1)
    assert float((labels[nearest] == expected).float().mean()) > 0.7


# --- real data -----------------------------------------------------------------------------------


def write_meshes(folder: Path) -> None:
    """Write two classes of one square each, flat in two different directions, as OFF files."""
    corners = {"bed": "0 0 0\n2 0 0\n2 2 0\n0 2 0", "desk": "0 0 0\n0 0 2\n0 2 2\n0 2 0"}
    for name, points in corners.items():
        for part in ("train", "test"):
            path = folder / "raw" / name / part
            path.mkdir(parents=True)
            off = f"OFF\n4 2 0\n{points}\n3 0 1 2\n3 0 2 3\n"
            (path / f"{name}_0001.off").write_text(off)


def write_all_meshes(folder: Path) -> None:
    write_meshes(folder)
    for name in point_sets.MODELNET_CLASSES:  # PyG looks for each
        (folder / "raw" / name).mkdir(exist_ok=True)


def test_real_meshes_are_sampled_by_the_seed(tmp_path, capsys):
    write_all_meshes(tmp_path / "ModelNet10")
    state = torch.random.get_rng_state()
    point_set = load_point_set("modelnet10", root=tmp_path, num_points=50, normals=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (point_set.name, point_set.is_stand_in, point_set.scale) == ("ModelNet10", False, None)
    names = point_set.class_names
    labels = [names[int(cloud.y)] for cloud in point_set.train]
    assert sorted(labels) == ["bed", "desk"]
    flat = {"bed": 2, "desk": 0}
    for name, cloud in zip(labels, point_set.train, strict=True):
        assert cloud.pos.shape == cloud.normal.shape == (50, 3)
        assert float(cloud.pos[:, flat[name]].abs().max()) < 1e-6
        assert float(cloud.pos.abs().max()) <= 1
        assert torch.allclose(cloud.normal[:, flat[name]].abs(), torch.ones(50))
    again = load_point_set("ModelNet10", root=tmp_path, num_points=50)
    other = load_point_set("ModelNet10", root=tmp_path, num_points=50, seed=1)
    assert again.fingerprint == point_set.fingerprint
    assert other.fingerprint.sha256 != point_set.fingerprint.sha256
    capsys.readouterr()


def test_the_folders_are_those_that_pygs_loader_looks_for():
    unread = object.__new__(point_sets.ModelNet)
    assert list(point_sets.MODELNET_CLASSES) == unread.raw_file_names


@pytest.mark.parametrize("name", ["ModelNet10", "ModelNet40"])
def test_meshes_of_some_classes_are_kept_and_nothing_is_downloaded_unasked(
    name, tmp_path, monkeypatch
):
    monkeypatch.setattr(point_sets, "ModelNet", None)  # it would clear the folder
    write_meshes(tmp_path / name)  # of a bed and a desk
    with pytest.raises(FileNotFoundError, match=r"raw.bathtub is missing.*add --download"):
        load_point_set(name, root=tmp_path)
    assert len(list((tmp_path / name / "raw").rglob("*.off"))) == 4


def test_a_real_set_that_is_not_there_says_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError) as caught:
        load_point_set("ModelNet10")
    assert str(caught.value) == (
        "dataset=ModelNet10 is real data that is not on this machine (no --root was given): give "
        "--root FOLDER that holds ModelNet10/raw/CLASS/train and test/*.off, add --download to "
        "fetch it into that folder, or use --dataset modelnet-like, a stand-in of its shape."
    )
    with pytest.raises(FileNotFoundError, match=r"ModelNet40.raw.bathtub is missing"):
        load_point_set("ModelNet40", root=tmp_path)

    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(point_sets, "ModelNet", refuse)
    with pytest.raises(ConnectionError, match=r"cannot be downloaded .*unreachable"):
        load_point_set("ModelNet10", root=tmp_path, download=True)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": "modelnet"}, "is unknown; give one of ModelNet10, ModelNet40, modelnet-like"),
        ({"name": "modelnet-like", "scale": 0.02}, r"leaves 18 clouds .*at least 0\.023"),
        ({"name": "modelnet-like", "num_points": 8}, "num_points=8 is too few; give at least 16"),
        ({"name": "ModelNet10", "scale": 2}, "only the '-like' stand-ins can be scaled"),
    ],
)
def test_a_bad_argument_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_point_set(**arguments)
