"""The first corrections of each kind are named, in any order of images and shards."""

from __future__ import annotations

import itertools
import random

import pytest

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import Corrected, Record
from shardbeam.transforms.dataset.collectors import statistics as module
from shardbeam.transforms.dataset.collectors.statistics import first_corrections
from shardbeam.transforms.dataset.rejects import (
    CorrectionsCollector,
    encode_corrections,
)

CLIPPED, LABEL = Correction.BOX_CLIPPED, Correction.EXCLUDED_LABEL_DROPPED


def image(
    key: str, *, source: str = "s", boxes: int = 0, labels: int = 0
) -> tuple[Record, Corrections]:
    """A record of which some boxes were clipped, numbered, and some labels were left out."""
    corrections = Corrections({LABEL.value: labels} if labels else {})
    for number in range(boxes):
        corrections.note(CLIPPED, number, -number)
    return Record(source=source, key=key, image=None, annotations=b""), corrections


def collect(*images: tuple[Record, Corrections]) -> tuple[Corrected, ...]:
    collector = CorrectionsCollector("train")
    for record, corrections in images:
        collector.add(record, corrections)
    return collector.first()


def line(key: str, what: Correction, before: object = None, after: object = None) -> Corrected:
    return Corrected(
        split="train", source="s", key=key, what=what.value, before=before, after=after
    )


def test_a_line_for_each_correction_with_what_is_known_of_it() -> None:
    found = collect(image("b", boxes=2), image("c"), image("a", boxes=1, labels=2))
    assert found == (
        line("a", CLIPPED, 0, 0),
        line("b", CLIPPED, 0, 0),
        line("b", CLIPPED, 1, -1),
        line("a", LABEL),
        line("a", LABEL),
    )


def test_the_first_of_each_kind_in_whatever_order_they_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_NAMED", 5)
    random_numbers = random.Random(0)
    images = [
        image(
            f"{number:03}",
            source="ab"[number % 2],
            boxes=random_numbers.randrange(4),
            labels=random_numbers.randrange(2),
        )
        for number in range(100)
    ]
    ordered = sorted(images, key=lambda each: (each[0].source, each[0].key))
    wanted = {
        what: list(
            itertools.islice(
                (
                    (record.source, record.key, number)
                    for record, corrections in ordered
                    for number in range(corrections[what])
                ),
                5,
            )
        )
        for what in (CLIPPED.value, LABEL.value)
    }
    for shards in (1, 3, 20):
        random_numbers.shuffle(images)
        parts = [collect(*images[shard::shards]) for shard in range(shards)]
        # In several steps, as a runner merges them.
        later = first_corrections(itertools.chain(*parts[1:]))
        merged = first_corrections([*later, *parts[0]])
        found = {
            what: [(each.source, each.key) for each in merged if each.what == what]
            for what in wanted
        }
        assert found == {what: [each[:2] for each in first] for what, first in wanted.items()}
        numbers = [each.before for each in merged if each.what == CLIPPED.value]
        assert numbers == [number for _, _, number in wanted[CLIPPED.value]]
        assert all(len(part) <= 10 for part in parts)


def test_the_file() -> None:
    content = encode_corrections(collect(image("ä\n", boxes=1, labels=1)))
    first, second = map(JsonDecoder().decode, content.splitlines())
    assert first == {
        "split": "train",
        "source": "s",
        "key": "ä\n",
        "what": "box_clipped",
        "from": 0,
        "to": 0,
    }
    assert (second["from"], second["to"]) == (None, None)
