"""Figures: colours and lines of classes, and places of labels."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.readers.report.figure import BoxShape, Tag, TagPlaces, make_figure
from shardbeam.readers.report.styles import (
    LINES,
    PALETTE,
    Classes,
    Colour,
    Style,
    are_close,
    choose_styles,
    ink_on,
)
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from tests.support.example_builders import write_png

WIDTH, HEIGHT = 300, 200


def make_picture(*objects: PictureObject) -> Picture:
    return Picture(key="k", split="train", shard="s", number=1, objects=objects)


def test_a_class_has_the_colour_of_its_id_or_of_its_name() -> None:
    classes = Classes({1: "cat", 2: "dog"})
    assert [classes.style(name).colour for name in ("cat", "dog")] == [1, 2]
    # Without ids, a name's colour is the same in every dataset.
    assert Classes({}).style("cat") == Classes({7: "dog"}).style("cat")
    named = {Classes({}).style(f"class {number}").colour for number in range(1000)}
    assert named == set(range(len(PALETTE)))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (0, 0, True),
        # Blue and indigo, red and orange; red and green, blue and violet.
        (1, 9, True),
        (0, 8, True),
        (0, 2, False),
        (1, 13, False),
    ],
)
def test_close_colours(one: int, other: int, expected: bool) -> None:
    assert are_close(one, other) == are_close(other, one) == expected


def luminance(colour: Colour) -> float:
    """The relative luminance of a colour (WCAG 2.2)."""
    linear = [
        value / 255 / 12.92 if value / 255 <= 0.04045 else ((value / 255 + 0.055) / 1.055) ** 2.4
        for value in colour
    ]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("colour", PALETTE)
def test_labels_can_be_read(colour: Colour) -> None:
    dark, light = sorted((luminance(colour), luminance(ink_on(colour))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5


@given(st.lists(st.integers(0, 200), max_size=len(LINES), unique=True))
def test_classes_with_close_colours_have_different_lines(ids: list[int]) -> None:
    classes = Classes({number: f"name {number}" for number in range(201)})
    names = [f"name {number}" for number in ids]
    styles = choose_styles(names, classes=classes)
    assert list(styles) == names
    for one, other in itertools.combinations(names, 2):
        assert styles[one].colour == classes.style(one).colour
        if are_close(styles[one].colour, styles[other].colour):
            assert styles[one].line != styles[other].line
    if names:
        assert styles[names[0]].line == 0


def test_classes_with_different_colours_have_solid_lines() -> None:
    styles = choose_styles(["cat", "dog"], classes=Classes({0: "cat", 2: "dog"}))
    assert {style.line for style in styles.values()} == {0}


def test_classes_share_no_colour_while_there_are_enough() -> None:
    large = Classes({96 * number: f"name {number}" for number in range(8)})
    assert len({large.style(f"name {number}").colour for number in range(8)}) == 8
    found = Classes({1: "cat", 2: "dog"})
    found.number_found(["dog", "a", "b", "c"])
    names = ("cat", "dog", "a", "b", "c")
    assert [found.style(name).colour for name in names] == [1, 2, 3, 4, 5]


# More classes than colours: the first and the last have the same.
FULL = {
    **{number: f"name {number}" for number in range(1, len(PALETTE))},
    **{0: "cat", len(PALETTE): "dog"},
}


def test_the_border_of_a_mask_shows_the_line_of_its_class() -> None:
    mask = np.ones((40, 40), np.uint8)
    objects = [PictureObject(label=name, mask=write_png(mask)) for name in ("cat", "dog")]
    figure = make_figure(
        make_picture(*objects),
        classes=Classes(FULL),
        size=(40, 40),
        scaled=(20, 40),
        most_objects=2,
    )
    # The whole picture is inside: there is no border that could be broken.
    assert [set(np.unique(area.levels)) for area in figure.areas] == [{1}, {1}]
    mask[:, 20:] = 0
    objects = [PictureObject(label=name, mask=write_png(mask)) for name in ("cat", "dog")]
    cat, dog = make_figure(
        make_picture(*objects),
        classes=Classes(FULL),
        size=(40, 40),
        scaled=(40, 40),
        most_objects=2,
    ).areas
    assert set(cat.levels[:, 19]) == {2}
    assert set(dog.levels[:, 19]) == {1, 2}
    assert np.array_equal(cat.levels > 0, dog.levels > 0)


def test_the_part_of_a_box_in_the_picture_is_drawn() -> None:
    boxes = [
        ((0.2, 0.3, 0.4, 0.5), (20, 60, 20, 40)),
        ((-1.0, 0.5, 0.5, 9.0), (0, 100, 50, 100)),
        # The wrong way round.
        ((0.9, 0.8, 0.1, 0.2), (10, 40, 80, 120)),
        ((1.1, 0.0, 1.2, 1.0), None),
        (None, None),
    ]
    for box, expected in boxes:
        figure = make_figure(
            make_picture(PictureObject(box=box)),
            classes=Classes({}),
            size=(100, 200),
            scaled=(9, 9),
            most_objects=1,
        )
        frames = [(shape.x, shape.y, shape.width, shape.height) for shape in figure.boxes]
        assert frames == ([] if expected is None else [pytest.approx(expected)])


def test_larger_boxes_come_first_and_there_are_no_more_than_allowed() -> None:
    objects = [
        PictureObject(label=str(number), box=(0.0, 0.0, side, side))
        for number, side in enumerate((0.2, 0.9, 0.5, 1.0))
    ]
    figure = make_figure(
        make_picture(*objects), classes=Classes({}), size=(9, 9), scaled=(9, 9), most_objects=3
    )
    assert [box.name for box in figure.boxes] == ["1", "2", "0"]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (PictureObject(label="cat"), "cat"),
        (PictureObject(label_id=3, is_crowd=True), "class 3, crowd"),
        (PictureObject(label="x" * 99), f"{'x' * 32}…"),
    ],
)
def test_labels_say_what_is_a_crowd(item: PictureObject, expected: str) -> None:
    figure = make_figure(
        make_picture(msgspec.structs.replace(item, box=(0.0, 0.0, 1.0, 1.0))),
        classes=Classes({}),
        size=(9, 9),
        scaled=(9, 9),
        most_objects=1,
    )
    assert [box.text for box in figure.boxes] == [expected]


# Labels are as high as these boxes' letters, and as wide as their texts say.
EM = 16


def places() -> TagPlaces:
    return TagPlaces(size=(WIDTH, HEIGHT), em=EM, measure=lambda text: len(text) / 2)


def box_at(left: float, top: float, right: float, bottom: float, *, letters: int) -> BoxShape:
    frame = (left * WIDTH, top * HEIGHT, (right - left) * WIDTH, (bottom - top) * HEIGHT)
    return BoxShape("cat", "x" * letters, Style(0), *frame)


def frame(tag: Tag) -> tuple[float, float, float, float]:
    left, top = tag.x + tag.left * EM, tag.y + tag.top * EM
    return left, top, left + tag.width * EM, top + 1.3 * EM


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        # Above, inside, right-aligned.
        ((0.1, 0.5, 0.3, 0.7), (30, 100, 0, -1.3)),
        ((0.1, 0.0, 0.3, 0.7), (30, 0, 0, 0)),
        ((0.7, 0.5, 0.95, 0.7), (285, 100, -6.6, -1.3)),
    ],
)
def test_a_label_hangs_on_its_box(
    box: tuple[float, float, float, float], expected: tuple[float, float, float, float]
) -> None:
    tag = places().find(box_at(*box, letters=12))
    assert tag is not None
    assert (tag.x, tag.y, tag.left, tag.top) == pytest.approx(expected)


@pytest.mark.parametrize(("letters", "right"), [(30, WIDTH), (50, (25 + 0.6) * EM)])
def test_a_long_label_lies_at_the_edge_of_the_picture(letters: int, right: float) -> None:
    tag = places().find(box_at(0.5, 0.5, 0.6, 0.6, letters=letters))
    assert tag is not None
    assert frame(tag)[2] == pytest.approx(right)


def test_there_is_room_for_four_labels_of_one_box() -> None:
    found = places()
    box = box_at(0.1, 0.3, 0.2, 0.8, letters=12)
    tags = [found.find(box) for _ in range(5)]
    assert [tag is None for tag in tags] == [False] * 4 + [True]
    another = places()
    for tag in filter(None, tags):
        another.take(tag)
    assert another.find(box) is None


_SIDE = st.floats(0, 1)


@given(st.lists(st.tuples(_SIDE, _SIDE, _SIDE, _SIDE, st.integers(1, 60)), max_size=30))
def test_no_label_covers_another(
    boxes: list[tuple[float, float, float, float, int]],
) -> None:
    found = places()
    frames = []
    for x, y, right, bottom, letters in boxes:
        ends = (min(x, right), min(y, bottom), max(x, right), max(y, bottom))
        tag = found.find(box_at(*ends, letters=letters))
        if tag is not None:
            frames.append(frame(tag))
            left, top, end, low = frames[-1]
            assert left >= -1e-9
            assert -1e-9 <= top < low <= HEIGHT + 1e-9
            assert end <= max(WIDTH, tag.width * EM) + 1e-9
    for one, other in itertools.combinations(frames, 2):
        shared = (
            min(one[2], other[2]) - max(one[0], other[0]),
            min(one[3], other[3]) - max(one[1], other[1]),
        )
        assert min(shared) <= 1e-9
