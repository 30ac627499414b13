"""All combinations of listing and annotations, one key at a time."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.labels import LabelSettings
from shardbeam.transforms.core.reasons import Correction, Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    MaskRole,
    ObjectAnnotation,
    Segment,
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.base import Format, Kind, Match, Place, Role, find_format
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.image_folder import FilenameLabelFormat, ImageFolderFormat
from shardbeam.transforms.formats.join.join import JoinedKey, join_entries
from shardbeam.transforms.formats.join.merge_entries import merge_annotations
from shardbeam.transforms.formats.join.sources import (
    GivenRecords,
    JoinSettings,
    is_plain,
    needs_join,
)
from shardbeam.transforms.formats.names import normalize_key
from tests.support.archive_files import write_tar


class SilentFormat(Format, frozen=True):
    kinds = frozenset({Kind.DETECTION})


class FolderFormat(Format, frozen=True):
    kinds = frozenset({Kind.CLASSIFICATION})

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        folder, _, _ = key.rpartition("/")
        if not folder:
            raise RejectedError(Reason.NO_CLASS_FOLDER, "no folder")
        if folder == "other":
            return Exclusion.CLASS_NOT_LISTED
        return ImageAnnotations(image_id=key, labels=(folder,))


class DroppingFormat(SilentFormat, frozen=True):
    UNANNOTATED = "drop"


class RejectingFormat(SilentFormat, frozen=True):
    UNANNOTATED = "reject"


class RowFormat(Format, frozen=True):
    kinds = frozenset({Kind.ROWS})


def ref(uri: str = "/data/a.jpg") -> ImageRef:
    return ImageRef(uri=uri, size_bytes=1, version="1")


def entry(
    image_id: str = "1",
    *,
    position: int = 0,
    file_index: int = 0,
    defect: Reason | None = None,
    objects: tuple[ObjectAnnotation, ...] = (),
) -> AnnotationEntry:
    annotations = ImageAnnotations(image_id=image_id, width=4, height=3, objects=objects)
    return AnnotationEntry(
        key="a.jpg",
        annotations=encode_annotations(annotations),
        file_index=file_index,
        position=position,
        image_id=image_id,
        defect=defect,
        detail="the detail" if defect else "",
    )


class Outcome(NamedTuple):
    """The outcome of a key; `reasons` holds each reject's reason, and whether it is listed."""

    written: bool = False
    split: str = "train"
    excluded: Exclusion | None = None
    reasons: tuple[tuple[Reason, bool], ...] = ()
    unannotated: bool = False


def join(
    *entries: AnnotationEntry,
    images: tuple[ImageRef | ListedImage, ...] = (ref(),),
    key: str = "a.jpg",
    source_format: Format | None = None,
    splits: SplitAssignment | None = None,
    **settings: Any,  # noqa: ANN401  # Of the join.
) -> JoinedKey:
    return join_entries(
        source="s",
        key=key,
        images=[
            image if isinstance(image, ListedImage) else ListedImage(key, image) for image in images
        ],
        entries=entries,
        source_format=source_format or SilentFormat(),
        settings=JoinSettings(
            splits=splits or SplitAssignment(by_source={"s": "train"}),
            labels=settings.pop("labels", LabelSettings()),
            **settings,
        ),
    )


def outcome(joined: JoinedKey) -> Outcome:
    return Outcome(
        written=joined.record is not None,
        split=joined.split,
        excluded=joined.excluded,
        reasons=tuple((reject.reason, reject.listed) for reject in joined.rejects),
        unannotated=joined.unannotated,
    )


def said(
    *, split: str = "", exclusion: Exclusion | None = None, file_index: int = 0
) -> AnnotationEntry:
    """An entry for one image in the list of a split's images."""
    return AnnotationEntry("a.jpg", file_index=file_index, split=split, exclusion=exclusion)


def stem_images(*keys: str) -> tuple[ListedImage, ...]:
    return tuple(ListedImage(key, ref(f"/data/{key}")) for key in keys)


PREDEFINED = SplitAssignment(by_source={}, predefined=("train", "val"))
GROUPS = SplitAssignment(by_source={}, fractions={"train": 1.0}, group_by=r"^(v\d+)_")
DISCARDED = said(exclusion=Exclusion.DISCARDED)
UNFORESEEN = msgspec.structs.replace(entry(), split="fold_2", detail="t.csv: line 9: no such split")


@pytest.mark.parametrize(
    ("joined", "expected"),
    [
        (join(entry()), Outcome(written=True)),
        (join(), Outcome(written=True, unannotated=True)),
        (join(unannotated="drop"), Outcome(excluded=Exclusion.UNANNOTATED, unannotated=False)),
        (join(unannotated="reject"), Outcome(reasons=((Reason.UNANNOTATED, True),))),
        # The format decides what `auto` means, and the config takes precedence.
        (join(source_format=DroppingFormat()), Outcome(excluded=Exclusion.UNANNOTATED)),
        (
            join(source_format=RejectingFormat()),
            Outcome(reasons=((Reason.UNANNOTATED, True),)),
        ),
        (
            join(source_format=DroppingFormat(), unannotated="keep"),
            Outcome(written=True, unannotated=True),
        ),
        (
            join(source_format=DroppingFormat(), unannotated="reject"),
            Outcome(reasons=((Reason.UNANNOTATED, True),)),
        ),
        (join(entry(), source_format=DroppingFormat()), Outcome(written=True)),
        # The list of a split names an image; `drop` leaves it out all the same.
        *(
            (
                join(
                    said(split="val"),
                    source_format=DroppingFormat(),
                    splits=splits,
                    unannotated=rule,
                ),
                Outcome(
                    written=rule == "auto",
                    split=split,
                    unannotated=rule == "auto",
                    excluded=None if rule == "auto" else Exclusion.UNANNOTATED,
                ),
            )
            for rule in ("auto", "drop")
            for splits, split in ((PREDEFINED, "val"), (None, "train"))
        ),
        (
            join(source_format=DroppingFormat(), splits=PREDEFINED),
            Outcome(split="", excluded=Exclusion.UNANNOTATED),
        ),
        (
            join(key="README.md", source_format=DroppingFormat()),
            Outcome(excluded=Exclusion.NOT_AN_IMAGE_NAME),
        ),
        # A file that is not an image is excluded, unless an annotation names it.
        (join(key="README.md"), Outcome(excluded=Exclusion.NOT_AN_IMAGE_NAME)),
        (join(key=".DS_Store"), Outcome(excluded=Exclusion.HIDDEN_FILE)),
        (join(entry(), key="README.md"), Outcome(written=True)),
        (join(entry(), images=()), Outcome(reasons=((Reason.MISSING_IMAGE, False),))),
        *(
            (join(entry(defect=reason), images=()), Outcome(reasons=((reason, False),)))
            for reason in (Reason.UNKNOWN_IMAGE_ID, Reason.DUPLICATE_IMAGE_ID)
        ),
        # An image is not written as if it had no annotations where it has only defective ones.
        (
            join(*(entry(position=k, defect=Reason.DUPLICATE_IMAGE_ID) for k in range(2))),
            Outcome(
                reasons=((Reason.DUPLICATE_IMAGE_ID, True), (Reason.DUPLICATE_IMAGE_ID, False))
            ),
        ),
        (
            join(entry(position=1, defect=Reason.DUPLICATE_KEY), entry()),
            Outcome(written=True, reasons=((Reason.DUPLICATE_KEY, False),)),
        ),
        # Nor if some of them cannot be read.
        *(
            (
                join(
                    entry(),
                    entry(position=1, defect=Reason.DUPLICATE_KEY),
                    entry(position=2, defect=reason),
                ),
                Outcome(reasons=((reason, True), (Reason.DUPLICATE_KEY, False))),
            )
            for reason in (
                Reason.ANNOTATION_MALFORMED,
                Reason.CHANGED_SINCE_LISTING,
                Reason.DUPLICATE_IMAGE_ID,
            )
        ),
        (
            join(entry(), entry(position=2, defect=Reason.ANNOTATION_MALFORMED), images=()),
            Outcome(reasons=((Reason.MISSING_IMAGE, False),)),
        ),
        # The name decides.
        (join(key="cat/1.jpg", source_format=FolderFormat()), Outcome(written=True)),
        (
            join(key="other/1.jpg", source_format=FolderFormat()),
            Outcome(excluded=Exclusion.CLASS_NOT_LISTED),
        ),
        (
            join(key="1.jpg", source_format=FolderFormat()),
            Outcome(reasons=((Reason.NO_CLASS_FOLDER, True),)),
        ),
        (
            join(
                key="cat/1.jpg",
                source_format=FolderFormat(),
                labels=LabelSettings(exclude=["cat"]),
            ),
            Outcome(excluded=Exclusion.LABEL_EXCLUDED),
        ),
        # Groups.
        (join(entry(), splits=GROUPS), Outcome(reasons=((Reason.GROUP_NOT_MATCHED, True),))),
        (join(entry(), key="v1_2.jpg", splits=GROUPS), Outcome(written=True)),
        # Predefined splits.
        (
            join(entry(), said(split="val"), splits=PREDEFINED),
            Outcome(written=True, split="val"),
        ),
        (
            join(said(split="train"), splits=PREDEFINED),
            Outcome(written=True, unannotated=True),
        ),
        *(
            (
                join(entry(), said(split=split), splits=PREDEFINED),
                Outcome(split="", excluded=Exclusion.IN_NO_SPLIT),
            )
            for split in ("", "test")
        ),
        (
            join(UNFORESEEN, splits=PREDEFINED),
            Outcome(split="", reasons=((Reason.UNKNOWN_SPLIT, True),)),
        ),
        # Where the config names the split, the row's does not matter.
        (join(UNFORESEEN), Outcome(written=True)),
        (
            join(said(split="val", file_index=1), said(split="train"), entry(), splits=PREDEFINED),
            Outcome(written=True, reasons=((Reason.DUPLICATE_KEY, False),)),
        ),
        # Lists of splits that the config does not use do not contradict each other.
        (
            join(said(split="val", file_index=1), said(split="train"), entry()),
            Outcome(written=True),
        ),
        # Which split it is in says nothing of what is in the picture.
        (
            join(said(split="val", file_index=1), said(split="train"), splits=PREDEFINED),
            Outcome(written=True, unannotated=True, reasons=((Reason.DUPLICATE_KEY, False),)),
        ),
        (
            join(entry(), DISCARDED, splits=PREDEFINED),
            Outcome(split="", excluded=Exclusion.DISCARDED),
        ),
        (join(DISCARDED, images=(), splits=PREDEFINED), Outcome(split="")),
        (
            join(said(split="val"), images=(), splits=PREDEFINED),
            Outcome(split="val", reasons=((Reason.MISSING_IMAGE, False),)),
        ),
        # A list that the config does not use rejects nothing.
        (join(said(split="val"), images=()), Outcome()),
        # Rows without images are inputs themselves.
        (join(entry(""), images=(), source_format=RowFormat()), Outcome(written=True)),
        (
            join(entry(defect=Reason.ANNOTATION_MALFORMED), images=(), source_format=RowFormat()),
            Outcome(reasons=((Reason.ANNOTATION_MALFORMED, True),)),
        ),
        (
            join(entry(), images=(), source_format=RowFormat(), splits=PREDEFINED),
            Outcome(split="", reasons=((Reason.UNKNOWN_SPLIT, True),)),
        ),
        (
            join(entry(), DISCARDED, images=(), source_format=RowFormat()),
            Outcome(excluded=Exclusion.DISCARDED),
        ),
    ],
)
def test_what_becomes_of_a_key(joined: JoinedKey, expected: Outcome) -> None:
    # An excluded image is not counted as unannotated.
    assert outcome(joined) == expected


def test_a_record_has_the_images_own_key_and_what_is_said_about_it() -> None:
    record = join(entry(), images=stem_images("images/a.jpg"), key="a").record
    assert record is not None
    assert (record.key, record.image) == ("images/a.jpg", ref("/data/images/a.jpg"))
    assert (record.annotations, record.split) == (entry().annotations, "train")
    unannotated = join().record
    assert unannotated is not None
    assert decode_annotations(unannotated.annotations) == ImageAnnotations(image_id="")
    row = join(entry(), images=(), source_format=RowFormat()).record
    assert row is not None
    assert (row.image, row.size_bytes) == (None, 0)


@pytest.mark.parametrize("labels", [LabelSettings(), LabelSettings(exclude=["cat"])])
def test_the_class_that_a_name_tells_is_known_written_or_not(labels: LabelSettings) -> None:
    joined = join(key="cat/1.jpg", source_format=FolderFormat(), labels=labels)
    assert joined.labels == ("cat",)
    if joined.record is not None:
        assert decode_annotations(joined.record.annotations).labels == ("cat",)


def test_a_second_split_that_names_an_image_has_the_reject() -> None:
    joined = join(said(split="val", file_index=1), said(split="train"), splits=PREDEFINED)
    assert joined.split == "train"
    assert [(reject.split, reject.reason) for reject in joined.rejects] == [
        ("val", Reason.DUPLICATE_KEY)
    ]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *((name, "drop") for name in ("coco", "lvis", "cvat", "csv", "jsonl", "parquet")),
        *((name, "drop") for name in ("open-images", "voc", "labelme", "label-studio")),
        *((name, "keep") for name in ("yolo", "image-folder", "webdataset", "cifar10", "tfrecord")),
    ],
)
def test_what_formats_do_with_images_that_nothing_names(name: str, rule: str) -> None:
    assert rule == find_format(name).UNANNOTATED


def test_rejects_tell_what_their_entries_say() -> None:
    for joined, detail in (
        (join(entry(defect=Reason.UNKNOWN_IMAGE_ID), images=()), "the detail"),
        (join(UNFORESEEN, splits=PREDEFINED), "t.csv: line 9: no such split"),
    ):
        assert [reject.detail for reject in joined.rejects] == [detail]


def whole(origin: str, *labels: str) -> AnnotationEntry:
    """The entry of a file that says all about the image."""
    objects = tuple(ObjectAnnotation(label, (0, 0, 1, 1)) for label in labels)
    said = ImageAnnotations(image_id="", objects=objects)
    return AnnotationEntry("a.jpg", annotations=encode_annotations(said), origin=origin)


@pytest.mark.parametrize("labels", [("cat",), ()])
def test_of_two_files_that_each_say_all_about_an_image_the_first_counts(
    labels: tuple[str, ...],
) -> None:
    entries = [whole("labels/b.txt", *labels), whole("labels/a.txt", "dog")]
    for ordered in (entries, entries[::-1]):
        joined = join(*ordered)
        assert joined.record is not None
        found = decode_annotations(joined.record.annotations)
        assert ([item.label for item in found.objects], found.corrections) == (["dog"], {})
        assert outcome(joined).reasons == ((Reason.DUPLICATE_KEY, False),)
        assert joined.rejects[0].detail == (
            "labels/b.txt annotates it, too, and differs from labels/a.txt, which counts"
        )


def test_files_that_say_the_same_about_an_image_are_one() -> None:
    joined = join(*(whole(f"{name}/a.txt", "dog") for name in "cab"), whole("d/a.txt", "cat"))

    assert joined.record is not None
    found = decode_annotations(joined.record.annotations)
    assert [item.label for item in found.objects] == ["dog"]
    assert found.corrections == {"entries_merged": 1}
    assert found.changes == {"entries_merged": [(["b/a.txt", "c/a.txt"], "a/a.txt")]}
    assert [reject.detail[:8] for reject in joined.rejects] == ["d/a.txt "]


def test_a_copy_in_another_split_is_a_reject_there() -> None:
    entries = (
        msgspec.structs.replace(whole(f"{split}.csv: line 1", "dog"), split=split)
        for split in ("train", "val")
    )
    joined = join(*entries, splits=PREDEFINED)
    assert joined.split == "train"
    assert [(reject.split, reject.reason) for reject in joined.rejects] == [
        ("val", Reason.DUPLICATE_KEY)
    ]


def numbered(
    image_id: str,
    *objects: ObjectAnnotation,
    size: tuple[int, int] = (4, 3),
    file_index: int = 0,
    **more: Any,  # noqa: ANN401  # Of the annotations.
) -> AnnotationEntry:
    """An entry of a file that numbers its images."""
    width, height = size
    found = ImageAnnotations(image_id=image_id, width=width, height=height, objects=objects, **more)
    return AnnotationEntry(
        "a.jpg",
        annotations=encode_annotations(found),
        file_index=file_index,
        position=int(image_id),
        image_id=image_id,
    )


def boxed(label: str, x: float = 0, *, outline: bytes = b"", number: int = 0) -> ObjectAnnotation:
    return ObjectAnnotation(label, (x, 0, 2, 2), annotation_id=number, segmentation=outline)


@pytest.mark.parametrize("sizes", [((4, 3), (4, 3)), ((4, 3), (0, 0)), ((0, 0), (4, 3))])
@pytest.mark.parametrize("file_index", [0, 1])
def test_entries_of_one_name_under_two_ids_are_merged(
    sizes: tuple[tuple[int, int], ...], file_index: int
) -> None:
    cat, outlined = boxed("cat", number=1), boxed("cat", outline=b"[[0,0,2,0,2,2]]", number=3)
    first = numbered("1", cat, boxed("cat", number=2), size=sizes[0], captions=("a", "b"))
    second = numbered(
        "2",
        *(boxed("cat", number=8), boxed("cat", 1, number=9), boxed("dog", number=1), outlined),
        size=sizes[1],
        file_index=file_index,
        captions=("b", "c"),
        segments=(Segment(5, "sky"),),
        stuff=(outlined,),
        values={"x": (1, 2)},
    )
    third = numbered("3", file_index=file_index, stuff=(outlined,), values={"x": (2, 3)})

    for entries in ((first, second, third), (third, second, first)):
        joined = join(*entries)
        assert not joined.rejects
        assert joined.record is not None
        found = decode_annotations(joined.record.annotations)
        assert (found.image_id, found.width, found.height) == ("1", 4, 3)
        # Within one entry, equal objects stay; in another one they are repeated.
        assert [(item.label, item.bbox[0], item.segmentation) for item in found.objects] == [
            *[("cat", 0, b""), ("cat", 0, b"")],
            *[("cat", 1, b""), ("dog", 0, b""), ("cat", 0, outlined.segmentation)],
        ]
        assert (found.captions, found.values) == (("a", "b", "c"), {"x": (1, 2, 3)})
        assert (len(found.segments), len(found.stuff)) == (1, 1)
        assert found.corrections == {"duplicate_annotation_dropped": 1, "entries_merged": 1}
        assert found.changes["entries_merged"] == [(["2", "3"], "1")]


@pytest.mark.parametrize("ignores_sizes", [False, True])
def test_entries_of_one_name_with_two_ids_and_sizes_are_of_two_images(ignores_sizes: bool) -> None:
    # It has no objects: a size is not only about boxes.
    entries = (numbered("1", boxed("cat")), numbered("2", size=(8, 6)))

    joined = join(*entries, ignores_sizes=ignores_sizes)

    assert outcome(joined) == Outcome(
        reasons=((Reason.DUPLICATE_KEY, True), (Reason.DUPLICATE_KEY, False))
    )
    assert joined.rejects[1].detail == (
        "image id 2 gives it the size 8x6; image ids 1 and 2 have the same file name, and the "
        "sizes 4x3 and 8x6: give each image its own file name"
    )
    missing = join(*entries, images=())
    assert outcome(missing).reasons == ((Reason.DUPLICATE_KEY, False),) * 2


def test_a_missing_image_is_one_reject_whatever_else_is_wrong() -> None:
    bad = AnnotationEntry("a", defect=Reason.ANNOTATION_MALFORMED, detail="a.xml: no name")
    for joined in (
        join(bad, said(split="train"), images=(), splits=PREDEFINED),
        join(bad, entry(), images=()),
    ):
        (reject,) = joined.rejects
        assert (reject.reason, reject.listed) == (Reason.MISSING_IMAGE, False)
        assert reject.detail == ("annotated, but no such image is listed; besides, a.xml: no name")


def test_of_two_listed_files_with_one_key_one_is_rejected() -> None:
    one, other = ref("/data/e\u0301.jpg"), ref("/data/\u00e9.jpg")
    for images in ((one, other), (other, one)):
        joined = join(entry(), images=images)
        assert joined.record is not None
        assert joined.record.image == one
        assert outcome(joined).reasons == ((Reason.DUPLICATE_KEY, True),)


def test_a_stem_that_fits_two_images_rejects_both() -> None:
    joined = join(entry(), images=stem_images("a.png", "a.jpg"), key="a")
    assert outcome(joined) == Outcome(reasons=((Reason.AMBIGUOUS_STEM, True),) * 2)
    assert [reject.key for reject in joined.rejects] == ["a.jpg", "a.png"]
    assert "a.jpg, a.png" in joined.rejects[0].detail


class SplitFolderFormat(SilentFormat, frozen=True):
    def split_listed(self, key: str) -> str:
        return key.partition("/")[0]


@pytest.mark.parametrize(
    ("entries", "splits", "split"),
    [
        ([entry()], PREDEFINED, "val"),
        ([], PREDEFINED, "val"),
        ([entry(), said(split="train")], PREDEFINED, "train"),
        ([entry()], SplitAssignment(by_source={"s": "test"}), "test"),
    ],
)
def test_a_name_tells_the_split_where_no_list_does(
    entries: list[AnnotationEntry], splits: SplitAssignment, split: str
) -> None:
    image = ListedImage("val/a.jpg", ref())
    joined = join(*entries, images=(image,), source_format=SplitFolderFormat(), splits=splits)
    assert joined.split == split


def test_an_image_is_expected_to_make_an_example_for_each_object() -> None:
    objects = tuple(ObjectAnnotation(label, (0, 0, 1, 1)) for label in ("cat", "dog"))
    joined = join(entry(objects=objects), example_per="annotation")
    assert joined.record is not None
    assert joined.record.examples == 2


# Merging


def test_one_image_in_several_files_is_merged() -> None:
    box = ObjectAnnotation(label="cat", bbox=(0, 0, 1, 1), annotation_id=7)
    other = ObjectAnnotation(label="dog", bbox=(0, 0, 2, 2), annotation_id=8)
    joined = join(entry(objects=(box,)), entry(file_index=1, objects=(box, other)))
    assert joined.record is not None
    merged = decode_annotations(joined.record.annotations)
    assert merged.objects == (box, other)
    assert merged.corrections == {Correction.DUPLICATE_ANNOTATION_DROPPED.value: 1}
    assert not joined.rejects


def test_objects_without_ids_are_never_taken_for_the_same() -> None:
    box = ObjectAnnotation(label="cat", bbox=(0, 0, 1, 1))
    part = ImageAnnotations(image_id="1", objects=(box,))
    assert merge_annotations([part, part]).objects == (box, box)


_BOXES = (ObjectAnnotation(label="cat", bbox=(0, 0, 1, 1)),)


@pytest.mark.parametrize(
    ("first", "second", "settings", "size"),
    [
        ({"objects": _BOXES}, {"objects": _BOXES}, {}, None),
        ({"objects": _BOXES}, {"stuff": _BOXES}, {}, None),
        # The size comes with the boxes, and captions have none.
        ({"objects": _BOXES}, {"captions": ("a cat",)}, {}, (640, 480)),
        ({"captions": ("a cat",)}, {"objects": _BOXES}, {}, (320, 240)),
        ({"captions": ("a cat",)}, {"captions": ("a dog",)}, {}, (640, 480)),
        # An unknown size contradicts none.
        ({"objects": _BOXES}, {"objects": _BOXES, "width": 0, "height": 0}, {}, (640, 480)),
        ({"objects": _BOXES}, {"objects": _BOXES, "normalized": True}, {}, (640, 480)),
        ({"objects": _BOXES}, {"objects": _BOXES}, {"ignores_sizes": True}, (640, 480)),
    ],
)
def test_files_that_give_an_image_two_sizes(
    first: dict[str, Any],
    second: dict[str, Any],
    settings: dict[str, Any],
    size: tuple[int, int] | None,
) -> None:
    parts = (
        ImageAnnotations(image_id="1", **{"width": 640, "height": 480, **first}),
        ImageAnnotations(image_id="1", **{"width": 320, "height": 240, **second}),
    )
    joined = join(
        *(
            AnnotationEntry(
                "a.jpg", file_index=index, image_id="1", annotations=encode_annotations(part)
            )
            for index, part in enumerate(parts)
        ),
        **settings,
    )

    if size is None:
        (reject,) = joined.rejects
        assert (joined.record, reject.reason, reject.listed) == (None, Reason.SIZE_MISMATCH, True)
        assert reject.detail.startswith("annotation files give it the sizes 640x480 and 320x240; ")
    else:
        assert joined.record is not None
        assert not joined.rejects
        merged = decode_annotations(joined.record.annotations)
        assert (merged.width, merged.height) == size


def test_everything_that_files_say_is_merged() -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    mask = ref("/masks/a.png")
    parts = [
        ImageAnnotations(
            image_id="",
            labels=("cat", "dog"),
            label_confidences=(0.25, 0.5),
            objects=(ObjectAnnotation("cat", box, annotation_id=4),),
            masks={MaskRole.SEMANTIC: mask},
            values={"x": (1,)},
        ),
        ImageAnnotations(
            image_id="7",
            labels=("dog", "owl"),
            label_confidences=(0.75, 1.0),
            objects=(ObjectAnnotation("cat", box, annotation_id=4, keypoints=(1.0, 2.0, 2.0)),),
            captions=("a cat",),
            masks={MaskRole.SEMANTIC: ref("/other.png")},
            values={"x": (2,), "y": ("b",)},
        ),
    ]
    assert merge_annotations(parts) == ImageAnnotations(
        image_id="7",
        labels=("cat", "dog", "owl"),
        label_confidences=(0.25, 0.75, 1.0),
        objects=(ObjectAnnotation("cat", box, annotation_id=4, keypoints=(1.0, 2.0, 2.0)),),
        captions=("a cat",),
        masks={MaskRole.SEMANTIC: mask},
        values={"x": (1, 2), "y": ("b",)},
    )


# Sources whose images need no join

SETTINGS = JoinSettings(splits=SplitAssignment(by_source={}), labels=LabelSettings())


class OwnFormat(Format, frozen=True, kw_only=True):
    kinds = frozenset({Kind.CLASSIFICATION})
    images: str = "/i"


class PlacingFormat(OwnFormat, frozen=True, kw_only=True):
    def place(self, path: str, *, root: int) -> Place:
        return Place(role=Role.IMAGE, key=path, join=path)


class AnnotatedFormat(OwnFormat, frozen=True, kw_only=True):
    lists_annotations = True


class MatchingFormat(OwnFormat, frozen=True, kw_only=True):
    match: Match = "name"


@pytest.mark.parametrize(
    ("source_format", "settings", "expected"),
    [
        (ImageFolderFormat(images="/i"), {}, False),
        (FilenameLabelFormat(images="/i"), {}, False),
        (OwnFormat(), {}, False),
        # Another step annotates the images, or finds their keys.
        (ImageFolderFormat(images="/i", classes="/classes.txt"), {}, True),
        (CocoFormat(images="/i", annotations=["/a.json"]), {}, True),
        (PlacingFormat(), {}, True),
        (AnnotatedFormat(), {}, True),
        (MatchingFormat(), {}, True),
        (MatchingFormat(match="path"), {}, False),
        # A name may be listed twice.
        (ImageFolderFormat(images="gs://bucket/i"), {}, True),
        (ImageFolderFormat(images="/i/*.tar"), {}, True),
        (GivenRecords(), {}, True),
        # All keys must be known first.
        (OwnFormat(), {"limit": 5}, True),
        (OwnFormat(), {"splits": SplitAssignment(by_source={}, exact=True)}, True),
    ],
)
def test_images_need_no_join_where_nothing_but_their_names_annotates_them(
    source_format: Format, settings: Mapping[str, Any], expected: bool
) -> None:
    changed = msgspec.structs.replace(SETTINGS, **settings)
    assert needs_join(source_format, settings=changed) == expected


def test_an_archive_may_hold_a_name_twice(tmp_path: Path) -> None:
    write_tar(tmp_path / "i.tar", {"a/1.jpg": b"1", "./a/1.jpg": b"2"})
    source_format = ImageFolderFormat(images=str(tmp_path / "i.tar"))
    assert needs_join(source_format, settings=SETTINGS)


def test_no_other_name_has_the_key_of_a_plain_one() -> None:
    others = map(chr, range(128, sys.maxunicode + 1))
    assert not [name for name in others if is_plain(normalize_key(name))]
    assert is_plain("n01440764/n01440764_10026.JPEG")
