from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import local
from shardbeam.transforms.storage.base import ChangedError, SpecialFileError, join_uri, nearest_path
from shardbeam.transforms.storage.local import LocalStorage

STORAGE = LocalStorage()


def paths(root: Path) -> list[str]:
    return sorted(file.path for file in STORAGE.list(str(root)))


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder with links to files, to folders in it, outside of it, and above themselves."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.jpg").write_bytes(b"x")
    (tmp_path / "root-2").mkdir()
    root = tmp_path / "root"
    (root / "cat").mkdir(parents=True)
    (root / "cat" / "1.jpg").write_bytes(b"1")
    (root / "file.jpg").symlink_to(elsewhere / "x.jpg")
    (root / "dangling.jpg").symlink_to(root / "nothing")
    (root / "outside").symlink_to(elsewhere)
    (root / "prefix").symlink_to(tmp_path / "root-2")
    (root / "above").symlink_to(tmp_path)
    (root / "puss").symlink_to("cat")
    (root / "cat" / "loop").symlink_to(root)
    return root


LINKED = [
    *("above/", "cat/1.jpg", "cat/loop/", "dangling.jpg", "file.jpg", "outside/", "prefix/"),
    *("puss/1.jpg", "puss/loop/"),
]


def test_links_to_files_are_followed_and_to_folders_within_the_root(linked: Path) -> None:
    assert paths(linked) == LINKED
    for file in STORAGE.list(str(linked)):
        assert not file.path.endswith("/") or (file.size_bytes, file.version) == (0, "")


def test_a_root_may_be_a_link(linked: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(linked)
    assert paths(tmp_path / "link") == LINKED


def test_folders_that_link_to_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each order of six folders is a path: 1,956 of them."""
    names = "abcdef"
    for name in names:
        (tmp_path / name).mkdir()
        for other in names:
            (tmp_path / name / other).symlink_to(tmp_path / other)
    monkeypatch.setattr(local, "_MAX_LINKED_FOLDERS", 1950)
    assert len(paths(tmp_path)) > 1950
    monkeypatch.setattr(local, "_MAX_LINKED_FOLDERS", 1949)
    with pytest.raises(InputError, match=r"more than 1,949 linked folders, the last of them /.*"):
        paths(tmp_path)


KINDS = ("a folder", "a named pipe", "a socket", "a device")


@pytest.fixture(params=KINDS)
def special(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The path of something that is no regular file, and the word for it."""
    path = tmp_path / "special"
    with socket.socket(socket.AF_UNIX) as server:
        if request.param == "a folder":
            path.mkdir()
        elif request.param == "a named pipe":
            os.mkfifo(path)
        elif request.param == "a socket":
            server.bind(str(path))
        else:
            path.symlink_to("/dev/zero")
        yield str(path), request.param


@pytest.mark.parametrize("reopens", [True, False])
def test_only_regular_files_are_read(
    special: tuple[str, str], reopens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is no O_PATH, as on macOS."""
    monkeypatch.setattr(local, "_REOPENS", reopens)
    uri, kind = special
    problem = re.escape(f"{uri}: {kind}; only regular files are read")
    for read in (STORAGE.read, partial(STORAGE.read_small, max_bytes=9)):
        with pytest.raises(SpecialFileError, match=problem):
            read(uri)
    with pytest.raises(SpecialFileError, match=problem):
        STORAGE.find(uri)
    assert STORAGE.stat(uri) is None
    if kind != "a folder":
        with pytest.raises(InputError, match=f"expected a folder, found {kind}"):
            paths(Path(uri))


def test_what_is_no_file_is_listed_and_cannot_be_read(special: tuple[str, str]) -> None:
    uri, kind = special
    listed = list(STORAGE.list(os.path.dirname(uri)))
    if kind == "a folder":
        assert listed == []
    else:
        assert [(file.path, file.size_bytes, file.version) for file in listed] == [
            ("special", 0, "")
        ]


@pytest.mark.skipif(not local._REOPENS, reason="without O_PATH there is a moment in between")
def test_a_file_that_becomes_a_pipe_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"0123")
    fstat = os.fstat

    def exchange(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        if path.is_file():
            path.unlink()
            os.mkfifo(path)
        return status

    monkeypatch.setattr(os, "fstat", exchange)
    assert STORAGE.read(str(path)) == b"0123"


@pytest.mark.skipif(not hasattr(fcntl, "F_SETLEASE"), reason="Linux alone has leases")
def test_a_file_under_a_lease_is_read(tmp_path: Path) -> None:
    """Its holder is asked to give it up, and an open that does not wait fails meanwhile."""
    path = tmp_path / "x"
    path.write_bytes(b"0123")
    holder = os.open(path, os.O_RDWR)
    previous = signal.signal(
        signal.SIGIO, lambda *_: fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    )
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert STORAGE.read(str(path)) == b"0123"
    finally:
        signal.signal(signal.SIGIO, previous)
        os.close(holder)


def test_a_file_that_has_grown_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"0123")
    stored = STORAGE.find(str(file))
    # 30 GB that take no room on the disk.
    os.truncate(file, 30 << 30)
    with pytest.raises(InputError, match="x: has more than 1,000 bytes"):
        STORAGE.read_small(str(file), max_bytes=1000)
    with pytest.raises(ChangedError):
        STORAGE.read_small(str(file), max_bytes=40 << 30, version=stored.version)


def test_a_link_to_itself_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "folder").mkdir()
    (tmp_path / "linked").symlink_to("folder")
    assert sorted(STORAGE.names(str(tmp_path))) == ["folder/", "linked/", "loop"]


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


def test_no_file_is_written_over_another(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    with pytest.raises(FileExistsError), STORAGE.create(f"{tmp_path}/x"):
        pass
    assert STORAGE.read(f"{tmp_path}/x") == b"abc"


def test_folders_may_lie_deeper_than_python_calls_functions(deep_folder: Path) -> None:
    name = f"{'a/' * 1500}x"
    with LocalStorage().create(name) as file:
        file.write(b"1")
    listed = LocalStorage().list(str(deep_folder))
    assert [each.path for each in listed] == [name.removeprefix("a/")]


def test_folders_are_made_all_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made = local.make_folders(f"{tmp_path}/a/b/c")
    assert made == [f"{tmp_path}/a/b/c", f"{tmp_path}/a/b"]
    assert local.make_folders(f"{tmp_path}/a/b/c") == []
    with pytest.raises(OSError, match="too long"):
        local.make_folders(f"{tmp_path}/a/d/{'x' * 300}/e")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        local.make_folders(f"{tmp_path}/file/e")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match="is a link to 'nowhere'"):
        local.make_folders(f"{tmp_path}/link/e")
    local.remove_empty(made)
    assert sorted(os.listdir(tmp_path)) == ["a", "file", "link"]
    assert os.listdir(tmp_path / "a") == []


@pytest.mark.parametrize(
    ("root", "expected"),
    [("/a", "/a/x/y"), ("/a/", "/a/x/y"), ("gs://b", "gs://b/x/y"), ("/", "/x/y")],
)
def test_joining_paths(root: str, expected: str) -> None:
    assert join_uri(root, "x", "y") == expected


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("image", "images"),
        ("IMAGES/", "images"),
        ("imagse/train", "images/train"),
        ("imagse/a/b", "images"),
        ("images/trian/x", "images/train"),
        ("image.jsn", "image.json"),
        # Nothing but the extension is alike, or the folder above exists.
        ("none.json", ""),
        ("images", ""),
        ("images/train/x", ""),
        ("image.json/x", ""),
    ],
)
def test_missing_paths_name_the_nearest(
    path: str, near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images/train").mkdir(parents=True)
    (tmp_path / "image.json").touch()
    for folder in ("", f"{tmp_path}/"):
        monkeypatch.chdir(tmp_path)
        expected = f"; did you mean {folder + near!r}?" if near else ""
        assert nearest_path(folder + path, storage=LocalStorage()) == expected
