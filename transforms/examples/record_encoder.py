"""From a record to its Example: reading, checking, converting and encoding its image."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

import msgspec

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import Coding, ImageRef, Record, Reject, decode_annotations
from shardbeam.transforms.examples.encode import EncodedImage, ExampleEncoder
from shardbeam.transforms.examples.schema import FeatureSettings, plan_features
from shardbeam.transforms.examples.versions import library_versions
from shardbeam.transforms.images.check import StoredImage, check_image, store_cifar
from shardbeam.transforms.storage.image_bytes import read_bytes

# Counted up whenever the same input and settings come to give other bytes.
ENCODING_VERSION = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """All settings that decide an Example's bytes.

    Attributes:
        image: How images are checked and stored.
        features: Which features every Example has.
    """

    image: ImageConfig
    features: FeatureSettings

    def digest(self, *, label_map: LabelMap) -> str:
        """Digests the settings, the labels and the versions of what decides the bytes."""
        schema = plan_features(self.features).schema()
        what = [
            ENCODING_VERSION,
            self.image,
            schema,
            msgspec.structs.replace(self.features, kinds=frozenset()),
            sorted(self.features.kinds),
            label_map,
            library_versions(),
        ]
        return hashlib.sha256(msgspec.msgpack.encode(what, order="deterministic")).hexdigest()


class FetchedRecord(msgspec.Struct, frozen=True):
    """A record, and what of its files was read ahead.

    Attributes:
        record: The record.
        files: The bytes of its image and masks, or why they could not be read; empty where that
            is still to be done.
    """

    record: Record
    files: Mapping[ImageRef, bytes | RejectedError] = {}

    def read(self, file: ImageRef, *, unreadable: Reason = Reason.IMAGE_UNREADABLE) -> bytes:
        """Returns the bytes of its image or of a mask; see `read_bytes`."""
        data = self.files.get(file)
        if data is None:
            return read_bytes(file, unreadable=unreadable)
        if isinstance(data, RejectedError):
            raise data
        return data


class EncodedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a record: Examples, a reject or an exclusion.

    Attributes:
        record: The record.
        content_sha256: Digest of the image as it was read, hex; empty if it was not.
        image: The image as it is stored, if there is one and Examples of it.
        encoded: The Examples.
        reject: Why there are none.
        excluded: Which rule leaves the image out.
    """

    record: Record
    content_sha256: str = ""
    image: StoredImage | None = None
    encoded: EncodedImage | None = None
    reject: Reject | None = None
    excluded: Exclusion | None = None


class RecordEncoder:
    """Encodes the records of one split. Threads may share one.

    Args:
        settings: All settings that decide an Example's bytes.
        label_map: The labels' written names and ids.
        split: The split, for rejects.
    """

    def __init__(self, *, settings: EncoderSettings, label_map: LabelMap, split: str) -> None:
        self._image_settings = settings.image
        self._split = split
        self._encoder = ExampleEncoder(
            features=settings.features,
            label_map=label_map,
            annotated_as=settings.image.annotated_as,
        )

    def encode(self, fetched: FetchedRecord) -> EncodedRecord:
        """Reads a record's image and the masks that annotate it, and encodes all.

        Raises:
            InputError: The storage cannot be read at all.
            OSError: The worker is out of file descriptors or memory.
        """
        record = fetched.record
        annotations = decode_annotations(record.annotations)
        if record.image is None:
            digest = hashlib.sha256(record.annotations).hexdigest()
            encoded = self._encoder.encode_row(annotations)
            return EncodedRecord(record=record, content_sha256=digest, encoded=encoded)
        content_sha256 = ""
        try:
            data = fetched.read(record.image)
            content_sha256 = hashlib.sha256(data).hexdigest()
            image = store_image(
                data, coding=record.image.coding, name=record.key, settings=self._image_settings
            )
            encoded = self._encoder.encode(
                record=record,
                annotations=annotations,
                image=image,
                sha256=content_sha256 if image.data is data else None,
                masks={
                    role: fetched.read(mask, unreadable=Reason.MASK_UNREADABLE)
                    for role, mask in annotations.masks.items()
                },
            )
        except RejectedError as error:
            reject = Reject(
                split=self._split,
                source=record.source,
                key=record.key,
                stage="encode",
                reason=error.reason,
                detail=error.detail,
                listed=True,
            )
            return EncodedRecord(record=record, content_sha256=content_sha256, reject=reject)
        if not encoded.examples:
            return EncodedRecord(
                record=record, content_sha256=content_sha256, excluded=Exclusion.NO_OBJECTS
            )
        return EncodedRecord(
            record=record, content_sha256=content_sha256, image=image, encoded=encoded
        )


def fetch(record: Record) -> FetchedRecord:
    """Reads a record's image, and the masks that annotate it, ahead of their turn.

    Raises:
        InputError: The storage cannot be read at all.
        OSError: The worker is out of file descriptors or memory.
    """
    files: dict[ImageRef, bytes | RejectedError] = {}
    masks = decode_annotations(record.annotations).masks.values()
    for file, unreadable in (
        (record.image, Reason.IMAGE_UNREADABLE),
        *((mask, Reason.MASK_UNREADABLE) for mask in masks),
    ):
        if file is not None:
            try:
                files[file] = read_bytes(file, unreadable=unreadable)
            except RejectedError as error:
                files[file] = error
                break
    return FetchedRecord(record, files)


def store_image(data: bytes, *, coding: Coding, name: str, settings: ImageConfig) -> StoredImage:
    """Checks an image, and converts it if need be.

    Args:
        data: Its bytes, decompressed.
        coding: What they are.
        name: Its key.
        settings: What to check and how to store.

    Raises:
        RejectedError: It cannot be used.
    """
    if coding in (Coding.CIFAR_PNG, Coding.CIFAR_RAW):
        return store_cifar(data, raw=coding is Coding.CIFAR_RAW)
    return check_image(data, name=name, settings=settings)
