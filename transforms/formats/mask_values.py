"""Finds out what the values of a source's maps of classes mean: class ids, or black and white.

One function decides for all formats, before the run, by the first maps of the source. The keys
`mask_values` and `mask_classes` mean the same in all formats that have them.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.records import (
    MAX_BLURRED_SHARE,
    NO_VALUE,
    OBJECT_VALUE,
    ImageRef,
    MaskValues,
)
from shardbeam.transforms.images.mask_file import read_any_colours, read_any_indices
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.image_bytes import read_bytes

T = TypeVar("T")

# Maps that decide, by their paths.
_MAPS = 50
# The blurred border of an object has at least this many values between 0 and 255.
_MIN_BLURRED_VALUES = 16
# Values at equal distances are no class ids if they are at least this far apart.
_MIN_STEP, _MIN_ONLY_STEP = 10, 127
_MAX_STEPS = 26
_NAMED_VALUES = 8
# Colours that a hint names, and values that an answer to a question lists.
_NAMED_COLOURS, _LISTED_VALUES = 3, 32
# A soft mask has at least this many values between 0 and 255; they are probabilities.
_MIN_SOFT_VALUES = 100
# Maps of 8 bits hold no larger ids.
_MAX_ID = 254
# 16-bit values from here on are numbers of instances, depths or probabilities, and no ids.
_LARGE_VALUE = 1000

_ClassId: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=254)]
# Keys of mappings are texts, as in JSON.
_ClassIdText: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A(25[0-4]|(2[0-4]|1[0-9]|[1-9])?[0-9])\Z", description="a class id from 0 to 254"
    ),
]
_ValueText: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"\A(0|[1-9][0-9]{0,4})(-(0|[1-9][0-9]{0,4}))?\Z",
        description="the value of a pixel, from 0 to 65535, or a range such as 128-255",
    ),
]
# The keys `mask_classes` and `mask_values` of a format.
MaskClassesKey: TypeAlias = Annotated[
    dict[_ClassIdText, str], msgspec.Meta(description="a mapping such as {1: crack}")
]
MaskValuesKey: TypeAlias = Annotated[
    dict[_ValueText, _ClassId | Literal["ignore"]],
    msgspec.Meta(description="a mapping such as {128: 1, 255: ignore}"),
]


class MaskReading(msgspec.Struct, frozen=True):
    """How a source's maps are read, and the line of the summary that says so.

    Attributes:
        values: What the values mean.
        said: The line; empty where values are simply class ids.
        naming: The value of `mask_classes` that would name the classes, with `NAME` for each name.
    """

    values: MaskValues = MaskValues()
    said: str = ""
    naming: str = "{1: NAME, 2: NAME}"


class FirstMaps(NamedTuple):
    """The pixels of a source's first maps, together.

    Attributes:
        number: The number of maps that could be read.
        first: The path of the first one.
        counts: `{value: pixels}`.
        black_and_white: The number of maps that have the values 0 and 255.
        palette: `{value: its colour}`, where a palette has one that is no gray.
        in_gray: Whether one of them is a gray picture in RGB, and not in Pascal VOC's colours.
        problem: Path and problem of the first one that cannot be read; empty if all can.
    """

    number: int = 0
    first: str = ""
    counts: Mapping[int, int] = {}
    black_and_white: int = 0
    palette: Mapping[int, tuple[int, ...]] = {}
    in_gray: bool = False
    problem: str = ""


def check_mask_keys(*, classes: Mapping[str, str], values: Mapping[str, object], key: str) -> None:
    """Refuses the two keys where no maps are read, and names that are empty or occur twice.

    Raises:
        Problem: The keys need `key`, if it is given, or a name is wrong.
    """
    for name, given in (("mask_classes", classes), ("mask_values", values)):
        if given and key:
            raise Problem((name,), f"has no effect without {key}")
    if "" in classes.values() or len(set(classes.values())) < len(classes):
        raise Problem(("mask_classes",), "expected names that differ, such as {1: crack, 2: rail}")


def first_maps(maps: Iterable[tuple[str, ImageRef]]) -> list[tuple[str, ImageRef]]:
    """Returns the first 50 maps of a source by their paths; they show what all are like.

    Args:
        maps: `(path, file)` of all maps, in any order.
    """
    return heapq.nsmallest(_MAPS, maps, key=lambda each: each[0])


def read_first_maps(
    maps: Iterable[tuple[str, ImageRef]], *, voc_colours: bool = False
) -> FirstMaps:
    """Reads the first 50 maps of a source by their paths; maps that cannot be read do not count.

    Args:
        maps: `(path, file)` of all maps, in any order.
        voc_colours: Whether colours may be Pascal VOC's.
    """
    totals = np.zeros(1 << 16, np.int64)
    read: list[str] = []
    black_and_white = 0
    palette: dict[int, tuple[int, ...]] = {}
    in_gray = False
    problem = ""
    decode = functools.partial(read_any_indices, voc_colours=voc_colours)
    for path, found in _read_first(maps, decode=decode):
        if isinstance(found, RejectedError):
            # A map that cannot be read rejects its image later.
            problem = problem or f"{path}: {found.detail}"
            continue
        read.append(path)
        in_gray |= found.in_gray
        counts = np.bincount(found.values.ravel())
        totals[: counts.size] += counts
        black_and_white += counts.size > OBJECT_VALUE and bool(counts[0] and counts[OBJECT_VALUE])
        for value in np.flatnonzero(counts[: len(found.palette)]).tolist():
            colour = tuple(found.palette[value].tolist())
            if len({*colour}) > 1:
                palette.setdefault(value, colour)
    first = read[0] if read else ""
    return FirstMaps(
        len(read), first, _as_mapping(totals), black_and_white, palette, in_gray, problem
    )


def show_colours(maps: Iterable[tuple[str, ImageRef]], *, colours: Collection[int]) -> bool:
    """Whether the first 50 maps of a source show the colours of its classes, and not their ids.

    They do if one shows a colour of a class that is no gray, if they show no other colours than
    those of classes, or if one is a picture in other colours than grays.

    Args:
        maps: `(path, file)` of all maps, in any order.
        colours: The colours of the classes, as R << 16 | G << 8 | B.
    """
    shown: set[int] = set()
    for _, found in _read_first(maps, decode=read_any_colours):
        if isinstance(found, RejectedError):
            continue
        shown |= found.colours
        vivid = {colour for colour in found.colours if colour != (colour & 255) * 0x010101}
        if vivid and (found.are_exact or not vivid.isdisjoint(colours)):
            return True
    return bool(shown) and shown.issubset(colours)


def _read_first(
    maps: Iterable[tuple[str, ImageRef]], *, decode: Callable[[bytes], T]
) -> Iterator[tuple[str, T | RejectedError]]:
    """Yields `(path, content or problem)` of the first maps by their paths."""
    first = first_maps(maps)
    if not first:
        return
    files = storage_for(first[0][1].uri).map_many(_try_to_read, [file for _, file in first])
    for (path, _), data in zip(first, files, strict=True):
        try:
            yield path, data if isinstance(data, RejectedError) else decode(data)
        except RejectedError as error:
            yield path, error


def _try_to_read(file: ImageRef) -> bytes | RejectedError:
    try:
        return read_bytes(file, max_bytes=limits.IMAGE_ANNOTATION_BYTES)
    except RejectedError as error:
        return error


def _as_mapping(totals: npt.NDArray[np.int64]) -> dict[int, int]:
    return {int(value): int(totals[value]) for value in np.flatnonzero(totals)}


def ids_of_classes(classes: Mapping[str, str]) -> dict[str, int]:
    """Returns `{name: class id}` of the key `mask_classes`."""
    return {name: int(class_id) for class_id, name in classes.items()}


def given_values(values: Mapping[str, int | Literal["ignore"]]) -> MaskReading:
    """Makes the reading that the key `mask_values` asks for; 0 stays the background.

    Raises:
        Problem: A value is named twice, or a range ends before it begins.
    """
    ids: dict[int, int | None] = {0: 0}
    # (first value, last value, class id), without those of one value.
    ranges: list[tuple[int, int, int | None]] = []
    for text, given in values.items():
        start, is_range, end = text.partition("-")
        class_id = None if given == "ignore" else given
        if is_range:
            ranges.append((int(start), int(end), class_id))
        else:
            ids[int(start)] = class_id
    classes = {class_id for class_id in values.values() if class_id not in ("ignore", 0)}
    naming = _name_ids(sorted(map(int, classes)))
    if not ranges:
        return MaskReading(MaskValues(_sorted_ids(ids)), naming=naming)
    if any(start == 0 for start, _, _ in ranges) and "0" not in values:
        del ids[0]
    starts: dict[int, int | None] = {}
    last = -1
    ranges += ((value, value, class_id) for value, class_id in ids.items())
    for first, end_value, class_id in sorted(ranges, key=lambda each: each[:2]):
        if not last < first <= end_value:
            raise Problem(
                ("mask_values",),
                f"the range {first}-{end_value} ends before it begins, or holds a value that is "
                "named elsewhere, too",
            )
        starts |= {first: class_id, end_value + 1: NO_VALUE}
        last = end_value
    return MaskReading(MaskValues(_sorted_ids(starts), is_cut=True), naming=naming)


def _sorted_ids(ids: Mapping[int, int | None]) -> tuple[tuple[int, int | None], ...]:
    return tuple(sorted(ids.items(), key=lambda each: each[0]))


def decide_mask_values(
    maps: FirstMaps, *, declared: Callable[[], Collection[int]], classes: Mapping[str, int]
) -> MaskReading:
    """Decides what the values of a source's maps mean.

    - Only 0 and 255, or between them at least 16 values on under 5 % of the pixels (blurred
      borders): 255 is the class that the source declares, or class 1. If it declares an id 0 or
      several classes, 255 is to be ignored, and the summary says so.
    - Values at equal distances, such as 0, 128 and 255, which are no declared ids: an error.
    - Several values of 1,000 and more, none of which is a declared id: an error.
    - Probabilities, if the source names no classes: an error.
    - 255 is most of what is labelled, beside other values: an error.
    - All others are class ids, and 255 is to be ignored.

    Args:
        maps: The first maps.
        declared: Finds the ids of the classes that the source declares, without a background.
        classes: `{name: class id}`, as far as they are known without reading files.

    Raises:
        Problem: Nothing says what the values mean.
    """
    values = sorted(maps.counts)
    where = f"the first {maps.number:,} maps (from {maps.first})" if maps.number > 1 else maps.first
    between = {value: count for value, count in maps.counts.items() if 0 < value < OBJECT_VALUE}
    share = sum(between.values()) / max(1, sum(maps.counts.values()))
    is_blurred = len(between) >= _MIN_BLURRED_VALUES and share < MAX_BLURRED_SHARE
    if values[:1] == [0] and values[-1] == OBJECT_VALUE and (not between or is_blurred):
        return _decide_binary(
            sorted(declared()), where=where, classes=classes, is_blurred=bool(between)
        )
    nonzero = [value for value in values if value]
    are_colours = OBJECT_VALUE not in nonzero and maps.palette.keys() >= {*nonzero}
    if _are_steps(nonzero) and not are_colours and not {*nonzero} - {OBJECT_VALUE} <= {*declared()}:
        shown = ", ".join(map(str, values[:_NAMED_VALUES]))
        example = ", ".join(
            f"{value}: {'ignore' if value == OBJECT_VALUE else number}"
            for number, value in enumerate(nonzero[:_NAMED_VALUES], 1)
        )
        raise Problem(
            ("mask_values",),
            f"missing: the pixels of {where} have the values {shown}, which look like steps of "
            "gray and not like class ids; say which class each value is, or ignore, such as "
            f"mask_values: {{{example}}}",
        )
    text = _doubt(maps, declared=declared, is_named=bool(classes))
    if text:
        raise Problem(("mask_values",), f"missing: the pixels of {where} {text}")
    if values == [0] and maps.number == _MAPS:
        return MaskReading(
            said=f"the pixels of {where} are all 0, the background; 255 in other maps means: "
            "ignore these pixels; if it is a class, say so: mask_values: {255: 1}"
        )
    ids = [value for value in nonzero if value <= _MAX_ID]
    return MaskReading(naming=_name_ids(ids, palette=maps.palette))


def _doubt(maps: FirstMaps, *, declared: Callable[[], Collection[int]], is_named: bool) -> str:
    """Says why nobody knows what the values of the first maps mean; empty if they are class ids.

    Args:
        maps: The first maps.
        declared: Finds the ids of the classes that the source declares, without a background.
        is_named: Whether classes are named.
    """
    counts = maps.counts
    large = [value for value in counts if value >= _LARGE_VALUE]
    # One such value alone may stand for pixels to ignore.
    if len(large) > 1 and {*large}.isdisjoint(declared()):
        return (
            f"have values up to {max(large)}, which are no class ids of 8 bits (0 to {_MAX_ID}); "
            "say which class each value is, or ignore, such as "
            f"mask_values: {{{large[0]}-{max(large)}: 1}}"
        )
    between = [value for value in counts if 0 < value < OBJECT_VALUE]
    ignored = counts.get(OBJECT_VALUE, 0)
    extremes = counts.get(0, 0) + ignored
    if (
        len(between) >= _MIN_SOFT_VALUES
        and 2 * maps.black_and_white > maps.number
        and 2 * extremes >= sum(counts.values())
        and not (is_named or declared())
    ):
        return (
            f"are mostly 0 and 255, with {len(between)} values in between, as in soft masks, whose "
            "values are probabilities or degrees of transparency; say from which value on a pixel "
            "is of the class, such as mask_values: {0-127: 0, 128-255: 1}; if they are class ids, "
            "name these with mask_classes: {1: NAME, 2: NAME}"
        )
    labelled = sum(counts.values()) - counts.get(0, 0)
    is_most = between and 2 * ignored > labelled
    if is_most and 0 in declared():
        labelled += counts.get(0, 0)
    if is_most and 2 * ignored > labelled:
        free = next(number for number in range(1, OBJECT_VALUE) if number not in between)
        kept = [f"{value}: {value}" for value in between[:_LISTED_VALUES]]
        kept += ["..."] if len(between) > _LISTED_VALUES else []
        are_borders = len(between) >= _MIN_BLURRED_VALUES
        borders = ", or for blurred borders {0-127: 0, 128-255: 1}" if are_borders else ""
        return (
            f"are 255 in {100 * ignored // labelled}% of what is labelled, beside the values "
            f"{_list_values(between)}: 255 may be a class, or pixels to ignore, as beside "
            f"scribbles; say which, with all values: mask_values: {{{', '.join(kept)}, 255: "
            f"{free}}} or {{..., 255: ignore}}{borders}"
        )
    return ""


def _list_values(values: Sequence[int]) -> str:
    return ", ".join([*map(str, values[:_NAMED_VALUES]), *["..."][: len(values) > _NAMED_VALUES]])


def _name_ids(ids: Sequence[int], *, palette: Mapping[int, tuple[int, ...]] | None = None) -> str:
    """Returns a value of `mask_classes` that names ids, with the first of their colours."""
    if not ids:
        return "{1: NAME, 2: NAME}"
    more = ", ..." if len(ids) > _NAMED_VALUES else ""
    named = ", ".join(f"{value}: NAME" for value in ids[:_NAMED_VALUES])
    coloured = [value for value in ids if value in (palette or {})][:_NAMED_COLOURS]
    colours = (f"id {value} is the colour {(palette or {})[value]}" for value in coloured)
    told = f" ({', '.join(colours)})" if coloured else ""
    return f"{{{named}{more}}}{told}"


def _decide_binary(
    ids: Sequence[int], *, where: str, classes: Mapping[str, int], is_blurred: bool
) -> MaskReading:
    blurred = ", and blurred borders in between" if is_blurred else ""
    held = f"the pixels of {where} are only 0 and 255{blurred}"
    if len(ids) > 1 or not {*ids} <= {*range(1, OBJECT_VALUE)}:
        what = (
            f"a class with the id {ids[0]}" if ids[0] in (0, ids[-1]) else f"{len(ids):,} classes"
        )
        return MaskReading(
            said=f"{held}, and the source declares {what}: 255 means: ignore these pixels; if it "
            "is a class, say which: mask_values: {255: 1}"
        )
    number = ids[0] if ids else 1
    name = "".join(f" ({name})" for name, each in classes.items() if each == number)
    hint = "" if ids else "; name it with mask_classes: {1: NAME}"
    cut = "; values from 128 on count as 255, lower ones as 0" if is_blurred else ""
    values = MaskValues(((0, 0), (OBJECT_VALUE, number)), is_cut=is_blurred)
    return MaskReading(values, f"{held}: 255 is class {number}{name}{cut}{hint}")


def _are_steps(values: Sequence[int]) -> bool:
    """Whether values above 0 are multiples of one number, as tools make them to be visible."""
    if not values or values == [OBJECT_VALUE]:
        return False
    shortest = min(after - before for before, after in itertools.pairwise([0, *values]))
    if shortest < (_MIN_ONLY_STEP if len(values) == 1 else _MIN_STEP):
        return False
    if values[-1] > _MAX_STEPS * shortest:
        return False
    step = values[-1] / round(values[-1] / shortest)
    # Tools round the steps.
    return all(abs(value - round(value / step) * step) <= 1 for value in values)
