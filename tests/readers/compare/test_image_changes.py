"""Differences between two versions of a picture: tables of cases, and what always holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbeam.readers.compare import object_changes
from shardbeam.readers.compare.image_changes import ImageChange, ImageFacts, compare_images
from shardbeam.readers.compare.object_changes import ObjectChange
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from shardbeam.transforms.examples.geometry.boxes import Box


def item(label: str, *box: float, **values: Any) -> PictureObject:  # noqa: ANN401  # Its fields.
    """An object; its box in hundredths of the image."""
    sides: Box | None = None
    if box:
        xmin, ymin, xmax, ymax = (side / 100 for side in box)
        sides = (xmin, ymin, xmax, ymax)
    return PictureObject(label=label, box=sides, **values)


def compare(old: Sequence[PictureObject], new: Sequence[PictureObject]) -> list[tuple[Any, ...]]:
    """Returns the kinds, the classes and the IoU (in hundredths) of each change."""
    found = compare_images(
        Picture(key="a", objects=tuple(old)), Picture(key="a", objects=tuple(new))
    )
    return [
        (
            *each.kinds,
            *(name for name in (each.old_class, each.new_class) if name),
            *([] if each.iou is None else [round(100 * each.iou)]),
        )
        for each in found.objects
    ]


def test_boxes_of_a_resized_picture_may_be_rounded_to_its_pixels() -> None:
    def picture(width: int, height: int, *boxes: Sequence[float]) -> Picture:
        objects = tuple(
            PictureObject(
                label="cat",
                box=(x0 / width, y0 / height, x1 / width, y1 / height),
                area=(x1 - x0) * (y1 - y0),
            )
            for x0, y0, x1, y1 in boxes
        )
        return Picture(key="a", width=width, height=height, objects=objects)

    whole = picture(640, 480, (11, 21, 100, 200), (300, 31, 401, 131))
    half = picture(320, 240, (5, 11, 50, 100), (150, 15, 201, 66))
    moved = picture(320, 240, (5, 11, 50, 100), (153, 15, 201, 66))
    assert compare_images(whole, half).objects == ()
    (change,) = compare_images(whole, moved).objects
    assert change.kinds[0] == "box"
    # At one size, half a pixel is a change.
    (change,) = compare_images(
        half, picture(320, 240, (5.5, 11, 50, 100), (150, 15, 201, 66))
    ).objects
    assert change.kinds == ("box", "area")


CAT, DOG = item("cat", 0, 0, 10, 10), item("dog", 50, 50, 60, 60)


@pytest.mark.parametrize(
    ("old", "new", "changes"),
    [
        ([], [], []),
        ([CAT, DOG, CAT], [DOG, CAT, CAT], []),
        ([CAT], [], [("removed", "cat")]),
        ([CAT], [CAT, CAT, DOG], [("added", "cat"), ("added", "dog")]),
        ([CAT], [item("dog", 0, 0, 10, 10)], [("class", "cat", "dog")]),
        ([CAT], [item("cat", 0, 0, 10, 8)], [("box", "cat", "cat", 80)]),
        # It overlaps a little.
        ([CAT], [item("cat", 9, 0, 19, 10)], [("box", "cat", "cat", 5)]),
        # It does not overlap: another object.
        ([CAT], [item("cat", 10, 0, 20, 10)], [("removed", "cat"), ("added", "cat")]),
        # Another class and another place.
        ([CAT], [item("dog", 0, 0, 10, 9)], [("removed", "cat"), ("added", "dog")]),
        ([CAT], [item("dog", 0, 0, 10, 9.8)], [("class", "box", "cat", "dog", 98)]),
        # Rounding of 32-bit floats.
        ([CAT], [item("cat", 0, 0, 10.000001, 10)], []),
        # The best pairs first, whatever the order.
        (
            [CAT, item("cat", 0, 0, 10, 7)],
            [item("cat", 0, 0, 10, 6), item("cat", 0, 0, 10, 9)],
            [("box", "cat", "cat", 90), ("box", "cat", "cat", 86)],
        ),
        # Two classes are exchanged; one box overlaps the other a little.
        (
            [CAT, item("dog", 5, 0, 15, 10)],
            [item("dog", 0, 0, 10, 10), item("cat", 5, 0, 15, 10)],
            [("class", "cat", "dog"), ("class", "dog", "cat")],
        ),
        ([CAT], [item("cat", 0, 0, 10, 10, mask=b"x")], [("mask", "cat", "cat")]),
        (
            [CAT],
            [item("cat", 0, 0, 10, 10, keypoints=((0.5, 0.5, 2),), is_crowd=True)],
            [("keypoints", "crowd", "cat", "cat")],
        ),
        (
            [item("cat", 0, 0, 10, 10, attributes={"pose": "left", "n": 1}, area=1.0)],
            [item("cat", 0, 0, 10, 10, attributes={"pose": "right", "n": 1}, area=2.0)],
            [("attributes", "area", "cat", "cat")],
        ),
        # Values that are not numbers are equal to themselves.
        (
            [item("cat", 0, 0, 10, 10, area=math.nan, attributes={"x": math.nan})],
            [item("cat", 0, 0, 10, 10, area=float("nan"), attributes={"x": float("nan")})],
            [],
        ),
        # Without boxes.
        ([item("cat")], [item("cat")], []),
        ([item("cat")], [CAT], [("box", "cat", "cat")]),
        ([item("cat")], [DOG], [("removed", "cat"), ("added", "dog")]),
        # Boxes without area, and boxes that end before they begin.
        ([item("cat", 5, 5, 5, 5)], [item("dog", 5, 5, 5, 5)], [("class", "cat", "dog")]),
        (
            [item("cat", 9, 9, 1, 1)],
            [item("cat", 8, 9, 1, 1)],
            [("removed", "cat"), ("added", "cat")],
        ),
        # A class without a name has its id.
        (
            [PictureObject(label_id=3, box=CAT.box)],
            [PictureObject(label_id=4, box=CAT.box)],
            [("class", "3", "4")],
        ),
    ],
)
def test_objects_that_differ(
    old: list[PictureObject], new: list[PictureObject], changes: list[tuple[Any, ...]]
) -> None:
    assert compare(old, new) == changes


def test_numbers_and_boxes_of_objects() -> None:
    found = compare_images(
        Picture(key="a", objects=(DOG, CAT, DOG)),
        Picture(key="a", objects=(DOG, item("cat", 0, 0, 10, 5), CAT)),
    )
    assert found.same_objects == 2
    assert found.objects == (
        ObjectChange(kinds=("removed",), old_class="dog", old_box=DOG.box, old_number=3),
        ObjectChange(
            kinds=("added",), new_class="cat", new_box=(0.0, 0.0, 0.1, 0.05), new_number=2
        ),
    )


def test_pictures_labels_captions_maps_and_keys() -> None:
    old = Picture(
        key="a",
        image=b"1234",
        format="png",
        width=4,
        height=3,
        labels=("cat", "cat", "dog"),
        captions=("one",),
        class_map=b"map",
        features={
            "image/encoded": (b"1234",),
            "image/width": (4,),
            "image/class/label": (1, 1, 2),
            "gone": (1,),
            "same": (float("nan"), 1.0),
            "other": (1.0,),
            "written": (b"x",),
        },
    )
    new = Picture(
        key="a",
        image=b"12",
        format="jpeg",
        width=8,
        height=6,
        labels=("cat", "ant"),
        captions=("two",),
        instance_map=b"map",
        class_map=b"map",
        features={
            "image/encoded": (b"12",),
            "image/width": (8,),
            "image/class/label": (1, 3),
            "new": (),
            "same": (float("nan"), 1.0),
            "other": (2.0,),
            "written": (b"y",),
        },
    )
    assert compare_images(old, new, default_keys={"written": "image/height"}) == ImageChange(
        labels_removed=("cat", "dog"),
        labels_added=("ant",),
        captions_removed=("one",),
        captions_added=("two",),
        old_image=ImageFacts(format="png", width=4, height=3, num_bytes=4),
        new_image=ImageFacts(format="jpeg", width=8, height=6, num_bytes=2),
        maps=("instance_map",),
        keys_removed=("gone",),
        keys_added=("new",),
        keys_changed=("other",),
    )
    assert compare_images(old, old) == ImageChange()


def test_keys_of_objects_are_named_if_no_object_explains_them() -> None:
    old, new = (
        Picture(key="a", objects=(CAT,), features={"image/object/class/label": (number,)})
        for number in (1, 2)
    )
    assert compare_images(old, new).keys_changed == ("image/object/class/label",)


def test_changes_beyond_the_first_thousand_are_only_counted() -> None:
    cats = [item("cat", 0, 0, 10, number / 100) for number in range(1, 1201)]
    found = compare_images(Picture(key="a", objects=tuple(cats)), Picture(key="a"))
    assert (len(found.objects), found.more_objects, found.same_objects) == (1000, 200, 0)


def test_only_equal_boxes_of_very_many_objects_are_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_changes, "_MOST_PAIRS", 3)
    others = [item("cat", 0, 0, 10, 5), item("dog", 0, 0, 10, 10)]
    assert compare([CAT, DOG], others) == [
        ("class", "cat", "dog"),
        ("removed", "dog"),
        ("added", "cat"),
    ]


objects = st.lists(
    st.builds(
        lambda label, x, y, width, is_crowd: item(
            label, x, y, x + width, y + 10, is_crowd=is_crowd
        ),
        st.sampled_from(["cat", "dog"]),
        st.integers(0, 12),
        st.integers(0, 3),
        st.integers(0, 10),
        st.booleans(),
    ),
    max_size=7,
)


@settings(max_examples=100)
@given(old=objects, new=objects)
def test_every_object_is_accounted_for_once(
    old: list[PictureObject], new: list[PictureObject]
) -> None:
    found = compare_images(
        Picture(key="a", objects=tuple(old)), Picture(key="a", objects=tuple(new))
    )
    olds = [each.old_number for each in found.objects if each.old_number]
    news = [each.new_number for each in found.objects if each.new_number]
    assert len(set(olds)) == len(olds) == len(old) - found.same_objects
    assert len(set(news)) == len(news) == len(new) - found.same_objects
    # Equal objects are never listed as changed.
    rest = [item for number, item in enumerate(new, 1) if number not in news]
    left = [item for number, item in enumerate(old, 1) if number not in olds]
    key = repr
    assert sorted(rest, key=key) == sorted(left, key=key)
    # In the other direction, the same number of objects is unchanged.
    back = compare_images(
        Picture(key="a", objects=tuple(new)), Picture(key="a", objects=tuple(old))
    )
    assert back.same_objects == found.same_objects
