"""The exact words about data that is not read as it is: each leads to what helps."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.support.archive_files import Files, write_files
from tests.support.dataset import run
from tests.support.idx_files import idx_bytes
from tests.support.image_makers import plain_jpeg
from tests.support.tfrecords import tfrecord

JPEG = plain_jpeg((48, 32))


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(*words: str) -> str:
    """Runs a command that is refused; returns the error, without the folder of the test."""
    result = run(*words)
    assert result.exit_code in (1, 2), result
    last = result.stderr.splitlines()[-1].removeprefix("shardbeam: error: ")
    return last.replace(f"{Path.cwd()}/", "")


def test_hugging_faces_list_of_splits_is_no_annotation() -> None:
    folders = {
        f"d/{split}/{name}/{number}.jpg": JPEG
        for split in ("train", "test")
        for name in "ab"
        for number in range(2)
    }
    write_files(Path(), {**folders, "d/dataset_dict.json": b'{"splits": ["train", "test"]}'})
    assert "source: {format: image-folder, images: d}" in run("init", "d", exit_code=0).stdout
    write_files(Path(), {"d/notes.json": b"{}"})
    assert "notes.json may say more than the names of the folders" in error_of("init", "d")


def test_dots_in_names_of_webdataset() -> None:
    with tarfile.open("a.tar", "w") as tar:
        for number in range(3):
            for name, data in ((f"{number}.input.jpg", JPEG), (f"{number}.cls", b"1")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    assert error_of("plan", "webdataset", "--tars", "a.tar", "--output", "o") == (
        "a.tar: the extension is all that follows the first dot of a name, so that '0.input.jpg' "
        "is a file '.input.jpg' of the sample '0'; write the files without other dots"
    )


@pytest.mark.parametrize(
    ("compress", "name", "undo"),
    [(gzip.compress, "gzip", "gunzip"), (zlib.compress, "zlib", "`zlib.decompress` of Python")],
)
def test_compressed_tfrecords(compress: object, name: str, undo: str) -> None:
    assert callable(compress)
    words = ("plan", "tfrecord", "--output", "o", "--tfrecords")
    Path("whole.tfrecord").write_bytes(compress(tfrecord(*[b"\n\0"] * 9)))
    assert error_of(*words, "whole.tfrecord").startswith(
        f"whole.tfrecord: compressed with {name}; decompress it first ({undo})"
    )
    record = compress(b"\n\0")
    Path("inside.tfrecord").write_bytes(tfrecord(record))
    assert error_of(*words, "inside.tfrecord") == (
        f"inside.tfrecord: record 0, byte 0: the record of {len(record)} bytes is compressed with "
        f"{name}, each by itself; no reader of TFRecord files undoes that: write the records "
        "uncompressed"
    )


def test_an_idx_file_that_is_too_long() -> None:
    write_files(
        Path(),
        {
            "d/train-images-idx3-ubyte": idx_bytes(np.ones((2, 5, 7), np.uint8)) + b"x",
            "d/train-labels-idx1-ubyte": idx_bytes(np.zeros(2, np.uint8)),
        },
    )
    assert error_of("plan", "idx", "--root", "d", "--output", "o") == (
        "d/train-images-idx3-ubyte: its header announces 86 bytes, but it has 87: the file is "
        "longer than it says, or its header is damaged; copy or make it again"
    )


@pytest.mark.parametrize("path", [None, "a.jpg"])
def test_a_compressed_column_without_values_is_not_to_be_unpacked(path: str | None) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    values = [None if path is None else {"bytes": None, "path": path}] * 3
    table = pa.table({"image": pa.array(values, type=kind), "label": [0, 1, 0]})
    Path("d").mkdir()
    parquet.write_table(table, "d/train-00000-of-00001.parquet", compression="snappy")
    assert error_of("plan", "huggingface", "--data", "d", "--output", "o") == (
        "d/train-00000-of-00001.parquet: the column image is empty: all its values are null; name "
        "another column with image_column, or leave the file out"
    )
    images = [None, {"bytes": JPEG, "path": path}, None]
    table = table.set_column(0, "image", pa.array(images, type=kind))
    parquet.write_table(table, "d/train-00000-of-00001.parquet", compression="snappy")
    problem = error_of("plan", "huggingface", "--data", "d", "--output", "o")
    assert "is compressed (SNAPPY), so that its images have no place in the file" in problem


@pytest.mark.parametrize("annotated", [range(1), range(6)])
def test_frames_of_cvat_that_are_numbered_from_1(annotated: range) -> None:
    boxes = "".join(
        f'<box frame="{number}" outside="0" xtl="1" ytl="1" xbr="20" ybr="20"/>'
        for number in annotated
    )
    text = (
        "<annotations><version>1.1</version><meta><task><size>6</size><original_size>"
        "<width>48</width><height>32</height></original_size></task></meta>"
        f'<track id="0" label="car">{boxes}</track></annotations>'
    )
    images: Files = {f"d/images/frame_{number:06}.jpg": JPEG for number in range(1, 7)}
    write_files(Path(), {**images, "d/annotations.xml": text.encode()})
    assert (
        "the images have the numbers 1 to 6, and the frames 0 to 5, each 1: name them as CVAT "
        "does (frame_000000), or export the task as `CVAT for images 1.1`"
    ) in error_of("init", "d")


def test_decimal_commas_are_a_key_of_tables() -> None:
    rows = "".join(f"{number}.jpg;cat;1,5;2,5;20,25;22,75\n" for number in range(3))
    header = "filename;class;xmin;ymin;xmax;ymax\n"
    images: Files = {f"d/images/{number}.jpg": JPEG for number in range(3)}
    write_files(Path(), {**images, "d/a.csv": (header + rows).encode()})
    words = ("csv", "--manifest", "d/a.csv", "--image-root", "d/images", "--delimiter", ";")
    problem = error_of("plan", *words, "--output", "o")
    assert (
        "line 2: column xmin: expected float, got '1,5'; write a decimal point, or set decimal to "
        "a comma"
    ) in problem
    made = run("init", "d", exit_code=0).stdout
    assert "decimal: ','" in made
    run("build", *words, "--decimal", ",", "--output", "commas", exit_code=0)
    write_files(Path(), {"d/a.csv": (header + rows.replace(",", ".")).encode()})
    run("build", *words, "--output", "points", exit_code=0)
    (commas, points) = (
        next(Path(name).glob("*.tfrecord*")).read_bytes() for name in ("commas", "points")
    )
    assert commas == points
    assert "decimal" not in run("init", "d", exit_code=0).stdout


@pytest.mark.parametrize(
    "result",
    [
        {"choice": "cat"},
        {"label": [{"x": 1, "rectanglelabels": ["cat"], "original_width": 48}]},
    ],
)
def test_json_min_of_label_studio(result: dict[str, object]) -> None:
    common = {"annotator": 1, "annotation_id": 1, "lead_time": 1.5}
    tasks = [{"image": f"/data/upload/{number}.jpg", **result, **common} for number in range(2)]
    images: Files = {f"d/images/{number}.jpg": JPEG for number in range(2)}
    write_files(Path(), {**images, "d/min.json": json.dumps(tasks).encode()})
    assert error_of("init", "d").endswith(
        "min.json is a file of Label Studio (JSON-MIN), which is not read: export as JSON "
        "(docs/reference/formats/label-studio.md)"
    )
    words = ("label-studio", "--images", "d/images", "--annotations", "d/min.json")
    assert error_of("plan", *words, "--output", "o") == (
        "d/min.json: $[0]: this is JSON-MIN, which mixes choices with other texts: export as JSON"
    )


def test_xml_files_whose_images_are_missing() -> None:
    text = (
        b"<annotation><filename>x.jpg</filename><object><name>a</name><bndbox><xmin>1</xmin>"
        b"<ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object></annotation>"
    )
    write_files(Path(), {"d/images/photo.jpg": JPEG, "d/Annotations/x.xml": text})
    assert error_of("init", "d").startswith(
        "d: it looks like voc (1 XML file), but none of the images that Annotations/x.xml names is "
        "there: 'x'"
    )
