"""Every way in which listing and annotations can meet, one key at a time."""

from __future__ import annotations

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
    decode_annotations,
    encode_annotations,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.base import Format, Kind
from shardbeam.transforms.formats.joining import (
    JoinedKey,
    JoinSettings,
    join_key,
    merge_annotations,
)


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


def join(
    *entries: AnnotationEntry,
    images: tuple[ImageRef | ListedImage, ...] = (ref(),),
    key: str = "a.jpg",
    keep_unannotated: bool = True,
    source_format: Format | None = None,
    labels: LabelSettings | None = None,
    splits: SplitAssignment | None = None,
) -> JoinedKey:
    return join_key(
        source="s",
        key=key,
        images=[
            image if isinstance(image, ListedImage) else ListedImage(key, image) for image in images
        ],
        entries=entries,
        source_format=source_format or SilentFormat(),
        settings=JoinSettings(
            splits=splits or SplitAssignment(by_source={"s": "train"}),
            labels=labels or LabelSettings(),
            keep_unannotated=keep_unannotated,
        ),
    )


def reasons(joined: JoinedKey) -> list[tuple[Reason, bool]]:
    return [(reject.reason, reject.listed) for reject in joined.rejects]


def test_an_annotated_image_goes_on_with_its_annotations() -> None:
    joined = join(entry())
    assert joined.record is not None
    assert joined.record.image == ref()
    assert joined.record.annotations == entry().annotations
    assert not joined.unannotated
    assert (joined.split, joined.rejects, joined.excluded) == ("train", (), None)


def test_an_image_without_annotations_is_kept_or_excluded() -> None:
    kept = join()
    assert kept.record is not None
    assert kept.unannotated
    assert decode_annotations(kept.record.annotations) == ImageAnnotations(image_id="")
    dropped = join(keep_unannotated=False)
    assert dropped.record is None
    assert dropped.excluded is Exclusion.UNANNOTATED
    assert dropped.rejects == ()


@pytest.mark.parametrize(
    ("key", "rule"),
    [("README.md", Exclusion.NOT_AN_IMAGE_NAME), (".DS_Store", Exclusion.HIDDEN_FILE)],
)
def test_what_is_no_image_is_excluded_unless_an_annotation_names_it(
    key: str, rule: Exclusion
) -> None:
    excluded = join(key=key)
    assert (excluded.record, excluded.excluded, excluded.rejects) == (None, rule, ())
    assert join(entry(), key=key).record is not None


def test_a_missing_image_is_a_reject_that_is_not_listed() -> None:
    joined = join(entry(), images=())
    assert joined.record is None
    assert reasons(joined) == [(Reason.MISSING_IMAGE, False)]


@pytest.mark.parametrize("reason", [Reason.UNKNOWN_IMAGE_ID, Reason.DUPLICATE_IMAGE_ID])
def test_a_defective_entry_without_an_image_is_one_reject(reason: Reason) -> None:
    joined = join(entry(defect=reason), images=())
    assert reasons(joined) == [(reason, False)]
    assert joined.rejects[0].detail == "the detail"


def test_an_image_whose_only_entries_are_defective_is_not_written_as_if_it_had_none() -> None:
    defective = [
        entry(position=position, defect=Reason.DUPLICATE_IMAGE_ID) for position in range(2)
    ]
    joined = join(*defective)
    assert joined.record is None
    assert reasons(joined) == [
        (Reason.DUPLICATE_IMAGE_ID, True),
        (Reason.DUPLICATE_IMAGE_ID, False),
    ]


def test_a_defective_entry_beside_a_good_one_is_a_reject_of_its_own() -> None:
    joined = join(entry(position=1, defect=Reason.DUPLICATE_KEY), entry(position=0))
    assert joined.record is not None
    assert reasons(joined) == [(Reason.DUPLICATE_KEY, False)]


@pytest.mark.parametrize(
    "reason", [Reason.ANNOTATION_MALFORMED, Reason.CHANGED_SINCE_LISTING], ids=str
)
def test_an_image_that_is_known_in_part_only_is_rejected(reason: Reason) -> None:
    duplicate = entry(position=1, defect=Reason.DUPLICATE_KEY)
    joined = join(entry(), duplicate, entry(position=2, defect=reason))
    assert joined.record is None
    assert reasons(joined) == [(reason, True), (Reason.DUPLICATE_KEY, False)]
    missing = join(entry(), entry(position=2, defect=reason), images=())
    assert reasons(missing) == [(Reason.MISSING_IMAGE, False), (reason, False)]


def test_files_about_one_image_each_are_told_apart_by_their_names() -> None:
    entries = [entry(name) for name in ("labels/b.txt", "labels/a.txt")]
    for joined in (join(*entries), join(*reversed(entries))):
        assert joined.record is not None
        assert decode_annotations(joined.record.annotations).image_id == "labels/a.txt"
        assert reasons(joined) == [(Reason.DUPLICATE_KEY, False)]


def test_of_two_image_ids_with_one_key_the_first_file_wins() -> None:
    later, first = entry("2", file_index=1), entry("1", file_index=0, position=9)
    for entries in ([later, first], [first, later]):
        joined = join(*entries)
        assert joined.record is not None
        assert decode_annotations(joined.record.annotations).image_id == "1"
        assert reasons(joined) == [(Reason.DUPLICATE_KEY, False)]


def test_one_image_in_several_files_is_merged() -> None:
    box = ObjectAnnotation(label="cat", bbox=(0, 0, 1, 1), annotation_id=7)
    other = ObjectAnnotation(label="dog", bbox=(0, 0, 2, 2), annotation_id=8)
    joined = join(entry(objects=(box,)), entry(file_index=1, objects=(box, other)))
    assert joined.record is not None
    merged = decode_annotations(joined.record.annotations)
    assert merged.objects == (box, other)
    assert merged.corrections == {Correction.DUPLICATE_ANNOTATION_DROPPED.value: 1}
    assert joined.rejects == ()


def test_objects_without_ids_are_never_taken_for_the_same() -> None:
    box = ObjectAnnotation(label="cat", bbox=(0, 0, 1, 1))
    part = ImageAnnotations(image_id="1", objects=(box,))
    assert merge_annotations([part, part]).objects == (box, box)


def test_of_two_listed_files_with_one_key_one_is_rejected() -> None:
    one, other = ref("/data/e\u0301.jpg"), ref("/data/\u00e9.jpg")
    for images in ((one, other), (other, one)):
        joined = join(entry(), images=images)
        assert joined.record is not None
        assert joined.record.image == one
        assert reasons(joined) == [(Reason.DUPLICATE_KEY, True)]


def test_a_name_can_tell_the_annotations() -> None:
    joined = join(key="cat/1.jpg", source_format=FolderFormat())
    assert joined.record is not None
    assert decode_annotations(joined.record.annotations).labels == ("cat",)
    assert joined.labels == ("cat",)
    assert not joined.unannotated


def test_a_name_can_exclude_or_be_rejected() -> None:
    excluded = join(key="other/1.jpg", source_format=FolderFormat())
    assert (excluded.record, excluded.excluded) == (None, Exclusion.CLASS_NOT_LISTED)
    rejected = join(key="1.jpg", source_format=FolderFormat())
    assert reasons(rejected) == [(Reason.NO_CLASS_FOLDER, True)]


def test_an_image_of_an_excluded_class_is_excluded_and_its_class_still_known() -> None:
    labels = LabelSettings(exclude=["cat"])
    joined = join(key="cat/1.jpg", source_format=FolderFormat(), labels=labels)
    assert (joined.record, joined.excluded) == (None, Exclusion.LABEL_EXCLUDED)
    assert joined.labels == ("cat",)


def test_a_key_without_a_group_is_a_reject_where_groups_decide() -> None:
    splits = SplitAssignment(by_source={}, fractions={"train": 1.0}, group_by=r"^(v\d+)_")
    joined = join(entry(), splits=splits)
    assert joined.record is None
    assert reasons(joined) == [(Reason.GROUP_NOT_MATCHED, True)]
    assert join(entry(), key="v1_2.jpg", splits=splits).record is not None


# Joining by less than the name


def stem_images(*keys: str) -> tuple[ListedImage, ...]:
    return tuple(ListedImage(key, ref(f"/data/{key}")) for key in keys)


def test_the_record_has_the_images_own_key() -> None:
    joined = join(entry(), images=stem_images("images/a.jpg"), key="a")
    assert joined.record is not None
    assert joined.record.key == "images/a.jpg"


def test_a_stem_that_fits_two_images_rejects_both() -> None:
    joined = join(entry(), images=stem_images("a.png", "a.jpg"), key="a")
    assert joined.record is None
    assert reasons(joined) == [(Reason.AMBIGUOUS_STEM, True)] * 2
    assert [reject.key for reject in joined.rejects] == ["a.jpg", "a.png"]
    assert "a.jpg, a.png" in joined.rejects[0].detail


# Splits that the source tells


TOLD = SplitAssignment(by_source={}, predefined=("train", "val"))


def said(
    *, split: str = "", exclusion: Exclusion | None = None, file_index: int = 0
) -> AnnotationEntry:
    """What a list of a split's images says of one."""
    return AnnotationEntry(
        key="a.jpg",
        annotations=b"",
        file_index=file_index,
        position=0,
        split=split,
        exclusion=exclusion,
    )


def test_an_image_is_in_the_split_that_a_list_names() -> None:
    joined = join(entry(), said(split="val"), splits=TOLD)
    assert joined.record is not None
    assert (joined.split, joined.record.split) == ("val", "val")
    assert joined.record.annotations == entry().annotations


def test_an_image_that_only_a_list_names_is_unannotated() -> None:
    joined = join(said(split="train"), splits=TOLD)
    assert joined.record is not None
    assert joined.unannotated


@pytest.mark.parametrize("split", ["", "test"])
def test_an_image_in_no_split_of_the_dataset_is_excluded(split: str) -> None:
    joined = join(entry(), said(split=split), splits=TOLD)
    assert (joined.split, joined.record, joined.excluded) == ("", None, Exclusion.IN_NO_SPLIT)


def test_an_image_of_a_split_that_its_format_did_not_foresee_is_a_reject() -> None:
    row = msgspec.structs.replace(entry(), split="fold_2", detail="t.csv: line 9: no such split")
    joined = join(row, splits=TOLD)
    assert reasons(joined) == [(Reason.UNKNOWN_SPLIT, True)]
    assert joined.rejects[0].detail == "t.csv: line 9: no such split"
    assert (joined.record, joined.excluded) == (None, None)
    # Where the config says the split, the row's does not matter.
    assert join(row).split == "train"


def test_an_image_in_two_splits_is_in_the_first() -> None:
    joined = join(said(split="val", file_index=1), said(split="train"), entry(), splits=TOLD)
    assert joined.split == "train"
    assert joined.record is not None
    assert reasons(joined) == [(Reason.DUPLICATE_KEY, False)]


def test_an_image_that_its_source_discards_is_excluded() -> None:
    joined = join(entry(), said(exclusion=Exclusion.DISCARDED), splits=TOLD)
    assert (joined.record, joined.excluded) == (None, Exclusion.DISCARDED)
    missing = join(said(exclusion=Exclusion.DISCARDED), images=(), splits=TOLD)
    assert (missing.record, missing.excluded, missing.rejects) == (None, None, ())


def test_a_list_that_names_a_missing_image_is_a_reject_of_its_split() -> None:
    joined = join(said(split="val"), images=(), splits=TOLD)
    assert joined.split == "val"
    assert reasons(joined) == [(Reason.MISSING_IMAGE, False)]


def test_a_list_that_the_config_does_not_use_rejects_nothing() -> None:
    assert join(said(split="val"), images=()).rejects == ()


class SplitFolderFormat(SilentFormat, frozen=True):
    def split_listed(self, key: str) -> str:
        return key.partition("/")[0]


def test_a_name_tells_the_split_where_no_list_does() -> None:
    image = ListedImage("val/a.jpg", ref())

    def split(*entries: AnnotationEntry, splits: SplitAssignment) -> str:
        joined = join(*entries, images=(image,), source_format=SplitFolderFormat(), splits=splits)
        return joined.split

    assert split(entry(), splits=TOLD) == "val"
    assert split(splits=TOLD) == "val"
    assert split(entry(), said(split="train"), splits=TOLD) == "train"
    assert split(entry(), splits=SplitAssignment(by_source={"s": "test"})) == "test"


# Rows without images


class RowFormat(Format, frozen=True):
    kinds = frozenset({Kind.ROWS})


def test_a_row_is_a_record_without_an_image() -> None:
    joined = join(entry(image_id=""), images=(), source_format=RowFormat())
    assert joined.record is not None
    assert joined.record.image is None
    assert joined.record.size_bytes == 0


def test_a_row_is_an_input_that_is_rejected_or_excluded() -> None:
    bad = join(entry(defect=Reason.ANNOTATION_MALFORMED), images=(), source_format=RowFormat())
    assert reasons(bad) == [(Reason.ANNOTATION_MALFORMED, True)]
    lost = join(entry(), images=(), source_format=RowFormat(), splits=TOLD)
    assert reasons(lost) == [(Reason.UNKNOWN_SPLIT, True)]
    discarded = join(
        entry(), said(exclusion=Exclusion.DISCARDED), images=(), source_format=RowFormat()
    )
    assert discarded.excluded is Exclusion.DISCARDED


# Merging


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


def test_an_image_is_expected_to_make_an_example_for_each_object() -> None:
    box = (0.0, 0.0, 1.0, 1.0)
    joined = join_key(
        source="s",
        key="a.jpg",
        images=[ListedImage("a.jpg", ref())],
        entries=[entry(objects=(ObjectAnnotation("cat", box), ObjectAnnotation("dog", box)))],
        source_format=SilentFormat(),
        settings=JoinSettings(
            splits=SplitAssignment(by_source={"s": "train"}),
            labels=LabelSettings(),
            example_per="annotation",
        ),
    )
    assert joined.record is not None
    assert joined.record.examples == 2
