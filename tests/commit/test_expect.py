from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from shardbeam.configs.schema import ExpectConfig
from shardbeam.transforms.commit.expect import find_unmet
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.findings import KindFound
from shardbeam.transforms.dataset.outcome import SplitOutcome
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_counts, make_dataset

CLASSES = ["cat", "dog", "emu"]
OUTCOME = SplitOutcome(
    images=10,
    objects=20,
    corrections={
        "box_clipped": 4,
        "box_without_area_dropped": 5,
        "image_converted": 3,
        "excluded_label_dropped": 2,
        "region_unusable_dropped": 1,
    },
)
COUNTED = Statistics(
    images=10,
    width_range=(64, 640),
    height_range=(48, 480),
    unannotated=3,
    labels=8,
    objects=20,
    crowds=2,
    images_by_class={"cat": 9, "dog": 2},
    objects_by_class={"cat": 18, "dog": 2},
)


def find(
    keys: Mapping[str, Any],
    splits: Mapping[str, SplitOutcome],
    statistics: Mapping[str, Statistics],
    *,
    classes: Sequence[str] = (),
    findings: Sequence[KindFound] = (),
) -> list[str]:
    dataset = msgspec.structs.replace(make_dataset(), expect=ExpectConfig(**keys))
    label_map = make_label_map({name: number for number, name in enumerate(classes, 1)})
    counts = make_counts(dataset=dataset, label_map=label_map, splits=splits, statistics=statistics)
    return list(find_unmet(counts, findings=findings))


def unmet(keys: Mapping[str, Any]) -> list[str]:
    splits = {"": SplitOutcome(), "train": OUTCOME}
    found = find(keys, splits, {"train": COUNTED}, classes=CLASSES)
    return [line.removeprefix("split 'train': expect.") for line in found]


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({}, ""),
        ({"min_images": 10}, ""),
        ({"min_images": 1001}, "min_images: expected at least 1,001 images, found 10"),
        ({"min_images": {"train": 11}}, "min_images: expected at least 11 images, found 10"),
        ({"min_images": {"test": 11}}, ""),
        ({"min_objects": 20}, ""),
        ({"min_objects": 21}, "min_objects: expected at least 21 objects, found 20"),
        (
            {"min_images_per_class": 3},
            "min_images_per_class: expected at least 3 images of each class, 2 classes have fewer: "
            "emu (0), dog (2)",
        ),
        (
            {"min_objects_per_class": {"train": 18, "test": 99}},
            "min_objects_per_class: expected at least 18 objects of each class, 2 classes have "
            "fewer: emu (0), dog (2)",
        ),
        (
            {"min_objects_per_class": 1},
            "min_objects_per_class: expected at least 1 objects of each class, 1 class has fewer: "
            "emu (0)",
        ),
        ({"image_width": [64, 640]}, ""),
        ({"image_width": [65, 640]}, "image_width: expected 65 to 640 px, found 64 to 640 px"),
        ({"image_height": [48, 480]}, ""),
        ({"image_height": [48, 479]}, "image_height: expected 48 to 479 px, found 48 to 480 px"),
        ({"max_unannotated": 0.3}, ""),
        (
            {"max_unannotated": 0.29},
            "max_unannotated: expected at most 29.00% images without annotations, found 3 of 10 "
            "(30.00%)",
        ),
        ({"max_crowds": 0.1}, ""),
        (
            {"max_crowds": 0},
            "max_crowds: expected at most 0.00% objects that are crowds, found 2 of 20 (10.00%)",
        ),
        # 4 of 20 objects; 5 of 25, as they are not among the 20; 3 of 10; 2 of 10; 1 of 11.
        ({"max_corrections": 0.3}, ""),
        (
            {"max_corrections": 0.2},
            "max_corrections: expected at most 20.00% images that are image_converted, found 3 of "
            "10 (30.00%)",
        ),
        (
            {"max_corrections": 0.199},
            "max_corrections: expected at most 19.90% objects that are box_clipped, found 4 of 20 "
            "(20.00%); expected at most 19.90% objects that are box_without_area_dropped, found 5 "
            "of 25 (20.00%); expected at most 19.90% images that are image_converted, found 3 of "
            "10 (30.00%); expected at most 19.90% labels that are excluded_label_dropped, found 2 "
            "of 10 (20.00%)",
        ),
    ],
)
def test_each_key(keys: dict[str, Any], problem: str) -> None:
    assert unmet(keys) == [problem] * bool(problem)


def test_all_that_is_unmet_is_said() -> None:
    found = unmet({"min_images": 11, "max_crowds": 0, "image_width": [1, 2]})
    assert [line.partition(":")[0] for line in found] == ["min_images", "image_width", "max_crowds"]


def test_many_classes_are_cut() -> None:
    classes = [f"{number:02d}" for number in range(30)]
    keys = {"min_images_per_class": 1}
    (line,) = find(keys, {"a": SplitOutcome()}, {"a": Statistics()}, classes=classes)
    assert line.endswith(
        "30 classes have fewer: " + ", ".join(f"{n:02d} (0)" for n in range(10)) + " and 20 more"
    )


def test_a_correction_of_what_is_not_there_is_too_much() -> None:
    splits = {"a": SplitOutcome(corrections={"box_clipped": 1})}
    (line,) = find({"max_corrections": 1}, splits, {"a": Statistics()})
    assert line.endswith("found 1 of 0")


def test_a_split_without_images_has_no_sizes() -> None:
    keys = {"image_width": [5, 6], "image_height": [5, 6], "max_unannotated": 0, "max_crowds": 0}
    assert not find(keys, {"a": SplitOutcome()}, {"a": Statistics()})


def test_findings_are_counted_by_images_or_else_one_by_one() -> None:
    """Findings about classes have no images, and may be about the dataset as a whole."""
    found = [
        KindFound(kind="duplicate_box", split="train", images=3),
        KindFound(kind="duplicate_box", split="test", images=2),
        KindFound(kind="rare_class", text="class 'cat' is rare"),
        KindFound(kind="rare_class", text="class 'dog' is rare"),
        KindFound(kind="tiny_box", split="train", images=9),
    ]
    limits = {"duplicate_box": 2, "rare_class": 1}
    lines = find({"max_findings": limits}, {}, {}, findings=found)
    assert [line.rpartition(":")[0] for line in lines] == [
        "split 'train': expect.max_findings: duplicate_box: expected at most 2, found 3: "
        "3 images of train (0.00%)",
        "expect.max_findings: rare_class: expected at most 1, found 2",
    ]
