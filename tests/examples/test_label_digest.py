from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardbeam.transforms.examples.encode.image_features import (
    digest_classes,
    digest_image,
    digest_image_by_object,
    digest_labels,
)

CAT, DOG = (b"cat", (0.1, 0.2, 0.3, 0.4)), (b"dog", (0.5, 0.5, 0.9, 0.9))


def digest(
    classes: tuple[bytes, ...] = (), objects: tuple[Any, ...] = (), captions: tuple[bytes, ...] = ()
) -> str:
    names = [name for name, _ in objects]
    sides = list(zip(*(box for _, box in objects), strict=True))
    return digest_labels(classes=classes, names=names, sides=sides, captions=captions)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (digest(classes=(b"a", b"b")), digest(classes=(b"b", b"a"))),
        (digest(objects=(CAT, DOG)), digest(objects=(DOG, CAT))),
        (digest(objects=(CAT,)), digest(objects=((b"cat", (0.1, 0.2, 0.3, 0.400_000_1)),))),
        (digest(captions=(b"x", b"y")), digest(captions=(b"y", b"x"))),
    ],
)
def test_order_and_rounding_do_not_matter(one: str, other: str) -> None:
    assert one == other
    assert len(bytes.fromhex(one)) == 8


@pytest.mark.parametrize("length", [100, 320, 333, 480, 500, 640, 1024, 1280, 1333, 1920, 4000])
def test_the_stored_floats_are_digested(length: int) -> None:
    for pixel in range(0, length, 7):
        side = pixel / length
        stored = float(np.float32(side))
        texts = float(f"{side:.8f}")
        found = {digest(objects=((b"cat", (each, 0, 1, 1)),)) for each in (side, stored, texts)}
        assert len(found) == 1, f"{pixel} of {length}"


def test_all_objects_of_an_image_give_the_same_digest_as_their_examples() -> None:
    boxes = ((3, 5, 103, 77), (100, 200, 101, 230))
    width, height = 640, 333
    names = (b"cat", b"dog")
    sides = [
        (left / width, top / height, right / width, bottom / height)
        for left, top, right, bottom in boxes
    ]
    values: dict[str, list[Any]] = {"image/class/text": [b"c"], "image/caption": [b"text"]}
    keys = [f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
    whole = values | dict(zip(keys, map(list, zip(*sides, strict=True)), strict=True))
    of_objects: dict[str, list[Any]] = {
        "annotation/bbox": [
            [left, top, right - left, bottom - top] for left, top, right, bottom in boxes
        ],
        "annotation/class/text": [[name] for name in names],
    }
    expected = digest_image(whole | {"image/object/class/text": list(names)})
    assert expected != digest_image(values)
    found = digest_image_by_object(values, of_objects=of_objects, size=(width, height))
    assert found == expected


def test_classes_alone() -> None:
    assert digest_classes([b"a", b"b"]) == digest_classes([b"b", b"a"])
    digests = [digest_classes(classes) for classes in ([], [b"a"], [b"b"], [b"a", b"b"], [b"ab"])]
    assert len(set(digests)) == len(digests)
    assert [len(each) for each in digests] == [0, 16, 16, 16, 16]


def test_all_else_does() -> None:
    digests = [
        digest(),
        digest(classes=(b"cat",)),
        digest(classes=(b"cat", b"cat")),
        digest(captions=(b"cat",)),
        digest(objects=(CAT,)),
        digest(objects=(CAT, CAT)),
        digest(objects=((b"dog", CAT[1]),)),
        digest(objects=((b"cat", DOG[1]),)),
        digest(objects=(CAT, DOG)),
        digest(objects=((b"cat", DOG[1]), (b"dog", CAT[1]))),
    ]
    assert len(set(digests)) == len(digests)
