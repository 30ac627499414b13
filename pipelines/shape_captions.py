"""Captions of the sample's pictures: sentences that are true of them."""

from __future__ import annotations

from collections.abc import Sequence

from shardbeam.pipelines.shapes import Picture, Thing

_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write_captions(picture: Picture) -> tuple[str, str]:
    """Says where a picture's shapes are, and what it shows.

    Args:
        picture: Its things are at least one, and fewer than ten of each shape.
    """
    groups: dict[tuple[str, bool], list[Thing]] = {}
    for thing in picture.things:
        groups.setdefault((thing.shape, thing.is_crowd), []).append(thing)
    where = _say_where(list(groups.values()), width=picture.pixels.shape[1])
    *listed, last = [_name(group) for group in groups.values()]
    what = f"{', '.join(listed)} and {last}" if listed else last
    *sky, ground = [texture.name for texture in picture.textures]
    background = f" with {ground} and {sky[0]} behind" if sky else f" on {ground}"
    return _sentence(where), _sentence(what + background)


def _say_where(groups: Sequence[Sequence[Thing]], *, width: int) -> str:
    if len(groups) == 1:
        x, _ = _centre(groups[0][0])
        side = ("on the left", "in the middle", "on the right")[int(3 * x / width)]
        one_of_them = ", one" if len(groups[0]) > 1 else ""
        return f"{_name(groups[0])}{one_of_them} {side}"
    first, second = groups[:2]
    return f"{_name(first)} {_relation(first, second)} {_name(second)}"


def _relation(first: Sequence[Thing], second: Sequence[Thing]) -> str:
    """How all of one group lie to all of another, by their centres."""
    for axis, (lower, higher) in enumerate((("left of", "right of"), ("above", "below"))):
        these = [_centre(thing)[axis] for thing in first]
        those = [_centre(thing)[axis] for thing in second]
        if max(these) < min(those):
            return lower
        if min(these) > max(those):
            return higher
    return "with"


def _centre(thing: Thing) -> tuple[float, float]:
    rows, columns = thing.patch.coverage.shape
    return thing.patch.x + columns / 2, thing.patch.y + rows / 2


def _name(group: Sequence[Thing]) -> str:
    """Names things of one shape: `a red star`, `two squares`, `a crowd of small blue circles`."""
    shape, colour = group[0].shape, group[0].colour
    if group[0].is_crowd:
        return f"a crowd of small {colour} {shape}s"
    if len(group) == 1:
        return f"{'an' if colour[0] in 'aeiou' else 'a'} {colour} {shape}"
    same_colour = all(thing.colour == colour for thing in group)
    return f"{_NUMBERS[len(group)]} {f'{colour} ' if same_colour else ''}{shape}s"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
