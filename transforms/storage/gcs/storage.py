"""Storage in Google Cloud Storage (`gs://bucket/name`)."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, ClassVar, cast

import google_crc32c
from google.api_core.exceptions import (
    Forbidden,
    NotFound,
    PreconditionFailed,
    RequestRangeNotSatisfiable,
    RetryError,
    Unauthorized,
    from_http_response,
)
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage.exceptions import InvalidResponse

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import failures
from shardbeam.transforms.storage.base import (
    ChangedError,
    ListingPart,
    StoredFile,
    WriteFailedError,
)
from shardbeam.transforms.storage.failures import one_line
from shardbeam.transforms.storage.gcs.client import (
    attempt,
    explain,
    gcs_client,
    is_transient,
    no_bucket,
)
from shardbeam.transforms.storage.gcs.objects import (
    SCHEME,
    UploadWriter,
    blob_of,
    download,
    generation_of,
    is_content,
    request,
    split_uri,
    stored_file,
    unpack,
)
from shardbeam.transforms.storage.object_listing import PAGE_SIZE, ObjectStorage, Page

if TYPE_CHECKING:
    from typing_extensions import Buffer


_LIST_FIELDS = "items(name,size,generation),nextPageToken"
_SHARD_TYPE = "application/octet-stream"
# Size of one request of an upload: a multiple of 256 KiB; at least 8 MiB are recommended.
PART_BYTES = 8 << 20
_NOTHING_THERE = (
    "the storage refuses the upload because the object exists (412), but it does not exist; run "
    "the same command again"
)
# With one of these errors, the upload would fail under another name, too.
_FAIL_ALL_UPLOADS = (Forbidden, Unauthorized, RetryError, GoogleAuthError, InputError)


class GcsStorage(ObjectStorage):
    """Objects below a prefix, seen as files in folders. A file's version is its generation."""

    can_swap: ClassVar[bool] = True

    def list_page(self, part: ListingPart, *, folder: str = "", deep: bool = True) -> Page:
        """Makes one request for names."""
        bucket, name = split_uri(part.root)
        prefix = f"{name.rstrip('/')}/" if name else ""
        first = f"{prefix}{part.start}"

        def request() -> Page:
            iterator = gcs_client().list_blobs(
                bucket,
                prefix=f"{prefix}{folder}" or None,
                delimiter=None if deep else "/",
                start_offset=first if part.start else None,
                end_offset=f"{prefix}{part.end}" if part.end else None,
                page_size=PAGE_SIZE,
                page_token=part.token or None,
                fields=_LIST_FIELDS if deep else f"prefixes,{_LIST_FIELDS}",
                timeout=failures.TIMEOUT_S,
                retry=None,
            )
            blobs = list(next(iterator.pages, ()))
            return Page(
                # Without the name after which the part begins, and without the root's own object.
                [
                    stored_file(blob, path=blob.name[len(prefix) :])
                    for blob in blobs
                    if blob.name > first
                ],
                sorted(each[len(prefix) :] for each in iterator.prefixes),
                iterator.next_page_token or "",
            )

        uri = f"{SCHEME}{bucket}/{prefix}{folder}"
        try:
            return attempt(request, uri=uri, operation="list")
        except NotFound as error:
            raise no_bucket(uri) from error

    def stat(self, uri: str) -> StoredFile | None:
        """Describes an object."""
        blob = blob_of(uri)
        if not blob.name:
            return None
        try:
            request(blob.reload, uri=uri, operation="get")
        except NotFound:
            return None
        return stored_file(blob)

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Reads an object or a range of it in one request."""
        return self._read(uri, offset=offset, size_bytes=size_bytes, version=version)

    def read_small(self, uri: str, *, max_bytes: int, version: str | None = None) -> bytes:
        """Reads a small object whole, because only then its checksum can be checked."""
        return self._read(uri, offset=0, size_bytes=None, version=version, max_bytes=max_bytes)

    def _read(
        self,
        uri: str,
        *,
        offset: int,
        size_bytes: int | None,
        version: str | None,
        max_bytes: int | None = None,
    ) -> bytes:
        if size_bytes == 0:
            return b""
        whole = offset == 0 and size_bytes is None
        blob = blob_of(uri, generation=version)
        try:
            data: bytes = request(
                partial(download, blob, max_bytes=max_bytes),
                uri=uri,
                operation="get",
                start=None if whole else offset,
                end=None if size_bytes is None else offset + size_bytes - 1,
                raw_download=True,
                # There are no checksums for ranges.
                checksum="crc32c" if whole else None,
                # Faster, but takes twice the memory: good for images, not for annotation files.
                single_shot_download=bool(version) and max_bytes is None,
            )
        except RequestRangeNotSatisfiable:
            return b""
        except NotFound as error:
            if not version:
                raise FileNotFoundError(f"{uri}: no such object") from error
            raise self._explain_gone(uri, version=version) from error
        if whole and blob.content_encoding == "gzip":
            return unpack(data, uri=uri, pinned=bool(version), max_bytes=max_bytes)
        return data

    def _explain_gone(self, uri: str, *, version: str) -> Exception:
        """Finds out why a version is gone, which the storage's answer does not say."""
        bucket, name = split_uri(uri)
        only = ListingPart(f"{SCHEME}{bucket}", end=f"{name}\x01")
        # Unlike a request for the object, this one fails where the bucket is gone.
        for file in self.list_page(only, folder=name).files:
            if file.uri == uri and file.version == version:
                return InputError(
                    uri=uri, problem="is listed but cannot be read; run the same command again"
                )
            if file.uri == uri:
                return ChangedError(f"{uri} was changed after it was listed")
        return ChangedError(f"{uri} was deleted after it was listed")

    @contextlib.contextmanager
    def create(self, uri: str) -> Iterator[BinaryIO]:
        """Opens a new object, which is uploaded while it is written."""
        upload = _Upload(uri, storage=self)
        yield cast(BinaryIO, upload)
        upload.publish()

    def replace(self, uri: str, data: bytes, *, scratch: str = "") -> None:
        """Uploads a small object."""
        del scratch
        self.insert(uri, data, generation=None)

    def swap(self, uri: str, data: bytes, *, version: str | None, scratch: str = "") -> str | None:
        """Uploads a small object if the present one has the given generation."""
        del scratch
        try:
            return self.insert(uri, data, generation=generation_of(version))
        except FileExistsError:
            return None

    def insert(self, uri: str, data: bytes, *, generation: int | None) -> str:
        """Uploads a small object in one request.

        Args:
            uri: The object.
            data: Its content.
            generation: The generation to replace, 0 for a new object; None for any.

        Returns:
            Its new generation.

        Raises:
            FileExistsError: The object has another generation, and other content than `data`.
            InputError: The storage twice refuses the upload because of an object that does not
                exist.
        """
        blob = blob_of(uri)
        crc32c = f"{google_crc32c.value(data):08x}"
        for is_repeated in (False, True):
            try:
                request(
                    blob.upload_from_string,
                    data,
                    uri=uri,
                    operation="insert",
                    content_type=_SHARD_TYPE,
                    checksum="crc32c",
                    if_generation_match=generation,
                )
            except NotFound as error:
                raise no_bucket(uri) from error
            except PreconditionFailed as error:
                # Perhaps an earlier attempt, whose answer was lost, has uploaded it.
                stored = self.stat(uri)
                if stored is not None and is_content(stored, size_bytes=len(data), crc32c=crc32c):
                    return stored.version
                if stored is not None or generation:
                    raise FileExistsError(f"{uri} is there already") from error
                # Another run may have deleted it meanwhile, so try once more.
                if is_repeated:
                    raise InputError(uri=uri, problem=_NOTHING_THERE) from error
            else:
                break
        return str(blob.generation)

    def find_ours(self, uri: str, *, size_bytes: int, crc32c: str) -> StoredFile | None:
        """Describes an object if it has the size and checksum of our own upload.

        After a lost answer, this shows whether the request succeeded.
        """
        stored = self.stat(uri)
        is_ours = stored is not None and is_content(stored, size_bytes=size_bytes, crc32c=crc32c)
        return stored if is_ours else None

    def is_folder(self, uri: str) -> bool:
        """Returns whether there is a folder; consoles make an object `name/` for an empty one."""
        folder = f"{uri.rstrip('/')}/"
        return not blob_of(folder).name or self.stat(folder) is not None or self.holds(uri)

    def rename(self, source: str, destination: str, *, replaces: str | None = None) -> None:
        """Copies an object on the server and deletes the source."""
        stored = self.stat(source)
        if stored is None:
            raise FileNotFoundError(f"{source}: no such object")
        try:
            self.rewrite(
                stored.uri, destination, version=stored.version, generation=generation_of(replaces)
            )
        except ChangedError:
            # Perhaps an earlier attempt, whose answer was lost, has copied it.
            if not self.find_ours(destination, size_bytes=stored.size_bytes, crc32c=stored.crc32c):
                raise
        self.delete(source, version=stored.version)

    def renew(self, file: StoredFile) -> None:
        """Rewrites an object onto itself, which gives it a new generation."""
        try:
            self.rewrite(file.uri, file.uri, version=file.version, generation=int(file.version))
        except FileNotFoundError as error:
            # The same content in a new version: an earlier attempt has succeeded.
            if not self.find_ours(file.uri, size_bytes=file.size_bytes, crc32c=file.crc32c):
                raise ChangedError(f"{file.uri} was changed meanwhile") from error

    def copy(self, source: str, destination: str) -> StoredFile | None:
        """Copies an object on the server.

        The source's generation is not looked up first, which saves a request: the answer has the
        copy's checksum, which the caller compares.
        """
        return self.rewrite(source, destination)

    def rewrite(
        self,
        source: str,
        destination: str,
        *,
        version: str | None = None,
        generation: int | None = None,
    ) -> StoredFile:
        """Makes the server copy an object; large ones take several requests.

        Args:
            source: The object's URI.
            destination: The copy's URI.
            version: The version to copy; None for any.
            generation: The generation of `destination` to replace, 0 for none; None for any.

        Returns:
            The copy.

        Raises:
            FileNotFoundError: The source, in that version, does not exist.
            ChangedError: The destination has another version.
        """
        pinned = blob_of(source, generation=version)
        target = blob_of(destination)
        token: str | None = None
        while True:
            try:
                token, _, _ = request(
                    target.rewrite,
                    pinned,
                    uri=destination,
                    operation="rewrite",
                    token=token,
                    if_source_generation_match=pinned.generation,
                    if_generation_match=generation,
                )
            except NotFound as error:
                raise FileNotFoundError(f"{source}: no such object any more") from error
            except PreconditionFailed as error:
                # The answer does not say which of the two preconditions failed.
                found = self.stat(source)
                if found is None or version not in (None, found.version):
                    raise FileNotFoundError(f"{source}: no such object any more") from error
                raise ChangedError(f"{destination} was changed meanwhile") from error
            if token is None:
                return stored_file(target)

    def delete(self, uri: str, *, version: str | None = None) -> bool:
        """Deletes an object."""
        generation = None if version is None else int(version)
        try:
            request(
                blob_of(uri).delete, uri=uri, operation="delete", if_generation_match=generation
            )
        except PreconditionFailed:
            return False
        except NotFound:
            # Perhaps an earlier attempt, whose answer was lost, has deleted it.
            return True
        return True


STORAGE = GcsStorage


class _Upload(io.RawIOBase):
    """A new object that is uploaded part by part, or in one request if it is less than a part."""

    def __init__(self, uri: str, *, storage: GcsStorage) -> None:
        self._uri = uri
        self._storage = storage
        self._first = bytearray()
        self._parts: UploadWriter | None = None
        self._size_bytes = 0
        self._crc32c = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        """Adds content, and uploads each part that is full.

        Raises:
            WriteFailedError: The upload failed, but may succeed under another name.
            InputError: No upload to this bucket can succeed.
        """
        content = bytes(data)
        self._size_bytes += len(content)
        self._crc32c = google_crc32c.extend(self._crc32c, content)
        try:
            if self._parts is not None:
                self._parts.write(content)
                return len(content)
            self._first += content
            if len(self._first) >= PART_BYTES:
                self._parts = self._begin()
                self._parts.write(self._first)
                self._first = bytearray()
        except Exception as error:
            raise self._explain(error) from error
        return len(content)

    def _begin(self) -> UploadWriter:
        return UploadWriter(
            blob_of(self._uri),
            chunk_size=PART_BYTES,
            content_type=_SHARD_TYPE,
            checksum="crc32c",
            if_generation_match=0,
            timeout=failures.TIMEOUT_S,
            retry=failures.make_retry(is_transient),
        )

    def publish(self) -> None:
        """Uploads the rest, which creates the object.

        Raises:
            FileExistsError: The object exists already.
            InputError: The upload failed (`write`).
        """
        if self._parts is None:
            self._storage.insert(self._uri, bytes(self._first), generation=0)
            return
        try:
            self._parts.publish()
        except Exception as error:
            # If the answer to the last part was lost, its repetition fails, but the object exists.
            crc32c = f"{self._crc32c:08x}"
            if not self._storage.find_ours(self._uri, size_bytes=self._size_bytes, crc32c=crc32c):
                raise self._explain(error) from error

    def _explain(self, error: Exception) -> OSError | InputError:
        if isinstance(error, InvalidResponse):
            error = from_http_response(error.response)
        if isinstance(error, PreconditionFailed):
            if self._storage.stat(self._uri) is not None:
                return FileExistsError(f"{self._uri} is there already")
            # The shard's writer tries again under another name.
            return WriteFailedError(uri=self._uri, problem=_NOTHING_THERE)
        # If the upload created an object, it is damaged: some bytes were sent twice.
        with contextlib.suppress(InputError):
            self._storage.delete(self._uri)
        if isinstance(error, _FAIL_ALL_UPLOADS):
            return explain(error, uri=self._uri, operation="insert")
        return WriteFailedError(
            uri=self._uri,
            problem=f"the upload failed ({one_line(error)}); run the same command again",
        )
