"""Objects of Google Cloud Storage: their names, versions and downloads."""

from __future__ import annotations

import base64
import gzip
import io
import re
import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from google.cloud.storage import Blob
from google.cloud.storage.fileio import BlobWriter

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import failures
from shardbeam.transforms.storage.base import (
    StoredFile,
    too_large,
)
from shardbeam.transforms.storage.gcs.client import (
    attempt,
    gcs_client,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

T = TypeVar("T")
SCHEME = "gs://"
# Bytes that are unpacked at a time.
_PART_BYTES = 1 << 20
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*[a-z0-9]")


def request(
    method: Callable[..., T], *arguments: object, uri: str, operation: str, **options: object
) -> T:
    """Makes a request with a method of the client, and repeats it if it fails (`attempt`)."""
    call = partial(method, *arguments, client=gcs_client(), timeout=failures.TIMEOUT_S, retry=None)
    return attempt(partial(call, **options), uri=uri, operation=operation)


def split_uri(uri: str) -> tuple[str, str]:
    """Returns the bucket of a URI and the name of its object.

    Raises:
        InputError: It is not `gs://BUCKET/NAME`.
    """
    bucket, _, name = uri.removeprefix(SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InputError(uri=uri, problem="expected gs://BUCKET/NAME")
    return bucket, name


def generation_of(version: str | None) -> int:
    """Returns the generation for a precondition: 0 if there must be no object."""
    return 0 if version is None else int(version)


def blob_of(uri: str, *, generation: str | None = None) -> Blob:
    """Returns the client's handle of an object, or of one generation of it."""
    bucket, name = split_uri(uri)
    return (
        gcs_client().bucket(bucket).blob(name, generation=int(generation) if generation else None)
    )


def stored_file(blob: Blob, *, path: str | None = None) -> StoredFile:
    """Describes an object that was listed or found."""
    crc32c = blob.crc32c
    return StoredFile(
        path=blob.name.rpartition("/")[2] if path is None else path,
        uri=f"{SCHEME}{blob.bucket.name}/{blob.name}",
        size_bytes=blob.size or 0,
        version=str(blob.generation),
        crc32c="" if crc32c is None else base64.b64decode(crc32c).hex(),
    )


def is_content(stored: StoredFile, *, size_bytes: int, crc32c: str) -> bool:
    """Whether an object has a size and a checksum."""
    return (stored.size_bytes, stored.crc32c) == (size_bytes, crc32c)


class UploadWriter(BlobWriter):
    """The library's writer, changed so that only `publish` ends the upload.

    The library would also publish an incomplete object when the writer is closed or dropped.
    """

    def publish(self) -> None:
        """Ends the upload, which creates the object."""
        super().close()

    def close(self) -> None:
        """Abandons the upload; the storage removes it after some days."""


class _SmallFile(io.BytesIO):
    """A buffer for a download that raises an error when the object is too long."""

    def __init__(self, uri: str, *, max_bytes: int) -> None:
        super().__init__()
        self._uri = uri
        self._max_bytes = max_bytes

    def write(self, data: Buffer, /) -> int:
        written = super().write(data)
        if self.tell() > self._max_bytes:
            raise too_large(self._uri, max_bytes=self._max_bytes)
        return written


def download(blob: Blob, *, max_bytes: int | None, **options: Any) -> bytes:  # noqa: ANN401
    """Downloads an object.

    Raises:
        InputError: It is longer than `max_bytes`.
    """
    if max_bytes is None:
        return cast(bytes, blob.download_as_bytes(**options))
    uri = f"{SCHEME}{blob.bucket.name}/{blob.name}"
    with _SmallFile(uri, max_bytes=max_bytes) as file:
        blob.download_to_file(file, **options)
        return file.getvalue()


def unpack(data: bytes, *, uri: str, pinned: bool, max_bytes: int | None = None) -> bytes:
    """Unpacks an object that is stored with `Content-Encoding: gzip`.

    Raises:
        InputError: It is not gzip data, or is longer than `max_bytes`.
        OSError: The size is already known (`pinned`), which is not the unpacked one.
    """
    if pinned:
        # The unpacked size is not the listed one.
        raise OSError(0, "the object is stored with Content-Encoding: gzip; store it as it is", uri)
    try:
        unpacked = io.BytesIO()
        with gzip.open(io.BytesIO(data)) as file:
            # In pieces: reading all at once takes twice the memory.
            while part := file.read(_PART_BYTES):
                unpacked.write(part)
                if max_bytes is not None and unpacked.tell() > max_bytes:
                    break
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            uri=uri, problem="its metadata say Content-Encoding: gzip, but it is not gzip data"
        ) from error
    if max_bytes is not None and unpacked.tell() > max_bytes:
        raise too_large(uri, max_bytes=max_bytes)
    return unpacked.getvalue()
