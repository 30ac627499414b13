from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.counts import count_all
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.collectors import base, statistics
from shardbeam.transforms.dataset.collectors import objects as objects_module
from shardbeam.transforms.dataset.collectors.base import (
    NO_ITEM,
    STATISTICS_VERSION,
    Item,
    ShardFacts,
)
from shardbeam.transforms.dataset.collectors.collect import COUNTING, ShardCollectors
from shardbeam.transforms.dataset.collectors.grids import GRIDS, read_grid
from shardbeam.transforms.dataset.collectors.objects import ObjectsCollector
from shardbeam.transforms.dataset.collectors.statistics import (
    BINS,
    CountedStatistics,
    Statistics,
    keep_largest_grids,
    merge_counted,
    merge_statistics,
    most_frequent_pairs,
)
from shardbeam.transforms.dataset.findings import find_missing_classes, find_rare_classes
from shardbeam.transforms.dataset.statistics_file import encode_statistics, read_statistics
from shardbeam.transforms.examples.features import FeatureKind, FeatureSpec
from tests.support.structs import fields

Values = dict[str, list[Any]]


def image(width: int = 100, height: int = 50) -> Values:
    return {"image/format": [b"jpeg"], "image/width": [width], "image/height": [height]}


def objects(*boxes: tuple[bytes, float, float, float, float], **more: list[Any]) -> Values:
    """Objects: class, xmin, ymin, xmax, ymax."""
    sides = {
        f"image/object/bbox/{side}": [box[place] for box in boxes]
        for place, side in enumerate(("xmin", "ymin", "xmax", "ymax"), start=1)
    }
    keys = {f"image/object/{key.replace('__', '/')}": values for key, values in more.items()}
    return {"image/object/class/text": [box[0] for box in boxes], **sides, **keys}


def item(values: Values, *, num_bytes: int = 900, image_bytes: int = 700) -> Item:
    return NO_ITEM._replace(values=values, length=num_bytes, image_bytes=image_bytes)


def count(*examples: Values, num_bytes: int = 900, image_bytes: int = 700) -> Statistics:
    facts = ShardFacts(map_names={1: "cat", 7: "sky", 9: "255"})
    collectors = ShardCollectors(facts, kinds=COUNTING)
    for values in examples:
        collectors.add(item(values, num_bytes=num_bytes, image_bytes=image_bytes))
    return collectors.statistics()


def counted(found: Statistics) -> dict[str, Any]:
    """Returns the statistics of annotations, without those of images, and without grids."""
    nothing = msgspec.structs.asdict(Statistics())
    of_images = msgspec.structs.asdict(count(image(), image()))
    return {
        name: value
        for name, value in msgspec.structs.asdict(found).items()
        if value != nothing[name]
        and name not in GRIDS
        and (name == "unannotated" or of_images[name] == nothing[name])
    }


def test_nothing() -> None:
    assert count() == merge_statistics([]) == Statistics()


def test_images() -> None:
    found = count(
        image(640, 480), image(480, 640), image(64, 64), {**image(64, 63), "image/format": [b"png"]}
    )

    expected = {
        "examples": 4,
        "num_bytes": 3600,
        "example_bytes": {"0": 4},
        "images": 4,
        "image_bytes": 2800,
        "formats": {"jpeg": 3, "png": 1},
        "width_range": (64, 640),
        "height_range": (63, 640),
        "widths": {"512": 1, "384": 1, "64": 2},
        "heights": {"384": 1, "512": 1, "64": 1, "48": 1},
        "aspects": {"1001": 2, "707": 1, "1000": 1},
        "unannotated": 4,
    }
    assert fields(found, *expected) == expected


def test_an_example_without_an_image_is_no_image() -> None:
    found = count({"image/class/text": [b"cat"]}, {}, image_bytes=0, num_bytes=1000)

    expected = {
        **{"examples": 2, "num_bytes": 2000, "example_bytes": {"1000": 2}},
        **{"labels": 1, "images_by_class": {"cat": 1}},
        **{"images": 0, "image_bytes": 0, "formats": {}, "widths": {}, "unannotated": 0},
    }
    assert fields(found, *expected) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            {"image/class/text": [b"cat", b"dog"]},
            {
                "labels": 2,
                "images_by_class": {"cat": 1, "dog": 1},
                "pairs": 1,
                "count_of_pairs": {"cat": {"dog": 1}},
            },
            id="labels",
        ),
        pytest.param(
            objects(
                (b"dog", 0.0, 0.0, 0.5, 0.5),
                (b"cat", 0.0, 0.0, 1.0, 1.0),
                (b"dog", 0.5, 0.5, 0.6, 0.6),
                area=[1023.0, 1024.0, 9216.0],
                is_crowd=[0, 1, 0],
            ),
            {
                "objects": 3,
                "crowds": 1,
                "images_by_class": {"cat": 1, "dog": 1},
                "objects_by_class": {"cat": 1, "dog": 2},
                "objects_per_image": {"3": 1},
                "images_by_objects": {"3": 1},
                "object_areas": {"small": 1, "medium": 1, "large": 1},
                "areas": {"341": 1, "1024": 1, "9216": 1},
                # 25 %, 100 %, 1 %
                "relative_areas": {"200000": 1, "500000": 1, "10000": 1},
                "images_by_finding": {"large_box": 1},
                "objects_by_finding": {"large_box": {"cat": 1}},
                "pairs": 1,
                "count_of_pairs": {"cat": {"dog": 1}},
            },
            id="objects",
        ),
        pytest.param(
            objects(),
            {"unannotated": 1, "objects_per_image": {"0": 1}, "images_by_objects": {"0": 1}},
            id="no objects",
        ),
        pytest.param(
            # 50 x 25 pixels, as no area is said.
            objects((b"a", 0.0, 0.0, 0.5, 0.5)),
            {
                "objects": 1,
                "images_by_class": {"a": 1},
                "objects_by_class": {"a": 1},
                "objects_per_image": {"1": 1},
                "images_by_objects": {"1": 1},
                "object_areas": {"medium": 1},
                "areas": {"1024": 1},
                "relative_areas": {"200000": 1},
            },
            id="objects without areas",
        ),
        pytest.param(
            {
                "annotation/class/text": [b"a"],
                "annotation/bbox": [10.0, 10.0, 20.0, 25.0],
                "annotation/area": [400.0],
                "annotation/is_crowd": [1],
                "annotation/mask/area": [50],
            },
            {
                "objects": 1,
                "crowds": 1,
                "images_by_class": {"a": 1},
                "objects_by_class": {"a": 1},
                "objects_per_image": {"1": 1},
                "images_by_objects": {"1": 1},
                "object_areas": {"small": 1},
                "areas": {"341": 1},
                "relative_areas": {"100000": 1},
                "masks": 1,
                "mask_areas": {"10000": 1},
            },
            id="an object's own Example",
        ),
        pytest.param(
            objects(
                (b"a", 0.0, 0.0, 0.1, 0.1),
                (b"a", 0.0, 0.0, 0.1, 0.1),
                keypoint__text=[b"nose", b"tail"] * 2,
                keypoint__visibility=[2, 0, 1, 0],
                mask__area=[0, 5000],
            ),
            {
                "objects": 2,
                "images_by_class": {"a": 1},
                "objects_by_class": {"a": 2},
                "objects_per_image": {"2": 1},
                "images_by_objects": {"2": 1},
                "object_areas": {"small": 2},
                "areas": {"38": 2},
                "relative_areas": {"10000": 2},
                "images_by_finding": {"duplicate_box": 1},
                "objects_by_finding": {"duplicate_box": {"a": 1}},
                "keypoints": {"nose": {"1": 1, "2": 1}, "tail": {"0": 2}},
                "masks": 2,
                "empty_masks": 1,
                "mask_areas": {"500000": 1},
            },
            id="keypoints and masks",
        ),
        pytest.param(
            {"image/caption": [b"A cat.", "Füße".encode(), b""]},
            {
                "captions": 3,
                "caption_words": {"0": 1, "1": 1, "2": 1},
                "caption_characters": {"0": 1, "4": 1, "6": 1},
            },
            id="captions",
        ),
        pytest.param({"image/segmentation/class/encoded": [b"png"]}, {}, id="a map"),
        pytest.param(
            {
                "image/segmentation/class/encoded": [b"png"],
                "image/segmentation/class/pixels": [(0, 5), (7, 4988), (9, 2), (255, 5)],
            },
            {
                "images_by_class": {"255": 1, "sky": 1},
                "pairs": 1,
                "count_of_pairs": {"255": {"sky": 1}},
                "pixels_by_class": {"0": 5, "sky": 4988, "255": 7},
            },
            id="pixels of a map",
        ),
    ],
)
def test_annotations(values: Values, expected: Mapping[str, Any]) -> None:
    assert counted(count({**image(), **values})) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        pytest.param(
            objects((b"a", 0.0, 0.0, float("nan"), 1.0), area=[float("nan")]),
            {"object_areas": {"small": 1}, "relative_areas": {"0": 1}},
            id="no number",
        ),
        pytest.param(
            objects((b"a", 1.0, 1.0, 0.0, 3e38), area=[-1.0]),
            {"object_areas": {"small": 1}, "relative_areas": {"0": 1}},
            id="a box inside out",
        ),
        pytest.param(
            objects((b"a", 0.0, 0.0, 3e38, 3e38), area=[1e300]),
            {"object_areas": {"large": 1}, "relative_areas": {"500000": 1}},
            id="beyond the image",
        ),
        pytest.param(
            {**objects((b"a", 0.0, 0.0, 1.0, 1.0)), "image/object/class/text": []},
            {"objects_by_class": {"": 1}},
            id="a box without a name",
        ),
        pytest.param(
            {**objects((b"a", 0.0, 0.0, 1.0, 1.0)), "image/object/bbox/ymax": []},
            {"objects": 1, "relative_areas": {"0": 1}},
            id="half a box",
        ),
        pytest.param(
            {"annotation/bbox": [1.0]},
            {"objects": 1, "objects_by_class": {"": 1}, "relative_areas": {"0": 1}},
            id="a quarter of a box",
        ),
        pytest.param(
            {"annotation/bbox": [0.0, 0.0, 9.0, 9.0], "image/width": [0]},
            {"objects": 1, "relative_areas": {"0": 1}, "object_areas": {"small": 1}},
            id="a box in an image without width",
        ),
        pytest.param(
            {**objects((b"a", 0, 0, 1, 1)), "image/object/keypoint/visibility": [-7]},
            {"keypoints": {"": {"-7": 1}}},
            id="keypoints without names",
        ),
        pytest.param(
            {"image/class/text": [b"\xff\xfe"]},
            {"images_by_class": {"\\xff\\xfe": 1}},
            id="a name that is no text",
        ),
        pytest.param(
            {"image/width": [-5], "image/height": [0]},
            {"widths": {"0": 1}, "heights": {"0": 1}, "aspects": {"0": 1}},
            id="no size",
        ),
    ],
)
def test_what_others_may_write(values: Values, expected: Mapping[str, Any]) -> None:
    found = msgspec.structs.asdict(count({**image(), **values}))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("bounds", BINS.values(), ids=BINS)
def test_bins_rise_from_zero(bounds: tuple[int, ...]) -> None:
    assert bounds[0] == 0
    assert all(one < other for one, other in itertools.pairwise(bounds))


def test_other_bins_are_another_version() -> None:
    """Statistics of one version add up, also with those of shards that older runs have written."""
    digest = hashlib.sha256(msgspec.json.encode(BINS, order="sorted")).hexdigest()[:16]
    assert (STATISTICS_VERSION, digest) == (4, "f359b9fc4e0750d1")


@pytest.mark.parametrize(
    ("width", "expected"),
    [(31, "0"), (32, "32"), (47, "32"), (63, "48"), (8191, "6144"), (9999, "8192")],
)
def test_a_bin_begins_with_its_bound(width: int, expected: str) -> None:
    assert count(image(width)).widths == {expected: 1}


names = st.sampled_from([b"cat", b"dog", b"emu", b"fox", b"gnu"])
shares = st.floats(0, 1, width=32)
boxes = st.lists(st.tuples(names, shares, shares, shares, shares), max_size=4)
examples = st.builds(
    lambda size, labels, boxes, captions, texts: {
        **image(*size),
        **objects(*boxes),
        "image/class/text": labels,
        "image/caption": captions,
    },
    st.tuples(st.integers(1, 9000), st.integers(1, 9000)),
    st.lists(names, unique=True, max_size=5),
    boxes,
    st.lists(st.binary(max_size=20), max_size=2),
    st.dictionaries(
        st.sampled_from(["camera", "weather", "id"]),
        st.lists(st.sampled_from([b"", b"a", b"b", b"c", b"\xff", b"x" * 65]), max_size=2),
    ),
)
parts = st.lists(st.lists(examples, max_size=5), max_size=5)


@given(parts=parts, max_pairs=st.integers(1, 12), folded=st.integers(1, 5), data=st.data())
def test_parts_add_up_in_any_order_and_grouping(
    parts: list[list[Values]], max_pairs: int, folded: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(parts))
    cut = data.draw(st.integers(0, len(parts)))
    with (
        mock.patch.object(base, "MAX_PAIRS", max_pairs),
        mock.patch.object(base, "MAX_FACET_VALUES", max_pairs % 3 + 1),
        mock.patch.object(base, "MAX_FACETS", max_pairs % 2 + 2),
        mock.patch.object(statistics, "MAX_COLLECTED", folded),
        mock.patch.object(objects_module, "MAX_COLLECTED", folded),
        mock.patch.object(objects_module, "_MAX_OBJECTS", 3 * folded),
    ):
        whole = count(*itertools.chain.from_iterable(parts))
        counted_parts = [count(*part) for part in shuffled]
        assert merge_statistics(counted_parts) == whole
        halves = counted_parts[:cut], counted_parts[cut:]
        assert merge_statistics(map(merge_statistics, halves)) == whole


def place(bounds: Sequence[int], share: float) -> int:
    return max(0, sum(bound / 1_000_000 <= share for bound in bounds) - 1)


@given(drawn=boxes)
def test_boxes_are_counted_where_they_are(
    drawn: list[tuple[bytes, float, float, float, float]],
) -> None:
    found = count({**image(), **objects(*drawn)}, {**image(), **objects(*drawn[:1])})
    expected: dict[str, dict[str, Counter[int]]] = {"box_centres": {}, "box_sizes": {}}
    for name, xmin, ymin, xmax, ymax in drawn + drawn[:1]:
        at = {
            "box_centres": ((xmin + xmax) / 2, (ymin + ymax) / 2),
            "box_sizes": (xmax - xmin, ymax - ymin),
        }
        for field, (x, y) in at.items():
            cell = 16 * place(BINS[field], y) + place(BINS[field], x)
            expected[field].setdefault(name.decode(), Counter())[cell] += 1
    for field, by_class in expected.items():
        grids = getattr(found, f"{field}_by_class")
        assert {
            name: {cell: each for cell, each in enumerate(read_grid(grid)) if each}
            for name, grid in grids.items()
        } == by_class
        whole = sum(by_class.values(), Counter())
        assert list(read_grid(getattr(found, field))) == [whole[cell] for cell in range(256)]


def test_finished_statistics_have_grids_of_the_largest_classes() -> None:
    names = [b"%03d" % number for number in range(60)]
    split = count(objects(*((name, 0, 0, 1, 1) for name in (*names, *names[:40]))))
    other = count(objects(*((name, 0, 0, 1, 1) for name in names[50:] * 4)))
    kept = keep_largest_grids({"train": split, "test": other})
    largest = [*range(50, 60), *range(40)]
    assert [int(name) for name in kept["train"].box_sizes_by_class] == largest
    assert [int(name) for name in kept["test"].box_centres_by_class] == largest[:10]
    assert kept["train"].box_sizes == split.box_sizes


@pytest.mark.parametrize(
    ("values", "facets", "left_out"),
    [
        ([[b"a"], [b"b"], [b"a"], [], [b""]], {"a": 2, "b": 1}, 0),
        ([[b"x" * 64]], {"x" * 64: 1}, 0),
        ([[b"x" * 65], [b"a"], [b"a"]], None, 3),
        ([[b"a"], [b"\xff"]], None, 2),
        ([[b"a"], [b"b", b"c"]], None, 2),
        ([[b"a"], [b"b", b"b"]], {"a": 1, "b": 1}, 0),
        ([[b"%d" % number] for number in range(50)], dict.fromkeys(map(str, range(50)), 1), 0),
        ([[b"%d" % number] for number in range(51)], None, 51),
        ([[1], [2.5]], None, 0),
        ([["a"]], None, 0),
    ],
)
def test_facets_are_few_short_texts(
    values: list[list[Any]], facets: Mapping[str, int] | None, left_out: int
) -> None:
    found = count(*({"camera": each, "image/camera": each} for each in values))
    assert found.facets == ({"camera": facets} if facets else {})
    assert found.facets_left_out == ({"camera": left_out} if left_out else {})


@given(examples=st.lists(examples, max_size=8), max_pairs=st.integers(1, 12))
def test_pairs_that_are_kept_have_their_exact_counts(
    examples: list[Values], max_pairs: int
) -> None:
    every = count(*examples)
    with mock.patch.object(base, "MAX_PAIRS", max_pairs):
        kept = merge_statistics([count(example) for example in examples])
    all_pairs = {(one, other): number for one, other, number in most_frequent_pairs(every)}
    kept_pairs = {(one, other): number for one, other, number in most_frequent_pairs(kept)}

    assert len(kept_pairs) == min(max_pairs, len(all_pairs))
    assert kept_pairs.items() <= all_pairs.items()
    assert kept.pairs == every.pairs == sum(all_pairs.values())


def test_merging_leaves_the_parts_as_they_are() -> None:
    part = count({**image(), **objects((b"a", 0, 0, 1, 1)), "image/class/text": [b"b"]})
    before = msgspec.json.encode(part)

    merge_statistics([part, part])

    assert msgspec.json.encode(part) == before


def test_an_image_of_many_classes_is_paired_by_the_first() -> None:
    classes = [b"%03d" % number for number in range(150)]
    found = count({**image(), "image/class/text": classes})

    assert found.pairs == 150 * 149 // 2
    assert sum(map(len, found.count_of_pairs.values())) == 100 * 99 // 2
    assert set(found.count_of_pairs) == {f"{number:03d}" for number in range(99)}


def test_the_file_is_deterministic_and_read_as_it_was_written(tmp_path: Path) -> None:
    one = count({**image(), "image/class/text": [b"b", b"a"]}, image(9, 9))
    other = count(image(9, 9), {**image(), "image/class/text": [b"a", b"b"]})
    data = encode_statistics({"train": one, "test": Statistics()})

    assert data == encode_statistics({"test": Statistics(), "train": other})
    (tmp_path / "statistics.json").write_bytes(data)
    assert read_statistics(str(tmp_path)) == {"train": one, "test": Statistics()}
    document = JsonDecoder().decode(data)
    assert set(document["bins"]) == set(BINS)
    assert set(document["splits"]["test"]) == set(Statistics.__struct_fields__)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"version": %d}', "Object missing required field `splits`"),
        (b'{"version": %d, "splits": {"train": {"images": "x"}}}', "Expected `int`, got `str`"),
        (b'{"version": %d, "splits": {"\xff": {}}}', "'utf-8' codec can't decode"),
    ],
)
def test_damage_is_named(data: bytes, problem: str, tmp_path: Path) -> None:
    data = data.replace(b"%d", b"%d" % STATISTICS_VERSION)
    (tmp_path / "statistics.json").write_bytes(data)
    with pytest.raises(InputError) as caught:
        read_statistics(str(tmp_path))
    uri = f"{tmp_path}/statistics.json"
    assert str(caught.value).startswith(f"{uri}: not the statistics of a dataset: {problem}")
    assert str(caught.value).endswith("the dataset is damaged; check it with `shardbeam verify`")


@pytest.mark.parametrize(
    ("field", "value", "place", "problem"),
    [
        ("images", -1, "", "the count is negative"),
        ("objects_by_class", {"a": 10**400}, "['a']", "the count is too large"),
        ("count_of_pairs", {"a": {"\n": -1}}, r"['a']['\n']", "the count is negative"),
        ("width_range", [1, -1], "", "the count is negative"),
        ("box_sizes", "256:1", "", "the cell 256 is twice there, not in order, or not in the grid"),
        ("box_sizes_by_class", {"a": "1:2 1:2"}, "['a']", "the cell 1 is twice there"),
        ("box_centres", "1:-2", "", "not a grid of cells and counts"),
        ("box_centres", "1:9223372036854775808", "", "the count is too large"),
        ("images_by_objects", {"²": 1}, "['²']", "the key is not a number of objects"),
        ("images_by_objects", {"9" * 5000: 1}, f"['{'9' * 100}']", "the key is not a number of"),
    ],
)
def test_entries_that_cannot_be_are_named(
    field: str, value: object, place: str, problem: str, tmp_path: Path
) -> None:
    document = {"version": STATISTICS_VERSION, "splits": {"train": {field: value}}}
    (tmp_path / "statistics.json").write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_statistics(str(tmp_path))
    uri = f"{tmp_path}/statistics.json"
    assert str(caught.value).startswith(f"{uri}: $.splits['train'].{field}{place}: {problem}")


def test_entries_that_count_nothing_are_left_out(tmp_path: Path) -> None:
    found = Statistics(objects_by_class={"a": 0, "b": 1}, count_of_pairs={"a": {"b": 0}})
    (tmp_path / "statistics.json").write_bytes(encode_statistics({"train": found}))
    assert read_statistics(str(tmp_path)) == {"train": Statistics(objects_by_class={"b": 1})}


def test_none_or_of_another_version_is_none(tmp_path: Path) -> None:
    assert read_statistics(str(tmp_path)) is None
    (tmp_path / "statistics.json").write_bytes(b'{"version": 99, "splits": 1}')
    assert read_statistics(str(tmp_path)) is None


def split(images: Mapping[str, int], objects: Mapping[str, int] = {}) -> Statistics:
    return Statistics(
        examples=sum(images.values()), images_by_class=dict(images), objects_by_class=dict(objects)
    )


@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        pytest.param({}, [], id="nothing"),
        pytest.param({"train": split({"a": 9, "b": 9})}, [], id="even"),
        pytest.param(
            {"train": split({"a": 9, "b": 9}), "test": Statistics()}, [], id="no annotations"
        ),
        pytest.param(
            {"validation": split({"a": 99, "c": 9}), "train": split({"a": 9, "b": 9})},
            [
                "in 'validation' and not in 'train': 1 class: c",
                "in 'train' and not in 'validation': 1 class: b",
            ],
            id="in one split",
        ),
        pytest.param(
            {"small": split({"a": 1}), "large": split({f"{n:02d}": 9 for n in range(12)})},
            [
                "in 'small' and not in 'large': 1 class: a",
                "in 'large' and not in 'small': 12 classes: 00, 01, 02, 03, 04, 05, 06, 07, 08, "
                "09 and 2 more",
            ],
            id="no train",
        ),
        pytest.param(
            {"train": split({"a": 100, "b": 100, "c": 2})},
            ["rare in 'train', at most 1/50 of the median class's 100 images: 1 class: c (2)"],
            id="rare",
        ),
        pytest.param({"train": split({"a": 100, "b": 100, "c": 3})}, [], id="not rare"),
        pytest.param(
            {"train": split({"a": 2, "b": 2, "c": 2}, {"a": 5000, "b": 5001, "c": 100})},
            ["rare in 'train', at most 1/50 of the median class's 5,000 objects: 1 class: c (100)"],
            id="rare objects",
        ),
    ],
)
def test_imbalances(splits: Mapping[str, Statistics], expected: list[str]) -> None:
    missing = [line for _, line in find_missing_classes(splits)]
    assert [*missing, *find_rare_classes(splits)] == expected


def test_extra_keys_of_other_types_are_not_counted() -> None:
    """A column of a table may have the name of any key."""
    extras = [
        FeatureSpec("image/caption", FeatureKind.INT64, repeated=True),
        FeatureSpec("image/object/mask/area", FeatureKind.BYTES, repeated=True),
        FeatureSpec("image/class/text", FeatureKind.BYTES, repeated=True),
    ]
    collectors = ShardCollectors(ShardFacts(extras=tuple(extras)), kinds=COUNTING)
    values: Values = {
        "image/caption": [3],
        "image/object/mask/area": [b"x"],
        "image/class/text": [b"cat"],
    }
    collectors.add(item(values, image_bytes=0))

    found = collectors.statistics()
    assert (found.captions, found.masks, found.images_by_class) == (0, 0, {"cat": 1})


@pytest.mark.parametrize("folded", [1, 2, 3, 99])
def test_findings_of_an_image_with_several_examples(folded: int) -> None:
    """An image counts once, also if its Examples are not added up together."""
    whole = objects((b"cat", 0.0, 0.0, 1.0, 1.0))
    twice = objects((b"cat", 0.0, 0.0, 0.5, 0.5), (b"dog", 0.0, 0.0, 0.5, 0.5))
    nearly_whole = objects((b"dog", 0.0, 0.0, 0.95, 1.0))
    collector = ObjectsCollector(ShardFacts())
    with mock.patch.object(objects_module, "MAX_COLLECTED", folded):
        for values, is_first in (
            (whole, True),
            (nearly_whole, False),
            ({}, True),
            (twice, True),
            (nearly_whole, True),
        ):
            known = {"dark_picture": 200} if values is twice else {}
            collector.add(item(values)._replace(known=known, is_first=is_first))
        found = collector.finish()
    assert [
        {each["kind"]: each["strength"] for each in findings}
        for findings in collector.columns["findings"]
    ] == [
        {"large_box": 1_000_000},
        {"large_box": 949_999},
        {},
        {"dark_picture": 200, "same_box": 1_000_000},
        {"large_box": 949_999},
    ]
    assert found.images_by_finding == {"large_box": 2, "dark_picture": 1, "same_box": 1}
    assert found.objects_by_finding == {"large_box": {"cat": 1, "dog": 2}}
    assert found.same_boxes == {"cat": {"dog": 1}}


def test_counted_statistics_count_their_shards() -> None:
    """Otherwise the gate could not see that a runner lost a shard."""
    counts = [count_all([shard]) for shard in (b"0", b"1", b"2")]
    parts = [CountedStatistics(Statistics(), shards=count) for count in counts]
    merged = merge_counted([merge_counted(parts[:2]), *parts[2:]])
    assert merged.shards == count_all([b"2", b"1", b"0"])
