"""What the first rows of a table show about its columns."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from shardbeam.transforms.formats.names import is_image_name
from shardbeam.transforms.formats.parsing.table_columns import json_text, value_of_text
from shardbeam.transforms.formats.table.table_boxes import four_numbers, is_missing

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
