"""Heat maps of boxes for the page: where their centres are, and how large they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.core.text import NO_NAME
from shardbeam.transforms.dataset.collectors.grids import GRID_SIDE, read_grid
from shardbeam.transforms.dataset.collectors.statistics import Statistics

# Shades of a heat map. The square root of a cell's count decides, so that rare cells are seen.
_SHADES = 8
# Rows and columns of the table beside a heat map, each of four rows or columns of the grid.
_PARTS = 4
_QUARTERS = ("0 to 25 %", "25 to 50 %", "50 to 75 %", "75 to 100 %")
_OCTAVES = ("to 1.6 %", "to 6.3 %", "to 25 %", "to 100 %")


class HeatMap(NamedTuple):
    """A heat map of all boxes.

    Attributes:
        name: Its name in the page's script.
        title: What it shows.
        axes: What its columns and rows are.
        grid: Its counts, as the script reads them.
        columns: Headings of the table's columns, from the left, and of its rows.
        middle: Where the rows and columns of the grid that `words` names begin, and where they end.
        words: What is said of these cells.
        ends: What is written below the left end, the middle and the right end; may be empty.
        rises: Whether its first row is at the bottom.
    """

    name: str
    title: str
    axes: str
    grid: str
    columns: Sequence[str]
    middle: tuple[int, int]
    words: str
    ends: Sequence[str] = ()
    rises: bool = False

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The boxes in each cell, (rows, columns)."""
        return np.array(read_grid(self.grid)).reshape(GRID_SIDE, GRID_SIDE)

    @property
    def share(self) -> str:
        """How many percent of the boxes are in the cells that `words` names."""
        middle = slice(*self.middle)
        return _percent(self.counts[middle, middle].sum(), self.counts.sum())

    @property
    def paths(self) -> Sequence[str]:
        """The cells of each shade, from the lightest, in SVG."""
        shades = np.ceil(_SHADES * np.sqrt(self.counts / self.counts.max()))
        return [
            "".join(
                f"M{column} {GRID_SIDE - 1 - row if self.rises else row}h1v1h-1z"
                for row, column in np.argwhere(shades == shade)
            )
            for shade in range(1, _SHADES + 1)
        ]

    @property
    def rows(self) -> Sequence[tuple[str, Sequence[str]]]:
        """`(heading, percent of the boxes in each column)` of the table's rows, from the top."""
        side = GRID_SIDE // _PARTS
        sums = self.counts.reshape(_PARTS, side, _PARTS, side).sum(axis=(1, 3))
        rows = [
            (heading, [_percent(each, self.counts.sum()) for each in row])
            for heading, row in zip(self.columns, sums, strict=True)
        ]
        return rows[::-1] if self.rises else rows


class HeatClass(NamedTuple):
    """The grids of one class."""

    name: str
    objects: int
    centres: str
    sizes: str


class HeatMaps(NamedTuple):
    """The heat maps of a dataset, and the grids of its largest classes."""

    boxes: int
    maps: Sequence[HeatMap]
    classes: Sequence[HeatClass]
    all_classes: int


def draw_heat_maps(total: Statistics) -> HeatMaps | None:
    """Draws the heat maps of all boxes; None without boxes."""
    if not all(sum(read_grid(grid)) for grid in (total.box_centres, total.box_sizes)):
        return None
    centres = HeatMap(
        "centres",
        "Where boxes are",
        "centres",
        total.box_centres,
        columns=_QUARTERS,
        middle=(4, 12),
        words="in the middle half of the image's width and height",
    )
    sizes = HeatMap(
        "sizes",
        "How large boxes are",
        "shares of width and height, both axes log",
        total.box_sizes,
        columns=_OCTAVES,
        middle=(0, 12),
        words="narrower and lower than a quarter of the image",
        ends=("0.4 %", "6.3 %", "100 %"),
        rises=True,
    )
    by_objects = sorted(
        total.box_centres_by_class, key=lambda name: (-total.objects_by_class.get(name, 0), name)
    )
    classes = [
        HeatClass(
            name or NO_NAME,
            sum(read_grid(total.box_centres_by_class[name])),
            total.box_centres_by_class[name],
            total.box_sizes_by_class.get(name, ""),
        )
        for name in by_objects
    ]
    return HeatMaps(
        sum(read_grid(total.box_centres)),
        (centres, sizes),
        classes if len(classes) > 1 else (),
        len(total.objects_by_class),
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.0f} %"
