"""Draws COCO's `segmentation`, polygons or runs, with the pixels that pycocotools would draw.

pycocotools is compiled C. With unexpected input it crashes, writes beyond its memory or draws
something else, so it only gets polygons that were checked, and no runs but our own.

Runs are the numbers of pixels that are 0 and 1 in turn, beginning with 0, column by column from the
top left corner. They are given as numbers, or as pycocotools' text: there, each run but the first
three is the difference from the run two places before, in groups of 5 bits, the least significant
first, with one character per group (`rleToString` in `maskApi.c`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from pycocotools import mask as coco_mask

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import DECODING_ERRORS
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.core.text import describe_base64
from shardbeam.transforms.examples.geometry.boxes import Box, Size, box_around
from shardbeam.transforms.examples.geometry.frame import is_scaled
from shardbeam.transforms.examples.geometry.mask_crops import (
    MaskCrop,
    box_iou,
    crop_mask,
    crop_runs,
    find_bounds,
    find_ends,
    overlap_area,
    parse_counts,
    read_counts,
    resize_nearest,
)

Polygon: TypeAlias = Sequence[float]

# pycocotools reads lists of four numbers as boxes.
_MIN_COORDINATES = 6
# pycocotools counts fifths of a pixel in 32 bits, and needs 120 bytes for a pixel of an outline.
_MAX_COORDINATE_PX = 1e8
_MAX_OUTLINE_PX = 1 << 20
# pycocotools counts pixels in 30 bits.
_MAX_PIXELS = 1 << 29
# The most pixels of a mask with another size than the image's, which is drawn whole.
_MAX_OTHER_PIXELS = 1 << 27
# The most pixels of a mask that a format gives pixel by pixel.
MAX_MASK_PIXELS = 1 << 27

# A box is that of the runs' object if it holds this share of their pixels, by columns or by rows.
_MIN_SHARE_BY_COLUMNS, _MIN_SHARE_BY_ROWS = 0.5, 0.95
# Where both orders are possible, the box around the pixels by rows must fit like this (IoU): boxes
# that are too small or too large hold pixels in any order.
_MIN_IOU_BY_ROWS = 0.9


class _RunLengths(msgspec.Struct):
    counts: str | list[float]
    size: tuple[float, float] | None = None
    # Set by `encode_crop`: the pixels are known, so the box need not confirm them.
    certain: bool = False


# Some tools write numbers as texts.
_decoder = JsonDecoder(list[list[float]] | _RunLengths, strict=False)
_flat_decoder = JsonDecoder(list[float], strict=False)
_points_decoder = JsonDecoder(list[list[tuple[float, float]]], strict=False)

# A shorter text is no outline: the shortest one is a triangle, [[0,0,1,0,1,1]].
SHORTEST_BYTES = 15
# A longer text is no rectangle: five points, with all digits of their numbers, are shorter.
RECTANGLE_BYTES = 256
_RECTANGLE_COMMAS = 9
_NOTHING = re.compile(rb"\s*(null|\[\s*\]|\{\s*\})?\s*")


def has_segmentation(text: bytes) -> bool:
    """Returns whether an object has polygons or runs at all."""
    return _NOTHING.fullmatch(text) is None


def is_outline(text: bytes) -> bool:
    """Whether an object has polygons or runs that say more than its box.

    The corners of an upright rectangle, which some tools write for each box, do not.
    """
    if len(text) > RECTANGLE_BYTES or text.count(b",") > _RECTANGLE_COMMAS:
        return True
    if len(text) < SHORTEST_BYTES:
        return False
    try:
        segmentation = _parse(text)
    except ValueError:
        return False
    if isinstance(segmentation, _RunLengths):
        return True
    return any(len(each) >= _MIN_COORDINATES and not _is_rectangle(each) for each in segmentation)


def _is_rectangle(polygon: Polygon) -> bool:
    corners = {*zip(polygon[0::2], polygon[1::2], strict=False)}
    return len(corners) == 4 and all(len(set(sides)) == 2 for sides in zip(*corners, strict=True))


def draw_segmentation(
    text: bytes,
    *,
    frame: Size,
    extent: Size,
    box: Box,
    corrections: Corrections,
) -> MaskCrop | None:
    """Draws an object's mask.

    Args:
        text: JSON text: a list of polygons, or an RLE object.
        frame: Width and height of the annotated frame in pixels; the mask gets this size.
        extent: The frame's width and height in the annotations' units (`AnnotatedFrame.extent`).
            Polygons are scaled from it to the frame before they are drawn; runs of this size are
            drawn first and then scaled to the nearest pixel.
        box: The object's box in pixels of the frame. It decides whether runs of another size are
            pixels of the frame or of a scaled frame, and must hold half of the pixels of any runs.
        corrections: Counts everything that is changed or left out.

    Returns:
        The mask; None if it is empty.

    Raises:
        ValueError: The segmentation cannot be drawn.
    """
    segmentation = _parse(text)
    if isinstance(segmentation, _RunLengths):
        return _draw_runs(
            segmentation, frame=frame, extent=extent, box=box, corrections=corrections
        )
    if extent != frame:
        segmentation = [_scaled(polygon, frame=frame, extent=extent) for polygon in segmentation]
    return _draw_polygons(segmentation, frame=frame, corrections=corrections)


def mask_problem(text: bytes, *, size: Size, box: Box) -> str:
    """Describes why a segmentation gives no mask, as far as this is known so far.

    Args:
        text: As for `draw_segmentation`.
        size: The annotated width and height in pixels; 0 if they are not known. The image may turn
            out to have the sides exchanged, or the size of the run lengths.
        box: The object's box in pixels of the frame.

    Returns:
        Why; empty if it gives a mask that is not empty.
    """
    try:
        segmentation = _parse(text)
        if all(size):
            sizes = [size, size[::-1]]
            if isinstance(segmentation, _RunLengths) and segmentation.size is not None:
                sizes.append(_own_size(segmentation, frame=size, grid=size))
            problems = (_drawing_problem(text, size=each, box=box) for each in sizes)
            first = next(problems)
            return first and ("" if "" in problems else first)
        if isinstance(segmentation, _RunLengths):
            return "" if _read_any_counts(segmentation)[1::2].any() else "no pixels"
        return "" if any(map(_is_usable, segmentation)) else "no polygon that can be drawn"
    except ValueError as error:
        return str(error)


def _drawing_problem(text: bytes, *, size: Size, box: Box) -> str:
    try:
        crop = draw_segmentation(text, frame=size, extent=size, box=box, corrections=Corrections())
    except ValueError as error:
        return str(error)
    return "" if crop is not None else "no pixels"


def _parse(text: bytes) -> list[list[float]] | _RunLengths:
    for decode in (_decoder.decode, _decode_flat, _decode_points):
        try:
            segmentation = decode(text)
        except DECODING_ERRORS:
            continue
        if (
            isinstance(segmentation, list)
            and segmentation
            and all(len(each) == 2 for each in segmentation)
        ):
            # Some tools write one polygon as a list of points.
            return [[value for point in segmentation for value in point]]
        return segmentation
    encoded = describe_base64(text.strip(b'" ').decode(errors="replace"))
    raise ValueError(f"{encoded and f'{encoded}, '}neither polygons nor run lengths")


def _decode_flat(text: bytes) -> list[list[float]]:
    """Decodes a polygon without the list around it."""
    return [_flat_decoder.decode(text)]


def _decode_points(text: bytes) -> list[list[float]]:
    """Decodes polygons that are lists of points."""
    return [
        [value for point in polygon for value in point] for polygon in _points_decoder.decode(text)
    ]


def _draw_polygons(
    polygons: Sequence[Polygon], *, frame: Size, corrections: Corrections
) -> MaskCrop | None:
    width, height = frame
    usable = []
    for polygon in polygons:
        if _is_usable(polygon):
            usable.append(polygon)
        else:
            corrections.note(Correction.POLYGON_UNUSABLE_DROPPED, polygon)
    if not usable or width * height >= _MAX_PIXELS:
        raise ValueError("no polygon that can be drawn")
    runs = coco_mask.frPyObjects(usable, height, width)
    drawn = runs[0] if len(runs) == 1 else coco_mask.merge(runs)
    return crop_runs(parse_counts(drawn["counts"]), height=height)


def _scaled(polygon: Polygon, *, frame: Size, extent: Size) -> list[float]:
    # Python's floats overflow to infinity without a warning, unlike NumPy's.
    return [value * frame[index % 2] / extent[index % 2] for index, value in enumerate(polygon)]


def _is_usable(polygon: Polygon) -> bool:
    if len(polygon) < _MIN_COORDINATES or len(polygon) % 2:
        return False
    points = np.reshape(polygon, (-1, 2))
    # This also refuses NaN, which fails every comparison.
    if not np.all(np.abs(points) <= _MAX_COORDINATE_PX):
        return False
    steps = np.abs(points - np.roll(points, 1, axis=0))
    return bool(steps.max(axis=1).sum() <= _MAX_OUTLINE_PX)


def _draw_runs(
    runs: _RunLengths, *, frame: Size, extent: Size, box: Box, corrections: Corrections
) -> MaskCrop | None:
    """Draws runs in the first of these ways in which they fit the object's box.

    1. Column by column, as COCO has them. If their size is the image's with its sides exchanged,
       the sides are exchanged back; a mask of any other size is fitted into the frame.
    2. Row by row, if that fits better.
    """
    # If coordinates are fractions, the extent (1, 1) is not a size in pixels.
    grid = frame if extent == (1, 1) else extent
    counts = _read_any_counts(runs)
    given = _own_size(runs, frame=frame, grid=grid)
    own = _straighten(given, frame=frame, grid=grid)
    total, (width, height) = int(counts.sum()), own
    if total > width * height:
        raise ValueError("more pixels than the mask has")

    def draw(*, is_by_rows: bool) -> MaskCrop | None:
        crop = crop_runs(counts, height=width if is_by_rows else height)
        if crop is None:
            return None
        if is_by_rows:
            crop = crop.transposed()
        if own == frame:
            return crop
        if own == grid:
            return _resize(crop, own=own, frame=frame)
        return _fit(crop, own=own, frame=frame, box=box)

    crop = draw(is_by_rows=False)
    by_rows = None
    if not runs.certain:
        by_rows = _find_by_rows(crop, draw=functools.partial(draw, is_by_rows=True), box=box)
    if total < width * height:
        # Some tools leave out the last run of zeros.
        corrections.note(Correction.RLE_COUNTS_CORRECTED, total, width * height)
    if own != given:
        corrections.note(Correction.RLE_SIDES_EXCHANGED, given, own)
    elif own not in (frame, grid):
        corrections.note(Correction.RLE_SIZE_CORRECTED, own, grid)
    if by_rows is None:
        return crop
    corrections.note(Correction.RLE_BY_ROWS)
    return by_rows


def _find_by_rows(
    by_columns: MaskCrop | None, *, draw: Callable[[], MaskCrop | None], box: Box
) -> MaskCrop | None:
    """Draws runs row by row if they do not fit the object's box column by column.

    Args:
        by_columns: The mask column by column.
        draw: Draws it row by row.
        box: The object's box.

    Returns:
        The mask row by row; None if it does not fit the box better.

    Raises:
        ValueError: The pixels lie outside of the box in both orders.
    """
    share = _share_inside(by_columns, box)
    if by_columns is None or share >= _MIN_SHARE_BY_ROWS:
        return None
    is_possible = share >= _MIN_SHARE_BY_COLUMNS
    # Half of any pixels lie in the box of a large object.
    nearest = max(_MIN_IOU_BY_ROWS, box_iou(by_columns.box, box)) if is_possible else -1.0
    by_rows = draw()
    if (
        by_rows is not None
        and _share_inside(by_rows, box) >= _MIN_SHARE_BY_ROWS
        and box_iou(by_rows.box, box) > nearest
    ):
        return by_rows
    if not is_possible:
        raise ValueError("its pixels lie outside of the object's box")
    return None


def _share_inside(crop: MaskCrop | None, box: Box) -> float:
    """Returns the share of a mask's pixels in a box, to a pixel; 1 if the box has no area."""
    if crop is None or not overlap_area(box, box) > 0:
        return 1.0
    # Tools round boxes, and some leave the last column and row out. Boxes may have any numbers;
    # beyond the crop, these do not matter.
    grown = box[0] - 1, box[1] - 1, box[2] + 1, box[3] + 1
    left, top, right, bottom = (min(max(side, -1.0), 1e9) for side in grown)
    columns = slice(max(0, math.floor(left) - crop.left), max(0, math.ceil(right) - crop.left))
    rows = slice(max(0, math.floor(top) - crop.top), max(0, math.ceil(bottom) - crop.top))
    inside = np.count_nonzero(crop.pixels[rows, columns])
    return inside / int(np.count_nonzero(crop.pixels))


def _read_any_counts(runs: _RunLengths) -> npt.NDArray[np.int64]:
    if isinstance(runs.counts, str):
        try:
            return parse_counts(runs.counts.encode())
        except ValueError as error:
            encoded = describe_base64(runs.counts)
            raise ValueError(f"counts: {encoded} and no runs" if encoded else error) from error
    return read_counts(runs.counts)


def _own_size(runs: _RunLengths, *, frame: Size, grid: Size) -> Size:
    height, width = runs.size or grid[::-1]
    if width % 1 or height % 1 or min(width, height) < 1:
        raise ValueError("the size is not two whole numbers above 0")
    # The frame's own size is always allowed: the image was decoded.
    if (width, height) != frame and width * height > _MAX_OTHER_PIXELS:
        raise ValueError("the size is too large")
    return int(width), int(height)


def _straighten(own: Size, *, frame: Size, grid: Size) -> Size:
    """Exchanges the sides of a mask's size if it then is that of the image."""
    exchanged = own[::-1]
    return exchanged if own not in (frame, grid) and exchanged in (frame, grid) else own


def _fit(crop: MaskCrop, *, own: Size, frame: Size, box: Box) -> MaskCrop | None:
    """Fits a mask of another size into the frame by cutting or scaling, whichever fits the box."""
    xmin, ymin, xmax, ymax = crop.box
    across, down = frame[0] / own[0], frame[1] / own[1]
    scaled = (xmin * across, ymin * down, xmax * across, ymax * down)
    if box_iou(crop.box, box) >= box_iou(scaled, box):
        return crop_mask(crop.whole(width=frame[0], height=frame[1]))
    return _resize(crop, own=own, frame=frame)


def _resize(crop: MaskCrop, *, own: Size, frame: Size) -> MaskCrop | None:
    return crop_mask(resize_nearest(crop.whole(width=own[0], height=own[1]), size=frame))


def encode_crop(crop: MaskCrop, *, frame: Size) -> bytes:
    """Encodes a mask in JSON, as runs in numbers; pixels beyond the frame are left out."""
    width, height = frame
    # The crop may lie anywhere, because its place comes from a file.
    left, top = min(max(0, crop.left), width), min(max(0, crop.top), height)
    rows = slice(max(0, -crop.top), max(0, height - crop.top))
    pixels = crop.pixels[rows, max(0, -crop.left) : max(0, width - crop.left)]
    # The rows at which runs of 1 begin and end in each column.
    columns, edges = np.nonzero(np.diff(np.pad(pixels.T, ((0, 0), (1, 1)))))
    places = (columns + left) * height + edges + top
    counts = np.diff(places, prepend=0, append=width * height)
    return msgspec.json.encode(
        {"counts": counts.tolist(), "size": [height, width], "certain": True}
    )


def format_counts(counts: Sequence[int], *, size: Size) -> str:
    """Returns runs of `encode_crop` as pycocotools' text.

    Args:
        counts: The runs.
        size: Height and width of the mask.
    """
    height, width = size
    runs = coco_mask.frPyObjects({"counts": counts, "size": size}, height, width)
    text: bytes = runs["counts"]
    return text.decode()


def mask_object(
    mask: npt.NDArray[np.uint8], *, label: str, left: int, top: int, frame: Size
) -> ObjectAnnotation | None:
    """Makes an object from a mask of 0 and 1; None if all is 0.

    Args:
        mask: Pixels of a part of the frame, (height, width).
        label: The object's class.
        left: The part's first column in the frame.
        top: The part's first row in the frame.
        frame: The size of the annotated image.
    """
    crop = crop_mask(mask)
    if crop is None:
        return None
    crop = crop._replace(left=left + crop.left, top=top + crop.top)
    return ObjectAnnotation(
        label=label,
        bbox=crop.box,
        area=int(crop.pixels.sum()),
        segmentation=encode_crop(crop, frame=frame),
    )


def outline_ellipse(
    center: tuple[float, float], radii: tuple[float, float], *, corners: int
) -> list[tuple[float, float]]:
    """Returns the corners of a polygon on an ellipse whose axes are parallel to the image's."""
    steps = [2 * math.pi * step / corners for step in range(corners)]
    (x, y), (across, down) = center, radii
    return [(x + across * math.cos(step), y + down * math.sin(step)) for step in steps]


def find_outline_box(text: bytes, *, size: Size, normalized: bool) -> tuple[Box, Correction] | None:
    """Finds the box around the polygons or the pixels of a segmentation.

    Runs whose size is the image's with its sides exchanged are drawn with the sides exchanged
    back. If they have another size with the image's aspect ratio, their box is scaled.

    Args:
        text: JSON text.
        size: The annotated width and height of the image; a side of 0 is unknown.
        normalized: Whether polygons are in fractions of the image's sides; the box is, too.

    Returns:
        The box, and the correction that says what it is around; None if there are no points or
        pixels, or runs of another size.

    Raises:
        ValueError: The segmentation cannot be read.
    """
    segmentation = _parse(text)
    if isinstance(segmentation, _RunLengths):
        box = _find_box_of_runs(segmentation, size=size, normalized=normalized)
        return None if box is None else (box, Correction.BOX_FROM_MASK)
    coordinates = [value for each in segmentation for value in each[: len(each) // 2 * 2]]
    if not coordinates or not all(map(math.isfinite, coordinates)):
        return None
    return box_around(coordinates), Correction.BOX_FROM_POLYGONS


def _find_box_of_runs(runs: _RunLengths, *, size: Size, normalized: bool) -> Box | None:
    counts = _read_any_counts(runs)
    own = _straighten(_own_size(runs, frame=size, grid=size), frame=size, grid=size)
    first, last = find_ends(counts)
    if not first.size or int(counts.sum()) > own[0] * own[1]:
        return None
    box = find_bounds(first, last, height=own[1])
    target = (1, 1) if normalized else own if min(size) <= 0 else size
    if target not in (own, (1, 1)) and not is_scaled(own, target):
        return None
    across, down = target[0] / own[0], target[1] / own[1]
    return box[0] * across, box[1] * down, box[2] * across, box[3] * down
