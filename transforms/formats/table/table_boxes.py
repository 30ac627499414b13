"""Finds the columns of a table that hold boxes, by their names and by their first values."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardbeam.transforms.core.box_formats import BoxFormat
from shardbeam.transforms.formats.names import is_image_name
from shardbeam.transforms.formats.parsing.table_columns import (
    first_of,
    is_number,
    json_text,
    value_of_text,
)

# Names in lower case, without spaces, `_` and `-`.
_PREFIXES = ("", "bbox", "box")


def _names(*names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}{name}" for name in names for prefix in _PREFIXES)


_TOP_LEFT = (_names("xmin", "x1", "left"), _names("ymin", "y1", "top"))
_BOTTOM_RIGHT = (_names("xmax", "x2", "right"), _names("ymax", "y2", "bottom"))
_CENTRE = (_names("cx", "xcenter", "centerx"), _names("cy", "ycenter", "centery"))
# Columns `width` and `height` may hold the size of the image, so other names come first.
_OWN_WIDTH = (*("boxwidth", "bboxwidth"), *_names("w"))
_OWN_HEIGHT = (*("boxheight", "bboxheight"), *_names("h"))
SIZE_NAMES = (("width",), ("height",))
_SIDES = ((*_OWN_WIDTH, "width"), (*_OWN_HEIGHT, "height"))
_CORNERS = (*_TOP_LEFT, *_BOTTOM_RIGHT)

# Names of four columns, and what they say about the numbers; None if they do not say it.
_NAMES: Sequence[tuple[Sequence[Sequence[str]], BoxFormat | None]] = (
    (_CORNERS, "xyxy"),
    ((*_CENTRE, *_SIDES), "cxcywh"),
    ((*_TOP_LEFT, *_SIDES), "xywh"),
    ((("bboxx", "boxx"), ("bboxy", "boxy"), *_SIDES), "xywh"),
    ((("x",), ("y",), _OWN_WIDTH, _OWN_HEIGHT), "xywh"),
    ((("x",), ("y",), *SIZE_NAMES), None),
)
# Numbers with a unit, which are texts.
_WITH_UNIT = re.compile(r"-?[0-9.,]+\s*(%|px|pixels?)", re.IGNORECASE)
_SPACE = re.compile(r"[\s,;]+")
# Kaggle's run lengths of masks: pairs of whole numbers, a start and a length.
_RUN_LENGTHS = re.compile(r"\s*[0-9]+(?:\s+[0-9]+)+\s*", re.ASCII)
_RUN_LENGTH_NAMES = ("encodedpixels", "rle", "rlemask", "maskrle")
_LISTS, _BETWEEN = re.compile(r"\s*\[\s*\["), re.compile(r"\]\s*,?\s*\[")
_FIX = (
    "xyxy if they are two corners, xywh for the top left corner and the sides, cxcywh for the "
    "centre and the sides; to write them as features, give them types in `columns`"
)


class UnclearBoxesError(ValueError):
    """Columns look like boxes, and nothing says what their numbers mean."""


class BoxColumns(NamedTuple):
    """The columns of boxes.

    Attributes:
        names: A column for each of a box's four numbers, or one with all of them; empty if there
            are no boxes.
        format: What the numbers mean.
    """

    names: tuple[str, ...] = ()
    format: BoxFormat = "xyxy"


def find_boxes(
    names: Sequence[str],
    first: FirstRows,
    *,
    box_format: BoxFormat | None,
    are_sizes: Callable[[Sequence[str]], bool],
) -> BoxColumns:
    """Finds the columns of boxes.

    Args:
        names: The columns that may hold boxes.
        first: The first rows.
        box_format: What the numbers mean, if the config says so.
        are_sizes: Whether the last two of four columns hold the size of whole images.

    Raises:
        UnclearBoxesError: The columns look like boxes, and their meaning is not certain.
    """
    if box_format is None and (third := first_of(_names("x3"), names)):
        raise UnclearBoxesError(
            f"the columns up to {third} look like the corners of quadrilaterals, which are not "
            "read: name the four columns of a box in box_columns, or give these types in `columns`"
        )
    for candidates, meaning in _NAMES:
        columns = tuple(first_of(each, names) for each in candidates)
        if all(columns) and (example := _first_with_unit(columns, first)):
            raise UnclearBoxesError(
                f"the columns {', '.join(columns)} look like boxes, but hold {example!a} and the "
                "like: write numbers without a unit (fractions of 1 in the place of percent); to "
                "write them as features, give them types in `columns`"
            )
        # A number with a decimal comma is text, and only rejects its row.
        cells = (cell for name in columns for cell in first.numbers(name))
        if not all(columns) or not any(map(is_number, cells)):
            continue
        if box_format is not None:
            # The names of corners do not matter then, as tools write anything into them.
            if candidates is _CORNERS or box_format in ("xywh", "cxcywh"):
                return BoxColumns(columns, box_format)
        elif candidates is _CORNERS or not are_sizes(columns):
            if meaning is None:
                raise UnclearBoxesError(
                    f"the columns {', '.join(columns)} look like boxes: set box_format to xywh if "
                    f"{columns[0]} and {columns[1]} are the top left corner, or to cxcywh if they "
                    "are the centre; to write them as features, give them types in `columns`"
                )
            return BoxColumns(columns, meaning)
    return _find_lists(names, first, box_format=box_format)


def _find_lists(
    names: Sequence[str], first: FirstRows, *, box_format: BoxFormat | None
) -> BoxColumns:
    for name in names:
        if example := next(filter(_holds_boxes, first.numbers(name)), None):
            raise UnclearBoxesError(
                f"the cells of the column {name} hold several boxes, such as {str(example)[:60]}, "
                "but a row is one object: write a row for each, or give the column the type string "
                "in `columns`"
            )
    found = {
        name: example
        for name in names
        if (example := _first_list(first.numbers(name)))
        and (box_format or not holds_run_lengths(name, first))
    }
    if not found:
        return BoxColumns()
    if len(found) > 1:
        raise UnclearBoxesError(
            f"the columns {', '.join(found)} look like boxes: name one in box_columns; to write "
            "the others as features, give them types in `columns`"
        )
    ((name, example),) = found.items()
    if box_format is None:
        raise UnclearBoxesError(
            f"the cells of the column {name} look like boxes, such as {example}: set box_format "
            f"to {_FIX}"
        )
    return BoxColumns((name,), box_format)


def meaning_of(columns: Sequence[str]) -> BoxFormat:
    """Returns what the names of given columns say about their numbers.

    Raises:
        UnclearBoxesError: They do not say it.
    """
    for candidates, meaning in _NAMES:
        found = (first_of(each, [name]) for each, name in zip(candidates, columns, strict=False))
        if meaning is not None and len(columns) == len(candidates) and all(found):
            return meaning
    raise UnclearBoxesError(
        f"box_columns: the names do not say what the numbers mean: set box_format to {_FIX}"
    )


def four_numbers(cell: object) -> list[float] | None:
    """Reads four numbers from a cell: a list, or a text such as `[1, 2, 3, 4]` or `1 2 3 4`."""
    values: list[Any]
    if isinstance(cell, str):
        values = _SPACE.split(cell.strip().strip("()[]{}").strip())
    elif isinstance(cell, list):
        values = cell
    else:
        return None
    if len(values) != 4 or any(isinstance(value, bool) for value in values):
        return None
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        return None


def _holds_boxes(cell: object) -> bool:
    """Whether a cell is a list of boxes, such as `[[1, 2, 3, 4], [5, 6, 7, 8]]`."""
    parts: list[Any] = []
    if isinstance(cell, str) and _LISTS.match(cell):
        parts = _BETWEEN.split(cell.strip(" []"))
    elif isinstance(cell, list):
        parts = [part for part in cell if isinstance(part, list)]
    return bool(parts) and all(four_numbers(part) is not None for part in parts)


def _first_list(values: Iterable[object]) -> list[float] | None:
    """Returns the first four numbers of a column, if more than half of its cells hold four."""
    cells = [value for value in values if not is_missing(value)]
    found = [numbers for cell in cells if (numbers := four_numbers(cell)) is not None]
    return found[0] if 2 * len(found) > len(cells) else None


def holds_run_lengths(name: str, first: FirstRows) -> bool:
    """Whether a column holds the run lengths of masks, of which a cell may have four numbers.

    Its name says so, or other cells have more or fewer pairs of whole numbers.
    """
    cells = [cell for cell in first.texts(name) if _RUN_LENGTHS.fullmatch(cell)]
    lengths = {len(cell.split()) for cell in cells}
    is_named = bool(first_of(_RUN_LENGTH_NAMES, [name]))
    return bool(cells) and all(it % 2 == 0 for it in lengths) and (is_named or len(lengths) > 1)


def is_missing(cell: object) -> bool:
    """Whether a cell holds nothing: it is empty, NaN or an empty list."""
    return cell is None or cell == [] or cell != cell


def flag_text(cell: object) -> str:
    """Returns a cell of a one-hot table as a text: `-1.0` is `-1`, and a missing one is empty."""
    value = value_of_text(cell) if isinstance(cell, str) else cell
    if is_missing(value):
        return ""
    return json_text(int(value) if isinstance(value, float) and value.is_integer() else value)


def _first_with_unit(columns: Sequence[str], first: FirstRows) -> str | None:
    cells = (cell for name in columns for cell in first.numbers(name) if isinstance(cell, str))
    return next((cell for cell in cells if _WITH_UNIT.fullmatch(cell.strip())), None)


# What the first rows of a table show about its columns.

# A row of a file, `{column: cell}`.
Row = Mapping[str, Any]
# Texts that may stand between several labels in one cell.
_SEPARATORS = ("|", ";", ",", "/", " ")
# Flickr8k numbers the captions of an image behind its name: `a.jpg#0`.
_NUMBERED = re.compile(r"(.+)#[0-9]+\Z", re.DOTALL)

# Boxes with an area of less than a pixel that are no coincidence.
_MIN_FRACTIONS = 3
# Words of the longest label.
_LABEL_WORDS = 4


class FirstRows(NamedTuple):
    """The first rows of a table.

    Attributes:
        names: All columns.
        rows: The rows.
        cells_are_text: Whether all cells are texts.
    """

    names: Sequence[str]
    rows: Sequence[Row]
    cells_are_text: bool

    def values(self, name: str) -> Iterator[object]:
        """Returns the values of a column; None for a missing one."""
        for row in self.rows:
            cell = row.get(name)
            if self.cells_are_text and isinstance(cell, str):
                cell = value_of_text(cell)
            yield cell

    def numbers(self, name: str) -> Iterator[object]:
        """Returns the values of a column, where texts may be numbers."""
        # Some tools write the numbers of a JSON file as texts.
        return (value_of_text(it) if isinstance(it, str) else it for it in self.values(name))

    def texts(self, name: str) -> Iterator[str]:
        """Returns the cells of a column as texts, without empty ones."""
        cells = (row.get(name) for row in self.rows)
        texts = (json_text(cell).strip() for cell in cells if not is_missing(cell))
        return (text for text in texts if text)

    def holds_flags(self, name: str) -> bool:
        """Whether a column holds nothing but 0 and 1."""
        values = [*self.numbers(name)]
        return bool(values) and all(type(it) in (int, float) and it in (0, 1) for it in values)

    def note_fractions(self, columns: Sequence[str]) -> Iterator[str]:
        """Describes boxes in fractions among boxes in pixels.

        Args:
            columns: The columns of boxes.
        """
        cells = zip(*map(self.numbers, columns), strict=True)
        found = (four_numbers([*box] if len(box) > 1 else box[0]) for box in cells)
        boxes = [box for box in found if box is not None and not any(map(is_missing, box))]
        fractions = sum(all(0 <= side <= 1 for side in box) for box in boxes)
        if fractions >= _MIN_FRACTIONS:
            yield (
                f"{fractions:,} of the first {len(boxes):,} boxes lie within 0 to 1, like "
                "fractions, and the others do not; all are read as pixels: write all of them in "
                "one unit, or set box_units"
            )

    def holds_sentences(self, name: str) -> bool:
        """Whether most cells of a column are sentences."""
        texts = [*self.texts(name)]
        return 2 * sum(map(is_sentence, texts)) > len(texts)

    def repeats_images(self, name: str) -> bool:
        """Whether several rows name one image."""
        names = [image_name(text) for text in self.texts(name)]
        return len(set(names)) < len(names)

    def separator(self, name: str) -> str:
        """Finds the text between several labels in one cell; empty if there seems to be none.

        At least half of the cells with this text then consist of labels that other cells have
        alone.
        """
        labels = set(self.texts(name))
        for separator in _SEPARATORS:
            several = [label.split(separator) for label in labels if separator in label]
            known = sum(all(part.strip() in labels for part in parts) for parts in several)
            if known and 2 * known >= len(several):
                return separator
        return ""

    def contradiction(self, ids: str, names: str) -> str:
        """Describes a class with two ids or two names; empty if there is none."""
        pairs = {
            (json_text(row[ids]).strip(), json_text(row[names]).strip())
            for row in self.rows
            if row.get(ids) not in (None, "") and row.get(names) not in (None, "")
        }
        for one, other in ((0, 1), (1, 0)):
            found: dict[str, set[str]] = defaultdict(set)
            for pair in pairs:
                found[pair[one]].add(pair[other])
            for value in sorted(found):
                if len(found[value]) > 1:
                    return f"{value} is {' and '.join(sorted(found[value])[:2])}"
        return ""


def is_sentence(text: str) -> bool:
    """Whether a text is too long for a label."""
    return len(text.split()) > _LABEL_WORDS


def image_name(text: str) -> str:
    """Removes the number of a caption from an image's name: `a.jpg#0` is `a.jpg`."""
    match = _NUMBERED.match(text)
    return match[1] if match is not None and is_image_name(match[1]) else text
