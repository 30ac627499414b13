"""Tests of the warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from shardbeam.transforms.commit.gate import describe_duplicates, describe_void_maps
from shardbeam.transforms.commit.warnings import find_warnings, warn_of_void_maps
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.core.records import BoxReading
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.outcome import (
    DuplicateCounts,
    SplitOutcome,
)
from shardbeam.transforms.duplicates.duplicates import Duplicates
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_dataset

PETS = make_label_map({"cat": 1, "dog": 2})

COUNTED = {"train": Statistics(images_by_class={"cat": 1})}


def warn(
    *,
    inputs: InputCounts = InputCounts(),  # noqa: B008  # Not changed.
    splits: Mapping[str, SplitOutcome] | None = None,
    classes: Mapping[str, int] | None = None,
    statistics: Mapping[str, Statistics] | None = None,
    duplicates: Duplicates | None = None,
    readings: Sequence[Mapping[str, Mapping[str, int]]] = (),
    config: Mapping[str, object] | None = None,
    **dataset: Any,  # noqa: ANN401  # Of `DatasetSettings`.
) -> tuple[str, ...]:
    settings = make_dataset(config={"image": {"annotated_size": "scale"}, **(config or {})})
    return find_warnings(
        inputs,
        splits=splits or {},
        label_map=make_label_map(PETS.ids if classes is None else classes),
        dataset=msgspec.structs.replace(settings, **dataset),
        statistics=statistics,
        duplicates=duplicates,
        readings=readings,
    )


def in_two(train: int, test: int) -> InputCounts:
    splits = {"train": SplitOutcome(images=train), "test": SplitOutcome(images=test)}
    return InputCounts(splits=splits)


EXACT = {"exact": True, "group_by": "x", "fractions": {"train": 0.75, "test": 0.25}}

SCALED = {"train": SplitOutcome(corrections={"annotated_size_scaled": 2})}

HALF = {"train": SplitOutcome(images=4, unannotated=2)}

MORE = {"train": SplitOutcome(images=4, unannotated=3)}

BROKEN = {"train": SplitOutcome(listed=4, rejected={"corrupt": 3})}

LEFT = {"train": SplitOutcome(excluded={"excluded_by_file": 2})}

TWO_SOURCES = ("train/0", "train/1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, []),
        ({"warnings": ("a table",)}, ["a table"]),
        ({"splits": HALF, "objects": True}, []),
        ({"splits": MORE, "objects": True}, ["more than half of the images of split 'train'"]),
        ({"splits": MORE}, []),
        # Classes of whole images.
        ({"classes": {"cat": 1}, "classifies": True}, ["all images have the same class, 'cat'"]),
        ({"classes": {"cat": 1}}, []),
        ({"classifies": True}, []),
        *(
            (
                {"classes": {"cat": 1}, "classifies": True, "config": {"labels": {key: ["x"]}}},
                [],
            )
            for key in ("include", "exclude", "merge")
        ),
        (
            {"classes": {"cat": 1, "val": 2, "Images": 3}, "classifies": True},
            ["classes are named like splits or like folders of files: val, Images"],
        ),
        ({"classes": {"cat": 1, "val": 2}}, []),
        (
            {"splits": BROKEN},
            [
                "a build would be refused: split 'train': 3 of 4 inputs rejected (75.00%); "
                "rejects.max_ratio allows 50.00%; fix them, or let them pass: --set "
                "rejects.max_ratio=0.75"
            ],
        ),
        # The ratio that lets all splits pass.
        (
            {"splits": {**BROKEN, "test": SplitOutcome(listed=10, rejected={"corrupt": 9})}},
            [
                "a build would be refused: split 'train': 3 of 4 inputs rejected (75.00%); "
                "rejects.max_ratio allows 50.00%",
                "a build would be refused: split 'test': 9 of 10 inputs rejected (90.00%); "
                "rejects.max_ratio allows 50.00%; fix them, or let them pass: --set "
                "rejects.max_ratio=0.9",
            ],
        ),
        ({"splits": BROKEN, "max_reject_ratio": 0.75}, []),
        # The gate has already refused these.
        ({"splits": BROKEN, "statistics": COUNTED, "absent": ("dog",)}, []),
        # Which classes occur is known only once all images are written.
        ({"statistics": COUNTED}, ["1 of 2 declared classes never occur: dog"]),
        ({"statistics": COUNTED, "config": {"limit": 5}}, []),
        ({"statistics": COUNTED, "absent": ("dog",)}, []),
        ({"inputs": in_two(3, 1), "config": EXACT}, []),
        (
            {"inputs": in_two(4, 0), "config": EXACT},
            ["split 'train' should have 3 images and has 4", "split 'test' should have 1 images"],
        ),
        ({"inputs": in_two(4, 0), "config": {**EXACT, "limit": 5}}, []),
        ({"inputs": in_two(4, 0), "config": {**EXACT, "exact": False}}, []),
        ({"splits": {**LEFT, "test": SplitOutcome()}, "excluded": 2}, []),
        (
            {"splits": {**LEFT, "test": SplitOutcome()}, "excluded": 3},
            ["of the 3 images that the file in `exclude` names, 2 were found"],
        ),
        ({"splits": SCALED}, ["2 images are annotated in another size"]),
        ({"splits": SCALED, "config": {"image": {"annotated_size": "ignore"}}}, []),
        (
            {"splits": {"train": SplitOutcome(corrections={"size_corrected": 1})}},
            ["1 image is annotated in another size"],
        ),
        (
            {
                "sources": TWO_SOURCES,
                "inputs": InputCounts(images={"train/0": 1}),
            },
            ["no image of the source 'train/1' is written"],
        ),
        ({"sources": ("train",)}, []),
    ],
)
def test_warnings(given: dict[str, Any], expected: list[str]) -> None:
    found = warn(**given)
    assert len(found) == len(expected)
    for line, begin in zip(found, expected, strict=True):
        assert line.startswith(begin)


def make_duplicates(**counts: int) -> Duplicates:
    pairs = {name: (f"{name} 1", f"{name} 2") for name in counts}
    return Duplicates(counts=DuplicateCounts(**counts), **pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "texts"),
    [
        ({}, []),
        ({"leaks": 1}, ["1 picture is in several splits, such as leaks 1; leaks 2"]),
        ({"leaks": 2}, ["2 pictures are in several splits, such as leaks 1; leaks 2"]),
        (
            {"contradictions": 1, "near_contradictions": 1000},
            [
                "1 group of equal files has different labels, such as contradictions 1; "
                "contradictions 2",
                "1,000 groups of nearly equal pictures have different classes, such as "
                "near_contradictions 1; near_contradictions 2",
            ],
        ),
    ],
)
def test_pictures_that_are_there_several_times(counts: dict[str, int], texts: list[str]) -> None:
    duplicates = make_duplicates(**counts)
    assert list(describe_duplicates(duplicates, splits={}).values()) == texts
    assert list(warn(duplicates=duplicates)) == texts


def test_a_class_with_the_id_0_is_named() -> None:
    labels = LabelMap(ids={"cat": 1}, names={"cat": "cat"})
    for change, begin in (
        ({"background": ("bg",)}, "the category with the id 0, bg, counts as the background"),
        ({"shifted_by": "cat"}, "class 'cat' has the id 0"),
    ):
        (line,) = find_warnings(
            InputCounts(),
            splits={},
            label_map=msgspec.structs.replace(labels, **change),
            dataset=make_dataset(config={"image": {"annotated_size": "scale"}}),
        )
        assert line.startswith(begin)


@pytest.mark.parametrize(
    ("outside", "fitting", "said"),
    [
        (5, 100, ""),
        (6, 100, "read as left, top, right and bottom, all 100 boxes of these images lie in them"),
        (6, 95, "read as left, top, right and bottom, 95 of 100 boxes of these images lie in them"),
        (6, 94, "no other reading"),
    ],
)
def test_readings_of_boxes_are_counted_by_source_over_all_shards(
    outside: int, fitting: int, said: str
) -> None:
    half = {"boxes": 50, "outside": outside // 2, "tried": 50, "xywh>xyxy": fitting // 2}
    rest = {"outside": outside % 2, "xywh>xyxy": fitting % 2}
    found = warn(
        readings=[{"train": half, "other": half}, {"train": half}, {"train": rest}],
        sources=("train", "other"),
        box_readings={"train": BoxReading("xywh", has_keys=True)},
    )
    lines = [line for line in found if "boxes" in line]
    assert len(lines) == bool(said)
    for line in lines:
        assert line.startswith(f"{outside} of the 100 boxes of source 'train' leave their image")
        assert said in line


@pytest.mark.parametrize(
    ("train", "test", "classes", "limit", "refused", "warned"),
    [
        ({"255": 9}, {"255": 9}, (), None, True, ["train", "test"]),
        ({"0": 5, "255": 9}, {"255": 9}, ("cat",), None, True, ["train", "test"]),
        ({"0": 5, "255": 9}, {}, ("cat",), None, True, ["train"]),
        ({"0": 5, "255": 9}, {}, ("cat",), 5, False, ["train"]),
        ({"0": 5, "255": 9}, {"1": 5}, (), None, False, ["train"]),
        ({"cat": 5, "255": 9}, {"255": 5}, ("cat",), None, False, ["test"]),
        # All is background: nothing is ignored.
        ({"0": 5}, {"0": 5}, (), None, False, []),
        # 0 is a class, and classes may be named like values.
        ({"road": 5, "255": 9}, {}, ("road",), None, False, []),
        ({"0": 5, "255": 9}, {}, ("0",), None, False, []),
        ({"255": 9}, {}, ("255",), None, False, []),
        ({}, {}, (), None, False, []),
    ],
)
def test_maps_that_show_no_class(
    train: dict[str, int],
    test: dict[str, int],
    classes: tuple[str, ...],
    limit: int | None,
    refused: bool,
    warned: list[str],
) -> None:
    statistics = {
        "train": Statistics(pixels_by_class=train),
        "test": Statistics(pixels_by_class=test),
    }
    described = describe_void_maps(statistics, classes=classes, limit=limit)
    assert bool(described) == refused
    warnings = warn_of_void_maps(statistics, classes=classes)
    assert [line.split("'")[1] for line in warnings] == warned
