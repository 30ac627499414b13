"""What became of everything, and whether it may be committed."""

from __future__ import annotations

import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.census import Census, ListingSummary, SourceCensus, merge_censuses
from shardbeam.transforms.dataset.files import describe_data
from shardbeam.transforms.dataset.judge import (
    check_join,
    count_splits,
    describe_left_out,
    judge,
)
from shardbeam.transforms.dataset.outcome import SplitOutcome, Status
from shardbeam.transforms.dataset.rejects import RejectsFile
from shardbeam.transforms.formats.coco import CocoFormat
from shardbeam.transforms.formats.joining import JoinedKey
from shardbeam.transforms.formats.sources import Source
from tests.support.manifests import make_dataset, make_shard_result

SOURCE = Source("train", CocoFormat(images="/data/images", annotations=["a.json"]))
BY_SUFFIX = "by their last folder and name, without case and extension: --match suffix"
BY_NAME = "by their name alone, without case and extension: --match name"


@pytest.mark.parametrize(
    ("listed", "referenced", "mend"),
    [
        ("train2017/1.jpg", "1.jpg", "move the root down: add /train2017 to `images`"),
        ("1.jpg", "images/1.jpg", "move the root up: take /images from `images`"),
        ("1.jpg", "train2017/1.jpg", BY_NAME),
        ("1.jpg", "/data/train/1.jpg", BY_NAME),
        ("a/1.jpg", "gs://bucket/a/1.jpg", BY_SUFFIX),
        ("a/1.jpg", "b/c/A/1.JPEG", BY_SUFFIX),
        ("a/1.jpg", "a\\1.jpg", BY_SUFFIX),
        ("a/1.jpg", "1", BY_NAME),
        ("a.jpg", "b.jpg", "check that the images and the annotations belong together"),
        ("a/1.jpg", "2.jpg", "check that the images and the annotations belong together"),
    ],
)
def test_a_join_without_a_match_stops_with_a_mend(listed: str, referenced: str, mend: str) -> None:
    census = Census()
    for key, count in ((listed, 1), (referenced, 0), ("other.jpg", 0), ("another.jpg", 1)):
        joined = JoinedKey(split="train")
        census.add_joined(joined, source="train", key=key, listed=count, referenced=1 - count)
    with pytest.raises(InputError) as caught:
        check_join(merge_censuses([census]), sources=[SOURCE])
    message = str(caught.value)
    assert message.startswith("/data/images: none of the 2 annotated images is listed here: ")
    assert mend in message
    assert ("1 of 2 names that were tried match then" in message) == ("check that" not in message)


def test_a_join_never_shows_one_name_as_its_own_opposite() -> None:
    seen = SourceCensus(referenced=1, listed_key="a.jpg", referenced_key="a.jpg")
    with pytest.raises(InputError, match=r"name 'a\.jpg', the listing holds the same, though"):
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
    # As many as were joined: the listing knows no splits.
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
    assert count(listed=6)["train"] == SplitOutcome(
        listed=6,
        examples=3,
        shards=1,
        num_bytes=4,
        unannotated=1,
        rejected={"missing_image": 1, "truncated": 1},
        unlisted=1,
        excluded={"hidden_file": 2},
        images=3,
        corrections={"box_clipped": 2},
    )


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
        # 3 written + 1 rejected + 2 excluded; 2 of 7 inputs rejected.
        (count(listed=6), 0.3, Status.APPROVED, ""),
        (count(listed=6), 2 / 7, Status.APPROVED, ""),
        (
            count(listed=6),
            0.28,
            Status.REFUSED,
            "too many rejects, nothing was committed: split 'train': 2 of 7 inputs rejected "
            "(28.57%); rejects.max_ratio allows 28.00%\nsplit 'train': 1 missing_image, "
            "1 truncated; the first: a (corrupt: why), b (corrupt: why), c (corrupt: why)\n"
            "mend them, or let them pass: --set rejects.max_ratio=0.286",
        ),
        # All that belongs to no split is rejected, which no ratio forbids.
        (
            {**count(listed=6), "": EMPTY},
            0.28,
            Status.REFUSED,
            "too many rejects, nothing was committed: split 'train': 2 of 7 inputs rejected "
            "(28.57%); rejects.max_ratio allows 28.00%\nsplit 'train': 1 missing_image, "
            "1 truncated; the first: a (corrupt: why), b (corrupt: why), c (corrupt: why)\n"
            "no split: 1 truncated; the first: \\n (corrupt: why)\n"
            "mend them, or let them pass: --set rejects.max_ratio=0.286",
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
        # What belongs to no split may well be nothing but rejects.
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
        # Of 512 listed files 500 are left out, and an image is missing.
        (LEFT_OUT, 13, 6 / 13),
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


FILES = ": not annotated yet, or empty in a tool that cannot save that"
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
    assert describe_left_out(census, dataset=dataset) == (
        f"500 of 510 images of {line.format(such)}",
    )
    assert describe_left_out(Census(), dataset=dataset) == ()


DROPPED = {Correction.OBJECT_WITHOUT_BOX_DROPPED.value: 5, Correction.IMAGE_CONVERTED.value: 1}


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        (SplitOutcome(objects=1, corrections=DROPPED), ""),
        # The annotation files themselves hold none.
        (SplitOutcome(unannotated=1), ""),
        (SplitOutcome(corrections=DROPPED), "5 object_without_box_dropped; if that is meant: "),
        (SplitOutcome(unannotated=2), "no annotations name any of the 2 images; if that is meant"),
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
