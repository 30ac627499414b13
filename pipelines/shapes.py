"""One picture of the sample: shapes lying on a photograph-like background."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

from shardbeam.pipelines.polygons import (
    Coverage,
    Patch,
    Points,
    clip_polygon,
    cover_polygon,
    join_patches,
    snap,
)
from shardbeam.pipelines.textures import Colour, Pixels, Texture, blend, draw_background, draw_noise

Counts = npt.NDArray[np.intp]

COLOURS: dict[str, Colour] = {
    "red": (200, 40, 36),
    "orange": (232, 130, 32),
    "yellow": (238, 206, 56),
    "green": (44, 150, 62),
    "blue": (40, 84, 196),
    "purple": (122, 52, 156),
    "pink": (236, 134, 172),
    "white": (238, 236, 230),
    "black": (36, 36, 40),
}

# No shape hides more than this part of one below it.
_MOST_HIDDEN = 0.5
_PLACING_TRIES = 20
_SMALLEST_RADIUS_PX = 3
_FEWEST_IN_CROWD, _MOST_IN_CROWD = 8, 16


def _regular_polygon(corners: int) -> Points:
    angles = 2 * np.pi * np.arange(corners) / corners
    return np.stack([np.sin(angles), -np.cos(angles)], axis=1)


def _star() -> Points:
    outline = _regular_polygon(10)
    outline[1::2] *= 0.45
    return outline


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """A kind of shape, in a circle of radius 1 about the origin.

    Attributes:
        outline: Its vertices, clockwise from the topmost, of shape (vertices, 2).
        corners: Which of them are its corners.
    """

    outline: Points
    corners: tuple[int, ...]


SHAPES = {
    # Drawn, and annotated, as a polygon.
    "circle": Shape(outline=_regular_polygon(48), corners=()),
    "square": Shape(outline=_regular_polygon(4), corners=(0, 1, 2, 3)),
    "triangle": Shape(outline=_regular_polygon(3), corners=(0, 1, 2)),
    "star": Shape(outline=_star(), corners=(0, 2, 4, 6, 8)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Thing:
    """A shape in a picture, or a crowd of tiny ones.

    Attributes:
        shape: Its name in `SHAPES`.
        colour: Its name in `COLOURS`.
        outlines: The polygons drawn, of shape (vertices, 2), within the picture: one, or one for
            each member of a crowd.
        corners: Clockwise from the topmost, of shape (corners, 2), also outside the picture; none
            for a crowd.
        patch: The pixels it takes, also where another covers it.
        is_crowd: Whether it is a crowd.
    """

    shape: str
    colour: str
    outlines: tuple[Points, ...]
    corners: Points
    patch: Patch
    is_crowd: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """A picture and what is in it.

    Attributes:
        pixels: RGB, uint8 of shape (height, width, 3).
        textures: The background's textures.
        things: The shapes, each before those that may cover it.
        segments: What is seen at each pixel, as an index into `textures` followed by `things`;
            uint8 of shape (height, width).
    """

    pixels: Pixels
    textures: tuple[Texture, ...]
    things: tuple[Thing, ...]
    segments: Pixels


def draw_picture(
    *,
    rng: np.random.Generator,
    width: int,
    height: int,
    shapes: Sequence[str],
    radius_range: tuple[float, float],
    crowd: str | None = None,
) -> Picture:
    """Draws a picture.

    Shapes are turned, scaled and coloured at random. They may reach over the border by half
    their radius, and hide up to half of one another. A shape that finds no such place is left
    out.

    Args:
        rng: Decides all that the other arguments leave open.
        width: In pixels.
        height: In pixels.
        shapes: The name of each shape.
        radius_range: The smallest and greatest radius, relative to the picture's shorter side.
        crowd: The name of the shape of which there is a crowd, below all others; None for none.
    """
    background = draw_background(rng=rng, width=width, height=height)
    canvas = _Canvas(
        rng=rng,
        pixels=background.pixels,
        segments=background.regions,
        num_textures=len(background.textures),
    )
    if crowd is not None:
        canvas.add_crowd(crowd)
    for shape in shapes:
        canvas.add_shape(shape, radius_range=radius_range)
    return Picture(
        pixels=canvas.pixels,
        textures=background.textures,
        things=tuple(canvas.things),
        segments=canvas.segments,
    )


class _Canvas:
    """A picture while it is being drawn; `Picture` describes its attributes."""

    def __init__(
        self, *, rng: np.random.Generator, pixels: Pixels, segments: Pixels, num_textures: int
    ) -> None:
        self.pixels = pixels
        self.segments = segments
        self.things: list[Thing] = []
        self._rng = rng
        self._num_textures = num_textures
        self._size = np.array(segments.shape[::-1])
        # Pixels of each thing: those it takes, and those of them that nothing hides.
        self._taken: Counts = np.empty(0, np.intp)
        self._seen: Counts = np.empty(0, np.intp)

    def add_shape(self, name: str, *, radius_range: tuple[float, float]) -> None:
        shape = SHAPES[name]
        colour = self._choose_colour()
        for _ in range(_PLACING_TRIES):
            # As many small ones as large ones, by ratio.
            radius = math.exp(self._rng.uniform(*np.log(radius_range))) * self._size.min()
            centre = self._rng.uniform(radius / 2, self._size - radius / 2)
            whole = self._place(shape, centre=centre, radius=radius)
            outline = self._clip(whole)
            patch = cover_polygon(outline)
            if patch.mask.any() and not self._hides_too_much(patch):
                self._paint(patch, COLOURS[colour])
                self._add(
                    Thing(
                        shape=name,
                        colour=colour,
                        outlines=(outline,),
                        corners=whole[list(shape.corners)],
                        patch=patch,
                        is_crowd=False,
                    )
                )
                return

    def add_crowd(self, name: str) -> None:
        shape = SHAPES[name]
        colour = self._choose_colour()
        side = self._size.min()
        spread = self._rng.uniform(0.12, 0.2) * side
        middle = self._rng.uniform(spread, self._size - spread)
        outlines = []
        patches = []
        for _ in range(self._rng.integers(_FEWEST_IN_CROWD, _MOST_IN_CROWD, endpoint=True)):
            angle = self._rng.uniform(0, 2 * np.pi)
            # The root makes them equally dense everywhere.
            away = spread * math.sqrt(self._rng.random())
            centre = middle + away * np.array([np.cos(angle), np.sin(angle)])
            radius = self._rng.uniform(0.015, 0.03) * side
            outlines.append(self._clip(self._place(shape, centre=centre, radius=radius)))
            patches.append(cover_polygon(outlines[-1]))
            self._paint(patches[-1], COLOURS[colour])
        self._add(
            Thing(
                shape=name,
                colour=colour,
                outlines=tuple(outlines),
                corners=np.empty((0, 2)),
                patch=join_patches(patches),
                is_crowd=True,
            )
        )

    def _choose_colour(self) -> str:
        return list(COLOURS)[self._rng.integers(len(COLOURS))]

    def _place(self, shape: Shape, *, centre: Points, radius: float) -> Points:
        # All turns that look different; in each the first corner is the topmost.
        turn = self._rng.uniform(-1, 1) * np.pi / max(len(shape.corners), 1)
        axes = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
        return snap(centre + max(radius, _SMALLEST_RADIUS_PX) * shape.outline @ axes)

    def _clip(self, outline: Points) -> Points:
        width, height = self._size.tolist()
        return clip_polygon(outline, width=width, height=height)

    def _hides_too_much(self, patch: Patch) -> bool:
        left = self._seen - self._count_hidden(patch)
        return bool((left < (1 - _MOST_HIDDEN) * self._taken).any())

    def _count_hidden(self, patch: Patch) -> Counts:
        """Counts the pixels of each thing that a patch would hide."""
        hidden = self.segments[patch.window][patch.mask]
        counts = np.bincount(hidden, minlength=self._num_textures + len(self.things))
        return counts[self._num_textures :]

    def _add(self, thing: Thing) -> None:
        taken = thing.patch.mask.sum()
        self._seen = np.append(self._seen - self._count_hidden(thing.patch), taken)
        self._taken = np.append(self._taken, taken)
        index = self._num_textures + len(self.things)
        self.segments[thing.patch.window][thing.patch.mask] = index
        self.things.append(thing)

    def _paint(self, patch: Patch, colour: Colour) -> None:
        """Paints a rounded, unevenly coloured shape, lit from the top left, and its shadow."""
        rows, columns = patch.coverage.shape
        blur = 1 + max(rows, columns) // 30
        margin = 3 * blur
        soft = _blur(np.pad(patch.coverage, margin), radius=blur)
        self._cast(0.45 * soft, x=patch.x - margin + 2 * blur, y=patch.y - margin + 2 * blur)

        tile = draw_noise(rng=self._rng, width=64, height=64, falloff=1.1)
        uneven = np.asarray(Image.fromarray(tile).resize((columns, rows)))
        slope = np.linspace(0.12, -0.12, rows)[:, np.newaxis] + np.linspace(0.12, -0.12, columns)
        rim = soft[margin:-margin, margin:-margin] - 1
        light = 1 + 0.05 * uneven + slope + 0.4 * rim
        tint = np.multiply(colour, self._rng.uniform(0.9, 1.1, 3))
        material = np.clip(light[..., np.newaxis] * tint, 0, 255).astype(np.float32)
        self.pixels[patch.window] = blend(self.pixels[patch.window], material, alpha=patch.coverage)

    def _cast(self, shadow: Coverage, *, x: int, y: int) -> None:
        """Darkens the picture by a shadow, which may reach over its border."""
        shadow = shadow[max(-y, 0) :, max(-x, 0) :]
        rows, columns = shadow.shape
        ground = self.pixels[max(y, 0) :, max(x, 0) :][:rows, :columns]
        rows, columns, _ = ground.shape
        ground[:] = blend(ground, np.zeros(3, np.float32), alpha=shadow[:rows, :columns])


def _blur(coverage: Coverage, *, radius: float) -> Coverage:
    levels = Image.fromarray((255 * coverage).astype(np.uint8))
    blurred = np.asarray(levels.filter(ImageFilter.GaussianBlur(radius)), np.float32)
    blurred /= 255
    return blurred
