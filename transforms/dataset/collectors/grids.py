"""Heat maps of boxes: grids that count their centres, and their widths and heights.

A grid has 16 rows of 16 cells. It is written as `cell:count` for each cell that is not 0, in the
order of the cells (16 * row + column). A class with few boxes takes few bytes, so every class that
occurs is counted and added up exactly; the largest ones are chosen where the sum is complete.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.dataset.example_findings import Boxes

_MILLION = 1_000_000
# Cells of a row, and rows.
GRID_SIDE = 16
CELLS = GRID_SIDE**2
# The fields of statistics that are grids: of all boxes, and `{class: grid}`.
GRIDS = ("box_centres", "box_sizes", "box_centres_by_class", "box_sizes_by_class")

_GRID = re.compile("(?:[0-9]{1,3}:[0-9]{1,19}(?: (?=[0-9])|$))*")


class GridSums:
    """Adds up grids by field and class; their order and grouping do not matter."""

    def __init__(self) -> None:
        self._grids: dict[str, list[str]] = {}
        self._by_class: dict[str, dict[str, list[str]]] = {}

    def add(self, field: str, value: str | Mapping[str, str]) -> None:
        """Adds the value of a field of `GRIDS`."""
        if isinstance(value, str):
            self._grids.setdefault(field, []).append(value)
            return
        by_class = self._by_class.setdefault(field, {})
        for name, grid in value.items():
            by_class.setdefault(name, []).append(grid)

    def sums(self) -> dict[str, str | dict[str, str]]:
        """Returns the sum of each field that was added."""
        return {
            **{field: _add_grids(grids) for field, grids in self._grids.items()},
            **{
                field: {name: _add_grids(grids) for name, grids in by_class.items()}
                for field, by_class in self._by_class.items()
            },
        }


def _add_grids(grids: Iterable[str]) -> str:
    filled = [grid for grid in grids if grid]
    if len(filled) < 2:
        return "".join(filled)
    total = [0] * CELLS
    numbers = list(map(int, " ".join(filled).replace(":", " ").split()))
    for cell, count in zip(numbers[::2], numbers[1::2], strict=True):
        total[cell] += count
    return write_grid(enumerate(total))


def write_grid(counts: Iterable[tuple[int, int]]) -> str:
    """Writes a grid, from the count of each cell in ascending order."""
    return " ".join(f"{cell}:{count}" for cell, count in counts if count)


def read_grid(grid: str) -> Sequence[int]:
    """Returns the count of each cell, row by row.

    Raises:
        ValueError: It is no grid.
    """
    total = [0] * CELLS
    if not _GRID.fullmatch(grid):
        raise ValueError("not a grid of cells and counts")
    last = -1
    for each in grid.split():
        cell, _, count = each.partition(":")
        number = int(cell)
        if not last < number < CELLS:
            raise ValueError(f"the cell {number} is twice there, not in order, or not in the grid")
        total[number] = int(count)
        last = number
    return total


_Floats: TypeAlias = npt.NDArray[np.float64]

# Lower bounds of the columns and of the rows, in millionths of the image's width or height.
GRID_BINS: Mapping[str, tuple[int, ...]] = {
    "box_centres": tuple(part * _MILLION // GRID_SIDE for part in range(GRID_SIDE)),
    # Each is the square root of 2 times the one before; the last one ends with the image.
    "box_sizes": (0, *(round(_MILLION / 2 ** (step / 2)) for step in range(GRID_SIDE - 1, 0, -1))),
}


class BoxGrids(NamedTuple):
    """The fields of `ObjectStatistics` that are grids."""

    box_centres: str
    box_centres_by_class: dict[str, str]
    box_sizes: str
    box_sizes_by_class: dict[str, str]


def count_grids(boxes: Boxes, names: Sequence[str]) -> BoxGrids:
    """Counts boxes in grids, for all classes and for each one.

    Args:
        boxes: Their corners in fractions of the images.
        names: The class of each.
    """
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    classes = np.array([numbers[name] for name in names], np.int64)
    with np.errstate(all="ignore"):
        centres = (boxes.xmin + boxes.xmax) / 2, (boxes.ymin + boxes.ymax) / 2
        sizes = boxes.xmax - boxes.xmin, boxes.ymax - boxes.ymin
    count = functools.partial(_count_cells, classes=classes, names=list(numbers))
    return BoxGrids(
        *count(*centres, bounds=GRID_BINS["box_centres"]),
        *count(*sizes, bounds=GRID_BINS["box_sizes"]),
    )


def _count_cells(
    x: _Floats,
    y: _Floats,
    *,
    bounds: Sequence[int],
    classes: npt.NDArray[np.int64],
    names: Sequence[str],
) -> tuple[str, dict[str, str]]:
    shares = [bound / _MILLION for bound in bounds]
    cells = GRID_SIDE * place_in_bins(y, shares) + place_in_bins(x, shares)
    counts = np.bincount(cells, minlength=CELLS).tolist()
    by_class = _by_class(cells, classes=classes, names=names)
    return write_grid(enumerate(counts)), by_class


def _by_class(
    cells: npt.NDArray[np.int64], *, classes: npt.NDArray[np.int64], names: Sequence[str]
) -> dict[str, str]:
    keys, counts = np.unique(CELLS * classes + cells, return_counts=True)
    filled, numbers, starts = (keys % CELLS).tolist(), counts.tolist(), keys // CELLS
    ends = np.searchsorted(starts, np.arange(len(names) + 1)).tolist()
    grids: dict[str, str] = {}
    for name, start, end in zip(names, ends, ends[1:], strict=False):
        grids[name] = write_grid(zip(filled[start:end], numbers[start:end], strict=True))
    return grids


def place_in_bins(values: npt.NDArray[Any], bounds: Sequence[float]) -> npt.NDArray[np.int64]:
    """Returns the number of each value's bin, from 0; NaN is in the bin of 0."""
    numbers = np.nan_to_num(values, nan=0.0)
    return np.maximum(np.searchsorted(bounds, numbers, side="right") - 1, 0)
