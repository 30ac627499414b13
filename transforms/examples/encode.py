"""Encoding one image with its annotations as a `tf.train.Example`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from transforms.examples import example_pb2
from transforms.examples.boxes import (
    AnnotatedAs,
    AnnotatedFrame,
    Box,
    annotated_frame,
    clip_box,
)
from transforms.examples.features import FeatureKind, FeatureSpec
from transforms.examples.schema import MAX_FLOAT32, Constant, FeaturePlan, plan_features
from transforms.examples.wire import splice_image, wrap_features
from transforms.formats.base import Kind
from transforms.images.check import StoredImage
from transforms.labels import LabelMap
from transforms.reasons import Correction
from transforms.records import ImageAnnotations, ObjectAnnotation, Record

_IMAGE = "image/encoded"


class EncodedExample(msgspec.Struct, frozen=True, kw_only=True):
    """A serialized Example, and what is to be known of it.

    Attributes:
        chunks: The serialized `tf.train.Example`, in parts: its image is not copied.
        sha256: Digest of the stored image's bytes, hex.
        objects: How many objects it holds.
        label_counts: `{written label: objects and image-level labels that carry it}`.
        corrections: `{correction: count}`, those of the annotations and of the image included.
    """

    chunks: tuple[bytes, ...]
    sha256: str
    objects: int
    label_counts: Mapping[str, int]
    corrections: Mapping[str, int]

    @property
    def data(self) -> bytes:
        """The serialized `tf.train.Example` in one piece."""
        return b"".join(self.chunks)


class _Object(NamedTuple):
    """An object as it is written: the box in fractions of the image, the area in its pixels²."""

    label: str
    label_id: int
    box: Box
    area: float
    is_crowd: bool


class ExampleEncoder:
    """Encodes images with their annotations, always with the same keys.

    An encoder holds nothing that changes: threads may share one.
    """

    def __init__(
        self,
        *,
        kinds: Collection[Kind],
        rename: Mapping[str, str],
        drop: Collection[str],
        constants: Mapping[str, Any],
        label_map: LabelMap,
        annotated_as: AnnotatedAs = "auto",
    ) -> None:
        """Prepares an encoder.

        Args:
            kinds: As for `plan_features`.
            rename: As for `plan_features`.
            drop: As for `plan_features`.
            constants: As for `plan_features`.
            label_map: The labels' written names and ids; objects of other labels are left out.
            annotated_as: Which pixels boxes refer to (`annotated_frame`).

        Raises:
            ValueError: As for `plan_features`.
        """
        plan = plan_features(kinds=kinds, rename=rename, drop=drop, constants=constants)
        self._image_key = plan.defaults[_IMAGE].key if _IMAGE in plan.defaults else None
        self._before_image, self._after_image = _split_at(plan, self._image_key)
        self._label_map = label_map
        self._annotated_as = annotated_as

    def encode(
        self,
        *,
        record: Record,
        annotations: ImageAnnotations,
        image: StoredImage,
        sha256: str | None = None,
    ) -> EncodedExample:
        """Encodes one image.

        Boxes are written in fractions of the image, so a resize leaves them as they are; areas
        are in pixels² of the stored image, so a resize scales them.

        Args:
            record: Names the image.
            annotations: What `record.annotations` holds.
            image: The image as it is stored.
            sha256: Digest of `image.data`, hex, if it is known already.

        Raises:
            RejectedError: The annotations are of an image of another size.
        """
        corrections = Counter(annotations.corrections)
        corrections.update(correction.value for correction in image.corrections)
        frame = annotated_frame(
            annotated=(annotations.width, annotations.height),
            stored=(image.file_width, image.file_height),
            orientation=image.orientation,
            upright=image.upright,
            annotated_as=self._annotated_as,
            boxes=(item.bbox for item in annotations.objects),
        )
        if frame.size_corrected:
            corrections[Correction.SIZE_CORRECTED.value] += 1
        labels = self._image_labels(annotations.labels, corrections=corrections)
        objects = self._objects(
            annotations.objects, frame=frame, image=image, corrections=corrections
        )
        sha256 = sha256 or hashlib.sha256(image.data).hexdigest()

        values: dict[str, Iterable[Any]] = {
            "image/format": [image.format.encode()],
            "image/height": [image.height],
            "image/width": [image.width],
            "image/filename": [record.key.encode()],
            "image/source_id": [(annotations.image_id or record.key).encode()],
            "image/key/sha256": [sha256.encode()],
            "image/class/label": labels.values(),
            "image/class/text": [label.encode() for label in labels],
            "image/object/bbox/xmin": [item.box[0] for item in objects],
            "image/object/bbox/ymin": [item.box[1] for item in objects],
            "image/object/bbox/xmax": [item.box[2] for item in objects],
            "image/object/bbox/ymax": [item.box[3] for item in objects],
            "image/object/class/label": [item.label_id for item in objects],
            "image/object/class/text": [item.label.encode() for item in objects],
            "image/object/is_crowd": [int(item.is_crowd) for item in objects],
            "image/object/area": [item.area for item in objects],
        }
        before = _serialize(self._before_image, values)
        after = _serialize(self._after_image, values)
        return EncodedExample(
            chunks=(wrap_features(after),)
            if self._image_key is None
            else splice_image(before=before, key=self._image_key, image=image.data, after=after),
            sha256=sha256,
            objects=len(objects),
            label_counts=Counter([*labels, *(item.label for item in objects)]),
            corrections=corrections,
        )

    def _image_labels(
        self, source_labels: Iterable[str], *, corrections: Counter[str]
    ) -> dict[str, int]:
        """Returns `{written label: id}`; labels that are merged into one count once."""
        labels = {}
        for source_label in source_labels:
            found = self._label_map.lookup(source_label)
            if found is None:
                corrections[Correction.EXCLUDED_LABEL_DROPPED.value] += 1
            else:
                label, label_id = found
                labels[label] = label_id
        return labels

    def _objects(
        self,
        annotated: Iterable[ObjectAnnotation],
        *,
        frame: AnnotatedFrame,
        image: StoredImage,
        corrections: Counter[str],
    ) -> list[_Object]:
        width, height = frame.written_size
        area_scale = (image.width * image.height) / (width * height)
        objects = []
        for item in annotated:
            found = self._label_map.lookup(item.label)
            if found is None:
                corrections[Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED.value] += 1
                continue
            placed = clip_box(frame.place(item.bbox), width=width, height=height)
            if placed is None:
                corrections[Correction.BOX_WITHOUT_AREA_DROPPED.value] += 1
                continue
            (xmin, ymin, xmax, ymax), clipped = placed
            if clipped:
                corrections[Correction.BOX_CLIPPED.value] += 1
            area = item.area if 0 <= item.area <= MAX_FLOAT32 else (xmax - xmin) * (ymax - ymin)
            label, label_id = found
            objects.append(
                _Object(
                    label=label,
                    label_id=label_id,
                    box=(xmin / width, ymin / height, xmax / width, ymax / height),
                    area=area * area_scale,
                    is_crowd=item.is_crowd,
                )
            )
        return objects


def _split_at(plan: FeaturePlan, image_key: str | None) -> tuple[FeaturePlan, FeaturePlan]:
    """Splits a plan, without the image, into the keys that sort before and after it."""
    before: tuple[dict[str, FeatureSpec], list[Constant]] = ({}, [])
    after: tuple[dict[str, FeatureSpec], list[Constant]] = ({}, [])

    def part(spec: FeatureSpec) -> tuple[dict[str, FeatureSpec], list[Constant]]:
        # Protobuf sorts a map's keys by their bytes.
        return before if image_key and spec.key.encode() < image_key.encode() else after

    for default_key, spec in plan.defaults.items():
        if default_key != _IMAGE:
            part(spec)[0][default_key] = spec
    for constant in plan.constants:
        part(constant.spec)[1].append(constant)
    return (
        FeaturePlan(defaults=before[0], constants=tuple(before[1])),
        FeaturePlan(defaults=after[0], constants=tuple(after[1])),
    )


def _serialize(plan: FeaturePlan, values: Mapping[str, Iterable[Any]]) -> bytes:
    features = example_pb2.Features()
    for default_key, spec in plan.defaults.items():
        _fill(features.feature[spec.key], kind=spec.kind, values=values[default_key])
    for constant in plan.constants:
        _fill(features.feature[constant.spec.key], kind=constant.spec.kind, values=constant.values)
    return features.SerializeToString(deterministic=True)


def _fill(feature: example_pb2.Feature, *, kind: FeatureKind, values: Iterable[Any]) -> None:
    # An empty list must still be there, so that readers see a feature of its kind.
    if kind is FeatureKind.BYTES:
        feature.bytes_list.SetInParent()
        feature.bytes_list.value.extend(values)
    elif kind is FeatureKind.INT64:
        feature.int64_list.SetInParent()
        feature.int64_list.value.extend(values)
    else:
        feature.float_list.SetInParent()
        feature.float_list.value.extend(values)
