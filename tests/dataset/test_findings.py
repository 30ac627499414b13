"""What is worth a look in a dataset: what is usual, and findings about classes."""

from __future__ import annotations

import typing

import pytest

from shardbeam.configs.decoding import convert_value
from shardbeam.configs.schema import FindingKind
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.findings import KINDS, KindFound, find_kinds, most_notable


def find(**fields: object) -> list[KindFound]:
    return find_kinds({"train": convert_value(fields, Statistics)})


def test_the_config_knows_all_kinds() -> None:
    assert list(KINDS) == list(typing.get_args(FindingKind))


def test_what_few_images_have_is_worth_a_look() -> None:
    (found,) = find(images=1000, images_by_finding={"dark_picture": 200})
    assert not found.usual
    assert found.describe() == "200 images of train (20.00%): a picture that is almost black"
    assert [each.kind for each in most_notable([found], number=3)] == ["dark_picture"]


def test_classes_that_may_be_one_come_first() -> None:
    found = find(
        images=1000,
        images_by_finding={"dark_picture": 1, "low_contrast": 2, "thin_box": 3},
        objects_by_class={"Cat": 1, "cat": 1, "CAT": 1},
    )
    notable = most_notable(found, number=3)
    assert [each.kind for each in notable] == ["similar_names", "thin_box", "low_contrast"]


def test_kinds_of_a_later_version_are_left_out() -> None:
    assert find(images=10, images_by_finding={"new_kind": 1}) == []


def test_what_many_images_have_is_usual() -> None:
    (found,) = find(images=1000, images_by_finding={"dark_picture": 201})
    assert found.usual
    assert most_notable([found], number=3) == []
    # Three images are too few.
    (found,) = find(images=4, images_by_finding={"dark_picture": 3})
    assert not found.usual


@pytest.mark.parametrize("kind", ["duplicate_box", "tiny_box", "sparse_mask"])
def test_what_is_hardly_ever_meant_is_never_usual(kind: str) -> None:
    (found,) = find(
        images=1000,
        images_by_finding={kind: 900},
        objects_by_finding={kind: {"cat": 900}},
        objects_by_class={"cat": 1000},
    )
    assert (found.usual, found.usual_classes, found.objects) == (False, {}, {"cat": 900})
    assert most_notable([found], number=3) == [found]


def test_a_kind_may_be_usual_in_one_class() -> None:
    (found,) = find(
        images=100_000,
        images_by_finding={"thin_box": 9},
        objects_by_finding={"thin_box": {"snake": 207, "cat": 2}},
        objects_by_class={"snake": 1000, "cat": 1000},
    )
    assert (found.usual, found.usual_classes, found.objects) == (
        False,
        {"snake": 0.207},
        {"cat": 2},
    )
    assert found.describe().endswith("(cat: 2; usual for snake: 20.70%)")


def test_pairs_of_classes_are_compared_with_the_smaller_one() -> None:
    (found,) = find(
        images=100_000,
        images_by_finding={"same_box": 9},
        same_boxes={"bike": {"rider": 50}, "cat": {"dog": 1}},
        objects_by_class={"bike": 10_000, "rider": 200, "cat": 500, "dog": 500},
    )
    assert found.usual_classes == {"bike + rider": 0.25}
    assert found.objects == {"cat + dog": 1}


def test_numbers_of_objects() -> None:
    found = find(images=200, images_by_objects={"0": 1, "1": 198, "50": 1})
    assert {each.kind: each.images for each in found} == {"many_objects": 1, "no_objects": 1}


@pytest.mark.parametrize(
    ("counts", "similar"),
    [
        ({"traffic light": 5, "traffic_light": 5}, ["'traffic light' and 'traffic_light'"]),
        ({"Cat": 5, "cat": 5}, ["'Cat' and 'cat'"]),
        ({"chair": 1000, "chiar": 9}, ["'chair' and 'chiar'"]),
        ({"chair": 1000, "chiar": 10}, []),
        ({"class12": 1000, "class21": 1}, []),
        ({"cat": 1000, "car": 1}, []),
        ({"-1": 9, "1": 9, "a-1": 9, "a1": 9}, ["'a-1' and 'a1'"]),
    ],
)
def test_similar_names(counts: dict[str, int], similar: list[str]) -> None:
    found = [each.text for each in find(objects_by_class=counts) if each.kind == "similar_names"]
    assert found == [f"{names} may be one class" for names in similar]


def test_classes_that_never_occur_and_corrections() -> None:
    found = find_kinds(
        {"train": Statistics(images_by_class={"cat": 3})},
        classes=["cat", "dog"],
        corrections={
            "train": {
                "box_clipped": 2,
                "image_converted": 5,
                "jpeg_damage_kept": 1,
                "object_of_excluded_label_dropped": 7,
            }
        },
    )
    assert [each.describe() for each in found] == [
        "1 class never occurs: dog",
        "2 box_clipped in train",
    ]


def test_the_same_picture_with_other_classes() -> None:
    statistics = Statistics(images=1000)
    splits = {"train": statistics, "test": statistics}
    (found,) = find_kinds(splits, similar={"same_picture": {"test": 4}})
    assert (found.kind, found.split, found.images, found.usual) == (
        "same_picture",
        "test",
        4,
        False,
    )
    (found,) = find_kinds(splits, similar={"unequal_objects": {"train": 201}})
    assert (found.kind, found.usual) == ("unequal_objects", True)


def test_ignored_kinds() -> None:
    statistics = Statistics(images=9, images_by_finding={"dark_picture": 1, "low_contrast": 1})
    found = find_kinds({"train": statistics}, ignore=["dark_picture"])
    assert [each.kind for each in found] == ["low_contrast"]


@pytest.mark.parametrize(
    ("splits", "found"),
    [
        # A thousand to one, in all splits together.
        ({"train": {"objects_by_class": {"a": 999, "b": 1}}}, []),
        (
            {
                "train": {"objects_by_class": {"a": 1999, "b": 1, "c": 5}},
                "test": {"objects_by_class": {"a": 1, "b": 1, "c": 0}},
            },
            ["'a' has 2,000 objects, and 'b' has 2"],
        ),
        (
            {"train": {"images_by_class": {"a": 1000, "b": 1}}},
            ["'a' has 1,000 images, and 'b' has 1"],
        ),
        # What a split lacks, first what `train` does.
        (
            {
                "train": {"images_by_class": {"a": 5, "b": 5}},
                "test": {"images_by_class": {"b": 1, "c": 1}},
                "more": {"images": 5},
            },
            [
                "train: in 'test' and not in 'train': 1 class: c",
                "test: in 'train' and not in 'test': 1 class: a",
            ],
        ),
        # A split without objects, while others have some.
        (
            {
                "train": {"images": 10, "images_by_objects": {"0": 4, "2": 6}, "objects": 12},
                "test": {"images": 5, "images_by_objects": {"0": 5}},
            },
            [
                "test: none of the 5 images of 'test' has objects, and 6 of the 10 images of other "
                "splits have some"
            ],
        ),
        # Four images might have none by chance, and so might those of a set of negatives.
        (
            {
                "train": {"images": 10, "images_by_objects": {"0": 4, "2": 6}, "objects": 12},
                "test": {"images": 4, "images_by_objects": {"0": 4}},
            },
            [],
        ),
        (
            {"train": {"images": 9, "unannotated": 1}, "test": {"images": 3, "unannotated": 3}},
            [],
        ),
        (
            {"train": {"images": 9, "unannotated": 9}, "test": {"images": 3}},
            [
                "train: none of the 9 images of 'train' has annotations, and 3 of the 3 images of "
                "other splits have some"
            ],
        ),
        ({"train": {"images": 9, "unannotated": 9}, "test": {"images": 0}}, []),
        ({"train": {"images": 9, "unannotated": 9}}, []),
    ],
)
def test_what_is_found_in_the_dataset_as_a_whole(
    splits: dict[str, object], found: list[str]
) -> None:
    kinds = ("rare_class", "no_objects")
    lines = find_kinds(
        {name: convert_value(each, Statistics) for name, each in splits.items()}, ignore=kinds
    )
    assert [f"{each.split}: {each.text}".removeprefix(": ") for each in lines] == found
