from __future__ import annotations

import importlib.metadata
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that

from shardbeam.transforms.beam.stages import MergeCounts
from shardbeam.transforms.core.counts import RECORDS
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.join.sources import JoinSettings, Source
from shardbeam.transforms.formats.table.csv import CsvFormat
from shardbeam.transforms.list_images import ListImages
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


def test_sources_without_images_have_counts_all_the_same() -> None:
    source = Source("train", CsvFormat(manifest=["a.csv"]))
    with local_pipeline() as pipeline:
        result = pipeline | ListImages(sources=[source], settings=SETTINGS)
        assert_that(
            result.counts | MergeCounts(),
            summaries([{}], summary=lambda inputs: inputs.listing.files),
        )


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
