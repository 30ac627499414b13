"""WriteToTFRecord, with the arguments of Beam's transform, and its refusals."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.testing import test_pipeline, test_stream
from apache_beam.testing.util import assert_that
from apache_beam.transforms.display import DisplayData

from shardbeam.transforms.write_to_tfrecord import WriteToTFRecord
from tests.support.example_builders import make_label_map
from tests.support.local_pipeline import local_pipeline, summaries
from tests.support.shards import finished_shards, make_census, make_records, make_settings


def construct(
    prefix: str = "/data/x.tfrecord",
    *,
    splits: tuple[str, ...] = ("train",),
    settings: Mapping[str, Any] = {},
    **options: Any,  # noqa: ANN401  # Arguments of Beam's.
) -> WriteToTFRecord:
    made = dataclasses.replace(make_settings(Path("/data"), splits=splits), **settings)
    nothing: Any = None
    return WriteToTFRecord(prefix, settings=made, census=nothing, label_map=nothing, **options)


def test_it_is_beams_own_transform_with_its_arguments_first() -> None:
    theirs = list(inspect.signature(beam.io.WriteToTFRecord).parameters.values())
    ours = list(inspect.signature(WriteToTFRecord).parameters.values())[: len(theirs)]
    assert issubclass(WriteToTFRecord, beam.io.WriteToTFRecord)
    assert [(each.name, each.kind) for each in ours] == [(each.name, each.kind) for each in theirs]


@pytest.mark.parametrize(
    ("prefix", "options", "message"),
    [
        ("/d/x", {"coder": coders.StrUtf8Coder()}, "coder must be BytesCoder, got StrUtf8Coder"),
        ("/d/x", {"triggering_frequency": 5}, "triggering_frequency is for unbounded input"),
        ("/d/x", {"triggering_frequency": 0}, "triggering_frequency is for unbounded input"),
        ("/d/x", {"compression_type": CompressionTypes.GZIP}, "compression 'gzip': tfds.load"),
        ("/d/x", {"compression_type": "zstd"}, "compression 'zstd': tfds.load"),
        ("/d/x", {"file_name_suffix": ".gz"}, "compression 'gzip': tfds.load"),
        ("/d/x.bz2", {}, "compression 'bzip2': tfds.load"),
        ("/d/x", {"shard_name_template": "-W-SSSSS-of-NNNNN"}, "window templates"),
        ("/d/x", {"shard_name_template": "-V-SSSSS-of-NNNNN"}, "window templates"),
        ("/d/x", {"shard_name_template": "-SSSSS"}, "needs both S and N"),
        ("/d/x", {"settings": {"container": "other"}}, "'other': use WriteShards for it"),
        ("/d/x", {"splits": ("train", "test")}, "several splits need {split} in the prefix '/d/x'"),
    ],
)
def test_what_no_reader_could_load_is_refused(
    prefix: str, options: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        construct(prefix, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"coder": coders.BytesCoder()},
        {"compression_type": CompressionTypes.UNCOMPRESSED},
        {"compression_type": CompressionTypes.UNCOMPRESSED, "file_name_suffix": ".gz"},
        {"splits": ("train", "test"), "prefix": "/d/x-{split}"},
    ],
)
def test_what_readers_load_is_taken(options: Mapping[str, Any]) -> None:
    construct(**options)


def test_display_data_shows_what_decides_the_files() -> None:
    items = DisplayData.create_from(construct(num_shards=7, settings={"seed": 3})).items
    assert {item.key: item.value for item in items} == {
        "file_path_prefix": "/data/x.tfrecord",
        "num_shards": "7",
        "shard_size_bytes": 150_000_000,
        "seed": 3,
    }
    by_size = DisplayData.create_from(construct()).items
    assert {item.value for item in by_size if item.key == "num_shards"} == {"by size"}


def test_unbounded_input_is_refused() -> None:
    pipeline = test_pipeline.TestPipeline()
    unbounded = pipeline | test_stream.TestStream().advance_watermark_to_infinity()
    with pytest.raises(ValueError, match="bounded input only"):
        unbounded | construct()


def test_it_writes_what_it_is_asked_to(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "out", splits=("train", "test"))
    train, test = make_records(tmp_path / "images", 2)
    records = [("train", train), ("test", test)]
    with local_pipeline() as pipeline:
        result = (
            pipeline
            | "Records" >> beam.Create(records)
            | WriteToTFRecord(
                "/data/x-{split}",
                file_name_suffix=".records",
                num_shards={"train": 2},
                settings=settings,
                census=pipeline | "Census" >> beam.Create([make_census(records)]),
                label_map=pipeline
                | "Labels" >> beam.Create([make_label_map({"cat": 1}, objects=False)]),
            )
        )
        assert_that(
            result.shards,
            summaries([0, 0, 1], summary=lambda shard: shard.shard_index),
        )
    assert sorted(finished_shards(settings.staging)) == [
        "x-test-00000-of-00001.records",
        "x-train-00000-of-00002.records",
        "x-train-00001-of-00002.records",
    ]
