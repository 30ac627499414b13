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


def test_three_images_are_never_usual() -> None:
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
    (found,) = find_kinds(splits, same_pictures={"test": 4})
    assert (found.kind, found.split, found.images, found.usual) == (
        "same_picture",
        "test",
        4,
        False,
    )
    (found,) = find_kinds(splits, same_pictures={"train": 201})
    assert found.usual


def test_ignored_kinds() -> None:
    statistics = Statistics(images=9, images_by_finding={"dark_picture": 1, "low_contrast": 1})
    found = find_kinds({"train": statistics}, ignore=["dark_picture"])
    assert [each.kind for each in found] == ["low_contrast"]
