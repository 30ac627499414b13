from __future__ import annotations

import apache_beam as beam
from apache_beam.testing.util import assert_that, equal_to

from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.census import Census, SourceCensus
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.formats.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import ImageFolderFormat
from shardbeam.transforms.formats.joining import JoinSettings
from shardbeam.transforms.formats.sources import Source
from shardbeam.transforms.join_annotations import JoinAnnotations
from shardbeam.transforms.take_census import TakeCensus
from tests.support.local_pipeline import local_pipeline, summaries

SPLITS = SplitAssignment(by_source={"train": "train", "test": "test", "folders": "folders"})


def image(name: str = "a.jpg") -> ImageRef:
    return ImageRef(uri=f"/images/{name}", size_bytes=5, version="1")


def entry(
    source: str,
    key: str,
    *,
    image_id: str = "1",
    file_index: int = 0,
    position: int = 0,
    defect: Reason | None = None,
) -> tuple[tuple[str, str], AnnotationEntry]:
    annotations = b"" if defect else encode_annotations(ImageAnnotations(image_id=image_id))
    return (source, key), AnnotationEntry(
        key=key,
        annotations=annotations,
        file_index=file_index,
        position=position,
        image_id=image_id,
        defect=defect,
        detail="the detail" if defect else "",
    )


COCO_SOURCES = [
    Source(name, CocoFormat(images="/images", annotations=["a.json"])) for name in ("train", "test")
]
FOLDERS = Source("folders", ImageFolderFormat(images="/images"))

# Bytes of an image with its annotations.
SAID = 5 + len(entry("train", "a.jpg")[1].annotations)
NOTHING_SAID = 5 + len(encode_annotations(ImageAnnotations(image_id="")))
FOLDER_SAYS = ImageAnnotations(image_id="cat/a.jpg", labels=("cat",))

# (source and key, how often it is listed, what annotation files say, what becomes of it)
JOINS: list[tuple[tuple[str, str], int, list[AnnotationEntry], list[object]]] = [
    (("train", "good.jpg"), 1, [entry("train", "good.jpg")[1]], ["record"]),
    # The same key in another source.
    (("test", "good.jpg"), 1, [], ["record"]),
    (("train", "notes.txt"), 1, [], []),
    (("train", "a/b.jpg"), 0, [entry("train", "a/b.jpg")[1]], [(Reason.MISSING_IMAGE, False)]),
    (
        ("train", "image_id=7"),
        0,
        [entry("train", "image_id=7", defect=Reason.UNKNOWN_IMAGE_ID)[1]],
        [(Reason.UNKNOWN_IMAGE_ID, False)],
    ),
    (
        ("train", "claimed.jpg"),
        1,
        [
            entry("train", "claimed.jpg", image_id="2", position=2)[1],
            entry("train", "claimed.jpg", image_id="1", position=1)[1],
        ],
        ["record", (Reason.DUPLICATE_KEY, False)],
    ),
    (("train", "\u00e9.jpg"), 2, [], ["record", (Reason.DUPLICATE_KEY, True)]),
    (("folders", "cat/a.jpg"), 1, [], ["record"]),
    (("folders", "a.jpg"), 1, [], [(Reason.NO_CLASS_FOLDER, True)]),
    # Of an excluded class.
    (("folders", "dog/a.jpg"), 1, [], []),
]


def test_every_branch_of_the_join() -> None:
    settings = JoinSettings(splits=SPLITS, labels=LabelSettings(exclude=["dog"]))
    images = [
        (identity, ListedImage(identity[1], image(f"{number}.jpg")))
        for identity, count, _, _ in JOINS
        for number in range(count)
    ]
    entries = [(identity, said) for identity, _, said_of, _ in JOINS for said in said_of]
    results = [(identity, became) for identity, _, _, all_of in JOINS for became in all_of]
    records = [identity for identity, became in results if became == "record"]
    rejects = [(identity, became) for identity, became in results if became != "record"]
    train = SplitOutcome(
        listed=5,
        images=3,
        examples=3,
        num_bytes=2 * SAID + NOTHING_SAID,
        unannotated=1,
        unlisted=3,
        rejected={"duplicate_key": 2, "missing_image": 1, "unknown_image_id": 1},
        excluded={Exclusion.NOT_AN_IMAGE_NAME.value: 1},
    )
    census = Census(
        splits={
            "train": train,
            "test": SplitOutcome(
                listed=1, images=1, examples=1, num_bytes=NOTHING_SAID, unannotated=1
            ),
            "folders": SplitOutcome(
                listed=3,
                images=1,
                examples=1,
                num_bytes=5 + len(encode_annotations(FOLDER_SAYS)),
                rejected={"no_class_folder": 1},
                excluded={Exclusion.LABEL_EXCLUDED.value: 1},
            ),
        },
        sources={
            "train": SourceCensus(
                referenced=4,
                matched=2,
                listed_key="claimed.jpg",
                referenced_key="claimed.jpg",
            ),
            "test": SourceCensus(listed_key="good.jpg"),
            "folders": SourceCensus(listed_key="a.jpg"),
        },
    )
    for label in ("cat", "dog"):
        census.add_category(Category(label, origin="the images' names"))
    with local_pipeline() as pipeline:
        result = (
            pipeline | "Images" >> beam.Create(images),
            pipeline | "Entries" >> beam.Create(entries),
        ) | JoinAnnotations(sources=[*COCO_SOURCES, FOLDERS], settings=settings)
        assert_that(
            result.records,
            summaries(records, summary=lambda element: (element[1].source, element[1].key)),
            label="Records",
        )
        assert_that(
            result.rejects,
            summaries(
                rejects,
                summary=lambda reject: (
                    (reject.source, reject.key),
                    (reject.reason, reject.listed),
                ),
            ),
            label="Rejects",
        )
        assert_that((result.census,) | TakeCensus(), equal_to([census]), label="Census")
