"""Turns the pictures of stored Examples into annotations, as a format gives them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation, Value
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import (
    ANNOTATION,
    MAX_SIDE_PX,
    NO_ID,
    OBJECT,
    FeatureValues,
    Picture,
    PictureObject,
)
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, FeatureRole
from shardbeam.transforms.examples.geometry.boxes import Size
from shardbeam.transforms.examples.geometry.mask_crops import crop_mask
from shardbeam.transforms.examples.geometry.segmentation import encode_crop
from shardbeam.transforms.images.mask_file import read_indices

_AREAS = (f"{OBJECT}area", f"{ANNOTATION}area")
_TYPES = {FeatureKind.BYTES: bytes, FeatureKind.INT64: int, FeatureKind.FLOAT: float}


def annotations_of(
    picture: Picture,
    *,
    feature_map: FeatureMap,
    extras: Sequence[ExtraFeature] = (),
    masks: bool = True,
) -> ImageAnnotations:
    """Makes the annotations that an Example holds, as a format gives them.

    Coordinates are fractions of the image, as in the Example, and so are areas: of the area that
    the Example gives the image, or else of the stored image. Width and height are those that the
    Example gives.

    Args:
        picture: The Example.
        feature_map: How it is read, as for `make_picture`.
        extras: Other keys that are read: `ImageAnnotations.values` and
            `ObjectAnnotation.attributes` hold their values.
        masks: Whether masks of objects are decoded.

    Raises:
        RejectedError: Values of the Example contradict each other, or are not of the kind that
            `extras` names; an object or a label has neither a name nor an id; or a mask cannot be
            read.
    """
    if picture.contradictions:
        raise _malformed("; ".join(picture.contradictions))
    images = _values_of(picture, IMAGE, feature_map=feature_map)
    if len(images) > 1:
        raise _malformed(f"{len(images):,} images in {IMAGE}")
    corrections = Corrections()
    stated, actual = _stated_size(picture, feature_map=feature_map), (picture.width, picture.height)
    if min(stated) <= 0:
        size, stated = actual, (0, 0)
    else:
        size = stated
        if stated not in (actual, actual[::-1]):
            corrections.note(Correction.SIZE_CORRECTED, stated, actual)
    has_areas = (
        any(_values_of(picture, key, feature_map=feature_map) for key in _AREAS) and min(size) > 0
    )
    attributes = _object_extras(picture, feature_map=feature_map, extras=extras)
    objects = []
    for item, extra in zip(picture.objects, attributes, strict=True):
        if item.box is None:
            corrections.note_lost(class_of(item)[0], "no box")
            continue
        objects.append(
            ObjectAnnotation(
                label=_checked_name(class_of(item)[0]),
                bbox=item.box,
                area=item.area / (size[0] * size[1]) if has_areas else -1.0,
                is_crowd=item.is_crowd,
                annotation_id=item.annotation_id,
                segmentation=(
                    _runs_of(item.mask, size=size, stored=actual) if masks and item.mask else b""
                ),
                keypoints=tuple(value for point in item.keypoints for value in point),
                attributes=extra,
            )
        )
    labels = {_checked_name(label): 1.0 for label in picture.labels}
    confidences = _values_of(picture, "image/class/confidence", feature_map=feature_map)
    if confidences and len(confidences) != len(picture.labels):
        raise _malformed(
            f"{len(picture.labels):,} labels and {len(confidences):,} values in "
            "image/class/confidence"
        )
    for label, confidence in zip(picture.labels, confidences, strict=False):
        labels[label] = float(confidence)
    source_id = _values_of(picture, "image/source_id", feature_map=feature_map)
    return ImageAnnotations(
        image_id=_text(source_id[0], key="image/source_id") if source_id else "",
        width=stated[0],
        height=stated[1],
        labels=tuple(labels),
        objects=tuple(objects),
        **corrections.fields(),
        normalized=True,
        label_confidences=tuple(labels.values()) if confidences else (),
        captions=picture.captions,
        values={
            extra.spec.key: tuple(
                _carried(value, extra=extra, feature_map=feature_map) for value in found
            )
            for extra in extras
            if not extra.per_object
            and (found := _checked_values(picture, extra, feature_map=feature_map))
        },
    )


def class_of(item: PictureObject) -> tuple[str, int]:
    """Returns an object's class and its id; a class without a name has its id as name."""
    unnamed = "" if item.label_id == NO_ID else str(item.label_id)
    return item.label or unnamed, item.label_id


def keypoint_names(picture: Picture, *, feature_map: FeatureMap) -> tuple[str, ...]:
    """Returns the names of the keypoints of a picture's objects; their numbers if they lack names.

    All objects of a dataset have the same keypoints. Without an object it is not known which.
    """
    count = len(picture.objects[0].keypoints) if picture.objects else 0
    texts = _values_of(picture, f"{OBJECT}keypoint/text", feature_map=feature_map)[:count]
    names = [text.decode(errors="replace") for text in texts if isinstance(text, bytes)]
    return tuple(names if len(set(names)) == count else map(str, range(count)))


def _values_of(picture: Picture, default_key: str, *, feature_map: FeatureMap) -> FeatureValues:
    return picture.features.get(feature_map.keys.get(default_key, default_key), ())


def _stated_size(picture: Picture, *, feature_map: FeatureMap) -> Size:
    width, height = (
        next(iter(_values_of(picture, f"image/{side}", feature_map=feature_map)), 0)
        for side in ("width", "height")
    )
    if not (isinstance(width, int) and isinstance(height, int)):
        return 0, 0
    return (width, height) if max(width, height) <= MAX_SIDE_PX else (0, 0)


def _object_extras(
    picture: Picture, *, feature_map: FeatureMap, extras: Sequence[ExtraFeature]
) -> list[dict[str, Value]]:
    """Reads the values of each object's other keys; a key that is absent has none."""
    attributes: list[dict[str, Value]] = [{} for _ in picture.objects]
    for extra in extras:
        found = _checked_values(picture, extra, feature_map=feature_map) if extra.per_object else ()
        if found and len(found) != len(attributes):
            raise _malformed(
                f"{extra.spec.key} has {len(found):,} values for {len(attributes):,} objects"
            )
        for attribute, value in zip(attributes, found, strict=False):
            attribute[extra.spec.key] = _carried(value, extra=extra, feature_map=feature_map)
    return attributes


def _checked_values(
    picture: Picture, extra: ExtraFeature, *, feature_map: FeatureMap
) -> FeatureValues:
    spec = extra.spec
    found = _values_of(picture, spec.key, feature_map=feature_map)
    if found and not isinstance(found[0], _TYPES[spec.kind]):
        raise _malformed(f"{spec.key} holds no {spec.kind.value} values, as other Examples do")
    if found and not spec.repeated and len(found) != spec.length:
        raise _malformed(
            f"{spec.key} has {len(found):,} values, and {spec.length:,} in other Examples"
        )
    return found


def _carried(value: bytes | int | float, *, extra: ExtraFeature, feature_map: FeatureMap) -> Value:
    if extra.spec.role is FeatureRole.LABEL and isinstance(value, int):
        # Formats give names of classes, so that ids follow the labels' settings.
        return feature_map.class_names.get(value, str(value))
    return _text(value, key=extra.spec.key) if isinstance(value, bytes) else value


def _text(value: bytes | int | float, *, key: str) -> str:
    if not isinstance(value, bytes):
        raise _malformed(f"{key} holds no bytes")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _malformed(f"{key}: byte {error.start}: expected UTF-8 text") from error


def _checked_name(name: str) -> str:
    if not name:
        raise _malformed("an object or a label has neither a name nor an id")
    return name


def _runs_of(mask: bytes, *, size: Size, stored: Size) -> bytes:
    """Encodes a mask's pixels that are not 0 in COCO's form; empty if there are none.

    The mask has the size that the Example gives, perhaps with its sides exchanged, or that of the
    stored image.
    """
    pixels = (read_indices(mask, size=size, annotated=stored) != 0).view(np.uint8)
    crop = crop_mask(pixels)
    height, width = pixels.shape
    return b"" if crop is None else encode_crop(crop, frame=(width, height))


def _malformed(detail: str) -> RejectedError:
    return RejectedError(Reason.ANNOTATION_MALFORMED, detail)
