"""Tests of the notes."""

from __future__ import annotations

import msgspec
import pytest

from shardbeam.transforms.commit.warnings import make_notes
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.input_counts import InputCounts, InputSamples
from shardbeam.transforms.dataset.outcome import (
    SplitOutcome,
)
from tests.support.manifests import make_dataset

LEFT_OUT = SplitOutcome(
    listed=512,
    rejected={"corrupt": 5, "missing_image": 1},
    unlisted=1,
    excluded={"unannotated": 500, "not_an_image_name": 1, "hidden_file": 1},
)

BY_HASH = (
    "a hash of its name puts each image into a split, so that it never changes its split when "
    "others are added; --exact makes the fractions exact"
)

NO_LABELS = LabelMap(ids={}, names={})

FILES = "; they may have no annotations yet, or no objects (some tools then save no file)"

KEEP = "; --unannotated keep writes them as negatives"


@pytest.mark.parametrize(
    ("split", "rule", "file_per_image", "line"),
    [
        ("train", "auto", False, f"train{{}}{KEEP}"),
        ("train", "auto", True, f"train{{}}{FILES}{KEEP}"),
        ("train", "drop", False, "train{}"),
        # There are splits, and these images are in none of them.
        (
            "",
            "auto",
            False,
            "no split{}; --unannotated keep, with --split or --fractions, writes them as negatives",
        ),
    ],
)
def test_a_line_says_which_images_are_left_out(
    split: str, rule: str, file_per_image: bool, line: str
) -> None:
    inputs = InputCounts(
        splits={split: LEFT_OUT},
        samples=InputSamples(first_excluded={"unannotated": {split: ("a.jpg", "b\n.jpg")}}),
    )
    dataset = msgspec.structs.replace(
        make_dataset(config={"unannotated": rule}), file_per_image=file_per_image
    )
    such = " are named by no row or annotation file and left out, such as a.jpg, b\\n.jpg"
    assert make_notes(inputs, dataset=dataset, label_map=NO_LABELS) == (
        f"500 of 510 images of {line.format(such)}",
    )
    assert make_notes(InputCounts(), dataset=dataset, label_map=NO_LABELS) == ()


@pytest.mark.parametrize(
    ("images", "wanted", "lines"),
    [
        ((3, 9), 3, ()),
        ((3, 9), 4, ("output.num_shards: train has 3 images for 4 shards, so some are empty",)),
        (
            (1, 9),
            {"train": 2, "test": 9},
            ("output.num_shards: train has 1 image for 2 shards, so some are empty",),
        ),
        ((3, 9), None, ()),
    ],
)
def test_a_line_says_that_shards_are_empty(
    images: tuple[int, int], wanted: object, lines: tuple[str, ...]
) -> None:
    splits = {
        split: SplitOutcome(listed=count, images=count)
        for split, count in zip(("train", "test"), images, strict=True)
    }
    dataset = msgspec.structs.replace(
        make_dataset(config={"output": {"num_shards": wanted}}), splits=("train", "test")
    )

    notes = make_notes(InputCounts(splits=splits), dataset=dataset, label_map=NO_LABELS)

    assert notes == lines


@pytest.mark.parametrize(
    ("names", "classifies", "label"),
    [
        (["1", "10", "100", "2"], True, "10 has the label 1"),
        (["10", "8", "9"], True, "10 has the label 0"),
        (["01", "02", "10"], True, ""),
        (["1", "10", "cat"], True, ""),
        (["1", "10", "2"], False, ""),
        ([], True, ""),
    ],
)
def test_a_line_says_that_numbers_are_ordered_as_texts(
    names: list[str], classifies: bool, label: str
) -> None:
    label_map = LabelMap(ids={name: index for index, name in enumerate(names)}, names={})
    dataset = msgspec.structs.replace(make_dataset(), classifies=classifies)

    notes = make_notes(InputCounts(), dataset=dataset, label_map=label_map)

    assert len(notes) == bool(label)
    assert label in "".join(notes)


@pytest.mark.parametrize(
    ("config", "lines"),
    [
        ({}, ("2 classes are in test and not in train: b, c",)),
        # A sample does not show what the whole dataset has.
        ({"limit": 5}, ()),
    ],
)
def test_a_line_says_which_classes_only_another_split_has(
    config: dict[str, object], lines: tuple[str, ...]
) -> None:
    statistics = {
        "train": Statistics(images_by_class={"a": 1}),
        "test": Statistics(images_by_class={"a": 1, "c": 2, "b": 1}),
        "val": Statistics(images_by_class={"a": 3}),
    }

    dataset = make_dataset(config=config)
    notes = make_notes(InputCounts(), dataset=dataset, label_map=NO_LABELS, statistics=statistics)

    assert notes == lines


@pytest.mark.parametrize(
    ("images", "config", "lines"),
    [
        (
            (88, 12),
            {},
            (
                "fractions are approximate: train 88%, test 12% of the images, instead of "
                "train 80%, test 20%; " + BY_HASH,
            ),
        ),
        ((81, 19), {}, ()),
        ((88, 12), {"exact": True}, ()),
        ((88, 12), {"stratify": True}, ()),
        ((88, 12), {"limit": 100}, ()),
        ((88, 12), {"fractions": {}}, ()),
        (
            (88, 12),
            {"fractions": {"train": 0.8, "test": 0.12, "dev": 0.08}},
            (
                "fractions are approximate: train 88%, test 12%, dev 0% of the images, instead of "
                "train 80%, test 12%, dev 8%; " + BY_HASH,
            ),
        ),
    ],
)
def test_a_line_says_that_fractions_are_approximate(
    images: tuple[int, int], config: dict[str, object], lines: tuple[str, ...]
) -> None:
    splits = {
        split: SplitOutcome(listed=count, images=count)
        for split, count in zip(("train", "test"), images, strict=True)
    }
    dataset = make_dataset(config={"fractions": {"train": 0.8, "test": 0.2}, **config})
    assert make_notes(InputCounts(splits=splits), dataset=dataset, label_map=NO_LABELS) == lines
