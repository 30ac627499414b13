"""The names of the files of shards."""

from __future__ import annotations

import re

import pytest

from shardbeam.transforms.dataset.shard_names import FileNaming


@pytest.mark.parametrize(
    ("naming", "shard_index", "num_shards", "expected"),
    [
        (FileNaming(prefix="/d/c-{split}.tfrecord"), 1, 2, "c-val.tfrecord-00001-of-00002"),
        # From 100,000 shards on TFDS pads to the count's own digits.
        (
            FileNaming(prefix="/d/c-{split}.tfrecord"),
            7,
            100_000,
            "c-val.tfrecord-000007-of-100000",
        ),
        (FileNaming(prefix="x", suffix=".tfrecord"), 0, 1, "x-00000-of-00001.tfrecord"),
        (FileNaming(prefix="d/{split}", template="", suffix=".record"), 0, 1, "val.record"),
        (FileNaming(prefix="x", template="-SS-of-NN"), 3, 12, "x-03-of-12"),
        (FileNaming(prefix="x", template="_S_N"), 3, 12, "x_3_12"),
    ],
)
def test_file_names(naming: FileNaming, shard_index: int, num_shards: int, expected: str) -> None:
    assert naming.file_name(split="val", shard_index=shard_index, num_shards=num_shards) == expected
    pattern = naming.pattern(["train", "val"])
    assert re.fullmatch(pattern, expected)
    assert not re.fullmatch(pattern, f"{expected}x")


@pytest.mark.parametrize("template", ["-W-SS-of-NN", "-V-SS", "-SS", "-NN", "-X"])
def test_templates_that_make_no_sense_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="shard_name_template"):
        FileNaming(prefix="x", template=template)


def test_a_split_named_like_a_template_stays_as_it_is() -> None:
    naming = FileNaming(prefix="d/{split}")
    assert naming.file_name(split="SNS", shard_index=0, num_shards=1) == "SNS-00000-of-00001"


@pytest.mark.parametrize(
    ("naming", "expected"),
    [
        (FileNaming(prefix="/d/c-{split}.x"), "c-{SPLIT}.x-{SHARD_INDEX}-of-{NUM_SHARDS}"),
        (FileNaming(prefix="{split}", template="", suffix=".record"), "{SPLIT}.record"),
    ],
)
def test_the_template_that_readers_of_tfds_go_by(naming: FileNaming, expected: str) -> None:
    assert naming.tfds_template == expected
