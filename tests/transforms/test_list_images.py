from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from shardbeam.transforms.core.counts import RECORDS
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageRef, ListedImage, Reject
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.join.settings import JoinSettings
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.formats.table.csv import CsvFormat
from shardbeam.transforms.list_images import ListImages
from shardbeam.transforms.merge_counts import MergeCounts
from tests.support.local_pipeline import decode_value, local_pipeline, summaries
from tests.support.shards import decode_batch

SETTINGS = JoinSettings(
    splits=SplitAssignment(by_source={"train": "train", "test": "test"}),
    labels=LabelSettings(),
)


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
        Source("train", ImageFolderFormat(images=train)),
        Source("test", ImageFolderFormat(images=test)),
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
        result = pipeline | ListImages(sources=sources, settings=SETTINGS, makes_records=False)
        assert_that(result.values[0], summaries(expected, summary=decode_value), label="Images")
        assert_that(result.rejects[0], equal_to([]), label="Rejects")
        assert_that(
            result.counts | MergeCounts(),
            summaries([{"test": 2, "train": 2}], summary=lambda inputs: inputs.listing.files),
            label="InputCounts",
        )


def test_only_names_that_other_files_may_share_are_joined(tmp_path: Path) -> None:
    made = ["cat/1.jpg", "dog/2.jpg"]
    # The first two are equal, and so are the last two, in Unicode's NFC form.
    joined = ["cat/e\u0301.jpg", "cat/\u00e9.jpg", "cat/K.jpg", "cat/\u212a.jpg"]
    for name in (*made, *joined, "cat/notes.txt", "stray.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    source = Source("train", ImageFolderFormat(images=str(tmp_path)))
    with local_pipeline() as pipeline:
        result = pipeline | ListImages(sources=[source], settings=SETTINGS)
        assert_that(
            result.values[0],
            summaries(
                ["cat/K.jpg", "cat/K.jpg", "cat/\u00e9.jpg", "cat/\u00e9.jpg"],
                summary=lambda value: decode_value(value)[1].key,
            ),
            label="Joined",
        )
        records = result.records[0] | beam.FlatMap(decode_batch)
        assert_that(records, summaries(made, summary=lambda each: each.key), label="Records")
        assert_that(
            result.rejects[0],
            summaries(
                [("stray.jpg", Reason.NO_CLASS_FOLDER)],
                summary=lambda reject: (reject.key, reject.reason),
            ),
            label="Rejects",
        )
        assert_that(
            result.counts | MergeCounts(),
            summaries(
                [(8, 2, {"not_an_image_name": 1}, {"no_class_folder": 1}, 2)],
                summary=lambda inputs: (
                    inputs.listing.files["train"],
                    inputs.splits["train"].images,
                    inputs.splits["train"].excluded,
                    inputs.splits["train"].rejected,
                    inputs.counts.sent[RECORDS].number,
                ),
            ),
            label="InputCounts",
        )


def test_a_listed_name_that_is_no_text_is_a_reject_and_counted(tmp_path: Path) -> None:
    try:
        (tmp_path / os.fsdecode(b"\xe9.jpg")).touch()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    source = Source("train", ImageFolderFormat(images=str(tmp_path)))
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
        result = pipeline | ListImages(sources=[source], settings=SETTINGS)
        assert_that(result.values[0], equal_to([]), label="Images")
        assert_that(result.rejects[0], equal_to([reject]), label="Rejects")
        assert_that(
            result.counts | MergeCounts(),
            summaries([{"train": 1}], summary=lambda inputs: inputs.listing.files),
            label="InputCounts",
        )


def test_sources_without_images_have_counts_all_the_same() -> None:
    source = Source("train", CsvFormat(manifest=["a.csv"]))
    with local_pipeline() as pipeline:
        result = pipeline | ListImages(sources=[source], settings=SETTINGS)
        assert_that(
            result.counts | MergeCounts(),
            summaries([{}], summary=lambda inputs: inputs.listing.files),
        )


def test_an_empty_root_is_an_error_that_names_it(tmp_path: Path) -> None:
    pipeline = local_pipeline()
    source = Source("train", ImageFolderFormat(images=str(tmp_path)))
    pipeline | ListImages(sources=[source], settings=SETTINGS)
    with pytest.raises(RuntimeError, match=f"InputError: {tmp_path}: the folder is empty"):
        pipeline.run()


def test_a_worker_with_another_version_of_shardbeam_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = importlib.metadata.version
    pipeline = local_pipeline()
    source = Source("train", ImageFolderFormat(images=make_images(tmp_path)))
    pipeline | ListImages(sources=[source], settings=SETTINGS)
    monkeypatch.setattr(
        importlib.metadata,
        "version",
        lambda name: "0.0.7" if name == "shardbeam" else installed(name),
    )
    launcher = installed("shardbeam")
    with pytest.raises(
        RuntimeError, match=f"it has Shardbeam 0.0.7, and the launcher .* {launcher}"
    ):
        pipeline.run()
