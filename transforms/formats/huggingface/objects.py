"""Objects in rows of Hugging Face's datasets, and the order of the numbers of their boxes.

No dataset declares that order, and real ones have xywh (cppe-5), xyxy (detection-datasets/coco) and
yxyx in fractions (openfoodfacts/nutriscore-object-detection).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BOX_FORMATS, BoxFormat, BoxUnits
from shardbeam.transforms.core.records import ObjectAnnotation, Value
from shardbeam.transforms.examples.geometry.box_readings import CORNERS
from shardbeam.transforms.examples.geometry.boxes import Size
from shardbeam.transforms.examples.geometry.frame import AnnotatedFrame
from shardbeam.transforms.formats.parsing.table_columns import (
    CellError,
    ColumnType,
    first_of,
    infer_type,
    join_names,
    json_text,
    read_cell,
)
from shardbeam.transforms.formats.table.layout import TableKeys
from shardbeam.transforms.formats.table.rows import class_names
from shardbeam.transforms.formats.table.table_boxes import four_numbers

_COLUMNS = ("objects", "object", "faces", "annotations", "annotation")
_BOXES = ("bbox", "bboxes", "box", "boxes", "boundingbox", "boundingboxes")
_LABELS = (
    *("category", "categories", "label", "labels", "class", "classes", "classname", "classnames"),
    *("categoryname", "categorynames", "name", "names", "categoryid", "categoryids", "classid"),
)
_AREAS, _CROWDS, _IDS = ("area", "areas"), ("iscrowd",), ("id", "ids", "bboxid", "bboxids")
_SEGMENTATIONS = ("segmentation", "segmentations")
_FIELDS = (*_BOXES, *_LABELS, *_AREAS, *_CROWDS, *_IDS, *_SEGMENTATIONS)
# Boxes that decide, if only one order of their numbers fits.
_ENOUGH = 20
# The share of boxes that may be wrong themselves, and of areas that must agree.
_WRONG, _AGREE = 0.02, 0.9
_SIDES: tuple[BoxFormat, ...] = ("xywh", "cxcywh")
_FRACTION = 1.0
_MEANINGS: Mapping[BoxFormat, str] = {
    "xywh": "top left corner and sides",
    "xyxy": "two corners",
    "cxcywh": "centre and sides",
    "yxyx": "two corners, rows first",
}


class ObjectLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Where rows have their objects. The name of a missing field is empty.

    Attributes:
        column: The column of objects; empty if they are in several columns of the row.
        box: The field of the boxes.
        label: The field of their classes.
        area: The field of their areas.
        crowd: The field that says which are groups.
        id: The field of their ids.
        segmentation: The field of their outlines.
        columns: `{field: type}` of the fields that become features.
        box_format: What the numbers of a box mean.
        normalized: Whether boxes are in fractions of the image's sides.
    """

    column: str
    box: str
    label: str = ""
    area: str = ""
    crowd: str = ""
    id: str = ""
    segmentation: str = ""
    columns: Mapping[str, ColumnType] = {}
    box_format: BoxFormat = "xywh"
    normalized: bool = False

    def path(self, field: str) -> str:
        """Returns the name of a field in `classes`, and in messages."""
        return f"{self.column}.{field}" if self.column else field

    def key(self, field: str) -> str:
        """Returns the Example key of a field that becomes a feature."""
        return f"{self.column}/{field}" if self.column else field

    @property
    def used(self) -> frozenset[str]:
        """The columns of the row that hold objects."""
        named = (self.box, self.label, self.area, self.crowd, self.id, self.segmentation)
        return frozenset([self.column] if self.column else filter(None, (*named, *self.columns)))

    def items(self, row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Returns the fields of each object of a row.

        Raises:
            CellError: The objects are no list of structs, and no struct of lists of one length.
        """
        found = row.get(self.column) if self.column else row
        if found is None:
            return []
        if isinstance(found, list):
            for each in found:
                if not isinstance(each, dict):
                    raise CellError(f"{self.column}: expected structs, got {str(each)[:40]!a}")
            return found
        names = [self.box, self.label, self.area, self.crowd, self.id, self.segmentation]
        lists = {name: _get(found, name) for name in dict.fromkeys([*names, *self.columns]) if name}
        boxes = lists[self.box]
        for name, values in lists.items():
            if values is not None and not isinstance(values, list):
                raise CellError(f"{self.path(name)}: expected a list, got {str(values)[:40]!a}")
            if (values is None) != (boxes is None) and values != [] and boxes != []:
                continue
            if values is not None and boxes is not None and len(values) != len(boxes):
                raise CellError(
                    f"{self.path(name)} has {len(values):,} values, and {self.path(self.box)} "
                    f"{len(boxes):,}"
                )
        if not boxes and any(lists.values()):
            raise CellError(f"{self.path(self.box)} is missing, and other fields are not")
        return [
            {name: values[index] for name, values in lists.items() if values}
            for index in range(len(boxes or ()))
        ]


def _get(fields: object, name: str) -> Any:  # noqa: ANN401
    if not isinstance(fields, Mapping):
        raise CellError(f"expected objects, got {str(fields)[:40]!a}")
    return fields.get(name)


def find_objects(
    rows: Sequence[Mapping[str, Any]],
    *,
    names: Sequence[str],
    fields: Mapping[str, Sequence[str]],
    classes: Mapping[str, Sequence[str]],
    object_column: str | None,
) -> ObjectLayout | None:
    """Finds the objects in rows; None if there seem to be none.

    Args:
        rows: The first rows.
        names: The columns.
        fields: `{column: its fields}` of the columns of structs, or of lists of these.
        classes: `{column: names of its classes}`.
        object_column: The key of the config.

    Raises:
        Problem: The column that the key names has no boxes.
    """
    boxed = {name: find_boxes(fields.get(name, ())) for name in names}
    if object_column is not None and not boxed.get(object_column):
        there = join_names([name for name in names if boxed[name]]) or "none"
        raise Problem(
            ("object_column",),
            f"{object_column!r} is no column of structs with a field bbox; there are: {there}",
        )
    for candidate in _COLUMNS if object_column is None else ():
        column = first_of([candidate], names)
        if column and boxed[column]:
            object_column = column
            break
    if object_column is not None:
        column, box = object_column, boxed[object_column]
        return _layout(column, box, fields[column], rows, classes=classes)
    box = first_of(_BOXES, names)
    values = [row[box] for row in rows if row.get(box)] if box else []
    if not values or not all(isinstance(it, list) and four_numbers(it[0]) for it in values):
        return None
    lists = [name for name in names if _is_beside(name, box, rows)]
    return _layout("", box, lists, rows, classes=classes)


def find_boxes(fields: Iterable[str]) -> str:
    """Returns the field of the boxes in a column of structs; empty if there is none."""
    return first_of(_BOXES, [*fields])


def are_objects(rows: Iterable[Mapping[str, Any]], *, column: str, box: str) -> bool:
    """Whether each struct of a column has a box of four numbers, and there is one."""
    layout = ObjectLayout(column=column, box=box)
    try:
        boxes = [item.get(box) for row in rows for item in layout.items(row)]
    except CellError:
        return False
    return bool(boxes) and all(map(four_numbers, boxes))


def _is_beside(name: str, box: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a column of the row has a value for each box."""
    is_known = bool(first_of(_FIELDS, [name]))
    has_value = False
    for row in rows:
        values, boxes = row.get(name), row.get(box)
        has_value |= bool(values)
        if values is not None and not isinstance(values, list):
            return False
        if not is_known and len(values or ()) != len(boxes or ()):
            return False
    return has_value


def _layout(
    column: str,
    box: str,
    fields: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    classes: Mapping[str, Sequence[str]],
) -> ObjectLayout:
    free = [name for name in fields if name != box]

    def take(*candidates: str) -> str:
        name = first_of(candidates, free)
        if name:
            free.remove(name)
        return name

    made = ObjectLayout(column=column, box=box)
    known = [name for name in free if made.path(name) in classes]
    label = first_of(_LABELS, known) or first_of(_LABELS, free)
    if label:
        free.remove(label)
    made = ObjectLayout(
        column=column,
        box=box,
        label=label,
        area=take(*_AREAS),
        crowd=take(*_CROWDS),
        id=take(*_IDS),
        segmentation=take(*_SEGMENTATIONS),
        columns=dict.fromkeys(free, ColumnType("string")),
    )
    values: dict[str, list[object]] = {name: [] for name in free}
    for row in rows:
        try:
            items = made.items(row)
        except CellError:
            continue
        for item in items:
            for name in free:
                values[name].append(item.get(name))
    columns = {}
    for name, found in values.items():
        column_type = ColumnType("string") if made.path(name) in classes else infer_type(found)
        if column_type.form == "list" or all(value is None for value in found):
            # Written as JSON.
            column_type = ColumnType("string")
        columns[name] = ColumnType(column_type.base, "optional")
    return msgspec.structs.replace(made, columns=columns)


class ObjectReader:
    """Reads the objects of rows.

    Args:
        layout: Where they are.
        classes: `{column: names of its classes}`.
        class_name: The class of all objects, if rows give none.

    Attributes:
        layout: Where they are.
    """

    def __init__(
        self,
        layout: ObjectLayout,
        *,
        classes: Mapping[str, Sequence[str]],
        class_name: str,
    ) -> None:
        self.layout = layout
        self._classes = {
            name: known
            for name in (layout.label, *layout.columns)
            if (known := classes.get(layout.path(name)))
        }
        self._class_name = class_name

    def read(self, row: Mapping[str, Any]) -> Iterator[ObjectAnnotation]:
        """Yields the objects of a row.

        Raises:
            CellError: An object has no box or no class, or a value is of another kind.
        """
        layout = self.layout
        corners = CORNERS[layout.box_format]
        for number, item in enumerate(layout.items(row)):
            try:
                numbers = four_numbers(item.get(layout.box))
                if numbers is None or not all(abs(number) < 2**31 for number in numbers):
                    shown = str(item.get(layout.box))[:60]
                    raise CellError(f"expected the four numbers of a box, got {shown!a}")
                area = item.get(layout.area) if layout.area else None
                has_area = isinstance(area, (int, float)) and 0 <= area < 2**62
                of_id = item.get(layout.id) if layout.id else None
                has_id = isinstance(of_id, int) and abs(of_id) < 2**63
                yield ObjectAnnotation(
                    label=self._label(item),
                    bbox=corners(*numbers),
                    # Areas are in pixels, also where boxes are in fractions.
                    area=float(area or 0) if has_area and not layout.normalized else -1.0,
                    is_crowd=bool(layout.crowd and item.get(layout.crowd)),
                    annotation_id=of_id if isinstance(of_id, int) and has_id else 0,
                    segmentation=self._outline(item),
                    attributes=dict(self._attributes(item)),
                )
            except CellError as error:
                raise CellError(f"{layout.column or 'object'} {number}: {error}") from error

    def _label(self, item: Mapping[str, Any]) -> str:
        name = self.layout.label
        if not name:
            return self._class_name
        value = item.get(name)
        known = self._classes.get(name)
        labels = class_names([] if value is None else [json_text(name_class(value, known))])
        if not labels:
            raise CellError(f"{name}: expected a class, got nothing")
        return labels[0]

    def _outline(self, item: Mapping[str, Any]) -> bytes:
        value = item.get(self.layout.segmentation)
        if not value:
            return b""
        if isinstance(value, list) and not isinstance(value[0], (list, dict)):
            value = [value]
        return msgspec.json.encode(value)

    def _attributes(self, item: Mapping[str, Any]) -> Iterator[tuple[str, Value]]:
        for name, column in self.layout.columns.items():
            value = name_class(item.get(name), self._classes.get(name))
            try:
                found = read_cell(value, column, is_text=False)
            except CellError as error:
                raise CellError(f"{name}: {error}") from error
            if found:
                yield self.layout.key(name), found[0]


def name_class(value: Any, names: Sequence[str] | None) -> Any:  # noqa: ANN401
    """Returns the name of a class; None for -1, which is "no label"; other values as they are.

    Raises:
        CellError: There is no class with this number.
    """
    if names is None or value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return [name for each in value if (name := name_class(each, names)) is not None]
    if value == -1:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(names):
        raise CellError(f"expected the number of one of {len(names):,} classes, got {value!a}")
    return names[value]


class SeenBox(NamedTuple):
    """A box of the first rows.

    Attributes:
        numbers: Its four numbers.
        area: Its area, if the row gives one; otherwise 0.
        sizes: The sizes that its image may have: as it is stored, and upright.
    """

    numbers: Sequence[float]
    area: float
    sizes: Sequence[Size]


def decide_boxes(
    boxes: Iterable[SeenBox], layout: ObjectLayout, keys: TableKeys
) -> tuple[ObjectLayout, str]:
    """Decides what the numbers of boxes mean, by the first ones.

    Numbers that are all within 0 to 1 are fractions. An order of the numbers is out if it puts
    boxes outside of their images, or if their areas are those of another one; a single box that no
    order fits says nothing. If one order is left after 20 boxes, or after all, it is taken.

    Args:
        boxes: The first boxes; no more are read than needed.
        layout: Where they are.
        keys: The keys of the config.

    Returns:
        The layout with what they mean, and the line of the summary that says so.

    Raises:
        Problem: Several orders are left, or none; the text names the keys and the choices.
    """
    seen: list[SeenBox] = []
    left: list[BoxFormat] = [keys.box_format] if keys.box_format else []
    units: BoxUnits = keys.box_units or "fraction"
    following = _ENOUGH
    for box in () if keys.box_format and keys.box_units else boxes:
        seen.append(box)
        if keys.box_units is None and not all(0 <= it <= _FRACTION for it in box.numbers):
            units = "px"
        if len(seen) >= following:
            following = 2 * len(seen)
            if keys.box_format or len(left := _fitting(seen, units=units)) == 1:
                break
    else:
        left = left if keys.box_format else _fitting(seen, units=units)
    where = layout.path(layout.box)
    if len(left) != 1:
        raise Problem(("box_format",), _ask(seen, left, where=where, units=units))
    said = _say(seen, where, left[0], units) if seen else ""
    return msgspec.structs.replace(layout, box_format=left[0], normalized=units == "fraction"), said


def _fitting(boxes: Sequence[SeenBox], *, units: BoxUnits) -> list[BoxFormat]:
    """Returns the orders that put (nearly) all boxes into their images."""
    outside = dict.fromkeys(BOX_FORMATS, 0)
    tried = sides = corners = areas = 0
    for numbers, area, sizes in boxes:
        fits = {
            order: any(_holds(CORNERS[order](*numbers), size, units=units) for size in sizes)
            for order in BOX_FORMATS
        }
        if any(fits.values()):
            tried += 1
            for order in BOX_FORMATS:
                outside[order] += not fits[order]
        if area > 0 and units == "px":
            areas += 1
            third, fourth = numbers[2:]
            sides += _is_area(third * fourth, area)
            corners += _is_area((third - numbers[0]) * (fourth - numbers[1]), area)
    allowed = 0 if tried < _ENOUGH else max(1, int(_WRONG * tried))
    left = [order for order in BOX_FORMATS if tried and outside[order] <= allowed]
    if areas and (sides >= _AGREE * areas) != (corners >= _AGREE * areas):
        has_sides = sides > corners
        left = [order for order in left if (order in _SIDES) == has_sides]
    return left


def _holds(box: tuple[float, float, float, float], size: Size, *, units: BoxUnits) -> bool:
    width, height = size
    frame = AnnotatedFrame(width, height, 1, (1, 1) if units == "fraction" else size)
    return frame.holds(box)


def _is_area(found: float, area: float) -> bool:
    return abs(found - area) <= 1 + 0.01 * area


def _say(boxes: Sequence[SeenBox], where: str, order: BoxFormat, units: BoxUnits) -> str:
    return (
        f"{where}: boxes such as {_shown(boxes)} are read as {order} ({_MEANINGS[order]}), "
        f"{units}: no other order fits the first {len(boxes):,}; box_format and box_units change "
        "that"
    )


def _shown(boxes: Sequence[SeenBox]) -> str:
    return str([round(float(number), 4) for number in boxes[0].numbers])


def _ask(
    boxes: Sequence[SeenBox], left: Sequence[BoxFormat], *, where: str, units: BoxUnits
) -> str:
    choices = ", ".join(f"{order} ({_MEANINGS[order]})" for order in left or BOX_FORMATS)
    if not boxes:
        return (
            f"missing: the first rows have no box in {where}, so that nothing shows the order of "
            f"its numbers: one of {choices}; and box_units: px or fraction"
        )
    fits = "may be" if left else "fit no order in all images; they may be"
    return (
        f"missing: the first {len(boxes):,} boxes of {where}, such as {_shown(boxes)}, {fits} "
        f"{choices}: set box_format to what they are, and box_units to px or fraction (they look "
        f"like {units})"
    )
