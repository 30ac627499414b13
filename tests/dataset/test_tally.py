from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import Reject
from shardbeam.transforms.dataset.tally import (
    JoinCounter,
    JoinTally,
    SourceTally,
    check_join,
    merge_tallies,
)
from shardbeam.transforms.formats.joining import JoinedKey
from shardbeam.transforms.formats.sources import Source

SOURCE = Source(name="train", roots=("/data/images",), format="coco")


def reject(*, listed: bool) -> Reject:
    return Reject(
        split="train",
        source="train",
        key="a",
        stage="join",
        reason=Reason.MISSING_IMAGE,
        detail="",
        listed=listed,
    )


class Key(NamedTuple):
    key: str
    joined: JoinedKey
    listed: int
    referenced: int


JOINED = st.builds(
    JoinedKey,
    split=st.sampled_from(["train", "test"]),
    rejects=st.sampled_from(
        [(), (reject(listed=False),), (reject(listed=True), reject(listed=False))]
    ),
    excluded=st.sampled_from([None, Exclusion.HIDDEN_FILE]),
    labels=st.sampled_from([(), ("cat",), ("dog", "cat")]),
)
KEYS = st.builds(
    Key,
    key=st.sampled_from(["a.jpg", "b.jpg", "c/d.jpg", "e"]),
    joined=JOINED,
    listed=st.integers(0, 2),
    referenced=st.integers(0, 2),
)


def count(keys: list[Key]) -> JoinTally:
    counter = JoinCounter()
    for key, joined, listed, referenced in keys:
        counter.add(joined, source="s", key=key, listed=listed, referenced=referenced)
    return counter.tally()


@given(st.lists(KEYS), st.integers(0, 20))
def test_counting_in_parts_gives_the_same_sum(keys: list[Key], cut: int) -> None:
    whole = merge_tallies([count(keys)])
    assert merge_tallies([count(keys[cut:]), JoinTally(), count(keys[:cut])]) == whole
    rejected = sum(sum(split.rejected.values()) for split in whole.splits.values())
    assert rejected == sum(len(key.joined.rejects) for key in keys)


def refuse(*, listed: str, referenced: str) -> str:
    tally = JoinTally(
        sources={"train": SourceTally(referenced=5, listed_key=listed, referenced_key=referenced)}
    )
    with pytest.raises(InputError) as caught:
        check_join(tally, sources=[SOURCE])
    return str(caught.value)


@pytest.mark.parametrize(
    ("listed", "referenced", "mend"),
    [
        ("train2017/1.jpg", "1.jpg", "move the root down: add /train2017 to `images`"),
        ("1.jpg", "train2017/1.jpg", "move the root up: take /train2017 from `images`"),
        ("train2017/1.jpg", "2.jpg", "move the root down: try `images` with /train2017 added"),
        ("1.jpg", "train2017/2.jpg", "move the root up: try the folder that holds train2017/"),
        ("a/1.jpg", "a\\1.jpg", "replace the backslashes"),
        ("a.jpg", "b.jpg", "check that `images` and `annotations` belong together"),
    ],
)
def test_a_join_without_a_match_stops_with_a_mend(listed: str, referenced: str, mend: str) -> None:
    message = refuse(listed=listed, referenced=referenced)
    assert message.startswith("/data/images: none of the 5 annotated images is listed here: ")
    assert repr(listed) in message
    assert repr(referenced) in message
    assert mend in message


def test_copies_in_deeper_folders_are_not_what_is_meant() -> None:
    listed = ["copies/cat/1.jpg", "images/2.jpg", "images/1.jpg", "masks/1.png"]
    keys = [Key(key, JoinedKey(split="train"), listed=1, referenced=0) for key in listed]
    keys += [Key(key, JoinedKey(split="train"), listed=0, referenced=1) for key in ("2", "1.jpg")]
    for order in (keys, keys[::-1]):
        found = count(order).sources["s"]
        assert (found.listed_key, found.referenced_key) == ("images/1.jpg", "1.jpg")


def test_a_join_with_a_match_or_without_annotations_goes_on() -> None:
    for source in (SourceTally(referenced=5, matched=1), SourceTally(listed_key="a.jpg")):
        tally = JoinTally(sources={"train": source})
        assert check_join(tally, sources=[SOURCE]) is tally
