"""Each built-in format: its sample, built by the command, read with tf.data and by TFDS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from shardbeam.configs.schema import SOURCES
from tests.pipelines.builds import Build, build
from tests.pipelines.format_samples import SAMPLES, FormatSample

# TFDS's use of protobuf.
pytestmark = pytest.mark.filterwarnings(r"ignore:label\(\) is deprecated")

Features = Mapping[str, list[Any]]


class BuiltSample(NamedTuple):
    """A sample, and the build of it."""

    sample: FormatSample
    build: Build


@pytest.fixture(scope="module", params=SAMPLES, ids=lambda sample: sample.name)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BuiltSample:
    sample: FormatSample = request.param
    folder = tmp_path_factory.mktemp(sample.name)
    data = sample.place(folder / "data", shared_data=lambda: request.getfixturevalue("shared_data"))
    run = build(*sample.command(data), output=folder / "out")
    assert run.exit_code == 0, run.stderr
    return BuiltSample(sample, run)


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


def observe(example: Features, key: str) -> object:
    """What `FormatSample.values` tells of a key."""
    import tensorflow as tf

    found = example[key]
    if key == "image/object/mask":
        return [int(tf.io.decode_png(mask).numpy().sum()) for mask in found]
    if key == "image/segmentation/class/encoded":
        values = tf.io.decode_png(found[0]).numpy()
        numbers, pixels = np.unique(values, return_counts=True)
        return dict(zip(numbers.tolist(), pixels.tolist(), strict=True))
    if key == "image/encoded":
        first_pixel: list[int] = tf.io.decode_png(found[0]).numpy()[0, 0].tolist()
        return first_pixel
    return found


def test_no_format_is_left_out() -> None:
    assert {sample.format_name for sample in SAMPLES} == set(SOURCES)


def test_tf_data_reads_what_the_source_says(built: BuiltSample) -> None:
    sample, run = built
    found = {split: read_with_tensorflow(run, split) for split in run.summary["splits"]}

    assert {split: len(examples) for split, examples in found.items()} == sample.counts
    (example,) = (
        each for each in found[sample.split] if each["image/filename"] == [sample.key.encode()]
    )
    for key, expected in sample.values.items():
        is_number = isinstance(expected, list) and not isinstance(expected[0], bytes)
        wanted = pytest.approx(expected, abs=1e-6) if is_number else expected
        assert observe(example, key) == wanted, key


def test_tfds_loads_as_many(built: BuiltSample) -> None:
    tfds = pytest.importorskip("tensorflow_datasets")
    sample, run = built
    builder = tfds.builder_from_directory(str(run.output))

    assert {
        name: split.num_examples for name, split in builder.info.splits.items()
    } == sample.counts
    for split, count in sample.counts.items():
        names = [each["image/filename"] for each in tfds.as_numpy(builder.as_dataset(split=split))]
        assert len(set(names)) == len(names) == count
        assert split != sample.split or sample.key.encode() in names
