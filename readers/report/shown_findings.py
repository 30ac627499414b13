"""Joins the findings of a dataset with the images that show them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardbeam.readers.report.cards import Card
from shardbeam.transforms.dataset.findings import CORRECTION, KINDS, KindFound

# At most this many pictures of each kind are shown above the charts.
_SHOWN = 4


class Evidence(NamedTuple):
    """A picture that shows a finding.

    Attributes:
        card: Its card in the gallery.
        text: The finding in words.
        objects: Numbers of the objects that it names, from 0.
    """

    card: Card
    text: str
    objects: frozenset[int]


class KindShown(NamedTuple):
    """A kind of finding.

    Attributes:
        kind: The kind's stable name.
        title: What is found.
        images: How many images have it.
        lines: How many images of each split have it; for findings about classes, the findings.
        link: The section of the page that shows more; empty if there is none.
        pictures: The strongest examples.
        in_gallery: How many pictures of the gallery have it.
    """

    kind: str
    title: str
    images: int
    lines: Sequence[str]
    link: str = ""
    pictures: Sequence[Evidence] = ()
    in_gallery: int = 0


class ShownFindings(NamedTuple):
    """Findings of a dataset, as the page shows them.

    Attributes:
        of_images: Kinds that images have.
        of_classes: Kinds that are about classes, or about the dataset as a whole.
        usual: Kinds that are usual here.
    """

    of_images: Sequence[KindShown] = ()
    of_classes: Sequence[KindShown] = ()
    usual: Sequence[KindShown] = ()


def show_findings(kinds: Sequence[KindFound], *, cards: Sequence[Card]) -> ShownFindings:
    """Joins findings with the images of the gallery that show them.

    Args:
        kinds: Findings, by kind and split.
        cards: The cards of the gallery.
    """
    of_images = [each for each in kinds if each.images]
    # One split may have more than a few images of a kind that is usual in another: both are shown.
    notable = {each.kind for each in of_images if not each.usual}
    return ShownFindings(
        of_images=list(_by_kind([each for each in of_images if each.kind in notable], cards=cards)),
        of_classes=list(_by_kind([each for each in kinds if not each.images], cards=())),
        usual=list(_by_kind([each for each in of_images if each.kind not in notable], cards=cards)),
    )


def _by_kind(found: Sequence[KindFound], *, cards: Sequence[Card]) -> Iterator[KindShown]:
    order = list(KINDS)
    ordered = sorted(found, key=lambda each: order.index(each.kind))
    for kind, group in itertools.groupby(ordered, key=lambda each: each.kind):
        of_kind = list(group)
        shown = sorted(_evidence(kind, cards), key=lambda item: -item[0])
        lines = [
            each.text or (f"{each.count}; {each.classes}" if each.objects else each.count)
            for each in of_kind
        ]
        yield KindShown(
            kind=kind,
            title=KINDS[kind][:1].upper() + KINDS[kind][1:],
            images=sum(each.images for each in of_kind),
            lines=lines,
            link="corrections" if kind == CORRECTION else "" if cards else "classes",
            pictures=[evidence for _, evidence in shown[:_SHOWN]],
            in_gallery=len(shown),
        )


def _evidence(kind: str, cards: Sequence[Card]) -> Iterator[tuple[int, Evidence]]:
    """Yields the pictures that show a kind of finding, each with the finding's strength."""
    for card in cards:
        for note in card.notes:
            if note.kind == kind:
                yield note.strength, Evidence(card, note.text, frozenset(note.objects))
