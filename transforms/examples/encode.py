"""Encoding one image with its annotations as `tf.train.Example`s."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from shardbeam.transforms.core.crc32c import crc32c
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import ImageAnnotations, MaskRole, Record, Value
from shardbeam.transforms.examples.annotated import AnnotatedImage
from shardbeam.transforms.examples.boxes import AnnotatedAs, annotated_frame
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, FeatureRole
from shardbeam.transforms.examples.maps import semantic_features
from shardbeam.transforms.examples.masks import instance_masks
from shardbeam.transforms.examples.objects import WrittenObject, keypoint_features, write_objects
from shardbeam.transforms.examples.panoptic import panoptic_features
from shardbeam.transforms.examples.schema import FeatureSettings, plan_features
from shardbeam.transforms.examples.wire import ExampleLayout
from shardbeam.transforms.images.check import StoredImage

_MASKS = "image/object/mask"
_DEFAULTS: Mapping[FeatureKind, Value] = {
    FeatureKind.BYTES: "",
    FeatureKind.INT64: 0,
    FeatureKind.FLOAT: 0.0,
}


class EncodedExample(msgspec.Struct, frozen=True, kw_only=True):
    """A serialized Example, and what is to be known of it.

    Attributes:
        chunks: The serialized `tf.train.Example`, in parts: its image is not copied.
        size_bytes: Its length.
        crc32c: Its CRC-32C, taken while the image is still in the processor's cache.
        sha256: Digest of the stored image's bytes, hex; empty where there is no image.
        objects: How many objects it holds.
    """

    chunks: tuple[bytes, ...]
    size_bytes: int
    crc32c: int
    sha256: str
    objects: int

    @property
    def data(self) -> bytes:
        """The serialized `tf.train.Example` in one piece."""
        return b"".join(self.chunks)


class EncodedImage(msgspec.Struct, frozen=True, kw_only=True):
    """All Examples of one image.

    Attributes:
        examples: One, or one for each object.
        corrections: `{correction: count}`, those of the annotations and of the image included.
    """

    examples: tuple[EncodedExample, ...]
    corrections: Mapping[str, int]


class ExampleEncoder:
    """Encodes images with their annotations, always with the same keys.

    An encoder holds nothing that changes: threads may share one.
    """

    def __init__(
        self,
        *,
        features: FeatureSettings,
        label_map: LabelMap,
        annotated_as: AnnotatedAs = "auto",
    ) -> None:
        """Prepares an encoder.

        Args:
            features: Which features every Example has.
            label_map: The labels' written names and ids; objects of other labels are left out.
            annotated_as: Which pixels boxes refer to (`annotated_frame`).

        Raises:
            ValueError: As for `plan_features`.
        """
        plan = plan_features(features)
        self._settings = features
        self._keys = frozenset(plan.defaults)
        self._extras = plan.extras.values()
        self._layout = ExampleLayout(plan)
        self._per_annotation = features.example_per == "annotation"
        self._label_map = label_map
        self._annotated_as = annotated_as

    def encode(
        self,
        *,
        record: Record,
        annotations: ImageAnnotations,
        image: StoredImage,
        sha256: str | None = None,
        masks: Mapping[MaskRole, bytes] | None = None,
    ) -> EncodedImage:
        """Encodes one image.

        Boxes are written in fractions of the image, so a resize leaves them as they are; areas
        are in pixels² of the stored image, so a resize scales them.

        Args:
            record: Names the image.
            annotations: What `record.annotations` holds.
            image: The image as it is stored.
            sha256: Digest of `image.data`, hex, if it is known already.
            masks: The files that annotate the image, by what their pixels mean.

        Raises:
            RejectedError: The annotations are of an image of another size, or a mask cannot be
                used.
        """
        corrections = Counter(annotations.corrections)
        corrections.update(correction.value for correction in image.corrections)
        frame = annotated_frame(
            annotated=(annotations.width, annotations.height),
            stored=(image.file_width, image.file_height),
            orientation=image.orientation,
            upright=image.upright,
            annotated_as=self._annotated_as,
            boxes=(() if annotations.normalized else (item.bbox for item in annotations.objects)),
        )
        if frame.size_corrected:
            corrections[Correction.SIZE_CORRECTED.value] += 1
        subject = AnnotatedImage(
            annotations=annotations,
            image=image,
            frame=frame,
            masks=masks or {},
            label_map=self._label_map,
            corrections=corrections,
        )
        objects = list(write_objects(subject))
        sha256 = sha256 or hashlib.sha256(image.data).hexdigest()
        values = self._image_values(record, annotations=annotations, image=image, sha256=sha256)
        values |= self._label_values(annotations, corrections=corrections)
        if Kind.PANOPTIC in self._settings.kinds:
            values |= panoptic_features(
                subject,
                stuff=self._settings.panoptic_stuff,
                bits=self._settings.panoptic_bits,
            )
        elif Kind.SEMANTIC in self._settings.kinds:
            values |= semantic_features(subject)
        object_masks: list[bytes] = []
        if self._keys & {_MASKS, "annotation/mask"}:
            object_masks = instance_masks(objects, subject=subject)
        if self._per_annotation:
            examples = [
                values | annotation
                for annotation in self._values_by_annotation(
                    objects, masks=object_masks, subject=subject
                )
            ]
        else:
            values |= self._object_values(objects, masks=object_masks, subject=subject)
            examples = [values]
        return EncodedImage(
            examples=tuple(
                _digest(
                    self._layout.serialize(example, image=image.data),
                    sha256=sha256,
                    objects=1 if self._per_annotation else len(objects),
                )
                for example in examples
            ),
            corrections=corrections,
        )

    def encode_row(self, annotations: ImageAnnotations) -> EncodedImage:
        """Encodes a row of a table without images.

        Args:
            annotations: What the row holds.
        """
        corrections = Counter(annotations.corrections)
        values = self._label_values(annotations, corrections=corrections)
        chunks = self._layout.serialize(values, image=b"")
        return EncodedImage(
            examples=(_digest(chunks, sha256="", objects=0),), corrections=corrections
        )

    def _image_values(
        self, record: Record, *, annotations: ImageAnnotations, image: StoredImage, sha256: str
    ) -> dict[str, Iterable[Any]]:
        return {
            "image/format": [image.format.encode()],
            "image/height": [image.height],
            "image/width": [image.width],
            "image/depth": [image.channels],
            "image/filename": [record.key.encode()],
            "image/source_id": [(annotations.image_id or record.key).encode()],
            "image/key/sha256": [sha256.encode()],
        }

    def _label_values(
        self, annotations: ImageAnnotations, *, corrections: Counter[str]
    ) -> dict[str, Iterable[Any]]:
        """Renders what is said about the image as a whole.

        Labels that are merged into one are written once, with the greatest confidence.
        """
        confidences = annotations.label_confidences or (1.0,) * len(annotations.labels)
        labels: dict[str, tuple[int, float]] = {}
        for source_label, confidence in zip(annotations.labels, confidences, strict=True):
            found = self._label_map.lookup(source_label)
            if found is None:
                corrections[Correction.EXCLUDED_LABEL_DROPPED.value] += 1
                continue
            label, label_id = found
            _, known = labels.get(label, (label_id, confidence))
            labels[label] = (label_id, max(known, confidence))
        values: dict[str, Iterable[Any]] = {
            "image/class/label": [label_id for label_id, _ in labels.values()],
            "image/class/text": [label.encode() for label in labels],
            "image/class/confidence": [confidence for _, confidence in labels.values()],
            "image/caption": [caption.encode() for caption in annotations.captions],
        }
        for extra in self._extras:
            if not extra.per_object:
                given = annotations.values.get(extra.spec.key, ())
                values[extra.spec.key] = list(self._extra_values(extra, given))
        return values

    def _object_values(
        self, objects: list[WrittenObject], *, masks: list[bytes], subject: AnnotatedImage
    ) -> dict[str, Iterable[Any]]:
        values: dict[str, Iterable[Any]] = {
            "image/object/bbox/xmin": [item.box[0] for item in objects],
            "image/object/bbox/ymin": [item.box[1] for item in objects],
            "image/object/bbox/xmax": [item.box[2] for item in objects],
            "image/object/bbox/ymax": [item.box[3] for item in objects],
            "image/object/class/label": [item.label_id for item in objects],
            "image/object/class/text": [item.label.encode() for item in objects],
            "image/object/is_crowd": [int(item.annotation.is_crowd) for item in objects],
            "image/object/area": [item.area for item in objects],
            _MASKS: masks,
        }
        if Kind.KEYPOINTS in self._settings.kinds:
            values |= keypoint_features(objects, subject=subject)
        for extra in self._extras:
            if extra.per_object:
                values[extra.spec.key] = [self._attribute(extra, item) for item in objects]
        return values

    def _values_by_annotation(
        self, objects: list[WrittenObject], *, masks: list[bytes], subject: AnnotatedImage
    ) -> Iterator[dict[str, Iterable[Any]]]:
        image_id = _integer_id(subject.annotations) if "annotation/image_id" in self._keys else 0
        width, height = subject.size
        for index, item in enumerate(objects):
            xmin, ymin, xmax, ymax = item.box
            values: dict[str, Iterable[Any]] = {
                "annotation/id": [item.annotation.annotation_id],
                "annotation/image_id": [image_id],
                "annotation/bbox": [
                    xmin * width,
                    ymin * height,
                    (xmax - xmin) * width,
                    (ymax - ymin) * height,
                ],
                "annotation/area": [item.area],
                "annotation/is_crowd": [int(item.annotation.is_crowd)],
                "annotation/class/label": [item.label_id],
                "annotation/class/text": [item.label.encode()],
                "annotation/mask": masks[index : index + 1],
            }
            for extra in self._extras:
                if extra.per_object:
                    values[extra.spec.key] = [self._attribute(extra, item)]
            yield values

    def _attribute(self, extra: ExtraFeature, item: WrittenObject) -> Any:  # noqa: ANN401  # Of the feature's kind.
        given = item.annotation.attributes.get(extra.spec.key)
        (value,) = self._extra_values(
            msgspec.structs.replace(
                extra, spec=msgspec.structs.replace(extra.spec, repeated=False)
            ),
            () if given is None else (given,),
        )
        return value

    def _extra_values(self, extra: ExtraFeature, given: Iterable[Value]) -> Iterator[Any]:
        """Renders an extra feature's values, of its kind and number."""
        spec = extra.spec
        found = list(given)
        if spec.role in (FeatureRole.LABEL, FeatureRole.LABEL_TEXT):
            labels = [self._label_map.lookup(str(name)) for name in found]
            index = int(spec.role is FeatureRole.LABEL)
            found = [label[index] for label in labels if label is not None]
        if not spec.repeated and not found:
            default = _DEFAULTS[spec.kind] if extra.default is None else extra.default
            found = [default] * spec.length
        for value in found:
            if spec.kind is FeatureKind.BYTES:
                yield str(value).encode()
            else:
                yield int(value) if spec.kind is FeatureKind.INT64 else float(value)


def _integer_id(annotations: ImageAnnotations) -> int:
    try:
        return int(annotations.image_id)
    except ValueError as error:
        raise RejectedError(
            Reason.ANNOTATION_MALFORMED,
            f"the image's id {annotations.image_id!r} is no integer, as annotation/image_id needs "
            "it; drop that key with features.drop",
        ) from error


def _digest(chunks: tuple[bytes, ...], *, sha256: str, objects: int) -> EncodedExample:
    return EncodedExample(
        chunks=chunks,
        size_bytes=sum(map(len, chunks)),
        crc32c=crc32c(*chunks),
        sha256=sha256,
        objects=objects,
    )
