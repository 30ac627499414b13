"""Broken archives: the outcome is an error, or members that can be read or have a problem."""

from __future__ import annotations

import io
import os
import random
import tarfile
import tempfile
import warnings
import zipfile
from pathlib import Path

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.image_bytes import read_bytes
from tests.fuzz.outcome import FOLDER, read_or_refuse

_NAMES = (
    *("a.jpg", "b/c.png", "../a.jpg", "/etc/passwd", "a\\b.jpg", "ü.jpg", "e\u0301.jpg", "./x.jpg"),
    *("long/" * 60 + "a.jpg", "inner.tar", "a.jpg/", "", " ", "臉書.jpg", "a//b.jpg"),
    "__MACOSX/._a",
)
_NUMBERS = (0, 1, 0xFF, 0xFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
_TAR_NUMBERS = (b"0", b"7777777", b"-1", b"8", b"\x80" + b"\xff" * 7, b"\xff" * 8, b" ", b"\0")


def fuzz_archives(random: random.Random) -> str:
    """Lists one random, partly broken archive, and reads all of its members."""
    is_zip = random.random() < 0.5
    data = bytearray(_zip(random) if is_zip else _tar(random))
    for _ in range(random.choice((0, 1, 1, 2, 3, 8))):
        _break(data, random, is_zip=is_zip)
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        path = Path(folder, "archive.zip" if is_zip else "archive.tar")
        path.write_bytes(data)
        root = f"{path}/b" if random.random() < 0.1 else str(path)
        return _outcome(root, archive=str(path))


def _outcome(root: str, *, archive: str) -> str:
    members = read_or_refuse(lambda: list(list_root(root)), uri=archive)
    if members is None:
        return "refused"
    rejected = False
    for path, file in members:
        assert path
        assert "\0" not in path
        assert file.uri == archive
        assert 0 <= file.offset <= os.path.getsize(archive)
        detail = ""
        content = b""
        try:
            content = read_bytes(file)
        except RejectedError as error:
            detail = error.detail or "no detail"
        rejected |= bool(detail)
        assert "no detail" not in detail
        assert archive not in detail
        assert detail or len(content) == (file.decoded_bytes or file.size_bytes)
    return "members rejected" if rejected else "listed"


def _zip(random: random.Random) -> bytes:
    buffer = io.BytesIO()
    if random.random() < 0.1:
        buffer.write(random.randbytes(random.randrange(200)))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
        # Names may come twice.
        warnings.simplefilter("ignore")
        for _ in range(random.randrange(5)):
            member = zipfile.ZipInfo(random.choice(_NAMES) or "x")
            member.create_system = random.choice((0, 3))
            member.external_attr = random.choice((0, 0o100644 << 16, 0o120777 << 16))
            method = random.choice(
                (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
            )
            with archive.open(member, "w", force_zip64=random.random() < 0.2) as file:
                member.compress_type = method
                file.write(_content(random))
        archive.comment = random.choice((b"", b"", b"PK\x05\x06 a comment"))
    return buffer.getvalue()


def _tar(random: random.Random) -> bytes:
    buffer = io.BytesIO()
    tar_format = random.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format, bufsize=512) as archive:
        for _ in range(random.randrange(5)):
            member = tarfile.TarInfo(random.choice(_NAMES))
            content = _content(random)
            if member.name.endswith(".tar") and random.random() < 0.7:
                content = _tar(random)
            member.type = random.choice(
                (*[tarfile.REGTYPE] * 6, tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE)
            )
            member.linkname = random.choice(_NAMES)
            member.size = len(content) if member.isreg() else 0
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def _content(random: random.Random) -> bytes:
    return random.choice(
        (b"", b"x" * random.randrange(2000), random.randbytes(random.randrange(700)))
    )


def _break(data: bytearray, random: random.Random, *, is_zip: bool) -> None:
    if not data:
        return
    at = random.randrange(len(data))
    kind = random.random()
    if kind < 0.3:
        data[at] = random.randrange(256)
    elif kind < 0.4:
        del data[at:]
    elif kind < 0.5:
        del data[at : at + random.randrange(1, 600)]
    elif kind < 0.6:
        data[at:at] = random.randbytes(random.randrange(1, 600))
    elif is_zip:
        # A field of a structure.
        signature = random.choice((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06"))
        found = data.find(signature, at if random.random() < 0.5 else 0)
        if found >= 0:
            size = random.choice((1, 2, 4, 8))
            value = random.choice(_NUMBERS) % (1 << (8 * size))
            field = found + 4 + random.randrange(44)
            data[field : field + size] = value.to_bytes(size, "little")
    else:
        _break_tar(data, random)


def _break_tar(data: bytearray, random: random.Random) -> None:
    """Changes a field of a header, and updates the checksum."""
    begin = random.randrange(max(1, len(data) // 512)) * 512
    header = data[begin : begin + 512]
    if len(header) < 512 or header[257:262] != b"ustar":
        return
    field, length = random.choice(((0, 100), (124, 12), (156, 1), (157, 100), (345, 155), (482, 1)))
    value = random.choice(
        (*_TAR_NUMBERS, b"L", b"K", b"x", b"g", b"S", b"M", b"D", b"V", b"\xff" * 12)
    )
    header[field : field + length] = value[:length].ljust(length, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    data[begin : begin + 512] = header
