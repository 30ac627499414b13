"""Datasets in Parquet files, read by pyarrow alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.transforms.containers.base import find_container
from shardbeam.transforms.core.errors import DamagedError
from tests.support.dataset import coco_words, run
from tests.support.stored import stored_file

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture(scope="module")
def path(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("parquet") / "out"
    settings = ("--set", "output.container=hf_parquet", "--set", "masks=png")
    run(*coco_words(shapes, output, *settings), exit_code=0)
    (path,) = output.glob("*.parquet")
    return path


def test_a_row_has_the_image_and_all_other_keys(path: Path, shapes: Path) -> None:
    assert path.name == "coco-train-00000-of-00001.parquet"
    table = parquet.read_table(path)
    assert table.schema.field("image/encoded").type == IMAGE
    assert table.schema.field("image/object/mask").type == pa.list_(pa.field("element", IMAGE))
    assert table.schema.field("image/object/area").type.value_type == pa.float32()
    manifest = json.loads((path.parent / "manifest.json").read_bytes())
    assert table.column_names == [spec["key"] for spec in manifest["features"]]
    instances = json.loads((shapes / "annotations" / "instances.json").read_bytes())
    names = {category["id"]: category["name"] for category in instances["categories"]}
    objects: dict[str, list[Any]] = {image["file_name"]: [] for image in instances["images"]}
    files = {image["id"]: image["file_name"] for image in instances["images"]}
    for each in instances["annotations"]:
        objects[files[each["image_id"]]].append(each)
    rows = table.to_pylist()
    assert len(rows) == len(objects)
    for row in rows:
        name = row["image/filename"]
        image = {"bytes": (shapes / "images" / name).read_bytes(), "path": name}
        assert row["image/encoded"] == image
        expected = [each["category_id"] for each in objects[name]]
        assert row["image/object/class/label"] == expected
        assert row["image/object/class/text"] == [names[each] for each in expected]
        assert len(row["image/object/mask"]) == len(expected)


def test_the_schema_names_the_features_of_hugging_face(path: Path) -> None:
    metadata = parquet.read_schema(path).metadata
    features = json.loads(metadata[b"huggingface"])["info"]["features"]
    assert features["image/encoded"] == {"_type": "Image"}
    assert features["image/height"] == {"dtype": "int64", "_type": "Value"}
    assert features["image/object/mask"] == {"feature": {"_type": "Image"}, "_type": "Sequence"}
    labels = features["image/object/class/label"]["feature"]
    # COCO's ids have gaps.
    assert labels["_type"] == "ClassLabel"
    assert labels["names"][0] == "unused 0"
    assert [name for name in labels["names"] if not name.startswith("unused ")] == (
        (path.parent / "labels.txt").read_text().splitlines()
    )


def test_groups_of_rows_are_small_and_images_are_not_compressed(tmp_path: Path) -> None:
    images = tmp_path / "images"
    assert run("sample", "shapes", "--output", str(images), "--images", "40").exit_code == 0
    settings = ("--set", "output.container=hf_parquet")
    assert run(*coco_words(images, tmp_path / "out", *settings)).exit_code == 0
    (path,) = (tmp_path / "out").glob("*.parquet")
    metadata = parquet.read_metadata(path)
    sizes = [metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)]
    assert len(sizes) > 3
    assert max(sizes) < 2_000_000
    group = metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(metadata.num_columns)}
    image = columns["image/encoded.bytes"]
    assert (image.compression, image.statistics) == ("UNCOMPRESSED", None)
    assert columns["image/filename"].compression == "ZSTD"
    assert columns["image/filename"].statistics is not None


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"a": pa.array([1], pa.int32())}),
        pa.table({"a": pa.array([None], pa.int64())}),
        pa.table({"a": pa.array([[None]], pa.list_(pa.float32()))}),
        pa.table({"a": pa.array([None], IMAGE)}),
        pa.table({"a": pa.array([{"bytes": None, "path": ""}], IMAGE)}),
        pa.table({"a": pa.array([[[1]]], pa.list_(pa.list_(pa.int64())))}),
    ],
)
def test_tables_of_other_people_are_refused(table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    parquet.write_table(table, path)
    with pytest.raises(DamagedError, match="not a Parquet file of Shardbeam, or a damaged one"):
        list(find_container("hf_parquet").read(stored_file(path)))
