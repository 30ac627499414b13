from __future__ import annotations

import io
import os
import random
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.storage.archives import open as archives
from shardbeam.transforms.storage.archives.open import (
    expand_root,
    fixed_folder,
    is_pattern,
    list_root,
)
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.image_bytes import read_bytes
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.archive_files import write_files, write_tar, write_zip

FILES = {
    "train/0001.jpg": b"one" * 100,
    "train/deep/0002.png": bytes(range(256)) * 9,
    "val/0003.jpg": b"",
    "readme.txt": b"hello",
}
WRITERS: Mapping[str, Callable[[Path, Mapping[str, bytes]], Path]] = {
    "stored.zip": partial(write_zip, method=zipfile.ZIP_STORED),
    "deflated.zip": partial(write_zip, method=zipfile.ZIP_DEFLATED),
    "gnu.tar": partial(write_tar, tar_format=tarfile.GNU_FORMAT),
    "pax.tar": partial(write_tar, tar_format=tarfile.PAX_FORMAT),
}
KINDS = ("deflated.zip", "pax.tar")

_part = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"),
    min_size=1,
    max_size=30,
).filter(lambda part: part not in (".", "..") and part == part.strip())
_names = (
    st.lists(_part, min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda name: not name.lower().endswith(".tar"))
)


def contents(root: str | Path) -> dict[str, bytes]:
    """Everything below a root, read."""
    return {path: read_bytes(file) for path, file in list_root(str(root))}


def rejects(root: str | Path) -> dict[str, str]:
    """Returns the files below a root that cannot be read, and why."""
    found = {}
    for path, file in list_root(str(root)):
        try:
            read_bytes(file)
        except RejectedError as error:
            found[path] = f"{error.reason.value}: {error.detail}"
    return found


def refusal(root: str | Path) -> InputError:
    with pytest.raises(InputError) as raised:
        list(list_root(str(root)))
    return raised.value


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by the length of each read."""
    lengths: list[int] = []
    read = LocalStorage.read

    def counting(
        self: LocalStorage,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        data = read(self, uri, offset=offset, size_bytes=size_bytes, version=version)
        lengths.append(len(data))
        return data

    monkeypatch.setattr(LocalStorage, "read", counting)
    return lengths


# Both kinds


@pytest.mark.parametrize("name", WRITERS)
@given(files=st.dictionaries(_names, st.binary(max_size=2000), max_size=8))
def test_an_archive_gives_back_what_was_put_in(
    name: str, files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = WRITERS[name](tmp_path_factory.mktemp("archive") / name, files)

    assert contents(path) == files


@pytest.mark.parametrize("name", [*KINDS, "A.ZIP", "a.Tar"])
def test_a_folder_inside_an_archive(tmp_path: Path, name: str) -> None:
    path = (write_zip if name.lower().endswith("zip") else write_tar)(tmp_path / name, FILES)

    assert sorted(contents(path)) == sorted(FILES)
    assert sorted(contents(f"{path}/train")) == ["0001.jpg", "deep/0002.png"]
    assert sorted(contents(f"{path}/train/deep/")) == ["0002.png"]
    error = refusal(f"{path}/trian")
    assert (error.uri, error.problem) == (
        str(path),
        "has no folder 'trian'; its folders: train, train/deep, val, .",
    )


@pytest.mark.parametrize("name", KINDS)
def test_names_never_lead_out_of_the_archive(tmp_path: Path, name: str) -> None:
    names = ["../../a.jpg", "/etc/a.jpg", "./b/./c.jpg", "b//d.jpg"]
    path = WRITERS[name](tmp_path / name, dict.fromkeys(names, b"x"))

    assert set(contents(path)) == {"../../a.jpg", "/etc/a.jpg", "b/c.jpg", "b/d.jpg"}
    assert {file.uri for _, file in list_root(str(path))} == {str(path)}


@pytest.mark.parametrize("name", KINDS)
def test_an_archive_that_changes_after_it_was_listed(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, FILES)
    ((_, file), *_) = list_root(str(path))
    os.utime(path, ns=(1, 1))

    with pytest.raises(RejectedError) as raised:
        read_bytes(file)

    assert raised.value.reason is Reason.CHANGED_SINCE_LISTING


@pytest.mark.parametrize("name", KINDS)
def test_truncated_archives_never_pass(tmp_path: Path, name: str) -> None:
    path = WRITERS[name](tmp_path / name, FILES)
    data = path.read_bytes()
    # A tar is padded to 10 KB, but the two blocks of its end mark are enough.
    end = len(data) if name.endswith("zip") else len(data.rstrip(b"\0")) // 512 * 512 + 1536

    for length in (*range(0, end, 101), end - 512, end - 1):
        path.write_bytes(data[:length])
        assert refusal(path).uri == str(path)


def test_an_archive_is_listed_without_reading_its_members(tmp_path: Path, reads: list[int]) -> None:
    tar = write_tar(tmp_path / "a.tar", {f"{number}.jpg": bytes(500_000) for number in range(20)})
    files = {f"{number:05}.jpg": random.Random(number).randbytes(2000) for number in range(2000)}
    zipped = write_zip(tmp_path / "a.zip", files)

    assert len(list(list_root(str(tar)))) == 20
    assert sum(reads) < tar.stat().st_size / 5
    reads.clear()
    listed = [file for _, file in list_root(str(zipped))]
    assert len(listed) == 2000
    # The end, and the directory.
    assert len(reads) == 2
    assert sum(reads) < zipped.stat().st_size / 10
    reads.clear()
    assert len(read_bytes(listed[7])) == 2000
    assert len(reads) == 1


# Roots


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    assert "no such archive" in refusal(tmp_path / "a.zip").problem
    assert "no such archive" in refusal(tmp_path / "a.tar" / "train").problem
    assert list(list_root(str(tmp_path / "folder"))) == []


def test_a_folder_may_be_named_like_an_archive(tmp_path: Path) -> None:
    folder = tmp_path / "a.zip" / "b [v2]"
    folder.mkdir(parents=True)
    (folder / "1.jpg").write_bytes(b"1")

    assert contents(tmp_path / "a.zip") == {"b [v2]/1.jpg": b"1"}
    assert not is_pattern(str(folder))
    assert list(expand_root(str(folder))) == [str(folder)]
    assert contents(folder) == {"1.jpg": b"1"}


def test_an_archive_as_a_file(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES)

    ((name, file),) = list_root(str(path), open_archives=False)

    assert name == "a.tar"
    assert read_bytes(file) == path.read_bytes()


class _Bucket(LocalStorage):
    """Objects of the names that some files have, as their folder is `gs://bucket`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self, root: str) -> Iterator[StoredFile]:
        for file in LocalStorage().list(str(self.folder)):
            uri = f"gs://bucket/{file.path}"
            if uri.startswith(f"{root}/"):
                yield StoredFile(uri.removeprefix(f"{root}/"), uri, file.size_bytes, "1")

    def stat(self, uri: str) -> StoredFile | None:
        folder, _, _ = uri.rpartition("/")
        return next((file for file in self.list(folder) if file.uri == uri), None)


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.tar", ["0.tar", "1.tar", "10.tar"]),
        ("?.tar", ["0.tar", "1.tar"]),
        ("[1-9].tar", ["1.tar"]),
        ("[!1].tar", ["0.tar"]),
        ("{0..1}.tar", ["0.tar", "1.tar"]),
        ("{1..1}{0..0}.tar", ["10.tar"]),
        ("*", ["0.tar", "1.tar", "10.tar", "x.zip"]),
        ("*.tar/train", ["0.tar/train", "1.tar/train", "10.tar/train"]),
        ("s*/y.zip", ["sub/y.zip"]),
        ("sub/*", ["sub/y.zip"]),
        ("**/*.zip", ["sub/y.zip", "x.zip"]),
        ("sub/**", ["sub/deep/z.tar", "sub/y.zip"]),
        ("n*.tar", "matches no .tar or .zip file"),
        ("{00..02}.tar", "there is no such archive"),
        ("{2..1}.tar", "the first number is greater"),
    ],
)
def test_patterns(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    pattern: str,
    expected: list[str] | str,
    place: str,
) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / "folder.tar").mkdir()
    (tmp_path / "notes.txt").touch()
    for name in ("0.tar", "1.tar", "10.tar", "x.zip", "sub/y.zip", "sub/deep/z.tar"):
        (tmp_path / name).touch()
    top = str(tmp_path)
    if place == "bucket":
        top = "gs://bucket"
        monkeypatch.setattr(archives, "storage_for", lambda uri: _Bucket(tmp_path))
    root = f"{top}/{pattern}"

    assert is_pattern(root)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            list(expand_root(root))
    else:
        assert list(expand_root(root)) == [f"{top}/{name}" for name in expected]


@pytest.mark.parametrize(
    ("root", "folder"),
    [
        ("/data/a.tar", "/data"),
        ("/data/*.tar", "/data"),
        ("/data/*/a.tar", "/data"),
        ("/data/x{0..9}/a/b.tar", "/data"),
        ("gs://bucket/data/a-*.tar", "gs://bucket/data"),
    ],
)
def test_fixed_folder(root: str, folder: str) -> None:
    assert fixed_folder(root) == folder


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.tar.gz", b"anything", "gunzip a.tar.gz"),
        ("a.TGZ", b"anything", "gunzip a.TGZ"),
        ("a.tar.bz2", b"anything", "bunzip2"),
        ("a.tar.xz", b"anything", "unxz"),
        ("a.tar.zst", b"anything", "unzstd"),
        ("a.7z", b"anything", "7z x"),
        ("a.rar", b"anything", "unrar x"),
        ("a.tar", b"", "byte 0: not a tar archive: the file is too short"),
        ("a.tar", b"\x1f\x8b" + bytes(1000), "byte 0: the tar is compressed with gzip"),
        ("a.tar", b"BZh9" + bytes(1000), "bunzip2"),
        ("a.tar", b"PK\x03\x04" + bytes(1000), "byte 0: no tar header here"),
        ("a.tar", b"<html>" * 200, "byte 0: no tar header here"),
        ("a.zip", b"", "not a zip archive, or a truncated or damaged one"),
        ("a.zip", b"<html>not found</html>", "not a zip archive, or a truncated or damaged one"),
        ("a.zip", b"PK\x05\x06\x01\0\x01\0" + bytes(14), "split into several"),
        ("a.zip", b"PK\x05\x06" + bytes(4) + b"\x01\0\x01\0" + bytes(10), "announces 1 entries"),
        ("a.zip", b"PK\x05\x06" + bytes(8) + b"\xff\0\0\0" + bytes(6), "truncated or damaged"),
    ],
)
def test_what_is_no_archive_that_can_be_read(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)

    assert problem in str(refusal(tmp_path / name))
    assert refusal(tmp_path / name / "inner").problem == refusal(tmp_path / name).problem


# Zip


class _Unseekable(io.RawIOBase):
    """A pipe: bytes that were written to it cannot be changed."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        return self._file.write(data)


@pytest.mark.parametrize("kind", ["descriptors", "zip64", "long local headers", "folders", "empty"])
def test_zip_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / "a.zip"
    files = {} if kind == "empty" else FILES
    if kind == "zip64":
        # Values beyond these limits are written as if they were beyond 4 GB.
        monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
        monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    with path.open("wb") as file:
        target = _Unseekable(file) if kind == "descriptors" else file
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            if kind == "folders":
                archive.writestr("train/", b"")
            for name, data in files.items():
                member = zipfile.ZipInfo(name)
                if kind == "long local headers":
                    # Only the local header has it.
                    member.extra = b"\x99\x99" + (300).to_bytes(2, "little") + bytes(300)
                archive.writestr(member, data)
                member.extra = b""

    data = path.read_bytes()
    assert (b"PK\x07\x08" in data, b"PK\x06\x06" in data) == (
        kind == "descriptors",
        kind == "zip64",
    )
    assert contents(path) == files
    path.write_bytes(b"#!/bin/sh\n" * 99 + data)
    assert contents(path) == files
    path.write_bytes(data + b"appended")
    assert contents(path) == files


def test_a_zip_with_a_huge_directory_is_refused_unread(tmp_path: Path, reads: list[int]) -> None:
    path = tmp_path / "a.zip"
    size = (256 << 20) + 1
    with path.open("wb") as file:
        file.seek(size)
        file.write(b"PK\x05\x06" + bytes(8) + size.to_bytes(4, "little") + bytes(6))

    assert "the zip's directory has 268,435,457 bytes" in refusal(path).problem
    assert sum(reads) < 1 << 20


def test_a_zip_whose_comment_imitates_its_end(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", FILES)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"PK\x05\x06" + bytes(40)

    assert "several end records" in refusal(path).problem


def _changed(path: Path, offset: int, value: bytes) -> Path:
    """Changes a field of the first entry of a zip's directory."""
    data = bytearray(path.read_bytes())
    begin = data.index(b"PK\x01\x02") + offset
    data[begin : begin + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("offset", "value", "detail"),
    [
        (8, b"\x01\x00", "encrypted"),
        (8, b"\x20\x00", "patch"),
        (10, b"\x0c\x00", "compressed with zip's method 12 (BZIP2)"),
        (10, b"\x63\x00", "compressed with zip's method 99;"),
        (16, b"\0\0\0\0", "checksum"),
        (20, b"\x01\0\0\0", "two sizes"),
        (42, b"\xff\xff\xff\x7f", "outside the archive"),
        (42, b"\x01\0\0\0", "no file at the place"),
        (34, b"\x01\x00", "another part"),
        # Made on Unix; a symbolic link there.
        (38, (0o120777 << 16).to_bytes(4, "little"), "a symbolic link"),
    ],
)
def test_zip_members_that_cannot_be_read_are_rejects(
    tmp_path: Path, offset: int, value: bytes, detail: str
) -> None:
    path = write_zip(tmp_path / "a.zip", FILES, method=zipfile.ZIP_STORED)
    _changed(path, offset, value)

    ((name, found),) = rejects(path).items()

    assert name == "train/0001.jpg"
    assert found.startswith("image_unreadable: ")
    assert detail in found


def test_zip_bomb(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.jpg": bytes(50_000_000)})
    # It says that it is small.
    _changed(path, 24, (1000).to_bytes(4, "little"))

    assert rejects(path) == {
        "a.jpg": "image_unreadable: its archive announces 1000 bytes, but holds more or fewer"
    }


@pytest.mark.parametrize(
    ("raw", "is_utf8", "host", "name"),
    [
        ("ü.jpg".encode(), True, 3, "ü.jpg"),
        # As macOS writes it.
        ("ü.jpg".encode(), False, 3, "ü.jpg"),
        (b"\x81.jpg", False, 3, "ü.jpg"),
        (b"a\\b.jpg", False, 0, "a/b.jpg"),
        # Some packers on Windows name Unix as their system.
        (b"a\\b.jpg", False, 3, "a/b.jpg"),
        (b"a/b\\c.jpg", False, 0, "a/b/c.jpg"),
        (b"a/b\\c.jpg", False, 3, "a/b\\c.jpg"),
        (b"..\\..\\a.jpg", True, 0, "../../a.jpg"),
        (b"C:\\a.jpg", True, 0, "C:/a.jpg"),
        (b".\\a\\\\b.jpg", True, 0, "a/b.jpg"),
        # The second byte of a character in Shift-JIS is that of a backslash.
        (b"a/\x95\\.jpg", False, 0, "a/ò\\.jpg"),
        (b"a\0b.jpg", False, 3, "a\\x00b.jpg"),
        (b"\x81.jpg", True, 3, "\udc81.jpg"),
    ],
)
def test_zip_names(tmp_path: Path, raw: bytes, is_utf8: bool, host: int, name: str) -> None:
    path = write_zip(tmp_path / "a.zip", {"n" * len(raw): b"1"}, method=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"n" * len(raw), raw))
    _changed(path, 5, bytes([host]))
    _changed(path, 8, (is_utf8 << 11).to_bytes(2, "little"))

    assert [found for found, _ in list_root(str(path))] == [name]


def test_names_of_a_zip_with_backslashes(tmp_path: Path) -> None:
    names = ["cat\\", "cat\\1.jpg", "cat\\old\\2.jpg", "dog\\1.jpg", "read me.txt"]
    path = write_zip(tmp_path / "a.zip", {name: name[-5:] for name in names})
    both = tmp_path / "both.zip"
    with zipfile.ZipFile(both, "w") as archive:
        for name in ("cat/1.jpg", "cat\\1.jpg"):
            member = zipfile.ZipInfo(name)
            # Windows.
            member.create_system = 0
            archive.writestr(member, b"1")

    assert sorted(contents(path)) == ["cat/1.jpg", "cat/old/2.jpg", "dog/1.jpg", "read me.txt"]
    assert contents(f"{path}/cat") == {"1.jpg": b"1.jpg", "old/2.jpg": b"2.jpg"}
    assert [name for name, _ in list_root(str(both))] == ["cat/1.jpg", "cat/1.jpg"]


# Tar


@pytest.mark.parametrize(
    "options",
    [["--format=v7"], ["--format=ustar"], ["--format=gnu"], ["--format=gnu", "--incremental"], []],
)
def test_tar_of_the_tar_command(tmp_path: Path, options: list[str]) -> None:
    write_files(tmp_path / "in", FILES)
    subprocess.run(
        ["tar", *options, "-cf", tmp_path / "a.tar", "-C", tmp_path / "in", "."], check=True
    )

    assert contents(tmp_path / "a.tar") == FILES


def test_tar_links_are_the_files_that_they_lead_to(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    links = {
        "b/soft.jpg": (tarfile.SYMTYPE, "../a/1.jpg"),
        "b/far.jpg": (tarfile.SYMTYPE, "soft.jpg"),
        "b/hard.jpg": (tarfile.LNKTYPE, "a/1.jpg"),
    }
    broken = {
        "out.jpg": (tarfile.SYMTYPE, "/etc/passwd"),
        "up.jpg": (tarfile.SYMTYPE, "../../a/1.jpg"),
        "loop.jpg": (tarfile.SYMTYPE, "loop.jpg"),
        "gone.jpg": (tarfile.LNKTYPE, "a/2.jpg"),
    }
    with tarfile.open(path, "w") as archive:
        for name, (kind, target) in {**links, **broken}.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
        member = tarfile.TarInfo("./a/1.jpg")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"one"))
        for kind in (tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo("no file")
            member.type = kind
            archive.addfile(member)

    found = dict(list_root(str(path)))

    assert sorted(found) == sorted(["a/1.jpg", *links, *broken])
    assert {read_bytes(found[name]) for name in links} == {b"one"}
    assert sorted(rejects(path)) == sorted(broken)
    assert "a link to 'a/2.jpg', which is not a file of the archive" in rejects(path)["gone.jpg"]


@pytest.mark.parametrize("tar_format", ["gnu", "posix"])
def test_tar_sparse_files_are_rejects(tmp_path: Path, tar_format: str) -> None:
    (tmp_path / "holes.jpg").write_bytes(b"")
    os.truncate(tmp_path / "holes.jpg", 1 << 20)
    (tmp_path / "whole.jpg").write_bytes(b"1")
    path = tmp_path / "a.tar"
    names = ["holes.jpg", "whole.jpg"]
    subprocess.run(
        ["tar", "-S", f"--format={tar_format}", "-cf", path, *names], check=True, cwd=tmp_path
    )

    assert [name for name, _ in list_root(str(path))] == names
    ((name, detail),) = rejects(path).items()
    assert (name, "sparse" in detail) == ("holes.jpg", True)


def test_tars_inside_a_tar_are_folders(tmp_path: Path) -> None:
    inner = write_tar(tmp_path / "inner.tar", {"1.jpg": b"1", "2.jpg": b"22"}).read_bytes()
    path = write_tar(tmp_path / "a.tar", {"x/n01.tar": inner, "n02.tar": inner, "3.jpg": b"3"})

    assert contents(path) == {
        **{"x/n01/1.jpg": b"1", "x/n01/2.jpg": b"22"},
        **{"n02/1.jpg": b"1", "n02/2.jpg": b"22", "3.jpg": b"3"},
    }

    path = write_tar(tmp_path / "a.tar", {"n01.tar": inner[:700]})
    error = refusal(path)
    assert (error.uri, error.place) == (str(path), "n01.tar, byte 1024")


def test_tar_names_that_are_no_utf8_are_kept_for_the_listing_to_reject(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"n\udcff.jpg": b"1"}, tar_format=tarfile.GNU_FORMAT)

    assert list(contents(path)) == ["n\udcff.jpg"]


def _header(kind: bytes = tarfile.REGTYPE, *, size_bytes: int = 0) -> bytes:
    header = bytearray(tarfile.TarInfo("3.jpg").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (size_bytes % (1 << 96)).to_bytes(12, "big")
    header[124] |= 0x80
    header[156:157] = kind
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.parametrize(
    ("tail", "byte", "problem"),
    [
        (b"x" * 512 + bytes(1024), 2048, "no tar header here"),
        # Too short for a header.
        (b"x" * 100, 2048, "its end mark is missing"),
        # Zeros in the middle, and an archive behind an archive.
        (bytes(512) + _header() + bytes(1024), 2560, "data follows the end"),
        (bytes(4096) + _header() + bytes(1024), 6144, "data follows the end"),
        (bytes(512), 2048, "its end mark is missing"),
        (b"", 2048, "its end mark is missing"),
        (_header(size_bytes=5000) + bytes(1024), 2048, "this member ends at byte 7560"),
        (_header(size_bytes=-1) + bytes(1024), 2048, "damaged"),
        (_header(tarfile.GNUTYPE_LONGNAME, size_bytes=1 << 40), 2048, "damaged"),
        (_header(tarfile.XHDTYPE, size_bytes=-512) + bytes(1024), 2048, "damaged"),
        (_header(tarfile.XHDTYPE) + b"x" * 512 + bytes(1024), 2048, "damaged"),
        (_header(tarfile.XHDTYPE) * 2000, 2048, "damaged"),
        (_header(b"M") + bytes(1024), 2048, "several volumes"),
    ],
)
def test_a_damaged_tar_says_where(tmp_path: Path, tail: bytes, byte: int, problem: str) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"1", "2.jpg": b"2"})
    path.write_bytes(path.read_bytes()[:2048] + tail)

    error = refusal(path)

    assert error.place == f"byte {byte}"
    assert problem in error.problem


def test_listing_a_tar_keeps_no_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{number}.jpg": b"" for number in range(100)})
    opened: list[tarfile.TarFile] = []
    following = tarfile.TarFile.next

    def next_member(self: tarfile.TarFile) -> tarfile.TarInfo | None:
        opened.append(self)
        return following(self)

    monkeypatch.setattr(tarfile.TarFile, "next", next_member)

    for _ in list_root(str(path)):
        assert not any(isinstance(value, list) and value for value in vars(opened[-1]).values())
    assert len(opened) > 100


@pytest.mark.parametrize("name", ["x.tar", "x.zip"])
def test_a_name_that_no_system_takes_is_a_reject_with_its_extension(
    tmp_path: Path, name: str
) -> None:
    write = write_zip if name.endswith("zip") else write_tar
    long = "n" * 5000
    write(tmp_path / name, {f"a/{long}.jpg": b"1", "b.jpg": b"2"})
    (key,) = rejects(tmp_path / name)
    assert len(key) < 300
    assert (key[:4], key[-4:]) == ("a/nn", ".jpg")


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_may_have_the_size_of_its_file(tmp_path: Path, kind: bytes) -> None:
    """Some programs write it, though no data follows."""
    link = tarfile.TarInfo("b.jpg")
    link.type, link.linkname, link.size = kind, "a.jpg", 1_000_000
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
        tar.addfile(link)

    assert contents(tmp_path / "a.tar") == {"a.jpg": b"", "b.jpg": b""}


@pytest.mark.slow
def test_a_tar_with_endless_zeros_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    write_tar(path, {"a.jpg": b"1"})
    os.truncate(path, 30 << 30)
    assert "1 GiB of zeros follows the end of the tar" in refusal(path).problem


@pytest.mark.parametrize("times", [b"", b"14000000000\0" * 2], ids=["plain", "with times"])
def test_the_longest_name_of_a_header_of_gnu(times: bytes, tmp_path: Path) -> None:
    """Times stand where the ustar format has the first part of a name."""
    member = tarfile.TarInfo("a/" + "b" * 94 + ".jpg")
    member.size = 3
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[345 : 345 + len(times)] = times
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "gnu.tar"
    path.write_bytes(bytes(header) + b"one".ljust(512, b"\0") + b"\0" * 1024)
    assert contents(path) == {member.name: b"one"}


def test_a_name_in_two_parts_of_a_header_of_ustar(tmp_path: Path) -> None:
    name = "a" * 90 + "/" + "b" * 90 + ".jpg"
    path = write_tar(tmp_path / "ustar.tar", {name: b"one"}, tar_format=tarfile.USTAR_FORMAT)
    assert contents(path) == {name: b"one"}


_PEAK = """
import resource, sys
from shardbeam.transforms.storage.archives.open import list_root
from shardbeam.transforms.storage.image_bytes import read_bytes
((_, ref),) = list_root(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert len(read_bytes(ref)) == 200_000_000
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has other units")
def test_a_member_takes_about_the_memory_of_its_content(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.jpg", bytes(200_000_000))
    result = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path / "a.zip")],
        check=True,
        capture_output=True,
        text=True,
    )
    # zlib alone would take twice as much.
    assert int(result.stdout) < 300_000_000
