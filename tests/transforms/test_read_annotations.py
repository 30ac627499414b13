from __future__ import annotations

import json
from pathlib import Path

import apache_beam as beam
from apache_beam.testing.util import assert_that

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.merge_counts import MergeCounts
from shardbeam.transforms.read_annotations import ReadAnnotations
from tests.support.local_pipeline import decode_value, local_pipeline, summaries

SPLITS = SplitAssignment(by_source={"train": "train"})


def coco(*file_names: str) -> str:
    return json.dumps(
        {
            "images": [{"id": n, "file_name": name} for n, name in enumerate(file_names)],
            "annotations": [{"id": 1, "image_id": 9, "category_id": 3, "bbox": [0, 0, 1, 1]}],
            "categories": [{"id": 3, "name": "cat"}],
        }
    )


def summarize(element: tuple[bytes, bytes]) -> tuple[tuple[str, str], int, int, Reason | None]:
    key, entry = decode_value(element)
    assert isinstance(entry, AnnotationEntry)
    return key, entry.file_index, entry.position, entry.defect


def test_annotation_files_are_read_with_categories_and_entries_apart(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(coco("a.jpg"))
    (tmp_path / "2.json").write_text(coco("b.jpg", "a.jpg"))
    files = [str(tmp_path / name) for name in ("1.json", "2.json")]
    source = Source("train", CocoFormat(images="/x", annotations=files))
    expected = [
        (("train", "a.jpg"), 0, 0, None),
        (("train", "b.jpg"), 1, 0, None),
        (("train", "a.jpg"), 1, 1, None),
        (("train", "image_id=9"), 0, 1, Reason.UNKNOWN_IMAGE_ID),
        (("train", "image_id=9"), 1, 2, Reason.UNKNOWN_IMAGE_ID),
    ]
    with local_pipeline() as pipeline:
        result = (pipeline | beam.Create([]),) | ReadAnnotations(sources=[source], splits=SPLITS)
        assert_that(
            result.values[0],
            summaries(
                expected,
                summary=summarize,
            ),
            label="Entries",
        )
        assert_that(
            result.counts | MergeCounts(),
            summaries(
                [[Category("cat", 3, files[0])]],
                summary=lambda inputs: list(inputs.classes.categories.values()),
            ),
            label="InputCounts",
        )


def test_without_annotation_files_there_is_no_step() -> None:
    source = Source("train", ImageFolderFormat(images="/x"))
    pipeline = local_pipeline()
    result = (pipeline | beam.Create([]),) | ReadAnnotations(sources=[source], splits=SPLITS)
    assert result == ((), ())
