"""What the values of a source's maps mean, by its first maps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.records import ImageRef, MaskValues
from shardbeam.transforms.formats import mask_values
from shardbeam.transforms.formats.mask_values import (
    FirstMaps,
    MaskReading,
    check_mask_keys,
    decide_mask_values,
    given_values,
    read_first_maps,
)
from shardbeam.transforms.formats.parsing.root_files import RootFiles
from shardbeam.transforms.storage.image_bytes import read_bytes
from tests.support.example_builders import write_png

BINARY = MaskValues(((0, 0), (255, 1)))
BLURRED = MaskValues(((0, 0), (255, 1)), is_cut=True)
IDS = MaskValues()
# 16 values between black and white, on 16 of 1,000 pixels.
BORDER = dict.fromkeys((*range(1, 9), 13, 21, 34, 55, 89, 144, 200, 233), 1)


def decide(
    counts: dict[int, int], *, declared: Collection[int] = (), number: int = 3
) -> MaskReading:
    maps = FirstMaps(number, "a.png", counts)
    return decide_mask_values(maps, declared=lambda: declared, classes={})


@pytest.mark.parametrize(
    ("counts", "declared", "expected"),
    [
        ({0: 900, 255: 100}, (), BINARY),
        ({0: 900, 255: 100}, (1,), BINARY),
        ({0: 900, 255: 100}, (7,), MaskValues(((0, 0), (255, 7)))),
        ({0: 884, **BORDER, 255: 100}, (), BLURRED),
        # Not where the source declares an id 0, several classes, or one that no map can hold.
        ({0: 900, 255: 100}, (0,), IDS),
        ({0: 900, 255: 100}, (1, 2), IDS),
        ({0: 900, 255: 100}, (255,), IDS),
        ({0: 884, **BORDER, 255: 100}, (1, 2), IDS),
        ({0: 851, **BORDER, 100: 33, 255: 100}, (), BLURRED),
        # Class ids.
        ({0: 900, 1: 50, 255: 50}, (), IDS),
        ({0: 900, 1: 50, 2: 50}, (), IDS),
        ({0: 900, 10: 50, 19: 50}, (), IDS),
        ({0: 900, 5: 50, 10: 50}, (), IDS),
        ({0: 900, 126: 50}, (), IDS),
        ({0: 900, 100: 50, 255: 50}, (), IDS),
        ({0: 900, 300: 50, 310: 50}, (), IDS),
        # Steps that are ids.
        ({0: 900, 50: 50, 100: 50}, (50, 100, 101), IDS),
        ({0: 900, 128: 50, 255: 50}, (128,), IDS),
        # Nothing says what 255 means.
        ({0: 900}, (), IDS),
        ({255: 900}, (), IDS),
        ({}, (), IDS),
    ],
)
def test_the_values_of_all_maps_together_decide(
    counts: dict[int, int], declared: Collection[int], expected: MaskValues
) -> None:
    assert decide(counts, declared=declared).values == expected


@pytest.mark.parametrize(
    "values",
    [
        *([0, 128, 255], [0, 127, 254], [0, 127, 255], [0, 85, 170], [0, 85, 255], [0, 128]),
        *([0, 36, 73, 109, 146, 182, 219, 255], [0, 10, 20], [0, 65535], [50, 100], [127]),
        [0, 64, 128, 191, 255],
    ],
)
def test_steps_of_gray_are_an_error_that_names_the_key(values: Sequence[int]) -> None:
    with pytest.raises(Problem, match=r"the first 3 maps \(from a.png\)") as caught:
        decide(dict.fromkeys(values, 10), declared=[1, 2])
    assert caught.value.path == ("mask_values",)
    nonzero = [value for value in values if value]
    assert f"mask_values: {{{nonzero[0]}: 1" in str(caught.value.text)
    assert ("255: ignore" in caught.value.text) == (255 in values)


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        # 255 is most of what is labelled.
        (
            {0: 900, 3: 20, 4: 20, 255: 60},
            "mask_values: {3: 3, 4: 4, 255: 1} or {..., 255: ignore}",
        ),
        ({0: 900, 1: 20, 255: 60}, "75% of what is labelled, beside the values 1:"),
        # Borders of fewer than 16 values, or on 5 % of the pixels.
        ({0: 885, **dict(list(BORDER.items())[1:]), 255: 100}, "89: 89"),
        ({0: 850, **BORDER, 100: 34, 255: 100}, "or for blurred borders {0-127: 0, 128-255: 1}"),
        # Values beyond 8 bits.
        ({0: 900, 1000: 20, 1203: 20}, "values up to 1203, which are no class ids of 8 bits"),
    ],
)
def test_values_of_several_meanings_are_asked_about(counts: dict[int, int], text: str) -> None:
    with pytest.raises(Problem, match=r"the first 3 maps \(from a.png\)") as caught:
        decide(counts)
    assert caught.value.path == ("mask_values",)
    assert text in caught.value.text


@pytest.mark.parametrize(
    ("counts", "declared"),
    [
        # 255 is half of what is labelled, and less.
        ({0: 900, 1: 60, 255: 60}, ()),
        ({0: 900, 1: 60, 255: 30}, ()),
        # What is 0 is labelled, too.
        ({0: 900, 1: 20, 255: 60}, (0, 1)),
        # One large value may be for pixels to ignore, and several may be ids.
        ({0: 900, 1: 20, 65535: 20}, ()),
        ({0: 900, 1000: 20, 1203: 20}, (1000, 1203)),
        ({0: 900, 300: 20, 310: 20}, ()),
    ],
)
def test_values_that_are_not_asked_about(counts: dict[int, int], declared: Collection[int]) -> None:
    assert decide(counts, declared=declared).values == IDS


SOFT = {0: 500, 255: 100, **dict.fromkeys(range(60, 160), 5)}


def test_soft_masks_are_asked_about() -> None:
    def decide_soft(
        counts: dict[int, int],
        *,
        black_and_white: int = 2,
        declared: Collection[int] = (),
        classes: dict[str, int] | None = None,
    ) -> MaskReading:
        maps = FirstMaps(3, "a.png", counts, black_and_white)
        return decide_mask_values(maps, declared=lambda: declared, classes=classes or {})

    with pytest.raises(Problem) as caught:
        decide_soft(SOFT)
    assert "mask_values: {0-127: 0, 128-255: 1}" in caught.value.text
    fewer = {value: count for value, count in SOFT.items() if value != 60}
    for reading in (
        decide_soft(fewer),
        decide_soft({**SOFT, 0: 300}),
        decide_soft(SOFT, black_and_white=1),
        decide_soft(SOFT, declared=(1, 2)),
        decide_soft(SOFT, classes={"sky": 1}),
    ):
        assert reading.values == IDS


def test_the_hint_names_the_ids_that_occur() -> None:
    counts = {0: 900, 3: 30, 121: 30, 255: 10}
    palette = {121: (64, 0, 128)}
    maps = FirstMaps(3, "a.png", counts, palette=palette)
    reading = decide_mask_values(maps, declared=tuple, classes={})
    assert reading.naming == ("{3: NAME, 121: NAME} (id 121 is the colour (64, 0, 128))")
    # Colours are no steps of gray.
    maps = FirstMaps(3, "a.png", {0: 9, 12: 9, 49: 9}, palette={12: (64, 0, 128), 49: (0, 0, 9)})
    assert decide_mask_values(maps, declared=tuple, classes={}).values == IDS
    assert given_values({"128": 7, "255": "ignore"}).naming == "{7: NAME}"


def test_what_is_decided_is_said() -> None:
    for counts, declared, said in (
        ({0: 9, 255: 1}, (), "255 is class 1; name it with mask_classes: {1: NAME}"),
        ({0: 9, 255: 1}, (4,), "255 is class 4"),
        ({0: 9, 255: 1}, (0, 1), "a class with the id 0: 255 means: ignore these pixels"),
        ({0: 9, 255: 1}, (1, 2), "declares 2 classes: 255 means: ignore these pixels"),
        ({0: 884, **BORDER, 255: 100}, (), "values from 128 on count as 255"),
    ):
        assert said in decide(counts, declared=declared).said
    assert decide({0: 9, 1: 1, 255: 1}).said == ""
    # Few maps may all be of the background.
    assert decide({0: 9}).said == ""
    assert "are all 0" in decide({0: 9}, number=50).said


def test_the_key_says_what_values_mean() -> None:
    ids = ((0, 0), (128, 1), (255, None))
    assert given_values({"255": "ignore", "128": 1}).values == MaskValues(ids)
    assert given_values({"0": "ignore", "255": 0}).values == MaskValues(((0, None), (255, 0)))


def test_ranges_of_values_say_what_values_mean() -> None:
    assert given_values({"0-127": 0, "128-255": 1}).values == MaskValues(
        ((0, 0), (128, 1), (256, -1)), is_cut=True
    )
    # 0 is the background, and 1 to 99 have no meaning.
    assert given_values({"100-254": "ignore", "255": 2}).values == MaskValues(
        ((0, 0), (1, -1), (100, None), (255, 2), (256, -1)), is_cut=True
    )
    for start, end in (("9-3", "20"), ("1-9", "9"), ("1-9", "5-20")):
        with pytest.raises(Problem, match="ends before it begins, or holds a value"):
            given_values({start: 1, end: 2})


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"classes": {"1": "a"}, "key": "semantic_masks"}, "mask_classes"),
        ({"values": {"255": 1}, "key": "semantic_masks"}, "mask_values"),
        ({"classes": {"1": "a", "2": "a"}}, "mask_classes"),
        ({"classes": {"1": ""}}, "mask_classes"),
    ],
)
def test_keys_that_contradict_each_other(keys: dict[str, Any], place: str) -> None:
    with pytest.raises(Problem) as caught:
        check_mask_keys(**{"classes": {}, "values": {}, "key": "", **keys})
    assert caught.value.path == (place,)


def square(value: int) -> npt.NDArray[np.uint8]:
    pixels = np.zeros((4, 4), np.uint8)
    pixels[:2] = value
    return pixels


def test_the_first_50_maps_by_path_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b").mkdir()
    for number in range(60):
        # The maps beyond the first 50 hold another value.
        data = write_png(square(255 if number < 50 else 7))
        (tmp_path / ("b" if number % 2 else ".") / f"{number:02}.png").write_bytes(data)
    paths = sorted(path for path, _ in RootFiles(str(tmp_path)).walk())
    for path in paths[:50]:
        (tmp_path / path).write_bytes(write_png(square(255)))
    for path in paths[50:]:
        (tmp_path / path).write_bytes(write_png(square(7)))
    read: list[str] = []

    def count(file: ImageRef, **more: Any) -> bytes:  # noqa: ANN401  # Those of `read_bytes`.
        read.append(file.uri)
        return read_bytes(file, **more)

    monkeypatch.setattr(mask_values, "read_bytes", count)
    files = list(RootFiles(str(tmp_path)).walk())
    for order in (files, files[::-1]):
        read.clear()
        found = read_first_maps(iter(order))
        assert read == [str(tmp_path / path) for path in paths[:50]]
        assert found == FirstMaps(50, paths[0], {0: 400, 255: 400}, black_and_white=50)


def test_maps_that_cannot_be_read_do_not_count(tmp_path: Path) -> None:
    colours = np.zeros((4, 4, 3), np.uint8)
    colours[0, 0] = 1, 2, 3
    for name, data in (
        ("a.png", b"nonsense"),
        ("b.png", write_png(colours)),
        ("c.png", write_png(square(255))[:-20]),
        ("d.png", write_png(np.stack([square(255)] * 3, axis=-1))),
        ("e.png", write_png(square(3))),
    ):
        (tmp_path / name).write_bytes(data)
    files = list(RootFiles(str(tmp_path)).walk())
    problem = "a.png: neither a PNG nor a GIF file"
    found = FirstMaps(2, "d.png", {0: 16, 3: 8, 255: 8}, black_and_white=1, problem=problem)
    assert read_first_maps(files) == found
    assert read_first_maps(files, voc_colours=True) == found._replace(in_gray=True)
    assert read_first_maps([]) == FirstMaps()
