"""Each built-in format: its sample, built by the command, read with tf.data and by TFDS."""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from shardbeam.pipelines.commands.report import make_page
from shardbeam.readers.open.make_index import plan_counts
from shardbeam.readers.open.stored_dataset import open_dataset, read_feature_map
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.statistics_file import read_statistics
from shardbeam.transforms.formats.base import built_in_formats
from shardbeam.transforms.shards.count import count_shard, merge_counts
from tests.support.archive_files import write_tar, write_zip
from tests.support.builds import Build, build
from tests.support.dataset import read_dataset, read_tree
from tests.support.dataset import run as run_command
from tests.support.format_samples import SAMPLES, Features, FormatSample, SharedData, observe
from tests.support.image_makers import Pixels
from tests.support.old_versions import age_records

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")


def read_with_tensorflow(built: Build, split: str) -> list[Features]:
    """Reads a split by its files' names, with nothing of Shardbeam's."""
    import tensorflow as tf

    files = sorted(map(str, built.output.glob(f"*-{split}.tfrecord-*")))
    assert files
    examples: list[Features] = []
    for record in tf.data.TFRecordDataset(files).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        examples.append(
            {
                key: list(getattr(feature, feature.WhichOneof("kind")).value)
                for key, feature in features.items()
            }
        )
    return examples


def test_no_format_is_left_out() -> None:
    assert {sample.format_name for sample in SAMPLES} == set(built_in_formats())


class BuiltSample(NamedTuple):
    """A sample, the folder of its input, and its build."""

    sample: FormatSample
    data: Path
    run: Build


@pytest.fixture(scope="module")
def built(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    find_shared_data: SharedData,
) -> BuiltSample:
    sample: FormatSample = request.param
    folder = tmp_path_factory.mktemp(sample.name)
    data = sample.place(folder / "data", shared_data=find_shared_data)
    return BuiltSample(sample, data, build(*sample.command(data), output=folder / "out"))


def of_samples(quick: Container[str]) -> pytest.MarkDecorator:
    """Runs a test for each sample; those that are not quick are slow."""
    samples = [
        pytest.param(each, marks=() if each.name in quick else pytest.mark.slow, id=each.name)
        for each in SAMPLES
    ]
    return pytest.mark.parametrize("built", samples, indirect=True)


@of_samples({sample.name for sample in SAMPLES})
def test_every_reject_and_every_example_is_what_the_source_says(built: BuiltSample) -> None:
    sample, run = built.sample, built.run
    assert Counter(reject["reason"] for reject in run.rejects()) == sample.rejects
    check_tf_data(sample, run)
    check_tfds(sample, run)
    check_statistics(sample, run)
    check_page(run)


# One sample for each kind of annotation; the others are counted by the same code.
@of_samples({"coco-masks", "voc-maps", "yolo-pose", "csv", "webdataset"})
def test_statistics_of_another_version_are_counted_again_from_the_shards_alone(
    built: BuiltSample, tmp_path: Path
) -> None:
    written = read_dataset(built.run.output)
    shutil.copytree(built.run.output, tmp_path / "aged")
    age_records(tmp_path / "aged", lost_columns=["crc32c", "map_classes"])
    words = (*built.sample.command(built.data), "--reuse", str(tmp_path / "aged"))
    again = build(*words, output=tmp_path / "again")
    copied = again.summary["reuse"]["copied_shards"]
    assert copied == sum(split["shards"] for split in again.summary["splits"].values())
    assert read_dataset(again.output) == written


# What reads annotations through an archive; the other samples differ in what these hold.
@of_samples({"lvis", "voc", "yolo", "cvat", "labelme", "csv", "jsonl"})
def test_a_format_as_a_whole_in_an_archive(built: BuiltSample, tmp_path: Path) -> None:
    sample = built.sample
    if sample.format_name in {"cifar10", "cifar100", "idx", "webdataset", "tfrecord"}:
        pytest.skip("its files hold many Examples, and are read in place")
    files = {f"set/{path}": data for path, data in read_tree(built.data).items()}
    write, kind = ((write_zip, "zip"), (write_tar, "tar"))[SAMPLES.index(sample) % 2]
    archive = write(tmp_path / f"all.{kind}", files)

    archived = build(*sample.command(f"{archive}/set"), output=tmp_path / "out")

    before, after = (
        {path: data for path, data in read_tree(each.output).items() if ".tfrecord-" in path}
        for each in (built.run, archived)
    )
    assert before == after
    assert archived.reasons() == built.run.reasons()


def check_tf_data(sample: FormatSample, run: Build) -> None:
    import tensorflow as tf

    def decode(png: bytes) -> Pixels:
        return np.asarray(tf.io.decode_png(png))

    # Files beside the images are in no split.
    splits = filter(None, run.summary["splits"])
    found = {split: read_with_tensorflow(run, split) for split in splits}

    assert {split: len(examples) for split, examples in found.items()} == sample.counts
    (example,) = (
        each for each in found[sample.split] if each["image/filename"] == [sample.key.encode()]
    )
    for key, expected in sample.values.items():
        is_number = isinstance(expected, list) and not isinstance(expected[0], bytes)
        wanted = pytest.approx(expected, abs=1e-6) if is_number else expected
        assert observe(example, key, decode=decode) == wanted, key


def check_tfds(sample: FormatSample, run: Build) -> None:
    if sys.version_info < (3, 11):
        # TFDS cannot be installed beside Beam.
        return
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(run.output))

    assert {
        name: split.num_examples for name, split in builder.info.splits.items()
    } == sample.counts
    for split, count in sample.counts.items():
        names = [each["image/filename"] for each in tfds.as_numpy(builder.as_dataset(split=split))]
        assert len(set(names)) == len(names) == count
        assert split != sample.split or sample.key.encode() in names


def count_dataset(folder: str) -> dict[str, Statistics]:
    """Reads the shards of a dataset in this thread, and counts their content."""
    dataset = open_dataset(folder)
    feature_map = read_feature_map(dataset)
    counted = (count_shard(shard, feature_map=feature_map) for shard in plan_counts(dataset))
    return merge_counts(counted, splits=[each.name for each in dataset.splits])


def check_statistics(sample: FormatSample, run: Build) -> None:
    """The statistics from writing equal those that are counted from the shards."""
    written = read_statistics(str(run.output))

    assert written is not None
    assert {name: split.examples for name, split in written.items()} == sample.counts
    assert written == count_dataset(str(run.output))


def read_rows(page: str, start: str) -> list[list[str]]:
    """Returns the texts of the cells of the first table after a text of the page."""
    table = page[page.index(start) :].partition("</table>")[0]
    return [
        [
            html.unescape(re.sub("<[^>]*>", "", cell))
            for cell in re.findall("<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        for row in re.findall("<tr.*?</tr>", table, re.DOTALL)
    ]


def check_page(run: Build) -> None:
    """The page has the counts of `stats --json` and of `show --findings --json`."""
    output = str(run.output)
    stats = json.loads(run_command("stats", output, "--json").stdout)
    found = json.loads(run_command("show", output, "--findings", "--json").stdout)["findings"]
    page = make_page(open_dataset(output), examples=1)
    splits = stats["splits"]
    head, *rows = read_rows(page, 'id="files"')
    assert rows
    for name, *cells in rows:
        shown = dict(zip(head[1:], cells, strict=True))
        assert shown["examples"] == f"{splits[name]['examples']:,}"
        assert shown.get("objects", "0") == f"{splits[name]['objects']:,}"

    field = "objects_by_class"
    if not any(split[field] for split in splits.values()):
        field = "images_by_class"
    counts = {name: split[field] for name, split in splits.items()}
    names = {name for each in counts.values() for name in each}
    assert bool(names) == ('id="classes"' in page)
    if names:
        head, *rows = read_rows(page, 'class="class-chart"')
        assert rows
        assert {row[0] for row in rows} <= {name or "(no name)" for name in names}
        for label, _, *cells in rows:
            name = "" if label == "(no name)" else label
            expected = [each.get(name, 0) for each in counts.values()]
            listed = [counts[column].get(name, 0) for column in head[1:-1]]
            assert cells == [f"{count:,}" for count in (*listed, sum(expected))]

    # `found` lists each Example with a finding once for each kind.
    by_kind = Counter(each["kind"] for each in found)
    heads = re.findall(
        'id="look-([a-z_]+)"[^>]*>\\s*<summary><h3>[^<]*</h3> <strong>([0-9,]+) images?<', page
    )
    shown_kinds = {kind: number for kind, number in heads if kind in by_kind}
    assert shown_kinds == {kind: f"{count:,}" for kind, count in by_kind.items()}
    counted: Counter[str] = Counter()
    for each in stats["findings"]:
        counted[each["kind"]] += each["images"]
    assert {kind: counted[kind] for kind in by_kind} == by_kind


@pytest.mark.parametrize(
    ("words", "examples", "boxes"),
    [
        ("voc --root voc_dataset/voc_dataset3", {"train": 1}, 1),
        ("voc --root roboflow_dataset/voc", {"train": 2, "val": 1}, 4),
        # The other image has no XML file.
        ("voc --root kaggle_dataset/relaxed_voc1", {"train": 1}, 2),
        ("yolo --root yolo_dataset/labels", {"train": 1, "val": 1}, 4),
        ("yolo --root yolo_dataset/annotations", {"train": 1}, 2),
    ],
)
def test_other_layouts_of_real_datasets(
    shared_data: Path, tmp_path: Path, words: str, examples: dict[str, int], boxes: int
) -> None:
    format_name, root, folder = words.split()
    run = build(format_name, root, shared_data / "datumaro" / folder, output=tmp_path / "out")

    found = {split: run.examples(split) for split in examples}
    assert {split: len(written) for split, written in found.items()} == examples
    assert sum(len(each.boxes) for written in found.values() for each in written) == boxes
    # Boxes at the border, rounded to six digits, need no correction.
    assert format_name != "yolo" or all(
        run.counts(split)["corrections"] == {} for split in examples
    )
