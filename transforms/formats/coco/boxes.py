"""The box of a COCO annotation, which may have to be computed from its outline or keypoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import BoxFormat
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.examples.box_readings import CORNERS
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.boxes import Box, box_around
from shardbeam.transforms.examples.geometry.segmentation import find_outline_box, has_segmentation
from shardbeam.transforms.formats.annotation_file import DECODING_ERRORS, decode_json
from shardbeam.transforms.formats.coco.coco_file import CocoAnnotation, CocoImage

_NUMBERS: Mapping[BoxFormat, str] = {
    "xywh": "[x, y, width, height]",
    "xyxy": "[xmin, ymin, xmax, ymax]",
    "cxcywh": "[x, y, width, height] from the centre",
    "yxyx": "[ymin, xmin, ymax, xmax]",
}


class _Attributes(msgspec.Struct):
    rotation: object = None


_attributes_decoder = JsonDecoder(_Attributes)
_numbers_decoder = JsonDecoder(list[float] | None)
# A mapping is a run-length encoding.
_polygons_decoder = JsonDecoder(list[list[float]] | dict[str, msgspec.Raw] | None, strict=False)


class BoxReader:
    """Reads the boxes of annotations.

    Args:
        uri: The file, for errors.
        box_format: What the four numbers of `bbox` mean.
        is_normalized: Whether coordinates are fractions.

    Attributes:
        corners: Computes `(xmin, ymin, xmax, ymax)` from the four numbers.
    """

    def __init__(self, uri: str, *, box_format: BoxFormat, is_normalized: bool) -> None:
        self._uri = uri
        self._box_format = box_format
        self._is_normalized = is_normalized
        self.corners = CORNERS[box_format]

    def read(
        self, item: CocoAnnotation, *, place: str, image: CocoImage
    ) -> tuple[Box | None, Correction | None]:
        """Returns `(xmin, ymin, xmax, ymax)`, and what that was computed from if it is not given.

        Without a box, it is that of the polygons or the run lengths, or else of the keypoints.
        """
        if item.bbox:
            if len(item.bbox) != 4:
                raise InputError(
                    uri=self._uri,
                    place=f"{place}.bbox",
                    problem=f"expected {_NUMBERS[self._box_format]}, got {len(item.bbox)} numbers",
                )
            if not all(map(math.isfinite, item.bbox)):
                # Numbers that are written as texts can be NaN.
                raise InputError(
                    uri=self._uri, place=f"{place}.bbox", problem="expected finite numbers"
                )
            return self.corners(*item.bbox), None
        if item.caption is not None:
            return None, None
        size = int(image.width or 0), int(image.height or 0)
        try:
            if has_segmentation(item.segmentation) and (
                found := find_outline_box(
                    bytes(item.segmentation), size=size, normalized=self._is_normalized
                )
            ):
                return found
        except ValueError as error:
            place_of_part = f"{place}.segmentation"
            if bytes(item.segmentation).startswith(b'"'):
                raise InputError(uri=self._uri, place=place_of_part, problem=str(error)) from error
            # This raises an error that names the place, except for run lengths.
            decode_json(
                item.segmentation, decoder=_polygons_decoder, uri=self._uri, place=place_of_part
            )
        labelled: list[float] = []
        if item.keypoints:
            values = self.read_keypoints(item, place=place)
            for x, y, visibility in zip(values[0::3], values[1::3], values[2::3], strict=False):
                labelled += (x, y) if visibility > 0 else ()
        if not labelled or not all(map(math.isfinite, labelled)):
            return None, None
        return box_around(labelled), Correction.BOX_FROM_KEYPOINTS

    def read_keypoints(self, item: CocoAnnotation, *, place: str) -> Sequence[float]:
        """Returns `x, y, visibility` of each keypoint, as they are written."""
        place = f"{place}.keypoints"
        return (
            decode_json(item.keypoints, decoder=_numbers_decoder, uri=self._uri, place=place) or ()
        )


def find_rotation(item: CocoAnnotation) -> float:
    """Returns by how many degrees the box is turned clockwise around its centre, as CVAT has it."""
    if not item.attributes:
        return 0.0
    try:
        rotation = _attributes_decoder.decode(item.attributes).rotation
    except DECODING_ERRORS:
        return 0.0
    if isinstance(rotation, bool) or not isinstance(rotation, (int, float)):
        return 0.0
    return rotation % 360 if abs(rotation) <= MAX_FLOAT32 else 0.0
