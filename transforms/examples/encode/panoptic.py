"""Maps of segments in the layout of the TF Model Garden, and the segments' own ids.

The Model Garden's maps (`create_coco_tf_record.py`) hold, for each pixel, the category, the index
of the segment within the image, and a class: 1 for things, the category's id minus 90 for stuff;
all are 0 where there is no segment. The key `image/panoptic/segment_id` adds the segments' ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import MaskRole
from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.encode.maps import PIXELS, encode_map
from shardbeam.transforms.examples.features import (
    CATEGORY_MAP,
    CLASS_MAP,
    FeatureKind,
    FeatureRole,
    one_value,
    value_list,
)
from shardbeam.transforms.images.mask_file import IndexMap, read_segment_ids

_MAX_SEGMENT_ID = (1 << 24) - 1
# The highest id of COCO's things, which the Model Garden subtracts from the ids of stuff.
_COCO_STUFF_OFFSET = 90
_THING_CLASS = 1
_MAX_CLASS = 255
_DTYPES: Mapping[int, type[np.uint8] | type[np.uint16]] = {8: np.uint8, 16: np.uint16}


class _Segment(NamedTuple):
    """A segment that is written."""

    segment_id: int
    label_id: int
    is_thing: bool


def panoptic_group(*, bits: int) -> FeatureGroup:
    """Declares the keys of maps of segments.

    Args:
        bits: Bits of a pixel in the category mask and the instance mask.
    """
    role = FeatureRole.MASK if bits == 8 else FeatureRole.MASK_16
    return FeatureGroup(
        (
            one_value(CLASS_MAP, FeatureKind.BYTES, FeatureRole.MASK),
            one_value(CATEGORY_MAP, FeatureKind.BYTES, role),
            one_value("image/panoptic/instance_mask", FeatureKind.BYTES, role),
            value_list("image/panoptic/segment_id", FeatureKind.INT64),
        ),
        _panoptic_values,
    )


def _panoptic_values(subject: AnnotatedImage) -> Values:
    """Renders an image's maps.

    Value i of the instance mask is the segment whose id is entry i - 1 of
    `image/panoptic/segment_id`. An image without panoptic annotations gets maps of 0.

    Raises:
        RejectedError: The mask cannot be read, does not fit this image, or has more segments
            than fit into the pixels' bits.
    """
    segments = _written_segments(subject)
    known = {item.segment_id for item in subject.annotations.segments}
    data = subject.masks.get(MaskRole.PANOPTIC)
    if data is None and known:
        raise RejectedError(
            Reason.MASK_UNREADABLE,
            f"{len(subject.annotations.segments)} panoptic segments, and no PNG of them",
        )
    if data is None:
        subject.corrections.note(Correction.MAP_MISSING_LEFT_VOID)
        indices: IndexMap = np.zeros((subject.image.height, subject.image.width), np.uint8)
    else:
        ids = subject.turn_mask(
            read_segment_ids(data, size=subject.file_size, annotated=subject.scaled_size)
        )
        segments = _leave_out_cropped(segments, ids=ids, subject=subject)
        indices = _index(ids, segments=segments, known=known, subject=subject)
        indices = subject.resize_pixels(indices, fill=0)
    of_stuff = stuff_classes(subject.label_map)
    classes = [
        _THING_CLASS if segment.is_thing else of_stuff[segment.label_id] for segment in segments
    ]
    numbers = [
        number if segment.is_thing or subject.panoptic.stuff == "index" else 0
        for number, segment in enumerate(segments, start=1)
    ]
    _check_numbers(numbers, classes=classes, bits=subject.panoptic.bits)
    dtype = _DTYPES[subject.panoptic.bits]
    categories = [segment.label_id for segment in segments]
    pixels: Counter[int] = Counter()
    found = np.bincount(indices.ravel(), minlength=len(segments) + 1).tolist()
    for category, count in zip((0, *categories), found, strict=True):
        pixels[category] += count
    return {
        # Only for the statistics and the index.
        PIXELS: [(category, count) for category, count in pixels.items() if count],
        CLASS_MAP: [_look_up(classes, indices, dtype=np.uint8)],
        CATEGORY_MAP: [_look_up(categories, indices, dtype=dtype)],
        "image/panoptic/instance_mask": [_look_up(numbers, indices, dtype=dtype)],
        "image/panoptic/segment_id": [segment.segment_id for segment in segments],
    }


def _written_segments(subject: AnnotatedImage) -> list[_Segment]:
    segments: dict[int, _Segment] = {}
    for item in subject.annotations.segments:
        label = subject.label_map.written.get(item.label)
        if label is None:
            subject.corrections.note(Correction.REGION_OF_EXCLUDED_LABEL_VOID, item.label, 0)
        elif item.segment_id in segments:
            subject.corrections.note(Correction.DUPLICATE_SEGMENT_DROPPED, item.segment_id)
        else:
            is_thing = item.label not in subject.label_map.stuff
            segments[item.segment_id] = _Segment(item.segment_id, label.id, is_thing)
    return list(segments.values())


def _leave_out_cropped(
    segments: list[_Segment], *, ids: npt.NDArray[np.uint32], subject: AnnotatedImage
) -> list[_Segment]:
    """Leaves out the segments all of whose pixels a crop leaves out."""
    placement = subject.image.placement
    height, width = ids.shape
    if placement is None or placement.crop_size == (width, height):
        return segments
    left, top, right, bottom = placement.crop
    outside = {*np.unique(ids).tolist()} - {*np.unique(ids[top:bottom, left:right]).tolist()}
    for segment in segments:
        if segment.segment_id in outside:
            subject.corrections.note(Correction.SEGMENT_OUTSIDE_CROP_DROPPED, segment.segment_id)
    return [segment for segment in segments if segment.segment_id not in outside]


def _check_numbers(numbers: list[int], *, classes: list[int], bits: int) -> None:
    if max(numbers, default=0) >= 2**bits:
        fix = "set panoptic.bits: 16" if bits == 8 else "no mask can hold that many"
        raise RejectedError(
            Reason.TOO_MANY_SEGMENTS,
            f"{len(numbers)} segments do not fit into pixels of {bits} bits; {fix}",
        )
    if max(classes, default=0) > _MAX_CLASS:
        raise RejectedError(
            Reason.TOO_MANY_SEGMENTS,
            f"image/segmentation/class/encoded can hold at most {_MAX_CLASS - _THING_CLASS} "
            "classes of stuff; leave some out with labels.include",
        )


def stuff_classes(label_map: LabelMap) -> dict[int, int]:
    """Chooses the value of each class of stuff in `image/segmentation/class/encoded`.

    If all of these classes have an id above 91, as in COCO, the value is the id minus 90. Otherwise
    the classes are numbered from 2, in order of their ids.

    Returns:
        `{written id: value}`.
    """
    ids = sorted({label_map.ids[label_map.names[name]] for name in label_map.stuff})
    if not ids:
        return {}
    if ids[0] - _COCO_STUFF_OFFSET > _THING_CLASS and ids[-1] - _COCO_STUFF_OFFSET <= _MAX_CLASS:
        return {label_id: label_id - _COCO_STUFF_OFFSET for label_id in ids}
    return {label_id: value for value, label_id in enumerate(ids, start=_THING_CLASS + 1)}


def _index(
    ids: npt.NDArray[np.uint32],
    *,
    segments: list[_Segment],
    known: set[int],
    subject: AnnotatedImage,
) -> IndexMap:
    """Replaces each id by the number of its segment, from 1; 0 if there is no such segment."""
    # The table has 64 MB, but the system provides only the pages that are touched.
    table = np.zeros(_MAX_SEGMENT_ID + 1, np.uint32)
    for place, segment in enumerate(segments, start=1):
        if 0 < segment.segment_id <= _MAX_SEGMENT_ID:
            table[segment.segment_id] = place
    indices: npt.NDArray[np.uint32] = table[ids]
    pixels = np.bincount(indices.ravel(), minlength=len(segments) + 1)
    for place in np.flatnonzero(pixels[1:] == 0).tolist():
        subject.corrections.note(Correction.SEGMENT_WITHOUT_PIXELS, segments[place].segment_id)
    if pixels[0]:
        strange = set(np.unique(ids[indices == 0]).tolist()) - known - {0}
        for segment_id in sorted(strange):
            subject.corrections.note(Correction.REGION_OF_UNKNOWN_SEGMENT_VOID, segment_id, 0)
    return indices


def _look_up(
    values: list[int], indices: IndexMap, *, dtype: type[np.uint8] | type[np.uint16]
) -> bytes:
    table: IndexMap = np.array([0, *values], dtype)
    return encode_map(table[indices])
