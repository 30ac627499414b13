"""The choice of pictures for the gallery."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest

from shardbeam.readers.open.images import Place
from shardbeam.readers.report.sampled_images import Candidate, FoundCandidate, Sample, sample_images
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject

Classes = Mapping[str, list[list[str]]]


def sample(
    classes: Classes,
    *,
    limit: int,
    keys: Collection[str] | None = None,
    read_map: Callable[[Picture], Collection[str]] = lambda _: (),
) -> Sample:
    """Samples pictures, given by the classes of each, by split."""
    pictures = (
        (
            Place(split, number, 0, number, 1),
            Picture(
                key=f"{split}/{number}",
                split=split,
                shard="shard",
                number=number,
                objects=tuple(PictureObject(label=name) for name in names),
                class_map=b"map" if "map" in names else b"",
            ),
        )
        for split, images in classes.items()
        for number, names in enumerate(images, 1)
    )
    return sample_images(pictures, read_map=read_map, limit=limit, keys=keys)


def many(count: int, *names: str) -> list[list[str]]:
    return [list(names) for _ in range(count)]


@pytest.mark.parametrize(
    ("classes", "limit"),
    [
        ({"train": [*many(500, "cat"), ["owl"], *many(500, "dog")]}, 3),
        ({"train": many(100, "cat"), "test": [*many(50, "dog"), ["owl", "bat"]]}, 3),
        ({"train": [[f"class {number}"] for number in range(30)] + many(100, "cat")}, 31),
        # One picture shows several, so that fewer are enough.
        ({"train": [*many(90, "a"), ["a", "b", "c", "d"], *many(90, "a")]}, 1),
    ],
)
def test_every_class_is_shown(classes: Classes, limit: int) -> None:
    found = sample(classes, limit=limit)
    shown = {name for picture in found.chosen for name in picture.classes}
    every = {name for split in classes.values() for names in split for name in names}
    assert shown == every == set(found.classes)
    assert len(found.chosen) <= limit
    assert found.examples == {name: len(split) for name, split in classes.items()}


def test_rare_classes_go_first() -> None:
    found = sample({"train": [["a"], ["b"], ["c"], ["c"]]}, limit=2)
    assert [name for picture in found.chosen for name in picture.classes] == ["a", "b"]


def test_splits_have_their_share() -> None:
    found = sample({"train": many(900, "a"), "test": many(40, "a"), "few": many(3, "a")}, limit=60)
    chosen = [(picture.place.split, picture.place.number) for picture in found.chosen]
    assert len(chosen) == 60
    for split, least in (("train", 25), ("test", 25), ("few", 3)):
        numbers = [number for name, number in chosen if name == split]
        assert len(numbers) >= least
    # Not the first ones, but the same ones every time.
    assert max(number for name, number in chosen if name == "train") > 100
    again = sample({"train": many(900, "a"), "test": many(40, "a"), "few": many(3, "a")}, limit=60)
    assert again == found


def test_pictures_are_named() -> None:
    found = sample({"a": many(5, "x"), "b": many(5, "x")}, limit=1, keys=["b/2", "a/5", "a/9"])
    assert [picture.key for picture in found.chosen] == ["a/5", "b/2"]


def test_classes_of_maps() -> None:
    seen: list[str] = []

    def read_map(picture: Picture) -> Collection[str]:
        seen.append(picture.key)
        if picture.number == 2:
            raise RejectedError(Reason.MASK_UNREADABLE, "not a PNG file")
        return {"sky"} if picture.number == 3 else {"sea"}

    found = sample({"train": many(2100, "map")}, limit=5, read_map=read_map)
    assert found.classes["sky"] == 1
    assert "train/3" in {picture.key for picture in found.chosen}
    assert len(seen) == 2000
    assert found.classes["sea"] == 1998


def test_nothing() -> None:
    assert sample({"train": []}, limit=5) == Sample((), {}, {})


def test_some_of_every_class_go_before_others() -> None:
    found = sample({"train": [*many(500, "a"), *many(10, "b"), ["c"]]}, limit=40)
    first = [next(iter(picture.classes)) for picture in found.chosen[:7]]
    assert first == ["c", "b", "a", "b", "a", "b", "a"]
    assert len({picture.place for picture in found.chosen}) == 40


def test_what_is_worth_a_look_goes_first() -> None:
    def found(kind: str, number: int) -> FoundCandidate:
        place = Place("train", number, 0, number, 1)
        return FoundCandidate(
            split="train",
            number=number,
            source="s",
            key=str(number),
            kind=kind,
            strength=1,
            candidate=Candidate(b"", place, str(number), frozenset()),
        )

    sample = sample_images(
        (
            (
                Place("train", number, 0, number, 1),
                Picture(key=str(number), split="train", labels=("a",)),
            )
            for number in range(1, 101)
        ),
        read_map=lambda _: (),
        limit=10,
        found=[
            found("tiny_box", 7),
            found("tiny_box", 8),
            found("thin_box", 7),
            found("thin_box", 9),
        ],
    )
    # The first of each kind, then the second, each picture once.
    assert [picture.key for picture in sample.chosen[:3]] == ["7", "8", "9"]
    assert len(sample.chosen) == 10
    assert sample.is_indexed
