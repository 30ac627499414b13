"""Tables without images, end to end."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import build
from tests.support.image_makers import plain_jpeg
from tests.support.table_reading import write_table

# Two bad rows, one that is left out, and three splits.
TABLES = {
    "csv": 'i,s,f,l,split\n1,x,0.5,"[1, 2]",TRAIN\n2,y,,[],TEST\n3,z,,[3],DISCARD\n'
    "4,z,1.5,[4],fold_1\n5,z\n6,z,1,[],\n",
    "jsonl": '{"i":1,"s":"x","f":0.5,"l":[1,2],"split":"TRAIN"}\n'
    '{"i":2,"s":"y","l":[],"split":"TEST"}\n{"i":3,"s":"z","l":[3],"split":"DISCARD"}\n'
    '{"i":4,"s":"z","f":1.5,"l":[4],"split":"fold_1"}\n{"i":5,\n{"i":6,"s":"z","f":1,"l":[]}\n',
}


@pytest.mark.parametrize("form", TABLES)
def test_every_row_is_written_rejected_or_excluded(form: str, tmp_path: Path) -> None:
    manifest = tmp_path / f"rows.{form}"
    manifest.write_text(TABLES[form])
    words = ("--manifest", manifest, "--set", "rejects.max_ratio=1")
    built = build(form, *words, output=tmp_path / "out")
    assert list(built.summary["splits"]) == ["train", "test", "fold_1", ""]
    assert built.counts("")["excluded"] == {"discarded": 1}
    (train,), (test,), (fold,) = map(built.examples, ("train", "test", "fold_1"))
    assert train.features == {"i": [1], "s": [b"x"], "f": [0.5], "l": [1, 2]}
    assert test.features == {"i": [2], "s": [b"y"], "f": [], "l": []}
    assert fold.features == {"i": [4], "s": [b"z"], "f": [1.5], "l": [4]}
    # Named by their places: these rows have no image.
    malformed, unknown = ("line 6", "line 7") if form == "csv" else ("byte 179", "byte 187")
    assert built.reasons() == {
        (f"rows.{form}: {malformed}", "annotation_malformed"): 1,
        (f"rows.{form}: {unknown}", "unknown_split"): 1,
    }


def test_rows_may_be_split_by_fractions(tmp_path: Path) -> None:
    manifest = tmp_path / "rows.csv"
    manifest.write_text("a,b\n" + "".join(f"{number},x\n" for number in range(40)))
    words = ("--manifest", manifest, "--fractions", "train=0.5,test=0.5")
    built = build("csv", *words, output=tmp_path / "out")
    counts = [built.counts(split)["examples"] for split in ("train", "test")]
    assert sum(counts) == 40
    assert min(counts) > 5


ROWS = [{"id": name, "breed": "pug"} for name in ("0a1", "0b2", "0c3", "0d4")]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("folder", ["", "train", "train/pug"])
def test_rows_that_name_pictures_are_no_rows_alone(form: str, folder: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    manifest = data / f"t.{form}"
    manifest.write_bytes(write_table(form, ROWS)[0])
    names = [f"{folder}/{row['id']}.jpg" if folder else f"{row['id']}.jpg" for row in ROWS]
    write_files(data, dict.fromkeys([*names, "test/9.jpg"][: 5 if folder else 4], plain_jpeg()))

    refused = build(form, "--manifest", manifest, output=tmp_path / "out", exit_code=1)
    (command,) = re.findall("`shardbeam build (.*)`", refused.stderr)
    words = shlex.split(command)[1:-2]
    built = build(form, *words, output=tmp_path / "pictures")
    assert built.counts("train")["examples"] == 4
    assert built.summary["notes"] == []

    built = build(form, "--manifest", manifest, "--no-images", output=tmp_path / "rows")
    assert built.summary["notes"] == ["rows without images"]


@pytest.mark.parametrize("pictures", [[], ["0a1", "0b2"], [row["id"] for row in ROWS] + ["0e5"]])
def test_rows_without_pictures_are_rows_alone(pictures: list[str], tmp_path: Path) -> None:
    manifest = tmp_path / "t.csv"
    manifest.write_bytes(write_table("csv", ROWS)[0])
    write_files(tmp_path, {f"{name}.jpg": plain_jpeg() for name in pictures})
    built = build("csv", "--manifest", manifest, output=tmp_path.with_suffix(".out"))
    assert built.summary["notes"] == ["rows without images"]
