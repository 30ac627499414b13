"""Tables as users have them, through a whole build."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.archive_files import write_files
from tests.support.box_files import jpeg
from tests.support.builds import Build, build


def build_table(folder: Path, table: str, *, name: str = "t.csv", exit_code: int = 0) -> Build:
    """Builds a table of the images a.jpg and b.jpg."""
    write_files(folder, {"images/a.jpg": jpeg(), "images/b.jpg": jpeg() + b" ", name: table})
    words = ("--manifest", folder / name, "--image-root", folder / "images")
    return build("csv", *words, output=folder / "out", exit_code=exit_code)


def test_captions_of_an_image_are_merged_in_the_order_of_its_rows(tmp_path: Path) -> None:
    table = (
        "image,n,score,note,caption\n"
        "a.jpg,1,0.5,x,A cat, a dog .\n"
        "b.jpg,2,0.25,,A cow .\n"
        "a.jpg,,,y,Pets .\n"
    )
    built = build_table(tmp_path, table, name="captions.txt")
    a = built.by_key()["a.jpg"].features
    assert a["image/caption"] == [b"A cat, a dog .", b"Pets ."]
    assert (a["n"], a["note"]) == ([1, -1], [b"x", b"y"])
    assert a["score"][0] == 0.5
    assert a["score"][1] != a["score"][1]
    assert built.by_key()["b.jpg"].features["image/caption"] == [b"A cow ."]


def test_a_later_row_that_gives_a_class_another_id_ends_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_FIRST_BYTES", "FIRST_BYTES_OF_A_FILE"):
        monkeypatch.setattr(f"shardbeam.transforms.formats.table.table.{name}", 40)
    rows = "a.jpg,9,cat\n" * 3
    built = build_table(tmp_path, f"image,label,class\n{rows}b.jpg,8,cat\n", exit_code=1)
    monkeypatch.undo()
    assert "t.csv: class 'cat' has id 8 here and id 9 in " in built.stderr
