"""WriteToTFRecord: its refusals, and its files in a program's own pipeline."""

from __future__ import annotations

import inspect
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam import coders
from apache_beam.io.filesystem import CompressionTypes
from apache_beam.metrics.metric import MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_pipeline, test_stream
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms import combiners
from apache_beam.transforms.display import DisplayData

import shardbeam
from shardbeam.pipelines.runners.options import LocalRunner
from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageRef, Record
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.write_to_tfrecord import WriteToTFRecord
from tests.support.dataset import read_tree
from tests.support.graph import build_graph
from tests.support.local_pipeline import local_pipeline, summaries
from tests.support.shards import PICTURE


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
        ("/d/x", {"splits": ("train", "test")}, "several splits need {split} in the prefix '/d/x'"),
        ("/d/x", {"image": {"max_sid": 5}}, "image.max_sid: unknown key; did you mean"),
        ("/d/x", {"features": {"drop": 5}}, "features.drop: expected a list"),
        ("/d/x", {"labels": {"include": []}}, "labels.include: expected names"),
    ],
)
def test_what_no_reader_could_load_is_refused(
    prefix: str, options: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
        WriteToTFRecord(prefix, **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"coder": coders.BytesCoder()},
        {"compression_type": CompressionTypes.UNCOMPRESSED},
        {"compression_type": CompressionTypes.UNCOMPRESSED, "file_name_suffix": ".gz"},
        {"splits": ("train", "test"), "file_path_prefix": "/d/x-{split}"},
    ],
)
def test_what_readers_load_is_taken(options: Mapping[str, Any]) -> None:
    WriteToTFRecord(**{"file_path_prefix": "/d/x", **options})


def test_display_data_shows_what_decides_the_files() -> None:
    items = DisplayData.create_from(WriteToTFRecord("/d/x", num_shards=7, seed=3)).items
    assert {item.key: item.value for item in items} == {
        "file_path_prefix": "/d/x",
        "num_shards": "7",
        "shard_size_bytes": 150_000_000,
        "seed": 3,
    }
    by_size = DisplayData.create_from(WriteToTFRecord("/d/x")).items
    assert {item.value for item in by_size if item.key == "num_shards"} == {"by size"}


def test_unbounded_input_is_refused() -> None:
    pipeline = test_pipeline.TestPipeline()
    unbounded = pipeline | test_stream.TestStream().advance_watermark_to_infinity()
    with pytest.raises(ValueError, match="bounded input only"):
        unbounded | WriteToTFRecord("/d/x")


# What it writes


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    """Ten images of the same picture."""
    folder = tmp_path / "images"
    folder.mkdir()
    files = [folder / f"{number}.jpg" for number in range(10)]
    for file in files:
        file.write_bytes(PICTURE)
    return files


def make_records(images: Iterable[Path], **said: Any) -> list[Record]:  # noqa: ANN401
    return [Record.of(file.name, image=str(file), **{"labels": ["cat"], **said}) for file in images]


def write(records: Iterable[Record], prefix: Path | str, **options: Any) -> None:  # noqa: ANN401
    with local_pipeline() as pipeline:
        _ = pipeline | beam.Create(list(records)) | WriteToTFRecord(str(prefix), **options)


def read(pattern: Path) -> list[Example]:
    """Reads shards."""
    examples: list[Example] = []
    for path in sorted(pattern.parent.glob(pattern.name)):
        with path.open("rb") as file:
            examples += map(Example.FromString, read_records(file))
    return examples


def values(example: Example, key: str) -> list[Any]:
    feature = example.features.feature[key]
    return list(getattr(feature, str(feature.WhichOneof("kind"))).value)


def test_records_of_a_program_become_files(images: list[Path], tmp_path: Path) -> None:
    records = [
        Record.of(
            file.name,
            image=str(file),
            split="test" if file is images[0] else "train",
            labels=["dog", "animal"],
            boxes=[("dog", 0, 0, 4, 3), ("cat", 0, 0, 2, 3)],
        )
        for file in images
    ]
    output = tmp_path / "out"
    with local_pipeline() as pipeline:
        written = (
            pipeline
            | beam.Create(records)
            | WriteToTFRecord(
                str(output / "pets-{split}"),
                file_name_suffix=".records",
                num_shards={"train": 2},
                splits=["train", "test"],
                image={"max_side": 4},
                labels={"exclude": ["cat"]},
            )
        )
        names = [
            "pets-test-00000-of-00001.records",
            "pets-train-00000-of-00002.records",
            "pets-train-00001-of-00002.records",
        ]
        assert_that(written.files, equal_to([str(output / name) for name in names]), label="Files")
        assert_that(written.rejects, equal_to([]), label="Rejects")
        assert_that(
            written.label_map,
            summaries([{"animal": 1, "dog": 2}], summary=lambda each: each.ids),
            label="Labels",
        )
    # Nothing else is left.
    assert sorted(read_tree(output)) == names
    (example,) = read(output / "pets-test*")
    assert values(example, "image/filename") == [b"0.jpg"]
    assert values(example, "image/class/text") == [b"dog", b"animal"]
    assert values(example, "image/object/class/label") == [2]
    assert values(example, "image/object/bbox/xmax") == [0.5]
    assert values(example, "image/width") == [4]
    # Beam's own reader reads it, too.
    with local_pipeline() as pipeline:
        found = pipeline | beam.io.ReadFromTFRecord(str(output / "pets-train*"))
        assert_that(found | combiners.Count.Globally(), equal_to([9]))


def test_they_are_those_of_a_dataset(images: list[Path], tmp_path: Path) -> None:
    """`build` writes the same shards of the same records."""
    records = make_records(images, boxes=[("cat", 1, 1, 3, 3)])
    write(records, tmp_path / "x.tfrecord", num_shards=2)
    config = {"name": "x", "output": {"path": str(tmp_path / "out"), "num_shards": 2}}
    shardbeam.build(config, records=beam.Create(records))
    for index in range(2):
        name = f"tfrecord-0000{index}-of-00002"
        data = (tmp_path / f"x.{name}").read_bytes()
        assert data == (tmp_path / "out" / f"x-train.{name}").read_bytes()


def test_a_prefix_with_files_is_refused(images: list[Path], tmp_path: Path) -> None:
    prefix = tmp_path / "out" / "x"
    write(make_records(images[:3]), prefix, num_shards=1)
    before = read_tree(tmp_path / "out")
    # Also with another number of shards; other files beside them do not matter.
    with pytest.raises(RuntimeError, match="x-00000-of-00001: is there already"):
        write(make_records(images), prefix, num_shards=4)
    assert read_tree(tmp_path / "out") == before
    write(make_records(images), tmp_path / "out" / "y", num_shards=1)
    assert before.items() < read_tree(tmp_path / "out").items()


def test_a_record_that_cannot_be_written_is_a_reject(images: list[Path], tmp_path: Path) -> None:
    images[0].write_bytes(b"")
    records = [
        *make_records(images),
        *make_records([tmp_path / "missing.jpg"]),
        # The same key with other labels.
        *make_records(images[9:], labels=["dog"]),
    ]
    with local_pipeline() as pipeline:
        written = (
            pipeline
            | beam.Create(records)
            | WriteToTFRecord(str(tmp_path / "x"), num_shards=1, max_reject_ratio=0.5)
        )
        assert_that(
            written.rejects,
            summaries(
                [
                    ("0.jpg", Reason.ZERO_BYTE),
                    ("9.jpg", Reason.DUPLICATE_KEY),
                    ("missing.jpg", Reason.MISSING_IMAGE),
                ],
                summary=lambda reject: (reject.key, reject.reason),
            ),
        )
    assert len(read(tmp_path / "x-*")) == 9


def test_counters_show_what_becomes_of_images(shapes: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    shutil.copytree(shapes / "class_folders", folder)
    first = sorted(folder.glob("*/*"))[0]
    first.write_bytes(b"")
    (first.parent / "notes.txt").write_text("no image")
    output = tmp_path / "out"
    words = ("build", "image-folder", "--images", str(folder), "--output", str(output))
    options = PipelineOptions([])
    pipeline = build_graph(*words, "--set", "rejects.max_ratio=1")
    result = LocalRunner(options=options).run_pipeline(pipeline, options)
    counters = result.metrics().query(MetricsFilter().with_namespace("shardbeam"))["counters"]
    counts: Counter[str] = Counter()
    for counter in counters:
        counts[counter.key.metric.name] += counter.committed
    assert counts == {
        "images_written": sum(1 for _ in folder.glob("*/*.*")) - 2,
        "images_rejected_zero_byte": 1,
        "images_excluded": 1,
        "images_under_way": 0,
        "shards_under_way": 0,
        "bytes_written": sum(file.stat().st_size for file in output.glob("*.tfrecord-*")),
    }


def test_too_many_rejects_move_nothing(images: list[Path], tmp_path: Path) -> None:
    images[0].write_bytes(b"")
    with pytest.raises(RuntimeError, match=r"10\.00%.*max_reject_ratio.*0\.jpg \(zero_byte"):
        write(make_records(images), tmp_path / "out" / "x")
    assert list((tmp_path / "out").glob("x*")) == []
    # The shards that were written are used again.
    write(make_records(images), tmp_path / "out" / "x", max_reject_ratio=0.1)
    # Classes without boxes are numbered from 0.
    labels = [values(each, "image/class/label") for each in read(tmp_path / "out" / "x*")]
    assert labels == [[0]] * 9


def test_a_record_names_a_split_that_there_is(images: list[Path], tmp_path: Path) -> None:
    prefix, splits = tmp_path / "{split}", ["train", "test"]
    with pytest.raises(RuntimeError, match="unknown split 'tset'; the splits are"):
        write(make_records(images, split="tset"), prefix, splits=splits)
    with pytest.raises(RuntimeError, match="it has no split; the splits are train, test"):
        write(make_records(images), prefix, splits=splits)
    with pytest.raises(RuntimeError, match="unknown split 'test'; the splits are train"):
        write(make_records(images, split="test"), prefix)


def test_other_elements_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"expected shardbeam\.Record\.of\(\.\.\.\), got dict"):
        write([{"image": "x"}], tmp_path / "x")  # type: ignore[list-item]


@pytest.mark.parametrize("said", [{"key": ""}, {"key": "a\0"}, {"labels": [""]}])
def test_a_record_needs_a_key_and_names(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected a key, and classes that are not empty"):
        Record.of(**{"key": "a", "image": "x", **said})


def test_a_record_of_a_known_file_is_not_looked_at(tmp_path: Path) -> None:
    data = b"before" + PICTURE
    (tmp_path / "all.bin").write_bytes(data)
    version = str((tmp_path / "all.bin").stat().st_mtime_ns)
    image = ImageRef(
        uri=str(tmp_path / "all.bin"),
        size_bytes=len(PICTURE),
        version=version,
        offset=6,
        whole=False,
    )
    write([Record.of("a.jpg", image=image)], tmp_path / "x", num_shards=1)
    (example,) = read(tmp_path / "x-*")
    assert values(example, "image/encoded") == [PICTURE]
