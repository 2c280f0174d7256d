"""Points on surfaces of ten shapes, drawn so that one seed gives the same bits everywhere.

Sines and cosines differ in their last bit from platform to platform. Directions are therefore drawn
by rejection (a point in the disc or ball, divided by its length), which takes only sums, products,
quotients and square roots, and these IEEE 754 rounds exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Surface = Callable[[int, np.random.Generator], tuple[Points, Points]]

GRID = 1 << 20  # coordinates are drawn as whole numbers below this
TORUS_TUBE = 0.35  # radius of the tube; the ring has radius 1
HELIX_TUBE, HELIX_STEPS, HELIX_TAN = 0.22, 126, 1 / 16  # 2.5 turns of 2 atan(1/16) each
HELIX_RISE = 0.022  # per step


def uniform(shape: int | tuple[int, ...], rng: np.random.Generator) -> Points:
    """Return numbers in [0, 1), multiples of 2^-20."""
    numbers: Points = rng.integers(0, GRID, shape) / GRID
    return numbers


def directions(count: int, dim: int, rng: np.random.Generator) -> Points:
    """Return unit vectors, uniform over the circle or sphere, [count, dim]."""
    found = np.empty((0, dim))
    while len(found) < count:
        ball = 2 * uniform((2 * count, dim), rng) - 1
        squared = _squared_length(ball)
        inside = (squared <= 1) & (squared > 1e-4)
        unit = ball[inside] / np.sqrt(squared[inside])[:, None]
        found = np.concatenate([found, unit])
    return found[:count]


def disc(count: int, rng: np.random.Generator) -> Points:
    """Return points uniform over the unit disc, [count, 2]."""
    return directions(count, 2, rng) * np.sqrt(uniform(count, rng))[:, None]


def sphere(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals, [count, 3] each, of the unit sphere."""
    normal = directions(count, 3, rng)
    return normal, normal


def ellipsoid(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of a long ellipsoid; denser at its ends than by area."""
    axes = np.array([0.45, 0.6, 1.0])
    unit = directions(count, 3, rng)
    return unit * axes, _normalized(unit / axes)


def cube(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of a cube."""
    return _box(count, np.array([0.7, 0.7, 0.7]), rng)


def planes(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of two parallel squares, one above the other."""
    side = 2 * rng.integers(0, 2, count) - 1.0
    plane = 2 * uniform((count, 2), rng) - 1
    zero = np.zeros(count)
    position = np.stack([plane[:, 0], plane[:, 1], 0.4 * side], axis=1)
    return position, np.stack([zero, zero, side], axis=1)


def cylinder(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of a closed cylinder of radius 0.5 and height 2."""
    around = directions(count, 2, rng)
    height = 2 * uniform(count, rng) - 1
    zero = np.zeros(count)
    side = np.stack([0.5 * around[:, 0], 0.5 * around[:, 1], height], axis=1)
    side_normal = np.stack([around[:, 0], around[:, 1], zero], axis=1)
    flat = 0.5 * disc(count, rng)
    end = 2 * rng.integers(0, 2, count) - 1.0
    cap = np.stack([flat[:, 0], flat[:, 1], end], axis=1)
    cap_normal = np.stack([zero, zero, end], axis=1)
    on_cap = rng.integers(0, 5, count) == 0  # areas: 2 pi on the side, pi / 2 on both caps
    return _either(on_cap, (cap, cap_normal), (side, side_normal))


def cone(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of a closed cone of radius 0.75 and height 1.5, tip up."""
    radius, height = 0.75, 1.5
    around = directions(count, 2, rng)
    width = np.sqrt(uniform(count, rng))  # the share of the radius, by area
    side = np.stack(
        [radius * width * around[:, 0], radius * width * around[:, 1], height * (0.5 - width)],
        axis=1,
    )
    slope = np.full(count, radius / height)
    side_normal = _normalized(np.stack([around[:, 0], around[:, 1], slope], axis=1))
    flat = radius * disc(count, rng)
    zero = np.zeros(count)
    base = np.stack([flat[:, 0], flat[:, 1], zero - height / 2], axis=1)
    base_normal = np.stack([zero, zero, zero - 1], axis=1)
    on_base = rng.integers(0, 1000, count) < 309  # areas: 1 to sqrt(5)
    return _either(on_base, (base, base_normal), (side, side_normal))


def torus(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of a torus about z, by area: the outer half has more."""
    around = directions(count, 2, rng)
    tube = np.empty((0, 2))
    while len(tube) < count:
        drawn = directions(2 * count, 2, rng)
        share = (1 + TORUS_TUBE * drawn[:, 0]) / (1 + TORUS_TUBE)
        tube = np.concatenate([tube, drawn[uniform(2 * count, rng) < share]])
    tube = tube[:count]
    ring = 1 + TORUS_TUBE * tube[:, 0]
    position = np.stack([ring * around[:, 0], ring * around[:, 1], TORUS_TUBE * tube[:, 1]], axis=1)
    normal = np.stack([tube[:, 0] * around[:, 0], tube[:, 0] * around[:, 1], tube[:, 1]], axis=1)
    return position, normal


def helix(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of a tube around a helix of two and a half turns about z.

    Uniform along the helix and round the tube, so a little denser inside than by area.
    """
    step = rng.integers(0, HELIX_STEPS, count)
    cos, sin = _turns(HELIX_STEPS)[step].T
    across, up = directions(count, 2, rng).T
    radius = 0.75 + HELIX_TUBE * across
    middle = (HELIX_STEPS - 1) / 2
    height = HELIX_RISE * (step - middle) + HELIX_TUBE * up
    position = np.stack([radius * cos, radius * sin, height], axis=1)
    # The normal is at a right angle to going round the tube and to going along the helix.
    along = np.stack([-radius * sin, radius * cos, np.full(count, _rise_per_radian())], axis=1)
    round_tube = np.stack([-up * cos, -up * sin, across], axis=1)
    return position, _normalized(_cross(along, round_tube))


def pyramid(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of a pyramid with a square base and four like triangles."""
    half, height = 0.8, 1.3
    # A face is drawn in a frame of its own and turned by quarters: exact changes of sign and axis.
    down = np.sqrt(uniform(count, rng))
    sideways = (2 * uniform(count, rng) - 1) * down * half
    outward = down * half
    quarter = rng.integers(0, 4, count)
    face = np.stack([outward, sideways, height * (0.5 - down)], axis=1)
    normal = _normalized(np.broadcast_to(np.array([height, 0, half]), (count, 3)))
    face, face_normal = _quarter_turns(face, quarter), _quarter_turns(normal, quarter)
    plane = half * (2 * uniform((count, 2), rng) - 1)
    zero = np.zeros(count)
    base = np.stack([plane[:, 0], plane[:, 1], zero - height / 2], axis=1)
    base_normal = np.stack([zero, zero, zero - 1], axis=1)
    on_base = rng.integers(0, 1000, count) < 344  # areas: 2.56 to 4.88
    return _either(on_base, (base, base_normal), (face, face_normal))


def saddle(count: int, rng: np.random.Generator) -> tuple[Points, Points]:
    """Return points and normals of z = (x^2 - y^2) / 2 over a square; even in x and y."""
    x, y = (2 * uniform((count, 2), rng) - 1).T
    position = np.stack([x, y, (x * x - y * y) / 2], axis=1)
    return position, _normalized(np.stack([-x, y, np.ones(count)], axis=1))


SURFACES: dict[str, Surface] = {
    "sphere": sphere,
    "ellipsoid": ellipsoid,
    "cube": cube,
    "planes": planes,
    "cylinder": cylinder,
    "cone": cone,
    "torus": torus,
    "helix": helix,
    "pyramid": pyramid,
    "saddle": saddle,
}
"""The shapes by name, in the order of their classes."""


def turn_about_z(vectors: Points, cos: Points, sin: Points) -> Points:
    """Turn vectors [..., P, 3] about the z axis, each cloud by its own angle."""
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    cos, sin = cos[..., None], sin[..., None]
    return np.stack([cos * x - sin * y, sin * x + cos * y, z], axis=-1)


def _box(count: int, half: Points, rng: np.random.Generator) -> tuple[Points, Points]:
    axis = rng.integers(0, 3, count)
    side = 2 * rng.integers(0, 2, count) - 1.0
    position = 2 * uniform((count, 3), rng) - 1
    rows = np.arange(count)
    position[rows, axis] = side
    normal = np.zeros((count, 3))
    normal[rows, axis] = side
    return position * half, normal


def _turns(steps: int) -> Points:
    """Return unit vectors [steps, 2], each turned by 2 atan(HELIX_TAN) from the one before."""
    squared = HELIX_TAN * HELIX_TAN
    cos_step, sin_step = (1 - squared) / (1 + squared), 2 * HELIX_TAN / (1 + squared)
    cos, sin = 1.0, 0.0
    vectors = []
    for _ in range(steps):
        vectors.append((cos, sin))
        cos, sin = cos * cos_step - sin * sin_step, sin * cos_step + cos * sin_step
    return np.array(vectors)


def _rise_per_radian() -> float:
    """Return the rise of the helix; 2 atan(t) is 2 (t - t^3 / 3 + t^5 / 5 - ...)."""
    t = HELIX_TAN
    angle = 2 * (t - t * t * t / 3 + t * t * t * t * t / 5)
    return HELIX_RISE / angle


def _quarter_turns(vectors: Points, quarter: NDArray[np.int64]) -> Points:
    cos = np.array([1.0, 0.0, -1.0, 0.0])[quarter]
    sin = np.array([0.0, 1.0, 0.0, -1.0])[quarter]
    x, y, z = vectors.T
    return np.stack([cos * x - sin * y, sin * x + cos * y, z], axis=1)


def _either(
    first: NDArray[np.bool_], yes: tuple[Points, Points], no: tuple[Points, Points]
) -> tuple[Points, Points]:
    chosen = first[:, None]
    return np.where(chosen, yes[0], no[0]), np.where(chosen, yes[1], no[1])


def _squared_length(vectors: Points) -> Points:
    """Return the squared length of vectors; added up one by one, in a fixed order."""
    total = vectors[..., 0] * vectors[..., 0]
    for axis in range(1, vectors.shape[-1]):
        total = total + vectors[..., axis] * vectors[..., axis]
    return total


def _normalized(vectors: Points) -> Points:
    lengths: Points = np.sqrt(_squared_length(vectors))
    return vectors / lengths[..., None]


def _cross(a: Points, b: Points) -> Points:
    ax, ay, az = a.T
    bx, by, bz = b.T
    return np.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], axis=1)
