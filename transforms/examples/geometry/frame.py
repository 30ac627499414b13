"""The frame that annotated coordinates refer to, and how they reach the written image."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.examples.geometry.boxes import Box, Point, Size, overhang
from shardbeam.transforms.examples.geometry.orientation import (
    INVERSE_ORIENTATION,
    orient_box,
    orient_size,
)

# Boxes may reach this far over the border: annotation tools round, and some count pixels from 1.
BORDER_TOLERANCE_PX = 1.0
# A box with exchanged corners is longer than this; -1 as both of COCO's sides is a missing value.
_MISSING_PX = 2.0


class AnnotatedFrame(NamedTuple):
    """The frame that annotated coordinates refer to, and its turn to the written frame.

    The written frame is that of the image in the Example, before any resize.

    Attributes:
        width: Width of the annotated frame in pixels.
        height: Height of the annotated frame in pixels.
        orientation: The EXIF orientation that turns this frame into the written one.
        extent: The frame's width and height in the annotations' units: (1, 1) if coordinates are
            fractions, the annotated size if that is scaled, otherwise (width, height).
        correction: How a different annotated size was handled, if there was one.
    """

    width: int
    height: int
    orientation: int
    extent: Size
    correction: Correction | None = None

    @property
    def written_size(self) -> Size:
        """Width and height of the written frame in pixels."""
        return orient_size((self.width, self.height), orientation=self.orientation)

    @property
    def in_pixels(self) -> bool:
        """Whether annotations are in pixels of this frame."""
        return self.extent == (self.width, self.height)

    def scale_points(self, points: Iterable[Point]) -> Iterable[Point]:
        """Converts annotated points to pixels of the frame."""
        if self.in_pixels:
            return points
        width, height = self.extent
        # In this order, a value on the border stays on the border.
        return ((x * self.width / width, y * self.height / height) for x, y in points)

    def scale_box(self, box: Box) -> Box:
        """Converts an annotated box to pixels of the frame."""
        if self.in_pixels:
            return box
        (xmin, ymin), (xmax, ymax) = self.scale_points((box[:2], box[2:]))
        return xmin, ymin, xmax, ymax

    def scale_area(self, area: float) -> float:
        """Converts an annotated area to pixels² of the frame; a negative one stays as it is."""
        if self.in_pixels or area <= 0:
            return area
        width, height = self.extent
        return area * self.width / width * self.height / height

    def place(self, box: Box) -> Box:
        """Converts an annotated box to pixels of the written frame."""
        box = self.scale_box(box)
        if self.orientation == 1:
            return box
        return orient_box(box, width=self.width, height=self.height, orientation=self.orientation)

    def exchange_corners(self, box: Box) -> Box | None:
        """Puts the corners of an annotated box into order.

        Returns:
            The box; None if its corners are in order already, if it would reach a pixel or more
            over the border of the frame, as `10, 12, -1, -1` does, or if it would be shorter than
            two pixels on both sides, as one with COCO's sides -1 and -1.
        """
        xs, ys = sorted(box[0::2]), sorted(box[1::2])
        ordered = xs[0], ys[0], xs[1], ys[1]
        across, down = self._pixel
        is_missing = xs[1] - xs[0] < _MISSING_PX * across and ys[1] - ys[0] < _MISSING_PX * down
        return ordered if ordered != box and not is_missing and self.holds(ordered) else None

    def holds(self, box: Box) -> bool:
        """Whether an annotated box has an area and lies in the frame, to less than a pixel."""
        xmin, ymin, xmax, ymax = box
        (width, height), (across, down) = self.extent, self._pixel
        # A comparison with NaN is false.
        return -across < xmin < xmax < width + across and -down < ymin < ymax < height + down

    @property
    def _pixel(self) -> tuple[float, float]:
        """Width and height of a pixel in the annotations' units."""
        in_fractions = self.extent == (1, 1)
        return (1 / self.width, 1 / self.height) if in_fractions else (1.0, 1.0)


def turn_between_frames(
    size: Size, *, frame: AnnotatedFrame, stored: Size, orientation: int, upright: bool
) -> int | None:
    """Decides how to turn the pixels of a mask file into the written frame.

    Args:
        size: Width and height of the mask file.
        frame: The frame of the image's other annotations; the mask refers to it, too, if `size` is
            the frame's size or extent.
        stored: The size of the image file's pixels as they are stored.
        orientation: The image file's EXIF orientation, 1 to 8.
        upright: Whether the written image is upright, or as stored.

    Returns:
        The EXIF orientation to apply; None if `size` fits neither the stored pixels nor the upright
        image.
    """
    if size in ((frame.width, frame.height), frame.extent):
        return frame.orientation
    if size == stored:
        return orientation if upright else 1
    if size == orient_size(stored, orientation=orientation):
        return 1 if upright else INVERSE_ORIENTATION[orientation]
    return None


def annotated_frame(
    *,
    annotated: Size,
    stored: Size,
    orientation: int,
    upright: bool,
    settings: ImageConfig,
    boxes: Iterable[Box] | None,
    normalized: bool = False,
    are_exchanged: Callable[[], bool] = lambda: False,
) -> AnnotatedFrame:
    """Decides which frame an image's annotations refer to.

    With `annotated_as: auto`, they refer to the stored pixels if the annotated size fits these and
    does not fit the upright image. Otherwise they refer to the upright image, also if the size is
    unknown, square or fits both. A size fits if it has the same aspect ratio (`is_scaled`); with
    `annotated_size: ignore`, only the same size fits.

    If coordinates are in pixels and the annotated size is not the frame's, the setting decides:

    - `scale`: if the aspect ratio is the same and the centre of every box lies in the annotated
      size, that size becomes the frame's extent. If the ratio differs, this works like `ignore`,
      but an image with boxes whose annotated sides are its own, exchanged, is rejected unless its
      source exchanges them.
    - `ignore`: the annotated size is considered wrong if every box lies in the frame.
    - `reject`: the image is rejected.

    Args:
        annotated: The size that the annotations give; unknown if a side is 0.
        stored: The size of the file's pixels as they are stored.
        orientation: The file's EXIF orientation, 1 to 8.
        upright: Whether the written image is upright, or as stored.
        settings: The config's image settings.
        boxes: The annotated boxes; None if nothing is annotated in pixels.
        normalized: Whether coordinates are fractions of the frame's sides.
        are_exchanged: Decides whether the image's source exchanges width and height. It is only
            called if the answer matters.

    Raises:
        RejectedError: The annotated size is not the frame's, and the setting or the boxes rule the
            image out.
    """
    upright_size = orient_size(stored, orientation=orientation)
    compares_ratios = settings.annotated_size != "ignore" and min(annotated) > 0
    fits = is_scaled if compares_ratios else operator.eq
    if settings.annotated_as == "auto":
        as_stored = fits(annotated, stored) and not fits(annotated, upright_size)
    else:
        as_stored = settings.annotated_as == "stored"
    size = stored if as_stored else upright_size
    if as_stored and upright:
        turn = orientation
    elif not as_stored and not upright:
        turn = INVERSE_ORIENTATION[orientation]
    else:
        turn = 1
    frame = AnnotatedFrame(*size, orientation=turn, extent=(1, 1) if normalized else size)
    if boxes is None or min(annotated) <= 0 or annotated == size:
        return frame
    if settings.annotated_size == "reject":
        raise RejectedError(
            Reason.SIZE_MISMATCH,
            f"{_describe_sizes(annotated, size)}; image.annotated_size is reject",
        )
    if fits(annotated, size):
        _check_centres_inside(boxes, size=size, annotated=annotated)
        return frame._replace(extent=annotated, correction=Correction.ANNOTATED_SIZE_SCALED)
    boxes = tuple(boxes)
    if (
        settings.annotated_size == "scale"
        and boxes
        and annotated == size[::-1]
        and annotated not in (stored, upright_size)
        and not are_exchanged()
    ):
        raise RejectedError(
            Reason.SIZE_MISMATCH,
            f"{_describe_sizes(annotated, size)} and may have been turned since, because too few "
            "images of its source have exchanged sides; if only the annotated size is wrong, set "
            "image.annotated_size: ignore to use the boxes in pixels of the image",
        )
    _check_boxes_inside(boxes, size=size, annotated=annotated)
    return frame._replace(correction=Correction.SIZE_CORRECTED)


def is_scaled(size: Size, other: Size) -> bool:
    """Returns whether two sizes have the same aspect ratio, up to a pixel of rounding.

    `w x h` and `W x H` have it if one of them, times a factor and with each side rounded up or
    down, gives the other: there is an f with `|W f - w| < 1` and `|H f - h| < 1`, or the same with
    the sizes exchanged. That is the case if `|w H - h W|` is less than `w + h` or `W + H`. A
    landscape size never has the aspect ratio of a portrait size.

    Args:
        size: Width and height of one, 1 or more.
        other: Width and height of the other, 1 or more.
    """
    (width, height), (other_width, other_height) = size, other
    return (width - height) * (other_width - other_height) >= 0 and (
        abs(width * other_height - height * other_width)
        < max(width + height, other_width + other_height)
    )


def _describe_sizes(annotated: Size, size: Size) -> str:
    return f"annotated as {annotated[0]}x{annotated[1]}, but the image is {size[0]}x{size[1]}"


def _describe_box(box: Box) -> str:
    return f"({', '.join(f'{corner:g}' for corner in box)})"


def _check_boxes_inside(boxes: Iterable[Box], *, size: Size, annotated: Size) -> None:
    over = functools.partial(overhang, size=size)
    worst = max(boxes, key=over, default=None)
    if worst is None or over(worst) <= BORDER_TOLERANCE_PX:
        return
    raise RejectedError(
        Reason.SIZE_MISMATCH,
        f"{_describe_sizes(annotated, size)}, and the box {_describe_box(worst)} reaches "
        f"{over(worst):g} px over its border",
    )


def _check_centres_inside(boxes: Iterable[Box], *, size: Size, annotated: Size) -> None:
    width, height = annotated
    for box in boxes:
        x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        # Boxes with coordinates that are not finite are dropped later, and counted.
        if all(map(math.isfinite, box)) and not (0 <= x <= width and 0 <= y <= height):
            raise RejectedError(
                Reason.SIZE_MISMATCH,
                f"{_describe_sizes(annotated, size)}, and the centre of the box "
                f"{_describe_box(box)} lies outside {width}x{height}; if only the annotated size "
                "is wrong, set image.annotated_size: ignore to use the boxes in pixels of the "
                "image",
            )
