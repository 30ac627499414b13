"""The cards of the page: each has an image, the figure drawn over it, and texts about it."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup

from shardbeam.readers.report.describe_values import describe_values
from shardbeam.readers.report.figure import Figure, Tag, TagPlaces
from shardbeam.readers.report.styles import Classes, Style, class_name, write_number
from shardbeam.readers.report.thumbnails import MOST_OBJECTS, Thumbnail
from shardbeam.transforms.core.text import NO_NAME, escape
from shardbeam.transforms.dataset.example_findings import (
    BOX_OFF_MASK,
    DUPLICATE_BOX,
    LARGE_BOX,
    MANY_OBJECTS,
    SAME_BOX,
    SPARSE_MASK,
    THIN_BOX,
    TINY_BOX,
    Finding,
)
from shardbeam.transforms.dataset.findings import KINDS, SAME_PICTURE, UNEQUAL_OBJECTS
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject
from shardbeam.transforms.images.measures import BRIGHT_PICTURE, DARK_PICTURE, LOW_CONTRAST

_CAPTIONS = 10
_FEATURES = 200
# In pixels: the room for an image on a card and for an enlarged one, and the height of letters.
_CARD_PX, _ENLARGED_PX, _LETTERS_PX = (230, 195), (720, 600), 12
# The most objects with a label on a card; the enlarged image labels the others.
_LABELLED = 8
# An image with fewer pixels a side is shown with its pixels as squares.
_COARSE_PX = 128
# A longer key cannot be marked.
_LINE_CHARACTERS = 4000
# Digits of a digest, which tells apart the pictures of a few datasets with the same keys.
_DIGEST_DIGITS = 12
_TIMES = " \N{MULTIPLICATION SIGN} "
# {kind: its strength in words}; strengths are described in docs/reference/statistics.md.
_STRENGTHS: Mapping[str, Callable[[int], str]] = {
    DUPLICATE_BOX: lambda strength: f"{strength / 10_000:.1f} % in common",
    SAME_BOX: lambda strength: f"{strength / 10_000:.1f} % in common",
    LARGE_BOX: lambda strength: f"{strength / 10_000:.1f} % of the image",
    TINY_BOX: lambda strength: f"{16_000 / max(1, strength):.2g} px²",
    THIN_BOX: lambda strength: f"{strength / 1000:,.0f} to 1",
    SPARSE_MASK: lambda strength: f"{100_000 / max(1, strength):.2g} % of the box",
    BOX_OFF_MASK: lambda strength: f"{(1_000_000 - strength) / 10_000:.1f} % in common",
    SAME_PICTURE: lambda strength: f"{strength} of 64 bits agree",
    UNEQUAL_OBJECTS: lambda strength: f"{strength / 10_000:.1f} % of the objects differ",
    MANY_OBJECTS: lambda strength: f"{strength:,} objects",
    DARK_PICTURE: lambda strength: f"99 of 100 pixels at most at gray level {255 - strength}",
    BRIGHT_PICTURE: lambda strength: f"99 of 100 pixels at least at gray level {strength}",
    LOW_CONTRAST: lambda strength: f"a contrast of {255 - strength} of 255 gray levels",
}


class Note(NamedTuple):
    """The findings of one kind in a picture.

    Attributes:
        kind: The kind.
        text: The strongest one: its classes and how far it is from usual; may be empty.
        objects: The numbers of the objects of all of them.
        strength: The greatest strength (`dataset.example_findings.Finding`).
    """

    kind: str
    text: str
    objects: tuple[int, ...] = ()
    strength: int = 0

    @property
    def title(self) -> str:
        """What is found."""
        return KINDS.get(self.kind, self.kind)


class ShownTag(NamedTuple):
    """A label of a box, and whether it is shown only when the image is enlarged."""

    tag: Tag
    is_minor: bool


class _Row(NamedTuple):
    name: str
    place: str
    size: str
    more: str


class _Feature(NamedTuple):
    key: str
    kind: str
    length: int
    values: str


class Twin(NamedTuple):
    """The image that shows what is wrong with another one.

    Attributes:
        words: What is wrong.
        card: Its card; `html` is empty if the page shows it elsewhere.
    """

    words: str
    card: Card


class Card(NamedTuple):
    """An image, as the template needs it.

    Attributes:
        name: Its id in the page.
        key: Its key, or its number.
        line: Its key as a line of a file for `exclude`; empty if no line can name it.
        digest: The beginning of the image's SHA-256, to recognize the image.
        notes: Its findings, each of another kind.
        odd: Numbers of the objects with findings, from 0.
        bars: Numbers of the bars that count it.
        classes: The dataset's classes.
        class_numbers: Numbers of its classes in the page.
        font_size: Font size of the labels on a card, in pixels of the image.
        layers: The layers that it has.
        html: Its text in the gallery, without the end tag; or it as a small picture.
        twin: The image that shows what is wrong with it, if there is one.
    """

    name: str
    key: str
    line: str
    digest: str
    notes: Sequence[Note]
    odd: Collection[int]
    bars: Collection[int]
    alt: str
    names: str
    split: int
    split_name: str
    shard: str
    number: int
    objects: int
    thumbnail: Thumbnail
    has_image: bool
    font_size: str
    is_coarse: bool
    classes: Classes
    class_numbers: Sequence[int]
    tags: Sequence[ShownTag]
    labels: Sequence[str]
    captions: Sequence[str]
    problems: Sequence[str]
    rows: Sequence[_Row]
    features: Sequence[_Feature]
    layers: frozenset[str]
    html: Markup = Markup()
    twin: Twin | None = None

    @property
    def place(self) -> tuple[str, int]:
        """The split and the number there of its Example."""
        return self.split_name, self.number

    @property
    def figure(self) -> Figure:
        """What is drawn over it."""
        return self.thumbnail.figure

    def style(self, name: str) -> Style:
        """Returns how a class is drawn in the image."""
        return self.figure.styles.get(name) or self.classes.style(name)

    @property
    def has_more(self) -> bool:
        """Whether an object has details besides its class, place and size."""
        return any(row.more for row in self.rows)


def make_card(
    image: Picture,
    thumbnail: Thumbnail,
    *,
    classes: Classes,
    name: str,
    split: int = 0,
    notes: Sequence[Note] = (),
    bars: Collection[int] = (),
    found: Collection[str] = (),
) -> Card:
    """Makes the card of a image.

    Args:
        image: The image.
        thumbnail: Its thumbnail.
        classes: The dataset's classes.
        name: The card's id in the page.
        split: Number of its split.
        notes: Its findings.
        bars: Numbers of the bars that count it.
        found: Its classes, if they are known. The thumbnail of a map may lack small areas.
    """
    width, height = thumbnail.width, thumbnail.height
    # Labels of the image as a whole, and the classes of its map.
    of_maps = (area.name for area in thumbnail.overlays if area.layer != "masks")
    labels = dict.fromkeys((*image.labels, *of_maps))
    shown = dict.fromkeys(
        (
            *(area.name for area in thumbnail.overlays),
            *image.labels,
            *map(class_name, image.objects),
            *sorted(found),
        )
    )
    tags = list(_place_tags(thumbnail.figure, width=width, height=height))
    layers = {
        "boxes": thumbnail.figure.boxes,
        "labels": tags or labels,
        "keypoints": any(pose.visible or pose.hidden for pose in thumbnail.figure.poses),
        "captions": image.captions,
    }
    return Card(
        name=name,
        key=_title(image),
        # A line that would have to be escaped names another image.
        line=image.key if _fits_a_line(image.key) else "",
        digest=hashlib.sha256(image.image).hexdigest()[:_DIGEST_DIGITS],
        notes=notes,
        odd=frozenset(number for note in notes for number in note.objects),
        bars=bars,
        alt=_alt(image, width=width, height=height),
        names=_what(image),
        split=split,
        split_name=image.split,
        shard=image.shard,
        number=image.number,
        objects=len(image.objects),
        thumbnail=thumbnail,
        has_image=bool(thumbnail.uri),
        font_size=write_number(_em(_CARD_PX, width=width, height=height)),
        is_coarse=max(width, height) < _COARSE_PX,
        classes=classes,
        class_numbers=sorted(map(classes.number, shown)),
        tags=tags,
        labels=list(labels),
        captions=image.captions[:_CAPTIONS],
        # If there is no thumbnail, the page says why in its place.
        problems=[*image.problems, *thumbnail.figure.problems],
        rows=[_row(item, width=width, height=height) for item in image.objects[:MOST_OBJECTS]],
        features=[
            _Feature(key, _kind(values), len(values), describe_values(values))
            for key, values in sorted(image.features.items())[:_FEATURES]
        ],
        layers=frozenset(
            (
                *(each.layer for each in thumbnail.overlays),
                *(layer for layer, found in layers.items() if found),
            )
        ),
    )


def _fits_a_line(key: str) -> bool:
    return len(key) <= _LINE_CHARACTERS and escape(key) == key


def _em(room: tuple[int, int], *, width: int, height: int) -> float:
    """Returns how many pixels of an image its labels' letters are high, if it fills `room`."""
    return _LETTERS_PX / min(room[0] / max(1, width), room[1] / max(1, height))


def _place_tags(figure: Figure, *, width: int, height: int) -> Iterator[ShownTag]:
    """Yields the labels of a card, then minor ones, which fit only on the enlarged image."""
    on_card, enlarged = (
        TagPlaces(
            size=(width, height), em=_em(room, width=width, height=height), measure=text_width
        )
        for room in (_CARD_PX, _ENLARGED_PX)
    )
    rest = []
    for number, box in enumerate(box for box in figure.boxes if box.text):
        tag = on_card.find(box) if number < _LABELLED else None
        if tag is None:
            rest.append(box)
        else:
            enlarged.take(tag)
            yield ShownTag(tag, is_minor=False)
    for tag in filter(None, map(enlarged.find, rest)):
        yield ShownTag(tag, is_minor=True)


def text_width(text: str) -> float:
    """Estimates the width of a text in em; the browser stretches the text to this width."""
    width = 0.0
    for character in escape(text):
        if unicodedata.east_asian_width(character) in "WF":
            width += 1.0
        elif character in "iljtfrI.,:;'|!() ":
            width += 0.4
        elif character.isupper() or character in "mwMW@%…":
            width += 0.82
        else:
            width += 0.64
    return width


def _row(item: PictureObject, *, width: int, height: int) -> _Row:
    place = size = ""
    if item.box is not None:
        xmin, ymin, xmax, ymax = item.box
        place = f"{xmin * width:.0f}, {ymin * height:.0f}"
        size = f"{(xmax - xmin) * width:.0f}{_TIMES}{(ymax - ymin) * height:.0f}"
    seen = sum(visibility > 0 for _, _, visibility in item.keypoints)
    more = [
        *(["crowd"] if item.is_crowd else []),
        *([f"{seen} keypoints"] if item.keypoints else []),
        *(["mask"] if item.mask else []),
        *(f"{name}: {value}" for name, value in sorted(item.attributes.items())),
    ]
    return _Row(class_name(item), place, size, ", ".join(more))


def _kind(values: Sequence[bytes | int | float]) -> str:
    kinds = {bytes: "bytes", int: "int64", float: "float"}
    return kinds[type(values[0])] if values else ""


def _title(image: Picture) -> str:
    return image.key or f"example {image.number:,}"


def _what(image: Picture) -> str:
    """Lists labels and counts of objects in a few words."""
    counts = Counter(map(class_name, image.objects))
    parts = [f"{count} {name}" for name, count in counts.most_common(8)]
    if len(counts) > 8:
        parts.append(f"{len(counts) - 8} more classes")
    return ", ".join([*image.labels, *parts])


def _alt(image: Picture, *, width: int, height: int) -> str:
    """Returns the text that screen readers read for a image."""
    described = f"{_title(image)}, {width} by {height} pixels"
    what = _what(image)
    return f"{described}: {what}" if what else described


def make_notes(of_objects: Iterable[Finding], of_index: Iterable[tuple[str, int]]) -> list[Note]:
    """Describes the findings of an image.

    Args:
        of_objects: The findings of its Example.
        of_index: `(kind, strength)` of its findings in the index, which has more kinds.
    """
    by_kind: dict[str, list[Finding]] = {}
    for each in of_objects:
        by_kind.setdefault(each.kind, []).append(each)
    for kind, strength in of_index:
        by_kind.setdefault(kind, [Finding(kind, strength)])
    return [_note(by_kind[kind]) for kind in KINDS if kind in by_kind]


def _note(found: Sequence[Finding]) -> Note:
    first = min(found, key=lambda each: (-each.strength, each.objects))
    names = [first.name, *([first.other] if first.other else [])] if first.objects else []
    parts = [
        " + ".join(name.decode(errors="replace") or NO_NAME for name in names),
        describe_strength(first.kind, first.strength),
        f"and {len(found) - 1:,} more" if len(found) > 1 else "",
    ]
    objects = dict.fromkeys(number for each in found for number in each.objects)
    return Note(first.kind, ", ".join(filter(None, parts)), tuple(objects), first.strength)


def describe_strength(kind: str, strength: int) -> str:
    """Says how far a finding is from usual; empty for kinds that are there or not."""
    describe = _STRENGTHS.get(kind)
    return describe(strength) if describe else ""
