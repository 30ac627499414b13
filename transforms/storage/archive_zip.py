"""Members of zip archives, by `zipfile`, from the central directory alone.

Section numbers are those of PKWARE's APPNOTE 6.3.10.
"""

from __future__ import annotations

import contextlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, cast

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import Coding, ImageRef
from shardbeam.transforms.storage.reader import StorageReader

# End of central directory record (4.3.16).
_END = struct.Struct("<4s4H2LH")
_END_SIGNATURE = b"PK\x05\x06"
# Its comment, which stands behind it, is shorter.
_MAX_COMMENT_BYTES = 1 << 16
# The count of entries stands elsewhere then.
_IN_ZIP64 = 0xFFFF
# About 2.5 million members, which take 2 GB of memory while they are listed.
_MAX_DIRECTORY_BYTES = 256 << 20
# Central file header (4.3.12): signature, flags, lengths of the name and of what follows it.
_CENTRAL = struct.Struct("<4s4xH18x3H12x")
_CENTRAL_SIGNATURE = b"PK\x01\x02"
# Local file header (4.3.7): signature, length of the name, length of the extra field.
_LOCAL = struct.Struct("<4s22x2H")
_LOCAL_SIGNATURE = b"PK\x03\x04"
# Local headers have extra fields of their own, such as times; more is read where these are longer.
_EXTRA_GUESS_BYTES = 64

_ENCRYPTED = 1 << 0
_PATCH = 1 << 5
_UTF8 = 1 << 11
# Reserved; here it marks a name that is not in UTF-8, although the directory says that it is.
_NOT_UTF8 = 1 << 14
_METHODS = {6: "Implode", 9: "Deflate64", 12: "BZIP2", 14: "LZMA", 93: "Zstandard", 95: "XZ"}
# Info-ZIP's (4.6.9).
_UNICODE_PATH_FIELD = 0x7075
# Where the archive was made (4.4.2): systems whose paths have backslashes; Unix.
_WINDOWS = frozenset({0, 10, 11, 14})
_UNIX = frozenset({3, 19})


def list_zip(archive: ImageRef) -> Iterator[tuple[str, ImageRef]]:
    """Yields `(name, where it lies)` for every member of a zip archive that is no folder.

    Only the central directory is read; while it is listed it takes about 700 bytes of memory a
    member. Where a member's bytes begin stands in the header in front of it:
    `ImageRef.header_bytes`. A member that cannot be read carries a `problem`.

    Args:
        archive: The archive, which may lie inside another one.

    Raises:
        InputError: It is no zip archive, is truncated or damaged, in several parts, or has a
            directory of more than 256 MiB.
    """
    reader = _Directory(archive)
    # Read at once, so that what `zipfile` looks for at the end is one request.
    tail_bytes = min(reader.size_bytes, _END.size + _MAX_COMMENT_BYTES)
    tail = reader.read_at(reader.size_bytes - tail_bytes, tail_bytes)
    try:
        try:
            members, directory = _read_directory(reader)
        except UnicodeDecodeError:
            reader.mends_names = True
            members, directory = _read_directory(reader)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise InputError(
            uri=reader.uri,
            problem=f"no zip archive, or a truncated or damaged one ({error}); fetch it anew",
        ) from error
    problem = _check_end(tail, count=len(members))
    if problem:
        raise InputError(uri=reader.uri, problem=problem)
    for member in members:
        name = _name(member)
        if not name.endswith("/"):
            yield name, _file(member, archive=archive, directory=directory)


class _Directory(StorageReader):
    """What `zipfile` reads an archive by: it asks for the whole central directory at once.

    Attributes:
        mends_names: Whether names that are not in UTF-8 lose the flag that says so: by one of them
            `zipfile` gives the archive up.
    """

    mends_names = False

    def read(self, size_bytes: int = -1, /) -> bytes:
        """Reads from the position on, if that is not too much."""
        if size_bytes > _MAX_DIRECTORY_BYTES:
            raise InputError(
                uri=self.uri,
                problem=f"the zip's directory takes {size_bytes:,} bytes, more than the "
                f"{_MAX_DIRECTORY_BYTES:,} that are read; split it into several archives",
            )
        data = super().read(size_bytes)
        return _mend_names(data) if self.mends_names else data


def _read_directory(reader: _Directory) -> tuple[list[zipfile.ZipInfo], int]:
    with zipfile.ZipFile(cast(IO[bytes], reader)) as opened:
        return opened.infolist(), opened.start_dir


def _mend_names(directory: bytes) -> bytes:
    mended = bytearray(directory)
    at = 0
    while len(mended) - at >= _CENTRAL.size:
        signature, flags, *sizes = _CENTRAL.unpack_from(mended, at)
        if signature != _CENTRAL_SIGNATURE:
            break
        name_at = at + _CENTRAL.size
        try:
            mended[name_at : name_at + sizes[0]].decode()
        except UnicodeDecodeError:
            if flags & _UTF8:
                struct.pack_into("<H", mended, at + 8, flags ^ (_UTF8 | _NOT_UTF8))
        at = name_at + sum(sizes)
    return bytes(mended)


def local_header_bytes(data: bytes) -> int | None:
    """Tells how long the header in front of a member is; None if that is no header.

    Args:
        data: What lies in the archive from the header on; its first 30 bytes are enough.
    """
    if len(data) < _LOCAL.size or not data.startswith(_LOCAL_SIGNATURE):
        return None
    _, name_bytes, extra_bytes = _LOCAL.unpack_from(data)
    return int(_LOCAL.size + name_bytes + extra_bytes)


def _check_end(tail: bytes, *, count: int) -> str:
    """Says what is wrong with the end of an archive that `zipfile` reads without a word."""
    at = tail.rfind(_END_SIGNATURE)
    _, disk, first_disk, _, entries, _, _, comment_bytes = _END.unpack_from(tail, at)
    if disk not in (0, _IN_ZIP64) or first_disk not in (0, _IN_ZIP64):
        return (
            "one part of a zip archive that is split into several: join them with "
            "`zip -s 0 split.zip --out whole.zip`"
        )
    if entries not in (count % (1 << 16), _IN_ZIP64):
        return (
            f"the zip announces {entries} entries and lists {count}: it is damaged; fetch it anew"
        )
    if at + _END.size + comment_bytes != len(tail) and tail.count(_END_SIGNATURE) > 1:
        return "has several ends: it is damaged, or its comment imitates one; zip the files anew"
    return ""


def _file(member: zipfile.ZipInfo, *, archive: ImageRef, directory: int) -> ImageRef:
    header_bytes = _LOCAL.size + len(_raw_name(member))
    end = member.header_offset + header_bytes + member.compress_size
    problem = _problem(member)
    if not problem and not 0 <= member.header_offset < end <= directory:
        problem = "its bytes would lie outside of the archive"
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
        # Never beyond the archive: its directory is longer than what is guessed too much.
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
        return "it lies in another part of the archive"
    return ""


def _raw_name(member: zipfile.ZipInfo) -> bytes:
    return member.orig_filename.encode("utf-8" if member.flag_bits & _UTF8 else "cp437")


def _name(member: zipfile.ZipInfo) -> str:
    """Decodes a name.

    Without the flag for UTF-8 it is in code page 437 (appendix D), but for the archives of macOS
    and others that leave it out: a name that is valid UTF-8 by chance is no other's.
    """
    raw = _raw_name(member)
    if member.flag_bits & _NOT_UTF8:
        # A reject, as such a name of a file is.
        return raw.decode("utf-8", "surrogateescape")
    name = member.orig_filename
    unicode_path = _extra_field(member.extra, _UNICODE_PATH_FIELD)
    if unicode_path[:5] == b"\x01" + zlib.crc32(raw).to_bytes(4, "little"):
        name = unicode_path[5:].decode("utf-8", "surrogateescape") or name
    elif not member.flag_bits & _UTF8:
        with contextlib.suppress(UnicodeDecodeError):
            name = raw.decode()
    if member.create_system in _WINDOWS and "/" not in name:
        name = name.replace("\\", "/")
    return name


def _extra_field(data: bytes, identity: int) -> bytes:
    """Finds a part of an extra field (4.5.1); empty where it is not there."""
    while len(data) >= 4:
        found, size_bytes = struct.unpack_from("<2H", data)
        if found == identity:
            return data[4 : 4 + size_bytes]
        data = data[4 + size_bytes :]
    return b""
