"""Tests of the warnings and the notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from shardbeam.transforms.commit.gate import describe_duplicates, describe_void_maps
from shardbeam.transforms.commit.notes import make_notes
from shardbeam.transforms.commit.warnings import find_warnings
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.labels import LabelMap
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.input_counts import InputCounts, InputSamples
from shardbeam.transforms.dataset.outcome import (
    DuplicateCounts,
    SplitOutcome,
)
from shardbeam.transforms.duplicates.duplicates import Duplicates
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_counts, make_dataset

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
    run = make_counts(
        inputs,
        dataset=msgspec.structs.replace(settings, **dataset),
        label_map=make_label_map(PETS.ids if classes is None else classes),
        splits=splits,
        statistics=statistics,
        duplicates=duplicates,
        readings=readings,
    )
    return find_warnings(run)


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
                {"classes": {"cat": 1}, "classifies": True, "config": {"labels": {key: {"x": []}}}},
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
        (
            {
                "splits": {
                    "train": SplitOutcome(corrections={"object_of_unknown_category_dropped": 2}),
                    "test": SplitOutcome(corrections={"label_of_unknown_category_dropped": 1}),
                }
            },
            [
                "2 objects have no class that the annotations declare, and are left out",
                "1 label of images has no class that the annotations declare, and is left out",
            ],
        ),
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
        run = make_counts(
            label_map=msgspec.structs.replace(labels, **change),
            dataset=make_dataset(config={"image": {"annotated_size": "scale"}}),
        )
        (line,) = find_warnings(run)
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
    run = make_counts(
        statistics=statistics,
        label_map=make_label_map(dict.fromkeys(classes, 1)),
        dataset=make_dataset(config={"image": {"annotated_size": "ignore"}, "limit": limit}),
    )
    assert bool(describe_void_maps(run)) == refused
    lines = [line for line in find_warnings(run) if line.startswith("no map of split")]
    assert [line.split("'")[1] for line in lines] == warned


# Notes


LEFT_OUT = SplitOutcome(
    listed=512,
    rejected={"corrupt": 5, "missing_image": 1},
    unlisted=1,
    excluded={"unannotated": 500, "not_an_image_name": 1, "hidden_file": 1},
)

BY_HASH = (
    "a hash of its name puts each image into a split, so that it never changes its split when "
    "others are added; --exact makes the fractions exact"
)

FILES = "; they may have no annotations yet, or no objects (some tools then save no file)"

KEEP = "; --unannotated keep writes them as negatives"


@pytest.mark.parametrize(
    ("split", "rule", "file_per_image", "line"),
    [
        ("train", "auto", False, f"train{{}}{KEEP}"),
        ("train", "auto", True, f"train{{}}{FILES}{KEEP}"),
        ("train", "drop", False, "train{}"),
        # There are splits, and these images are in none of them.
        (
            "",
            "auto",
            False,
            "no split{}; --unannotated keep, with --split or --fractions, writes them as negatives",
        ),
    ],
)
def test_a_line_says_which_images_are_left_out(
    split: str, rule: str, file_per_image: bool, line: str
) -> None:
    inputs = InputCounts(
        splits={split: LEFT_OUT},
        samples=InputSamples(first_excluded={"unannotated": {split: ("a.jpg", "b\n.jpg")}}),
    )
    dataset = msgspec.structs.replace(
        make_dataset(config={"unannotated": rule}), file_per_image=file_per_image
    )
    such = " are named by no row or annotation file and left out, such as a.jpg, b\\n.jpg"
    assert make_notes(make_counts(inputs, dataset=dataset)) == (
        f"500 of 510 images of {line.format(such)}",
    )
    assert make_notes(make_counts(dataset=dataset)) == ()


@pytest.mark.parametrize(
    ("images", "wanted", "lines"),
    [
        ((3, 9), 3, ()),
        ((3, 9), 4, ("output.num_shards: train has 3 images for 4 shards, so some are empty",)),
        (
            (1, 9),
            {"train": 2, "test": 9},
            ("output.num_shards: train has 1 image for 2 shards, so some are empty",),
        ),
        ((3, 9), None, ()),
    ],
)
def test_a_line_says_that_shards_are_empty(
    images: tuple[int, int], wanted: object, lines: tuple[str, ...]
) -> None:
    dataset = msgspec.structs.replace(
        make_dataset(config={"output": {"num_shards": wanted}}), splits=("train", "test")
    )

    notes = make_notes(make_counts(in_two(*images), dataset=dataset))

    assert notes == lines


@pytest.mark.parametrize(
    ("names", "classifies", "label"),
    [
        (["1", "10", "100", "2"], True, "10 has the label 1"),
        (["10", "8", "9"], True, "10 has the label 0"),
        (["01", "02", "10"], True, ""),
        (["1", "10", "cat"], True, ""),
        (["1", "10", "2"], False, ""),
        ([], True, ""),
    ],
)
def test_a_line_says_that_numbers_are_ordered_as_texts(
    names: list[str], classifies: bool, label: str
) -> None:
    label_map = LabelMap(ids={name: index for index, name in enumerate(names)}, names={})
    dataset = msgspec.structs.replace(make_dataset(), classifies=classifies)

    notes = make_notes(make_counts(dataset=dataset, label_map=label_map))

    assert len(notes) == bool(label)
    assert label in "".join(notes)


@pytest.mark.parametrize(
    ("config", "lines"),
    [
        ({}, ("2 classes are in test and not in train: b, c",)),
        # A sample does not show what the whole dataset has.
        ({"limit": 5}, ()),
    ],
)
def test_a_line_says_which_classes_only_another_split_has(
    config: dict[str, object], lines: tuple[str, ...]
) -> None:
    statistics = {
        "train": Statistics(images_by_class={"a": 1}),
        "test": Statistics(images_by_class={"a": 1, "c": 2, "b": 1}),
        "val": Statistics(images_by_class={"a": 3}),
    }

    dataset = make_dataset(config=config)
    notes = make_notes(make_counts(dataset=dataset, statistics=statistics))

    assert notes == lines


@pytest.mark.parametrize(
    ("images", "config", "lines"),
    [
        (
            (88, 12),
            {},
            (
                "fractions are approximate: train 88%, test 12% of the images, instead of "
                "train 80%, test 20%; " + BY_HASH,
            ),
        ),
        ((81, 19), {}, ()),
        ((88, 12), {"exact": True}, ()),
        ((88, 12), {"stratify": True}, ()),
        ((88, 12), {"limit": 100}, ()),
        ((88, 12), {"fractions": {}}, ()),
        (
            (88, 12),
            {"fractions": {"train": 0.8, "test": 0.12, "dev": 0.08}},
            (
                "fractions are approximate: train 88%, test 12%, dev 0% of the images, instead of "
                "train 80%, test 12%, dev 8%; " + BY_HASH,
            ),
        ),
    ],
)
def test_a_line_says_that_fractions_are_approximate(
    images: tuple[int, int], config: dict[str, object], lines: tuple[str, ...]
) -> None:
    dataset = make_dataset(config={"fractions": {"train": 0.8, "test": 0.2}, **config})
    assert make_notes(make_counts(in_two(*images), dataset=dataset)) == lines
