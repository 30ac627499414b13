"""Thumbnails, and the layers over them."""

from __future__ import annotations

import base64
import io
import re

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from shardbeam.readers.report.cards import make_card
from shardbeam.readers.report.page import render_card
from shardbeam.readers.report.styles import Classes
from shardbeam.readers.report.thumbnails import (
    Overlay,
    Thumbnail,
    decode_small,
    fit_thumbnail,
)
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from shardbeam.transforms.examples.encode.maps import encode_map
from tests.support.example_builders import write_png
from tests.support.tfrecords import draw_image

CLASSES = Classes({1: "cat", 2: "sky", 3: "sea"})


def draw(picture: Picture, *, max_side: int = 1000) -> Thumbnail:
    return fit_thumbnail(picture, max_side=max_side, classes=CLASSES)


def make_picture(image: bytes, **more: object) -> Picture:
    picture = Picture(key="k", split="train", shard="s", number=1, image=image)
    return msgspec.structs.replace(picture, **more)


def decode(uri: str, kind: str) -> Image.Image:
    head, _, data = uri.partition(",")
    assert head == f"data:{kind};base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def area(*, size: tuple[int, int], box: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
    pixels = np.zeros(size[::-1], np.uint8)
    left, top, right, bottom = box
    pixels[top:bottom, left:right] = 1
    return pixels


def frame(overlay: Overlay) -> tuple[float, ...]:
    return overlay.x, overlay.y, overlay.width, overlay.height


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_pictures_are_made_smaller_and_encoded_again(file_format: str) -> None:
    image = draw_image(file_format, width=200, height=100)
    thumbnail = draw(make_picture(image), max_side=50)
    assert (thumbnail.width, thumbnail.height) == (200, 100)
    assert thumbnail.problem == ""
    small = decode(thumbnail.uri, "image/jpeg")
    assert (small.size, small.mode) == ((50, 25), "RGB")
    # Never larger.
    assert decode(draw(make_picture(image)).uri, "image/jpeg").size == (200, 100)
    assert draw(make_picture(image), max_side=50) == thumbnail


@pytest.mark.parametrize("room", [3_000, 20_000, 90_000, 10_000_000])
def test_pictures_are_as_large_as_the_room_allows(room: int) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (900, 1400, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG")
    picture = make_picture(buffer.getvalue())
    thumbnail = fit_thumbnail(picture, room=room, classes=CLASSES)
    side = max(decode(thumbnail.uri, "image/jpeg").size)
    assert (thumbnail.width, thumbnail.height) == (1400, 900)
    assert thumbnail.num_bytes <= room or side == 64
    assert thumbnail.num_bytes > room / 2 or side == 1024
    assert fit_thumbnail(picture, room=room, classes=CLASSES) == thumbnail
    small = make_picture(draw_image("PNG", width=30, height=20))
    assert decode(fit_thumbnail(small, room=room, classes=CLASSES).uri, "image/jpeg").size == (
        30,
        20,
    )


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_a_jpeg_file_is_decoded_small(mode: str) -> None:
    gradient = np.linspace(0, 255, 800, dtype=np.uint8)[None, :].repeat(400, axis=0)
    buffer = io.BytesIO()
    Image.fromarray(gradient).convert(mode).save(buffer, "JPEG", quality=95)
    image, size = decode_small(buffer.getvalue(), side=150)
    whole, _ = decode_small(buffer.getvalue())
    assert (image.size, size, whole.size) == ((200, 100), (800, 400), (800, 400))
    difference = np.asarray(image, float) - np.asarray(whole.resize(image.size), float)
    assert np.abs(difference).mean() < 2
    # Never smaller than asked for.
    assert decode_small(buffer.getvalue(), side=201)[0].size == (400, 200)


def test_nothing_of_a_file_but_its_picture_is_kept() -> None:
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "secret"
    Image.new("RGB", (8, 8)).save(buffer, "JPEG", exif=exif, comment=b"secret")
    image = buffer.getvalue() + b"<script>secret</script>"
    thumbnail = draw(make_picture(image))
    assert b"secret" in image
    assert b"secret" not in base64.b64decode(thumbnail.uri.partition(",")[2])


def test_raw_pixels() -> None:
    planes = np.zeros((3, 32, 32), np.uint8)
    planes[0] = 200
    picture = make_picture(planes.tobytes(), format="raw", width=32, height=32)
    assert np.abs(np.asarray(decode(draw(picture).uri, "image/jpeg")) - (200, 0, 0)).max() < 4


@pytest.mark.parametrize(
    "image", [b"<svg onload=x>", draw_image("JPEG", width=64, height=64)[:300]]
)
def test_pictures_that_cannot_be_drawn(image: bytes) -> None:
    thumbnail = draw(make_picture(image, width=30, height=20))
    assert thumbnail.uri == ""
    assert thumbnail.problem.startswith("the image cannot be drawn: ")
    assert (thumbnail.width, thumbnail.height) == (30, 20)


def test_masks_of_a_class_are_one_overlay_with_borders() -> None:
    size = (100, 50)
    masks = [
        ("cat", area(size=size, box=(10, 5, 30, 25))),
        ("cat", area(size=size, box=(20, 20, 40, 40))),
        ("dog", area(size=size, box=(60, 0, 100, 50))),
        ("dog", area(size=size, box=(0, 0, 0, 0))),
    ]
    objects = tuple(PictureObject(label=name, mask=write_png(mask)) for name, mask in masks)
    image = draw_image("PNG", width=100, height=50)
    thumbnail = draw(make_picture(image, objects=objects))
    cat, dog = thumbnail.overlays
    assert (cat.layer, cat.name, frame(cat)) == ("masks", "cat", (10, 5, 30, 35))
    assert (dog.layer, dog.name, frame(dog)) == ("masks", "dog", (60, 0, 40, 50))
    pixels = np.asarray(decode(cat.uri, "image/png").convert("RGBA"))
    assert pixels.shape == (35, 30, 4)
    assert set(map(tuple, pixels[..., :3].reshape(-1, 3).tolist())) == {CLASSES.style("cat").rgb}
    opacity = pixels[..., 3]
    expected = np.maximum(masks[0][1], masks[1][1])[5:40, 10:40]
    assert np.array_equal(opacity > 0, expected > 0)
    # Inside, and on the borders of both.
    assert opacity[5, 5] < opacity[0, 5] == opacity[5, 0] == opacity[15, 15]
    # Smaller as well.
    small = draw(make_picture(image, objects=objects), max_side=20).overlays[0]
    assert frame(small) == pytest.approx((10, 5, 30, 35))
    assert decode(small.uri, "image/png").size == (6, 7)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_maps(dtype: type[np.uint8] | type[np.uint16]) -> None:
    values = np.zeros((10, 20), dtype)
    values[:5] = 2
    values[5:, 10:] = 9
    values[9, :10] = 255
    image = draw_image("PNG", width=20, height=10)
    assert CLASSES.name_map(encode_map(values), size=(20, 10)) == {"sky", "class 9"}
    thumbnail = draw(make_picture(image, class_map=encode_map(values)))
    assert [(each.layer, each.name, frame(each)) for each in thumbnail.overlays] == [
        ("map", "sky", (0, 0, 20, 5)),
        ("map", "class 9", (10, 5, 10, 5)),
    ]
    # Segments of one class have a border between them.
    instances = np.zeros((10, 20), dtype)
    instances[:5, 10:] = 1
    (sky, _) = draw(
        make_picture(image, class_map=encode_map(values), instance_map=encode_map(instances))
    ).overlays
    assert sky.layer == "segments"
    opacity = np.asarray(decode(sky.uri, "image/png").convert("RGBA"))[..., 3]
    assert (opacity[2, 9], opacity[2, 10]) == (opacity[4, 0], opacity[4, 0])
    assert opacity[2, 8] < opacity[2, 9]


@pytest.mark.parametrize(
    "mask",
    [
        b"no PNG",
        write_png(area(size=(9, 9), box=(0, 0, 5, 5))),
        # On its side.
        write_png(area(size=(10, 20), box=(0, 0, 5, 5))),
    ],
)
def test_masks_that_cannot_be_drawn(mask: bytes) -> None:
    image = draw_image("PNG", width=20, height=10)
    for more in ({"objects": (PictureObject(mask=mask),)}, {"class_map": mask}):
        thumbnail = draw(make_picture(image, **more))
        assert thumbnail.uri
        assert thumbnail.overlays == ()
        (problem,) = thumbnail.figure.problems
        assert re.match("(a mask|the class map) cannot be drawn: ", problem)


def test_a_card_is_found_by_all_its_classes() -> None:
    names = [f"class {number}" for number in range(400)]
    classes = Classes(dict(enumerate(names)))
    classes.number_found(names)
    values = area(size=(400, 400), box=(0, 0, 400, 400))
    # A pixel that the thumbnail lacks.
    values[1, 1] = 2
    picture = make_picture(
        draw_image("JPEG", width=400, height=400),
        class_map=encode_map(values),
        objects=tuple(PictureObject(label=name) for name in names[3:]),
    )
    thumbnail = fit_thumbnail(picture, max_side=50, classes=classes)
    assert [overlay.name for overlay in thumbnail.overlays] == ["class 1"]
    card = make_card(
        picture, thumbnail, classes=classes, name="c0", bars=range(400), found=names[1:]
    )
    html = render_card(card)
    for numbers in (f'data-classes="{" ".join(map(str, range(1, 400)))}"', 'bars="0 1', '398 399"'):
        assert numbers in html
