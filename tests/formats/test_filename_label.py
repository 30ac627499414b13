from __future__ import annotations

import pytest

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import ImageAnnotations
from shardbeam.transforms.examples.features import FeatureKind
from shardbeam.transforms.formats.image_folder import FilenameLabelFormat


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("img_001_cat.jpg", "cat"),
        ("_cat.JPG", "cat"),
        ("deep/er_/x_night heron.png", "night heron"),
        ("a_b.c.jpg", "b.c"),
        ("a__7.webp", "7"),
        ("臉_書.jpg", "書"),
    ],
)
def test_the_label_is_what_stands_after_the_last_underscore(key: str, label: str) -> None:
    assert FilenameLabelFormat(images="i").annotate_listed(key) == ImageAnnotations(
        image_id=key, labels=(label,)
    )


@pytest.mark.parametrize("key", ["cat.jpg", "a_.jpg", "a_b_.jpg", "a_cat/1.jpg"])
def test_names_without_a_label_are_rejected(key: str) -> None:
    with pytest.raises(RejectedError) as raised:
        FilenameLabelFormat(images="i").annotate_listed(key)

    assert raised.value.reason is Reason.NAME_NOT_MATCHED


@pytest.mark.parametrize(
    ("key", "exclusion"),
    [
        (".a_cat.jpg", Exclusion.HIDDEN_FILE),
        ("labels_cat.txt", Exclusion.NOT_AN_IMAGE_NAME),
        ("readme", Exclusion.NOT_AN_IMAGE_NAME),
    ],
)
def test_what_is_no_image_is_excluded_first(key: str, exclusion: Exclusion) -> None:
    assert FilenameLabelFormat(images="i").annotate_listed(key) is exclusion


def test_further_groups_are_features() -> None:
    source = FilenameLabelFormat(
        images="i", pattern=r"^(?P<camera>\w+)/(?P<label>\w+?)(-(?P<time>\d+))?\."
    )

    assert [extra.spec.key for extra in source.extra_features()] == ["camera", "time"]
    assert {extra.spec.kind for extra in source.extra_features()} == {FeatureKind.BYTES}
    first = source.annotate_listed("left/cat-12.jpg")
    second = source.annotate_listed("left/cat.jpg")
    assert isinstance(first, ImageAnnotations)
    assert isinstance(second, ImageAnnotations)
    assert (first.labels, first.values) == (("cat",), {"camera": ("left",), "time": ("12",)})
    assert (second.labels, second.values) == (("cat",), {"camera": ("left",), "time": ("",)})


def test_without_a_label_there_are_features_alone() -> None:
    source = FilenameLabelFormat(images="i", pattern=r"(?P<number>\d+)")

    assert source.kinds == frozenset()
    found = source.annotate_listed("a/12.jpg")
    assert isinstance(found, ImageAnnotations)
    assert (found.labels, found.values) == ((), {"number": ("12",)})
    with pytest.raises(RejectedError):
        source.annotate_listed("a/b.jpg")


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [("(", "expected a regular expression"), ("[a-z]+", "expected a named group")],
)
def test_patterns_that_cannot_work(pattern: str, problem: str) -> None:
    with pytest.raises(Problem, match=f"pattern: {problem}"):
        FilenameLabelFormat(images="i", pattern=pattern)
