"""Datasets in ArrayRecord files: the same records, read back by TFDS and by Grain."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.support.dataset import coco_words, last_run, read_dataset, run

pytest.importorskip("array_record")

from shardbeam.transforms.containers.base import container_names, find_container
from shardbeam.transforms.dataset.read.dataset import open_dataset
from shardbeam.transforms.storage.base import StoredFile

SHARDS = ("--set", "output.num_shards=3")
SETTINGS = (*SHARDS, "--set", "output.container=array_record")


@pytest.fixture(scope="module")
def folders(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same dataset in TFRecord and in ArrayRecord files."""
    folder = tmp_path_factory.mktemp("containers")
    for name, settings in (("tfrecord", SHARDS), ("array_record", SETTINGS)):
        result = run(*coco_words(shapes, folder / name, *settings))
        assert result.exit_code == 0, result.stderr
    return folder / "tfrecord", folder / "array_record"


def records(folder: Path) -> list[bytes]:
    (split,) = open_dataset(str(folder)).splits
    container = find_container(split.container)
    return [record for shard in split.shards for _, record in container.read(shard)]


def test_the_records_are_those_of_tfrecord_files(folders: tuple[Path, Path]) -> None:
    tfrecord, array_record = folders
    assert records(array_record) == records(tfrecord)
    assert json.loads((array_record / "dataset_info.json").read_text())["fileFormat"] == (
        "array_record"
    )
    manifest = json.loads((array_record / "manifest.json").read_text())
    assert manifest["codecs"]["array-record"]


def test_the_index_has_the_number_of_each_record(folders: tuple[Path, Path]) -> None:
    _, folder = folders
    for path in sorted((folder / "index").iterdir()):
        rows = pyarrow.parquet.read_table(path).to_pylist()
        assert [row["offset"] for row in rows] == list(range(len(rows)))


def test_the_bytes_are_the_same_and_shards_are_reused(
    folders: tuple[Path, Path], shapes: Path, tmp_path: Path
) -> None:
    _, folder = folders
    words = coco_words(shapes, tmp_path / "out", *SETTINGS, "--processes", "3")
    assert run(*words).exit_code == 0
    assert read_dataset(tmp_path / "out") == read_dataset(folder)
    again = coco_words(shapes, tmp_path / "again", *SETTINGS, "--reuse", str(folder))
    assert run(*again).exit_code == 0
    assert last_run(tmp_path / "again")["outcome"]["reuse"]["copied_shards"] == 3
    assert read_dataset(tmp_path / "again") == read_dataset(folder)


def test_show_and_readers(folders: tuple[Path, Path]) -> None:
    _, folder = folders
    shown = run("show", str(folder), "--limit", "2")
    assert (shown.exit_code, shown.stdout.count("image/encoded")) == (0, 2)
    tfds = pytest.importorskip("tensorflow_datasets")
    source = tfds.builder_from_directory(str(folder)).as_data_source("train")
    assert len(source) == len(records(folder))
    assert {row["image/filename"] for row in source}
    reading: Any = pytest.importorskip("shardbeam.pipelines.read")
    with pytest.raises(Exception, match="reads no array_record files; read them with tfds"):
        reading.load_dataset(str(folder))


def test_grain_reads_it(folders: tuple[Path, Path]) -> None:
    grain = pytest.importorskip("grain.python")
    _, folder = folders
    source = grain.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record-*"))))
    assert [source[number] for number in range(len(source))] == records(folder)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[: len(data) // 2], "bytes, but the manifest says"),
        (lambda data: b"x" + data[1:], "damaged: its checksum is"),
    ],
)
def test_damage_is_found(
    change: Any,  # noqa: ANN401  # A function of bytes.
    problem: str,
    folders: tuple[Path, Path],
    tmp_path: Path,
) -> None:
    shutil.copytree(folders[1], tmp_path / "out")
    shard = min((tmp_path / "out").glob("*.array_record-*"))
    shard.write_bytes(change(shard.read_bytes()))
    shown = run("show", str(tmp_path / "out"))
    assert shown.exit_code == 1
    assert shard.name in shown.stderr
    assert problem in shown.stderr


def test_a_file_of_another_kind_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"x" * 100)
    file = StoredFile(path="x", uri=str(path), size_bytes=100, version="")
    with pytest.raises(Exception, match="not an ArrayRecord file, or a damaged one"):
        list(find_container("array_record").read(file))


def test_the_config_names_what_is_missing(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert container_names() == ["array_record", "tfrecord"]
    unknown = run(*coco_words(shapes, tmp_path / "out", "--set", "output.container=arrayrecord"))
    assert unknown.exit_code == 2
    assert "output.container" in unknown.stderr
    assert "did you mean 'array_record'?" in unknown.stderr
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    monkeypatch.delitem(sys.modules, "array_record.python.array_record_module", raising=False)
    missing = run(*coco_words(shapes, tmp_path / "out", *SETTINGS))
    assert missing.exit_code == 2
    assert "pip install array-record" in missing.stderr
