"""Tests of the gate: what became of each input, and whether the dataset may be committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from shardbeam.configs.schema import DuplicatesConfig
from shardbeam.transforms.commit.gate import (
    check_edges,
    check_join,
    count_resumed,
    count_reuse,
    count_splits,
    describe_duplicates,
    describe_void_maps,
    find_lost,
    find_warnings,
    judge,
    judge_duplicates,
    make_notes,
    name_classes,
    warn_of_void_maps,
)
from shardbeam.transforms.core.edges import (
    ANNOTATION_FILES,
    IMAGES,
    ROOTS,
    Edges,
    encode_element,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap, LabelSettings
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.census import Census, ListingSummary, SourceCensus, merge_censuses
from shardbeam.transforms.dataset.files import Origin, ShardResult, describe_data
from shardbeam.transforms.dataset.outcome import (
    DuplicateCounts,
    Outcome,
    Resumed,
    Reuse,
    SplitOutcome,
    Status,
)
from shardbeam.transforms.dataset.rejects import RejectsFile
from shardbeam.transforms.dataset.statistics import Statistics
from shardbeam.transforms.duplicates.duplicates import Duplicates
from shardbeam.transforms.formats.box_format import BoxReading
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.join.join import JoinedKey, JoinSettings
from shardbeam.transforms.formats.join.sources import Source, list_annotation_files, list_roots
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_dataset, make_shard_result
from tests.support.structs import fields

SOURCE = Source("train", CocoFormat(images="/data/images", annotations=["a.json"]))
BY_SUFFIX = "by their last folder and name, without case and extension: --match suffix"
BY_NAME = "by their name alone, without case and extension: --match name"


@pytest.mark.parametrize(
    ("listed", "referenced", "fix"),
    [
        ("train2017/1.jpg", "1.jpg", "move the root down: add /train2017 to `images`"),
        ("1.jpg", "images/1.jpg", "move the root up: remove /images from `images`"),
        ("1.jpg", "train2017/1.jpg", BY_NAME),
        ("1.jpg", "/data/train/1.jpg", BY_NAME),
        ("a/1.jpg", "gs://bucket/a/1.jpg", BY_SUFFIX),
        ("a/1.jpg", "b/c/A/1.JPEG", BY_SUFFIX),
        ("a/1.jpg", "a\\1.jpg", BY_SUFFIX),
        ("a/1.jpg", "1", BY_NAME),
        # Without folders both fit, and the name is what is meant.
        ("frame_1.jpg", "frame_1", BY_NAME),
        ("a.jpg", "b.jpg", "check that the images and the annotations belong together"),
        ("a/1.jpg", "2.jpg", "check that the images and the annotations belong together"),
        ("a 1.jpg", "a%201.jpg", "write the name as 'a 1.jpg'"),
    ],
)
def test_a_join_without_a_match_stops_with_a_fix(listed: str, referenced: str, fix: str) -> None:
    census = Census()
    for key, count in ((listed, 1), (referenced, 0), ("other.jpg", 0), ("another.jpg", 1)):
        joined = JoinedKey(split="train")
        census.add_joined(joined, source="train", key=key, listed=count, referenced=1 - count)
    with pytest.raises(InputError) as caught:
        check_join(merge_censuses([census]), sources=[SOURCE])
    message = str(caught.value)
    assert message.startswith("/data/images: none of the 2 annotated images is listed here: ")
    assert fix in message
    agree = not fix.startswith(("check that", "write the name"))
    assert ("; then 1 of 2 names that were tried match" in message) == agree


def test_a_join_of_nothing_but_malformed_annotations_names_the_first() -> None:
    reject = Reject(
        split="train",
        source="train",
        key="a.json",
        stage="join",
        reason=Reason.ANNOTATION_MALFORMED,
        detail="a.json: line 1: no",
        listed=False,
    )
    census = Census(sources={"train": SourceCensus(referenced=1, referenced_key="a.json")})
    census.add_reject(reject)
    with pytest.raises(
        InputError, match=r"none of the 1 annotations can be used, such as 'a\.json'"
    ):
        check_join(census, sources=[SOURCE])
    # Others could be used.
    census.sources["train"].referenced = 2
    with pytest.raises(InputError, match="none of the 2 annotated images is listed"):
        check_join(census, sources=[SOURCE])


def test_a_join_never_shows_one_name_as_its_own_opposite() -> None:
    seen = SourceCensus(referenced=1, listed_key="a.jpg", referenced_key="a.jpg")
    with pytest.raises(InputError, match=r"name 'a\.jpg', the listing holds the same name, but"):
        check_join(Census(sources={"train": seen}), sources=[SOURCE])


@pytest.mark.parametrize(
    "seen", [SourceCensus(referenced=5, matched=1), SourceCensus(listed_key="a.jpg")]
)
def test_a_join_with_a_match_or_without_annotations_goes_on(seen: SourceCensus) -> None:
    check_join(Census(sources={"train": seen}), sources=[SOURCE])


def rejected(split: str, *, unlisted: int = 0, keys: str = "", **counts: int) -> RejectsFile:
    first = (
        Reject(
            split=split,
            source="",
            key=key,
            stage="encode",
            reason=Reason.CORRUPT,
            detail="why",
            listed=True,
        )
        for key in keys
    )
    return RejectsFile(
        split=split,
        staged="",
        file=describe_data("", b""),
        counts=counts,
        unlisted=unlisted,
        first=tuple(first),
    )


def test_several_files_of_rejects_add_up() -> None:
    splits = count_splits(
        splits=["a", "b"],
        census=Census(listing=ListingSummary(files={"": 12}), splits={"a": SplitOutcome(listed=3)}),
        shards=[],
        rejects=[
            rejected("a", truncated=2),
            rejected("a", corrupt=1, truncated=1, unlisted=1),
            rejected("b", truncated=7),
        ],
    )
    assert splits["a"].rejected == {"corrupt": 1, "truncated": 3}
    assert splits["a"].unlisted == 1
    assert splits["b"].rejected == {"truncated": 7}
    # As many are listed as were joined: the listing knows no splits.
    assert (splits["a"].listed, splits[""].listed) == (3, 9)


def count(*, listed: int, examples: int = 3) -> dict[str, SplitOutcome]:
    return count_splits(
        splits=["train"],
        census=Census(
            listing=ListingSummary(files={"train": listed}),
            splits={"train": SplitOutcome(unannotated=1, excluded={"hidden_file": 2})},
        ),
        shards=[make_shard_result(describe_data("x", b"data"), examples=examples)],
        rejects=[rejected("train", truncated=1, missing_image=1, unlisted=1)],
    )


def test_counts_come_from_the_step_that_knows_them() -> None:
    expected = {
        "listed": 6,
        "examples": 3,
        "shards": 1,
        "num_bytes": 4,
        "unannotated": 1,
        "rejected": {"missing_image": 1, "truncated": 1},
        "unlisted": 1,
        "excluded": {"hidden_file": 2},
        "images": 3,
        "corrections": {"box_clipped": 2},
    }
    assert fields(count(listed=6)["train"], *expected) == expected


def test_a_split_without_anything_is_counted() -> None:
    census = Census(listing=ListingSummary(files={"a": 0, "b": 1}))
    rejects = [rejected("b", truncated=1)]
    splits = count_splits(splits=["a", "b"], census=census, shards=[], rejects=rejects)
    assert splits["a"] == SplitOutcome()
    assert splits["b"].reject_ratio == 1.0


GOOD = SplitOutcome(listed=1, examples=1, images=1)
EMPTY = SplitOutcome(listed=1, rejected={"truncated": 1})
REJECTED = [("train", "bd"), ("train", "ca"), ("test", "e"), ("", "\n")]


@pytest.mark.parametrize(
    ("splits", "max_ratio", "status", "message"),
    [
        # 3 written + 1 rejected + 2 excluded, and 1 missing; 2 of 5 rejected.
        (count(listed=6), 0.41, Status.APPROVED, ""),
        (count(listed=6), 2 / 5, Status.APPROVED, ""),
        (
            count(listed=6),
            0.39,
            Status.REFUSED,
            "too many rejects: split 'train': 2 of 5 inputs rejected "
            "(40.00%); rejects.max_ratio allows 39.00%\nsplit 'train': 1 missing_image, "
            "1 truncated; the first: a (corrupt: why), b (corrupt: why), c (corrupt: why)\n"
            "fix them, or let them pass: --set rejects.max_ratio=0.4",
        ),
        # Nothing was rejected that could be named.
        (
            {"train": SplitOutcome()},
            0.3,
            Status.FAILED,
            "no examples are left, nothing was committed: split 'train'",
        ),
        # All inputs without a split are rejected, which no ratio forbids.
        (
            {**count(listed=6), "": EMPTY},
            0.39,
            Status.REFUSED,
            "too many rejects: split 'train': 2 of 5 inputs rejected "
            "(40.00%); rejects.max_ratio allows 39.00%\nsplit 'train': 1 missing_image, "
            "1 truncated; the first: a (corrupt: why), b (corrupt: why), c (corrupt: why)\n"
            "no split: 1 truncated; the first: \\n (corrupt: why)\n"
            "fix them, or let them pass: --set rejects.max_ratio=0.4",
        ),
        (
            count(listed=7),
            1,
            Status.FAILED,
            "the counts do not add up, nothing was committed: split 'train': 7 listed, but 3 "
            "written + 1 rejected + 2 excluded",
        ),
        (
            count(listed=6, examples=2),
            1,
            Status.FAILED,
            "the counts do not add up, nothing was committed: split 'train': 6 listed, but 2 "
            "written + 1 rejected + 2 excluded",
        ),
        (
            {"train": GOOD, "test": EMPTY},
            1,
            Status.FAILED,
            "no examples are left, nothing was committed: split 'test'\n"
            "split 'test': 1 truncated; the first: e (corrupt: why)",
        ),
        # Inputs that belong to no split may all be rejects.
        ({"train": GOOD, "": EMPTY}, 0, Status.APPROVED, ""),
        ({"train": GOOD}, 0, Status.APPROVED, ""),
    ],
)
def test_the_gate(
    splits: dict[str, SplitOutcome], max_ratio: float, status: Status, message: str
) -> None:
    rejects = [rejected(split, keys=keys) for split, keys in REJECTED]
    outcome = judge(splits, max_ratio=max_ratio, rejects_root="/rejects", rejects=rejects)
    assert (outcome.status, outcome.message) == (status, message)
    has_rejects = any(split.rejected for split in splits.values())
    assert outcome.rejects == ("/rejects" if has_rejects else "")


LEFT_OUT = SplitOutcome(
    listed=512,
    rejected={"corrupt": 5, "missing_image": 1},
    unlisted=1,
    excluded={"unannotated": 500, "not_an_image_name": 1, "hidden_file": 1},
)


@pytest.mark.parametrize(
    ("split", "inputs", "ratio"),
    [
        # Of 512 listed files 502 are left out, and an image is missing.
        (LEFT_OUT, 11, 6 / 11),
        # A limit leaves out images that could have been written.
        (SplitOutcome(listed=9, rejected={"corrupt": 1}, excluded={"beyond_limit": 5}), 9, 1 / 9),
        (SplitOutcome(listed=9, rejected={"corrupt": 1}, excluded={"label_excluded": 5}), 4, 0.25),
        (SplitOutcome(listed=3, excluded={"unannotated": 3}), 0, 0),
        (SplitOutcome(), 0, 0),
        # Rejected images are inputs, whatever they are rejected for.
        (SplitOutcome(listed=4, rejected={"unannotated": 3}), 4, 0.75),
    ],
)
def test_images_that_nothing_names_are_no_inputs(
    split: SplitOutcome, inputs: int, ratio: float
) -> None:
    assert (split.inputs, split.reject_ratio) == (inputs, ratio)


BY_HASH = (
    "a hash of its name puts each image into a split, so that it never changes its split when "
    "others are added; --exact makes the fractions exact"
)
NO_LABELS = LabelMap(ids={}, names={})
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
    census = Census(splits={split: LEFT_OUT}, left_out={split: ("a.jpg", "b\n.jpg")})
    dataset = msgspec.structs.replace(
        make_dataset(config={"unannotated": rule}), file_per_image=file_per_image
    )
    such = " are named by no row or annotation file and left out, such as a.jpg, b\\n.jpg"
    assert make_notes(census, dataset=dataset, label_map=NO_LABELS) == (
        f"500 of 510 images of {line.format(such)}",
    )
    assert make_notes(Census(), dataset=dataset, label_map=NO_LABELS) == ()


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
    splits = {
        split: SplitOutcome(listed=count, images=count)
        for split, count in zip(("train", "test"), images, strict=True)
    }
    dataset = msgspec.structs.replace(
        make_dataset(config={"output": {"num_shards": wanted}}), splits=("train", "test")
    )

    notes = make_notes(Census(splits=splits), dataset=dataset, label_map=NO_LABELS)

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

    notes = make_notes(Census(), dataset=dataset, label_map=label_map)

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
    notes = make_notes(Census(), dataset=dataset, label_map=NO_LABELS, statistics=statistics)

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
    splits = {
        split: SplitOutcome(listed=count, images=count)
        for split, count in zip(("train", "test"), images, strict=True)
    }
    dataset = make_dataset(config={"fractions": {"train": 0.8, "test": 0.2}, **config})
    assert make_notes(Census(splits=splits), dataset=dataset, label_map=NO_LABELS) == lines


DROPPED = {Correction.OBJECT_WITHOUT_BOX_DROPPED.value: 5, Correction.IMAGE_CONVERTED.value: 1}


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        (SplitOutcome(objects=1, corrections=DROPPED), ""),
        # The annotation files themselves hold none.
        (SplitOutcome(unannotated=1), ""),
        (SplitOutcome(corrections=DROPPED), "5 object_without_box_dropped; if that is intended: "),
        (
            SplitOutcome(unannotated=2),
            "no annotations name any of the 2 images; if that is intended",
        ),
    ],
)
def test_a_dataset_that_lost_all_of_its_objects_is_refused(
    counts: SplitOutcome, problem: str
) -> None:
    splits = {"train": SplitOutcome(listed=2, examples=2, images=2)}
    splits["train"].add(counts)
    outcome = judge(splits, max_ratio=0, rejects_root="", objects=True)
    assert outcome.status is (Status.REFUSED if problem else Status.APPROVED)
    assert problem in outcome.message
    assert judge(splits, max_ratio=0, rejects_root="").status is Status.APPROVED


LOST = SplitOutcome(listed=3, rejected={"objects_lost": 3})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (LOST, "no object is left: 3 images have lost all objects; if that is intended: "),
        (
            SplitOutcome(listed=1, excluded={"objects_lost": 1}),
            "no object is left: 1 image has lost all of its objects; ",
        ),
        # Most rejects have another reason.
        (SplitOutcome(listed=9, rejected={"objects_lost": 3, "corrupt": 6}), "too many rejects: "),
        (SplitOutcome(listed=4, images=1, objects=1, rejected={"objects_lost": 3}), "too many "),
    ],
)
def test_lost_objects_are_the_message_if_they_are_why_no_object_is_left(
    counts: SplitOutcome, message: str
) -> None:
    splits = {"train": SplitOutcome(examples=counts.images)}
    splits["train"].add(counts)
    outcome = judge(splits, max_ratio=0.1, rejects_root="", objects=True)
    assert outcome.status is Status.REFUSED
    assert outcome.message.startswith(message)
    assert ("max_ratio" in outcome.message) == message.startswith("too many")


PETS = make_label_map({"cat": 1, "dog": 2})
COUNTED = {"train": Statistics(images_by_class={"cat": 1})}


def warn(
    *,
    census: Census = Census(),  # noqa: B008  # Not changed.
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
        census,
        splits=splits or {},
        label_map=make_label_map(PETS.ids if classes is None else classes),
        dataset=msgspec.structs.replace(settings, **dataset),
        statistics=statistics,
        duplicates=duplicates,
        readings=readings,
    )


def in_two(train: int, test: int) -> Census:
    splits = {"train": SplitOutcome(images=train), "test": SplitOutcome(images=test)}
    return Census(splits=splits)


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
        ({"census": in_two(3, 1), "config": EXACT}, []),
        (
            {"census": in_two(4, 0), "config": EXACT},
            ["split 'train' should have 3 images and has 4", "split 'test' should have 1 images"],
        ),
        ({"census": in_two(4, 0), "config": {**EXACT, "limit": 5}}, []),
        ({"census": in_two(4, 0), "config": {**EXACT, "exact": False}}, []),
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
            {"sources": TWO_SOURCES, "census": Census(sources={"train/0": SourceCensus(images=1)})},
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


def test_classes_are_counted_and_the_first_ten_named() -> None:
    ids = {f"{letter}": 20 - number for number, letter in enumerate("abcdefghijkl")}
    assert name_classes(make_label_map(ids)) == {"num_classes": 12, "classes": tuple("lkjihgfedc")}


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
    assert list(describe_duplicates(duplicates).values()) == texts
    assert list(warn(duplicates=duplicates)) == texts


APPROVED = Outcome(status=Status.APPROVED, splits={})


@pytest.mark.parametrize(
    ("before", "settings", "after"),
    [
        (Status.APPROVED, {"leaks": "refuse"}, Status.REFUSED),
        (Status.APPROVED, {"contradictions": "refuse"}, Status.APPROVED),
        (Status.APPROVED, {}, Status.APPROVED),
        # The first reason stays.
        (Status.FAILED, {"leaks": "refuse"}, Status.FAILED),
    ],
)
def test_a_leak_may_be_refused(before: Status, settings: Any, after: Status) -> None:  # noqa: ANN401
    outcome = judge_duplicates(
        msgspec.structs.replace(APPROVED, status=before, message="before"),
        make_duplicates(leaks=1, near_contradictions=1),
        settings=DuplicatesConfig(**settings),
        where="/where",
    )
    assert outcome.status is after
    assert outcome.duplicates is not None
    assert outcome.duplicates.leaks == 1
    if after is not Status.REFUSED:
        assert outcome.message == "before"
        return
    assert outcome.message.startswith("it has duplicates that the config refuses: ")
    assert "such as leaks 1; leaks 2\nall of them: /where\n" in outcome.message
    assert outcome.message.endswith("let them pass: --set duplicates.leaks=warn")


def make_shards() -> list[ShardResult]:
    origins = [Origin.COPIED, Origin.COPIED, Origin.DAMAGED, Origin.WRITTEN]
    return [
        msgspec.structs.replace(
            make_shard_result(
                describe_data("x", b"data"), shard_index=index, num_shards=4, examples=10**index
            ),
            origin=origin,
            resumed=index == 2,
            records=2 * 10**index,
        )
        for index, origin in enumerate(origins)
    ]


def test_what_is_taken_over_is_counted() -> None:
    shards = make_shards()
    assert count_reuse("", shards) is None
    assert count_reuse("/old", shards) == Reuse(
        previous="/old", copied_shards=2, copied_images=11, unread_images=22, damaged_shards=1
    )
    assert count_resumed(shards) == Resumed(shards=1, examples=100, images=100)


@pytest.mark.parametrize(
    ("indexes", "moves", "lost"),
    [
        ([0, 1, 2, 3], (2, 2), []),
        ([0, 1, 2], (2, 2), ["shards"]),
        ([0, 1, 2, 3, 3], (2, 2), ["shards"]),
        # One is lost and another one doubled.
        ([0, 1, 2, 2], (2, 2), ["shards"]),
        ([0, 1, 2, 3], (2, 1), ["moves"]),
    ],
)
def test_lost_shards_and_moves_are_found(
    indexes: list[int], moves: tuple[int, int], lost: list[str]
) -> None:
    shards = make_shards()
    found = find_lost(
        Census(),
        splits=["train"],
        shards=[shards[index] for index in indexes],
        rejects=[],
        statistics=[],
        duplicates=None,
        moves=moves,
    )
    assert [line.split(":")[0] for line in found] == lost


def census_of(*edges: str, roots: int = 1) -> Census:
    """A census in which the roots and the annotation file of `SOURCE` were received."""
    found = Edges()
    for edge in edges:
        found.send(edge, b"x")
    for root in list_roots([SOURCE]) * roots:
        found.receive(ROOTS, encode_element(root))
    for part in list_annotation_files([SOURCE]):
        found.receive(ANNOTATION_FILES, encode_element(part))
    return Census(edges=found)


JOIN = JoinSettings(splits=SplitAssignment(by_source={"train": "train"}), labels=LabelSettings())


def test_a_join_that_received_what_the_plan_sent_goes_on() -> None:
    checked = check_edges(census_of(), sources=[SOURCE], settings=JOIN)
    assert checked.edges.lost() == []
    assert set(checked.edges.sent) == {ROOTS, ANNOTATION_FILES}


@pytest.mark.parametrize(
    ("census", "lost"),
    [
        (Census(), ROOTS),
        (census_of(roots=0), ROOTS),
        (census_of(roots=2), ROOTS),
        (census_of(IMAGES), IMAGES),
    ],
)
def test_a_join_stops_where_a_runner_lost_or_doubled_elements(census: Census, lost: str) -> None:
    with pytest.raises(InputError, match=rf"nothing was committed: {lost}: "):
        check_edges(census, sources=[SOURCE], settings=JOIN)


def test_lost_elements_of_the_census_are_found() -> None:
    edges = Edges()
    edges.send(IMAGES, b"x")
    (line,) = find_lost_without_shards(census=Census(edges=edges))
    assert line == f"{IMAGES}: 1 were sent and 0 arrived"


def find_lost_without_shards(
    *,
    census: Census = Census(),  # noqa: B008  # It is only read.
    splits: tuple[str, ...] = (),
    rejects: tuple[RejectsFile, ...] = (),
) -> list[str]:
    return find_lost(
        census, splits=splits, shards=[], rejects=rejects, statistics=[], duplicates=None
    )


def test_a_split_has_a_shard_at_least() -> None:
    (line,) = find_lost_without_shards(splits=("train",))
    assert line.startswith("shards: 1 ")


def test_files_of_rejects_are_named_by_the_number_of_all() -> None:
    file = rejected("train", keys="a", corrupt=60_000)
    named = msgspec.structs.replace(file, file=describe_data("rejects/train.jsonl", b""))
    assert find_lost_without_shards(rejects=(named,)) == []
    # Together they fill two files, so that neither has its name.
    assert (
        find_lost_without_shards(rejects=(named, named))
        == ["rejects: the name rejects/train.jsonl does not fit their number"] * 2
    )


def test_a_class_with_the_id_0_is_named() -> None:
    labels = LabelMap(ids={"cat": 1}, names={"cat": "cat"})
    for change, begin in (
        ({"background": ("bg",)}, "the category with the id 0, bg, counts as the background"),
        ({"shifted_by": "cat"}, "class 'cat' has the id 0"),
    ):
        (line,) = find_warnings(
            Census(),
            splits={},
            label_map=msgspec.structs.replace(labels, **change),
            dataset=make_dataset(config={"image": {"annotated_size": "scale"}}),
        )
        assert line.startswith(begin)


def test_rows_of_no_split_are_counted() -> None:
    """A table without images has no listing: what the join has counted is all there is."""
    census = Census(splits={"a": SplitOutcome(listed=3), "": SplitOutcome(listed=2)})
    counts = count_splits(splits=["a"], census=census, shards=[], rejects=[])
    assert {split: count.listed for split, count in counts.items()} == {"a": 3, "": 2}
    census = Census(splits={"a": SplitOutcome(listed=3)})
    assert list(count_splits(splits=["a"], census=census, shards=[], rejects=[])) == ["a"]


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
