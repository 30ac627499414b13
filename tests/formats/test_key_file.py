from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.join.sources import (
    KeyFile,
    excluded_images,
    find_key_file,
    image_groups,
    is_excluded,
)
from shardbeam.transforms.storage import limits


def text_file(folder: Path, content: bytes) -> KeyFile:
    path = folder / "keys.txt"
    path.write_bytes(content)
    return find_key_file(str(path))


def duplicates_file(folder: Path, **columns: list[Any]) -> KeyFile:
    path = folder / "duplicates.parquet"
    parquet.write_table(pa.table(columns), path)
    return find_key_file(str(path))


GOOD: dict[str, list[Any]] = {
    "group": [0, 0, 3, 3, 3],
    "source": ["a", "a", "b", "a", "b"],
    "key": ["x", "y\n", "x", "z", "w"],
    "keep": [True, False, True, False, False],
}


@pytest.mark.parametrize(
    ("content", "images"),
    [
        (b"", set()),
        (b"\n\r\n", set()),
        (b"a/1.jpg\nb.jpg", {("", "a/1.jpg"), ("", "b.jpg")}),
        (b"\xef\xbb\xbfa.jpg\r\nb c.jpg \r\n", {("", "a.jpg"), ("", "b c.jpg ")}),
        (b"val\ta.jpg\nval\tb\tc.jpg\n", {("val", "a.jpg"), ("val", "b\tc.jpg")}),
        ("臉.jpg\n".encode(), {("", "臉.jpg")}),
    ],
)
def test_a_key_a_line(content: bytes, images: set[tuple[str, str]], tmp_path: Path) -> None:
    assert excluded_images(text_file(tmp_path, content)) == images


def test_a_key_is_that_of_any_source_unless_the_line_says_which(tmp_path: Path) -> None:
    file = text_file(tmp_path, b"any.jpg\nval\tone.jpg\n")
    assert is_excluded(file, source="train", key="any.jpg")
    assert is_excluded(file, source="val", key="one.jpg")
    assert not is_excluded(file, source="train", key="one.jpg")
    assert not is_excluded(file, source="val", key="other.jpg")


def test_of_duplicates_all_are_left_out_but_those_to_keep(tmp_path: Path) -> None:
    file = duplicates_file(tmp_path, **GOOD, more=[1.0] * 5)
    assert excluded_images(file) == {("a", "y\n"), ("a", "z"), ("b", "w")}
    assert is_excluded(file, source="a", key="y\n")
    assert not is_excluded(file, source="b", key="y\n")


def test_a_group_is_named_by_its_first_image(tmp_path: Path) -> None:
    assert image_groups(duplicates_file(tmp_path, **GOOD)) == {
        ("a", "x"): ("a", "x"),
        ("a", "y\n"): ("a", "x"),
        ("b", "x"): ("b", "x"),
        ("a", "z"): ("b", "x"),
        ("b", "w"): ("b", "x"),
    }


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("values", [None, [None] * 5, [b"x"] * 5, [1.5] * 5])
def test_another_table_is_refused(name: str, values: list[Any] | None, tmp_path: Path) -> None:
    columns = {key: column for key, column in GOOD.items() if key != name}
    if values is not None:
        columns[name] = values
    file = duplicates_file(tmp_path, **columns)
    for read in (excluded_images, image_groups):
        with pytest.raises(InputError, match=f"duplicates.parquet: .*{name}"):
            read(file)


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_a_damaged_table_is_refused(content: bytes, tmp_path: Path) -> None:
    for read in (excluded_images, image_groups):
        with pytest.raises(InputError, match="not a Parquet file"):
            read(text_file(tmp_path, content))


def test_neither_text_nor_a_table(tmp_path: Path) -> None:
    file = text_file(tmp_path, b"\xff\xfe")
    with pytest.raises(InputError, match=r"keys.txt: neither UTF-8 text nor a duplicates.parquet"):
        excluded_images(file)
    with pytest.raises(InputError, match="not a Parquet file"):
        image_groups(file)


def test_a_file_that_changes_or_goes(tmp_path: Path) -> None:
    file = text_file(tmp_path, b"a")
    Path(file.uri).write_bytes(b"b")
    with pytest.raises(InputError, match="the file has changed since the run was launched"):
        excluded_images(file)
    Path(file.uri).unlink()
    with pytest.raises(InputError, match="there is no such file"):
        excluded_images(file)
    with pytest.raises(InputError, match="there is no such file"):
        find_key_file(file.uri)


def test_a_list_of_more_images_than_can_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "KEY_FILE_ROWS", 4)
    with pytest.raises(InputError, match=r"keys\.txt: names more than 4 images"):
        excluded_images(text_file(tmp_path, b"a\nb\nc\nd\ne\n"))
    assert len(excluded_images(text_file(tmp_path, b"a\nb\nc\nd\n"))) == 4
    file = duplicates_file(tmp_path, **GOOD)
    for read in (excluded_images, image_groups):
        with pytest.raises(InputError, match="declares 5 rows; expected at most 4"):
            read(file)
