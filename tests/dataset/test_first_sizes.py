"""The first images of each source, by their keys, whatever the order and the bundles are."""

from __future__ import annotations

import random

from shardbeam.transforms.core.records import (
    ImageAnnotations,
    ImageRef,
    Record,
    SizedImage,
    encode_annotations,
)
from shardbeam.transforms.dataset import first_sizes
from shardbeam.transforms.dataset.first_sizes import FirstSizes


def record(number: int, *, source: str, width: int) -> Record:
    annotations = ImageAnnotations(image_id="7", width=width, height=9, labels=("a",))
    image = ImageRef(f"/{source}/{number}.jpg", 100, "1")
    return Record(source, f"{number:05}.jpg", image, encode_annotations(annotations))


def test_bundles_in_any_order_give_the_first_of_all() -> None:
    rng = random.Random(0)
    records = [
        record(number, source=source, width=number % 3 * 10)
        for source, count in (("many", 2000), ("few", 30), ("without", 0))
        for number in range(count)
    ]
    expected = {
        source: tuple(
            SizedImage(each.image, int(each.key[:5]) % 3 * 10, 9)
            for each in records
            if each.source == source and each.image is not None and int(each.key[:5]) % 3
        )[: first_sizes.MAX_SIZES]
        for source in ("few", "many")
    }
    for _ in range(5):
        rng.shuffle(records)
        merged, emitted = FirstSizes(), 0
        for worker in range(2):
            # As the join's step has it: one sample of all bundles, and one of each.
            own, bundle = FirstSizes(), FirstSizes()
            for each in records[worker::2]:
                if own.add_record(each):
                    bundle.add_record(each)
                    emitted += 1
                if rng.random() < 0.01:
                    merged.add(bundle)
                    bundle = FirstSizes()
            merged.add(bundle)
        assert merged.at_least(10) == expected
        # Most images are not sent on.
        assert emitted < 1200
    assert merged.at_least(30) == {"many": expected["many"]}
