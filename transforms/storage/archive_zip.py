"""Members of zip archives, from the central directory alone.

The format: PKWARE's APPNOTE 6.3.10 (sections given at each structure); the Unicode Path field is
Info-ZIP's (appnote 4.6.9).
"""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Iterator

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.reader import StorageReader

# End of central directory record (4.3.16), that of zip64 (4.3.14) and its locator (4.3.15).
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
_END64 = struct.Struct("<4sQ2H2L4Q")
_END64_SIGNATURE = b"PK\x06\x06"
_LOCATOR = struct.Struct("<4sLQL")
_LOCATOR_SIGNATURE = b"PK\x06\x07"
# Central directory header (4.3.12).
_ENTRY = struct.Struct("<4s4B4HL2L5H2L")
_ENTRY_SIGNATURE = b"PK\x01\x02"
# Local file header (4.3.7).
_LOCAL = struct.Struct("<4s5HLLL2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"

_MAX_COMMENT_BYTES = 0xFFFF
_IN_ZIP64 = 0xFFFFFFFF
# Local headers have extra fields of their own, such as times; more is read where these are longer.
_EXTRA_GUESS_BYTES = 64

_ENCRYPTED = 1 << 0
_PATCH = 1 << 5
_UTF8 = 1 << 11
_STORED = 0
_DEFLATED = 8
_METHODS = {6: "Implode", 9: "Deflate64", 12: "BZIP2", 14: "LZMA", 93: "Zstandard", 95: "XZ"}
_ZIP64_FIELD = 0x0001
_UNICODE_PATH_FIELD = 0x7075
# Where the archive was made (4.4.2): systems whose paths have backslashes; Unix.
_WINDOWS = frozenset({0, 10, 11, 14})
_UNIX = frozenset({3, 19})


class _Directory(msgspec.Struct, frozen=True):
    """Where the central directory lies; `shift` is the length of what stands before the archive."""

    begin: int
    end: int
    entries: int
    zip64: bool
    shift: int


def list_zip(archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    """Yields `(name, where it lies)` for every member of a zip archive that is no folder.

    Only the central directory is read. Where a member's bytes begin stands in the header in front
    of it: `ImageRef.header_bytes`. A member that cannot be read carries a `problem`.

    Args:
        archive: The archive, which may lie inside another one.

    Raises:
        InputError: It is no zip archive, is truncated or damaged, or in several parts.
    """
    reader = StorageReader(archive)
    directory = _find_directory(reader)
    position = directory.begin
    count = 0
    while position < directory.end:
        count += 1
        head = reader.read_at(position, _ENTRY.size)
        if len(head) < _ENTRY.size or not head.startswith(_ENTRY_SIGNATURE):
            raise _damaged(reader, count=count, position=position)
        fields = _ENTRY.unpack(head)
        # Its name, extra field and comment.
        tail_bytes = sum(fields[12:15])
        tail = reader.read_at(position + _ENTRY.size, tail_bytes)
        end = position + _ENTRY.size + tail_bytes
        if end > directory.end:
            raise _damaged(reader, count=count, position=position)
        position = end
        member = _member(fields, tail, archive=archive, directory=directory)
        if member is not None:
            yield member
    # The count of an archive without zip64 has 16 bits; some writers let it overflow.
    modulus = 1 << (64 if directory.zip64 else 16)
    if count % modulus != directory.entries:
        raise InputError(
            uri=reader.uri,
            problem=f"the zip announces {directory.entries} entries and lists {count}: it is "
            "damaged; fetch it anew",
        )


def local_header_bytes(data: bytes) -> int | None:
    """Tells how long the header in front of a member is; None if that is no header.

    Args:
        data: What lies in the archive from the header on; its first 30 bytes are enough.
    """
    if len(data) < _LOCAL.size or not data.startswith(_LOCAL_SIGNATURE):
        return None
    *_, name_bytes, extra_bytes = _LOCAL.unpack_from(data)
    return int(_LOCAL.size + name_bytes + extra_bytes)


def _damaged(reader: StorageReader, *, count: int, position: int) -> InputError:
    return InputError(
        uri=reader.uri,
        place=f"entry {count} of the zip's directory, byte {position}",
        problem="the directory is damaged; fetch the archive anew",
    )


def _find_directory(reader: StorageReader) -> _Directory:
    begin = max(0, reader.size_bytes - _END.size - _MAX_COMMENT_BYTES)
    tail = reader.read_at(begin, reader.size_bytes - begin)
    last = at = tail.rfind(_END_SIGNATURE, 0, max(0, len(tail) - _END.size + len(_END_SIGNATURE)))
    # A comment may hold anything: the record is the one whose comment ends with the file, or,
    # where something was appended, the last.
    while at >= 0 and not _ends_file(tail, at):
        at = tail.rfind(_END_SIGNATURE, 0, at)
    at = max(at, last) if at < 0 else at
    if at < 0:
        raise InputError(
            uri=reader.uri,
            problem="no zip archive, or a truncated one: its directory, which stands at the end, "
            "is missing; fetch it anew",
        )
    _, disk, first_disk, _, entries, size_bytes, offset, _ = _END.unpack_from(tail, at)
    end = begin + at
    locator = reader.read_at(end - _LOCATOR.size, _LOCATOR.size) if end >= _LOCATOR.size else b""
    zip64 = locator.startswith(_LOCATOR_SIGNATURE)
    if zip64:
        end, entries, size_bytes, offset, disk, first_disk = _read_end64(reader, end, locator)
    if disk or first_disk:
        raise InputError(
            uri=reader.uri,
            problem="one part of a zip archive that is split into several: join them with "
            "`zip -s 0 split.zip --out whole.zip`",
        )
    shift = end - size_bytes - offset
    if shift < 0:
        raise InputError(
            uri=reader.uri,
            place=f"byte {end}",
            problem="the zip's directory would begin before the file: it is truncated or damaged; "
            "fetch it anew",
        )
    return _Directory(begin=end - size_bytes, end=end, entries=entries, zip64=zip64, shift=shift)


def _ends_file(tail: bytes, at: int) -> bool:
    comment_bytes: int = _END.unpack_from(tail, at)[-1]
    return at + _END.size + comment_bytes == len(tail)


def _read_end64(
    reader: StorageReader, end: int, locator: bytes
) -> tuple[int, int, int, int, int, int]:
    _, disk, announced, disks = _LOCATOR.unpack(locator)
    # What stands before the archive shifts it: then it is where it must be without extra data.
    for at in (announced, end - _LOCATOR.size - _END64.size):
        record = reader.read_at(at, _END64.size) if at >= 0 else b""
        if len(record) == _END64.size and record.startswith(_END64_SIGNATURE):
            *_, part, first_part, _, entries, size_bytes, offset = _END64.unpack(record)
            return at, entries, size_bytes, offset, part or int(disks > 1), first_part or disk
    raise InputError(
        uri=reader.uri,
        place=f"byte {announced}",
        problem="the zip64 directory is missing: the file is damaged; fetch it anew",
    )


def _member(
    fields: tuple[int, ...], tail: bytes, *, archive: ImageRef, directory: _Directory
) -> tuple[str, ImageRef] | None:
    _, _, host, _, _, flags, method = fields[:7]
    crc32, size_bytes, decoded_bytes, name_bytes, extra_bytes = fields[9:14]
    disk, _, attributes, offset = fields[15:]
    raw_name = tail[:name_bytes]
    extra = _extra_fields(tail[name_bytes : name_bytes + extra_bytes])
    name = _decode_name(raw_name, flags=flags, host=host, extra=extra)
    if name.endswith("/"):
        return None
    problem = _problem(flags=flags, method=method, host=host, attributes=attributes)
    wide = extra.get(_ZIP64_FIELD, b"")
    sizes = []
    for value in (decoded_bytes, size_bytes, offset):
        if value == _IN_ZIP64 and _ZIP64_FIELD in extra:
            if len(wide) < 8:
                problem = "its size is missing in the zip's directory"
                break
            value = int.from_bytes(wide[:8], "little")
            wide = wide[8:]
        sizes.append(value)
    decoded_bytes, size_bytes, offset = sizes if len(sizes) == 3 else (0, 0, 0)
    begin = directory.shift + offset
    header_bytes = _LOCAL.size + len(raw_name)
    if not problem and begin + header_bytes + size_bytes > directory.begin:
        problem = "its bytes would lie outside of the archive"
    if not problem and method == _STORED and size_bytes != decoded_bytes:
        problem = "the zip's directory gives it two sizes"
    if not problem and disk not in (0, 0xFFFF):
        problem = "it lies in another part of the archive"
    if problem:
        return name, ImageRef(
            uri=archive.uri, size_bytes=0, version=archive.version, whole=False, problem=problem
        )
    return name, ImageRef(
        uri=archive.uri,
        size_bytes=size_bytes,
        version=archive.version,
        offset=archive.offset + begin,
        whole=False,
        coding=Coding.DEFLATED if method == _DEFLATED else Coding.FILE,
        decoded_bytes=decoded_bytes if method == _DEFLATED else 0,
        crc32=crc32,
        # Never beyond the archive: its directory is longer than what is guessed too much.
        header_bytes=header_bytes + _EXTRA_GUESS_BYTES,
    )


def _problem(*, flags: int, method: int, host: int, attributes: int) -> str:
    if host in _UNIX and stat.S_ISLNK(attributes >> 16):
        return "a symbolic link, which is not followed in a zip archive; zip without -y"
    if flags & _ENCRYPTED:
        return "encrypted in its archive; unpack it"
    if flags & _PATCH:
        return "a patch of another file"
    if method not in (_STORED, _DEFLATED):
        named = f" ({_METHODS[method]})" if method in _METHODS else ""
        return f"compressed with zip's method {method}{named}; unpack it, or zip it with deflate"
    return ""


def _extra_fields(data: bytes) -> dict[int, bytes]:
    """Reads `{id: content}` of an extra field (4.5.1); what is malformed is left out."""
    fields: dict[int, bytes] = {}
    position = 0
    while position + 4 <= len(data):
        identity, size_bytes = struct.unpack_from("<2H", data, position)
        position += 4
        fields.setdefault(identity, data[position : position + size_bytes])
        position += size_bytes
    return fields


def _decode_name(raw: bytes, *, flags: int, host: int, extra: dict[int, bytes]) -> str:
    """Decodes a name; one that is not valid in its encoding keeps its bytes as surrogates.

    Without the flag for UTF-8 it is in code page 437 (appendix D), but for the archives of macOS
    and others that leave it out: a name that is valid UTF-8 by chance is no other's.
    """
    unicode_path = extra.get(_UNICODE_PATH_FIELD, b"")
    if (
        len(unicode_path) > 5
        and unicode_path[0] == 1
        and int.from_bytes(unicode_path[1:5], "little") == zlib.crc32(raw)
    ):
        name = unicode_path[5:].decode("utf-8", "surrogateescape")
    elif flags & _UTF8:
        name = raw.decode("utf-8", "surrogateescape")
    else:
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            name = raw.decode("cp437")
    if host in _WINDOWS and "/" not in name:
        name = name.replace("\\", "/")
    return name
