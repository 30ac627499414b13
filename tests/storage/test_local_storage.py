from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import ChangedError, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import LocalStorage

STORAGE = LocalStorage()


def paths(root: Path) -> list[str]:
    return sorted(file.path for file in STORAGE.list(str(root)))


def test_follows_links_and_stops_at_loops(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.jpg").write_bytes(b"x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(elsewhere)
    (root / "file.jpg").symlink_to(elsewhere / "x.jpg")
    (root / "dangling.jpg").symlink_to(root / "nothing")
    (elsewhere / "loop").symlink_to(root)
    assert paths(root) == ["dangling.jpg", "file.jpg", "folder/x.jpg"]


def test_a_link_to_itself_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to("folder")
    assert sorted(STORAGE.names(str(tmp_path))) == ["folder/", "linked/", "loop"]


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    assert paths(tmp_path) == []
    assert STORAGE.stat(str(tmp_path / "pipe.jpg")) is None


def test_nothing_there_lists_nothing_and_a_file_is_no_folder(tmp_path: Path) -> None:
    assert paths(tmp_path / "missing") == []
    assert STORAGE.stat(str(tmp_path / ("x" * 300))) is None
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="expected a folder, found a file"):
        paths(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(InputError, match=r"closed: cannot be listed: Permission denied"):
        paths(tmp_path)


def test_reads_ranges_and_notices_changes(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"0123456789")
    stored = STORAGE.stat(str(file))
    assert stored is not None
    assert STORAGE.read(stored.uri, version=stored.version) == b"0123456789"
    assert STORAGE.read(stored.uri, offset=2, size_bytes=3) == b"234"
    assert STORAGE.read(stored.uri, offset=8, size_bytes=9) == b"89"
    os.utime(file, ns=(1, 1))
    with pytest.raises(ChangedError, match="was changed after it was listed"):
        STORAGE.read(stored.uri, version=stored.version)
    file.unlink()
    with pytest.raises(ChangedError, match="was deleted after it was listed"):
        STORAGE.read(stored.uri, version=stored.version)
    with pytest.raises(FileNotFoundError):
        STORAGE.read(stored.uri)


def test_a_file_is_there_when_its_writing_ends_well_and_only_then(tmp_path: Path) -> None:
    uri = str(tmp_path / "new" / "x")
    with STORAGE.create(uri) as file:
        file.write(b"abc")
    assert STORAGE.read(uri) == b"abc"
    with pytest.raises(FileExistsError), STORAGE.create(uri) as file:
        pass
    assert STORAGE.read(uri) == b"abc"

    def fail() -> None:
        with STORAGE.create(f"{uri}2") as file:
            file.write(b"abc")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert STORAGE.stat(f"{uri}2") is None


def test_deleting_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    STORAGE.prune(str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()
    STORAGE.delete(str(tmp_path / "x"))
    STORAGE.prune(str(tmp_path / "x"))


def test_unknown_schemes_are_refused_by_name() -> None:
    assert isinstance(storage_for("relative/path"), LocalStorage)
    with pytest.raises(InputError, match=r"nosuch://"):
        storage_for("nosuch://host/x")


@pytest.mark.parametrize(
    ("root", "expected"),
    [("/a", "/a/x/y"), ("/a/", "/a/x/y"), ("gs://b", "gs://b/x/y"), ("/", "/x/y")],
)
def test_joining_paths(root: str, expected: str) -> None:
    assert join_uri(root, "x", "y") == expected
