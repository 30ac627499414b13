"""Tests of how many rejects a dataset may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.commit.allowance import (
    Emptied,
    Tolerance,
    find_emptied,
    tolerated_ratio,
)
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.dataset.outcome import SplitOutcome

DAMAGED = ("zero_byte", "not_an_image", "truncated", "corrupt", "jpeg_damaged")
OTHERS = sorted({each.value for each in Reason} - {*DAMAGED, "objects_lost"})


def split(inputs: int, **rejected: int) -> SplitOutcome:
    return SplitOutcome(listed=inputs, images=inputs - sum(rejected.values()), rejected=rejected)


MORE = "and more only of damaged pictures, not of these: "
FEW = "or 3 damaged pictures"


@pytest.mark.parametrize(
    ("counts", "problem"),
    [
        # 1 % of any kind.
        (split(100, missing_image=1), ""),
        (split(1000, truncated=10), ""),
        (split(99, missing_image=1), f"{MORE}1 missing_image"),
        # A few damaged pictures.
        (split(40, truncated=1), ""),
        (split(98, truncated=1), ""),
        (split(20, truncated=1), ""),
        (split(60, zero_byte=1, not_an_image=1, corrupt=1), ""),
        (split(60, jpeg_damaged=3), ""),
        (split(19, truncated=1), f"{FEW} if they are at most 5%, and these are 1 of 19 inputs"),
        (split(399, truncated=4), f"{FEW}, and there are 4 truncated"),
        (split(399, corrupt=2, truncated=2), f"{FEW}, and there are 2 corrupt, 2 truncated"),
        # Images that lost their objects are counted by themselves.
        (split(60, objects_lost=3), ""),
        (split(120, objects_lost=3, truncated=3), ""),
        (
            split(119, objects_lost=3, truncated=3),
            f"{FEW} if they are at most 5%, and these are 6 of 119 inputs",
        ),
        (
            split(399, objects_lost=4),
            "or 3 images that lost their objects, and there are 4 objects_lost",
        ),
        # All other reasons must stay within 1 %.
        (split(100, missing_image=1, truncated=3), ""),
        (split(100, missing_image=2, truncated=1), f"{MORE}2 missing_image"),
        (split(6, missing_image=5), f"{MORE}5 missing_image"),
        (split(4, no_class_folder=1), f"{MORE}1 no_class_folder"),
        (split(6, unsupported_image=6), f"{MORE}6 unsupported_image"),
        (split(6, truncated=5), f"{FEW}, and there are 5 truncated"),
    ],
)
def test_without_a_ratio_a_few_damaged_pictures_may_be_rejected(
    counts: SplitOutcome, problem: str
) -> None:
    tolerance = Tolerance(None)
    found = tolerance.excess({"train": counts})
    assert [line.partition("; the default allows 1%, ")[2] for line in found.values()] == [
        *([problem] if problem else [])
    ]
    needs = not problem and counts.reject_ratio > 0.01
    assert tolerance.allowed({"train": counts}) == ["train"] * needs
    # A ratio of the config is exact, also if it is the default's.
    assert bool(Tolerance(0.01).excess({"train": counts})) == (counts.reject_ratio > 0.01)
    assert Tolerance(0.01).allowed({"train": counts}) == []
    assert not Tolerance(tolerated_ratio({"train": counts})).excess({"train": counts})


def test_splits_that_fractions_divide_count_as_one() -> None:
    splits = {"train": split(95), "validation": split(5, truncated=1)}
    assert [*Tolerance(None).excess(splits)] == ["validation"]
    divided = Tolerance(None, divided=("train", "validation"))
    assert not divided.excess(splits)
    assert divided.allowed(splits) == ["validation"]
    # What the limit leaves out is part of what they divide.
    limited = SplitOutcome(listed=95, images=10, excluded={"beyond_limit": 85})
    assert not divided.excess({**splits, "train": limited})
    excluded = SplitOutcome(listed=95, images=10, excluded={"label_excluded": 85})
    assert divided.excess({**splits, "train": excluded})
    # Damaged pictures are counted over all of them.
    several = {"train": split(400, truncated=3), "validation": split(50, corrupt=1)}
    assert divided.excess(several) == {
        "validation": "split 'validation': 1 of 50 inputs rejected (2.00%); the default allows "
        "1%, or 3 damaged pictures, and there are 1 corrupt, 3 truncated in train and validation"
    }
    # Any other reason counts in its split.
    others = {"train": split(380), "validation": split(20, missing_image=1)}
    assert [*divided.excess(others)] == ["validation"]
    # A split of its own, such as one of a program, is none of them.
    assert [*divided.excess({**splits, "test": split(5, truncated=1)})] == ["test"]


def test_no_class_and_no_source_may_lose_all_images() -> None:
    splits = {"train": split(40, truncated=1), "test": split(40, truncated=1)}
    emptied = {"train": Emptied(["lynx"], ["train/1"])}
    assert Tolerance(None, emptied=emptied).excess(splits) == {
        "train": "split 'train': 1 of 40 inputs rejected (2.50%); the default allows 1%, or 3 "
        "damaged pictures, but not all images of class lynx and source 'train/1'"
    }
    assert Tolerance(None, emptied=emptied).allowed(splits) == ["test"]
    # Within 1 %, and with a ratio of the config, only the number counts.
    assert not Tolerance(None, emptied=emptied).excess({"train": split(100, truncated=1)})
    assert not Tolerance(0.03, emptied=emptied).excess(splits)


def test_what_lost_all_images() -> None:
    assert find_emptied(
        classes=[("train", ["cat", "lynx"]), ("test", ["owl"]), ("train", ["owl"]), ("val", [])],
        sources=[("train", ["train", "train/1"]), ("test", ["test"])],
        written={"cat"},
        left={"train", "test"},
    ) == {"train": Emptied(["lynx", "owl"], ["train/1"]), "test": Emptied(["owl"], [])}


def test_a_tolerance_of_the_config_that_lets_much_go_is_described() -> None:
    splits = {"train": split(6, truncated=5), "test": split(20, corrupt=1), "": split(1, corrupt=1)}
    assert Tolerance(0.9).describe_tolerated(splits) == (
        "split 'train': 5 of 6 inputs rejected (83.33%); rejects.max_ratio allows it"
    )
    # Those are refused, or need no tolerance.
    assert not Tolerance(0.5).describe_tolerated(splits)
    assert not Tolerance(None).describe_tolerated(splits)


@given(
    st.integers(1, 700),
    st.dictionaries(st.sampled_from([*DAMAGED, "objects_lost", *OTHERS[:3]]), st.integers(1, 5)),
    st.booleans(),
)
def test_the_rule_in_other_words(left: int, rejected: dict[str, int], emptied: bool) -> None:
    total = sum(rejected.values())
    inputs = left + total
    damaged = sum(rejected.get(each, 0) for each in DAMAGED)
    lost = rejected.get("objects_lost", 0)
    may_pass = 100 * total <= inputs or (
        100 * (total - damaged - lost) <= inputs
        and damaged <= 3
        and lost <= 3
        and 20 * (damaged + lost) <= inputs
        and not emptied
    )
    tolerance = Tolerance(None, emptied={"train": Emptied(["cat"])} if emptied else {})
    whole = {"train": split(inputs, **rejected)}
    assert (not tolerance.excess(whole)) == may_pass
    # Chance decides into which split an image is divided, and may not decide what is allowed.
    only_damaged = total == damaged + lost
    if only_damaged:
        divided = {"a": split(left), "b": split(total, **rejected)}
        by_fractions = tolerance._replace(
            divided=("a", "b"), emptied={"b": Emptied(["cat"])} if emptied else {}
        )
        is_few = damaged <= 3 and lost <= 3 and 20 * total <= inputs and not emptied
        assert (not by_fractions.excess(divided)) == (is_few or not total)
