from __future__ import annotations

import errno
import inspect
import io
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam import coders
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.testing import test_pipeline, test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.display import DisplayData

from shardbeam.transforms import write_to_tfrecord
from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    ImageAnnotations,
    ImageRef,
    Record,
    Reject,
    encode_annotations,
)
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.dataset.outcome import SplitOutcome, Totals
from shardbeam.transforms.dataset.shard_plan import ShardPlan, plan_shards
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.dataset.staging import Staging
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.record_encoder import EncoderSettings
from shardbeam.transforms.examples.schema import FeatureSettings
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.images.settings import ImageSettings
from shardbeam.transforms.write_to_tfrecord import WriteResult, WriteToTFRecord, count_helpers
from tests.examples.builders import encode_picture, make_label_map
from tests.transforms.local_pipeline import local_pipeline, summaries

ENCODER = EncoderSettings(
    image=ImageSettings(),
    annotated_as="auto",
    features=FeatureSettings(kinds=frozenset({Kind.CLASSIFICATION})),
)
PICTURE = encode_picture(mode="RGB", format="JPEG", size=(8, 6))


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(output=str(tmp_path / "out"), plan="plan", run_id="run")


def make_records(folder: Path, count: int, *, data: bytes = PICTURE) -> list[Record]:
    folder.mkdir(exist_ok=True)
    return [make_record(folder / f"{number}.jpg", data=data) for number in range(count)]


def make_record(path: Path, *, data: bytes) -> Record:
    path.write_bytes(data)
    status = path.stat()
    return Record(
        source="s",
        key=path.name,
        image=ImageRef(uri=str(path), size_bytes=status.st_size, version=str(status.st_mtime_ns)),
        annotations=encode_annotations(ImageAnnotations(image_id="", labels=("cat",))),
    )


def write(
    pipeline: beam.Pipeline,
    records: Iterable[tuple[str, Record]],
    *,
    staging: Staging,
    splits: Sequence[str] = ("train",),
    **options: Any,  # noqa: ANN401  # Arguments of the transform's own.
) -> WriteResult:
    records = list(records)
    census = Census()
    for split, record in records:
        counts = SplitOutcome(images=1, num_bytes=record.expected_bytes)
        census.splits.setdefault(split, SplitOutcome()).add(counts)
    label_map = pipeline | "Labels" >> beam.Create([make_label_map({"cat": 1}, objects=False)])
    result: WriteResult = (
        pipeline
        | "Records" >> beam.Create(records)
        | WriteToTFRecord(
            "/data/x-{split}.tfrecord",
            splits=splits,
            encoder=ENCODER,
            census=pipeline | "Census" >> beam.Create([census]),
            label_map=label_map,
            staging=staging,
            **options,
        )
    )
    return result


def finished_shards(staging: Staging) -> dict[str, ShardResult]:
    """What the done-files in staging say, by the name that the shard is going to have."""
    done = Path(staging.root).glob("shards/*/done")
    results = [msgspec.msgpack.decode(path.read_bytes(), type=ShardResult) for path in done]
    return {result.data.destination: result for result in results}


def read_shard(result: ShardResult, *, staging: Staging) -> list[str]:
    """The file names in a shard's Examples, in their order."""
    data = Path(staging.uri(result.data.staged)).read_bytes()
    assert len(data) == result.data.size_bytes
    examples = [Example.FromString(record) for record in read_records(io.BytesIO(data))]
    return [
        example.features.feature["image/filename"].bytes_list.value[0].decode()
        for example in examples
    ]


# Construction


def construct(prefix: str = "/data/x.tfrecord", **options: Any) -> WriteToTFRecord:  # noqa: ANN401
    return WriteToTFRecord(
        prefix,
        **{
            "splits": ["train"],
            "encoder": ENCODER,
            "census": None,
            "label_map": None,
            "staging": Staging(output="/data", plan="p", run_id="r"),
            **options,
        },
    )


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
        ("/d/x", {"splits": ["train", "test"]}, "several splits need {split} in the prefix '/d/x'"),
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
        {"splits": ["train", "test"], "prefix": "/d/x-{split}"},
    ],
)
def test_what_readers_load_is_taken(options: Mapping[str, Any]) -> None:
    construct(**options)


def test_display_data_shows_what_decides_the_files() -> None:
    items = DisplayData.create_from(construct(num_shards=7, seed=3)).items
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


# Number and names of shards


def test_empty_shards_are_written_as_well(tmp_path: Path, staging: Staging) -> None:
    records = make_records(tmp_path / "images", 2)
    with local_pipeline() as pipeline:
        result = write(
            pipeline, [("train", record) for record in records], staging=staging, num_shards=8
        )
        assert_that(
            result.shards,
            summaries(list(range(8)), summary=lambda shard: shard.shard_index),
            label="Shards",
        )
        assert_that(result.rejects, equal_to([]), label="Rejects")
    shards = finished_shards(staging)
    assert sorted(shards) == [f"x-train.tfrecord-0000{index}-of-00008" for index in range(8)]
    assert sum(shard.data.size_bytes == 0 for shard in shards.values()) >= 6
    names = [name for shard in shards.values() for name in read_shard(shard, staging=staging)]
    assert sorted(names) == ["0.jpg", "1.jpg"]
    assert sorted(shard.examples for shard in shards.values())[:6] == [0] * 6


@pytest.mark.parametrize(
    ("num_shards", "expected"),
    [
        (3, {"train": 3, "test": 3}),
        ({"train": 2, "test": 5}, {"train": 2, "test": 5}),
        # A split that the mapping leaves out, and 0, mean by size: 4 examples and 1.
        ({"test": 2}, {"train": 4, "test": 2}),
        (0, {"train": 4, "test": 1}),
    ],
)
def test_the_number_of_shards_is_given_or_follows_from_the_size(
    num_shards: int | Mapping[str, int],
    expected: Mapping[str, int],
    tmp_path: Path,
    staging: Staging,
) -> None:
    records = make_records(tmp_path / "images", 5)
    keyed = [("train", record) for record in records[:4]] + [("test", records[4])]
    with local_pipeline() as pipeline:
        write(
            pipeline,
            keyed,
            staging=staging,
            splits=["train", "test"],
            num_shards=num_shards,
            shard_size_bytes=1,
        )
    assert sorted(finished_shards(staging)) == sorted(
        f"x-{split}.tfrecord-{index:05}-of-{count:05}"
        for split, count in expected.items()
        for index in range(count)
    )
    assert staging.read_totals() == Totals(
        shards=sum(expected.values()),
        examples=5,
        num_bytes=sum(record.size_bytes + len(record.annotations) for record in records),
    )


@pytest.mark.parametrize(
    ("num_bytes", "num_examples", "shards"),
    [
        (19_300_000_000, 118_287, 129),
        (150_000_000, 1_000, 1),
        (150_000_001, 1_000, 2),
        (900_000_000, 3, 3),
    ],
)
def test_shards_by_size_have_at_most_the_target_size(
    num_bytes: int, num_examples: int, shards: int
) -> None:
    plan = plan_shards(
        Census(splits={"train": SplitOutcome(images=num_examples, num_bytes=num_bytes)}),
        splits=["train"],
        num_shards=0,
        shard_size_bytes=150_000_000,
    )
    assert plan == ShardPlan(
        num_shards={"train": shards},
        totals=Totals(shards=shards, examples=num_examples, num_bytes=num_bytes),
    )


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"shard_name_template": ""}, ["x-train.tfrecord"]),
        ({"file_name_suffix": ".tfr", "num_shards": 1}, ["x-train.tfrecord-00000-of-00001.tfr"]),
        (
            {"shard_name_template": "_S_of_NNN", "num_shards": 2},
            ["x-train.tfrecord_0_of_002", "x-train.tfrecord_1_of_002"],
        ),
    ],
)
def test_names_follow_beams_template(
    options: Mapping[str, Any], names: list[str], tmp_path: Path, staging: Staging
) -> None:
    records = make_records(tmp_path / "images", 1)
    with local_pipeline() as pipeline:
        write(pipeline, [("train", records[0])], staging=staging, **options)
    assert sorted(finished_shards(staging)) == names


def test_a_split_without_examples_is_an_error_that_names_it(
    tmp_path: Path, staging: Staging
) -> None:
    records = make_records(tmp_path / "images", 1)
    with (
        pytest.raises(RuntimeError, match="InputError: split 'test': has no examples"),
        local_pipeline() as it,
    ):
        write(it, [("train", records[0])], staging=staging, splits=["train", "test"])
    assert finished_shards(staging) == {}


# Content


def test_files_depend_on_the_seed_and_not_on_the_order_of_records(tmp_path: Path) -> None:
    records = [("train", record) for record in make_records(tmp_path / "images", 20)]

    def checksums(run: str, records: list[tuple[str, Record]], seed: int) -> dict[str, str]:
        staging = Staging(output=str(tmp_path / run), plan="plan", run_id="run")
        with local_pipeline() as pipeline:
            write(pipeline, records, staging=staging, num_shards=3, seed=seed)
        return {name: shard.data.crc32c for name, shard in finished_shards(staging).items()}

    first = checksums("first", records, 0)
    assert checksums("reversed", records[::-1], 0) == first
    assert checksums("reseeded", records, 1) != first


def test_what_cannot_be_encoded_is_a_reject_and_the_rest_is_written(
    tmp_path: Path, staging: Staging
) -> None:
    good = make_records(tmp_path / "images", 3)
    bad = make_record(tmp_path / "bad.jpg", data=b"")
    with local_pipeline() as pipeline:
        result = write(
            pipeline, [("train", record) for record in [*good, bad]], staging=staging, num_shards=1
        )
        expected = Reject(
            split="train",
            source="s",
            key="bad.jpg",
            stage="encode",
            reason=Reason.ZERO_BYTE,
            detail="the file is empty",
            listed=True,
        )
        assert_that(result.rejects, equal_to([expected]), label="Rejects")
        # They travel on their own.
        assert_that(
            result.shards, summaries([0], summary=lambda shard: len(shard.rejects)), label="Shards"
        )
    (shard,) = finished_shards(staging).values()
    assert sorted(read_shard(shard, staging=staging)) == ["0.jpg", "1.jpg", "2.jpg"]
    assert shard.examples == 3
    assert shard.inputs == 4
    assert [reject.key for reject in shard.rejects] == ["bad.jpg"]


def test_finished_shards_are_used_again_with_their_rejects(
    tmp_path: Path, staging: Staging
) -> None:
    records = [("train", record) for record in make_records(tmp_path / "images", 3)]
    records.append(("train", make_record(tmp_path / "bad.jpg", data=b"")))
    for reused in (False, True):
        with local_pipeline() as pipeline:
            result = write(pipeline, records, staging=staging, num_shards=1)
            assert_that(
                result.shards,
                summaries([reused], summary=lambda shard: shard.reused),
                label="Shards",
            )
            assert_that(
                result.rejects,
                summaries(["bad.jpg"], summary=lambda reject: reject.key),
                label="Rejects",
            )


def test_a_finished_shard_with_rejects_that_may_pass_is_written_anew(
    tmp_path: Path, staging: Staging
) -> None:
    records = [("train", record) for record in make_records(tmp_path / "images", 3)]
    path = tmp_path / "images" / "1.jpg"
    status = path.stat()
    path.unlink()
    for rejects in (["changed_since_listing"], []):
        with local_pipeline() as pipeline:
            result = write(pipeline, records, staging=staging, num_shards=1)
            assert_that(
                result.shards,
                summaries([False], summary=lambda shard: shard.reused),
                label="Shards",
            )
            assert_that(
                result.rejects,
                summaries(rejects, summary=lambda reject: reject.reason.value),
                label="Rejects",
            )
        path.write_bytes(PICTURE)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [shard.examples for shard in finished_shards(staging).values()] == [3]


def test_an_output_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    records = make_records(tmp_path / "images", 1)
    output = tmp_path / "file"
    output.touch()
    staging = Staging(output=str(output), plan="plan", run_id="run")
    message = f"InputError: {output}: cannot be written: Not a directory"
    with pytest.raises(RuntimeError, match=message), local_pipeline() as pipeline:
        write(pipeline, [("train", records[0])], staging=staging)


def test_a_shard_is_begun_while_the_one_before_is_ending(
    tmp_path: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Barrier(2, timeout=30)
    attempts: list[str] = []
    new_attempt, finish_shard = Staging.new_attempt, Staging.finish_shard

    def begin(self: Staging, *, shard_key: str) -> str:
        attempts.append(shard_key)
        # The second shard begins while the first, all of whose images are encoded, is not done.
        if len(attempts) == 2:
            begun.wait()
        return new_attempt(self, shard_key=shard_key)

    def finish(self: Staging, result: ShardResult, *, shard_key: str) -> None:
        if shard_key == attempts[0]:
            begun.wait()
        finish_shard(self, result, shard_key=shard_key)

    monkeypatch.setattr(Staging, "new_attempt", begin)
    monkeypatch.setattr(Staging, "finish_shard", finish)
    records = [("train", record) for record in make_records(tmp_path / "images", 9)]
    with local_pipeline() as pipeline:
        result = write(pipeline, records, staging=staging, num_shards=3)
        assert_that(result.shards, summaries([0, 1, 2], summary=lambda shard: shard.shard_index))
    assert sum(shard.examples for shard in finished_shards(staging).values()) == 9


def test_a_shard_that_fails_while_it_ends_fails_the_run(
    tmp_path: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_shard = Staging.finish_shard

    def finish(self: Staging, result: ShardResult, *, shard_key: str) -> None:
        if result.shard_index == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finish_shard(self, result, shard_key=shard_key)

    monkeypatch.setattr(Staging, "finish_shard", finish)
    records = [("train", record) for record in make_records(tmp_path / "images", 9)]
    message = "InputError: .*cannot be written: No space left on device"
    with pytest.raises(RuntimeError, match=message), local_pipeline() as pipeline:
        write(pipeline, records, staging=staging, num_shards=3)
    assert all(shard.shard_index != 1 for shard in finished_shards(staging).values())


@pytest.mark.parametrize(
    ("cpus", "processes", "shards", "num_bytes", "expected"),
    [
        # As many as are asked for, but none without a shard of its own.
        (4, 1, 100, 10**12, 0),
        (4, 6, 100, 1, 5),
        (4, 6, 3, 1, 2),
        (4, 2, 1, 10**12, 0),
        # One a CPU, if that is worth it.
        (2, 0, 8, 10**9, 1),
        (2, 0, 8, 199_999_999, 0),
        (4, 0, 8, 200_000_000, 1),
        (4, 0, 3, 10**12, 2),
        (64, 0, 1000, 10**12, 7),
        (1, 0, 1000, 10**12, 0),
        (4, 0, 1, 0, 0),
    ],
)
def test_how_many_processes_write_beside_this_one(
    cpus: int,
    processes: int,
    shards: int,
    num_bytes: int,
    expected: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(write_to_tfrecord, "usable_cpus", lambda: cpus)
    totals = Totals(shards=shards, examples=shards, num_bytes=num_bytes)
    assert count_helpers(totals, processes=processes) == expected
