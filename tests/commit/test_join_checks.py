"""Tests of the checks before anything is written."""

from __future__ import annotations

import pytest

from shardbeam.transforms.commit.join_checks import check_arrived, check_join
from shardbeam.transforms.core.counts import FILES, FOLDERS, IMAGES, Counts, encode_element
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.input_counts import (
    InputCounts,
    InputSamples,
    SourceSamples,
    merge_inputs,
)
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.join.join import JoinedKey
from shardbeam.transforms.formats.join.sources import Source, list_annotation_files, list_roots

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
    inputs = InputCounts()
    for key, count in ((listed, 1), (referenced, 0), ("other.jpg", 0), ("another.jpg", 1)):
        joined = JoinedKey(split="train")
        inputs.add_joined(joined, source="train", key=key, listed=count, referenced=1 - count)
    with pytest.raises(InputError) as caught:
        check_join(merge_inputs([inputs]), sources=[SOURCE])
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
    inputs = InputCounts(
        samples=InputSamples(
            sources={"train": SourceSamples(referenced=1, referenced_key="a.json")}
        )
    )
    inputs.add_reject(reject)
    with pytest.raises(
        InputError, match=r"none of the 1 annotations can be used, such as 'a\.json'"
    ):
        check_join(inputs, sources=[SOURCE])
    # Others could be used.
    inputs.samples.sources["train"].referenced = 2
    with pytest.raises(InputError, match="none of the 2 annotated images is listed"):
        check_join(inputs, sources=[SOURCE])


def test_a_join_never_shows_one_name_as_its_own_opposite() -> None:
    seen = SourceSamples(referenced=1, listed_key="a.jpg", referenced_key="a.jpg")
    with pytest.raises(InputError, match=r"name 'a\.jpg', the listing holds the same name, but"):
        check_join(InputCounts(samples=InputSamples(sources={"train": seen})), sources=[SOURCE])


@pytest.mark.parametrize(
    "seen", [SourceSamples(referenced=5, matched=1), SourceSamples(listed_key="a.jpg")]
)
def test_a_join_with_a_match_or_without_annotations_goes_on(seen: SourceSamples) -> None:
    check_join(InputCounts(samples=InputSamples(sources={"train": seen})), sources=[SOURCE])


def counts_of(*sent: str, roots: int = 1) -> InputCounts:
    """A inputs in which the roots and the annotation file of `SOURCE` were received."""
    counts = Counts()
    for what in sent:
        counts.send(what, b"x")
    for root in list_roots([SOURCE]) * roots:
        counts.receive(FOLDERS, encode_element(root))
    for part in list_annotation_files([SOURCE]):
        counts.receive(FILES, encode_element(part))
    return InputCounts(counts=counts)


def test_a_join_that_received_what_the_plan_sent_goes_on() -> None:
    checked = check_arrived(counts_of(), sources=[SOURCE])
    assert checked.counts.lost() == []
    assert set(checked.counts.sent) == {FOLDERS, FILES}


@pytest.mark.parametrize(
    ("inputs", "lost"),
    [
        (InputCounts(), FOLDERS),
        (counts_of(roots=0), FOLDERS),
        (counts_of(roots=2), FOLDERS),
        (counts_of(IMAGES), IMAGES),
    ],
)
def test_a_join_stops_where_a_runner_lost_or_doubled_elements(
    inputs: InputCounts, lost: str
) -> None:
    with pytest.raises(InputError, match=rf"nothing was committed: {lost}: "):
        check_arrived(inputs, sources=[SOURCE])
