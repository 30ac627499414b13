"""Datasets in ArrayRecord files, read by TFDS and by Grain."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.dataset import coco_words, run

pytest.importorskip("array_record")

from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.transforms.containers.base import find_container

SETTINGS = ("--set", "output.num_shards=3", "--set", "output.container=array_record")


@pytest.fixture(scope="module")
def folder(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("containers") / "out"
    run(*coco_words(shapes, output, *SETTINGS), exit_code=0)
    return output


def records(folder: Path) -> list[bytes]:
    (split,) = open_dataset(str(folder)).splits
    container = find_container(split.container)
    return [record for shard in split.shards for _, record in container.read(shard)]


def test_the_manifest_names_the_package(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["codecs"]["array-record"]


def test_tfds_reads_it(folder: Path) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    source = tfds.builder_from_directory(str(folder)).as_data_source("train")
    assert len(source) == len(records(folder))
    assert {row["image/filename"] for row in source}


def test_grain_reads_it(folder: Path) -> None:
    grain = pytest.importorskip("grain.python")
    source = grain.ArrayRecordDataSource(sorted(map(str, folder.glob("*.array_record-*"))))
    assert [source[number] for number in range(len(source))] == records(folder)


def test_the_config_names_what_is_missing(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    monkeypatch.delitem(sys.modules, "array_record.python.array_record_module", raising=False)
    missing = run(*coco_words(shapes, tmp_path / "out", *SETTINGS), exit_code=2)
    assert "pip install array-record" in missing.stderr
