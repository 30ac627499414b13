"""The join of collections joins each key; `formats/test_joining.py` tests the join of a key."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

from shardbeam.transforms.beam.stages import MergeCounts
from shardbeam.transforms.core.counts import ENTRIES, IMAGES, RECORDS
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    Reject,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import SplitAssignment, example_hash
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.join.join import join_entries
from shardbeam.transforms.formats.join.sources import JoinSettings, Source, encode_join_value
from shardbeam.transforms.join_annotations import JoinAnnotations
from tests.support.local_pipeline import local_pipeline
from tests.support.shards import decode_batch

SOURCES = [
    *(Source(each, CocoFormat(images="/i", annotations=["a.json"])) for each in ("train", "test")),
    Source("folders", ImageFolderFormat(images="/i")),
]
SETTINGS = JoinSettings(
    splits=SplitAssignment(by_source={source.name: source.name for source in SOURCES}),
    labels=LabelSettings(exclude=["dog"]),
    unannotated="keep",
)


def entry(key: str, *, position: int = 0, defect: Reason | None = None) -> AnnotationEntry:
    annotations = encode_annotations(ImageAnnotations(image_id=str(position)))
    return AnnotationEntry(
        key=key,
        annotations=b"" if defect else annotations,
        file_index=0,
        position=position,
        image_id=str(position),
        defect=defect,
        detail="the detail" if defect else "",
    )


# (source, key, how often it is listed, what annotation files say)
KEYS: list[tuple[str, str, int, list[AnnotationEntry]]] = [
    ("train", "good.jpg", 1, [entry("good.jpg")]),
    # The same key in another source.
    ("test", "good.jpg", 1, []),
    ("train", "notes.txt", 1, []),
    ("train", "a/b.jpg", 0, [entry("a/b.jpg")]),
    ("train", "image_id=7", 0, [entry("image_id=7", defect=Reason.UNKNOWN_IMAGE_ID)]),
    ("train", "claimed.jpg", 1, [entry("claimed.jpg", position=2), entry("claimed.jpg")]),
    ("train", "\u00e9.jpg", 2, []),
    ("folders", "cat/a.jpg", 1, []),
    ("folders", "a.jpg", 1, []),
    ("folders", "dog/a.jpg", 1, []),
]


def encode(
    item: ListedImage | AnnotationEntry, *, what: str, source: str, key: str
) -> tuple[bytes, bytes]:
    (found,) = (each for each in SOURCES if each.name == source)
    return encode_join_value(item, name=key, what=what, source=found)


def test_each_key_is_joined_with_its_own() -> None:
    formats = {source.name: source.format for source in SOURCES}
    images, entries, records = [], [], []
    rejects: list[Reject] = []
    inputs = InputCounts()
    for source, key, count, said in KEYS:
        listed = [
            ListedImage(key, ImageRef(uri=f"/i/{number}.jpg", size_bytes=5, version="1"))
            for number in range(count)
        ]
        images += [encode(each, what=IMAGES, source=source, key=key) for each in listed]
        entries += [encode(each, what=ENTRIES, source=source, key=key) for each in said]
        joined = join_entries(
            source=source,
            key=key,
            images=listed,
            entries=said,
            source_format=formats[source],
            settings=SETTINGS,
        )
        if joined.record:
            records.append(joined.record)
            inputs.counts.send(RECORDS, example_hash(seed=0, source=source, key=joined.record.key))
        rejects += joined.rejects
        inputs.add_joined(joined, source=source, key=key, listed=count, referenced=len(said))
    assert (len(records), len(rejects)) == (5, 4)
    for what, values in ((IMAGES, images), (ENTRIES, entries)):
        for value in values:
            inputs.counts.receive(what, *value)
    with local_pipeline() as pipeline:
        result = (
            pipeline | "Images" >> beam.Create(images),
            pipeline | "Entries" >> beam.Create(entries),
        ) | JoinAnnotations(sources=SOURCES, settings=SETTINGS)
        assert_that(result.records | beam.FlatMap(decode_batch), equal_to(records), label="Records")
        assert_that(result.rejects, equal_to(rejects), label="Rejects")
        assert_that(result.counts | MergeCounts(), equal_to([inputs]), label="InputCounts")


# (key, whether it is listed, whether it is annotated)
CASES = [
    # Two images whose names differ in case alone, and the annotations of each.
    ("a.jpg", True, True),
    ("A.jpg", True, True),
    ("b.jpg", True, False),
    ("B.JPG", False, True),
    # Both may be meant.
    ("c.jpg", True, True),
    ("C.jpg", True, False),
    ("C.JPG", False, True),
    ("stra\u00dfe.jpg", True, False),
    ("STRASSE.jpg", False, True),
    ("d.jpg", True, False),
]


def test_names_that_differ_in_case_alone_are_not_joined_but_named() -> None:
    values = []
    for key, is_listed, is_annotated in CASES:
        image = ListedImage(key, ImageRef(uri=f"/i/{key}", size_bytes=5, version="1"))
        if is_listed:
            values.append(encode(image, what=IMAGES, source="train", key=key))
        if is_annotated:
            values.append(encode(entry(key), what=ENTRIES, source="train", key=key))
    fix = "differ in case alone: rename one of them, or join them without regard to case: "
    expected = {
        "B.JPG": "annotated, but no such image is listed; the listed one is 'b.jpg'",
        "b.jpg": "no annotation file names it; the annotated name is 'B.JPG'",
        "C.JPG": "annotated, but no such image is listed; the listed one is 'C.jpg', 'c.jpg'",
        "C.jpg": "no annotation file names it; the annotated name is 'C.JPG'",
        "STRASSE.jpg": (
            "annotated, but no such image is listed; the listed one is 'stra\u00dfe.jpg'"
        ),
        "stra\u00dfe.jpg": "no annotation file names it; the annotated name is 'STRASSE.jpg'",
    }
    with local_pipeline() as pipeline:
        # A listed image and an annotation file may come from different steps.
        result = (
            pipeline | "Some" >> beam.Create(values[::2]),
            pipeline | "Others" >> beam.Create(values[1::2]),
        ) | JoinAnnotations(sources=SOURCES, settings=SETTINGS)
        assert_that(
            result.records | beam.FlatMap(decode_batch) | beam.Map(lambda each: each.key),
            equal_to(["a.jpg", "A.jpg", "c.jpg", "d.jpg"]),
            label="Records",
        )
        assert_that(
            result.rejects | beam.Map(lambda each: (each.key, each.detail)),
            equal_to(
                [
                    (key, f"{detail}, and they {fix}--match name (match: name)")
                    for key, detail in expected.items()
                ]
            ),
            label="Rejects",
        )
        # Every image is counted once.
        assert_that(
            result.counts | MergeCounts() | beam.Map(lambda each: each.splits["train"].listed),
            equal_to([sum(is_listed for _, is_listed, _ in CASES)]),
            label="InputCounts",
        )
