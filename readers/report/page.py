"""Renders the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup
from rich.filesize import decimal

from shardbeam.readers.compare.changes import SplitDifference
from shardbeam.readers.report.cards import Card
from shardbeam.readers.report.changes import Changes
from shardbeam.readers.report.charts import MOST_SPLITS, Charts
from shardbeam.readers.report.duplicate_cards import Group
from shardbeam.readers.report.facts import Facts
from shardbeam.readers.report.predicted_cards import PredictionsShown
from shardbeam.readers.report.sampled_images import Sample
from shardbeam.readers.report.shown_findings import show_findings
from shardbeam.readers.report.styles import OBJECT, Classes, style_rules
from shardbeam.readers.report.templates import asset, environment, macro, policy
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.core.text import NO_NAME, Mark
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.findings import KINDS, KindFound

# If there are more splits, only their number is named in the first lines.
_NAMED_SPLITS = 4
# One script on the page, in this order.
_SCRIPTS = ("page.js", "gallery.js", "marks.js", "charts.js")
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
        total: What is in all splits.
        kinds: Its findings.
        classes: Its classes.
        sample: The pictures that were chosen for the gallery.
        cards: The cards of the gallery, in the order of the dataset.
        is_number_given: Whether the caller has named the number of pictures, or the pictures.
        groups: The first groups of duplicates with their pictures.
        changes: What has changed since an earlier dataset, if one was named.
        predictions: What a model's predictions show, if some were given.
        reject_images: `{number of a listed reject: data URI of its thumbnail}`.
    """

    facts: Facts
    charts: Charts
    total: Statistics
    kinds: Sequence[KindFound]
    classes: Classes
    sample: Sample
    cards: Sequence[Card] = ()
    is_number_given: bool = False
    groups: Sequence[Group] = ()
    changes: Changes | None = None
    predictions: PredictionsShown | None = None
    reject_images: Mapping[int, str] = {}


def render_card(card: Card) -> Markup:
    """Renders a card of the gallery, without its end tag, which comes after its twin."""
    return Markup(macro("card_item")(card))


def render_drawing(card: Card) -> Markup:
    """Renders an image and what is drawn over it."""
    return Markup(macro("drawing")(card))


def render_page(report: Report) -> str:
    """Renders the page."""
    style = f"{asset('drawing.css')}{asset('style.css')}{style_rules()}\n"
    script = "\n".join(map(asset, _SCRIPTS))
    cards, facts, sample = report.cards, report.facts, report.sample
    class_pictures = Counter(number for card in cards for number in card.class_numbers)
    kinds = Counter(note.kind for card in cards for note in card.notes)
    corrected: dict[str, list[Corrected]] = {}
    for line in facts.listed_corrections:
        corrected.setdefault(line.what, []).append(line)
    findings = show_findings(report.kinds, cards=cards, facts=facts, groups=report.groups)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            mark=Mark("report", facts.name).text,
            policy=policy(style, script),
            style=Markup(style),
            script=Markup(script),
            **report._asdict(),
            no_name=NO_NAME,
            unnamed_class=OBJECT,
            sections=_sections(report),
            columns=facts.splits if len(facts.splits) <= MOST_SPLITS else (),
            tiles=list(make_tiles(facts, examples=sample.examples, total=report.total)),
            findings=findings,
            ids=_ids(report),
            gallery_classes={
                name: number
                for name, number in report.classes.numbered().items()
                if class_pictures[number]
            },
            class_pictures=class_pictures,
            # Words, and the number of pictures in the gallery, of each kind.
            gallery_kinds={kind: (KINDS[kind], kinds[kind]) for kind in KINDS if kinds[kind]},
            bar_pictures=Counter(number for card in cards for number in card.bars),
            split_pictures=Counter(card.split for card in cards),
            layers=[
                (layer, title)
                for layer, title in _LAYERS.items()
                if any(layer in card.layers for card in cards)
            ],
            change_columns=SplitDifference.__struct_fields__,
            # The first listed reject of each reason.
            first_rejects={
                reject.reason: f"reject-{number}"
                for number, reject in reversed([*enumerate(facts.listed_rejects)])
            },
            corrected=corrected,
            correction_links={what: f"correction-{what}" for what in corrected},
        )
    )


def make_tiles(
    facts: Facts, *, examples: Mapping[str, int], total: Statistics
) -> Iterator[tuple[str, str]]:
    """Yields the numbers that say what a dataset is, the first lines, and the words for each.

    Args:
        facts: Its metadata.
        examples: `{split: how many Examples it has}`.
        total: What is in all splits.
    """
    number = sum(examples.values())
    # With an Example for each object, an image counts several times.
    what = "images" if total.images == number else "examples"
    yield f"{number:,}", f"{what}{_list_splits(examples)}"
    counts = total.objects_by_class or total.images_by_class
    objects = sum(total.objects_by_class.values())
    by_objects = {int(key): images for key, images in total.images_by_objects.items()}
    if objects:
        spread = ""
        if number and by_objects:
            average = objects / number
            spread = f", {average:.1f} an image ({min(by_objects):,} to {max(by_objects):,})"
        yield f"{objects:,}", f"objects{spread}"
    if total.captions:
        yield f"{total.captions:,}", f"captions, {total.captions / number:.1f} an image"
    names = counts.keys() | facts.labels.keys()
    if names:
        found = [count for count in counts.values() if count]
        of = "objects" if total.objects_by_class else "images"
        least = min(found, default=0) if len(found) == len(names) else 0
        spread = f", {least:,} to {max(found):,} {of} each" if len(found) > 1 else ""
        yield f"{len(names):,}", f"{'class' if len(names) == 1 else 'classes'}{spread}"
    without, which = (
        (by_objects.get(0, 0), "objects") if objects else (total.unannotated, "annotations")
    )
    if without:
        images = "image" if without == 1 else "images"
        yield f"{without:,}", f"{images} without {which} ({without / max(1, number):.1%})"
    size = decimal(sum(split.num_bytes for split in facts.splits))
    shards = sum(len(split.shards) for split in facts.splits)
    sizes = f", images of {_describe_sizes(total)}" if total.width_range else ""
    yield size, f"in {shards:,} {'shard' if shards == 1 else 'shards'}{sizes}"


def _list_splits(examples: Mapping[str, int]) -> str:
    if len(examples) > _NAMED_SPLITS:
        return f" in {len(examples):,} splits"
    if len(examples) == 1:
        return f" in {next(iter(examples))}"
    listed = " · ".join(f"{name} {count:,}" for name, count in examples.items())
    return f": {listed}" if listed else ""


def _describe_sizes(total: Statistics) -> str:
    sides = (
        f"{ends[0]:,}" if ends[0] == ends[-1] else f"{ends[0]:,}\N{EN DASH}{ends[-1]:,}"
        for ends in (total.width_range, total.height_range)
    )
    return " \N{MULTIPLICATION SIGN} ".join(sides) + " px"


def _sections(report: Report) -> list[tuple[str, str]]:
    """Lists the sections of the page: the id and the title of each."""
    facts, charts = report.facts, report.charts
    sections = (
        (True, "look", "Worth a look"),
        (report.predictions is not None, "predictions", "Predictions"),
        (report.changes is not None, "changes", "Changes"),
        (charts.heat is not None, "boxes", "Boxes"),
        (charts.classes is not None, "classes", "Classes"),
        (charts.sizes or charts.same or charts.keypoints, "sizes", "Sizes"),
        (charts.facets or charts.facets_left_out, "facets", "Facets"),
        (True, "gallery", "Gallery"),
        (facts.duplicates is not None, "duplicates", "Duplicates"),
        (facts.rejects, "rejects", "Rejects"),
        (facts.corrections or facts.exclusions, "corrections", "Corrections"),
        (True, "files", "Files"),
    )
    return [(name, title) for is_there, name, title in sections if is_there]


def _ids(report: Report) -> dict[tuple[str, int], str]:
    """Returns `{(split, number): id}` of the images that can be linked to."""
    of_groups = (card for group in report.groups for card in group.cards)
    return {card.place: card.name for card in (*of_groups, *report.cards)}
