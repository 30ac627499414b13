"""Files in archives, read by the paths that unpacking would give them."""

from __future__ import annotations

import io
import os
import tarfile
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.storage import disk_file
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.base import ChangedError
from shardbeam.transforms.storage.buffered_reader import StorageReader
from shardbeam.transforms.storage.find import expand_pattern, storage_for
from tests.support.archive_files import tar_bytes, write_files, write_tar, write_zip, zip_bytes

LONG = bytes(range(256)) * 100_000
FILES = {"a.json": b"{}", "train/b.json": LONG, "train/c.csv": b"x,y\n", "d.json": b""}
Write = Callable[[Path], Path]
ARCHIVES: list[tuple[str, Write]] = [
    ("deflated.zip", lambda path: write_zip(path, FILES)),
    ("stored.zip", lambda path: write_zip(path, FILES, method=zipfile.ZIP_STORED)),
    ("gnu.tar", lambda path: write_tar(path, FILES, tar_format=tarfile.GNU_FORMAT)),
    ("UPPER.ZIP", lambda path: write_zip(path, FILES)),
]


@pytest.mark.parametrize(("name", "write"), ARCHIVES, ids=[name for name, _ in ARCHIVES])
def test_files_are_as_if_they_were_unpacked(name: str, write: Write, tmp_path: Path) -> None:
    archive = write(tmp_path / name)

    for path, data in FILES.items():
        uri = f"{archive}/{path}"
        storage = storage_for(uri)
        stored = storage.find(uri)
        assert (stored.uri, stored.size_bytes) == (uri, len(data))
        assert storage.read(uri) == data
        assert storage.read(uri, offset=300, size_bytes=500) == data[300:800]
        assert storage.read(uri, offset=len(data) + 1) == b""
        assert storage.read_small(uri, max_bytes=len(data), version=stored.version) == data
        opened = storage.open_local(uri)
        assert opened is not None
        with opened:
            assert os.pread(opened.fileno(), len(data), 0) == data
    assert expand_pattern(f"{archive}/*.json") == [f"{archive}/a.json", f"{archive}/d.json"]
    assert expand_pattern(f"{archive}/*/*.json") == [f"{archive}/train/b.json"]
    assert storage_for(f"{archive}/none.json").stat(f"{archive}/none.json") is None


def test_a_folder_with_the_name_of_an_archive_wins(tmp_path: Path) -> None:
    write_files(tmp_path / "data.zip", {"a.json": "real", "in.zip": zip_bytes({"b.json": "b"})})

    assert storage_for(f"{tmp_path}/data.zip/a.json").read(f"{tmp_path}/data.zip/a.json") == b"real"
    inner = f"{tmp_path}/data.zip/in.zip/b.json"
    assert storage_for(inner).read(inner) == b"b"
    assert storage_for(f"{tmp_path}/none.zip/a.json").stat(f"{tmp_path}/none.zip/a.json") is None


def test_a_tar_in_a_tar_is_a_folder(tmp_path: Path) -> None:
    archive = write_tar(tmp_path / "out.tar", {"in.tar": tar_bytes({"a.json": b"{}"})})
    uri = f"{archive}/in/a.json"

    assert storage_for(uri).read(uri) == b"{}"


def test_a_name_is_found_in_either_form_of_unicode(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "\xe4.json") for form in ("NFC", "NFD"))
    archive = write_zip(tmp_path / "x.zip", {decomposed: "{}"})

    assert storage_for(f"{archive}/{composed}").read(f"{archive}/{composed}") == b"{}"


def test_an_archive_on_another_file_system() -> None:
    root = "memory://members"
    fsspec.filesystem("memory").pipe("/members/x.zip", zip_bytes(FILES))
    uri = f"{root}/x.zip/train/b.json"

    assert storage_for(uri).read(uri) == LONG


def test_an_archive_that_has_changed(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "x.zip", {"a.json": "{}"})
    uri = f"{archive}/a.json"
    version = storage_for(uri).find(uri).version
    write_zip(archive, {"a.json": "[]"})
    os.utime(archive, ns=(1, 1))

    with pytest.raises(ChangedError):
        storage_for(uri).read(uri, version=version)
    assert storage_for(uri).read(uri) == b"[]"


def _flip(path: Path, data: bytes) -> Path:
    content = path.read_bytes()
    at = content.index(data)
    path.write_bytes(content[:at] + bytes([data[0] ^ 1]) + content[at + 1 :])
    return path


def _announce(path: Path, size_bytes: int) -> Path:
    """Lets the directory of a zip of one deflated member give another length."""
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 24 : at + 28] = size_bytes.to_bytes(4, "little")
    path.write_bytes(content)
    return path


_STORED = zipfile.ZIP_STORED


@pytest.mark.parametrize(
    ("name", "write", "problem"),
    [
        (
            "crc.zip",
            lambda path: _flip(write_zip(path, {"a": "abc"}, method=_STORED), b"abc"),
            "checksum",
        ),
        ("short.zip", lambda path: _announce(write_zip(path, {"a": LONG}), 5), "announces 5 bytes"),
        ("long.zip", lambda path: _announce(write_zip(path, {"a": "abc"}), 9), "announces 9 bytes"),
        (
            "not.zip",
            lambda path: write_files(path.parent, {path.name: "abc"}) / path.name,
            "not a zip",
        ),
        (
            "x.tar.gz",
            lambda path: write_files(path.parent, {path.name: "abc"}) / path.name,
            "gunzip",
        ),
    ],
)
def test_archives_that_cannot_be_read(
    name: str, write: Write, problem: str, tmp_path: Path
) -> None:
    uri = f"{write(tmp_path / name)}/a"

    with pytest.raises(InputError, match=problem) as raised:
        storage_for(uri).read(uri)
    assert str(tmp_path / name) in str(raised.value)


def test_a_missing_file_is_named_with_what_the_archive_holds(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "x.zip", {"v1/a.json": "{}", "b.json": "{}", "c.txt": ""})

    with pytest.raises(
        InputError, match=r"x\.zip holds no such file; it holds: v1/a\.json, b\.json"
    ):
        storage_for(f"{archive}/a.json").find(f"{archive}/a.json")


def test_no_room_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write_zip(tmp_path / "x.zip", {"a.json": "{}"})

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_file, "_check_room", refuse)

    with pytest.raises(InputError, match=r"a\.json.*lacks room.*set TMPDIR"):
        storage_for(f"{archive}/a.json").read(f"{archive}/a.json")


def test_nothing_is_written_into_an_archive(tmp_path: Path) -> None:
    archive = write_zip(tmp_path / "x.zip", {"a.json": "{}"})
    uri = f"{archive}/b.json"
    storage = storage_for(uri)

    for write in (
        lambda: storage.replace(uri, b""),
        lambda: storage.create(uri),
        lambda: storage.delete(uri),
        lambda: storage.rename(f"{archive}/a.json", uri),
    ):
        with pytest.raises(OSError, match="lies in an archive"):
            write()


# A file that is read in parts


@given(
    data=st.binary(max_size=300),
    block_bytes=st.integers(1, 64),
    reads=st.lists(st.tuples(st.integers(0, 320), st.integers(0, 100)), max_size=20),
)
def test_it_reads_as_a_file_does(
    data: bytes,
    block_bytes: int,
    reads: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("reader") / "file"
    path.write_bytes(b"before" + data + b"behind")
    version = str(path.stat().st_mtime_ns)
    reader = StorageReader(
        ImageRef(str(path), len(data), version, offset=6, whole=False), block_bytes=block_bytes
    )
    plain = io.BytesIO(data)

    for offset, size_bytes in reads:
        assert reader.read_at(offset, size_bytes) == data[offset : offset + size_bytes]
        assert reader.seek(offset) == plain.seek(offset)
        assert reader.read(size_bytes) == plain.read(size_bytes)
        assert reader.tell() == plain.tell()
    assert reader.read() == plain.read()
    assert reader.seek(-len(data), os.SEEK_END) == plain.seek(-len(data), os.SEEK_END)
    assert reader.read() == data
    with pytest.raises(OSError, match="cannot seek to -1"):
        reader.seek(-1)


def test_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    reader = StorageReader(ImageRef(str(path), 7, str(path.stat().st_mtime_ns)), block_bytes=1)
    assert reader.read_at(0, 1) == b"c"
    os.utime(path, ns=(1, 1))

    with pytest.raises(InputError, match="changed while it was read"):
        reader.read_at(3, 1)
    path.unlink()
    with pytest.raises(InputError, match="changed while it was read"):
        reader.read_at(3, 1)


def test_it_reads_no_zip_members(tmp_path: Path) -> None:
    ((_, file),) = list_root(str(write_zip(tmp_path / "a.zip", {"a.jpg": b"1"})))

    with pytest.raises(ValueError, match="read_bytes"):
        StorageReader(file)
