"""Members of tar archives, from their headers alone.

The formats: ustar and PAX (POSIX.1-2017, pax, "Extended Description"), GNU tar ("Basic Tar
Format" in its manual), and the older ones that these extend.
"""

from __future__ import annotations

import enum
import posixpath
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.storage.reader import StorageReader

_BLOCK_BYTES = 512
_ZEROS = bytes(_BLOCK_BYTES)
# A longer name, or more attributes than this, is damage.
_MAX_EXTENSION_BYTES = 1 << 20
_MAX_LINKS = 40

_COMPRESSED = (
    (b"\x1f\x8b", "gzip", "gunzip"),
    (b"BZh", "bzip2", "bunzip2"),
    (b"\xfd7zXZ\0", "xz", "unxz"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
)

_HARD_LINK = b"1"
_SYMBOLIC_LINK = b"2"
# Devices, folders and pipes; GNU's folder listing and volume label.
_NO_FILES = frozenset({b"3", b"4", b"5", b"6", b"D", b"V"})
_GNU_LONG_NAME = b"L"
_GNU_LONG_LINK = b"K"
_GNU_SPARSE = b"S"
_GNU_CONTINUED = b"M"
_PAX = frozenset({b"x", b"X"})
_PAX_GLOBAL = b"g"


class MemberKind(enum.Enum):
    """What a member is."""

    FILE = enum.auto()
    HARD_LINK = enum.auto()
    SYMBOLIC_LINK = enum.auto()


class TarMember(NamedTuple):
    """A file of a tar archive, or a link to one.

    Attributes:
        name: Its name, as the archive has it; bytes that are no UTF-8 are surrogates.
        kind: What it is.
        offset: Where its bytes begin, from the archive's beginning.
        size_bytes: How many they are.
        target: Of a link: the name that it gives.
        problem: Why it cannot be read, if so.
    """

    name: str
    kind: MemberKind
    offset: int
    size_bytes: int
    target: str = ""
    problem: str = ""


def list_tar(archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    """Yields `(name, where it lies)` for every file of a tar archive.

    Links are the files that they lead to; one that leads to none carries a `problem`. Folders,
    devices and pipes are left out. The files of a tar archive inside this one (as ImageNet's are)
    are listed as those of a folder of its name.

    Args:
        archive: The archive.

    Raises:
        InputError: As for `tar_members`.
    """
    links: list[TarMember] = []
    for member in tar_members(StorageReader(archive)):
        if member.kind is not MemberKind.FILE:
            links.append(member)
            continue
        file = _file(member, archive=archive)
        if not member.name.lower().endswith(".tar") or member.problem:
            yield member.name, file
            continue
        for inner in tar_members(StorageReader(file), place=member.name):
            yield (
                f"{member.name[:-4]}/{inner.name}",
                _file(inner, archive=file)
                if inner.kind is MemberKind.FILE
                else _broken(inner, archive=archive, problem="a link in an archive inside another"),
            )
    yield from _resolve(links, archive=archive)


def tar_members(reader: StorageReader, *, place: str = "") -> Iterator[TarMember]:
    """Yields every file and link of a tar archive, in order.

    Archives that were written one after the other into one file are read as one.

    Args:
        reader: Reads the archive.
        place: Which archive it is, where it lies inside another one.

    Raises:
        InputError: It is no tar archive, is compressed, truncated or damaged, or one part of
            several.
    """
    headers = _Headers(reader, place=place)
    shared: dict[str, str] = {}
    own: dict[str, str] = {}
    while (header := headers.next()) is not None:
        kind = header.kind
        if kind in _PAX:
            own |= _pax_records(headers.content(header), headers=headers, at=header.begin)
            continue
        if kind == _PAX_GLOBAL:
            shared |= _pax_records(headers.content(header), headers=headers, at=header.begin)
            continue
        if kind in (_GNU_LONG_NAME, _GNU_LONG_LINK):
            name = headers.content(header).split(b"\0", 1)[0]
            own["path" if kind == _GNU_LONG_NAME else "linkpath"] = _text(name)
            continue
        if kind == _GNU_CONTINUED:
            raise headers.error(header.begin, "one part of a tar archive of several volumes")
        member = _member(header, {**shared, **own}, headers=headers)
        own = {}
        if member is not None:
            yield member


class _Header(NamedTuple):
    block: bytes
    begin: int

    @property
    def kind(self) -> bytes:
        return self.block[156:157]


class _Headers:
    """Walks from header to header."""

    def __init__(self, reader: StorageReader, *, place: str) -> None:
        self._reader = reader
        self._place = place
        self.position = 0
        self._ended = False

    def next(self) -> _Header | None:
        """Returns the next header, leaving `position` behind it; None at the end."""
        while True:
            begin = self.position
            block = self._reader.read_at(begin, _BLOCK_BYTES)
            if not block and self._ended:
                return None
            if len(block) < _BLOCK_BYTES:
                if self._ended and not block.strip(b"\0"):
                    return None
                raise self._truncated(block, begin=begin)
            self.position += _BLOCK_BYTES
            if block == _ZEROS:
                self._ended = True
                continue
            if not _has_checksum(block):
                raise self._no_header(block, begin=begin)
            self._ended = False
            return _Header(block, begin)

    def content(self, header: _Header) -> bytes:
        """Reads the content of a header that extends the next one, and goes behind it."""
        size_bytes = self.size(header)
        if size_bytes > _MAX_EXTENSION_BYTES:
            raise self.error(header.begin, f"a header of {size_bytes} bytes: the tar is damaged")
        data = self._reader.read_at(self.position, size_bytes)
        self.skip(size_bytes, at=header.begin)
        return data

    def size(self, header: _Header) -> int:
        """Reads the size that a header gives."""
        return self._number(header, 124, 12)

    def skip(self, size_bytes: int, *, at: int) -> None:
        """Goes behind a member's content."""
        end = self.position + size_bytes
        if end > self._reader.size_bytes:
            raise self.error(
                at,
                f"the tar is truncated: this member ends at byte {end}, the file at byte "
                f"{self._reader.size_bytes}; fetch it anew",
            )
        # The last block's padding may be missing; then the end is, too, and is missed there.
        self.position += -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES

    def skip_sparse_map(self, header: _Header) -> None:
        """Goes behind the blocks that continue a GNU sparse header."""
        continued = header.block[482]
        while continued:
            block = self._reader.read_at(self.position, _BLOCK_BYTES)
            self.skip(_BLOCK_BYTES, at=header.begin)
            continued = block[504]

    def error(self, at: int, problem: str) -> InputError:
        """Makes an error that names the place."""
        inside = f"{self._place}, " if self._place else ""
        return InputError(uri=self._reader.uri, place=f"{inside}byte {at}", problem=problem)

    def _number(self, header: _Header, begin: int, length: int) -> int:
        field = header.block[begin : begin + length]
        if field[0] & 0x80:
            # GNU's base 256, for what octal digits cannot hold; negative where the next bit is set.
            number = int.from_bytes(field, "big") & ((1 << (8 * length - 1)) - 1)
            if field[0] & 0x40:
                raise self.error(header.begin, "a negative size: the tar is damaged")
            return number
        digits = field.split(b"\0", 1)[0].strip()
        if digits.translate(None, b"01234567"):
            raise self.error(header.begin, "the size is no number: the tar is damaged")
        return int(digits or b"0", 8)

    def _truncated(self, block: bytes, *, begin: int) -> InputError:
        if not begin:
            problem = self._foreign(block) or "no tar archive: the file is too short"
        else:
            problem = (
                "the tar is truncated: its end mark is missing; fetch it anew (if it is known to "
                "be whole, append 1,024 zero bytes to it)"
            )
        return self.error(begin, problem)

    def _no_header(self, block: bytes, *, begin: int) -> InputError:
        problem = self._foreign(block) if not begin else ""
        return self.error(begin, problem or "no tar header here: the file is damaged, or no tar")

    def _foreign(self, block: bytes) -> str:
        for signature, name, command in _COMPRESSED:
            if block.startswith(signature):
                return (
                    f"the tar is compressed with {name}, so that no member can be read without "
                    f"all before it: decompress it first, with {command}"
                )
        return ""


def _has_checksum(block: bytes) -> bool:
    digits = block[148:156].split(b"\0", 1)[0].strip()
    if not digits or digits.translate(None, b"01234567"):
        return False
    expected = int(digits, 8)
    # The checksum's own field counts as spaces.
    total = sum(block) - sum(block[148:156]) + 8 * 32
    if total == expected:
        return True
    # Some old ones added signed bytes up.
    signed = total - 256 * sum(byte > 127 for byte in block[:148] + block[156:])
    return signed == expected


def _member(
    header: _Header, attributes: Mapping[str, str], *, headers: _Headers
) -> TarMember | None:
    kind = header.kind
    name = attributes.get("GNU.sparse.name") or attributes.get("path") or _ustar_name(header.block)
    if kind in (_HARD_LINK, _SYMBOLIC_LINK):
        return TarMember(
            name=name,
            kind=MemberKind.HARD_LINK if kind == _HARD_LINK else MemberKind.SYMBOLIC_LINK,
            offset=headers.position,
            size_bytes=0,
            target=attributes.get("linkpath") or _text(_until_nul(header.block[157:257])),
        )
    size_bytes = _size(header, attributes, headers=headers)
    if kind in _NO_FILES:
        # Of these only the folder listing has content.
        headers.skip(size_bytes if kind == b"D" else 0, at=header.begin)
        return None
    if kind == _GNU_SPARSE:
        headers.skip_sparse_map(header)
    offset = headers.position
    headers.skip(size_bytes, at=header.begin)
    if kind == b"\0" and name.endswith("/"):
        return None
    sparse = kind == _GNU_SPARSE or any(key.startswith("GNU.sparse.") for key in attributes)
    return TarMember(
        name=name,
        kind=MemberKind.FILE,
        offset=offset,
        size_bytes=size_bytes,
        problem="stored as a sparse file: make the tar without --sparse" if sparse else "",
    )


def _size(header: _Header, attributes: Mapping[str, str], *, headers: _Headers) -> int:
    given = attributes.get("size")
    if given is None:
        return headers.size(header)
    if not (given.isascii() and given.isdigit() and len(given) <= 20):
        raise headers.error(header.begin, "the size is no number: the tar is damaged")
    return int(given)


def _ustar_name(block: bytes) -> str:
    name = _until_nul(block[:100])
    # GNU's own format has other things in the place of the prefix.
    prefix = _until_nul(block[345:500]) if block[257:263] == b"ustar\0" else b""
    return _text(prefix + b"/" + name if prefix else name)


def _until_nul(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _pax_records(data: bytes, *, headers: _Headers, at: int) -> dict[str, str]:
    """Reads `{attribute: value}` of records: length, space, key, `=`, value, newline."""
    records: dict[str, str] = {}
    position = 0
    while position < len(data) and data[position]:
        digits, space, _ = data[position : position + 24].partition(b" ")
        if not space or not digits.isdigit():
            raise headers.error(at, "an extended header is malformed: the tar is damaged")
        end = position + int(digits)
        key, equals, value = data[position + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise headers.error(at, "an extended header is malformed: the tar is damaged")
        records[_text(key)] = _text(value)
        position = end
    return records


def _file(member: TarMember, *, archive: ImageRef) -> ImageRef:
    return ImageRef(
        uri=archive.uri,
        size_bytes=member.size_bytes,
        version=archive.version,
        offset=archive.offset + member.offset,
        whole=False,
        problem=member.problem,
    )


def _broken(member: TarMember, *, archive: ImageRef, problem: str) -> ImageRef:
    return _file(member._replace(size_bytes=0, problem=problem), archive=archive)


def _resolve(links: list[TarMember], *, archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    """Finds what links lead to, in a second pass: most archives have none."""
    if not links:
        return
    targets = {_path(link.name): _target(link) for link in links}
    wanted = set(targets.values())
    files: dict[str, TarMember] = {}
    for member in tar_members(StorageReader(archive)):
        if member.kind is MemberKind.FILE and _path(member.name) in wanted:
            files.setdefault(_path(member.name), member)
    for link in links:
        path = _path(link.name)
        for _ in range(_MAX_LINKS):
            path = targets.get(path, "")
            if path in files:
                yield link.name, _file(files[path], archive=archive)
                break
        else:
            problem = f"a link to {link.target!a}, which is no file of the archive"
            yield link.name, _broken(link, archive=archive, problem=problem)


def _path(name: str) -> str:
    return posixpath.normpath(name)


def _target(link: TarMember) -> str:
    if link.kind is MemberKind.HARD_LINK:
        return _path(link.target)
    return _path(posixpath.join(posixpath.dirname(link.name), link.target))
