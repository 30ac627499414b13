from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.decoding import convert_value
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.records import Category


def _categories(ids: Mapping[str, int | None], *, origin: str = "a.json") -> list[Category]:
    return [Category(name=name, source_id=key, origin=origin) for name, key in ids.items()]


def _map(
    *categories: Category, settings: LabelSettings | None = None, objects: bool = True
) -> LabelMap:
    return build_label_map(
        categories=categories, settings=settings or LabelSettings(), objects=objects
    )


@pytest.mark.parametrize(
    ("objects", "first_id", "expected"),
    [
        (True, None, {"ant": 1, "bee": 2}),
        (False, None, {"ant": 0, "bee": 1}),
        (True, 0, {"ant": 0, "bee": 1}),
        (False, 5, {"ant": 5, "bee": 6}),
    ],
)
@pytest.mark.parametrize("ids", ["source", "contiguous"])
def test_names_without_ids_are_numbered_in_sorted_order(
    objects: bool, first_id: int | None, expected: dict[str, int], ids: str
) -> None:
    settings = convert_value({"ids": ids, "first_id": first_id}, LabelSettings)

    label_map = _map(*_categories({"bee": None, "ant": None}), settings=settings, objects=objects)

    assert label_map.ids == expected


@pytest.mark.parametrize("label_id", [2**31, -(2**31) - 1])
def test_ids_that_a_label_map_cannot_hold_are_refused(label_id: int) -> None:
    other = label_id - 1 if label_id > 0 else label_id + 1
    assert _map(*_categories({"cat": other})).ids == {"cat": other}
    with pytest.raises(InputError, match=r"class 'cat' has id .*; set labels\.ids: contiguous"):
        _map(*_categories({"cat": label_id}))


_PETS = {"car": 3, "truck": 8, "dog": 5}
_VEHICLES = {"vehicle": ["truck", "car"]}


@pytest.mark.parametrize(
    ("declared", "settings", "ids"),
    [
        ([], LabelSettings(), {}),
        # Some of several sources, or files, may leave ids out.
        ([{"dog": 18}, {"dog": 18}], LabelSettings(), {"dog": 18}),
        # 0 is the background.
        ([{"cat": 0, "dog": 7}, {"dog": None}], LabelSettings(), {"cat": 1, "dog": 8}),
        ([{"cat": 0, "dog": 7}], LabelSettings(first_id=1), {"cat": 1, "dog": 8}),
        ([{"cat": 0, "dog": 7}], LabelSettings(first_id=0), {"cat": 0, "dog": 7}),
        # The declared classes alone decide, whichever of them are written.
        ([{"cat": 0, "dog": 7}], LabelSettings(exclude=["cat"]), {"dog": 8}),
        ([{"cat": 0, "dog": 7}], LabelSettings(include=["dog"], first_id=0), {"dog": 7}),
        # Contiguous ids keep the sources' order.
        (
            [{"zebra": 3, "ant": 90, "bee": 7}],
            LabelSettings(ids="contiguous"),
            {"zebra": 1, "bee": 2, "ant": 3},
        ),
        # Classes left out contradict nothing.
        ([{"cat": 3}, {"dog": None}], LabelSettings(exclude=["cat"]), {"dog": 1}),
        ([{"dog": 18, "cat": 1}, {"dog": 2}], LabelSettings(exclude=["dog"]), {"cat": 1}),
        ([_PETS], LabelSettings(include=["dog", "car"]), {"car": 3, "dog": 5}),
        ([_PETS], LabelSettings(exclude=["truck"]), {"car": 3, "dog": 5}),
        ([_PETS], LabelSettings(include=["dog", "car"], exclude=["car"]), {"dog": 5}),
        # A merged name takes the smallest id, and is what include and exclude name.
        ([_PETS], LabelSettings(merge=_VEHICLES), {"vehicle": 3, "dog": 5}),
        ([_PETS], LabelSettings(merge=_VEHICLES, include=["vehicle"]), {"vehicle": 3}),
        ([_PETS], LabelSettings(merge=_VEHICLES, exclude=["vehicle"]), {"dog": 5}),
        ([_PETS], LabelSettings(merge={"dog": ["truck"]}), {"car": 3, "dog": 5}),
        # Merging happens once.
        ([{"a": 1, "b": 2}], LabelSettings(merge={"a": ["b"], "c": ["a"]}), {"c": 1, "a": 2}),
        # Merging resolves ids that contradict each other.
        (
            [{"dog": 18}, {"dog": 2, "hound": 18}],
            LabelSettings(merge={"dog": ["hound", "dog"]}),
            {"dog": 2},
        ),
    ],
)
def test_ids_of_what_is_written(
    declared: list[dict[str, int | None]], settings: LabelSettings, ids: dict[str, int]
) -> None:
    categories = [
        category
        for file, names in enumerate(declared)
        for category in _categories(names, origin=f"{file}.json")
    ]

    label_map = _map(*categories, settings=settings)

    assert label_map.ids == ids
    for category in categories:
        written = settings.written_name(category.name)
        expected = written and (written, ids[written], written.encode())
        assert label_map.written.get(category.name) == expected


DUMMY = Category(name="pets", source_id=0, origin="a.json", is_background=True)
CAT, DOG = _categories({"cat": 1, "dog": 2})


@pytest.mark.parametrize(
    ("zero", "settings", "ids", "background"),
    [
        (DUMMY, LabelSettings(), {"cat": 1, "dog": 2}, ("pets",)),
        (DUMMY, LabelSettings(ids="contiguous"), {"cat": 1, "dog": 2}, ("pets",)),
        *(
            (Category(name=name, source_id=0), LabelSettings(), {"cat": 1, "dog": 2}, (name,))
            for name in ("background", "_background_", "__background__", "bg", "Background")
        ),
        # No other name, and no other id.
        (Category(name="pets", source_id=0), LabelSettings(), {"pets": 1, "cat": 2, "dog": 3}, ()),
        (
            Category(name="bg", source_id=3, is_background=True),
            LabelSettings(),
            {"cat": 1, "dog": 2, "bg": 3},
            (),
        ),
        # A category that the config names is a class.
        (
            DUMMY,
            LabelSettings(include=["dog", "pets"]),
            {"pets": 1, "dog": 3},
            (),
        ),
        (DUMMY, LabelSettings(merge={"pet": ["pets", "cat"]}), {"pet": 1, "dog": 3}, ()),
        (DUMMY, LabelSettings(first_id=0), {"pets": 0, "cat": 1, "dog": 2}, ()),
        (
            DUMMY,
            LabelSettings(first_id=0, ids="contiguous"),
            {"cat": 0, "dog": 1},
            ("pets",),
        ),
        # A class that the config leaves out is not background: its objects count as left out.
        (DUMMY, LabelSettings(exclude=["pets"]), {"cat": 1, "dog": 2}, ()),
        (DUMMY, LabelSettings(include=["dog"]), {"dog": 2}, ()),
        # A class may have the dummy's name.
        (
            Category(name="cat", source_id=0, is_background=True),
            LabelSettings(),
            {"cat": 1, "dog": 2},
            (),
        ),
    ],
)
def test_a_background_with_id_0_is_no_class_and_shifts_no_id(
    zero: Category, settings: LabelSettings, ids: dict[str, int], background: tuple[str, ...]
) -> None:
    label_map = _map(zero, CAT, DOG, settings=settings)

    assert (label_map.ids, label_map.background) == (ids, background)
    assert bool(label_map.shifted_by) == (ids.get("dog") == 3)
    assert background == () or zero.name not in label_map.written


def test_of_images_a_background_is_a_class_like_others() -> None:
    label_map = _map(DUMMY, CAT, DOG, objects=False)

    assert (label_map.ids, label_map.background) == ({"pets": 0, "cat": 1, "dog": 2}, ())


def test_one_file_that_knows_a_background_is_enough() -> None:
    other = msgspec.structs.replace(DUMMY, is_background=False, origin="b.json")

    assert _map(DUMMY, other, CAT).ids == _map(other, DUMMY, CAT).ids == {"cat": 1}


def test_settings_survive_pickling() -> None:
    settings = LabelSettings(merge={"insect": ["bee"]}, exclude=["cat"])
    settings.written_name("bee")

    arrived = pickle.loads(pickle.dumps(settings))

    assert arrived == settings
    assert arrived.written_name("bee") == "insect"
    assert arrived.written_name("cat") is None


# Errors


@pytest.mark.parametrize(
    ("categories", "parts"),
    [
        (
            [*_categories({"dog": 18}), *_categories({"cat": 18}, origin="b.json")],
            ["b.json", "a.json", "id 18", "'cat'", "'dog'", "labels.ids: contiguous", "merge"],
        ),
        (
            [*_categories({"dog": 18}), *_categories({"dog": 2}, origin="b.json")],
            ["b.json", "a.json", "'dog'", "id 18", "id 2", "labels.ids: contiguous"],
        ),
        (
            [Category(name="dog", source_id=key, origin="a.json") for key in (1, 2)],
            ["a.json", "'dog'", "id 1", "id 2"],
        ),
        (
            [*_categories({"dog": 18}), *_categories({"cat": None}, origin="names")],
            ["names", "'cat' has no id", "labels.ids: contiguous"],
        ),
    ],
    ids=["one id, two names", "one name, two ids", "the same in one file", "a name without id"],
)
def test_sources_that_contradict_each_other(
    categories: Sequence[Category], parts: Sequence[str]
) -> None:
    messages = set()
    for ordered in (categories, list(reversed(categories))):
        with pytest.raises(InputError) as raised:
            _map(*ordered)
        messages.add(str(raised.value))

    (message,) = messages
    for part in parts:
        assert part in message
    assert _map(*categories, settings=LabelSettings(ids="contiguous")).ids


def test_lists_of_keypoints_that_contradict_each_other() -> None:
    first, second = (
        Category(name="dog", source_id=7, origin=origin, keypoints=names)
        for origin, names in (("a.json", ("head", "tail")), ("b.json", ("nose", "tail")))
    )
    with pytest.raises(InputError, match=r"here and nose, tail in b\.json; name them alike"):
        _map(first, second)


@pytest.mark.parametrize(
    ("settings", "place", "problem"),
    [
        (LabelSettings(include=["dgo"]), "labels.include", "'dgo'; did you mean 'dog'?"),
        (LabelSettings(exclude=["Dog"]), "labels.exclude", "'Dog'; did you mean 'dog'?"),
        (LabelSettings(exclude=["zzz"]), "labels.exclude", "no class is named 'zzz'"),
        (
            LabelSettings(merge={"pet": ["dog", "cta"]}),
            "labels.merge.pet",
            "'cta'; did you mean 'cat'?",
        ),
        (LabelSettings(exclude=["cat", "dog"]), "labels.exclude", "no class is left"),
        (LabelSettings(first_id=0), "labels.first_id", "labels.ids: contiguous"),
    ],
)
def test_settings_that_do_not_fit(settings: LabelSettings, place: str, problem: str) -> None:
    with pytest.raises(InputError) as raised:
        _map(*_categories({"dog": 1, "cat": 2}), settings=settings)

    assert raised.value.place == place
    assert problem in raised.value.problem


def test_a_name_merged_into_two_is_refused() -> None:
    with pytest.raises(Problem, match=r"merge\.b: 'x' is merged into 'a' already"):
        LabelSettings(merge={"a": ["x"], "b": ["x"]})


def test_a_name_is_not_empty() -> None:
    with pytest.raises(InputError, match=r"class '': expected a name; labels\.merge"):
        _map(*_categories({"": 1}))

    assert _map(*_categories({"": 1}), settings=LabelSettings(merge={"ok": [""]})).ids == {"ok": 1}


# Any categories


_NAMES = st.sampled_from(["ant", "bee", "cat", "dog", "eel"])
_DECLARED = st.lists(
    st.builds(
        Category,
        name=_NAMES,
        source_id=st.none() | st.integers(0, 6),
        origin=st.sampled_from(["a.json", "b.json"]),
    ),
    max_size=8,
)


@st.composite
def _settings(draw: st.DrawFn, categories: Sequence[Category]) -> LabelSettings:
    names = sorted({category.name for category in categories})
    merged = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    written = sorted({"pet" if name in merged else name for name in names})
    some_written = st.lists(st.sampled_from(written), unique=True) if written else st.just([])
    return LabelSettings(
        merge={"pet": merged},
        include=draw(st.none() | some_written) or None,
        exclude=draw(some_written),
        ids=draw(st.sampled_from(["source", "contiguous"])),
        first_id=draw(st.none() | st.integers(0, 3)),
    )


def _map_or_error(
    categories: Sequence[Category], *, settings: LabelSettings, objects: bool
) -> LabelMap | str:
    try:
        return build_label_map(categories=categories, settings=settings, objects=objects)
    except InputError as error:
        return str(error)


@given(data=st.data(), objects=st.booleans())
def test_the_map_depends_on_no_order_and_no_two_names_share_an_id(
    data: st.DataObject, objects: bool
) -> None:
    categories = data.draw(_DECLARED)
    settings = data.draw(_settings(categories))
    shuffled = data.draw(st.permutations(categories + categories[:2]))
    label_map = _map_or_error(categories, settings=settings, objects=objects)

    assert _map_or_error(shuffled, settings=settings, objects=objects) == label_map
    if isinstance(label_map, str):
        return
    assert len(set(label_map.ids.values())) == len(label_map.ids)
    for category in categories:
        written = settings.written_name(category.name)
        expected = written and (written, label_map.ids[written], written.encode())
        assert label_map.written.get(category.name) == expected
    if settings.ids == "contiguous":
        first = settings.first_id if settings.first_id is not None else int(objects)
        assert sorted(label_map.ids.values()) == list(range(first, first + len(label_map.ids)))
    else:
        declared = {item.source_id for item in categories if item.name in label_map.names}
        # Ids of objects that begin with 0 are shifted by one.
        has_zero = any(item.source_id == 0 for item in categories)
        shift = int(objects and has_zero and settings.first_id != 0)
        expected_ids = {item + shift for item in declared if item is not None}
        assert declared <= {None} or set(label_map.ids.values()) <= expected_ids


def test_of_two_lists_of_keypoints_the_longer_counts() -> None:
    """Where a file does not name them, it has as many as its objects happen to have."""
    short, long = (
        Category(name="person", source_id=1, origin=origin, keypoints=names)
        for origin, names in (("a.json", ("k1", "k2")), ("b.json", ("k1", "k2", "k3")))
    )

    for categories in ([short, long], [long, short]):
        label_map = build_label_map(categories=categories, settings=LabelSettings(), objects=True)
        assert label_map.keypoints == ("k1", "k2", "k3")
        assert label_map.keypoint_columns == {"person": (0, 1, 2)}
