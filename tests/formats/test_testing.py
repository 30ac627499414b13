"""The test kit finds what it is for: each format here breaks one rule."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category, ObjectAnnotation
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, FeatureSpec
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.testing import check_format
from shardbeam.transforms.storage.base import Storage
from tests.support.making import Good, entry, make_format

_TEXT = "a,cat\nb,dog\n"
_COUNTER = itertools.count()
_BOX = (0.0, 0.0, 1.0, 1.0)


def defect(detail: str) -> AnnotationEntry:
    return AnnotationEntry("a.jpg", b"", 0, 0, defect=Reason.ANNOTATION_MALFORMED, detail=detail)


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., Any]:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.jpg").touch()
    (images / "b.jpg").touch()
    (tmp_path / "labels.txt").write_text(_TEXT)

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


def says(*items: AnnotationEntry | Category) -> dict[str, Any]:
    """Overrides what is read."""
    return {"read": lambda self, text: iter(items)}


def declares(key: str, kind: FeatureKind) -> dict[str, Any]:
    """Overrides the extra features."""
    feature = ExtraFeature(FeatureSpec(key, kind, repeated=False))
    return {"extra_features": lambda self: (feature,)}


def read_undamaged(self: Good, text: str) -> Iterator[AnnotationEntry | Category]:
    """Fails on all that is not a key, a comma and a label."""
    for number, line in enumerate(text.split("\n")[:-1]):
        key, label = line.split(",")
        yield Category(name=label)
        yield entry(f"{key}.jpg", labels=(label,), position=number)


def blame_another_file(self: Good, text: str) -> Iterator[AnnotationEntry | Category]:
    if text != _TEXT:
        raise InputError(uri="elsewhere", problem="damaged")
    yield from Good.read(self, text)


def lose_cut_lines(
    self: Good, *, storage: Storage, file_index: int, begin: int, end: int
) -> Iterator[AnnotationEntry | Category]:
    """Reads no line that crosses the border of two parts."""
    yield from self.read(storage.read(self.file)[begin:end].decode("utf-8", "replace"))


def place_as(**place: Any) -> dict[str, Any]:  # noqa: ANN401  # Fields of a place.
    return {"place": lambda self, path, *, root: Place(join=path, **place)}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            {"read": lambda self, text: iter([entry(position=next(_COUNTER))])},
            "a second reading gives something else",
        ),
        (says(entry(), entry()), "two entries of one key have this position"),
        (says(entry(position=-1)), "negative"),
        (says(entry("a\0.jpg")), "NUL"),
        (
            says(AnnotationEntry("a.jpg", b"", 0, 0)),
            "has no annotations, split, exclusion or defect",
        ),
        (says(defect("")), "without detail"),
        (
            {"read": lambda self, text: iter([defect(f"{self.file}: line 1")])},
            "names a folder of this machine",
        ),
        (says(entry(split="train")), "not among predefined_splits"),
        ({"predefined_splits": lambda self: ("2017",)}, "'2017' cannot be a split"),
        (says(entry(labels=("cat",))), "'cat' is of no declared Category"),
        (
            says(Category("cat"), entry(objects=(ObjectAnnotation("cat", _BOX),))),
            "has objects, but",
        ),
        (says(entry(values={"camera": ("left",)})), "'camera' is not declared"),
        (
            says(entry(values={"camera": ("left",)})) | declares("camera", FeatureKind.INT64),
            "'camera' holds 'left'",
        ),
        (declares("image/height", FeatureKind.BYTES), "image/height"),
        (
            says(
                Category("cat"),
                entry(objects=(ObjectAnnotation("cat", _BOX, keypoints=(1, 2, 2)),)),
            )
            | {"kinds": frozenset({Kind.DETECTION, Kind.KEYPOINTS})},
            "has 0 keypoints",
        ),
        ({"read": read_undamaged}, "raises ValueError"),
        ({"read": blame_another_file}, "names elsewhere"),
        (place_as(role=Role.ANNOTATION), "set lists_annotations"),
        (place_as(role=Role.MASK), "is a MASK without `mask`"),
        (place_as(role=Role.IMAGE, key="./a.jpg"), "cannot be a key"),
        (
            {"resolve": lambda self: msgspec.structs.replace(self, images=f"{self.images}/.")},
            "a second call changes the format",
        ),
        ({"chunk_bytes": 100, "read_chunk": lose_cut_lines}, "when it is read in 7 parts"),
    ],
)
def test_each_rule_is_checked(
    check: Callable[..., Any], overrides: dict[str, Any], problem: str
) -> None:
    broken = msgspec.defstruct(
        "Broken", [], bases=(Good,), namespace=overrides, frozen=True, kw_only=True
    )

    with pytest.raises(AssertionError, match=problem):
        check(broken)


class Numbered(Good, frozen=True, kw_only=True):
    by_number: Any


def test_fields_must_reach_workers(check: Callable[..., Any]) -> None:
    check(Numbered, by_number={"1": "cat"})
    with pytest.raises(AssertionError, match="has another value in workers"):
        check(Numbered, by_number=("cat",))


@pytest.mark.parametrize(
    ("maps", "found"),
    [
        ({"panoptic": "annotations/panoptic.json", "panoptic_masks": "panoptic"}, "segments"),
        ({"semantic_masks": "panoptic"}, "masks"),
    ],
)
def test_a_format_by_the_name_that_a_config_gives_it(
    shapes: Path, maps: dict[str, str], found: str
) -> None:
    made = make_format(
        "coco",
        images=str(shapes / "images"),
        annotations=[str(shapes / "annotations" / "instances.json")],
        **{key: str(shapes / path) for key, path in maps.items()},
    )

    report = check_format(made, damages=20)

    assert len(report.annotations) == 40
    for part in ("objects", found):
        assert any(getattr(each, part) for each in report.annotations.values())
