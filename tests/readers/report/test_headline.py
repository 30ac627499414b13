"""The numbers at the top of the page."""

from __future__ import annotations

from typing import Any

import pytest

from shardbeam.configs.decoding import convert_value
from shardbeam.readers.report.facts import Facts
from shardbeam.readers.report.page import make_tiles
from shardbeam.readers.report.shown_findings import show_findings
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.findings import KindFound
from shardbeam.transforms.dataset.outcome import DuplicateCounts


def tiles(examples: dict[str, int], labels: tuple[str, ...] = (), **fields: Any) -> list[str]:  # noqa: ANN401
    facts = Facts("a", "a", "", "", splits=(), labels=dict.fromkeys(labels, 1))
    total = convert_value({"images": sum(examples.values()), **fields}, Statistics)
    return [
        f"{value} {words}" for value, words in make_tiles(facts, examples=examples, total=total)
    ]


@pytest.mark.parametrize(
    ("examples", "fields", "expected"),
    [
        (
            {"train": 3000, "test": 1000},
            {
                "objects_by_class": {"cat": 6000, "dog": 2},
                "images_by_objects": {"0": 40, "1": 3900, "35": 60},
                "width_range": (240, 640),
                "height_range": (427, 427),
                "labels": ("cat", "dog", "owl"),
            },
            [
                "4,000 images: train 3,000 · test 1,000",
                "6,002 objects, 1.5 an image (0 to 35)",
                "3 classes, 0 to 6,000 objects each",
                "40 images without objects (1.0%)",
                "0 bytes in 0 shards, images of 240\N{EN DASH}640 \N{MULTIPLICATION SIGN} 427 px",
            ],
        ),
        (
            {"train": 10},
            {"captions": 25, "unannotated": 1},
            [
                "10 images in train",
                "25 captions, 2.5 an image",
                "1 image without annotations (10.0%)",
                "0 bytes in 0 shards",
            ],
        ),
        # An Example for each object.
        ({"train": 10}, {"images": 0}, ["10 examples in train", "0 bytes in 0 shards"]),
        ({}, {}, ["0 images", "0 bytes in 0 shards"]),
    ],
)
def test_what_a_dataset_is(
    examples: dict[str, int], fields: dict[str, Any], expected: list[str]
) -> None:
    assert tiles(examples, **fields) == expected


def test_warnings_of_the_build_are_findings() -> None:
    counts = DuplicateCounts(contradictions=1)
    facts = Facts("a", "a", "", "", splits=(), duplicates=counts, warnings=("one", "<b>two"))
    duplicates = f"{counts.describe({})['contradictions']}, such as a.jpg and b.jpg"
    for warnings in (facts.warnings, (duplicates, *facts.warnings)):
        found = show_findings([], cards=(), facts=facts._replace(warnings=warnings), groups=())
        assert [
            (each.kind, each.severity, each.number, each.shares, [*each.lines]) for each in found
        ] == [
            ("contradiction", "bad", "1 group", "", []),
            ("warning", "odd", "2 warnings", "one", ["<b>two"]),
        ]


@pytest.mark.parametrize(
    ("kind", "split", "severity"),
    [
        ("missing_class", "train", "bad"),
        ("missing_class", "test", "odd"),
        ("empty_split", "train", "bad"),
        ("empty_split", "test", "odd"),
        ("uneven_classes", "", "odd"),
    ],
)
def test_what_train_lacks_is_the_worst(kind: str, split: str, severity: str) -> None:
    found = [KindFound(kind=kind, split=split, text="a text")]
    facts = Facts("a", "a", "", "", splits=())
    (shown,) = show_findings(found, cards=(), facts=facts, groups=())
    assert (shown.severity, shown.shares, [*shown.lines]) == (severity, "a text", [])
    assert shown.advice
