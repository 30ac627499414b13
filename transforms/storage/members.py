"""Reads single files in archives, such as annotations, by the paths that folders would give them.

`data.zip/train/_annotations.coco.json` is the file that unpacking `data.zip` into a folder of that
name would write. A real folder with an archive's name wins. Images need none of this: a listing
says where their bytes are in the archive.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import unicodedata
import zlib
from collections.abc import Iterator
from typing import BinaryIO, ClassVar, NoReturn

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.archives.open import list_archive, locate
from shardbeam.transforms.storage.archives.zip import local_header_bytes
from shardbeam.transforms.storage.base import ChangedError, Storage, StoredFile
from shardbeam.transforms.storage.disk_file import write_copy
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import read_at

_PART_BYTES = 8 << 20
# Copies of members that a process keeps; they have no names, and end with the process.
_COPIES = 4
_FOUND = 256
# At most this many names of an archive are in an error.
_NAMED = 5


def open_storage(uri: str) -> Storage | None:
    """Returns the storage of a file in an archive; None if no archive lies on the path.

    Raises:
        InputError: The archive cannot be read.
    """
    folder = uri.rstrip("/").rpartition("/")[0]
    return None if locate(folder) is None else MemberStorage()


class MemberStorage(Storage):
    """The files in archives, which can be listed and read.

    A file is read from a copy in the folder of temporary files, because most members are
    compressed, and nothing can be read from the middle of these.
    """

    # Wherever the archive is, the copies are on this machine.
    is_remote: ClassVar[bool] = False

    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every file of an archive, or of a folder in it."""
        archive, inner = _locate(root)
        for path, file in list_archive(archive, inner=inner):
            yield _stored(file, path=path, uri=f"{root.rstrip('/')}/{path}")

    def stat(self, uri: str) -> StoredFile | None:
        """Describes one file; None if the archive has none of this name."""
        archive, path = _locate(uri)
        file = _find_member(archive, path)
        return None if file is None else _stored(file, path=path, uri=uri)

    def find(self, uri: str) -> StoredFile:
        """Describes a file that must exist; the error names what the archive holds instead."""
        stored = self.stat(uri)
        if stored is None:
            archive, path = _locate(uri)
            name = path.rpartition("/")[2]
            extension = os.path.splitext(name)[1]
            names = [
                other
                for other, _ in list_archive(archive)
                if extension and other.endswith(extension)
            ]
            names.sort(key=lambda other: (other.rpartition("/")[2] != name, other))
            held = ", ".join(names[:_NAMED]) or "none of this kind"
            raise InputError(
                uri=uri,
                problem=f"{archive.uri.rpartition('/')[2]} holds no such file; it holds: {held}",
            )
        return stored

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        """Reads a whole file, or a range of it."""
        copy, file = self._copy(uri, version=version)
        end = _size(file) if size_bytes is None else min(offset + size_bytes, _size(file))
        return read_at(copy.fileno(), offset, max(0, end - offset))

    def open_local(self, uri: str) -> BinaryIO:
        """Opens the copy for reading, without a buffer."""
        copy, _ = self._copy(uri)
        return os.fdopen(os.dup(copy.fileno()), "rb", buffering=0)

    def _copy(self, uri: str, *, version: str | None = None) -> tuple[BinaryIO, ImageRef]:
        archive, path = _locate(uri)
        file = _find_member(archive, path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), uri)
        if version not in (None, file.version):
            raise ChangedError(f"{archive.uri} has changed since it was listed")
        return _copy_member(file, uri), file

    def create(self, uri: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Refuses to write."""
        _refuse(uri)

    def replace(self, uri: str, data: bytes, *, scratch: str = "") -> None:
        """Refuses to write."""
        _refuse(uri)

    def rename(self, source: str, destination: str, *, replaces: str | None = None) -> None:
        """Refuses to write."""
        _refuse(destination)

    def delete(self, uri: str, *, version: str | None = None) -> bool:
        """Refuses to write."""
        _refuse(uri)


def _refuse(uri: str) -> NoReturn:
    raise OSError(errno.EROFS, "lies in an archive, into which nothing is written", uri)


def _locate(uri: str) -> tuple[ImageRef, str]:
    located = locate(uri)
    if located is None:
        raise InputError(uri=uri, problem="the archive was removed while it was read")
    return located


def _size(file: ImageRef) -> int:
    return file.decoded_bytes if file.coding is Coding.DEFLATED else file.size_bytes


def _stored(file: ImageRef, *, path: str, uri: str) -> StoredFile:
    return StoredFile(path=path, uri=uri, size_bytes=_size(file), version=file.version)


@functools.lru_cache(maxsize=_FOUND)
def _find_member(archive: ImageRef, path: str) -> ImageRef | None:
    """Finds a member by its name; of several with one name the first, as for images."""
    wanted = unicodedata.normalize("NFC", path)
    for name, file in list_archive(archive):
        if name == path or unicodedata.normalize("NFC", name) == wanted:
            return file
    return None


@functools.lru_cache(maxsize=_COPIES)
def _copy_member(file: ImageRef, uri: str) -> BinaryIO:
    """Copies a member to a temporary file without a name, and checks its size and checksum.

    Raises:
        InputError: It cannot be read, or the folder of temporary files has no room for it.
    """
    if file.problem:
        raise InputError(uri=uri, problem=file.problem)
    return write_copy(_stored(file, path="", uri=uri), _checked_parts(file, uri=uri))


def _checked_parts(file: ImageRef, *, uri: str) -> Iterator[bytes]:
    """Yields the bytes of a member, decompressed, and checks its size and checksum."""
    announced = _size(file)
    crc32 = size_bytes = 0
    for part in _read_parts(file, uri=uri):
        crc32 = zlib.crc32(part, crc32)
        size_bytes += len(part)
        # A member that announces less than it holds could fill the disk.
        if size_bytes > announced:
            break
        yield part
    if size_bytes != announced:
        raise InputError(
            uri=uri,
            problem=f"its archive announces {announced:,} bytes, but holds more or fewer: the "
            "archive is damaged; download it again",
        )
    if file.crc32 not in (-1, crc32):
        raise InputError(
            uri=uri,
            problem="its bytes do not have the checksum that its archive gives: the archive is "
            "damaged; download it again",
        )


def _read_parts(file: ImageRef, *, uri: str) -> Iterator[bytes]:
    """Yields the bytes of a member, decompressed."""
    parts = _read_range(file, uri=uri)
    if file.coding is not Coding.DEFLATED:
        yield from parts
        return
    decompressor = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        for part in parts:
            while part and not decompressor.eof:
                # In pieces, because a few bytes may become many.
                yield decompressor.decompress(part, _PART_BYTES)
                part = decompressor.unconsumed_tail
    except zlib.error as error:
        raise InputError(uri=uri, problem=f"cannot be decompressed: {error}") from error


def _read_range(file: ImageRef, *, uri: str) -> Iterator[bytes]:
    """Yields the bytes of a member as they are in its archive."""
    storage = storage_for(file.uri)

    def read(offset: int, size_bytes: int) -> bytes:
        try:
            return storage.read(
                file.uri, offset=offset, size_bytes=size_bytes, version=file.version
            )
        except (ChangedError, FileNotFoundError) as error:
            raise InputError(
                uri=uri,
                problem="its archive was changed while it was read; run the same command again",
            ) from error

    begin = file.offset
    if file.header_bytes:
        header_bytes = local_header_bytes(read(begin, file.header_bytes))
        if header_bytes is None:
            raise InputError(
                uri=uri, problem="there is no file at the place that its archive's directory gives"
            )
        begin += header_bytes
    for offset in range(begin, begin + file.size_bytes, _PART_BYTES):
        yield read(offset, min(_PART_BYTES, begin + file.size_bytes - offset))
