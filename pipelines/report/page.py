r"""The page: what the template shows of a dataset, and how it is rendered.

Texts of the dataset never become anything but text: Jinja escapes them, control characters (and
those that turn the direction of writing) are written as `\x1b`, and the page's policy allows
neither scripts and styles other than its own, which it knows by their digests, nor any request.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup
from rich.filesize import decimal

from shardbeam.pipelines.draw import class_name
from shardbeam.pipelines.logs import escape
from shardbeam.pipelines.report.changes import Changes
from shardbeam.pipelines.report.charts import MOST_SPLITS, Charts
from shardbeam.pipelines.report.duplicates import Duplicates, Group
from shardbeam.pipelines.report.facts import Facts, SplitFacts
from shardbeam.pipelines.report.sample import Sample
from shardbeam.pipelines.report.thumbnails import PALETTE, Thumbnail
from shardbeam.pipelines.show import describe_values
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.dataset.read.difference import SplitDifference
from shardbeam.transforms.dataset.read.pictures import Picture, PictureObject
from shardbeam.transforms.dataset.read.rejects import StoredReject

# So much of one text is shown.
_TEXT_CHARACTERS = 400
_TAG_CHARACTERS = 32
_CONFIG_CHARACTERS = 100_000
# So many of one picture's objects are drawn and listed, and so many are labelled while it is small.
_OBJECTS = 300
_LABELLED = 8
_CAPTIONS = 10
_FEATURES = 200
_SHARDS = 1000
_SPLITS = 200
# About as wide as a picture is in the gallery, in pixels, and a label's letters in it.
_CARD_PX = 300
_LETTERS_PX = 12
# Of a label, in heights of its letters (em).
_TAG_HEIGHT, _TAG_MARGIN, _BASELINE = 1.3, 0.3, 0.95
# Browsers read no path with much larger numbers.
_FAR_PX = 10_000_000.0
# A picture that has fewer pixels a side is shown with its pixels as squares.
_COARSE_PX = 128
_TIMES = " \N{MULTIPLICATION SIGN} "
_LAYERS = {
    "boxes": "Boxes",
    "labels": "Labels",
    "masks": "Masks",
    "keypoints": "Keypoints",
    "map": "Class map",
    "segments": "Segments",
    "captions": "Captions",
}


class Report(NamedTuple):
    """What the page shows.

    Attributes:
        facts: What the dataset says of itself.
        charts: What is in it.
        sample: The pictures of the gallery.
        thumbnails: Their thumbnails; of the first ones where there is no room for all.
        duplicates: What is there several times; None where it was not looked for.
        pairs: The thumbnails of its groups.
        changes: What has changed since an earlier dataset, where one was named.
        reject_pictures: `{number of a listed reject: data URI of its thumbnail}`.
    """

    facts: Facts
    charts: Charts
    sample: Sample
    thumbnails: Sequence[Thumbnail]
    duplicates: Duplicates | None = None
    pairs: Sequence[Sequence[Thumbnail]] = ()
    changes: Changes | None = None
    reject_pictures: Mapping[int, str] = {}


class Lines(str):
    """A text whose line ends are its own."""


class _Class(NamedTuple):
    number: int
    colour: int
    name: str
    pictures: int


class _Area(NamedTuple):
    layer: str
    number: int
    x: str
    y: str
    width: str
    height: str
    uri: str


class _Box(NamedTuple):
    number: int
    colour: int
    is_crowd: bool
    x: str
    y: str
    width: str
    height: str


class _Pose(NamedTuple):
    """Keypoints of an object, as SVG paths: lines between them, those seen, those hidden."""

    number: int
    colour: int
    bones: str
    seen: str
    hidden: str


class _Tag(NamedTuple):
    """A label at a box's corner; its own sizes are in letters' heights (em)."""

    number: int
    colour: int
    text: str
    x: str
    y: str
    left: str
    top: str
    width: str
    text_x: str
    text_y: str
    text_width: str
    is_minor: bool


class _Label(NamedTuple):
    number: int
    colour: int
    text: str


class _Row(NamedTuple):
    number: int
    colour: int
    name: str
    place: str
    size: str
    more: str


class _Feature(NamedTuple):
    key: str
    kind: str
    length: int
    values: str


class _Card(NamedTuple):
    """A picture of the gallery, as the template needs it."""

    key: str
    alt: str
    names: str
    split: int
    split_name: str
    shard: str
    number: int
    objects: int
    thumbnail: Thumbnail
    font_size: str
    is_coarse: bool
    class_numbers: str
    areas: Sequence[_Area]
    boxes: Sequence[_Box]
    poses: Sequence[_Pose]
    tags: Sequence[_Tag]
    labels: Sequence[_Label]
    captions: Sequence[str]
    problems: Sequence[str]
    rows: Sequence[_Row]
    features: Sequence[_Feature]

    @property
    def has_more(self) -> bool:
        """Whether there is more to say of an object than its class and place."""
        return any(row.more for row in self.rows)


class _SplitRow(NamedTuple):
    facts: SplitFacts
    examples: int
    share: float
    size: str
    rejected: int
    excluded: int


class _Tile(NamedTuple):
    name: str
    value: str
    kind: str = ""


class _Pair(NamedTuple):
    """A group of pictures that are the same, or nearly, and their cards with what differs."""

    group: Group
    cards: Sequence[tuple[_Card, str]]


class _RejectRow(NamedTuple):
    reject: StoredReject
    uri: str
    alt: str


def class_numbers(sample: Sample) -> dict[str, int]:
    """Numbers the classes, the most frequent first; a class's colour is its number's."""
    ordered = sorted(sample.classes.items(), key=lambda item: (-item[1], item[0]))
    return {name: number for number, (name, _) in enumerate(ordered)}


def render_page(report: Report) -> str:
    """Renders the page."""
    style, script = _asset("style.css"), _asset("page.js")
    cards = list(_cards(report))
    facts, sample = report.facts, report.sample
    shown = Counter(number for card in cards for number in card.class_numbers.split())
    names = class_numbers(sample)
    classes = [
        _Class(number, _colour(number), name, shown[str(number)])
        for name, number in names.items()
        if shown[str(number)]
    ]
    rejects = [
        _RejectRow(reject, report.reject_pictures.get(number, ""), f"the rejected {reject.key}")
        for number, reject in enumerate(facts.listed_rejects)
    ]
    return _template().render(
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        facts=facts,
        sections=list(_sections(report)),
        charts=report.charts,
        columns=facts.splits if len(facts.splits) <= MOST_SPLITS else (),
        tiles=list(_tiles(facts, sample)),
        splits=list(itertools.islice(_split_rows(facts, sample), _SPLITS)),
        has_outcomes=any(split.outcome is not None for split in facts.splits),
        gallery_hint=_gallery_hint(report),
        cards=cards,
        classes=classes,
        layers=[(layer, title) for layer, title in _LAYERS.items() if _has_layer(cards, layer)],
        changes=report.changes,
        change_columns=SplitDifference.__struct_fields__,
        duplicates=report.duplicates,
        pairs=list(_pairs(report)),
        rejects=rejects,
        rejects_title=_rejects_title(facts),
        has_reject_pictures=bool(report.reject_pictures),
        config=Lines(facts.config[:_CONFIG_CHARACTERS]),
        shards=facts.files[:_SHARDS],
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_as_text,
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _as_text(value: object) -> object:
    """Makes a text readable, whatever is in it; Jinja escapes it then."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    if isinstance(value, Lines):
        return "\n".join(map(escape, value.split("\n")))
    if len(value) > _TEXT_CHARACTERS:
        value = f"{value[:_TEXT_CHARACTERS]}… ({len(value):,} characters)"
    return escape(value)


@functools.cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; img-src data:; style-src {_digest(style)}; "
        f"script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _sections(report: Report) -> Iterator[tuple[str, str]]:
    facts, charts = report.facts, report.charts
    yield "overview", "Overview"
    if report.changes is not None:
        yield "changes", "Changes"
    if charts.classes:
        yield "classes", "Classes"
    if charts.sizes:
        yield "sizes", "Sizes"
    yield "gallery", "Gallery"
    if facts.duplicates is not None:
        yield "duplicates", "Duplicates"
    if facts.rejects:
        yield "rejects", "Rejects"
    if facts.corrections or facts.exclusions:
        yield "corrections", "Corrections"
    if facts.provenance or facts.config:
        yield "provenance", "Provenance"


def _tiles(facts: Facts, sample: Sample) -> Iterator[_Tile]:
    outcomes = [split.outcome for split in facts.splits if split.outcome is not None]
    yield _Tile("examples", f"{sum(sample.examples.values()):,}")
    if any(outcome.objects for outcome in outcomes):
        yield _Tile("objects", f"{sum(outcome.objects for outcome in outcomes):,}")
    if sample.classes or facts.labels:
        yield _Tile("classes", f"{len(sample.classes.keys() | facts.labels.keys()):,}")
    yield _Tile("splits", f"{len(facts.splits):,}")
    yield _Tile("shards", f"{sum(split.shards for split in facts.splits):,}")
    yield _Tile("size", decimal(sum(split.num_bytes for split in facts.splits)))
    if outcomes:
        rejected = sum(code.total for code in facts.rejects)
        if facts.duplicates is not None:
            harm = facts.duplicates.leaks or facts.duplicates.contradictions
            yield _Tile("duplicates", f"{facts.duplicates.groups:,}", kind="bad" if harm else "")
        yield _Tile("rejected", f"{rejected:,}", kind="bad" if rejected else "")
        yield _Tile("corrections", f"{sum(code.total for code in facts.corrections):,}")


def _split_rows(facts: Facts, sample: Sample) -> Iterator[_SplitRow]:
    most = max(sample.examples.values(), default=0)
    for split in facts.splits:
        examples = sample.examples.get(split.name, 0)
        outcome = split.outcome
        yield _SplitRow(
            facts=split,
            examples=examples,
            share=100 * examples / most if most else 0,
            size=decimal(split.num_bytes),
            rejected=sum(outcome.rejected.values()) if outcome else 0,
            excluded=sum(outcome.excluded.values()) if outcome else 0,
        )


def _gallery_hint(report: Report) -> str:
    shown, total = len(report.thumbnails), sum(report.sample.examples.values())
    if not total:
        return "The dataset has no Examples."
    if shown == total:
        return f"All {total:,} Examples."
    hint = f"{shown:,} of {total:,} Examples"
    left_out = len(report.sample.pictures) - shown
    if left_out:
        hint += f"; {left_out:,} more were asked for, and have no room on a page of 10 MB"
    absent = report.sample.absent
    if absent:
        hint += f"; of {len(absent):,} classes none is among them: {list_classes(absent)}"
    elif report.sample.classes and not left_out:
        hint += "; every class is among them"
    return f"{hint}."


def _rejects_title(facts: Facts) -> str:
    total = sum(code.total for code in facts.rejects)
    listed = len(facts.listed_rejects)
    return f"The first {listed:,} of {total:,}" if listed < total else "All of them"


def _has_layer(cards: Sequence[_Card], layer: str) -> bool:
    found = {
        "boxes": lambda card: card.boxes,
        "labels": lambda card: card.tags or card.labels,
        "keypoints": lambda card: card.poses,
        "captions": lambda card: card.captions,
    }.get(layer)
    if found is None:
        return any(area.layer == layer for card in cards for area in card.areas)
    return any(map(found, cards))


def _cards(report: Report) -> Iterator[_Card]:
    numbers = class_numbers(report.sample)
    splits = {split.name: number for number, split in enumerate(report.facts.splits)}
    for picture, thumbnail in zip(report.sample.pictures, report.thumbnails, strict=False):
        yield _card(picture, thumbnail, numbers=numbers, split=splits[picture.split])


def _pairs(report: Report) -> Iterator[_Pair]:
    if report.duplicates is None:
        return
    numbers = class_numbers(report.sample)
    for group, thumbnails in zip(report.duplicates.groups, report.pairs, strict=True):
        cards = [
            (
                _card(picture, thumbnail, numbers=numbers, split=0),
                "" if not distance else f"{distance} of 64 bits differ",
            )
            for picture, thumbnail, distance in zip(
                group.pictures, thumbnails, group.distances, strict=True
            )
        ]
        yield _Pair(group, cards)


def _card(
    picture: Picture, thumbnail: Thumbnail, *, numbers: Mapping[str, int], split: int
) -> _Card:
    width, height = thumbnail.width, thumbnail.height
    drawn = picture.objects[:_OBJECTS]
    # The largest are drawn first, so that none hides another; and labelled first.
    by_size = sorted(drawn, key=_box_area, reverse=True)
    areas = [
        _Area(
            area.layer,
            numbers[area.name],
            *_rect(area.box, width=width, height=height),
            area.uri,
        )
        for area in thumbnail.overlays
    ]
    # Labels of the picture as a whole, and what the colours of its map stand for.
    of_maps = (area.name for area in thumbnail.overlays if area.layer != "masks")
    chips = dict.fromkeys((*picture.labels, *of_maps))
    names = {*picture.labels, *map(class_name, picture.objects)}
    shown = {numbers[name] for name in names} | {area.number for area in areas}
    return _Card(
        key=_title(picture),
        alt=_alt(picture, width=width, height=height),
        names=_what(picture),
        split=split,
        split_name=picture.split,
        shard=picture.shard,
        number=picture.number,
        objects=len(picture.objects),
        thumbnail=thumbnail,
        font_size=_short(_LETTERS_PX * max(width / _CARD_PX, height / (0.7 * _CARD_PX))),
        is_coarse=max(width, height) < _COARSE_PX,
        class_numbers=" ".join(map(str, sorted(shown))),
        areas=areas,
        boxes=[
            _Box(
                numbers[class_name(item)],
                _colour(numbers[class_name(item)]),
                item.is_crowd,
                *_rect(item.box, width=width, height=height),
            )
            for item in by_size
            if item.box is not None
        ],
        poses=list(_poses(drawn, numbers=numbers, width=width, height=height)),
        tags=[
            _tag(
                item,
                numbers[class_name(item)],
                width=width,
                height=height,
                place=place,
            )
            for place, item in enumerate(by_size)
            if item.box is not None
        ],
        labels=[_Label(numbers[name], _colour(numbers[name]), name) for name in chips],
        captions=picture.captions[:_CAPTIONS],
        # Without a thumbnail its problem stands in its place.
        problems=[
            *picture.problems,
            *([thumbnail.problem] if thumbnail.uri and thumbnail.problem else []),
        ],
        rows=[_row(item, numbers[class_name(item)], width=width, height=height) for item in drawn],
        features=[
            _Feature(key, _kind(values), len(values), describe_values(values))
            for key, values in sorted(picture.features.items())[:_FEATURES]
        ],
    )


def _colour(number: int) -> int:
    return number % len(PALETTE)


def _short(value: float) -> str:
    """Writes a coordinate in as few digits as a screen can show; one far away, as far as counts."""
    return f"{min(max(value, -_FAR_PX), _FAR_PX):.2f}".rstrip("0").rstrip(".")


def _rect(
    box: tuple[float, float, float, float], *, width: int, height: int
) -> tuple[str, str, str, str]:
    """Returns x, y, width and height of a box in pixels of the picture."""
    xmin, ymin, xmax, ymax = box
    return (
        _short(xmin * width),
        _short(ymin * height),
        _short(max(0.0, xmax - xmin) * width),
        _short(max(0.0, ymax - ymin) * height),
    )


def _box_area(item: PictureObject) -> float:
    if item.box is None:
        return 0.0
    xmin, ymin, xmax, ymax = item.box
    return (xmax - xmin) * (ymax - ymin)


def _poses(
    items: Sequence[PictureObject], *, numbers: Mapping[str, int], width: int, height: int
) -> Iterator[_Pose]:
    for item in items:
        points = [
            (_short(x * width), _short(y * height), visibility)
            for x, y, visibility in item.keypoints
        ]
        if not any(visibility for _, _, visibility in points):
            continue
        number = numbers[class_name(item)]
        bones = [
            f"M{points[a][0]} {points[a][1]}L{points[b][0]} {points[b][1]}"
            for a, b in item.skeleton
            if max(a, b) < len(points) and points[a][2] and points[b][2]
        ]
        dots = {
            wanted: "".join(f"M{x} {y}h0" for x, y, visibility in points if visibility == wanted)
            for wanted in (1, 2)
        }
        yield _Pose(number, _colour(number), "".join(bones), seen=dots[2], hidden=dots[1])


def _tag(item: PictureObject, number: int, *, width: int, height: int, place: int) -> _Tag:
    assert item.box is not None
    xmin, ymin, xmax, _ = item.box
    name = class_name(item)
    text = escape(name if len(name) <= _TAG_CHARACTERS else f"{name[:_TAG_CHARACTERS]}…")
    letters = _text_width(text)
    width_em = letters + 2 * _TAG_MARGIN
    # Above the box where there is room, and at that side where more of the picture is.
    is_right = xmin > 0.6
    left = -width_em if is_right else 0.0
    top = -_TAG_HEIGHT if ymin > 0.08 else 0.0
    return _Tag(
        number=number,
        colour=_colour(number),
        text=text,
        x=_short((xmax if is_right else xmin) * width),
        y=_short(ymin * height),
        left=_short(left),
        top=_short(top),
        width=_short(width_em),
        text_x=_short(left + _TAG_MARGIN),
        text_y=_short(top + _BASELINE),
        text_width=_short(letters),
        is_minor=place >= _LABELLED,
    )


def _text_width(text: str) -> float:
    """Estimates how wide a text is, in heights of its letters; the browser makes it that wide."""
    width = 0.0
    for character in text:
        if unicodedata.east_asian_width(character) in "WF":
            width += 1.0
        elif character in "iljtfrI.,:;'|!() ":
            width += 0.4
        elif character.isupper() or character in "mwMW@%…":
            width += 0.82
        else:
            width += 0.64
    return width


def _row(item: PictureObject, number: int, *, width: int, height: int) -> _Row:
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
    return _Row(number, _colour(number), class_name(item), place, size, ", ".join(more))


def _kind(values: Sequence[bytes | int | float]) -> str:
    kinds = {bytes: "bytes", int: "int64", float: "float"}
    return kinds[type(values[0])] if values else ""


def _title(picture: Picture) -> str:
    return picture.key or f"example {picture.number:,}"


def _what(picture: Picture) -> str:
    """Names what is annotated, in a few words."""
    counts = Counter(map(class_name, picture.objects))
    parts = [f"{count} {name}" for name, count in counts.most_common(8)]
    if len(counts) > 8:
        parts.append(f"{len(counts) - 8} more classes")
    return ", ".join([*picture.labels, *parts])


def _alt(picture: Picture, *, width: int, height: int) -> str:
    """Describes a picture to those who do not see it."""
    described = f"{_title(picture)}, {width} by {height} pixels"
    what = _what(picture)
    return f"{described}: {what}" if what else described
