from __future__ import annotations

import hashlib
import math
import random
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    Category,
    Coding,
    ImageAnnotations,
    ImageRef,
    ObjectAnnotation,
    Record,
    Reject,
    encode_annotations,
)
from shardbeam.transforms.dataset import input_counts
from shardbeam.transforms.dataset.input_counts import (
    InputCounts,
    SourceSamples,
    add_fingerprints,
    fingerprint,
    fingerprint_file,
    merge_inputs,
)
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.formats.join.join import JoinedKey


def file(name: str = "a", *, size_bytes: int = 5, version: str = "1", offset: int = 0) -> ImageRef:
    return ImageRef(uri=f"/images/{name}", size_bytes=size_bytes, version=version, offset=offset)


def record(split: str, *, key: str = "a", image_id: str = "", examples: int = 3) -> Record:
    return Record(
        source="s",
        key=key,
        image=file(),
        annotations=encode_annotations(ImageAnnotations(image_id=image_id)),
        split=split,
        examples=examples,
    )


def reject(*, listed: bool, reason: Reason = Reason.MISSING_IMAGE) -> Reject:
    return Reject(
        split="train", source="s", key="a", stage="join", reason=reason, detail="", listed=listed
    )


class Key(NamedTuple):
    key: str
    joined: JoinedKey
    listed: int
    referenced: int


JOINED = st.builds(
    JoinedKey,
    split=st.sampled_from(["train", "test"]),
    record=st.none()
    | st.builds(
        record,
        st.just("train"),
        key=st.sampled_from("abc"),
        image_id=st.sampled_from(["", "1", "2", "x"]),
        examples=st.sampled_from([0, 1]),
    ),
    rejects=st.sampled_from(
        [(), (reject(listed=False),), (reject(listed=True), reject(listed=False))]
    ),
    excluded=st.sampled_from([None, Exclusion.HIDDEN_FILE, Exclusion.UNANNOTATED]),
    labels=st.sampled_from([(), ("cat",), ("dog", "cat")]),
)
KEYS = st.builds(
    Key,
    key=st.sampled_from(["a.jpg", "b.jpg", "c/d.jpg", "e"]),
    joined=JOINED,
    listed=st.integers(0, 2),
    referenced=st.integers(0, 2),
)
CATEGORIES = st.builds(
    Category,
    name=st.sampled_from(["cat", "dog"]),
    source_id=st.sampled_from([None, 1]),
    origin=st.sampled_from(["1.json", "2.json"]),
)
FILES = st.builds(file, st.sampled_from("ab"), version=st.sampled_from("12"))


def count(seen: list[Key | Category | ImageRef]) -> InputCounts:
    inputs = InputCounts()
    for each in seen:
        if isinstance(each, Category):
            inputs.classes.add_category(each)
        elif isinstance(each, ImageRef):
            inputs.listing.add_images(1, split=each.version)
            inputs.listing.add_fingerprint(fingerprint_file(each))
        else:
            inputs.add_joined(
                each.joined,
                source="s",
                key=each.key,
                listed=each.listed,
                referenced=each.referenced,
            )
    return inputs


@given(st.lists(KEYS | CATEGORIES | FILES), st.integers(0, 20), st.integers(0, 20))
def test_parts_add_up_to_the_same_in_any_order_and_grouping(
    seen: list[Key | Category | ImageRef], one: int, other: int
) -> None:
    first, second = sorted((one, other))
    a, b, c = count(seen[:first]), count(seen[first:second]), count(seen[second:])
    whole = count(seen)
    assert merge_inputs([c, InputCounts(), a, b]) == whole
    assert merge_inputs([merge_inputs([b, c]), a]) == whole
    # The merged values are unchanged, because a runner may keep them.
    assert a == count(seen[:first])


def test_what_the_join_decides_is_counted_by_split() -> None:
    twice = (reject(listed=True), reject(listed=False, reason=Reason.DUPLICATE_KEY))
    inputs = count(
        [
            Key("a.jpg", JoinedKey(split="train", record=record("train"), unannotated=True), 1, 0),
            Key("b.jpg", JoinedKey(split="train", rejects=twice), 2, 1),
            Key("c.txt", JoinedKey(split="test", excluded=Exclusion.NOT_AN_IMAGE_NAME), 1, 0),
        ]
    )
    assert inputs.splits == {
        # Three Examples of five bytes each, and the annotations.
        "train": SplitOutcome(
            listed=3,
            images=1,
            examples=3,
            num_bytes=15 + len(record("train").annotations),
            unannotated=1,
            unlisted=1,
            rejected={"duplicate_key": 1, "missing_image": 1},
        ),
        "test": SplitOutcome(listed=1, excluded={"not_an_image_name": 1}),
    }
    assert inputs.samples.sources == {
        # Once a key matches, no names are needed to explain why none does.
        "s": SourceSamples(unnumbered=1, referenced=1, matched=1)
    }


def count_ids(*ids: tuple[str, str]) -> InputCounts:
    """Counts images with these keys and ids."""
    records = (record("train", key=key, image_id=image_id) for key, image_id in ids)
    return count([Key(each.key, JoinedKey(split="train", record=each), 1, 1) for each in records])


def test_ids_that_images_share_are_found() -> None:
    assert (
        count_ids(("a", "1"), ("b", "2"), ("c", ""), ("d", ""), ("e", "e")).samples.repeated_ids()
        == {}
    )
    # The shortest one is named, with the first two images.
    found = count_ids(("d", "12"), ("c", "12"), ("b", "3"), ("a", "3"), ("e", "3"))
    assert found.samples.repeated_ids() == {"train": ("3", ("a", "b"))}
    # Of many, a sample is compared.
    halves = [count_ids(*((f"{name}{n}", str(n)) for n in range(4000))) for name in "ab"]
    for order in (halves, halves[::-1]):
        merged = merge_inputs(order)
        assert {
            len(merged.samples.image_ids["train"]),
            *map(len, merged.samples.image_ids["train"].values()),
        } == {*(256, 2)}
        assert merged.samples.repeated_ids().keys() == {"train"}
    assert merge_inputs(halves) == merge_inputs(halves[::-1])


@pytest.mark.parametrize(
    ("image_id", "examples", "counts"),
    [("7", 2, (1, 0)), ("-7", 2, (1, 0)), ("x7", 2, (0, 1)), ("", 2, (0, 1)), ("x7", 0, (0, 0))],
)
def test_ids_that_are_numbers_are_counted_where_there_are_examples(
    image_id: str, examples: int, counts: tuple[int, int]
) -> None:
    joined = JoinedKey(split="train", record=record("train", image_id=image_id, examples=examples))
    seen = count([Key("a", joined, 1, 1)]).samples.sources["s"]
    assert (seen.numbered, seen.unnumbered) == counts


def test_the_first_images_that_nothing_names_are_kept() -> None:
    left_out = JoinedKey(split="train", excluded=Exclusion.UNANNOTATED)
    keys = [Key(f"{number}.jpg", left_out, 1, 0) for number in range(5)]
    for order in (keys, keys[::-1]):
        inputs = count([*order])
        assert inputs.samples.first_excluded["unannotated"] == {
            "train": ("0.jpg", "1.jpg", "2.jpg")
        }
        assert inputs.splits["train"].excluded == {"unannotated": 5}


def test_copies_in_deeper_folders_are_not_what_is_meant() -> None:
    listed = ["copies/cat/1.jpg", "images/2.jpg", "images/1.jpg", "masks/1.png"]
    keys = [Key(key, JoinedKey(split="train"), listed=1, referenced=0) for key in listed]
    keys += [Key(key, JoinedKey(split="train"), listed=0, referenced=1) for key in ("2", "1.jpg")]
    for order in (keys, keys[::-1]):
        seen = count([*order]).samples.sources["s"]
        assert (seen.listed_key, seen.referenced_key) == ("images/1.jpg", "1.jpg")


def test_an_image_id_without_a_file_is_not_a_name() -> None:
    unknown = JoinedKey(
        split="train", rejects=(reject(listed=False, reason=Reason.UNKNOWN_IMAGE_ID),)
    )
    assert count([Key("image_id=9", unknown, 0, 1)]).samples.sources["s"] == SourceSamples(
        referenced=1
    )


def test_a_class_is_kept_once_with_its_first_origin() -> None:
    declared = [
        Category(name, source_id, f"{number:03d}.xml", keypoints=("nose",))
        for number in range(300)
        for name, source_id in (("cat", 2), ("dog", None))
    ]
    told = Key("a", JoinedKey(split="train", labels=("ant", "dog")), 1, 0)
    for order in (declared, declared[::-1]):
        assert sorted(count([*order, told]).classes.categories.values(), key=str) == [
            Category("ant", origin="the images' names"),
            Category("cat", 2, "000.xml", keypoints=("nose",)),
            Category("dog", origin="the images' names"),
            Category("dog", None, "000.xml", keypoints=("nose",)),
        ]


@pytest.mark.parametrize(
    "other", [file("b"), file(size_bytes=6), file(version="2"), file(offset=1)]
)
def test_a_listings_fingerprint_changes_with_place_size_and_version(other: ImageRef) -> None:
    listing, again = count([file()]).listing, count([file()]).listing
    assert listing == again
    assert listing.fingerprint != count([other]).listing.fingerprint


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (
            ["x" * 1001],
            r"file\.json: class 'x{40}'\.\.\. has a name of 1,001 characters; at most 1,000",
        ),
        (["a", "b"], r"file\.json: declares one class too many: a dataset may have at most 2"),
    ],
)
def test_classes_and_their_names_are_bounded(
    names: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_counts, "MAX_CLASSES", 2)
    inputs = InputCounts()
    inputs.classes.add_category(Category(name="y" * 1000, origin="file.json"))
    *first, last = [Category(name=name, origin="file.json") for name in names]
    for category in first:
        inputs.classes.add_category(category)
    with pytest.raises(InputError, match=problem):
        inputs.classes.add_category(last)


def test_linked_folders_are_counted_and_the_first_are_named() -> None:
    parts = []
    for key in ("d/", "b/", "a/", "c/"):
        parts.append(InputCounts())
        parts[-1].add_joined(
            JoinedKey(split="train", excluded=Exclusion.LINKED_FOLDER),
            source="s",
            key=key,
            listed=1,
            referenced=0,
        )
    merged = merge_inputs(parts)
    assert merged.splits["train"].excluded == {"linked_folder": 4}
    assert merged.describe_linked_folders().startswith(
        "4 linked folders are left out, such as 'a/', 'b/', 'c/': "
    )
    assert InputCounts().describe_linked_folders() == ""


def boxes(*corners: tuple[float, float, float, float]) -> bytes:
    objects = tuple(ObjectAnnotation("dog", box) for box in corners)
    return encode_annotations(ImageAnnotations(image_id="", objects=objects))


def test_one_box_beyond_1_shows_that_no_box_of_its_source_is_a_fraction() -> None:
    fractions, pixels = SourceSamples(), SourceSamples()
    nan = math.nan
    fractions.add_boxes(
        boxes((0, 0, 1, 1), (0.5, 0.5, 0.7, 1 + 1e-9), (0, 0, 0, 1), (nan, 0, 1, 1)), first_pixel=0
    )
    assert (fractions.fractions, fractions.in_pixels) == (2, False)
    pixels.add_boxes(boxes((0, 0, 0.5, 0.5), (0, 0, 2, 1), (0, 0, 0.5, 0.5)), first_pixel=0)
    assert (pixels.fractions, pixels.in_pixels) == (0, True)
    for parts in ((fractions, pixels), (pixels, fractions)):
        total = SourceSamples()
        for part in parts:
            total.add(part)
        assert (total.fractions, total.in_pixels) == (0, True)


# The fingerprint of a set of inputs


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
IMAGES = st.lists(st.tuples(st.sampled_from(["train", "test"]), TEXT, st.integers(0, 2**40)))


def test_a_sum_of_digests() -> None:
    images = [("a", f"{number}.jpg", number) for number in range(20)]
    texts = [f"a\0{number}.jpg\0{number}" for number in range(20)]
    total = sum(int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in texts)
    together = add_fingerprints(*(fingerprint(*image) for image in images))
    assert together == f"{total % 2**256:064x}"
    assert add_fingerprints() == "0" * 64


@given(IMAGES, st.integers(0, 10), st.randoms())
def test_neither_order_nor_division_matters(
    images: list[tuple[str, str, int]], cut: int, shuffle: random.Random
) -> None:
    all_of_them = [fingerprint(*image) for image in images]
    shuffled = shuffle.sample(all_of_them, len(images))
    parts = (add_fingerprints(*shuffled[:cut]), add_fingerprints(*shuffled[cut:]))
    assert add_fingerprints(*parts) == add_fingerprints(*all_of_them)


@pytest.mark.parametrize(
    "others", [[("b", "a", 1)], [("a", "b", 1)], [("a", "a", 2)], [("a", "a", 1)] * 2, []]
)
def test_every_element_and_all_of_it_matter(others: list[tuple[str, str, int]]) -> None:
    assert add_fingerprints(*(fingerprint(*image) for image in others)) != fingerprint("a", "a", 1)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (file(size_bytes=0), True),
        (file(size_bytes=1), False),
        # In an archive.
        (ImageRef("a.zip", 0, "1", offset=9, whole=False), True),
        (ImageRef("a.zip", 2, "1", coding=Coding.DEFLATED, decoded_bytes=0), True),
        (ImageRef("a.zip", 2, "1", coding=Coding.DEFLATED, decoded_bytes=5), False),
        # It will be rejected for another reason.
        (ImageRef("a.zip", 0, "1", problem="it is encrypted"), False),
        # A program has not said how long its image is.
        (ImageRef("a", 0, ""), False),
        # Pixels, not files.
        (ImageRef("a", 0, "1", coding=Coding.CIFAR_PNG), False),
    ],
)
def test_an_empty_file_is_foreseen(image: ImageRef, expected: bool) -> None:
    counts = InputCounts()
    one = msgspec.structs.replace(record("train", examples=2), image=image)
    counts.samples.foreseen.add_record(one, split="train")
    merged = merge_inputs([counts, InputCounts(), counts]).samples.foreseen
    assert merged.rejects("train") == ({"zero_byte": 2} if expected else {})
    assert merged.rejects("test") == {}
    assert merged.examples == ({"train": 4} if expected else {})
    assert merged.first_empty == (("a", "a") if expected else ())
