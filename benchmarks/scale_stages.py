"""Runs one stage of a build on synthetic records, and prints what it took as JSON.

`python -m benchmarks.scale_stages STAGE NUMBER FOLDER`: what a stage reads was put into the folder
by `benchmarks.scale`. Time and memory are without imports, and without the making of its input
where that is no file.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import apache_beam as beam
import msgspec
from apache_beam import pvalue
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import PCollection
from apache_beam.transforms import combiners

from shardbeam.configs.decoding import JsonDecoder, MsgpackDecoder
from shardbeam.pipelines.runners.options import LocalRunner
from shardbeam.transforms.commit.commit import CommitSettings, gate
from shardbeam.transforms.commit.gate import count_splits
from shardbeam.transforms.commit.runs import RunSettings
from shardbeam.transforms.commit_dataset import CommitDataset
from shardbeam.transforms.core.edges import ENTRIES, IMAGES
from shardbeam.transforms.core.labels import LabelMap, LabelSettings
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    ImageRef,
    ListedFile,
    ListedImage,
    ObjectAnnotation,
    Record,
    Reject,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import (
    SplitAssignment,
    bin_of,
    example_hash,
    find_borders,
)
from shardbeam.transforms.dataset.census import Census, ListingSummary
from shardbeam.transforms.dataset.files import ShardFile, ShardResult, describe_data
from shardbeam.transforms.dataset.manifest import MANIFEST, read_manifest
from shardbeam.transforms.dataset.metadata import DatasetSettings, metadata_files
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.rejects import write_rejects
from shardbeam.transforms.dataset.shard_plan import FileNaming, plan_shards
from shardbeam.transforms.dataset.statistics import CountedStatistics, Statistics
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.join.join import JoinSettings
from shardbeam.transforms.formats.join.sources import Source
from shardbeam.transforms.formats.join.values import encode_join_value
from shardbeam.transforms.formats.table.jsonl import JsonLinesFormat
from shardbeam.transforms.join_annotations import JoinAnnotations
from shardbeam.transforms.list_images import ListImages
from shardbeam.transforms.read_annotations import ReadAnnotations
from shardbeam.transforms.shards.record_batches import RecordBatcher, assign_shards, merge_batches
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.take_census import TakeCensus

IMAGE_BYTES = 135_000
OBJECTS = 3
_SPLITS = SplitAssignment(by_source={"train": "train"})
_SETTINGS = JoinSettings(splits=_SPLITS, labels=LabelSettings())
T = TypeVar("T")

_SHARD_EXAMPLES = 1000

_RUN_ID = "20260101T000000.000000Z"
_RUN = RunSettings(started_at="2026-01-01T00:00:00+00:00", runner="", annotation_files=())
_NO_LABELS = LabelMap(ids={}, names={})
_DATASET = DatasetSettings(
    name="scale",
    version="1.0.0",
    description="",
    splits=("train",),
    seed=0,
    max_reject_ratio=0.0,
    features=(),
    config={},
    codecs={},
    shardbeam="0",
    naming=FileNaming(prefix="scale-{split}.tfrecord"),
)


# Of a shard whose images have COCO's number of classes, each with each other one.
_CLASSES = [f"class {number:02d}" for number in range(80)]
_STATISTICS = Statistics(
    examples=_SHARD_EXAMPLES,
    images_by_class=dict.fromkeys(_CLASSES, 1),
    objects_by_class=dict.fromkeys(_CLASSES, 1),
    count_of_pairs={
        name: dict.fromkeys(_CLASSES[place:], 1) for place, name in enumerate(_CLASSES[:-1], 1)
    },
)


def staged_shard(index: int, *, num_shards: int) -> ShardResult:
    """Describes a shard that was staged: an empty file, and an index as empty."""
    name = f"scale-train.tfrecord-{index:05d}-of-{num_shards:05d}"

    return ShardResult(
        key=f"{index:064x}",
        split="train",
        shard_index=index,
        num_shards=num_shards,
        data=ShardFile(path=name, size_bytes=0, crc32c="00000000", examples=_SHARD_EXAMPLES),
        index=describe_data(f"index/{name}.parquet", b""),
        records=_SHARD_EXAMPLES,
        images=_SHARD_EXAMPLES,
        objects=_SHARD_EXAMPLES,
        fingerprint=f"{index:064x}",
        inputs=_SHARD_EXAMPLES,
        corrections={"box_clipped": 1},
        excluded={},
        statistics=Statistics(),
        rejects=(),
        staged=f"shards/{index:064x}/{'0' * 32}",
    )


def _statistics_of(shard: ShardResult) -> tuple[str, CountedStatistics]:
    return shard.split, CountedStatistics(_STATISTICS)


def _key(number: int) -> str:
    return f"{number // 1000:06d}/{number:012d}.jpg"


def _objects(number: int) -> tuple[ObjectAnnotation, ...]:
    return tuple(
        ObjectAnnotation(
            label=f"class {(number + index) % 80}",
            bbox=(10.5 * index, 20.25, 100.75, 200.5),
            annotation_id=OBJECTS * number + index,
        )
        for index in range(OBJECTS)
    )


def _image(number: int) -> ImageRef:
    return ImageRef(
        uri=f"gs://a-bucket/of-images/train/{_key(number)}",
        size_bytes=IMAGE_BYTES,
        version="1700000000000000",
    )


def _annotations(number: int) -> bytes:
    return encode_annotations(
        ImageAnnotations(image_id=str(number), width=640, height=480, objects=_objects(number))
    )


def _listed(number: int, *, source: Source) -> tuple[bytes, bytes]:
    image = ListedImage(key=_key(number), image=_image(number))
    return encode_join_value(image, text=_key(number), edge=IMAGES, source=source)


def _entry(number: int, *, source: Source) -> tuple[bytes, bytes]:
    entry = AnnotationEntry(
        key=_key(number),
        annotations=_annotations(number),
        file_index=0,
        position=number,
        image_id=str(number),
    )
    return encode_join_value(entry, text=_key(number), edge=ENTRIES, source=source)


def _record(number: int) -> Record:
    return Record(
        source="train",
        key=_key(number),
        image=_image(number),
        annotations=_annotations(number),
        split="train",
    )


def _reject(number: int) -> Reject:
    return Reject(
        split="train",
        source="train",
        key=_key(number),
        stage="encode",
        reason=Reason.TRUNCATED,
        detail=f"gs://a-bucket/of-images/train/{_key(number)}: the file ends after 54321 bytes",
        listed=True,
    )


def _count_up(pipeline: beam.Pipeline, number: int, *, label: str) -> PCollection[int]:
    return (
        pipeline
        | f"Begin{label}" >> beam.Create([number])
        | f"Count{label}" >> beam.FlatMap(_numbers).with_output_types(int)
    )


def _numbers(number: int) -> Iterator[int]:
    yield from range(number)


def _check(found: int, *, expected: int) -> None:
    if found != expected:
        raise ValueError(f"expected {expected}, got {found}")


def _check_joined(census: Census, *, expected: int) -> None:
    _check(census.splits["train"].images, expected=expected)


def _run(build: Callable[[beam.Pipeline], None]) -> None:
    options = PipelineOptions([])
    pipeline = beam.Pipeline(runner=LocalRunner(options=options), options=options)
    build(pipeline)
    pipeline.run().wait_until_finish()


def _expect(elements: PCollection[object], number: int) -> None:
    elements | "CountAll" >> combiners.Count.Globally() | beam.Map(_check, expected=number)


def list_stage(number: int, folder: Path) -> None:
    source = Source("train", ImageFolderFormat(images=str(folder)))

    def build(pipeline: beam.Pipeline) -> None:
        listed = pipeline | ListImages(sources=[source], settings=_SETTINGS, makes_records=False)
        census = listed.census | TakeCensus()
        census | beam.Map(lambda found: _check(found.listing.files["train"], expected=number))

    _run(build)


def _rows_source(folder: Path, *, resolve: bool) -> Source:
    table = JsonLinesFormat(
        manifest=[str(folder / "rows.jsonl")], image_root=["gs://a-bucket/of-images"]
    )
    if resolve:
        data = (folder / "format.json").read_bytes()
        table = JsonDecoder(JsonLinesFormat).decode(data)
    return Source("train", table)


def survey_stage(number: int, folder: Path) -> None:
    del number
    found = _rows_source(folder, resolve=False).format.resolve()
    (folder / "format.json").write_bytes(msgspec.json.encode(found))


def parse_jsonl_stage(number: int, folder: Path) -> None:
    source = _rows_source(folder, resolve=True)

    def build(pipeline: beam.Pipeline) -> None:
        files = pipeline | "NoFiles" >> beam.Create([]).with_output_types(ListedFile)
        read = (files,) | ReadAnnotations(sources=[source], splits=_SPLITS)
        _expect(read.values[0], number)

    _run(build)


def parse_coco_stage(number: int, folder: Path) -> None:
    uri = str(folder / "instances.json")
    source_format = CocoFormat(images="images", annotations=[uri])
    items = source_format.read_annotations(storage=storage_for(uri), file_index=0)
    _check(sum(isinstance(item, AnnotationEntry) for item in items), expected=number)


def join_stage(number: int, folder: Path) -> None:
    del folder
    source = Source("train", ImageFolderFormat(images="images"))

    def build(pipeline: beam.Pipeline) -> None:
        images = _count_up(pipeline, number, label="Images") | "List" >> beam.Map(
            _listed, source=source
        ).with_output_types(tuple[bytes, bytes])
        entries = _count_up(pipeline, number, label="Entries") | "Read" >> beam.Map(
            _entry, source=source
        ).with_output_types(tuple[bytes, bytes])
        joined = (images, entries) | JoinAnnotations(sources=[source], settings=_SETTINGS)
        joined.census | TakeCensus() | beam.Map(_check_joined, expected=number)

    _run(build)


def group_stage(number: int, folder: Path) -> None:
    del folder

    def build(pipeline: beam.Pipeline) -> None:
        records = (
            pipeline
            | "BeginRecords" >> beam.Create([number])
            | "Join" >> beam.FlatMap(_pack_records).with_output_types(bytes)
        )
        counts = SplitOutcome(images=number, num_bytes=number * _image(0).size_bytes)
        plan = pipeline | "PlanShards" >> beam.Create(
            [
                plan_shards(
                    Census(splits={"train": counts}),
                    splits=["train"],
                    num_shards=0,
                    shard_size_bytes=150_000_000,
                )
            ]
        )
        sizes = (
            records
            | "AssignShard"
            >> beam.FlatMap(assign_shards, pvalue.AsSingleton(plan)).with_output_types(
                tuple[tuple[str, int], bytes]
            )
            | beam.GroupByKey()
            | "Sort" >> beam.Map(_sort_shard)
        )
        sizes | beam.CombineGlobally(sum) | beam.Map(_check, expected=number)

    _run(build)


def cut_stage(number: int, folder: Path) -> None:
    """Finds where exact splits end in 80 strata, from what the last step gets of all workers."""
    del folder
    splits = SplitAssignment(by_source={}, fractions={"train": 0.8, "validation": 0.2}, exact=True)

    def points() -> Iterator[tuple[str, bytes]]:
        for index in range(number):
            yield _CLASSES[index % 80], splits.point_of(source="train", key=_key(index))

    sizes: dict[str, Counter[int]] = {name: Counter() for name in _CLASSES}
    for name, point in points():
        sizes[name][bin_of(point)] += 1
    ranks = splits.rank_ends({name: each.total() for name, each in sizes.items()})
    borders = {name: find_borders(each, ranks[name]) for name, each in sizes.items()}
    bins = {(name, border.bin) for name, each in borders.items() for border in each}
    kept = Counter((name, point) for name, point in points() if (name, bin_of(point)) in bins)
    _check(len(splits.cut(kept, borders=borders, images={}).ends), expected=80)


def _pack_records(number: int) -> Iterator[bytes]:
    batcher = RecordBatcher()
    for record in map(_record, range(number)):
        digest = example_hash(seed=0, source=record.source, key=record.key)
        yield from batcher.add(record, example_hash=digest)
    yield from batcher.finish()


def _sort_shard(element: tuple[tuple[str, int], Iterable[bytes]]) -> int:
    return len(merge_batches(element[1]))


def _settings(output: str) -> CommitSettings:
    staging = Staging(output=output, plan="plan", run_id=_RUN_ID)
    return CommitSettings(dataset=_DATASET, run=_RUN, staging=staging)


def commit_stage(number: int, folder: Path) -> None:
    images = number * _SHARD_EXAMPLES

    def build(pipeline: beam.Pipeline) -> None:
        shards = _count_up(pipeline, number, label="Shards") | "Write" >> beam.Map(
            staged_shard, num_shards=number
        ).with_output_types(ShardResult)

        def one(label: str, value: T) -> PCollection[T]:
            return pipeline | label >> beam.Create([value])

        shards | CommitDataset(
            settings=_settings(str(folder / "output")),
            rejects=pipeline | "NoRejects" >> beam.Create([]).with_output_types(Reject),
            statistics=shards
            | "Statistics"
            >> beam.Map(_statistics_of).with_output_types(tuple[str, CountedStatistics]),
            census=one("Census", Census(listing=ListingSummary(files={"train": images}))),
            label_map=one("LabelMap", _NO_LABELS),
        )

    _run(build)


def gather_stage(number: int, folder: Path) -> None:
    """What the gate and the finish do with all shards, without the runner's part in it."""
    encoder, decoder = msgspec.msgpack.Encoder(), MsgpackDecoder(ShardResult)
    shards = [
        decoder.decode(encoder.encode(staged_shard(index, num_shards=number)))
        for index in range(number)
    ]
    census = Census(listing=ListingSummary(files={"train": number * _SHARD_EXAMPLES}))
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        gate(census, shards, [], _NO_LABELS, settings=_settings(temporary), statistics={})
        metadata_files(
            dataset=_DATASET,
            splits=count_splits(splits=["train"], census=census, shards=shards, rejects=[]),
            shards=shards,
            moved=[file for shard in shards for file in (shard.data, shard.index)],
            label_map=_NO_LABELS,
            skeletons={},
            statistics={},
        )


def read_manifest_stage(number: int, folder: Path) -> None:
    manifest = read_manifest(str(folder / "output"))
    if manifest is None:
        raise ValueError(f"there is no {MANIFEST}")
    _check(len(manifest.splits["train"].shards), expected=number)


def rejects_stage(number: int, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        rejects = map(_reject, range(number))
        path = "rejects/train.jsonl"
        written = write_rejects("train", path, rejects, root=temporary, folder="runs/run")
    _check(sum(written.counts.values()), expected=number)


def gcs_list_stage(number: int, folder: Path) -> None:
    del folder
    _list("gs://scale/objects", number=number)


def s3_list_stage(number: int, folder: Path) -> None:
    del folder
    _list("s3://scale/objects", number=number)


def _list(uri: str, *, number: int) -> None:
    _check(sum(1 for _ in storage_for(uri).list(uri)), expected=number)


def gcs_rename_stage(number: int, folder: Path) -> None:
    del folder
    uri = "gs://scale/objects"
    storage = storage_for(uri)

    def rename(index: int) -> int:
        name = f"{index:012d}"
        storage.rename(join_uri(uri, name), join_uri("gs://scale/renamed", name))
        return index

    _check(sum(1 for _ in storage.map_many(rename, range(number))), expected=number)


def gcs_delete_stage(number: int, folder: Path) -> None:
    del number, folder
    uri = "gs://scale/renamed"
    storage = storage_for(uri)
    storage.delete_many(storage.list(uri))


def _stages() -> Iterator[tuple[str, Callable[[int, Path], None]]]:
    for name, value in globals().items():
        if name.endswith("_stage"):
            yield name.removesuffix("_stage"), value


def _peak_bytes() -> int:
    """Reads this process's peak of resident memory; `getrusage` begins with that of its parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    stage, number, folder = sys.argv[1:]
    run = dict(_stages())[stage]
    before = _peak_bytes()
    cpu_before_s = time.process_time()
    started_s = time.monotonic()
    run(int(number), Path(folder))
    print(
        json.dumps(
            {
                "wall_s": time.monotonic() - started_s,
                "cpu_s": time.process_time() - cpu_before_s,
                "peak_bytes": _peak_bytes() - before,
            }
        )
    )


if __name__ == "__main__":
    main()
