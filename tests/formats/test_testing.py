"""The test kit finds what it is for: each format here breaks one rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ObjectAnnotation,
)
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, FeatureSpec
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.testing import check_format
from shardbeam.transforms.storage.base import Storage
from tests.support.making import Good, entry, make_format


def defect(detail: str) -> AnnotationEntry:
    return AnnotationEntry("a.jpg", b"", 0, 0, defect=Reason.ANNOTATION_MALFORMED, detail=detail)


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Any]:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.jpg").touch()
    (images / "b.jpg").touch()
    (tmp_path / "labels.txt").write_text("a,cat\nb,dog\n")

    def run(format_class: type[Good], **more: Any) -> object:  # noqa: ANN401  # A field of its own.
        file = str(tmp_path / "labels.txt")
        return check_format(format_class(file=file, images=str(images), **more))

    return run


def test_a_good_format_passes(check: Callable[..., Any]) -> None:
    report = check(Good)

    assert {key: found.labels for key, found in report.annotations.items()} == {
        "a.jpg": ("cat",),
        "b.jpg": ("dog",),
    }
    assert report.splits == {"a.jpg": "train", "b.jpg": "train"}
    assert (report.rejects, report.excluded) == ((), {})


class Unstable(Good, frozen=True, kw_only=True):
    counter = itertools.count()

    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield entry(position=next(self.counter))


class SamePosition(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield entry()
        yield entry()


class NegativePosition(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield entry(position=-1)


class BadKey(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield entry("a\0.jpg")


class SaysNothing(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield AnnotationEntry("a.jpg", b"", 0, 0)


class NoDetail(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield defect("")


class MachinePath(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield defect(f"{self.file}: line 1")


class UndeclaredSplit(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield entry(split="train")


class BadSplit(Good, frozen=True, kw_only=True):
    def predefined_splits(self) -> Sequence[str]:
        return ("2017",)


class UndeclaredLabel(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield entry(labels=("cat",))


class UndeclaredKind(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield Category(name="cat")
        yield entry(objects=(ObjectAnnotation("cat", (0, 0, 1, 1)),))


class UndeclaredValue(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield entry(values={"camera": ("left",)})


class WrongValue(UndeclaredValue, frozen=True, kw_only=True):
    def extra_features(self) -> Sequence[ExtraFeature]:
        return (ExtraFeature(FeatureSpec("camera", FeatureKind.INT64, repeated=False)),)


class TakenKey(Good, frozen=True, kw_only=True):
    def extra_features(self) -> Sequence[ExtraFeature]:
        return (ExtraFeature(FeatureSpec("image/height", FeatureKind.BYTES, repeated=False)),)


class KeypointsWithoutNames(Good, frozen=True, kw_only=True):
    kinds = frozenset({Kind.DETECTION, Kind.KEYPOINTS})

    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        yield Category(name="cat")
        yield entry(objects=(ObjectAnnotation("cat", (0, 0, 1, 1), keypoints=(1, 2, 2)),))


class RaisesOnDamage(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        for number, line in enumerate(text.split("\n")[:-1]):
            key, label = line.split(",")
            yield Category(name=label)
            yield entry(f"{key}.jpg", labels=(label,), position=number)


class NamesAnotherFile(Good, frozen=True, kw_only=True):
    def read(self, text: str) -> Iterator[AnnotationEntry | Category]:
        if text != "a,cat\nb,dog\n":
            raise InputError(uri="elsewhere", problem="damaged")
        yield from super().read(text)


class ListsUnasked(Good, frozen=True, kw_only=True):
    def place(self, path: str, *, root: int) -> Place:
        return Place(role=Role.ANNOTATION, join=path)


class BadImageKey(Good, frozen=True, kw_only=True):
    def place(self, path: str, *, root: int) -> Place:
        return Place(role=Role.IMAGE, key=f"./{path}", join=path)


class NeverResolved(Good, frozen=True, kw_only=True):
    counter = itertools.count()
    _number: int = -1

    def resolve(self) -> NeverResolved:
        return msgspec.structs.replace(self, _number=next(self.counter))


class Parts(Good, frozen=True, kw_only=True):
    chunk_bytes = 100

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        # A line that crosses a border is read by nobody.
        yield from self.read(storage.read(self.file)[begin:end].decode("utf-8", "replace"))


@pytest.mark.parametrize(
    ("format_class", "problem"),
    [
        (Unstable, "a second time differs"),
        (SamePosition, "two entries of one key have this position"),
        (NegativePosition, "negative"),
        (BadKey, "NUL"),
        (SaysNothing, "says nothing"),
        (NoDetail, "without detail"),
        (MachinePath, "names a folder of this machine"),
        (UndeclaredSplit, "not among predefined_splits"),
        (BadSplit, "'2017' cannot be a split"),
        (UndeclaredLabel, "'cat' is of no declared Category"),
        (UndeclaredKind, "has objects, but"),
        (UndeclaredValue, "'camera' is not declared"),
        (WrongValue, "'camera' holds 'left'"),
        (TakenKey, "image/height"),
        (KeypointsWithoutNames, "has 0 keypoints"),
        (RaisesOnDamage, "raises ValueError"),
        (NamesAnotherFile, "is an error of elsewhere"),
        (ListsUnasked, "set lists_annotations"),
        (BadImageKey, "cannot be a key"),
        (NeverResolved, "gives something else"),
        (Parts, "when it is read in 7 parts"),
    ],
)
def test_each_rule_is_checked(
    check: Callable[..., Any], format_class: type[Good], problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem):
        check(format_class)


class Numbered(Good, frozen=True, kw_only=True):
    by_number: Any


def test_fields_must_reach_workers(check: Callable[..., Any]) -> None:
    check(Numbered, by_number={"1": "cat"})
    with pytest.raises(AssertionError, match="comes to workers as something else"):
        check(Numbered, by_number=("cat",))


def test_a_format_by_the_name_that_a_config_gives_it(shapes: Path) -> None:
    made = make_format(
        "coco",
        images=str(shapes / "images"),
        annotations=[str(shapes / "annotations" / "instances.json")],
    )

    report = check_format(made, damages=20)

    assert len(report.annotations) == 40
    assert any(found.objects for found in report.annotations.values())
