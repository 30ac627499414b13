"""Lists the members of zip archives with `zipfile`, which reads only their central directory.

Section numbers refer to PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, cast

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.buffered_reader import StorageReader

# End of central directory record (4.3.16).
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
# The comment behind it is shorter than this.
_MAX_COMMENT_BYTES = 1 << 16
# Stands for a value that is in the Zip64 record.
_IN_ZIP64 = 0xFFFF
# About 2.5 million members, whose listing takes 2 GB of memory.
_MAX_DIRECTORY_BYTES = 256 << 20
# Central file header (4.3.12): signature, flags, lengths of the name and of what follows it.
_CENTRAL = struct.Struct("<4s4xH18x3H12x")
_CENTRAL_SIGNATURE = b"PK\x01\x02"
# Local file header (4.3.7): signature, length of the name, length of the extra field.
_LOCAL = struct.Struct("<4s22x2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"
# A guess at the extra fields of a local header, such as times; longer ones take a second read.
_EXTRA_GUESS_BYTES = 64

_ENCRYPTED = 1 << 0
_PATCH = 1 << 5
_UTF8 = 1 << 11
# A reserved flag; here it marks a name that is not UTF-8 although the directory says so.
_NOT_UTF8 = 1 << 14
_METHODS = {6: "Implode", 9: "Deflate64", 12: "BZIP2", 14: "LZMA", 93: "Zstandard", 95: "XZ"}
# Info-ZIP's field for names in UTF-8 (4.6.9).
_UNICODE_PATH_FIELD = 0x7075
# The system that made the archive (4.4.2): those whose paths have backslashes, and Unix.
_WINDOWS = frozenset({0, 10, 11, 14})
_UNIX = frozenset({3, 19})


def list_zip(archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    """Yields `(name, place of its bytes)` for every member of a zip archive except folders.

    Only the central directory is read, and it takes about 700 bytes of memory a member. Only the
    header in front of a member says where its bytes begin (`ImageRef.header_bytes`). A member that
    cannot be read carries a `problem`.

    Args:
        archive: The archive, which may lie inside another one.

    Raises:
        InputError: It is not a zip archive, is truncated or damaged, is split into several parts,
            or has a directory of more than 256 MiB.
    """
    reader = _Directory(archive)
    # Read the end in one request; `zipfile` then finds it in the reader's block.
    tail_bytes = min(reader.size_bytes, _END.size + _MAX_COMMENT_BYTES)
    tail = reader.read_at(reader.size_bytes - tail_bytes, tail_bytes)
    try:
        try:
            members, directory = _read_directory(reader)
        except UnicodeDecodeError:
            reader.fixes_names = True
            members, directory = _read_directory(reader)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise InputError(
            uri=reader.uri,
            problem=f"not a zip archive, or a truncated or damaged one ({error}); download it "
            "again",
        ) from error
    problem = _check_end(tail, count=len(members))
    if problem:
        raise InputError(uri=reader.uri, problem=problem)
    # No program but one of Windows packs folders without a single slash (4.4.17 demands slashes).
    only_backslashes = not any("/" in member.orig_filename for member in members)
    for member in members:
        name = _name(member, only_backslashes=only_backslashes)
        if not name.endswith("/"):
            yield name, _file(member, archive=archive, directory=directory)


class _Directory(StorageReader):
    """The file object that `zipfile` reads the whole central directory from.

    Attributes:
        fixes_names: Whether to clear the UTF-8 flag of names that are not UTF-8, since `zipfile`
            fails on an archive with such a name.
    """

    fixes_names = False

    def read(self, size_bytes: int = -1, /) -> bytes:
        """Reads from the current position, unless the directory is too large."""
        if size_bytes > _MAX_DIRECTORY_BYTES:
            raise InputError(
                uri=self.uri,
                problem=f"the zip's directory has {size_bytes:,} bytes; at most "
                f"{_MAX_DIRECTORY_BYTES:,} are read; split the zip into several archives",
            )
        data = super().read(size_bytes)
        return _fix_names(data) if self.fixes_names else data


def _read_directory(reader: _Directory) -> tuple[list[zipfile.ZipInfo], int]:
    with zipfile.ZipFile(cast(IO[bytes], reader)) as opened:
        return opened.infolist(), opened.start_dir


def _fix_names(directory: bytes) -> bytes:
    fixed = bytearray(directory)
    at = 0
    while len(fixed) - at >= _CENTRAL.size:
        signature, flags, *sizes = _CENTRAL.unpack_from(fixed, at)
        if signature != _CENTRAL_SIGNATURE:
            break
        name_at = at + _CENTRAL.size
        try:
            fixed[name_at : name_at + sizes[0]].decode()
        except UnicodeDecodeError:
            if flags & _UTF8:
                struct.pack_into("<H", fixed, at + 8, flags ^ (_UTF8 | _NOT_UTF8))
        at = name_at + sum(sizes)
    return bytes(fixed)


def local_header_bytes(data: bytes) -> int | None:
    """Returns the length of the header in front of a member; None if there is no header.

    Args:
        data: The archive's bytes from the header on; the first 30 are enough.
    """
    if len(data) < _LOCAL.size or not data.startswith(_LOCAL_SIGNATURE):
        return None
    _, name_bytes, extra_bytes = _LOCAL.unpack_from(data)
    return int(_LOCAL.size + name_bytes + extra_bytes)


def _check_end(tail: bytes, *, count: int) -> str:
    """Returns what is wrong with the end of an archive that `zipfile` accepts; empty if nothing."""
    at = tail.rfind(_END_SIGNATURE)
    _, disk, first_disk, _, entries, _, _, comment_bytes = _END.unpack_from(tail, at)
    if disk not in (0, _IN_ZIP64) or first_disk not in (0, _IN_ZIP64):
        return (
            "one part of a zip archive that is split into several; join them with "
            "`zip -s 0 split.zip --out whole.zip`"
        )
    if entries not in (count % (1 << 16), _IN_ZIP64):
        return (
            f"the zip announces {entries} entries and lists {count}: it is damaged; download it "
            "again"
        )
    if at + _END.size + comment_bytes != len(tail) and tail.count(_END_SIGNATURE) > 1:
        return (
            "the zip has several end records: it is damaged, or its comment imitates one; zip the "
            "files again"
        )
    return ""


def _file(member: zipfile.ZipInfo, *, archive: ImageRef, directory: int) -> ImageRef:
    header_bytes = _LOCAL.size + len(_raw_name(member))
    end = member.header_offset + header_bytes + member.compress_size
    problem = _problem(member)
    if not problem and not 0 <= member.header_offset < end <= directory:
        problem = "its bytes would lie outside the archive"
    if problem:
        return ImageRef(
            uri=archive.uri, size_bytes=0, version=archive.version, whole=False, problem=problem
        )
    is_deflated = member.compress_type == zipfile.ZIP_DEFLATED
    return ImageRef(
        uri=archive.uri,
        size_bytes=member.compress_size,
        version=archive.version,
        offset=archive.offset + member.header_offset,
        whole=False,
        coding=Coding.DEFLATED if is_deflated else Coding.FILE,
        decoded_bytes=member.file_size if is_deflated else 0,
        crc32=member.CRC,
        # This never reaches beyond the archive: its directory is longer than the guess.
        header_bytes=header_bytes + _EXTRA_GUESS_BYTES,
    )


def _problem(member: zipfile.ZipInfo) -> str:
    method = member.compress_type
    if member.create_system in _UNIX and stat.S_ISLNK(member.external_attr >> 16):
        return "a symbolic link, which is not followed in a zip archive; zip without -y"
    if member.flag_bits & _ENCRYPTED:
        return "encrypted in its archive; unpack it"
    if member.flag_bits & _PATCH:
        return "a patch of another file"
    if method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        named = f" ({_METHODS[method]})" if method in _METHODS else ""
        return f"compressed with zip's method {method}{named}; unpack it, or zip it with deflate"
    if method == zipfile.ZIP_STORED and member.compress_size != member.file_size:
        return "the zip's directory gives it two sizes"
    if member.volume not in (0, 0xFFFF):
        return "lies in another part of the archive"
    return ""


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    return member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")


def _name(member: zipfile.ZipInfo, *, only_backslashes: bool) -> str:
    """Returns a name, in which the backslashes of Windows are slashes.

    Args:
        member: The member.
        only_backslashes: Whether no name of the archive has a slash.
    """
    name, is_unicode = _decode_name(member)
    is_windows = member.create_system in _WINDOWS
    # In other code pages, a byte of a character may look like a backslash.
    is_path = (is_windows or only_backslashes) if is_unicode else is_windows and "/" not in name
    return name.replace("\\", "/") if is_path else name


def _decode_name(member: zipfile.ZipInfo) -> tuple[str, bool]:
    """Decodes a name; returns whether it is Unicode, too, and not in code page 437.

    Without the flag for UTF-8 it should be in code page 437 (appendix D). macOS and others leave
    the flag out, so a name that is valid UTF-8 is read as that: names in code page 437 hardly ever
    are.
    """
    raw = _raw_name(member)
    if member.flag_bits & _NOT_UTF8:
        # A name that is not UTF-8 becomes a reject, as for a file on disk.
        return raw.decode("utf-8", "surrogateescape"), False
    name = member.orig_filename
    unicode_path = _extra_field(member.extra, _UNICODE_PATH_FIELD)
    if unicode_path[:5] == b"\x01" + zlib.crc32(raw).to_bytes(4, "little"):
        return unicode_path[5:].decode("utf-8", "surrogateescape") or name, True
    if member.flag_bits & _UTF8:
        return name, True
    try:
        return raw.decode(), True
    except UnicodeDecodeError:
        return name, False


def _extra_field(data: bytes, identity: int) -> bytes:
    """Returns one part of an extra field (4.5.1); empty where it is missing."""
    while len(data) >= 4:
        found, size_bytes = struct.unpack_from("<2H", data)
        if found == identity:
            return data[4 : 4 + size_bytes]
        data = data[4 + size_bytes :]
    return b""
