"""Tests of the gate: what became of each input, and whether the dataset may be committed."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from shardbeam.transforms.commit.allowance import Emptied, Tolerance
from shardbeam.transforms.commit.gate import (
    count_resumed,
    count_reuse,
    count_sources,
    count_splits,
    decide,
    find_lost,
    name_classes,
)
from shardbeam.transforms.core.counts import (
    IMAGES,
    REJECTS,
    Counts,
    count_all,
)
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.dataset_files import describe_data
from shardbeam.transforms.dataset.input_counts import InputCounts, ListingSummary
from shardbeam.transforms.dataset.outcome import (
    Resumed,
    Reuse,
    SplitOutcome,
    Status,
)
from shardbeam.transforms.dataset.rejects import RejectsFile
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_counts, make_dataset, make_shard_result
from tests.support.shards import statistics_of
from tests.support.structs import fields


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
        inputs=InputCounts(
            listing=ListingSummary(files={"": 12}), splits={"a": SplitOutcome(listed=3)}
        ),
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
        inputs=InputCounts(
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
    inputs = InputCounts(listing=ListingSummary(files={"a": 0, "b": 1}))
    rejects = [rejected("b", truncated=1)]
    splits = count_splits(splits=["a", "b"], inputs=inputs, shards=[], rejects=rejects)
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
        # The rejects of a split that the ratio just allows are not to blame.
        (
            {
                "train": SplitOutcome(listed=2, examples=1, images=1, rejected={"corrupt": 1}),
                "test": SplitOutcome(listed=4, examples=1, images=1, rejected={"corrupt": 3}),
            },
            0.5,
            Status.REFUSED,
            "too many rejects: split 'test': 3 of 4 inputs rejected (75.00%); rejects.max_ratio "
            "allows 50.00%\nsplit 'test': 3 corrupt; the first: e (corrupt: why)\n"
            "fix them, or let them pass: --set rejects.max_ratio=0.75",
        ),
        # Each split that is at fault has a line of its own.
        (
            {"train": SplitOutcome(), "val": SplitOutcome()},
            1,
            Status.FAILED,
            "no examples are left, nothing was committed: split 'train'\nsplit 'val'",
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
    outcome = decide(
        splits, tolerance=Tolerance(max_ratio), rejects_root="/rejects", rejects=rejects
    )
    assert (outcome.status, outcome.message) == (status, message)
    has_rejects = any(split.rejected for split in splits.values())
    assert outcome.rejects == ("/rejects" if has_rejects else "")


def test_what_the_runner_lost_is_the_only_message_whatever_else_is_wrong() -> None:
    outcome = decide(
        {"train": EMPTY},
        tolerance=Tolerance(0),
        rejects_root="/rejects",
        rejects=[rejected("train", keys="a")],
        lost_elements=["shards: 1 lost", "images: 2 lost"],
    )
    assert outcome.status is Status.FAILED
    assert outcome.message == (
        "the runner lost or doubled elements, nothing was committed: shards: 1 lost\n"
        "images: 2 lost\n"
        "run the same command again, and on another runner if that happens again"
    )


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
    outcome = decide(splits, tolerance=Tolerance(0), rejects_root="", objects=True)
    assert outcome.status is (Status.REFUSED if problem else Status.APPROVED)
    assert problem in outcome.message
    assert decide(splits, tolerance=Tolerance(0), rejects_root="").status is Status.APPROVED


LOST = SplitOutcome(listed=3, rejected={"objects_lost": 3})


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (LOST, "no object is left: 3 images have lost all objects; if that is intended: "),
        (
            SplitOutcome(listed=1, excluded={"objects_lost": 1}),
            "no object is left: 1 image has lost all of its objects; ",
        ),
        # The other reason why no object is left comes second.
        (
            SplitOutcome(
                listed=5,
                rejected={"objects_lost": 3},
                images=2,
                corrections={Correction.OBJECT_WITHOUT_BOX_DROPPED.value: 4},
            ),
            "no object is left: 3 images have lost all objects, 4 object_without_box_dropped; if ",
        ),
        # Most of what is left out has lost its objects, though no reject has.
        (
            SplitOutcome(listed=3, rejected={"corrupt": 1}, excluded={"objects_lost": 2}),
            "no object is left: 2 images have lost all objects; ",
        ),
        # As many rejects have another reason.
        (
            SplitOutcome(listed=2, rejected={"corrupt": 1}, excluded={"objects_lost": 1}),
            "too many rejects: ",
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
    outcome = decide(splits, tolerance=Tolerance(0.1), rejects_root="", objects=True)
    assert outcome.status is Status.REFUSED
    assert outcome.message.startswith(message)
    assert ("max_ratio" in outcome.message) == message.startswith("too many")


def test_classes_are_counted_and_the_first_ten_named() -> None:
    ids = {f"{letter}": 20 - number for number, letter in enumerate("abcdefghijkl")}
    assert name_classes(make_label_map(ids)) == {"num_classes": 12, "classes": tuple("lkjihgfedc")}


@pytest.mark.parametrize(
    ("sources", "counted"),
    [
        # Each split has one source: its images are the split's.
        (("train", "val"), {}),
        (("train/a", "train/b", "val"), {"train/a": 5, "train/b": 0, "val": 7}),
    ],
)
def test_the_images_of_sources_are_counted_where_a_split_has_several(
    sources: tuple[str, ...], counted: dict[str, int]
) -> None:
    dataset = msgspec.structs.replace(make_dataset(), sources=sources)
    inputs = InputCounts(images={"train/a": 5, "train": 5, "val": 7})
    assert count_sources(make_counts(inputs, dataset=dataset)) == counted


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
    ("indexes", "counted", "lost"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], []),
        ([0, 1, 2], [0, 1, 2], ["shards"]),
        ([0, 1, 2, 3, 3], [0, 1, 2, 3, 3], ["shards"]),
        # One is lost and another one doubled.
        ([0, 1, 2, 2], [0, 1, 2, 2], ["shards"]),
        ([0, 1, 2, 3], [0, 1, 2], ["statistics"]),
        ([0, 1, 2, 3], [0, 1, 2, 2], ["statistics"]),
    ],
)
def test_lost_shards_and_statistics_are_found(
    indexes: list[int], counted: list[int], lost: list[str]
) -> None:
    shards = [
        msgspec.structs.replace(shard, key=f"{index:064d}")
        for index, shard in enumerate(make_shards())
    ]
    found = find_lost(
        InputCounts(),
        splits=["train"],
        shards=[shards[index] for index in indexes],
        rejects=[],
        statistics=statistics_of(*(shards[index] for index in counted)),
    )
    assert [line.split(":")[0] for line in found] == lost


def test_lost_elements_of_the_inputs_are_found() -> None:
    counts = Counts()
    counts.send(IMAGES, b"x")
    (line,) = find_lost_without_shards(inputs=InputCounts(counts=counts))
    assert line == f"{IMAGES}: 1 were sent and 0 arrived"


def test_lost_rejects_are_found() -> None:
    counts = Counts()
    counts.send(REJECTS, b"x")
    file = msgspec.structs.replace(
        rejected("train", keys="a", corrupt=1), file=describe_data("rejects/train.jsonl", b"")
    )
    (line,) = find_lost_without_shards(inputs=InputCounts(counts=counts), rejects=(file,))
    assert line == f"{REJECTS}: 1 were sent and 0 arrived"
    arrived = msgspec.structs.replace(file, received=count_all([b"x"]))
    assert not find_lost_without_shards(inputs=InputCounts(counts=counts), rejects=(arrived,))


def find_lost_without_shards(
    *,
    inputs: InputCounts = InputCounts(),  # noqa: B008  # It is only read.
    splits: tuple[str, ...] = (),
    rejects: tuple[RejectsFile, ...] = (),
) -> list[str]:
    return find_lost(inputs, splits=splits, shards=[], rejects=rejects, statistics={})


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


def test_rows_of_no_split_are_counted() -> None:
    """A table without images has no listing: what the join has counted is all there is."""
    inputs = InputCounts(splits={"a": SplitOutcome(listed=3), "": SplitOutcome(listed=2)})
    counts = count_splits(splits=["a"], inputs=inputs, shards=[], rejects=[])
    assert {split: count.listed for split, count in counts.items()} == {"a": 3, "": 2}
    inputs = InputCounts(splits={"a": SplitOutcome(listed=3)})
    assert list(count_splits(splits=["a"], inputs=inputs, shards=[], rejects=[])) == ["a"]


def test_a_sample_need_not_hold_every_class() -> None:
    emptied = {"train": Emptied(["cat"])}

    def tolerance(**config: object) -> Tolerance:
        run = make_counts(dataset=make_dataset(config=config))
        return dataclasses.replace(run, emptied=emptied).tolerance

    fractions = {"a": 0.5, "b": 0.5}
    assert tolerance(fractions=fractions) == Tolerance(0.5, ("a", "b"), emptied)
    assert tolerance(fractions={}, limit=None) == Tolerance(0.5, (), emptied)
    assert tolerance(fractions=fractions, limit=9) == Tolerance(0.5, ("a", "b"))
