"""The transforms that list images and read annotations, each in a pipeline of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Category, ImageRef, ListedImage, Reject
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.listing import (
    ListingSummary,
    summarize_image,
    summarize_listing,
)
from shardbeam.transforms.formats.sources import Source
from shardbeam.transforms.list_images import ListImages
from shardbeam.transforms.read_annotations import ReadAnnotations
from shardbeam.transforms.sum_by_split import merge_sums
from shardbeam.transforms.summarize_listing import SummarizeListing
from tests.transforms.local_pipeline import local_pipeline, summaries

SPLITS = SplitAssignment(by_source={"train": "train", "test": "test"})


def image(name: str) -> ListedImage:
    return ListedImage(name, ImageRef(uri=f"/images/{name}", size_bytes=5, version="1"))


# ListImages, SummarizeListing


def make_images(folder: Path) -> str:
    (folder / "b").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(b"12345")
    (folder / "b" / "c.txt").touch()
    return str(folder)


def test_listing_gives_every_file_of_every_source_with_size_and_version(tmp_path: Path) -> None:
    train = make_images(tmp_path / "one")
    test = make_images(tmp_path / "other")
    os.utime(f"{train}/a.jpg", ns=(7, 7))
    os.utime(f"{train}/b/c.txt", ns=(8, 8))
    os.utime(f"{test}/a.jpg", ns=(9, 9))
    os.utime(f"{test}/b/c.txt", ns=(9, 9))
    sources = [
        Source(name="train", roots=(train,), format="image-folder"),
        Source(name="test", roots=(test,), format="image-folder"),
    ]
    expected = [
        (
            ("train", "a.jpg"),
            ListedImage("a.jpg", ImageRef(uri=f"{train}/a.jpg", size_bytes=5, version="7")),
        ),
        (
            ("train", "b/c.txt"),
            ListedImage("b/c.txt", ImageRef(uri=f"{train}/b/c.txt", size_bytes=0, version="8")),
        ),
        (
            ("test", "a.jpg"),
            ListedImage("a.jpg", ImageRef(uri=f"{test}/a.jpg", size_bytes=5, version="9")),
        ),
        (
            ("test", "b/c.txt"),
            ListedImage("b/c.txt", ImageRef(uri=f"{test}/b/c.txt", size_bytes=0, version="9")),
        ),
    ]
    with local_pipeline() as pipeline:
        result = pipeline | ListImages(sources=sources, splits=SPLITS)
        assert_that(result.images, equal_to(expected), label="Images")
        assert_that(result.rejects, equal_to([]), label="Rejects")


def test_a_listed_name_that_is_no_text_is_a_reject_and_counted(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"\xe9.jpg")).touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    source = Source(name="train", roots=(str(tmp_path),), format="image-folder")
    reject = Reject(
        split="train",
        source="train",
        key="\\udce9.jpg",
        stage="list",
        reason=Reason.UNREADABLE_NAME,
        detail="the file's name is not valid UTF-8; rename the file",
        listed=True,
    )
    with local_pipeline() as pipeline:
        result = pipeline | ListImages(sources=[source], splits=SPLITS)
        summary = (result.images, result.others, result.rejects) | SummarizeListing(splits=SPLITS)
        assert_that(result.images, equal_to([]), label="Images")
        assert_that(result.rejects, equal_to([reject]), label="Rejects")
        assert_that(
            summary, summaries([{"train": 1}], summary=lambda listing: listing.files), label="Files"
        )


def test_an_empty_root_is_an_error_that_names_it(tmp_path: Path) -> None:
    pipeline = local_pipeline()
    source = Source(name="train", roots=(str(tmp_path),), format="image-folder")
    pipeline | ListImages(sources=[source], splits=SPLITS)
    with pytest.raises(RuntimeError, match=f"InputError: {tmp_path}: no files found"):
        pipeline.run()


def summarize(*images: tuple[tuple[str, str], ListedImage]) -> ListingSummary:
    """Runs `SummarizeListing` by its own functions, one after the other."""
    counted = (summarize_image(element, splits=SPLITS) for element in images)
    return summarize_listing(merge_sums({split: counts} for split, counts in counted))


def test_a_listing_is_summarized_in_any_order() -> None:
    identities = [("train", "a"), ("train", "b"), ("test", "a")]
    images = [(identity, image(identity[1])) for identity in identities]
    expected = summarize(*images)
    assert expected.files == {"test": 1, "train": 2}
    with local_pipeline() as pipeline:
        summary = (
            pipeline | "Images" >> beam.Create(images[::-1]),
            pipeline | "Others" >> beam.Create([]),
            pipeline | "Rejects" >> beam.Create([]),
        ) | SummarizeListing(splits=SPLITS)
        assert_that(summary, equal_to([expected]))


@pytest.mark.parametrize(
    "other",
    [
        ImageRef(uri="/images/b", size_bytes=5, version="1"),
        ImageRef(uri="/images/a", size_bytes=6, version="1"),
        ImageRef(uri="/images/a", size_bytes=5, version="2"),
        ImageRef(uri="/images/a", size_bytes=5, version="1", offset=1),
    ],
)
def test_a_listings_fingerprint_changes_with_place_size_and_version(other: ImageRef) -> None:
    identity = ("train", "a")
    assert summarize((identity, image("a"))) == summarize((identity, image("a")))
    listed = ListedImage("a", other)
    assert (
        summarize((identity, image("a"))).fingerprint != summarize((identity, listed)).fingerprint
    )


# ReadAnnotations


def coco(*file_names: str) -> str:
    return json.dumps(
        {
            "images": [{"id": n, "file_name": name} for n, name in enumerate(file_names)],
            "annotations": [{"id": 1, "image_id": 9, "category_id": 3, "bbox": [0, 0, 1, 1]}],
            "categories": [{"id": 3, "name": "cat"}],
        }
    )


def test_annotation_files_are_read_with_categories_and_entries_apart(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text(coco("a.jpg"))
    (tmp_path / "2.json").write_text(coco("b.jpg", "a.jpg"))
    files = [str(tmp_path / name) for name in ("1.json", "2.json")]
    source = Source(name="train", roots=("/x",), format="coco", settings={"annotations": files})
    expected = [
        (("train", "a.jpg"), 0, 0, None),
        (("train", "b.jpg"), 1, 0, None),
        (("train", "a.jpg"), 1, 1, None),
        (("train", "image_id=9"), 0, 1, Reason.UNKNOWN_IMAGE_ID),
        (("train", "image_id=9"), 1, 2, Reason.UNKNOWN_IMAGE_ID),
    ]
    with local_pipeline() as pipeline:
        result = pipeline | beam.Create([]) | ReadAnnotations(sources=[source])
        assert_that(
            result.entries,
            summaries(
                expected,
                summary=lambda element: (
                    element[0],
                    element[1].file_index,
                    element[1].position,
                    element[1].defect,
                ),
            ),
            label="Entries",
        )
        assert_that(
            result.categories,
            equal_to([Category("cat", 3, file) for file in files]),
            label="Categories",
        )


def test_without_annotation_files_there_are_neither_entries_nor_categories() -> None:
    with local_pipeline() as pipeline:
        result = (
            pipeline
            | beam.Create([])
            | ReadAnnotations(sources=[Source(name="train", roots=("/x",), format="image-folder")])
        )
        assert_that(result.entries, equal_to([]), label="Entries")
        assert_that(result.categories, equal_to([]), label="Categories")
