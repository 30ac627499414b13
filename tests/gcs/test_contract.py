"""Behaviour that all storages share: on disk, in Google Cloud Storage, and with fsspec."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import find
from shardbeam.transforms.storage.base import ChangedError, Storage, StoredFile
from shardbeam.transforms.storage.find import expand_pattern, storage_for
from shardbeam.transforms.storage.fsspec import FsspecStorage
from shardbeam.transforms.storage.gcs import storage as gcs_storage
from shardbeam.transforms.storage.gcs.storage import GcsStorage
from shardbeam.transforms.storage.local import LocalStorage
from shardbeam.transforms.storage.s3 import S3Storage
from tests.support import gcs_memory as memory

DATA = bytes(range(256)) * 4


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stand-in for s3fs."""
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", memory.S3FileSystem)
    find._storage_by_scheme.cache_clear()
    yield
    find._storage_by_scheme.cache_clear()


@pytest.fixture(params=["local", "gcs", "memory", "folders", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A root of each kind, with nothing below."""
    if request.param == "local":
        return str(tmp_path / "root")
    if request.param == "gcs":
        monkeypatch.setattr(gcs_storage, "PART_BYTES", 1 << 18)
        bucket: str = request.getfixturevalue("bucket")
        return f"{bucket}/root"
    if request.param == "s3":
        request.getfixturevalue("s3")
    memory.clear()
    return f"{request.param}://host/root"


@pytest.fixture
def storage(root: str) -> Storage:
    return storage_for(root)


def write(storage: Storage, uri: str, data: bytes) -> StoredFile:
    with storage.create(uri) as file:
        file.write(data)
    stored = storage.stat(uri)
    assert stored is not None
    return stored


def test_each_scheme_has_its_storage(root: str, storage: Storage) -> None:
    kinds = {
        **{"/": LocalStorage, "g": GcsStorage, "m": FsspecStorage, "f": FsspecStorage},
        "s": S3Storage,
    }
    assert type(storage) is kinds[root[0]]
    assert storage.is_remote is not root.startswith("/")


def test_a_scheme_that_is_named_like_a_module_of_ours_is_fsspecs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"local://{tmp_path}/deep/x"
    stored = write(storage_for(uri), uri, DATA)
    assert storage_for(uri).read(uri, version=stored.version) == DATA
    assert (tmp_path / "deep/x").read_bytes() == DATA
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_a_small_file_is_read_whole_if_it_is_small(root: str, storage: Storage) -> None:
    stored = write(storage, f"{root}/x", DATA)
    assert storage.read_small(stored.uri, max_bytes=len(DATA)) == DATA
    assert storage.read_small(stored.uri, max_bytes=len(DATA), version=stored.version) == DATA
    for version in (None, stored.version):
        with pytest.raises(InputError, match=f"x: has more than {len(DATA) - 1:,} bytes"):
            storage.read_small(stored.uri, max_bytes=len(DATA) - 1, version=version)
    assert storage.find(stored.uri) == stored
    with pytest.raises(FileNotFoundError):
        storage.read_small(f"{root}/none", max_bytes=1)
    with pytest.raises(InputError, match="none: no such file"):
        storage.find(f"{root}/none")


def test_lists_what_was_written_below_a_root_only(root: str, storage: Storage) -> None:
    assert list(storage.list(root)) == []
    for path in ("a b/ü #1?.jpg", "x", "deep/er/y", ".hidden"):
        write(storage, f"{root}/{path}", path.encode())
    write(storage, f"{root}2/x", b"beside")
    files = {file.path: file for file in storage.list(root)}
    assert set(files) == {"a b/ü #1?.jpg", "x", "deep/er/y", ".hidden"}
    for path, file in files.items():
        assert file.uri == f"{root}/{path}"
        assert file.size_bytes == len(path.encode())
        assert storage.read(file.uri, version=file.version) == path.encode()
    assert set(storage.begin_listing(root)) == set(storage.list(f"{root}/"))


def test_reads_whole_files_and_ranges(root: str, storage: Storage) -> None:
    file = write(storage, f"{root}/x", DATA)
    empty = write(storage, f"{root}/empty", b"")
    for version in (file.version, None):
        assert storage.read(file.uri, version=version) == DATA
        assert storage.read(file.uri, offset=3, size_bytes=5, version=version) == DATA[3:8]
        assert storage.read(file.uri, offset=1000, version=version) == DATA[1000:]
        assert storage.read(file.uri, offset=1020, size_bytes=99, version=version) == DATA[1020:]
        assert storage.read(file.uri, offset=1024, version=version) == b""
        assert storage.read(file.uri, offset=5000, size_bytes=5, version=version) == b""
        assert storage.read(file.uri, size_bytes=0, version=version) == b""
    assert storage.read(empty.uri, version=empty.version) == b""
    assert storage.read_small(empty.uri, max_bytes=9) == b""


def test_notices_that_a_version_is_gone(root: str, storage: Storage) -> None:
    file = write(storage, f"{root}/x", DATA)
    storage.replace(file.uri, b"other")
    assert storage.read(file.uri) == b"other"
    with pytest.raises(ChangedError, match=r"/x was changed after it was listed"):
        storage.read(file.uri, version=file.version)
    storage.delete(file.uri)
    with pytest.raises(ChangedError, match=r"/x was deleted after it was listed"):
        storage.read(file.uri, version=file.version)
    with pytest.raises(FileNotFoundError):
        storage.read(file.uri)
    assert storage.stat(file.uri) is None


@pytest.mark.parametrize("size", [0, 1, 1 << 18, (1 << 18) + 1, 1 << 20])
def test_a_written_file_is_what_was_written(size: int, root: str, storage: Storage) -> None:
    data = (DATA * (size // len(DATA) + 1))[:size]
    with storage.create(f"{root}/deep/x") as file:
        for start in range(0, size, 100_000):
            file.write(memoryview(data)[start : start + 100_000])
    assert storage.read(f"{root}/deep/x") == data


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_an_aborted_file_is_not_there(size: int, root: str, storage: Storage) -> None:
    def fail() -> None:
        with storage.create(f"{root}/x") as file:
            file.write(bytes(size))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    # A generator, a thread or a process may also end without an exception that this could see.
    opened = storage.create(f"{root}/y")
    opened.__enter__().write(bytes(size))
    del opened
    gc.collect()
    assert list(storage.list(root)) == []


def test_small_files_are_replaced_without_a_trace(root: str, storage: Storage) -> None:
    version = None
    for data in (b"one", b"two"):
        storage.replace(f"{root}/x", data)
        storage.replace(f"{root}/y", data, scratch=f"{root}/scratch/1")
        version = storage.swap(f"{root}/z", data, version=version, scratch=f"{root}/scratch/1")
        assert [storage.read(f"{root}/{name}") for name in "xyz"] == [data] * 3
    assert {file.path for file in storage.list(root)} == {"x", "y", "z"}


def test_a_swap_succeeds_only_on_the_version_that_was_seen(root: str, storage: Storage) -> None:
    if not storage.can_swap:
        pytest.skip("neither versions nor preconditions")
    uri = f"{root}/deep/x"
    first = storage.swap(uri, b"first", version=None)
    assert first is not None
    assert storage.read(uri, version=first) == b"first"
    assert storage.swap(uri, b"again", version=None) is None
    # At once, because a file system's clock may not advance meanwhile.
    versions = [first]
    for number in range(20):
        version = storage.swap(uri, b"%5d" % number, version=versions[-1])
        assert version is not None
        versions.append(version)
    assert len(set(versions)) == 21
    for old in versions[:-1]:
        assert storage.swap(uri, b"late", version=old) is None
    assert storage.read(uri, version=versions[-1]) == b"   19"
    assert [file.path for file in storage.list(root)] == ["deep/x"]
    storage.delete(uri)
    assert storage.swap(uri, b"gone", version=versions[-1]) is None
    assert list(storage.list(root)) == []


def test_one_of_many_that_swap_at_once_succeeds(root: str, storage: Storage) -> None:
    if not storage.can_swap:
        pytest.skip("neither versions nor preconditions")
    uri = f"{root}/x"
    version = None
    with ThreadPoolExecutor(max_workers=8) as executor:
        for turn in range(5):
            swaps = [
                executor.submit(storage.swap, uri, f"{turn} {number}".encode(), version=version)
                for number in range(8)
            ]
            succeeded = {
                number: swap.result() for number, swap in enumerate(swaps) if swap.result()
            }
            ((number, version),) = succeeded.items()
            assert storage.read(uri, version=version) == f"{turn} {number}".encode()


def test_holds_what_lies_below(root: str, storage: Storage) -> None:
    assert not storage.holds(root)
    write(storage, f"{root}/deep/x", b"x")
    assert storage.holds(root)
    assert storage.holds(f"{root}/deep")
    assert not storage.holds(f"{root}/dee")


def test_knows_folders(root: str, storage: Storage) -> None:
    write(storage, f"{root}/deep/x", b"x")
    assert storage.is_folder(root)
    assert storage.is_folder(f"{root}/deep")
    assert not storage.is_folder(f"{root}/deep/x")
    assert not storage.is_folder(f"{root}/dee")


def test_names_what_lies_right_below(root: str, storage: Storage) -> None:
    assert list(storage.names(root)) == []
    for path in ("a.jpg", "train/cat/a.jpg", "train/b.jpg", "train-2.txt"):
        write(storage, f"{root}/{path}", b"x")
    assert sorted(storage.names(root)) == ["a.jpg", "train-2.txt", "train/"]
    assert sorted(storage.names(f"{root}/train")) == ["b.jpg", "cat/"]
    assert list(storage.names(f"{root}/trai")) == []


def test_names_come_over_pages(
    root: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("gcs.storage", "s3"):
        monkeypatch.setattr(f"shardbeam.transforms.storage.{kind}.PAGE_SIZE", 2)
    paths = ["a", "b/1", "b/2", "b/c/3", "b/c/4", "c", "d/1", "e"]
    for path in paths:
        write(storage, f"{root}/{path}", b"x")
    assert sorted(storage.names(root)) == ["a", "b/", "c", "d/", "e"]
    assert sorted(file.path for file in storage.list(root)) == paths
    assert sorted(file.path for file in storage.list(f"{root}/b/c")) == ["3", "4"]


def test_renames_once(root: str, storage: Storage) -> None:
    write(storage, f"{root}/a", b"new")
    old = write(storage, f"{root}/deep/b", b"old")
    storage.rename(f"{root}/a", f"{root}/deep/b", replaces=old.version)
    assert storage.read(f"{root}/deep/b") == b"new"
    with pytest.raises(FileNotFoundError):
        storage.rename(f"{root}/a", f"{root}/deep/b", replaces=old.version)
    assert {file.path for file in storage.list(root)} == {"deep/b"}


def test_a_change_leaves_versions_that_were_not_seen(root: str, storage: Storage) -> None:
    if not storage.can_swap:
        pytest.skip("neither versions nor preconditions")
    write(storage, f"{root}/a", b"a")
    old = write(storage, f"{root}/b", b"b")
    storage.renew(old)
    new = storage.stat(old.uri)
    assert new is not None
    assert (new.version != old.version, new.crc32c) == (True, old.crc32c)
    for replaces in (None, old.version):
        with pytest.raises(ChangedError, match=r"/b was changed meanwhile"):
            storage.rename(f"{root}/a", old.uri, replaces=replaces)
    assert not storage.delete(old.uri, version=old.version)
    assert not storage.delete_many([old, old])
    # It has another version already, and that is all that matters.
    storage.renew(old)
    assert {file.path: storage.read(file.uri) for file in storage.list(root)} == {
        "a": b"a",
        "b": b"b",
    }
    assert storage.delete_many(storage.list(root))
    assert list(storage.list(root)) == []
    with pytest.raises(ChangedError):
        storage.renew(old)


def test_copies_with_the_storages_own_checksum_or_not_at_all(root: str, storage: Storage) -> None:
    for size in (0, 10, 1 << 20):
        data = (DATA * (size // len(DATA) + 1))[:size]
        write(storage, f"{root}/a{size}", data)
        copy = storage.copy(f"{root}/a{size}", f"{root}/deep/b{size}")
        assert (copy is not None) is root.startswith("gs://")
        if copy is None:
            assert storage.stat(f"{root}/deep/b{size}") is None
            continue
        assert copy == storage.stat(f"{root}/deep/b{size}")
        assert copy.crc32c == f"{google_crc32c.value(data):08x}"
        assert storage.read(copy.uri) == storage.read(f"{root}/a{size}") == data
        with pytest.raises(FileNotFoundError):
            storage.copy(f"{root}/none", f"{root}/c")


def test_deletes_what_is_there_and_empty_folders(root: str, storage: Storage) -> None:
    for path in ("a/x", "a/b/y", "az", "z"):
        write(storage, f"{root}/{path}", b"x")
    for _ in range(2):
        storage.prune(root)
        assert storage.delete_many(storage.list(f"{root}/a"))
        assert storage.delete(f"{root}/z")
        assert {file.path for file in storage.list(root)} == {"az"}
        storage.prune(f"{root}/a")
        assert not storage.holds(f"{root}/a")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.json", ["a.json", "b.json"]),
        ("[b-z].json", ["b.json"]),
        ("?.json", ["a.json", "b.json"]),
        ("*/*.json", ["deep/c.json"]),
        ("a.json", ["a.json"]),
        ("[x].txt", ["[x].txt"]),
    ],
)
def test_patterns_are_expanded(
    pattern: str, expected: list[str], root: str, storage: Storage
) -> None:
    for path in ("a.json", "b.json", "deep/c.json", "[x].txt", "x.txt"):
        write(storage, f"{root}/{path}", b"")
    assert expand_pattern(f"{root}/{pattern}") == [f"{root}/{path}" for path in expected]


def test_a_pattern_that_matches_nothing_is_an_error(root: str, storage: Storage) -> None:
    write(storage, f"{root}/a", b"")
    with pytest.raises(InputError, match="no file matches the pattern"):
        expand_pattern(f"{root}/*.json")
