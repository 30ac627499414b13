from __future__ import annotations

from typing import Any

import pytest

from shardbeam.transforms.examples.label_digest import digest_classes, digest_labels

CAT, DOG = ("cat", (0.1, 0.2, 0.3, 0.4)), ("dog", (0.5, 0.5, 0.9, 0.9))


def digest(
    classes: tuple[bytes, ...] = (), objects: tuple[Any, ...] = (), captions: tuple[bytes, ...] = ()
) -> str:
    return digest_labels(classes=classes, objects=objects, captions=captions)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (digest(classes=(b"a", b"b")), digest(classes=(b"b", b"a"))),
        (digest(objects=(CAT, DOG)), digest(objects=(DOG, CAT))),
        (digest(objects=(CAT,)), digest(objects=(("cat", (0.1, 0.2, 0.3, 0.400_000_1)),))),
        (digest(captions=(b"x", b"y")), digest(captions=(b"y", b"x"))),
    ],
)
def test_order_and_rounding_do_not_matter(one: str, other: str) -> None:
    assert one == other
    assert len(bytes.fromhex(one)) == 8


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
        digest(objects=(("dog", CAT[1]),)),
        digest(objects=(("cat", DOG[1]),)),
        digest(objects=(CAT, DOG)),
        digest(objects=(("cat", DOG[1]), ("dog", CAT[1]))),
    ]
    assert len(set(digests)) == len(digests)
