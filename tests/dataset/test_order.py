"""The order of JSON keys and of Parquet columns is part of a dataset's bytes."""

from __future__ import annotations

import json
from pathlib import Path

from pyarrow import parquet

from tests.support.builds import build

INDEX = {
    **dict.fromkeys(("key", "source", "split"), "string"),
    **{"shard": "int32", "offset": "int64", "length": "int64", "sha256": "string"},
    **{"width": "int32", "height": "int32", "format": "string", "objects": "int32"},
    **{"crc32c": "uint32", "labels": "string", "dhash": "uint64", "classes_digest": "string"},
    "classes": "list<element: int32>",
    "findings": "list<element: struct<kind: string, strength: int64>>",
    "map_classes": "list<element: int32>",
    "crop_hashes": "list<element: uint64>",
    "class_objects": "list<element: int32>",
}
STATISTICS = """
areas aspects box_centres box_centres_by_class box_sizes box_sizes_by_class caption_characters
caption_words captions count_of_pairs crowds empty_masks example_bytes examples facets
facets_left_out formats height_range heights image_bytes images images_by_class images_by_finding
images_by_objects keypoints labels mask_areas masks num_bytes object_areas objects objects_by_class
objects_by_finding objects_per_image pairs pixels_by_class relative_areas same_boxes unannotated
width_range widths"""
BINS = """
areas aspects box_centres box_sizes caption_characters caption_words example_bytes heights
mask_areas objects_per_image relative_areas widths"""


def test_keys_and_columns_keep_their_order(shapes: Path, tmp_path: Path) -> None:
    annotations = json.loads((shapes / "annotations" / "instances.json").read_bytes())
    annotations["images"].append({"id": 1000, "file_name": "gone.jpg", "width": 9, "height": 9})
    (tmp_path / "instances.json").write_text(json.dumps(annotations))
    output = tmp_path / "out"
    build(
        *("coco", "--images", shapes / "images", "--annotations", tmp_path / "instances.json"),
        *("--name", "shapes", "--set", "rejects.max_ratio=1", "--set", "labels.min_side_px=20"),
        output=output,
    )
    (index,) = (output / "index").iterdir()
    fields = [(field.name, str(field.type)) for field in parquet.read_schema(index)]
    assert fields == list(INDEX.items())
    statistics = json.loads((output / "statistics.json").read_bytes())
    assert list(statistics) == ["bins", "splits", "version"]
    assert list(statistics["bins"]) == BINS.split()
    assert list(statistics["splits"]["train"]) == STATISTICS.split()
    for name, keys in (
        ("corrections", "split source key what from to"),
        ("rejects", "split source key stage reason detail listed"),
    ):
        line, *_ = (output / name / "train.jsonl").read_text().splitlines()
        assert list(json.loads(line)) == keys.split()
