r"""Renders the page.

Texts of the dataset can never become markup: Jinja escapes them, and control characters (also those
that change the direction of writing) are written like `\x1b`. The page's content security policy
allows only its own script and style, which are named by their digests, and no requests.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup
from rich.filesize import decimal

from shardbeam.pipelines.figure import Classes
from shardbeam.pipelines.logs import escape
from shardbeam.pipelines.own_files import Mark
from shardbeam.pipelines.report.cards import Card, class_numbers, look_class, make_card, style_looks
from shardbeam.pipelines.report.changes import Changes
from shardbeam.pipelines.report.charts import MOST_SPLITS, Charts
from shardbeam.pipelines.report.duplicates import Duplicates, Group
from shardbeam.pipelines.report.facts import Code, Facts, SplitFacts
from shardbeam.pipelines.report.sample import Sample
from shardbeam.pipelines.report.thumbnails import Thumbnail
from shardbeam.pipelines.tables import describe_value
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.dataset.read.difference import SplitDifference
from shardbeam.transforms.dataset.read.rejects import StoredReject

# The most characters of a text, and of the config, that are shown.
_TEXT_CHARACTERS = 400
_CONFIG_CHARACTERS = 100_000
_SHARDS = 1000
_SPLITS = 200
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
    """The content of the page.

    Attributes:
        facts: The dataset's metadata.
        charts: Charts of its statistics.
        classes: Its classes.
        sample: The pictures of the gallery.
        thumbnails: The thumbnails of these pictures, or of the first ones if not all fit.
        duplicates: Its duplicates; None if they were not looked for.
        pairs: The thumbnails of each group of duplicates.
        changes: What has changed since an earlier dataset, if one was named.
        reject_pictures: `{number of a listed reject: data URI of its thumbnail}`.
    """

    facts: Facts
    charts: Charts
    classes: Classes
    sample: Sample
    thumbnails: Sequence[Thumbnail]
    duplicates: Duplicates | None = None
    pairs: Sequence[Sequence[Thumbnail]] = ()
    changes: Changes | None = None
    reject_pictures: Mapping[int, str] = {}


class _CorrectionRows(NamedTuple):
    """The listed corrections of one kind."""

    code: Code
    rows: Sequence[tuple[Corrected, str, str]]


class Lines(str):
    """A text whose line ends are kept, not escaped."""


class _Class(NamedTuple):
    number: int
    look: str
    name: str
    pictures: int


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
    """A group of duplicates, and their cards, each with a text on how far its hash differs."""

    group: Group
    cards: Sequence[tuple[Card, str]]


class _RejectRow(NamedTuple):
    reject: StoredReject
    uri: str
    alt: str


def render_page(report: Report) -> str:
    """Renders the page."""
    style, script = f"{_asset('style.css')}{style_looks()}\n", _asset("page.js")
    cards = list(_cards(report))
    facts, sample = report.facts, report.sample
    shown = Counter(number for card in cards for number in card.class_numbers.split())
    names = class_numbers(sample)
    classes = [
        _Class(number, look_class(report.classes.look(name)), name, shown[str(number)])
        for name, number in names.items()
        if shown[str(number)]
    ]
    rejects = [
        _RejectRow(reject, report.reject_pictures.get(number, ""), f"the rejected {reject.key}")
        for number, reject in enumerate(facts.listed_rejects)
    ]
    return _template().render(
        mark=Mark("report", facts.name).text,
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
        corrections=list(_correction_rows(facts)),
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
    """Shortens a text and escapes control characters; afterwards Jinja escapes markup."""
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
            found = facts.duplicates
            harm = found.leaks or found.contradictions or found.near_contradictions
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
        hint += f"; {left_out:,} more were asked for, but do not fit on a page of 10 MB"
    absent = report.sample.absent
    if absent:
        missing = "1 class is" if len(absent) == 1 else f"{len(absent):,} classes are"
        hint += f"; {missing} not among them: {list_classes(absent)}"
    elif report.sample.classes and not left_out:
        hint += "; every class is among them"
    return f"{hint}."


def _rejects_title(facts: Facts) -> str:
    total = sum(code.total for code in facts.rejects)
    listed = len(facts.listed_rejects)
    return f"The first {listed:,} of {total:,}" if listed < total else "All of them"


def _correction_rows(facts: Facts) -> Iterator[_CorrectionRows]:
    for code in facts.corrections:
        rows = [
            (line, describe_value(line.before), describe_value(line.after))
            for line in facts.listed_corrections
            if line.what == code.code
        ]
        if rows:
            yield _CorrectionRows(code, rows)


def _has_layer(cards: Sequence[Card], layer: str) -> bool:
    found = {
        "boxes": lambda card: card.boxes,
        "labels": lambda card: card.tags or card.labels,
        "keypoints": lambda card: card.poses,
        "captions": lambda card: card.captions,
    }.get(layer)
    if found is None:
        return any(area.layer == layer for card in cards for area in card.areas)
    return any(map(found, cards))


def _cards(report: Report) -> Iterator[Card]:
    numbers = class_numbers(report.sample)
    splits = {split.name: number for number, split in enumerate(report.facts.splits)}
    for picture, thumbnail in zip(report.sample.pictures, report.thumbnails, strict=False):
        yield make_card(
            picture,
            thumbnail,
            classes=report.classes,
            numbers=numbers,
            split=splits[picture.split],
        )


def _pairs(report: Report) -> Iterator[_Pair]:
    if report.duplicates is None:
        return
    numbers = class_numbers(report.sample)
    for group, thumbnails in zip(report.duplicates.groups, report.pairs, strict=True):
        cards = [
            (
                make_card(picture, thumbnail, classes=report.classes, numbers=numbers, split=0),
                "" if not distance else f"{distance} of 64 bits differ",
            )
            for picture, thumbnail, distance in zip(
                group.pictures, thumbnails, group.distances, strict=True
            )
        ]
        yield _Pair(group, cards)
