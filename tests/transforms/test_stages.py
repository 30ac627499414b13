"""The transforms between reading and writing, each in a pipeline of its own."""

from __future__ import annotations

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that, equal_to

from shardbeam.transforms.assign_split import AssignSplit
from shardbeam.transforms.build_label_map import BuildLabelMap, DistinctCategories
from shardbeam.transforms.check_join import CheckJoin
from shardbeam.transforms.core.labels import LabelMap, LabelSettings
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    Record,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.tally import JoinTally, SourceTally
from shardbeam.transforms.formats.joining import JoinSettings
from shardbeam.transforms.formats.sources import Source
from shardbeam.transforms.join_annotations import JoinAnnotations
from tests.transforms.local_pipeline import local_pipeline, summaries

SPLITS = SplitAssignment(by_source={"train": "train", "test": "test", "folders": "folders"})


def image(name: str = "a.jpg") -> ImageRef:
    return ImageRef(uri=f"/images/{name}", size_bytes=5, version="1")


def listed(source: str, key: str) -> tuple[tuple[str, str], ListedImage]:
    return (source, key), ListedImage(key, image(key))


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


# JoinAnnotations


COCO_SOURCES = [
    Source(name=name, roots=("/images",), format="coco", settings={"annotations": ["a.json"]})
    for name in ("train", "test")
]
FOLDERS = Source(name="folders", roots=("/images",), format="image-folder")

# {case: (source and key, how often listed, what annotation files say, what becomes of it)}
JOINS: dict[str, tuple[tuple[str, str], int, list[AnnotationEntry], list[object]]] = {
    "annotated": (
        ("train", "good.jpg"),
        1,
        [entry("train", "good.jpg")[1]],
        ["record"],
    ),
    "the same key in another source": (
        ("test", "good.jpg"),
        1,
        [],
        ["record"],
    ),
    "annotated in two files": (
        ("train", "twice.jpg"),
        1,
        [
            entry("train", "twice.jpg", file_index=1)[1],
            entry("train", "twice.jpg", file_index=0)[1],
        ],
        ["record"],
    ),
    "not a file of images": (
        ("train", "notes.txt"),
        1,
        [],
        [],
    ),
    "hidden": (
        ("train", ".cache/a.jpg"),
        1,
        [],
        [],
    ),
    "missing": (
        ("train", "../../etc/passwd"),
        0,
        [entry("train", "../../etc/passwd")[1]],
        [(Reason.MISSING_IMAGE, False)],
    ),
    "unknown image id": (
        ("train", "image_id=7"),
        0,
        [entry("train", "image_id=7", defect=Reason.UNKNOWN_IMAGE_ID)[1]],
        [(Reason.UNKNOWN_IMAGE_ID, False)],
    ),
    "only under an id that is another's": (
        ("train", "second.jpg"),
        1,
        [entry("train", "second.jpg", defect=Reason.DUPLICATE_IMAGE_ID)[1]],
        [(Reason.DUPLICATE_IMAGE_ID, True)],
    ),
    "claimed by two ids": (
        ("train", "claimed.jpg"),
        1,
        [
            entry("train", "claimed.jpg", image_id="2", position=2)[1],
            entry("train", "claimed.jpg", image_id="1", position=1)[1],
        ],
        ["record", (Reason.DUPLICATE_KEY, False)],
    ),
    "listed under two spellings": (
        ("train", "\u00e9.jpg"),
        2,
        [],
        ["record", (Reason.DUPLICATE_KEY, True)],
    ),
    "in a class folder": (
        ("folders", "cat/a.jpg"),
        1,
        [],
        ["record"],
    ),
    "in no class folder": (
        ("folders", "a.jpg"),
        1,
        [],
        [(Reason.NO_CLASS_FOLDER, True)],
    ),
    "in the folder of an excluded class": (
        ("folders", "dog/a.jpg"),
        1,
        [],
        [],
    ),
}


def test_every_branch_of_the_join() -> None:
    settings = JoinSettings(splits=SPLITS, labels=LabelSettings(exclude=("dog",)))
    images = [
        (identity, ListedImage(identity[1], image(f"{number}.jpg")))
        for identity, count, _, _ in JOINS.values()
        for number in range(count)
    ]
    entries = [(identity, said) for identity, _, said_of, _ in JOINS.values() for said in said_of]
    results = [(identity, became) for identity, _, _, all_of in JOINS.values() for became in all_of]
    records = [identity for identity, became in results if became == "record"]
    rejects = [(identity, became) for identity, became in results if became != "record"]
    train = SplitOutcome(
        listed=8,
        images=4,
        examples=4,
        unannotated=1,
        unlisted=3,
        rejected={
            "duplicate_image_id": 1,
            "duplicate_key": 2,
            "missing_image": 1,
            "unknown_image_id": 1,
        },
        excluded={Exclusion.HIDDEN_FILE.value: 1, Exclusion.NOT_AN_IMAGE_NAME.value: 1},
    )
    tally = JoinTally(
        splits={
            "train": train,
            "test": SplitOutcome(listed=1, images=1, examples=1, unannotated=1),
            "folders": SplitOutcome(
                listed=3,
                images=1,
                examples=1,
                rejected={"no_class_folder": 1},
                excluded={Exclusion.LABEL_EXCLUDED.value: 1},
            ),
        },
        sources={
            "train": SourceTally(
                referenced=6,
                matched=4,
                listed_key="claimed.jpg",
                referenced_key="claimed.jpg",
            ),
            "test": SourceTally(listed_key="good.jpg"),
            "folders": SourceTally(listed_key="a.jpg"),
        },
        labels=("cat", "dog"),
    )
    with local_pipeline() as pipeline:
        result = (
            (pipeline | "Images" >> beam.Create(images),),
            (pipeline | "Entries" >> beam.Create(entries),),
        ) | JoinAnnotations(sources=[*COCO_SOURCES, FOLDERS], settings=settings)
        assert_that(
            result.records,
            summaries(records, summary=lambda record: (record.source, record.key)),
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
        assert_that(result.tally, equal_to([tally]), label="Tally")


def test_of_what_claims_one_file_the_first_annotation_file_wins() -> None:
    entries = [
        entry("train", "a.jpg", image_id="second", file_index=1),
        entry("train", "a.jpg", image_id="third", file_index=1, position=1),
        entry("train", "a.jpg", image_id="first", position=9),
    ]
    with local_pipeline() as pipeline:
        result = (
            (pipeline | "Images" >> beam.Create([listed("train", "a.jpg")]),),
            (pipeline | "Entries" >> beam.Create(entries),),
        ) | JoinAnnotations(
            sources=COCO_SOURCES, settings=JoinSettings(splits=SPLITS, labels=LabelSettings())
        )
        assert_that(
            result.records,
            summaries(
                ["first"], summary=lambda record: decode_annotations(record.annotations).image_id
            ),
        )


# CheckJoin, BuildLabelMap, AssignSplit


def test_a_join_that_matches_goes_on_and_one_that_does_not_stops_the_run() -> None:
    good = JoinTally(sources={"train": SourceTally(referenced=2, matched=1)})
    with local_pipeline() as pipeline:
        checked = pipeline | beam.Create([good]) | CheckJoin(sources=COCO_SOURCES)
        assert_that(checked, equal_to([good]))

    bad = JoinTally(
        sources={"train": SourceTally(referenced=2, listed_key="b/1.jpg", referenced_key="1.jpg")}
    )
    pipeline = local_pipeline()
    pipeline | beam.Create([bad]) | CheckJoin(sources=COCO_SOURCES)
    with pytest.raises(RuntimeError, match=r"'1\.jpg', .* 'b/1\.jpg'; move the root down: add /b"):
        pipeline.run()


def test_the_label_map_knows_what_files_declare_and_names_tell() -> None:
    categories = [Category("dog", origin="b"), Category("cat", origin="a")]
    with local_pipeline() as pipeline:
        label_map = (
            pipeline | "Categories" >> beam.Create(categories),
            pipeline | "Tally" >> beam.Create([JoinTally(labels=("ant", "cat"))]),
        ) | BuildLabelMap(settings=LabelSettings(), objects=False)
        assert_that(
            label_map,
            equal_to(
                [
                    LabelMap(
                        ids={"ant": 0, "cat": 1, "dog": 2},
                        names={"ant": "ant", "cat": "cat", "dog": "dog"},
                    )
                ]
            ),
        )


def test_a_category_that_comes_with_each_image_is_one() -> None:
    combine = DistinctCategories()
    categories = [
        Category(name, source_id, f"{number:03d}.xml", keypoints=("nose",), is_thing=True)
        for number in range(300)
        for name, source_id in (("cat", 2), ("dog", None))
    ]
    accumulators = []
    for begin in range(0, len(categories), 100):
        accumulator = combine.create_accumulator()
        for category in reversed(categories[begin : begin + 100]):
            accumulator = combine.add_input(accumulator, category)
        assert len(accumulator) == 2
        accumulators.append(accumulator)
    merged = combine.merge_accumulators(reversed(accumulators))
    assert sorted(combine.extract_output(merged), key=lambda category: category.name) == [
        Category("cat", 2, "000.xml", keypoints=("nose",)),
        Category("dog", None, "000.xml", keypoints=("nose",)),
    ]
    other = combine.add_input(merged, Category("cat", 2, "z", keypoints=("nose", "tail")))
    assert len(combine.extract_output(other)) == 3


def test_contradicting_categories_stop_the_run() -> None:
    categories = [Category("cat", 1, "a.json"), Category("cat", 2, "b.json")]
    pipeline = local_pipeline()
    (
        pipeline | "Categories" >> beam.Create(categories),
        pipeline | "Tally" >> beam.Create([JoinTally()]),
    ) | BuildLabelMap(settings=LabelSettings(), objects=True)
    with pytest.raises(RuntimeError, match=r"InputError: a\.json: class 'cat' has id 1 here"):
        pipeline.run()


def test_records_are_keyed_by_the_split_that_the_join_has_found() -> None:
    records = [
        Record(source="s", key=key, image=image(), annotations=b"", split=split)
        for key, split in (("a", "train"), ("b", "test"), ("c", "train"))
    ]
    with local_pipeline() as pipeline:
        assigned = pipeline | beam.Create(records) | AssignSplit()
        assert_that(assigned, equal_to([(record.split, record) for record in records]))
