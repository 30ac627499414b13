"""Turns a record into Examples: reads, checks, converts and encodes its image."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import msgspec
import numpy as np
import pyarrow

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.core.reasons import ALLOWED_REASONS, PASSING_REASONS, Exclusion, Reason
from shardbeam.transforms.core.records import (
    Coding,
    ImageAnnotations,
    ImageRef,
    Record,
    Reject,
    decode_annotations,
)
from shardbeam.transforms.core.sharding import image_number
from shardbeam.transforms.examples import example_pb2
from shardbeam.transforms.examples.encode.annotated import (
    AnnotatedImage,
    Values,
    boxes_in_pixels,
    describe_lost,
    find_lost,
)
from shardbeam.transforms.examples.encode.image_features import (
    IMAGE,
    digest_image,
    digest_image_by_object,
)
from shardbeam.transforms.examples.encode.maps import encode_map, find_classes
from shardbeam.transforms.examples.encode.schema import EncoderSettings, FeaturePlan, plan_features
from shardbeam.transforms.examples.encode.size_fields import SizeFields
from shardbeam.transforms.examples.features import FeatureSpec
from shardbeam.transforms.examples.geometry.frame import annotated_frame
from shardbeam.transforms.images.check import StoredImage, check_image, store_cifar
from shardbeam.transforms.images.codecs import codec_versions, pillow_libraries
from shardbeam.transforms.images.cost import mask_bytes
from shardbeam.transforms.images.header import FileFormat
from shardbeam.transforms.images.mask_file import MAX_PIXELS
from shardbeam.transforms.storage.image_bytes import read_bytes

# Serializes Examples without copying their images.
#
# Protobuf copies an image three times, into new memory each time, which takes longer than all the
# rest of encoding. So protobuf only serializes the other features, and the image's own bytes are
# put between them.
#
# Wire format: https://protobuf.dev/programming-guides/encoding; messages: `example.proto`.

# Tags of the length-delimited fields 1 and 2.
_FIELD_1 = b"\x0a"
_FIELD_2 = b"\x12"

# Bytes that are serialized with one message; its memory grows with them until it is freed.
_MESSAGE_BYTES = 1_000_000


# A feature, its default key, and its values if it is a constant.
_Feature: TypeAlias = tuple[FeatureSpec, str, Sequence[Any]]


class ExampleLayout:
    """Serializes Examples with the same features; threads may share a layout.

    Args:
        plan: The features.
    """

    def __init__(self, plan: FeaturePlan) -> None:
        image = plan.defaults.get(IMAGE)
        self._image_key = None if image is None else image.key.encode()
        # Each feature as written, with its default key or, for a constant, with its values.
        before: list[_Feature] = []
        after: list[_Feature] = []
        for spec, default_key, constant in (
            *((spec, default_key, ()) for default_key, spec in plan.defaults.items()),
            *((spec, "", values) for spec, values in plan.constants.items()),
        ):
            # Protobuf sorts a map's keys by their bytes.
            is_before = self._image_key is not None and spec.key.encode() < self._image_key
            if default_key != IMAGE:
                (before if is_before else after).append((spec, default_key, constant))
        self._before, self._after = _Form(before), _Form(after)
        self._features = (*before, *after)

    def features(
        self, values: Mapping[str, Sequence[Any]], *, image: bytes
    ) -> dict[str, Sequence[Any]]:
        """Returns `{key as written: values}` of the Example that `serialize` writes."""
        named: dict[str, Sequence[Any]] = {
            spec.key: values[default_key] if default_key else constant
            for spec, default_key, constant in self._features
        }
        if self._image_key is not None:
            named[self._image_key.decode()] = (image,)
        return named

    def serialize(self, values: Mapping[str, Sequence[Any]], *, image: bytes) -> tuple[bytes, ...]:
        """Serializes an Example.

        Args:
            values: `{default key: values}` of all features but the image.
            image: The encoded image.

        Returns:
            The Example's bytes in parts, one of them the image if it is written. Joined, they are
            equal to protobuf's deterministic serialization.
        """
        before, after = self._before.serialize(values), self._after.serialize(values)
        if self._image_key is None:
            return (_header(_FIELD_1, len(after)) + after,)
        bytes_list = _header(_FIELD_1, len(image))
        bytes_field = _header(_FIELD_1, len(bytes_list) + len(image)) + bytes_list
        feature = _header(_FIELD_2, len(bytes_field) + len(image)) + bytes_field
        entry = _header(_FIELD_1, len(self._image_key)) + self._image_key + feature
        features = before + _header(_FIELD_1, len(entry) + len(image)) + entry
        size = len(features) + len(image) + len(after)
        return _header(_FIELD_1, size) + features, image, after


class _Form(threading.local):
    """A message that is filled in again for each Example, since making one takes much longer.

    Each thread has its own message.
    """

    def __init__(self, features: Iterable[_Feature]) -> None:
        self._features = features
        self._start()

    def _start(self) -> None:
        self._message = example_pb2.Features()
        self._room_bytes = _MESSAGE_BYTES
        self._lists = []
        for spec, default_key, constant in self._features:
            filled = getattr(self._message.feature[spec.key], f"{spec.kind.value}_list")
            # Also write an empty list, so that readers see a feature of its kind.
            filled.SetInParent()
            filled.value.extend(constant)
            if default_key:
                self._lists.append((filled.value, default_key))

    def serialize(self, values: Mapping[str, Sequence[Any]]) -> bytes:
        for filled, default_key in self._lists:
            filled[:] = values[default_key]
        data = self._message.SerializeToString(deterministic=True)
        self._room_bytes -= len(data)
        if self._room_bytes < 0:
            self._start()
        return data


def _header(tag: bytes, length: int) -> bytes:
    """Encodes a field's tag and its length as a varint."""
    encoded = bytearray(tag)
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


# Increased whenever the same input and settings give other bytes than before.
ENCODING_VERSION = 5

_BYTES_PER_MB = 1_000_000


# Stands for the image of a row of a table without images.
NO_IMAGE = StoredImage(data=b"", format="", width=0, height=0, file_width=0, file_height=0)


# Pillow has its own zlib.
_ZLIB = "python-zlib"
_PYCOCOTOOLS = "pycocotools"
# Masks and maps are drawn by one of these libraries and compressed by the other.
_DRAWN_KINDS = frozenset({Kind.INSTANCE_MASKS, Kind.SEMANTIC, Kind.PANOPTIC})


def library_versions() -> dict[str, str]:
    """Returns `{library: version}` of the libraries that make images, masks and index files."""
    return {
        **codec_versions(),
        "pyarrow": pyarrow.__version__,
        _ZLIB: zlib.ZLIB_RUNTIME_VERSION,
        _PYCOCOTOOLS: importlib.metadata.version(_PYCOCOTOOLS),
    }


def encoding_digest(settings: EncoderSettings, *, label_map: LabelMap) -> str:
    """Digests all that decides an Example's bytes for certain: settings and labels.

    The libraries that also do depend on the image (`EncodedRecord.libraries`).
    """
    schema = plan_features(settings).schema()
    what = [ENCODING_VERSION, schema, settings, label_map]
    return hashlib.sha256(msgspec.msgpack.encode(what, order="deterministic")).hexdigest()


class FetchedRecord(NamedTuple):
    """A record and its files.

    Attributes:
        record: The record.
        annotations: Its decoded annotations.
        files: The bytes of its image and masks, or why they could not be read.
    """

    record: Record
    annotations: ImageAnnotations
    files: Mapping[ImageRef, bytes | RejectedError]

    @property
    def most_bytes(self) -> int:
        """Length of the image, or of the decompressed image if that is longer."""
        return self.record.most_bytes


def fetch(record: Record, *, settings: ImageConfig) -> FetchedRecord:
    """Reads a record's image, and the masks that annotate it.

    Args:
        record: The record.
        settings: The limit of a file's size.

    Raises:
        InputError: The storage cannot be read at all.
        OSError: The worker is out of file descriptors or memory.
    """
    files: dict[ImageRef, bytes | RejectedError] = {}
    annotations = decode_annotations(record.annotations)
    for file, unreadable in (
        (record.image, Reason.IMAGE_UNREADABLE),
        *((mask, Reason.MASK_UNREADABLE) for mask in annotations.masks.values()),
    ):
        if file is not None:
            try:
                files[file] = _read(file, unreadable=unreadable, settings=settings)
            except RejectedError as error:
                files[file] = error
                break
    return FetchedRecord(record, annotations, files)


def _read(file: ImageRef, *, unreadable: Reason, settings: ImageConfig) -> bytes:
    size_bytes = file.most_bytes
    if size_bytes > settings.max_file_mb * _BYTES_PER_MB:
        raise RejectedError(
            Reason.FILE_TOO_LARGE,
            f"{size_bytes} bytes are more than max_file_mb, {settings.max_file_mb}",
        )
    return read_bytes(file, unreadable=unreadable)


def as_file(data: bytes, *, file: ImageRef) -> bytes:
    """Makes a PNG of bare gray values; other images stay as they are."""
    if file.width:
        return encode_map(np.frombuffer(data, np.uint8).reshape(-1, file.width))
    return data


def store_image(
    data: bytes,
    *,
    file: ImageRef,
    key: str,
    settings: ImageConfig,
    memory: MemoryBudget,
    libraries: set[str] | None = None,
) -> StoredImage:
    """Checks an image and converts it if necessary, as `check_image` does.

    Args:
        data: Its bytes, after `as_file`.
        file: The place that they were read from.
        key: Its key.
        settings: The checks, and the encoding of converted images.
        memory: The budget that decoding shares with other images.
        libraries: The libraries that decide the outcome are added to it.

    Raises:
        RejectedError: The image cannot be used.
    """
    if file.coding in (Coding.CIFAR_PNG, Coding.CIFAR_RAW):
        raw = file.coding is Coding.CIFAR_RAW
        return store_cifar(data, raw=raw, settings=settings, libraries=libraries)
    return check_image(data, name=key, settings=settings, memory=memory, libraries=libraries)


class EncodedExample(msgspec.Struct, frozen=True, kw_only=True):
    """A serialized Example with facts for its shard's index and statistics.

    Attributes:
        chunks: The serialized `tf.train.Example` in parts, so that its image is not copied.
        size_bytes: Its length.
        crc32c: Its CRC-32C, computed while the image is still in the processor's cache.
        sha256: Digest of the stored image's bytes, hex; empty if there is no image.
        labels: Digest of the image's labels (`label_digest`), including objects that are in other
            Examples.
        objects: The number of its objects.
        values: `{default key: values}`, also of keys that the config drops, without the image.
        image: The stored image's bytes; empty if there is no image.
        layout: The keys as written.
    """

    chunks: tuple[bytes, ...]
    size_bytes: int
    crc32c: int
    sha256: str
    labels: str
    objects: int
    values: Values
    image: bytes
    layout: ExampleLayout

    def features(self) -> dict[str, Sequence[Any]]:
        """Returns `{key as written: values}` of all features, for containers that hold columns."""
        return self.layout.features(self.values, image=self.image)

    @property
    def data(self) -> bytes:
        """The serialized `tf.train.Example` in one piece."""
        return b"".join(self.chunks)


class EncodedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for a record: Examples, a reject or an exclusion.

    Attributes:
        record: The record.
        content_sha256: Digest of the image file, hex; empty if it was not read.
        image: The stored image, if the record has one and makes Examples.
        examples: One Example, or one for each object.
        corrections: All corrections, including those of the annotations and the image.
        readings: Counts of boxes by how their numbers may be read (`box_readings`).
        reject: The reject, if the record could not be used.
        unread: The file that could not be read, if that is the cause.
        excluded: The rule that leaves the image out, if one does.
        libraries: The names of the libraries that decide this outcome.
        exchanged: Whether the source exchanges width and height; None if the outcome does not
            depend on that.
        rejected_classes: Written names of the classes of an image that is rejected for one of
            `ALLOWED_REASONS`.
    """

    record: Record
    content_sha256: str = ""
    image: StoredImage | None = None
    examples: Sequence[EncodedExample] = ()
    corrections: Corrections = msgspec.field(default_factory=Corrections)
    readings: Mapping[str, int] = {}
    reject: Reject | None = None
    unread: ImageRef | None = None
    excluded: Exclusion | None = None
    libraries: Collection[str] = ()
    exchanged: bool | None = None
    rejected_classes: Collection[str] = ()


class RecordEncoder:
    """Encodes the records of one split, always with the same keys.

    Threads may share an encoder.

    Args:
        settings: All settings that decide an Example's bytes.
        label_map: The labels' written names and ids; objects of other labels are left out.
        split: The split, for rejects.
        memory: The budget that decoding shares with other images.
        size_fields: Decides whether sources exchange width and height; none does by default.

    Raises:
        ValueError: The settings of features are wrong (`plan_features`).
    """

    def __init__(
        self,
        settings: EncoderSettings,
        *,
        label_map: LabelMap,
        split: str = "",
        memory: MemoryBudget | None = None,
        size_fields: SizeFields | None = None,
    ) -> None:
        plan = plan_features(settings)
        self._settings = settings
        self._groups = plan.groups
        self._layout = ExampleLayout(plan)
        self._label_map = label_map
        self._split = split
        self._memory = memory or MemoryBudget()
        self._size_fields = size_fields or SizeFields({})

    def encode(self, item: Record | FetchedRecord) -> EncodedRecord:
        """Encodes a record; reads its image and masks unless `fetch` has read them.

        Raises:
            InputError: The storage cannot be read at all.
            OSError: The worker is out of file descriptors or memory.
        """
        libraries: set[str] = set()
        exchanged: bool | None = None

        def are_exchanged() -> bool:
            nonlocal exchanged
            exchanged = self._size_fields.are_exchanged(record.source)
            return exchanged

        record = item if isinstance(item, Record) else item.record
        encoded = self._encode(item, libraries=libraries, are_exchanged=are_exchanged)
        if exchanged is None:
            return encoded
        return msgspec.structs.replace(encoded, exchanged=exchanged)

    def _encode(
        self,
        item: Record | FetchedRecord,
        *,
        libraries: set[str],
        are_exchanged: Callable[[], bool],
    ) -> EncodedRecord:
        fetched = fetch(item, settings=self._settings.image) if isinstance(item, Record) else item
        record, annotations, files = fetched
        if not _DRAWN_KINDS.isdisjoint(self._settings.kinds):
            libraries.update((_PYCOCOTOOLS, _ZLIB))
        if annotations.masks:
            libraries.update(pillow_libraries(FileFormat.PNG))
        if self._settings.source_id == "number":
            number = image_number(source=record.source, key=record.key)
            annotations = msgspec.structs.replace(annotations, image_id=str(number))
        if record.image is None:
            examples, corrections, _ = self.encode_image(
                NO_IMAGE, key=record.key, annotations=annotations, sha256=""
            )
            return EncodedRecord(
                record=record,
                content_sha256=hashlib.sha256(record.annotations).hexdigest(),
                examples=examples,
                corrections=corrections,
                libraries=libraries,
            )
        content_sha256 = ""
        try:
            data = _found(files[record.image])
            if record.image.width:
                libraries.add(_ZLIB)
            data = as_file(data, file=record.image)
            content_sha256 = hashlib.sha256(data).hexdigest()
            image = store_image(
                data,
                file=record.image,
                key=record.key,
                settings=self._settings.image,
                memory=self._memory,
                libraries=libraries,
            )
            examples, corrections, readings = self.encode_image(
                image,
                key=record.key,
                annotations=annotations,
                sha256=content_sha256 if image.data is data else None,
                masks={key: _found(files[mask]) for key, mask in annotations.masks.items()},
                are_exchanged=are_exchanged,
            )
        except RejectedError as error:
            if error.reason is Reason.OBJECTS_LOST and self._settings.objects_lost == "drop":
                return EncodedRecord(
                    record=record,
                    content_sha256=content_sha256,
                    excluded=Exclusion.OBJECTS_LOST,
                    libraries=libraries,
                )
            reject = Reject(
                split=self._split,
                source=record.source,
                key=record.key,
                stage="encode",
                reason=error.reason,
                detail=error.detail,
                listed=True,
            )
            # A container's own `problem` is permanent; only read errors are retried.
            unread = [file for file, data in files.items() if data is error and not file.problem]
            return EncodedRecord(
                record=record,
                content_sha256=content_sha256,
                reject=reject,
                unread=unread[0] if unread and error.reason in PASSING_REASONS else None,
                libraries=libraries,
                rejected_classes=self._classes_of(fetched, reason=error.reason),
            )
        return EncodedRecord(
            record=record,
            content_sha256=content_sha256,
            image=image if examples else None,
            examples=examples,
            corrections=corrections if examples else Corrections(),
            readings=readings if examples else {},
            excluded=None if examples else Exclusion.NO_OBJECTS,
            libraries=libraries,
        )

    def _classes_of(self, rejected: FetchedRecord, *, reason: Reason) -> Collection[str]:
        """Finds the classes of a rejected image that the gate may allow."""
        if not any(reason in reasons for reasons in ALLOWED_REASONS.values()):
            return ()
        annotations, files = rejected.annotations, rejected.files
        found = (files.get(mask) for mask in annotations.masks.values())
        masks = [data for data in found if isinstance(data, bytes)]
        needed = max((mask_bytes(data, pixels=MAX_PIXELS) for data in masks), default=0)
        with self._memory.take(needed) if masks else nullcontext():
            return find_classes(annotations, masks=files, label_map=self._label_map)

    def encode_image(
        self,
        image: StoredImage,
        *,
        key: str,
        annotations: ImageAnnotations,
        sha256: str | None = None,
        masks: Mapping[str, bytes] | None = None,
        are_exchanged: Callable[[], bool] = lambda: False,
    ) -> tuple[Sequence[EncodedExample], Corrections, Mapping[str, int]]:
        """Encodes one image.

        Boxes are written as fractions of the image, so a resize changes them only if it adds
        borders or crops. Areas are in pixels² of the stored image, so a resize scales them.

        Args:
            image: The image as it is stored.
            key: The image's key.
            annotations: The image's annotations.
            sha256: Digest of `image.data`, hex, if it is known already.
            masks: The files that annotate the image, by their keys in `annotations.masks`.
            are_exchanged: Decides whether the image's source exchanges width and height.

        Returns:
            The Examples; all corrections, including those of `annotations` and `image`; and
            counts of boxes by how their numbers may be read (`box_readings`).

        Raises:
            RejectedError: The annotations are of an image of another size, a mask cannot be used,
                or all objects are lost (unless `objects_lost` is `keep`).
        """
        corrections = Corrections(annotations.corrections, annotations.changes)
        for correction, (before, after) in image.corrections.items():
            corrections.note(correction, before, after)
        annotated = annotations.width, annotations.height
        frame = annotated_frame(
            annotated=annotated,
            stored=(image.file_width, image.file_height),
            orientation=image.orientation,
            upright=image.upright,
            settings=self._settings.image,
            boxes=boxes_in_pixels(annotations),
            normalized=annotations.normalized,
            are_exchanged=are_exchanged,
        )
        if frame.correction is not None:
            corrections.note(frame.correction, annotated, (frame.width, frame.height))
        subject = AnnotatedImage(
            key=key,
            annotations=annotations,
            image=image,
            sha256=hashlib.sha256(image.data).hexdigest() if sha256 is None else sha256,
            frame=frame,
            masks=masks or {},
            label_map=self._label_map,
            panoptic=self._settings.panoptic,
            min_side_px=self._settings.min_side_px,
            min_area_px=self._settings.min_area_px,
            corrections=corrections,
            readings=Counter(),
        )
        return list(self._examples(subject)), corrections, subject.readings

    def _examples(self, subject: AnnotatedImage) -> Iterator[EncodedExample]:
        """Renders the values of an image's Examples and serializes each Example."""
        lost = {} if self._settings.objects_lost == "keep" else find_lost(subject)
        if lost:
            raise RejectedError(Reason.OBJECTS_LOST, describe_lost(lost, subject=subject))
        with self._memory.take(_masks_bytes(subject)) if subject.masks else nullcontext():
            rendered = [(group.by_object, group.values(subject)) for group in self._groups]
        if self._settings.single_label and len(subject.labels) != 1:
            raise RejectedError(
                Reason.ANNOTATION_MALFORMED,
                f"{len(subject.labels)} labels; the format says that every image has one",
            )
        whole: dict[str, Sequence[Any]] = {}
        of_objects: dict[str, Sequence[Any]] = {}
        for by_object, group in rendered:
            (of_objects if by_object else whole).update(group)
        objects = subject.objects
        per_annotation = self._settings.example_per == "annotation"
        labels = (
            digest_image_by_object(whole, of_objects=of_objects, size=subject.size)
            if per_annotation
            else digest_image(whole)
        )
        for index in range(len(objects) if per_annotation else 1):
            values: Values = whole
            if per_annotation:
                values = {
                    **whole,
                    **{key: of_each[index] for key, of_each in of_objects.items()},
                }
            chunks = self._layout.serialize(values, image=subject.image.data)
            yield EncodedExample(
                chunks=chunks,
                size_bytes=sum(map(len, chunks)),
                crc32c=functools.reduce(google_crc32c.extend, chunks, 0),
                sha256=subject.sha256,
                labels=labels,
                objects=1 if per_annotation else len(objects),
                values=values,
                image=subject.image.data,
                layout=self._layout,
            )


def _masks_bytes(subject: AnnotatedImage) -> int:
    """Returns the bytes that decoding an image's masks takes."""
    # A mask is only decoded if it has the image's size or the annotated one.
    sizes = (subject.file_size, subject.scaled_size or subject.file_size)
    pixels = max(width * height for width, height in sizes)
    return sum(mask_bytes(data, pixels=pixels) for data in subject.masks.values())


def _found(data: bytes | RejectedError) -> bytes:
    if isinstance(data, RejectedError):
        raise data
    return data
