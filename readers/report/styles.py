"""Names classes, and chooses the colours and lines that they are drawn with."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from shardbeam.transforms.examples.decode.picture import NO_CLASS, NO_ID, PictureObject
from shardbeam.transforms.images.mask_file import read_indices

Colour: TypeAlias = tuple[int, int, int]

# A class has one of these colours. The first twelve are easy to tell apart on photographs. Each of
# the others is the colour that is furthest from those before it (`are_close`), without grays and
# without what is nearly black or white.
_COLOURS = (
    "ff4d5e 2f9bff 22c373 ffb31a b57bff 00c4cc ff76c3 9fd310 ff8243 6f7dff d39a5c f2e33a "
    "4b2d00 7800a5 a5ffe1 ff00ff 001eff 004b78 00ff00 d20000 2d9600 a56900 ffd2b4 78ff78 "
    "964b69 e10087 3cffff 872dff 4b87a5 69964b 87003c 3c3cc3 78c3c3 005a1e 00ff96 4be12d "
    "d23cd2 ff3c00 b4d287 e1b4ff 4b1e69 0069e1 00875a 9669b4 00ff4b 4b00f0 00c32d b400e1 "
    "c33c2d ff0f3c 4bffb4 b4ff4b 5a691e d2ff00 0096a5 961e00 78a500 c3a500 d26987 78ff00 "
    "96b4ff 69c378 4b4bff 00e1ff a50f78 ff2da5 ff4bff 962db4 783c2d a5784b e17800 78e1ff "
    "694b96 0fffd2 f0a596 3cf069 3cd2e1 002da5 96c34b e1f078 d22d69 3c0fa5 3cd2a5 4b69d2 "
    "8796d2 78ff3c b4ffa5 3cb43c f087ff 1ed200 c30f3c 0f69a5 ffc369 691ed2 784bd2 e10fc3 "
)


def _rgb(digits: str) -> Colour:
    red, green, blue = bytes.fromhex(digits)
    return red, green, blue


PALETTE = tuple(map(_rgb, _COLOURS.split()))
# Two colours with a smaller distance are easily confused, such as blue and indigo.
_CLOSE = 120
# Width of the usual line in the page.
_LINE_PX = 2
# The class of objects that have neither a name nor an id.
OBJECT = "object"


class Line(NamedTuple):
    """A kind of line.

    Attributes:
        dash: Lengths of its dashes and gaps in turn, in widths of the line; empty if it is solid.
        width: Its width, in widths of the usual line.
    """

    dash: tuple[float, ...] = ()
    width: int = 1


LINES = tuple(Line(dash, width) for width in (1, 2) for dash in ((), (5, 3), (1, 2), (6, 2, 1, 2)))


class Style(NamedTuple):
    """How a class is drawn in one image.

    Attributes:
        colour: Index of its colour in `PALETTE`, which is the same in every image.
        line: Index of its line in `LINES`; classes with close colours have different lines.
    """

    colour: int
    line: int = 0

    @property
    def rgb(self) -> Colour:
        """Its colour."""
        return PALETTE[self.colour]

    @property
    def css_classes(self) -> str:
        """The classes of its rules in the page (`style_rules`)."""
        return f"k{self.colour} l{self.line}"


class Classes:
    """The classes of a dataset: their names in maps, their colours, their numbers in the page."""

    def __init__(self, names: Mapping[int, str], *, numbered_maps: bool = False) -> None:
        """Keeps `{id: name}`, and whether the values of maps are numbers instead of ids."""
        self._names = {} if numbered_maps else names
        # Large ids would share colours where their places in the list do not.
        are_small = max(names, default=0) < len(PALETTE)
        self._colours = {
            name: class_id if are_small else rank
            for rank, (class_id, name) in enumerate(sorted(names.items()))
        }
        self._numbers: dict[str, int] | None = None

    def style(self, name: str) -> Style:
        """Returns the style of a class that is alone in an image.

        Its colour follows from its id, or from its place among all ids if there are large ones. The
        dataset may give it none: then it follows from its name, unless `number_found` was called.
        """
        number = self._colours.get(name)
        if number is None:
            digest = hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=4).digest()
            number = int.from_bytes(digest, "big")
        return Style(number % len(PALETTE))

    def number_found(self, names: Iterable[str]) -> None:
        """Numbers the classes of the gallery, in this order.

        Those without ids get colours in this order, too, so that the first ones differ.
        """
        self._numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        first = max(self._colours.values(), default=-1) + 1
        others = [name for name in self._numbers if name not in self._colours]
        self._colours |= {name: number for number, name in enumerate(others, first)}

    def number(self, name: str) -> int:
        """Returns the number of a class in the gallery; a class that is new gets the next number.

        It is -1 before `number_found`: the gallery's switches leave such pictures alone.
        """
        if self._numbers is None:
            return -1
        return self._numbers.setdefault(name, len(self._numbers))

    def numbered(self) -> Mapping[str, int]:
        """Returns `{class: its number in the gallery}`, in the order of the numbers."""
        return self._numbers or {}

    def name_value(self, value: int) -> str:
        """Names the class of a map's value; empty for a value without a class."""
        if value in self._names:
            return self._names[value]
        return "" if value in NO_CLASS else f"class {value}"

    def name_map(self, data: bytes, *, size: tuple[int, int]) -> set[str]:
        """Names the classes that a map shows.

        Raises:
            RejectedError: It cannot be read, or belongs to an image of another size.
        """
        values = np.unique(read_indices(data, size=size)).tolist()
        return set(map(self.name_value, values)) - {""}


def class_name(item: PictureObject) -> str:
    """Names an object's class, by its id if it has no name."""
    return item.label or (OBJECT if item.label_id == NO_ID else f"class {item.label_id}")


def ink_on(colour: Colour) -> Colour:
    """Returns the colour of text on a colour: black or white, whichever has more contrast."""
    red, green, blue = ((value / 255) ** 2.2 for value in colour)
    # Both have the same contrast with a relative luminance of 0.179 (WCAG 2.2).
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return (0, 0, 0) if luminance > 0.179 else (255, 255, 255)


def choose_styles(names: Iterable[str], *, classes: Classes) -> dict[str, Style]:
    """Chooses how the classes of one image are drawn.

    If several classes have close colours, the first has a solid line, and the others have different
    lines, as far as there are enough.
    """
    styles: dict[str, Style] = {}
    for name in dict.fromkeys(names):
        colour = classes.style(name).colour
        taken = [style.line for style in styles.values() if are_close(colour, style.colour)]
        styles[name] = Style(colour, line=min(range(len(LINES)), key=taken.count))
    return styles


@functools.cache
def are_close(one: int, other: int) -> bool:
    """Whether two colours of the palette are easily confused."""
    first, second = PALETTE[one], PALETTE[other]
    red, green, blue = ((a - b) ** 2 for a, b in zip(first, second, strict=True))
    # The weights of https://www.compuphase.com/cmetric.htm.
    mean_red = (first[0] + second[0]) / 512
    return math.sqrt((2 + mean_red) * red + 4 * green + (3 - mean_red) * blue) < _CLOSE


def style_rules() -> str:
    """Returns the CSS rules of all styles."""
    colours = (
        f".k{number} {{ --k: #{bytes(colour).hex()}; --i: #{bytes(ink_on(colour)).hex()}; }}"
        for number, colour in enumerate(PALETTE)
    )
    return "\n".join((*colours, *_style_lines()))


def drawing_rules(styles: Iterable[Style]) -> str:
    """Returns the CSS rules of some styles, for programs that know no variables of CSS.

    The colour is the current one: what refers to `--k` in the page has to refer to that.
    """
    chosen = sorted(set(styles))
    colours = (
        f".k{number} {{ color: #{bytes(PALETTE[number]).hex()}; }}\n"
        f".k{number} text {{ fill: #{bytes(ink_on(PALETTE[number])).hex()}; }}"
        for number in dict.fromkeys(style.colour for style in chosen)
    )
    lines = map(_line_rule, dict.fromkeys(style.line for style in chosen))
    return "\n".join((*colours, *lines))


def _style_lines() -> Iterator[str]:
    for number, line in enumerate(LINES):
        yield f"{_line_rule(number)}\n.l{number} .swatch {{ {_sample_line(line)} }}"


def _line_rule(number: int) -> str:
    line = LINES[number]
    width = _LINE_PX * line.width
    dash = " ".join(f"{write_number(length * width)}px" for length in line.dash)
    return f".l{number} {{ stroke-width: {width}px; stroke-dasharray: {dash or 'none'}; }}"


def _sample_line(line: Line) -> str:
    """Returns the CSS of a swatch that shows a line; empty for the usual line."""
    if line == LINES[0]:
        return ""
    width = _LINE_PX * line.width
    ends = [f"{write_number(end * width)}px" for end in itertools.accumulate((0, *line.dash))]
    inks = itertools.cycle(("var(--k)", "transparent"))
    parts = ", ".join(
        f"{ink} {start} {end}"
        for ink, (start, end) in zip(inks, itertools.pairwise(ends), strict=False)
    )
    background = f"repeating-linear-gradient(90deg, {parts})" if parts else "var(--k)"
    return (
        f"width: 2.4em; height: {width + 1}px; border-radius: 0; vertical-align: middle; "
        f"background: {background};"
    )


def write_number(value: float) -> str:
    """Writes a number for SVG and CSS, with two decimals at most."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
