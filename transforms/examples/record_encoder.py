"""From a record to its Example: reading, checking, converting and encoding its image."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from transforms.errors import RejectedError
from transforms.examples.boxes import AnnotatedAs
from transforms.examples.encode import EncodedExample, ExampleEncoder
from transforms.examples.schema import example_schema
from transforms.formats.base import Kind
from transforms.images.check import StoredImage, check_image
from transforms.images.settings import ImageSettings
from transforms.labels import LabelMap
from transforms.output.versions import library_versions
from transforms.reasons import Reason
from transforms.records import Record, Reject, decode_annotations
from transforms.storage import ChangedError, storage_for

# Counted up whenever the same input and settings come to give other bytes.
ENCODING_VERSION = 1

# The worker itself is in trouble, not the image.
_WORKER_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """All settings that decide an Example's bytes.

    Attributes:
        image: How images are checked and stored.
        annotated_as: Which pixels boxes refer to.
        kinds: The groups of keys that are written.
        rename: `{default key: written key}`.
        drop: Default keys that are not written.
        constants: Keys with the same value in every Example.
    """

    image: ImageSettings
    annotated_as: AnnotatedAs
    kinds: frozenset[Kind]
    rename: Mapping[str, str]
    drop: tuple[str, ...]
    constants: Mapping[str, Any]

    def digest(self, *, label_map: LabelMap) -> str:
        """Digests the settings, the labels and the versions of what decides the bytes."""
        schema = example_schema(
            kinds=self.kinds, rename=self.rename, drop=self.drop, constants=self.constants
        )
        what = [
            ENCODING_VERSION,
            self.image,
            self.annotated_as,
            schema,
            self.rename,
            self.constants,
            label_map,
            library_versions(),
        ]
        return hashlib.sha256(msgspec.msgpack.encode(what, order="deterministic")).hexdigest()


class EncodedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a record: an Example or a reject.

    Attributes:
        record: The record.
        content_sha256: Digest of the image as it was read, hex; empty if it was not.
        image: The image as it is stored, without its bytes, if there is an Example.
        example: The Example.
        reject: Why there is none.
    """

    record: Record
    content_sha256: str = ""
    image: StoredImage | None = None
    example: EncodedExample | None = None
    reject: Reject | None = None


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
            kinds=settings.kinds,
            rename=settings.rename,
            drop=settings.drop,
            constants=settings.constants,
            label_map=label_map,
            annotated_as=settings.annotated_as,
        )

    def encode_batch(self, records: Iterable[Record]) -> list[EncodedRecord]:
        """Encodes several records; see `encode`."""
        return [self.encode(record) for record in records]

    def encode(self, record: Record) -> EncodedRecord:
        """Reads a record's image and encodes both.

        Raises:
            OSError: The worker is out of file descriptors or memory.
        """
        content_sha256 = ""
        try:
            data = _read(record)
            content_sha256 = hashlib.sha256(data).hexdigest()
            image = check_image(data, name=record.key, settings=self._image_settings)
            example = self._encoder.encode(
                record=record,
                annotations=decode_annotations(record.annotations),
                image=image,
                sha256=content_sha256 if image.data is data else None,
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
        return EncodedRecord(
            record=record, content_sha256=content_sha256, image=image, example=example
        )


def _read(record: Record) -> bytes:
    image = record.image
    try:
        data = storage_for(image.uri).read(
            image.uri,
            offset=image.offset,
            size_bytes=None if image.whole else image.size_bytes,
            version=image.version,
        )
    except ChangedError as error:
        raise RejectedError(Reason.CHANGED_SINCE_LISTING, str(error)) from error
    except OSError as error:
        if error.errno in _WORKER_ERRNOS:
            raise
        raise RejectedError(Reason.IMAGE_UNREADABLE, error.strerror or str(error)) from error
    if len(data) != image.size_bytes:
        raise RejectedError(
            Reason.CHANGED_SINCE_LISTING,
            f"listed with {image.size_bytes} bytes, read with {len(data)}",
        )
    return data
