"""Example keys of the image as a whole."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.transforms.examples.encode.annotated import AnnotatedImage, FeatureGroup, Values
from shardbeam.transforms.examples.features import (
    FeatureKind,
    FeatureRole,
    FeatureSpec,
    one_value,
    value_list,
)
from shardbeam.transforms.examples.geometry.boxes import Size

# The key of the image's own bytes.
IMAGE = "image/encoded"


def image_group(*, raw: bool) -> FeatureGroup:
    """Declares the keys of every image.

    Args:
        raw: Whether the images are bare pixels, which readers cannot decode as images.
    """
    return FeatureGroup(
        (
            one_value(IMAGE, FeatureKind.BYTES, FeatureRole.DATA if raw else FeatureRole.IMAGE),
            one_value("image/format", FeatureKind.BYTES, FeatureRole.TEXT),
            one_value("image/height", FeatureKind.INT64),
            one_value("image/width", FeatureKind.INT64),
            one_value("image/filename", FeatureKind.BYTES, FeatureRole.TEXT),
            one_value("image/source_id", FeatureKind.BYTES, FeatureRole.TEXT),
            one_value("image/key/sha256", FeatureKind.BYTES, FeatureRole.TEXT),
        ),
        _image_values,
        optional=(one_value("image/depth", FeatureKind.INT64),),
    )


def _image_values(subject: AnnotatedImage) -> Values:
    image = subject.image
    return {
        "image/format": [image.format.encode()],
        "image/height": [image.height],
        "image/width": [image.width],
        "image/depth": [image.channels],
        "image/filename": [subject.key.encode()],
        "image/source_id": [(subject.annotations.image_id or subject.key).encode()],
        "image/key/sha256": [subject.sha256.encode()],
    }


def _label_values(subject: AnnotatedImage) -> Values:
    return {
        "image/class/label": [label_id for label_id, _ in subject.labels.values()],
        "image/class/text": list(subject.labels),
    }


def _confidence_values(subject: AnnotatedImage) -> Values:
    return {"image/class/confidence": [confidence for _, confidence in subject.labels.values()]}


def _caption_values(subject: AnnotatedImage) -> Values:
    return {"image/caption": [caption.encode() for caption in subject.annotations.captions]}


def _label_group(feature: Callable[[str, FeatureKind, FeatureRole], FeatureSpec]) -> FeatureGroup:
    ids = feature("image/class/label", FeatureKind.INT64, FeatureRole.LABEL)
    names = feature("image/class/text", FeatureKind.BYTES, FeatureRole.LABEL_TEXT)
    return FeatureGroup((ids, names), _label_values)


LABELS = _label_group(value_list)
# The labels of formats whose images have exactly one.
LABEL = _label_group(one_value)
CONFIDENCES = FeatureGroup(
    (value_list("image/class/confidence", FeatureKind.FLOAT),), _confidence_values
)
CAPTIONS = FeatureGroup(
    (value_list("image/caption", FeatureKind.BYTES, FeatureRole.TEXT),), _caption_values
)


# An image's labels for its dataset's index: ids of its classes, and digests.
#
# Digests show when equal images have different labels.

# Increase it if equal labels get another digest.
LABELS_VERSION = 2

_DIGEST_BYTES = 8
# Sides of boxes are rounded to this many steps, so that rounding in the source does not matter.
# Fractions of usual sizes, such as 4/640, often lie in the middle between two steps, where the last
# bit decides. So all are shifted by a part of a step: with this one, the pixels of 56 usual sizes
# (100 to 4032) are at least 1/3000 of a step away from the middle, more than the last bit.
_BOX_STEPS, _SHIFT = 10_000, 0.2018

# The keys with the ids of an Example's classes.
OBJECT_CLASS_IDS = ("image/object/class/label", "annotation/class/label")
CLASS_IDS = ("image/class/label", *OBJECT_CLASS_IDS)
IMAGE_CLASSES, _CAPTIONS = "image/class/text", "image/caption"
_OBJECT_CLASSES = "image/object/class/text"
_OBJECT_SIDES = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
# The keys that decide the digest of an Example with all objects of its image.
LABEL_KEYS = (IMAGE_CLASSES, _CAPTIONS, _OBJECT_CLASSES, *_OBJECT_SIDES)

_encoder = msgspec.msgpack.Encoder()


def list_class_ids(values: Mapping[str, Sequence[Any]]) -> tuple[int, ...]:
    """Lists the ids of the classes of an Example's objects and of its image, each once, in order.

    Args:
        values: `{default key: values}`.
    """
    return tuple(sorted(set().union(*[values.get(key, ()) for key in CLASS_IDS])))


def count_class_objects(values: Mapping[str, Sequence[Any]]) -> tuple[int, ...]:
    """Counts the objects of an Example by class, in the order of `list_class_ids`.

    Args:
        values: `{default key: values}`.
    """
    counts = dict.fromkeys(list_class_ids(values), 0)
    for key in OBJECT_CLASS_IDS:
        for label in values.get(key, ()):
            counts[label] += 1
    return tuple(counts.values())


def digest_image(values: Mapping[str, Sequence[Any]]) -> str:
    """Digests the labels of an Example that holds all objects of its image (`LABEL_KEYS`).

    Args:
        values: `{default key: values}`, as they are stored or are to be stored.

    Returns:
        16 hex digits.
    """
    return digest_labels(
        classes=values.get(IMAGE_CLASSES, ()),
        names=values.get(_OBJECT_CLASSES, ()),
        sides=[values.get(key, ()) for key in _OBJECT_SIDES],
        captions=values.get(_CAPTIONS, ()),
    )


def digest_image_by_object(
    values: Mapping[str, Sequence[Any]], *, of_objects: Mapping[str, Sequence[Any]], size: Size
) -> str:
    """Digests the labels of an image whose objects have an Example each.

    Args:
        values: `{default key: values}` of the image.
        of_objects: `{default key: values of each object}`.
        size: Width and height of the image in pixels.

    Returns:
        16 hex digits.
    """
    width, height = size
    boxes = [
        (left / width, top / height, (left + across) / width, (top + down) / height)
        # As they are stored.
        for left, top, across, down in (array("f", box) for box in of_objects["annotation/bbox"])
    ]
    return digest_labels(
        classes=values.get(IMAGE_CLASSES, ()),
        names=[name for (name,) in of_objects["annotation/class/text"]],
        sides=list(zip(*boxes, strict=True)),
        captions=values.get(_CAPTIONS, ()),
    )


def digest_labels(
    *,
    classes: Iterable[bytes],
    names: Iterable[bytes],
    sides: Iterable[Sequence[float]],
    captions: Iterable[bytes],
) -> str:
    """Digests classes, objects and captions, independent of their order.

    Args:
        classes: Names of the image's classes.
        names: The class of each object.
        sides: The xmin of each object's box, then the ymin, xmax and ymax, in fractions of the
            image, of which the stored 32-bit floats are rounded to a ten-thousandth.
        captions: Texts that describe the image.

    Returns:
        16 hex digits.
    """
    rounded = [
        [round(side * _BOX_STEPS + _SHIFT) for side in array("f", column)] for column in sides
    ]
    objects = zip(names, zip(*rounded, strict=True), strict=False)
    return _digest([sorted(classes), sorted(objects), sorted(captions)])


def digest_classes(classes: Collection[bytes]) -> str:
    """Digests the names of an image's classes, independent of their order.

    Returns:
        16 hex digits; empty if there are no classes.
    """
    return _digest(sorted(classes)) if classes else ""


def _digest(what: list[Any]) -> str:
    return hashlib.blake2b(_encoder.encode(what), digest_size=_DIGEST_BYTES).hexdigest()
