"""Commands refuse indexes and duplicates that differ from the manifest's checksums."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyarrow import parquet

import shardbeam
from shardbeam.readers.open import stored_dataset as stored
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset import manifest
from tests.support.builds import Build, build, write_coco
from tests.support.dataset import Run, run
from tests.support.manifests import list_again
from tests.support.tfrecords import draw_image

SHARD = "coco-train.tfrecord-00000-of-00001"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A dataset with a large box, and with the same file under two keys with different labels."""
    folder = tmp_path_factory.mktemp("built")
    (folder / "images").mkdir()
    boxes = {"a.jpg": [1, 1, 20, 10], "b.jpg": [5, 5, 20, 10], "c.jpg": [0, 0, 70, 60]}
    for number, name in enumerate(boxes):
        image = draw_image("JPEG", width=70, height=50 + number // 2 * 10)
        (folder / "images" / name).write_bytes(image)
    document = {
        "images": [{"id": number, "file_name": name} for number, name in enumerate(boxes)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1, "bbox": box, "iscrowd": 0}
            for number, box in enumerate(boxes.values())
        ],
        "categories": [{"id": 1, "name": "cat"}],
    }
    annotations = write_coco(folder / "coco.json", document)
    words = ("--images", folder / "images", "--annotations", annotations)
    done = build("coco", *words, output=folder / "out")
    assert done.manifest["duplicates"]["groups"] == 1
    return done


@pytest.fixture
def copied(built: Build, tmp_path: Path) -> Path:
    shutil.copytree(built.output, tmp_path / "copied")
    return tmp_path / "copied"


@pytest.fixture
def index(copied: Path) -> Path:
    return copied / "index" / f"{SHARD}.parquet"


def flip(path: Path, *, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def as_run(read: Callable[[], object]) -> Run:
    try:
        read()
    except InputError as error:
        return Run(1, "", f"shardbeam: error: {error}\n")
    return Run(0, "", "")


COMMANDS: dict[str, Callable[[Path, Path], Run]] = {
    "diff": lambda path, other: run("diff", str(path), str(other)),
    "diff, as the new one": lambda path, other: run("diff", str(other), str(path)),
    "show --findings": lambda path, _: run("show", str(path), "--findings"),
    "show --key": lambda path, _: run("show", str(path), "--key", "a.jpg"),
    "report": lambda path, _: run("report", str(path), "--output", str(path.parent / "page.html")),
    "convert": lambda path, _: run(
        *("convert", str(path), "--container", "tfrecord", "--output", str(path.parent / "again"))
    ),
    "stats --recount": lambda path, _: run("stats", str(path), "--recount"),
    "open": lambda path, _: as_run(lambda: shardbeam.open(path, where={"min_objects": 1})),
    "open a shard": lambda path, _: as_run(lambda: shardbeam.open(path / SHARD)),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_damaged_index_is_not_believed(
    command: str, built: Build, copied: Path, index: Path
) -> None:
    size = index.stat().st_size
    done = COMMANDS[command](copied, built.output)
    assert done.exit_code == 0, done.stderr
    # The first bit is in the page of the keys, the other in the footer.
    for byte in (10, size - 400):
        shutil.copy(built.output / "index" / index.name, index)
        flip(index, byte=byte)
        for path in ("page.html", "again"):
            shutil.rmtree(copied.parent / path, ignore_errors=True)
            (copied.parent / path).unlink(missing_ok=True)
        done = COMMANDS[command](copied, built.output)
        errors = [line for line in done.stderr.splitlines() if str(index) in line]
        assert (done.exit_code != 0, len(errors)) == (True, 1), done.stderr
        assert "was changed: its checksum is" in errors[0]
        assert f"shardbeam verify {copied} --repair CONFIG.yaml" in errors[0]
        assert not (copied.parent / "again" / "dataset_info.json").exists()


def test_a_cut_index_is_not_believed(copied: Path, index: Path) -> None:
    index.write_bytes(index.read_bytes()[:-5])
    done = run("diff", str(copied), str(copied), exit_code=1)
    assert " bytes, and the manifest says " in done.stderr


def test_damaged_duplicates_are_not_believed(copied: Path) -> None:
    path = copied / "duplicates.parquet"
    flip(path, byte=10)
    done = run("report", str(copied), "--output", str(copied.parent / "page.html"))
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(f"shardbeam: error: {path}: was changed")
    assert f"shardbeam verify {copied} --repair CONFIG.yaml" in done.stderr


@pytest.mark.parametrize("column", ["key", "source", "objects"])
def test_rows_without_a_value(column: str, copied: Path, index: Path) -> None:
    table = parquet.read_table(index)
    field = table.schema.field(column)
    values = [*table[column].to_pylist()[:-1], None]
    place = table.schema.get_field_index(column)
    parquet.write_table(table.set_column(place, field, pa.array(values, field.type)), index)
    list_again(copied)
    done = run("show", str(copied), "--findings")
    problem = f"{index}: row {table.num_rows - 1}: has no value in '{column}'"
    assert (done.exit_code, done.stderr) == (1, f"shardbeam: error: {problem}\n")


def test_the_manifest_is_read_once_and_only_for_an_index(built: Build, tmp_path: Path) -> None:
    output = built.output
    assert run("index", str(output), "--output", str(tmp_path / "index")).exit_code == 0
    with mock.patch.object(stored, "read_manifest", wraps=manifest.read_manifest) as read:
        shardbeam.open(output, index=tmp_path / "index")
        assert read.call_count == 0
        shardbeam.open(output)
        assert read.call_count == 1
        # Asked for the checksums of the index and of the copy, and for the boxes' meaning.
        shardbeam.open(output / SHARD, cache=tmp_path / "cache").detection()
        assert read.call_count == 2


def test_the_manifest_above_a_folder_of_shards_is_another_dataset_s(copied: Path) -> None:
    older = copied / "older"
    (older / "index").mkdir(parents=True)
    shutil.copy(copied / SHARD, older)
    table = parquet.read_table(copied / "index" / f"{SHARD}.parquet")
    parquet.write_table(table, older / "index" / f"{SHARD}.parquet", compression="none")
    assert len(shardbeam.open(older)) == 3


def test_an_index_beside_anyone_s_files_has_no_manifest(built: Build, tmp_path: Path) -> None:
    shutil.copy(built.output / SHARD, tmp_path / "a.tfrecord")
    words = (str(tmp_path / "a.tfrecord"), "--output", str(tmp_path / "index"))
    assert run("index", *words).exit_code == 0
    (tmp_path / "manifest.json").write_text("{}")
    assert len(shardbeam.open(tmp_path / "a.tfrecord")) == 3


def test_page_checksums_of_anyone_s_index(built: Build, tmp_path: Path) -> None:
    shutil.copy(built.output / SHARD, tmp_path / "a.tfrecord")
    table = parquet.read_table(built.output / "index" / f"{SHARD}.parquet")
    path = tmp_path / "i" / "a.tfrecord.parquet"
    path.parent.mkdir()
    parquet.write_table(table, path, compression="none", write_page_checksum=True)
    opened = shardbeam.open(tmp_path / "a.tfrecord", index=path.parent)
    assert len(opened) == 3
    data = path.read_bytes()
    # The checksum of a page is of its values, so a key with one other letter gives another one.
    path.write_bytes(data.replace(b"a.jpg", b"e.jpg", 1))
    with pytest.raises(InputError, match=r"not a Parquet file, or a damaged one: .*CRC"):
        shardbeam.open(tmp_path / "a.tfrecord", index=path.parent, where={"keys": ["a.jpg"]})
