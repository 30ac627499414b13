"""Records are written into shards: their number, names, content and errors."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import msgspec
import pytest
from apache_beam.metrics.execution import MetricsEnvironment
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.metrics.metricbase import MetricName
from apache_beam.testing.util import assert_that, equal_to
from fsspec.implementations.memory import MemoryFileSystem

from shardbeam.transforms import write_shards
from shardbeam.transforms.beam.stages import report_usage
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageRef, Record, Reject
from shardbeam.transforms.dataset.outcome import PlannedCounts
from shardbeam.transforms.dataset.shard_names import FileNaming
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.shards.writer import ShardSettings
from shardbeam.transforms.staging.staging import TOTALS, Staging
from shardbeam.transforms.storage import failures as storage_failures
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.usage import usage_counter
from shardbeam.transforms.write_shards import WriteResult, WriteShards
from tests.support import gcs_memory as memory
from tests.support.example_builders import make_label_map
from tests.support.local_pipeline import local_pipeline, summaries
from tests.support.processes import LIMIT_S
from tests.support.shards import (
    ENCODER,
    PICTURE,
    finished_shards,
    make_batches,
    make_inputs,
    make_record,
    make_records,
    read_shard,
)

THROTTLED = "requests_throttled"


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(output=str(tmp_path / "out"), plan="plan", run_id="run")


def write(
    pipeline: beam.Pipeline,
    keyed: Iterable[tuple[str, Record]],
    *,
    staging: Staging,
    splits: Sequence[str] = ("train",),
    num_shards: int | Mapping[str, int] = 0,
    suffix: str = "",
    template: str | None = None,
    **settings: Any,  # noqa: ANN401  # Other settings of shards.
) -> WriteResult:
    records = [msgspec.structs.replace(record, split=split) for split, record in keyed]
    label_map = pipeline | "Labels" >> beam.Create([make_label_map({"cat": 1}, objects=False)])
    result: WriteResult = (
        pipeline
        | "Records" >> beam.Create(make_batches(records, seed=settings.get("seed", 0)))
        | WriteShards(
            naming=FileNaming(prefix="/data/x-{split}.tfrecord", suffix=suffix, template=template),
            num_shards=num_shards,
            settings=ShardSettings(splits=splits, encoder=ENCODER, staging=staging, **settings),
            inputs=pipeline | "InputCounts" >> beam.Create([make_inputs(records)]),
            label_map=label_map,
        )
    )
    return result


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
    assert staging.read_state(TOTALS, PlannedCounts) == PlannedCounts(
        shards=sum(expected.values()),
        examples=5,
        num_bytes=sum(record.size_bytes + len(record.annotations) for record in records),
    )


def test_a_template_without_numbers_means_one_file(tmp_path: Path, staging: Staging) -> None:
    records = [("train", record) for record in make_records(tmp_path / "images", 2)]
    with local_pipeline() as pipeline:
        write(pipeline, records, staging=staging, template="", suffix=".tfr", num_shards=2)
    assert list(finished_shards(staging)) == ["x-train.tfrecord.tfr"]


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


def test_throttled_requests_are_counted_while_their_shard_is_written(
    staging: Staging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = 20
    reads: Counter[str] = Counter()
    # Beam's thread has counted all before the last images are read.
    counted = threading.Event()

    def slow_down(self: MemoryFileSystem, path: str, **options: object) -> bytes:
        reads[path] += 1
        if reads[path] <= 2:
            raise OSError(errno.EBUSY, "SlowDown")
        assert len(reads) < images or counted.wait(LIMIT_S)
        return PICTURE

    def report() -> None:
        report_usage()
        container = MetricsEnvironment.current_container()
        names = {"shardbeam": ("shards_under_way", "images_under_way"), "storage": (THROTTLED,)}
        counters = [
            container.get_counter(MetricName(namespace, name)).get_cumulative()
            for namespace in names
            for name in names[namespace]
        ]
        if counters == [1, images, 2 * images]:
            counted.set()

    memory.clear()
    monkeypatch.setattr(MemoryFileSystem, "cat_file", slow_down)
    monkeypatch.setattr(storage_failures, "_INITIAL_WAIT_S", 0.05)
    monkeypatch.setattr(write_shards, "WAIT_S", 0.01)
    monkeypatch.setattr(write_shards, "report_usage", report)
    (written,) = make_records(tmp_path / "images", 1)
    records = []
    for number in range(images):
        uri = f"memory://bucket/{number}.jpg"
        memory.write(uri, PICTURE)
        stored = storage_for(uri).stat(uri)
        assert stored is not None
        image = ImageRef(uri=uri, size_bytes=len(PICTURE), version=stored.version)
        record = msgspec.structs.replace(written, key=f"{number}.jpg", image=image)
        records.append(("train", record))
    usage_counter.take()
    before = usage_counter.total()
    with local_pipeline() as pipeline:
        write(pipeline, records, staging=staging, num_shards=1)
    usage = usage_counter.total() - before
    committed = {
        f"{counter.key.metric.namespace}/{counter.key.metric.name}": counter.committed
        for counter in pipeline.result.metrics().query(MetricsFilter())["counters"]
        if counter.key.metric.namespace in ("shardbeam", "storage")
    }
    del committed["shardbeam/bytes_written"]
    assert usage.throttled_s >= 1
    assert committed == {
        "shardbeam/images_written": images,
        "shardbeam/images_under_way": 0,
        "shardbeam/shards_under_way": 0,
        "storage/requests_repeated": 2 * images,
        f"storage/{THROTTLED}": 2 * images,
        "storage/cumulativeThrottlingSeconds": usage.throttled_s,
    }


def write_once(
    records: Iterable[tuple[str, Record]], *, staging: Staging, resumed: bool, rejects: list[str]
) -> None:
    """Writes one shard, which an earlier run may have finished, with rejects of these reasons."""
    with local_pipeline() as pipeline:
        result = write(pipeline, records, staging=staging, num_shards=1)
        shards = summaries([resumed], summary=lambda shard: shard.resumed)
        assert_that(result.shards, shards, label="Shards")
        reasons = summaries(rejects, summary=lambda reject: reject.reason.value)
        assert_that(result.rejects, reasons, label="Rejects")


def test_finished_shards_are_used_again_with_their_rejects(
    tmp_path: Path, staging: Staging
) -> None:
    records = [("train", record) for record in make_records(tmp_path / "images", 3)]
    records.append(("train", make_record(tmp_path / "bad.jpg", data=b"")))
    for run_id, resumed in (("1", False), ("1", False), ("2", True)):
        this_run = msgspec.structs.replace(staging, run_id=run_id)
        write_once(records, staging=this_run, resumed=resumed, rejects=["zero_byte"])


def test_a_finished_shard_with_rejects_that_may_pass_is_written_anew(
    tmp_path: Path, staging: Staging
) -> None:
    records = [("train", record) for record in make_records(tmp_path / "images", 3)]
    path = tmp_path / "images" / "1.jpg"
    status = path.stat()
    path.unlink()
    write_once(records, staging=staging, resumed=False, rejects=["changed_since_listing"])
    path.write_bytes(PICTURE)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    again = msgspec.structs.replace(staging, run_id="again")
    write_once(records, staging=again, resumed=False, rejects=[])
    assert [shard.examples for shard in finished_shards(staging).values()] == [3]


def test_an_output_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    records = make_records(tmp_path / "images", 1)
    output = tmp_path / "file"
    output.touch()
    staging = Staging(output=str(output), plan="plan", run_id="run")
    message = f"InputError: {output}: cannot be written: Not a directory"
    with pytest.raises(RuntimeError, match=message), local_pipeline() as pipeline:
        write(pipeline, [("train", records[0])], staging=staging)


def test_a_shard_that_fails_while_it_ends_fails_the_run(
    tmp_path: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish_shard = Staging.finish_shard

    def finish(self: Staging, result: ShardResult) -> None:
        if result.shard_index == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finish_shard(self, result)

    monkeypatch.setattr(Staging, "finish_shard", finish)
    records = [("train", record) for record in make_records(tmp_path / "images", 9)]
    message = "InputError: .*cannot be written: No space left on device"
    with pytest.raises(RuntimeError, match=message), local_pipeline() as pipeline:
        write(pipeline, records, staging=staging, num_shards=3)
    assert all(shard.shard_index != 1 for shard in finished_shards(staging).values())
