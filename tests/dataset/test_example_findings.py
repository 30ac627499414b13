"""What is worth a look in an Example: each kind at its threshold, and pairs against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbeam.transforms.dataset.example_findings import (
    Finding,
    ObjectColumns,
    ObjectLimits,
    find_in_example,
    limit_objects,
)

Box = tuple[float, float, float, float]


def example(
    boxes: Sequence[Box],
    *,
    names: Sequence[bytes] | None = None,
    crowds: Sequence[int] = (),
    masks: Sequence[int] = (),
    around: Sequence[Box] | None = None,
    size: tuple[int, int] = (1000, 1000),
) -> dict[str, Sequence[Any]]:
    """Makes the values of an Example from boxes in pixels."""
    width, height = size
    return {
        "image/width": [width],
        "image/height": [height],
        "image/object/bbox/xmin": [box[0] / width for box in boxes],
        "image/object/bbox/ymin": [box[1] / height for box in boxes],
        "image/object/bbox/xmax": [box[2] / width for box in boxes],
        "image/object/bbox/ymax": [box[3] / height for box in boxes],
        "image/object/class/text": [b"cat"] * len(boxes) if names is None else names,
        "image/object/is_crowd": crowds or [0] * len(boxes),
        "image/object/mask/area": masks,
        "image/object/mask/box": boxes if around is None else around,
    }


def kinds(values: dict[str, Sequence[Any]]) -> list[str]:
    return sorted(finding.kind for finding in find_in_example(values))


@pytest.mark.parametrize(
    ("box", "masks", "found"),
    [
        ((0, 0, 1000, 910), (), ["large_box"]),
        ((0, 0, 1000, 890), (), []),
        ((10, 10, 14, 13.9), (), ["tiny_box"]),
        ((10, 10, 14, 14.1), (), []),
        ((10, 10, 410, 29), (), ["thin_box"]),
        ((10, 10, 29, 410), (), ["thin_box"]),
        ((10, 10, 410, 31), (), []),
        ((10, 10, 110, 110), (199,), ["sparse_mask"]),
        ((10, 10, 110, 110), (201,), []),
        # An empty mask has a correction of its own.
        ((10, 10, 110, 110), (0,), []),
        ((10, 10, 10, 110), (), []),
        ((110, 10, 10, 110), (), []),
        ((float("nan"), 10, 20, 110), (), []),
    ],
)
def test_boxes_at_the_threshold(box: Box, masks: Sequence[int], found: list[str]) -> None:
    assert kinds(example([box], masks=masks)) == found


@pytest.mark.parametrize(
    ("around", "found"),
    [
        ((10, 10, 110, 110), []),
        # 69 and 71 of 100 columns.
        ((10, 10, 79, 110), ["box_off_mask"]),
        ((10, 10, 81, 110), []),
        ((300, 300, 400, 400), ["box_off_mask"]),
    ],
)
def test_a_box_is_around_its_mask(around: Box, found: list[str]) -> None:
    values = example([(10, 10, 110, 110)], masks=(5000,), around=[around])
    assert kinds(values) == found
    # An empty mask says nothing, nor does one of a box that is not known.
    assert kinds({**values, "image/object/mask/area": [0]}) == []
    assert kinds({**values, "image/width": [0]}) == []


def test_masks_end_at_whole_pixels() -> None:
    box = (10.4, 10.4, 12.9, 12.9)
    found = kinds(example([box], masks=(4,), around=[(11, 11, 13, 13)]))
    assert found == ["tiny_box"]


@pytest.mark.parametrize(
    ("width", "names", "found"),
    [
        (99, (b"cat", b"cat"), ["duplicate_box"]),
        (81, (b"cat", b"cat"), ["duplicate_box"]),
        (79, (b"cat", b"cat"), []),
        (96, (b"cat", b"dog"), ["same_box"]),
        (94, (b"cat", b"dog"), []),
    ],
)
def test_how_close_two_boxes_are(width: int, names: Sequence[bytes], found: list[str]) -> None:
    boxes = [(10.0, 10.0, 110.0, 110.0), (10.0, 10.0, 10.0 + width, 110.0)]
    assert kinds(example(boxes, names=list(names))) == found


def test_the_ratio_of_sides_is_in_pixels() -> None:
    assert kinds(example([(0, 0, 420, 20.5)], size=(2000, 100))) == ["thin_box"]
    assert kinds(example([(0, 0, 90, 90)], size=(10_000, 100))) == []


def test_strengths() -> None:
    def strengths(box: Box, masks: Sequence[int] = ()) -> dict[str, int]:
        return {each.kind: each.strength for each in find_in_example(example([box], masks=masks))}

    assert strengths((0, 0, 1000, 1000)) == {"large_box": 1_000_000}
    assert strengths((0, 0, 500, 10)) == pytest.approx({"thin_box": 50_000}, abs=2)
    assert strengths((0, 0, 2, 2)) == pytest.approx({"tiny_box": 4_000}, abs=2)
    assert strengths((0, 0, 100, 100), (10,)) == pytest.approx({"sparse_mask": 1_000_000}, abs=200)


def test_a_pair_has_one_class_or_two() -> None:
    boxes = [(10.0, 10.0, 110.0, 110.0), (10.0, 10.0, 110.0, 111.0)]
    (same,) = find_in_example(example(boxes))
    assert (same.kind, same.name, same.other) == ("duplicate_box", b"cat", b"")
    (two,) = find_in_example(example(boxes, names=[b"dog", b"cat"]))
    assert (two.kind, two.name, two.other) == ("same_box", b"cat", b"dog")
    assert find_in_example(example(boxes, crowds=[0, 1])) == []


def brute_force(values: dict[str, Sequence[Any]]) -> int:
    sides = [
        np.array(values[f"image/object/bbox/{side}"], np.float32).astype(float)
        for side in ("xmin", "ymin", "xmax", "ymax")
    ]
    count = 0
    for one, other in itertools.combinations(zip(*sides, strict=True), 2):
        across = min(one[2], other[2]) - max(one[0], other[0])
        down = min(one[3], other[3]) - max(one[1], other[1])
        if across > 0 and down > 0:
            areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
            count += across * down / (sum(areas) - across * down) > 0.8
    return count


near = st.integers(0, 3).map(lambda shift: shift * 1.9)


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 40, 300]), near, near, st.sampled_from([30, 60, 90]), near),
        max_size=12,
    )
)
def test_pairs_against_brute_force(parts: list[tuple[float, float, float, float, float]]) -> None:
    values = example(
        [(x + dx, x + dy, x + dx + side + more, x + dy + side) for x, dx, dy, side, more in parts]
    )
    assert kinds(values).count("duplicate_box") == brute_force(values)


# Boxes of some sizes and at some places: large, tiny and thin ones, and nearly equal ones.
sides = st.sampled_from([0.0, 3.0, 20.0, 21.0, 500.0, 980.0, 1000.0])
any_box = st.tuples(sides, sides, sides, sides).map(
    lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3])
)
any_example = st.one_of(
    st.just({}),
    st.lists(any_box, max_size=6).flatmap(
        lambda boxes: st.builds(
            example,
            st.just(boxes),
            names=st.just([b"cat", b"dog"] * 3).map(lambda names: names[: len(boxes)]),
            crowds=st.lists(st.integers(0, 1), min_size=len(boxes), max_size=len(boxes)),
            masks=st.lists(st.integers(0, 90), min_size=len(boxes), max_size=len(boxes)),
            size=st.sampled_from([(1000, 1000), (2000, 100)]),
        )
    ),
    st.builds(
        lambda box, size: {
            "image/width": [size],
            "image/height": [size],
            "annotation/bbox": list(box),
            "annotation/class/text": [b"cat"],
        },
        any_box,
        st.sampled_from([0, 1000]),
    ),
)


@settings(max_examples=200)
@given(st.lists(any_example, max_size=12))
def test_many_examples_at_once_have_the_findings_of_each(
    examples: list[dict[str, Sequence[Any]]],
) -> None:
    columns = ObjectColumns()
    for number, values in enumerate(examples):
        columns.add(10 * number, values)
    found = sorted(columns.find())
    alone = [
        (10 * number, finding)
        for number, values in enumerate(examples)
        for finding in find_in_example(values)
    ]
    assert found == sorted(alone)


def test_of_many_boxes_only_equal_ones_are_compared() -> None:
    boxes = [(float(number), 0.0, number + 30.0, 30.0) for number in range(501)]
    assert kinds(example(boxes)) == []
    assert kinds(example([*boxes, boxes[7]])) == ["duplicate_box"]
    assert kinds(example([*boxes, (7.0, 0.0, 37.0, 30.2)])) == []


def test_an_example_of_one_object() -> None:
    values: dict[str, Sequence[Any]] = {
        "image/width": [200],
        "image/height": [100],
        "annotation/bbox": [0.0, 0.0, 195.0, 99.0],
        "annotation/class/text": [b"cat"],
    }
    (found,) = find_in_example(values)
    assert (found.kind, found.name) == ("large_box", b"cat")


def test_values_that_do_not_fit_together() -> None:
    values = example([(0, 0, 1000, 1000)] * 2)
    values["image/object/bbox/ymax"] = [1.0]
    assert find_in_example(values) == []
    values = example([(0, 0, 1000, 1000)])
    values["image/object/class/text"] = []
    assert find_in_example(values) == [Finding("large_box", 1_000_000, objects=(0,))]
    values["image/width"] = values["image/height"] = []
    assert [each.kind for each in find_in_example(values)] == ["large_box"]


@pytest.mark.parametrize(
    ("images_by_objects", "limits"),
    [
        ({}, ObjectLimits()),
        ({0: 5}, ObjectLimits()),
        # 6 medians of 2 are more than 3 times the 99th percentile, 3.
        ({1: 40, 2: 30, 3: 30}, ObjectLimits(12, False)),
        # The 99th percentile is that of nearly all images.
        ({1: 50, 10: 50}, ObjectLimits(30, False)),
        ({0: 1, 1: 99}, ObjectLimits(6, True)),
        ({0: 2, 1: 98}, ObjectLimits(6, False)),
    ],
)
def test_numbers_of_objects(images_by_objects: dict[int, int], limits: ObjectLimits) -> None:
    assert limit_objects(images_by_objects) == limits
