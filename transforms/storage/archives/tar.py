"""Lists the members of tar archives with `tarfile`, which reads only their headers here."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from typing import IO, NamedTuple, cast

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.storage.buffered_reader import StorageReader

_BLOCK_BYTES = tarfile.BLOCKSIZE
# Two blocks of zeros.
_END_BYTES = 2 * _BLOCK_BYTES
_MAX_PADDING_BYTES = 1 << 30
# Longer names or attributes mean that the archive is damaged.
_MAX_EXTENSION_BYTES = 1 << 20
_MAX_LINKS = 40

_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)
# Devices, folders and pipes; GNU's folder listing and volume label.
_NO_FILES = frozenset(
    {tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, b"D", b"V"}
)
_CONTINUED = b"M"
# Exceptions of tarfile for headers that make no sense.
_DAMAGE = (tarfile.TarError, ValueError, IndexError, OverflowError, RecursionError)


class TarMember(NamedTuple):
    """A file of a tar archive, or a link to one.

    Attributes:
        name: Its name in the archive; bytes that are not UTF-8 become surrogates.
        file: The place of its bytes; unused for a link.
        target: The name inside the archive that a link leads to; empty for a file.
    """

    name: str
    file: ImageRef
    target: str = ""

    def refuse_link(self, problem: str) -> ImageRef:
        """Returns `file`; for a link, with the problem that makes it unreadable."""
        return msgspec.structs.replace(self.file, problem=problem) if self.target else self.file


def list_tar(archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    """Yields `(name, place of its bytes)` for every file of a tar archive.

    A link is listed as the file that it leads to; if there is no such file, it carries a `problem`.
    Folders, devices and pipes are left out. Files of an inner tar archive (ImageNet has these) are
    listed below a folder with the inner archive's name.

    Args:
        archive: The archive.

    Raises:
        InputError: The archive cannot be listed (`tar_members`).
    """
    links: list[TarMember] = []
    for member in tar_members(StorageReader(archive)):
        if member.target:
            links.append(member)
            continue
        if not member.name.lower().endswith(".tar") or member.file.problem:
            yield member.name, member.file
            continue
        for inner in tar_members(StorageReader(member.file), place=member.name):
            file = inner.refuse_link("a link in an archive inside another")
            yield f"{member.name[:-4]}/{inner.name}", file
    yield from _resolve(links, archive=archive)


def tar_members(reader: StorageReader, *, place: str = "") -> Iterator[TarMember]:
    """Yields every file and link of a tar archive, in order.

    Args:
        reader: Reads the archive.
        place: The archive's name if it lies inside another one, for errors.

    Raises:
        InputError: It is not a tar archive, is compressed, truncated or damaged, is one part of
            several, or data follows its end.
    """

    def error(at: int, problem: str) -> InputError:
        inside = f"{place}, " if place else ""
        return InputError(uri=reader.uri, place=f"{inside}byte {at}", problem=problem)

    begin = 0
    try:
        tar = tarfile.TarFile(
            fileobj=cast(IO[bytes], _Headers(reader)),
            tarinfo=_Header,
            encoding="utf-8",
            errors="surrogateescape",
        )
        # Python 3.10's `next` fails if the file has no header at all.
        while tar.offset and (header := tar.next()) is not None:
            # Otherwise tarfile would keep every header in memory.
            tar.members.clear()  # type: ignore[attr-defined]
            if header.type == _CONTINUED:
                raise error(begin, "one part of a tar archive of several volumes")
            end = header.offset_data + (0 if header.islnk() or header.issym() else header.size)
            if header.size < 0:
                raise error(begin, "a negative size: the tar is damaged")
            if end > reader.size_bytes and not header.issparse():
                raise error(
                    begin,
                    f"the tar is truncated: this member ends at byte {end}, the file at byte "
                    f"{reader.size_bytes}; download it again",
                )
            begin = tar.offset
            if header.type not in _NO_FILES:
                yield _member(header, archive=reader.file)
    except _DAMAGE as damage:
        raise error(begin, _explain(reader, begin=begin, damage=str(damage))) from damage
    at, problem = _check_end(reader, begin=begin)
    if problem:
        raise error(at, problem)


class _Headers:
    """The file object that `tarfile` reads headers from."""

    def __init__(self, reader: StorageReader) -> None:
        self._reader = reader
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, /) -> int:
        self._position = position
        return position

    def read(self, size_bytes: int, /) -> bytes:
        if not 0 <= size_bytes <= _MAX_EXTENSION_BYTES:
            raise tarfile.ReadError(f"a header of {size_bytes} bytes")
        data = self._reader.read_at(self._position, size_bytes)
        self._position += len(data)
        return data


class _Header(tarfile.TarInfo):
    """A header that uses the prefix field only in the ustar format; GNU tar stores times there."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        header = super().frombuf(buf, encoding, errors)
        if buf[345] and buf[257:263] != b"ustar\0":
            header.name = bytes(buf[:100]).split(b"\0", 1)[0].decode(encoding, errors)
        return header


def _member(header: tarfile.TarInfo, *, archive: ImageRef) -> TarMember:
    target = problem = ""
    size_bytes = 0
    if header.islnk():
        target = _path(header.linkname)
    elif header.issym():
        target = _path(posixpath.join(posixpath.dirname(header.name), header.linkname))
    elif header.issparse() or any(key.startswith("GNU.sparse.") for key in header.pax_headers):
        problem = "stored as a sparse file: make the tar without --sparse"
    else:
        size_bytes = header.size
    file = ImageRef(
        uri=archive.uri,
        size_bytes=size_bytes,
        version=archive.version,
        offset=archive.offset + header.offset_data,
        whole=False,
        problem=problem,
    )
    return TarMember(header.name, file, target)


def _explain(reader: StorageReader, *, begin: int, damage: str) -> str:
    block = reader.read_at(begin, _BLOCK_BYTES)
    if not begin:
        for signature, name, command in _COMPRESSED:
            if block.startswith(signature):
                return (
                    f"the tar is compressed with {name}, so no member can be read without "
                    f"everything before it; decompress it first: {command}"
                )
        if len(block) < _BLOCK_BYTES:
            return "not a tar archive: the file is too short"
        return f"no tar header here ({damage}): the file is damaged, or not a tar"
    return f"the tar is truncated or damaged here ({damage}); download it again"


def _check_end(reader: StorageReader, *, begin: int) -> tuple[int, str]:
    """Checks that a tar really ends here, since `tarfile` also stops at a bad header.

    Returns:
        The place and the problem; the problem is empty if the tar ends properly.
    """
    position = begin
    while data := reader.read_at(position, 128 * _BLOCK_BYTES):
        if position - begin > _MAX_PADDING_BYTES:
            return begin, "1 GiB of zeros follows the end of the tar here; download it again"
        zeros = len(data) - len(data.lstrip(b"\0"))
        if zeros < len(data):
            at = (position + zeros) // _BLOCK_BYTES * _BLOCK_BYTES
            if at > begin:
                return at, (
                    f"data follows the end of the tar at byte {begin}: the file is damaged, or "
                    "several archives were written into it; join them with tar --concatenate"
                )
            if reader.size_bytes - begin >= _BLOCK_BYTES:
                return begin, "no tar header here: the file is damaged, or not a tar"
            break
        position += len(data)
    if reader.size_bytes - begin >= _END_BYTES:
        return begin, ""
    return begin, (
        "the tar is truncated: its end mark is missing; download it again (if you know that it is "
        "complete, append 1,024 zero bytes to it)"
    )


def _resolve(links: list[TarMember], *, archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    """Finds the files that links lead to, in a second pass that most archives do not need."""
    if not links:
        return
    targets = {_path(link.name): link.target for link in links}
    wanted = set(targets.values())
    files: dict[str, ImageRef] = {}
    for member in tar_members(StorageReader(archive)):
        if not member.target and _path(member.name) in wanted:
            files.setdefault(_path(member.name), member.file)
    for link in links:
        path = _path(link.name)
        for _ in range(_MAX_LINKS):
            path = targets.get(path, "")
            if path in files:
                yield link.name, files[path]
                break
        else:
            problem = f"a link to {link.target!a}, which is not a file of the archive"
            yield link.name, link.refuse_link(problem)


def _path(name: str) -> str:
    return posixpath.normpath(name)
