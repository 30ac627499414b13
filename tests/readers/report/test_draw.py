"""Annotations drawn on pictures: the changed pixels, and values that cannot be drawn."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import pytest
from PIL import Image

from shardbeam.readers.report.draw import draw_image, encode_png
from shardbeam.readers.report.styles import Classes, Colour
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject

SIDE = 60
# Pictures as small as SIDE are drawn this many times as large.
SCALE = 16
GRAY = (128, 128, 128)


def png(pixels: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


def make_picture(*objects: PictureObject, **fields: object) -> Picture:
    picture = Picture(
        key="a.png",
        split="train",
        shard="s",
        number=1,
        image=png(np.full((SIDE, SIDE, 3), 128)),
        format="png",
        width=SIDE,
        height=SIDE,
    )
    return msgspec.structs.replace(picture, **{"objects": objects, **fields})


CLASSES = {1: "person", 3: "cat", 4: "dog", 7: "sky"}


def class_colour(name: str) -> Colour:
    return Classes(CLASSES).style(name).rgb


def draw(picture: Picture, *, feature_map: FeatureMap | None = None) -> Image.Image:
    return draw_image(picture, feature_map=feature_map or FeatureMap(class_names=CLASSES))


def pixel(image: Image.Image, x: float, y: float) -> Colour:
    """The drawn pixel in the middle of that pixel of the picture."""
    found = image.getpixel((round((x + 0.5) * SCALE), round((y + 0.5) * SCALE)))
    assert isinstance(found, tuple)
    red, green, blue = found
    return red, green, blue


def strip(image: Image.Image) -> bytes:
    """The pixels of the texts below the picture."""
    return image.crop((0, SIDE * SCALE, *image.size)).tobytes()


def test_a_box_lies_where_the_annotation_says() -> None:
    item = PictureObject(label="cat", label_id=3, box=(0.25, 0.25, 0.75, 0.5))
    image = draw(make_picture(item))
    assert image.width == SIDE * SCALE
    pixels = np.asarray(image)[: SIDE * SCALE]
    rows, columns = np.nonzero((pixels == class_colour("cat")).all(axis=2))
    assert (columns.min(), columns.max()) == (
        round(0.25 * (SIDE * SCALE - 1)),
        round(0.75 * (SIDE * SCALE - 1)),
    )
    assert rows.max() == round(0.5 * (SIDE * SCALE - 1))
    # The name of the class is above the box.
    assert rows.min() == round(0.25 * (SIDE * SCALE - 1)) - 21
    assert pixel(image, 30, 22) == GRAY


def test_a_mask_is_half_transparent() -> None:
    mask = np.zeros((SIDE, SIDE))
    mask[10:20, 30:50] = 1
    image = draw(make_picture(PictureObject(label="dog", label_id=4, mask=png(mask))))
    colour = class_colour("dog")
    inside = pixel(image, 40, 15)
    assert inside not in (GRAY, colour)
    # Between the picture's own pixels and the class's colour.
    assert all(min(a, b) <= c <= max(a, b) for a, b, c in zip(GRAY, colour, inside, strict=True))
    assert {pixel(image, 29, 15), pixel(image, 40, 20), pixel(image, 50, 15)} == {GRAY}


def test_keypoints_and_their_skeleton() -> None:
    points = ((0.2, 0.5, 2), (0.8, 0.5, 1), (0.5, 0.9, 0), (1e30, -1e30, 2))
    item = PictureObject(
        label="person", label_id=1, keypoints=points, skeleton=((0, 1), (1, 2), (0, 3))
    )
    image = draw(make_picture(item))
    colour = class_colour("person")
    assert pixel(image, 11.5, 29.5) == colour
    # A hidden keypoint is white.
    assert pixel(image, 47.5, 29.5) == (255, 255, 255)
    assert pixel(image, 29.5, 29.5) == colour
    assert pixel(image, 29.5, 53.5) == GRAY


@pytest.mark.parametrize("names", [{}, {0: "ground", 7: "sky"}])
def test_a_class_map_has_the_classes_colours(names: dict[int, str]) -> None:
    pixels = np.full((SIDE, SIDE), 7)
    pixels[:, :20] = 0
    pixels[:, 40:] = 255
    feature_map = FeatureMap(class_names=names)
    image = draw(make_picture(class_map=png(pixels)), feature_map=feature_map)
    assert pixel(image, 30, 30) not in (
        GRAY,
        Classes(names).style(names.get(7, "class 7")).rgb,
    )
    # 0 is the background, unless it is a class; 255 is what readers ignore.
    assert (pixel(image, 10, 30) == GRAY) == (0 not in names)
    assert pixel(image, 50, 30) == GRAY


def test_segments_of_one_class_are_told_apart() -> None:
    instances = np.zeros((SIDE, SIDE))
    instances[:, 30:] = 1
    class_map = png(np.full((SIDE, SIDE), 7))
    alone = draw(make_picture(class_map=class_map))
    parted = draw(make_picture(class_map=class_map, instance_map=png(instances)))
    different = np.nonzero((np.asarray(alone) != np.asarray(parted)).any(axis=2))[1]
    assert (different.min(), different.max()) == (30 * SCALE - 1, 30 * SCALE)


@pytest.mark.parametrize(("name", "dashed"), [("tree", False), ("sea", True)])
def test_classes_with_the_same_colour_have_different_lines(name: str, dashed: bool) -> None:
    # There are 96 colours.
    names = {number: f"name {number}" for number in range(1, 98)}
    feature_map = FeatureMap(class_names={**names, 1: "cat", 2: "tree", 97: "sea"})
    image = draw(
        make_picture(
            PictureObject(label="cat", box=(0.1, 0.1, 0.9, 0.4)),
            PictureObject(label=name, box=(0.1, 0.6, 0.9, 0.9)),
        ),
        feature_map=feature_map,
    )
    lower = round(0.9 * (SIDE * SCALE - 1))
    row = np.asarray(image)[lower, round(0.2 * SIDE * SCALE) : round(0.8 * SIDE * SCALE)]
    colour = Classes(feature_map.class_names).style(name).rgb
    drawn = (row == colour).all(axis=1)
    assert drawn.any()
    assert drawn.all() != dashed


def test_a_picture_is_drawn_the_same_again() -> None:
    item = PictureObject(label="cat", box=(0.1, 0.1, 0.9, 0.9), is_crowd=True)
    picture = make_picture(item, labels=("a", "b"), captions=("a cat",))
    assert encode_png(draw(picture), mark="m") == encode_png(draw(picture), mark="m")


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": ("dog",)},
        {"captions": ("a dog",)},
        {"problems": ("a side of the boxes is missing",)},
        {"key": "another.png"},
        {"objects": (PictureObject(label="dog"),)},
        {"class_map": png(np.full((SIDE, SIDE), 7))},
        {"class_map": b"no PNG"},
        {"class_map": png(np.zeros((3, 3)))},
        {"class_map": png(np.zeros((SIDE, SIDE))), "instance_map": png(np.zeros((3, 3)))},
        {"objects": (PictureObject(mask=b"no PNG"),)},
    ],
)
def test_what_is_said_of_a_picture_stands_below_it(fields: dict[str, object]) -> None:
    assert strip(draw(make_picture(**fields))) != strip(draw(make_picture()))


@pytest.mark.parametrize(
    "picture",
    [
        make_picture(image=b""),
        make_picture(image=b"no image", format="raw"),
        make_picture(image=png(np.zeros((9, 9)))[:-30]),
        make_picture(image=bytes(range(256)) * 12, format="raw"),
        make_picture(image=png(np.zeros((1, 1)))),
        make_picture(image=png(np.zeros((1, 3000)))),
        make_picture(image=png(np.zeros((3000, 1, 4)))),
        make_picture(
            PictureObject(mask=png(np.ones((9, 4)))),
            image=png(np.zeros((4, 9))),
            class_map=png(np.ones((4, 9))),
            instance_map=png(np.ones((9, 4))),
        ),
        make_picture(PictureObject(box=(5.0, 0.0, 6.0, 1.0))),
        make_picture(PictureObject(box=(0.9, 0.9, 0.1, 0.1))),
        make_picture(PictureObject(box=(-1e30, -1e30, 1e30, 1e30))),
        make_picture(PictureObject(box=(0.5, 0.5, 0.5, 0.5), label="x" * 5000)),
        make_picture(*[PictureObject(label="same", box=(0.4, 0.4, 0.6, 0.6))] * 1200),
        make_picture(*[PictureObject(label=f"class {n}") for n in range(100)]),
        make_picture(captions=("\x1b[2J\n" * 50, "x" * 10_000, "臉書 \U0001f600", "", " ") * 9),
        make_picture(labels=("\udcff".encode(errors="replace").decode(), "é")),
    ],
)
def test_anything_can_be_drawn(picture: Picture) -> None:
    image = draw(picture)
    assert image.mode == "RGB"
    assert 480 <= image.width <= 1600
    assert image.height <= 5000


def test_pixels_of_cifar() -> None:
    planes = np.zeros((3, 32, 32), np.uint8)
    planes[1] = 200
    image = draw(make_picture(image=planes.tobytes(), format="raw"))
    assert image.getpixel((100, 100)) == (0, 200, 0)
