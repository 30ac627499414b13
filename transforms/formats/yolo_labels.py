"""What a YOLO label file says about its image.

The format: a line an object, `class cx cy w h` or `class x1 y1 x2 y2 x3 y3 …`, coordinates in
fractions of the image (https://docs.ultralytics.com/datasets/detect/ and /segment/).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.formats.annotation_file import foreign_content

_NUMBER = re.compile(rb"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_CLASS = re.compile(rb"([0-9]{1,9})(\.0*)?")
# Tools round, and boxes at the border reach over it by as much.
_TOLERANCE = 0.01
# Centre and size have six digits: an edge may be off by three quarters of the last one.
_ROUNDING = 1e-6

_BOX_VALUES = 5
# What detectors write behind a box.
_BOX_AND_CONFIDENCE = 6
# A class and three points.
_MIN_POLYGON_VALUES = 7

_encoder = msgspec.json.Encoder()


def parse_yolo_labels(
    data: bytes, *, names: Mapping[int, str], uri: str
) -> tuple[list[ObjectAnnotation], Counter[str]]:
    """Parses a label file.

    Args:
        data: Its content.
        names: `{class: name}`.
        uri: The file, for errors.

    Returns:
        The objects in the file's order, in fractions of the image, those with polygons with a
        segmentation; and what was left out, `{correction: count}`.

    Raises:
        InputError: A line has another number of values, holds something else than numbers, a
            class without name, or a coordinate outside the image.
    """
    corrections: Counter[str] = Counter()
    # {a line's values: its object}
    objects: dict[tuple[bytes, ...], ObjectAnnotation] = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        values = tuple(line.split())
        if not values:
            continue
        if values in objects:
            corrections[Correction.DUPLICATE_ANNOTATION_DROPPED.value] += 1
            continue
        try:
            objects[values] = _object(values, names=names, corrections=corrections)
        except ValueError as error:
            raise InputError(
                uri=uri,
                place=f"line {number}",
                problem=foreign_content(data) or str(error),
            ) from error
    return list(objects.values()), corrections


def _object(
    values: Sequence[bytes], *, names: Mapping[int, str], corrections: Counter[str]
) -> ObjectAnnotation:
    count = len(values)
    if count not in (_BOX_VALUES, _BOX_AND_CONFIDENCE) and (
        count < _MIN_POLYGON_VALUES or count % 2 == 0
    ):
        raise ValueError(
            f"expected `class cx cy w h`, or a class and at least 3 points, got {count} values"
        )
    label = _label(values[0], names=names)
    coordinates = [_fraction(value) for value in values[1:]]
    if count >= _MIN_POLYGON_VALUES:
        return _polygon(coordinates, label=label)
    if count == _BOX_AND_CONFIDENCE:
        corrections[Correction.CONFIDENCE_DROPPED.value] += 1
    x, y, width, height = coordinates[:4]
    return ObjectAnnotation(
        label=label,
        bbox=(
            _edge(x - width / 2),
            _edge(y - height / 2),
            _edge(x + width / 2),
            _edge(y + height / 2),
        ),
    )


def _edge(value: float) -> float:
    """Puts an edge that reaches over the image's border by rounding alone onto it."""
    nearest = 0.0 if value < 0.5 else 1.0
    over = -value if value < 0.5 else value - 1
    return nearest if 0 < over <= _ROUNDING else value


def _polygon(coordinates: list[float], *, label: str) -> ObjectAnnotation:
    xs, ys = coordinates[0::2], coordinates[1::2]
    # The shoelace formula; the last point is joined to the first.
    doubled = sum(
        x * next_y - next_x * y
        for x, y, next_x, next_y in zip(xs, ys, [*xs[1:], xs[0]], [*ys[1:], ys[0]], strict=True)
    )
    return ObjectAnnotation(
        label=label,
        bbox=(min(xs), min(ys), max(xs), max(ys)),
        area=abs(doubled) / 2,
        segmentation=_encoder.encode([coordinates]),
    )


def _label(value: bytes, *, names: Mapping[int, str]) -> str:
    match = _CLASS.fullmatch(value)
    if match is None:
        raise ValueError(f"expected a class (0, 1, …), got {_shown(value)}")
    name = names.get(int(match[1]))
    if name is None:
        raise ValueError(f"class {int(match[1])} has no name: {len(names)} classes are named")
    return name


def _fraction(value: bytes) -> float:
    if not _NUMBER.fullmatch(value):
        raise ValueError(f"expected a number, got {_shown(value)}")
    number = float(value)
    if not -_TOLERANCE <= number <= 1 + _TOLERANCE:
        raise ValueError(f"expected a fraction of the image, from 0 to 1, got {_shown(value)}")
    return number


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("utf-8", "backslashreplace"))
