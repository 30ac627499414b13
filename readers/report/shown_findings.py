"""Joins the findings of a dataset with the images that show them, the worst findings first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from shardbeam.readers.report.cards import Card
from shardbeam.readers.report.duplicate_cards import Group
from shardbeam.readers.report.facts import Facts
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.dataset.findings import (
    CORRECTION,
    EMPTY_SPLIT,
    KINDS,
    MISSING_CLASS,
    OF_SIMILAR_PICTURES,
    RARE_CLASS,
    SAME_PICTURE,
    SIMILAR_NAMES,
    TRAIN,
    UNEVEN_CLASSES,
    UNUSED_CLASS,
    KindFound,
)

# At most this many pictures of each kind are shown above the charts.
_SHOWN = 4

# What makes a model, or its evaluation, wrong; what may; and what is perhaps meant so.
Severity = Literal["bad", "odd", "usual"]

_USUAL = "Common in this dataset, so it may be on purpose."
_EXCLUDE = "Mark those that should go, and copy their keys into a file for `exclude`."
_CORRECT = "If they are wrong, correct them in their source: the keys say in which images."
# {kind: what to do about it}
_ADVICE: Mapping[str, str] = {
    "leak": "A model knows these pictures from training, so its score is too good. Leave copies "
    "out with `exclude`, or keep them in one split with `group_by`; both take "
    "`duplicates.parquet`.",
    "contradiction": "Only you know which label is right. Leave the other picture out with "
    "`exclude`, or correct its label.",
    "near_contradiction": "Compare the pictures: often they are frames or copies of one scene.",
    "warning": "The last build said this, too; the lines say what to do.",
    "reject": "Each row says what is wrong with the image, and where.",
    SAME_PICTURE: _CORRECT,
    UNUSED_CLASS: "A model cannot learn them. Correct the names, or leave them out of the labels.",
    SIMILAR_NAMES: "If they are one class, `labels.merge` merges them.",
    RARE_CLASS: "A model will hardly learn them: collect more, merge classes, or sample by class.",
    UNEVEN_CLASSES: "Weight or sample by class, and evaluate each class by itself.",
    MISSING_CLASS: "A model never learns what `train` lacks, and what another split lacks is not "
    "evaluated. `stratify` spreads classes over splits.",
    EMPTY_SPLIT: "Right for a test set whose annotations are not published; otherwise check where "
    "the split's annotations are.",
}
# {flag of a group: how much harm it does, and what it is}
_DUPLICATES: Mapping[str, tuple[Severity, str]] = {
    "leak": ("bad", "Pictures in several splits"),
    "contradiction": ("bad", "Equal files with different labels"),
    "near_contradiction": ("odd", "Nearly equal pictures of different classes"),
}
# Kinds that name a split: they are worst if it is the one for training.
_OF_SPLITS = (MISSING_CLASS, EMPTY_SPLIT)
_OF_PICTURES = ("dark_picture", "bright_picture", "low_contrast", "no_objects")


class Evidence(NamedTuple):
    """A picture that shows a finding.

    Attributes:
        card: Its card in the gallery, or among the duplicates.
        text: The finding in words.
        objects: Numbers of the objects that it names, from 0.
    """

    card: Card
    text: str = ""
    objects: frozenset[int] = frozenset()


class FindingShown(NamedTuple):
    """A finding of a dataset, as the page shows it.

    Attributes:
        kind: The kind's stable name.
        severity: How much harm it does.
        title: What is found.
        number: How many images or groups have it; empty for findings about classes.
        shares: How many images of each split have it, or the first finding about classes.
        lines: More of it, such as the classes in each split, or the other findings about classes.
        advice: What to do about it; may be empty.
        section: The section of the page that shows more; empty if there is none.
        pictures: The strongest examples; those of duplicates are pairs.
        in_gallery: How many pictures of the gallery have it.
    """

    kind: str
    severity: Severity
    title: str
    number: str = ""
    shares: str = ""
    lines: Sequence[str] = ()
    advice: str = ""
    section: str = ""
    pictures: Sequence[Evidence] = ()
    in_gallery: int = 0


def show_findings(
    kinds: Sequence[KindFound],
    *,
    cards: Sequence[Card],
    facts: Facts,
    groups: Sequence[Group],
) -> list[FindingShown]:
    """Lists what is found in a dataset, the worst first and what is usual here last.

    Args:
        kinds: Findings, by kind and split.
        cards: The cards of the gallery.
        facts: The dataset's metadata.
        groups: The first groups of duplicates with their pictures.
    """
    of_images = [each for each in kinds if each.images]
    # One split may have more than a few images of a kind that is usual in another: it counts both.
    notable = {each.kind for each in of_images if not each.usual}
    found = [
        *_show_duplicates(facts, groups=groups),
        *_by_kind(of_images, cards=cards, notable=notable),
        *_show_warnings(facts),
        *_show_rejects(facts),
        *_by_kind([each for each in kinds if not each.images], cards=(), notable=set(KINDS)),
    ]
    order: Sequence[Severity] = ("bad", "odd", "usual")
    return sorted(found, key=lambda each: order.index(each.severity))


def _show_duplicates(facts: Facts, *, groups: Sequence[Group]) -> Iterator[FindingShown]:
    counts = facts.duplicates
    if counts is None:
        return
    images = {name: outcome.images for name, outcome in facts.outcomes.items()}
    for kind, (severity, title) in _DUPLICATES.items():
        number = getattr(counts, f"{kind}s")
        if number:
            yield FindingShown(
                kind=kind,
                severity=severity,
                title=title,
                number=counted(number, "group"),
                shares=counts.describe_leaks(images) if kind == "leak" and counts.leaking else "",
                advice=_ADVICE[kind],
                section="duplicates",
                pictures=list(itertools.islice(_show_pairs(kind, groups), _SHOWN)),
            )


def _show_pairs(kind: str, groups: Sequence[Group]) -> Iterator[Evidence]:
    """Yields two pictures of each group that is of a kind, the two that show why."""
    for group in groups:
        if kind in group.flags:
            chosen = [*group.cards]
            if kind == "leak":
                # The group's pictures may begin with two of one split.
                first = chosen[0].split_name
                others = (card for card in chosen[1:] if card.split_name != first)
                chosen = [chosen[0], *others]
            yield from map(_show_labels, chosen[:2])


def _show_labels(card: Card) -> Evidence:
    return Evidence(card, ", ".join(filter(None, [card.split_name, card.names])))


def _show_rejects(facts: Facts) -> Iterator[FindingShown]:
    rejected = sum(code.total for code in facts.rejects)
    if rejected:
        yield FindingShown(
            kind="reject",
            severity="odd",
            title="Images that were rejected",
            number=counted(rejected, "image"),
            shares=", ".join(f"{code.total:,} {code.code}" for code in facts.rejects),
            advice=_ADVICE["reject"],
            section="rejects",
        )


def _show_warnings(facts: Facts) -> Iterator[FindingShown]:
    images = {name: outcome.images for name, outcome in facts.outcomes.items()}
    # Duplicates are findings with pictures.
    shown = () if facts.duplicates is None else (*facts.duplicates.describe(images).values(),)
    warnings = [line for line in facts.warnings if not line.startswith(shown)]
    if warnings:
        yield FindingShown(
            kind="warning",
            severity="odd",
            title="Warnings of the build",
            number=counted(len(warnings), "warning"),
            shares=warnings[0],
            lines=warnings[1:],
            advice=_ADVICE["warning"],
        )


def _by_kind(
    found: Sequence[KindFound], *, cards: Sequence[Card], notable: set[str]
) -> Iterator[FindingShown]:
    order = list(KINDS)
    ordered = sorted(found, key=lambda each: order.index(each.kind))
    for kind, group in itertools.groupby(ordered, key=lambda each: each.kind):
        of_kind = list(group)
        strongest = sorted(_evidence(kind, cards), key=lambda item: -item[0])
        shown = [evidence for _, evidence in strongest]
        if kind in OF_SIMILAR_PICTURES:
            shown = list(_in_pairs(shown))
        images = sum(each.images for each in of_kind)
        is_bad = kind == SAME_PICTURE or (
            kind in _OF_SPLITS and any(each.split == TRAIN for each in of_kind)
        )
        severity: Severity = "bad" if is_bad else "odd"
        yield FindingShown(
            kind=kind,
            severity=severity if kind in notable else "usual",
            title=KINDS[kind][:1].upper() + KINDS[kind][1:],
            number=counted(images, "image") if images else "",
            shares=", ".join(f"{each.split} {each.images:,} ({each.share:.2%})" for each in of_kind)
            if images
            else of_kind[0].text,
            lines=[f"{each.split}: {each.classes}" for each in of_kind if each.classes]
            if images
            else [each.text for each in of_kind[1:]],
            advice=_advise(kind, images=images) if kind in notable else _USUAL,
            section=_section_of(kind, images=images),
            pictures=shown[:_SHOWN],
            in_gallery=len(strongest),
        )


def _in_pairs(found: Sequence[Evidence]) -> Iterator[Evidence]:
    """Yields images with their labels, each followed by its twin, and none twice."""
    seen = set()
    for each in found:
        twin = each.card.twin
        for card in (each.card, *([twin.card] if twin is not None else [])):
            if card.place not in seen:
                seen.add(card.place)
                yield _show_labels(card)


def _section_of(kind: str, *, images: int) -> str:
    """Returns the section of the page that shows more; empty if there is none."""
    if kind == CORRECTION:
        return "corrections"
    return "" if images or kind == EMPTY_SPLIT else "classes"


def _advise(kind: str, *, images: int) -> str:
    if kind in _ADVICE:
        return _ADVICE[kind]
    if not images:
        return ""
    return _EXCLUDE if kind in _OF_PICTURES else _CORRECT


def _evidence(kind: str, cards: Sequence[Card]) -> Iterator[tuple[int, Evidence]]:
    """Yields the pictures that show a kind of finding, each with the finding's strength."""
    for card in cards:
        for note in card.notes:
            if note.kind == kind:
                yield note.strength, Evidence(card, note.text, frozenset(note.objects))
