"""Names of exported images: safe in any folder, and unique."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.readers.export import base
from shardbeam.readers.export.base import (
    NumberSet,
    UniqueNames,
    is_refused_by_windows,
    safe_name,
    safe_path,
    strip_layout,
)
from shardbeam.transforms.formats.names import is_hidden, is_image_name, listing_exclusion
from shardbeam.transforms.images.header import FileFormat

JPEG = FileFormat.JPEG


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a/b.jpg", "a/b.jpg"),
        ("a/./b.JPEG", "a/b.JPEG"),
        ("été 2026/x=1, y:2.jpg", "été 2026/x=1, y:2.jpg"),
        ("../x.jpg", "_../x.jpg"),
        ("/etc/x.jpg", "etc/x.jpg"),
        (r"..\..\x.jpg", "_.._.._x.jpg"),
        (r"C:\x.jpg", "C:_x.jpg"),
        ("x\0\n\x1by.jpg", "x___y.jpg"),
        (".hidden/.x.jpg", "_.hidden/_.x.jpg"),
        ("", "000000007.jpg"),
        ("..", "_...jpg"),
        # The stored image is a JPEG.
        ("a.bmp", "a.jpg"),
        ("a.v0", "a.v0.jpg"),
        # A folder never has the name of a file.
        ("a.jpg/b.jpg", "a.jpg_/b.jpg"),
    ],
)
def test_safe_paths(key: str, expected: str) -> None:
    assert safe_path(key, image_format=JPEG, number=7) == expected


@given(st.text(max_size=400) | st.text("./\\a\0é", max_size=20))
def test_no_key_leads_out_of_the_folder_or_is_hidden(key: str) -> None:
    path = safe_path(key, image_format=JPEG, number=1)
    assert os.path.normpath(os.path.join("/root", path)) == f"/root/{path}"
    *folders, name = path.split("/")
    assert listing_exclusion(path) is None
    assert not any(map(is_image_name, folders))
    assert not is_hidden(name)
    assert all(0 < len(part.encode()) <= 240 for part in path.split("/"))
    assert len(path.encode()) <= 1024
    # A safe path stays as it is.
    assert safe_path(path, image_format=JPEG, number=1) == path


@pytest.mark.parametrize("key", ["a" * 300 + ".jpg", "é" * 200 + ".jpg", "d/" * 600 + "x.jpg"])
def test_long_names_can_be_written_and_differ(key: str, tmp_path: Path) -> None:
    path, other = (
        safe_path(each, image_format=JPEG, number=1) for each in (key, key.replace(".", "x.", 1))
    )
    assert path != other
    for each in (path, other):
        (tmp_path / each).write_bytes(b"")
        (tmp_path / each).with_suffix(".txt").write_bytes(b"")


def test_reserved_folders_get_another_name() -> None:
    path = safe_path("a/Labels/x.jpg", image_format=JPEG, number=1, reserved={"labels"})
    assert path == "a/Labels_/x.jpg"


def test_reserved_extensions_get_another_name() -> None:
    path = safe_path("a.txt/B.TXT/x.jpg", image_format=JPEG, number=1, reserved={".txt"})
    assert path == "a.txt_/B.TXT_/x.jpg"


@pytest.mark.parametrize(
    "path",
    ["a:b.jpg", "a?.jpg", "a/CON.jpg", "nul/x.jpg", "com1", "lpt¹.x", "a ./b.jpg", "a /b", "b."],
)
def test_what_windows_refuses(path: str) -> None:
    assert is_refused_by_windows(path)


@pytest.mark.parametrize("path", ["a b.jpg", "icon.jpg", "con1/x", "com10.x", "a.b/é.jpg", "conx"])
def test_what_windows_takes(path: str) -> None:
    assert not is_refused_by_windows(path)


def test_safe_names_of_splits() -> None:
    assert [safe_name(each) for each in ("train", "a/b", "..", "")] == ["train", "a_b", "_..", "_"]
    for around in (0, 22):
        assert 0 <= 240 - around - len(safe_name("é" * 200, around=around).encode()) <= 1


@pytest.mark.parametrize(
    ("key", "split", "expected"),
    [
        ("images/train/a/b.jpg", "train", "a/b.jpg"),
        ("valid/images/b.jpg", "val", "b.jpg"),
        ("images/val/b.jpg", "validation", "b.jpg"),
        ("images/test/b.jpg", "train", "images/test/b.jpg"),
        ("images/b.jpg", "train", "images/b.jpg"),
        ("images/train", "train", "images/train"),
    ],
)
def test_folders_that_the_export_has_itself_are_not_repeated(
    key: str, split: str, expected: str
) -> None:
    assert strip_layout(key, split=split) == expected


def test_names_differ_on_disks_that_ignore_case_and_forms_of_unicode() -> None:
    decomposed = unicodedata.normalize("NFD", "é.jpg")
    unique = UniqueNames(by_stem=False)
    paths = ["a.jpg", "A.jpg", "é.jpg", decomposed, "a.jpg", "a~2.jpg", "a.png"]
    assert [unique.take(path, number=n) for n, path in enumerate(paths, 1)] == [
        *("a.jpg", "A~2.jpg", "é.jpg", f"{decomposed[:-4]}~4.jpg", "a~5.jpg", "a~2~6.jpg", "a.png")
    ]


def test_images_with_labels_beside_them_differ_without_their_extensions() -> None:
    unique = UniqueNames(by_stem=True)
    paths = ["a/b.jpg", "a/b.png", "a.b/c.jpg"]
    assert [unique.take(path, number=n) for n, path in enumerate(paths, 1)] == [
        *("a/b.jpg", "a/b~2.png", "a.b/c.jpg")
    ]


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 30)))
def test_a_set_of_numbers(numbers: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_MAX_RECENT", 3)
        taken = NumberSet()
        known: set[int] = set()
        for number in numbers:
            assert taken.add(number) == (number not in known)
            known.add(number)
