from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.storage import archives
from shardbeam.transforms.storage.archives import expand_root, fixed_folder, is_pattern, list_root
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.image_bytes import read_bytes
from shardbeam.transforms.storage.local import LocalStorage
from shardbeam.transforms.storage.reader import StorageReader
from tests.formats.archive_files import write_tar, write_zip

FILES = {
    "train/0001.jpg": b"one" * 100,
    "train/deep/0002.png": bytes(range(256)) * 9,
    "val/0003.jpg": b"",
    "readme.txt": b"hello",
}

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
_files = st.dictionaries(_names, st.binary(max_size=2000), max_size=8)


def contents(root: str | Path) -> dict[str, bytes]:
    """Everything below a root, read."""
    return {path: read_bytes(file) for path, file in list_root(str(root))}


def rejects(root: str | Path) -> dict[str, tuple[Reason, str]]:
    """What cannot be read below a root, and why."""
    found = {}
    for path, file in list_root(str(root)):
        try:
            read_bytes(file)
        except RejectedError as error:
            found[path] = (error.reason, error.detail)
    return found


def refusal(root: str | Path) -> InputError:
    with pytest.raises(InputError) as raised:
        list(list_root(str(root)))
    return raised.value


# Round trips through independent writers


@given(files=_files, method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
def test_zip_gives_back_what_was_put_in(
    files: dict[str, bytes], method: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_zip(tmp_path_factory.mktemp("zip") / "a.zip", files, method=method)

    assert contents(path) == files


@given(files=_files, tar_format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]))
def test_tar_gives_back_what_was_put_in(
    files: dict[str, bytes], tar_format: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write_tar(tmp_path_factory.mktemp("tar") / "a.tar", files, tar_format=tar_format)

    assert contents(path) == files


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("length", [99, 100, 101, 155, 200])
def test_tar_names_of_any_length(tmp_path: Path, tar_format: int, length: int) -> None:
    name = ("folder/" * 40)[: length - 50] + "/" + "n" * 49
    path = write_tar(tmp_path / "a.tar", {name: b"data"}, tar_format=tar_format)

    assert contents(path) == {name.replace("//", "/"): b"data"}


@pytest.mark.parametrize("options", [["--format=v7"], ["--format=ustar"], ["--format=gnu"], []])
def test_tar_of_the_tar_command(tmp_path: Path, options: list[str]) -> None:
    for name, data in FILES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    subprocess.run(
        ["tar", *options, "-cf", tmp_path / "a.tar", "-C", tmp_path / "in", "."], check=True
    )

    assert contents(tmp_path / "a.tar") == FILES


def test_real_zips(shared_data: Path) -> None:
    folder = shared_data / "datumaro" / "image_zip_dataset"

    for name in ("1.zip", "2.zip"):
        with zipfile.ZipFile(folder / name) as archive:
            expected = {each: archive.read(each) for each in archive.namelist()}
        assert contents(folder / name) == expected
    assert sorted(contents(folder / "1.zip")) == ["1.jpg"]


# What may stand for a root


@pytest.mark.parametrize("name", ["a.zip", "A.ZIP", "a.tar", "a.Tar"])
def test_a_folder_inside_an_archive(tmp_path: Path, name: str) -> None:
    write = write_zip if name.lower().endswith("zip") else write_tar
    path = write(tmp_path / name, FILES)

    assert sorted(contents(path)) == sorted(FILES)
    assert sorted(contents(f"{path}/train")) == ["0001.jpg", "deep/0002.png"]
    assert sorted(contents(f"{path}/train/deep/")) == ["0002.png"]
    error = refusal(f"{path}/trian")
    assert (error.uri, error.problem) == (
        str(path),
        "holds no folder 'trian'; it holds train, train/deep, val, .",
    )


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
        ("**/*.zip", ["sub/y.zip", "x.zip"]),
        ("s*/y.zip", ["sub/y.zip"]),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: list[str]) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "folder.tar").mkdir()
    (tmp_path / "notes.txt").touch()
    for name in ("0.tar", "1.tar", "10.tar"):
        write_tar(tmp_path / name, {"train/a.jpg": b"1"})
    for name in ("x.zip", "sub/y.zip"):
        write_zip(tmp_path / name, {"a.jpg": b"1"})

    root = f"{tmp_path}/{pattern}"

    assert is_pattern(root)
    assert [Path(uri).relative_to(tmp_path).as_posix() for uri in expand_root(root)] == expected


class _Bucket(LocalStorage):
    """Some objects, by their names."""

    def list(self, root: str) -> Iterator[StoredFile]:
        for name in ("0.tar", "1.tar", "10.tar", "x.zip", "sub/y.zip", "sub/deep/z.tar", "notes"):
            uri = f"gs://bucket/data/{name}"
            if uri.startswith(f"{root}/"):
                yield StoredFile(
                    path=uri.removeprefix(f"{root}/"), uri=uri, size_bytes=1, version="1"
                )

    def stat(self, uri: str) -> StoredFile | None:
        folder, _, _ = uri.rpartition("/")
        return next((file for file in self.list(folder) if file.uri == uri), None)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.tar", ["0.tar", "1.tar", "10.tar"]),
        ("?.tar", ["0.tar", "1.tar"]),
        ("[1-9].tar", ["1.tar"]),
        ("[!1].tar", ["0.tar"]),
        ("{0..1}.tar", ["0.tar", "1.tar"]),
        ("*", ["0.tar", "1.tar", "10.tar", "x.zip"]),
        ("s*/y.zip", ["sub/y.zip"]),
        ("sub/*", ["sub/y.zip"]),
        ("**/*.zip", ["sub/y.zip", "x.zip"]),
        ("sub/**", ["sub/deep/z.tar", "sub/y.zip"]),
        ("*.zip/images", ["x.zip/images"]),
    ],
)
def test_patterns_of_objects(
    monkeypatch: pytest.MonkeyPatch, pattern: str, expected: list[str]
) -> None:
    monkeypatch.setattr(archives, "storage_for", lambda uri: _Bucket())

    found = list(expand_root(f"gs://bucket/data/{pattern}"))

    assert found == [f"gs://bucket/data/{name}" for name in expected]


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("*.tar", "matches no .tar and no .zip"),
        ("{00..02}.tar", "there is no such archive"),
        ("{2..1}.tar", "the first number is greater"),
    ],
)
def test_patterns_that_match_nothing(tmp_path: Path, pattern: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        list(expand_root(f"{tmp_path}/{pattern}"))


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
    ("name", "mend"),
    [
        ("a.tar.gz", "gunzip a.tar.gz"),
        ("a.TGZ", "gunzip a.TGZ"),
        ("a.tar.bz2", "bunzip2"),
        ("a.tar.xz", "unxz"),
        ("a.tar.zst", "unzstd"),
        ("a.7z", "7z x"),
        ("a.rar", "unrar x"),
    ],
)
def test_archives_that_cannot_be_read_from_the_middle(tmp_path: Path, name: str, mend: str) -> None:
    (tmp_path / name).write_bytes(b"anything")

    error = refusal(tmp_path / name)

    assert error.uri == str(tmp_path / name)
    assert mend in error.problem
    assert refusal(tmp_path / name / "inner").problem == error.problem


def test_an_archive_as_a_file(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", FILES)

    ((name, file),) = list_root(str(path), open_archives=False)

    assert name == "a.tar"
    assert read_bytes(file) == path.read_bytes()


def test_names_never_lead_out_of_the_archive(tmp_path: Path) -> None:
    names = ["../../a.jpg", "/etc/a.jpg", "./b/./c.jpg", "b//d.jpg"]
    expected = {"../../a.jpg", "/etc/a.jpg", "b/c.jpg", "b/d.jpg"}

    for path in (
        write_tar(tmp_path / "a.tar", dict.fromkeys(names, b"x")),
        write_zip(tmp_path / "a.zip", dict.fromkeys(names, b"x")),
    ):
        assert set(contents(path)) == expected
        assert {file.uri for _, file in list_root(str(path))} == {str(path)}


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_an_archive_that_changes_after_it_was_listed(tmp_path: Path, name: str) -> None:
    write = write_zip if name == "a.zip" else write_tar
    path = write(tmp_path / name, FILES)
    ((_, file), *_) = list_root(str(path))
    os.utime(path, ns=(1, 1))

    with pytest.raises(RejectedError) as raised:
        read_bytes(file)

    assert raised.value.reason is Reason.CHANGED_SINCE_LISTING


# Zip


def test_zip_is_listed_without_reading_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(
        tmp_path / "a.zip",
        {f"{number:05}.jpg": random.Random(number).randbytes(2000) for number in range(2000)},
    )
    reads = count_reads(monkeypatch)

    files = [file for _, file in list_root(str(path))]

    assert len(files) == 2000
    assert sum(reads) < path.stat().st_size / 10
    assert len(reads) < 6
    reads.clear()
    assert len(read_bytes(files[7])) == 2000
    assert len(reads) == 1


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by the length of each read."""
    reads: list[int] = []
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
        reads.append(len(data))
        return data

    monkeypatch.setattr(LocalStorage, "read", counting)
    return reads


def test_zip_members_with_long_local_headers(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        member = zipfile.ZipInfo("a.jpg")
        # Only the local header has it.
        member.extra = b"\x99\x99" + (300).to_bytes(2, "little") + bytes(300)
        archive.writestr(member, b"content" * 50)
        member.extra = b""

    assert contents(path) == {"a.jpg": b"content" * 50}


class _Unseekable(io.RawIOBase):
    """A pipe: what is written to it cannot be mended afterwards."""

    def __init__(self, file: io.BufferedWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        return self._file.write(data)


def test_zip_with_data_descriptors(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with path.open("wb") as file, zipfile.ZipFile(_Unseekable(file), "w", 8) as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    assert b"PK\x07\x08" in path.read_bytes()

    assert contents(path) == FILES


def test_zip64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.zip"
    # What is beyond these limits is written as if it were beyond 4 GB.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in FILES.items():
            archive.writestr(name, data)
    assert b"PK\x06\x06" in path.read_bytes()

    assert contents(path) == FILES


def test_zip_with_something_before_and_behind(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", FILES)
    data = path.read_bytes()

    path.write_bytes(b"#!/bin/sh\n" * 99 + data)
    assert contents(path) == FILES
    path.write_bytes(data + b"appended")
    assert contents(path) == FILES
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jpg", b"1")
        archive.comment = b"PK\x05\x06" + bytes(40)
    assert contents(path) == {"a.jpg": b"1"}


def test_zip_folders_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/", b"")
        archive.writestr("folder/a.jpg", b"1")

    assert contents(path) == {"folder/a.jpg": b"1"}


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_members_of_other_methods_are_rejects(tmp_path: Path, method: int) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.jpg": b"1" * 100}, method=method)

    reason, detail = rejects(path)["a.jpg"]

    assert reason is Reason.IMAGE_UNREADABLE
    assert detail.startswith(f"compressed with zip's method {method}")


def _changed(path: Path, signature: bytes, offset: int, value: bytes) -> Path:
    """Changes a field of the first structure with a signature."""
    data = bytearray(path.read_bytes())
    begin = data.index(signature) + offset
    data[begin : begin + len(value)] = value
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("offset", "value", "detail"),
    [
        (8, b"\x01\x00", "encrypted"),
        (8, b"\x20\x00", "patch"),
        (16, b"\0\0\0\0", "checksum"),
        (20, b"\x01\0\0\0", "two sizes"),
        (42, b"\xff\xff\xff\x7f", "outside of the archive"),
        (42, b"\x01\0\0\0", "no file where"),
        (34, b"\x01\x00", "another part"),
    ],
)
def test_zip_members_that_cannot_be_read_are_rejects(
    tmp_path: Path, offset: int, value: bytes, detail: str
) -> None:
    path = write_zip(tmp_path / "a.zip", FILES, method=zipfile.ZIP_STORED)
    _changed(path, b"PK\x01\x02", offset, value)

    ((name, (reason, found)),) = rejects(path).items()

    assert (name, reason) == ("train/0001.jpg", Reason.IMAGE_UNREADABLE)
    assert detail in found


def test_zip_bomb(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"a.jpg": bytes(50_000_000)})
    # It says that it is small.
    _changed(path, b"PK\x01\x02", 24, (1000).to_bytes(4, "little"))

    ((_, detail),) = rejects(path).values()

    assert detail == "its archive announces 1000 bytes, it holds another number"


def test_zip_symbolic_links_are_rejects(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("link.jpg")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")

    assert "symbolic link" in rejects(path)["link.jpg"][1]


@pytest.mark.parametrize(
    ("raw", "is_utf8", "host", "name"),
    [
        ("ü.jpg".encode(), True, 3, "ü.jpg"),
        # As macOS writes it.
        ("ü.jpg".encode(), False, 3, "ü.jpg"),
        (b"\x81.jpg", False, 3, "ü.jpg"),
        (b"\x81.jpg", True, 3, "\udc81.jpg"),
        (b"a\\b.jpg", False, 0, "a/b.jpg"),
        (b"a\\b.jpg", False, 3, "a\\b.jpg"),
        (b"a/b\\c.jpg", False, 0, "a/b\\c.jpg"),
        (b"a\0b.jpg", False, 3, "a\\x00b.jpg"),
    ],
)
def test_zip_names(tmp_path: Path, raw: bytes, is_utf8: bool, host: int, name: str) -> None:
    path = write_zip(tmp_path / "a.zip", {"n" * len(raw): b"1"}, method=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"n" * len(raw), raw))
    _changed(path, b"PK\x01\x02", 5, bytes([host]))
    _changed(path, b"PK\x01\x02", 8, (is_utf8 << 11).to_bytes(2, "little"))

    assert [found for found, _ in list_root(str(path))] == [name]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "no zip archive, or a truncated one"),
        (b"<html>not found</html>", "no zip archive, or a truncated one"),
        (b"PK\x05\x06" + bytes(18), None),
        (b"PK\x05\x06\x01\0\x01\0" + bytes(14), "split into several"),
        (b"PK\x05\x06" + bytes(4) + b"\x01\0\x01\0" + bytes(10), "announces 1 entries and lists 0"),
        (b"PK\x05\x06" + bytes(8) + b"\xff\0\0\0" + bytes(6), "before the file"),
    ],
)
def test_what_is_no_zip(tmp_path: Path, content: bytes, problem: str | None) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(content)

    if problem is None:
        assert contents(path) == {}
    else:
        assert problem in refusal(path).problem


# Tar


def test_tar_is_listed_without_reading_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{number}.jpg": bytes(500_000) for number in range(20)})
    reads = count_reads(monkeypatch)

    assert len(list(list_root(str(path)))) == 20
    assert sum(reads) < path.stat().st_size / 5


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
    assert rejects(path)["gone.jpg"][1] == "a link to 'a/2.jpg', which is no file of the archive"


def test_tar_sparse_files_are_rejects(tmp_path: Path) -> None:
    (tmp_path / "holes.jpg").write_bytes(b"")
    os.truncate(tmp_path / "holes.jpg", 1 << 20)
    (tmp_path / "whole.jpg").write_bytes(b"1")
    for options in (["--format=gnu"], ["--format=posix"]):
        path = tmp_path / "a.tar"
        names = ["holes.jpg", "whole.jpg"]
        subprocess.run(["tar", "-S", *options, "-cf", path, *names], check=True, cwd=tmp_path)

        assert [name for name, _ in list_root(str(path))] == names
        ((name, (_, detail)),) = rejects(path).items()
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


def test_tars_in_one_file_are_read_as_one(tmp_path: Path) -> None:
    one = write_tar(tmp_path / "1.tar", {"1.jpg": b"1"}).read_bytes()
    two = write_tar(tmp_path / "2.tar", {"2.jpg": b"2"}).read_bytes()
    path = tmp_path / "a.tar"
    path.write_bytes(one + two)

    assert contents(path) == {"1.jpg": b"1", "2.jpg": b"2"}


def test_tar_names_that_are_no_utf8_are_kept_for_the_listing_to_reject(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"n\udcff.jpg": b"1"}, tar_format=tarfile.GNU_FORMAT)

    assert list(contents(path)) == ["n\udcff.jpg"]


@pytest.mark.parametrize("name", ["a.zip", "a.tar"])
def test_truncated_archives_never_pass(tmp_path: Path, name: str) -> None:
    write = write_zip if name == "a.zip" else write_tar
    path = write(tmp_path / name, FILES)
    data = path.read_bytes()
    # Of the end mark, which is padded to 10 KB, a block will do.
    end = len(data) if name == "a.zip" else len(data.rstrip(b"\0")) // 512 * 512 + 1024

    for length in range(0, end, 101):
        path.write_bytes(data[:length])
        assert refusal(path).uri == str(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "too short"),
        (b"\x1f\x8b" + bytes(1000), "compressed with gzip"),
        (b"BZh9" + bytes(1000), "bunzip2"),
        (b"PK\x03\x04" + bytes(1000), "no tar"),
        (b"<html>" * 200, "no tar"),
    ],
)
def test_what_is_no_tar(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(content)

    error = refusal(path)

    assert error.place == "byte 0"
    assert problem in error.problem


def test_a_damaged_tar_says_where(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"1", "2.jpg": b"2"})
    data = bytearray(path.read_bytes())
    data[1024 + 5] ^= 1
    path.write_bytes(data)

    assert refusal(path).place == "byte 1024"


# StorageReader


@given(
    data=st.binary(max_size=300),
    block_bytes=st.integers(1, 64),
    reads=st.lists(st.tuples(st.integers(0, 320), st.integers(0, 100)), max_size=20),
)
def test_storage_reader_reads_as_a_file_does(
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
    assert io.BufferedReader(reader).read() == plain.read()


def test_storage_reader_of_a_file_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    reader = StorageReader(ImageRef(str(path), 7, str(path.stat().st_mtime_ns)), block_bytes=1)
    assert reader.read_at(0, 1) == b"c"
    os.utime(path, ns=(1, 1))

    with pytest.raises(InputError, match="changed while it was being read"):
        reader.read_at(3, 1)
    path.unlink()
    with pytest.raises(InputError, match="changed while it was being read"):
        reader.read_at(3, 1)


def test_storage_reader_reads_no_zip_members(tmp_path: Path) -> None:
    ((_, file),) = list_root(str(write_zip(tmp_path / "a.zip", {"a.jpg": b"1"})))

    with pytest.raises(ValueError, match="read_bytes"):
        StorageReader(file)
