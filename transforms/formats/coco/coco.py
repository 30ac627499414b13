"""COCO: one JSON file, or several, for many images.

The format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import posixpath
from collections.abc import Iterator, Sequence, Set
from typing import TYPE_CHECKING, Annotated

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxFormatKey, BoxUnitsKey
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    MaskRole,
    Segment,
)
from shardbeam.transforms.formats.annotation_file import decode_json
from shardbeam.transforms.formats.base import Kind, Match, Place, Role
from shardbeam.transforms.formats.coco.annotations import AnnotationReader
from shardbeam.transforms.formats.coco.coco_file import CocoFile, CocoImage, Int64, read_entries
from shardbeam.transforms.formats.coco.sniff import (
    TASKS,
    CocoBoxes,
    Task,
    is_stuff_name,
    recognize_coco,
    sniff_class_ids,
    sniff_png_names,
    sniff_tasks,
)
from shardbeam.transforms.formats.mask_values import (
    MaskClassesKey,
    MaskReading,
    MaskValuesKey,
    check_mask_keys,
    decide_mask_values,
    given_values,
    ids_of_classes,
    read_first_maps,
)
from shardbeam.transforms.formats.names import listing_exclusion, normalize_key, without_extension
from shardbeam.transforms.formats.parsing.root_files import RootFiles
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.transforms.formats.recognition import Folder, Recognized


# Panoptic segments: their JSON file, and the names of their PNGs.

# PNGs that are looked for at launch.
_SAMPLE = 5


class PngNames(msgspec.Struct, frozen=True):
    """How the names of panoptic PNGs differ from those of their images.

    Cityscapes, for example, has `a_gtFine_panoptic.png` for `a_leftImg8bit.png`.

    Attributes:
        image_start: Beginning of an image's path, where a PNG's path begins with `png_start`.
        png_start: The beginning that `image_start` replaces.
        image_end: Ending of an image's path without extension, where a PNG's ends with `png_end`.
        png_end: The ending that `image_end` replaces.
    """

    image_start: str = ""
    png_start: str = ""
    image_end: str = ""
    png_end: str = ""

    def join_of(self, png: str) -> str:
        """Returns the text that a PNG and its image are joined by."""
        stem = without_extension(normalize_key(png))
        core = stem.removeprefix(self.png_start).removesuffix(self.png_end)
        if f"{self.png_start}{core}{self.png_end}" != stem:
            return stem
        return f"{self.image_start}{core}{self.image_end}"


def find_png_names(uri: str, *, masks: str) -> PngNames:
    """Finds out from the first images of a panoptic file how their PNGs are named.

    Args:
        uri: The JSON file.
        masks: The folder of the PNGs.

    Raises:
        InputError: The file cannot be read, its PNGs are not in the folder, or their names do not
            follow from those of their images.
    """
    pairs = sniff_png_names(uri, storage=storage_for(uri))
    files = RootFiles(masks)
    first = [png for _, png in pairs[:_SAMPLE]]
    if first and not any(files.find(normalize_key(png)) for png in first):
        listed = sorted(path for path, _ in itertools.islice(files.walk(), 10_000))
        below = next((path for path in listed if path.endswith(f"/{first[0]}")), "")
        hint = f"; add /{below.removesuffix(f'/{first[0]}')} to it" if below else ""
        raise InputError(
            uri=uri,
            place="$.annotations",
            problem=f"the PNGs that it names are not in panoptic_masks: it names {first[0]!r}, the "
            f"folder holds {repr(listed[0]) if listed else 'no file'}{hint}",
        )
    stems = [(without_extension(normalize_key(image)), png) for image, png in pairs]
    misfits = stems[:1]
    for names in _compare(*stems[0]) if stems else [PngNames()]:
        misfits = [(stem, png) for stem, png in stems if names.join_of(png) != stem]
        if not misfits:
            return names
    raise InputError(
        uri=uri,
        place="$.annotations",
        problem=f"the PNG of {misfits[0][0]!r} is {misfits[0][1]!r}, unlike {stems[0][1]!r} of "
        f"{stems[0][0]!r}: all PNGs must differ from the names of their images in the same way; "
        "rename them",
    )


def _compare(image: str, png: str) -> Iterator[PngNames]:
    """Yields ways in which names of images and PNGs may differ, judged by the parts they share."""
    png = without_extension(normalize_key(png))
    shared = len(posixpath.commonprefix([image[::-1], png[::-1]]))
    yield PngNames(image[: len(image) - shared], png[: len(png) - shared])
    shared = len(posixpath.commonprefix([image, png]))
    yield PngNames("", "", image[shared:], png[shared:])
    match = difflib.SequenceMatcher(None, image, png, autojunk=False).find_longest_match()
    yield PngNames(
        image[: match.a],
        png[: match.b],
        image[match.a + match.size :],
        png[match.b + match.size :],
    )


class _Segment(msgspec.Struct, gc=False):
    id: Int64
    category_id: Int64 | None = None
    iscrowd: bool | int | None = None


class _Annotation(msgspec.Struct, gc=False):
    file_name: str
    segments_info: list[_Segment]


class _Named(msgspec.Struct, gc=False):
    file_name: str = ""


# Some tools write ids as texts.
_annotation_decoder = JsonDecoder(_Annotation, strict=False)
_named_decoder = JsonDecoder(_Named)


class PanopticReader:
    """Reads the segments of a file's images; the join adds the PNGs.

    Raises:
        InputError: The file is not a file of panoptic segments.
    """

    def __init__(self, file: CocoFile[CocoImage], *, names: PngNames) -> None:
        file.require("annotations", "categories")
        self._file = file
        self._names = names
        for index, text in enumerate(file.annotations):
            place = f"$.annotations[{index}]"
            if not decode_json(text, decoder=_named_decoder, uri=file.uri, place=place).file_name:
                raise InputError(
                    uri=file.uri,
                    place=place,
                    problem="expected file_name and segments_info; is this a file of panoptic "
                    "segments?",
                )

    def annotate(self, image: CocoImage, rows: Sequence[int]) -> tuple[ImageAnnotations, int]:
        """Reads the segments of one image from the first of its annotations (`rows`)."""
        found = ImageAnnotations(
            image_id=str(image.id), width=int(image.width or 0), height=int(image.height or 0)
        )
        if not rows:
            return found, 0
        annotation = self._file.decode(rows[0], decoder=_annotation_decoder)
        png = annotation.file_name
        if self._names.join_of(png) != without_extension(normalize_key(image.file_name)):
            raise RejectedError(
                Reason.MASK_UNREADABLE,
                f"$.annotations[{rows[0]}].file_name: {png!r} is not named like its image "
                f"{image.file_name!r}, as the first PNGs are",
            )
        corrections = Corrections({Correction.DUPLICATE_ANNOTATION_DROPPED.value: len(rows) - 1})
        segments: dict[int, Segment] = {}
        for item in annotation.segments_info:
            label = self._file.names.get(item.category_id)
            if label is None:
                corrections.note(Correction.REGION_OF_UNKNOWN_CLASS_VOID, item.category_id)
            elif item.id in segments:
                corrections.note(Correction.DUPLICATE_SEGMENT_DROPPED, item.id)
            else:
                segments[item.id] = Segment(
                    segment_id=item.id, label=label, is_crowd=bool(item.iscrowd)
                )
        segmented = msgspec.structs.replace(
            found, segments=tuple(segments.values()), **corrections.fields()
        )
        return segmented, 0

    def categories(self) -> Iterator[Category]:
        """Declares each category once."""
        for category in self._file.categories.values():
            yield Category(
                name=category.name,
                source_id=category.id,
                origin=self._file.uri,
                is_thing=category.isthing is None or bool(category.isthing),
                is_background=self._file.is_dummy(category),
            )


class CocoFormat(CocoBoxes, frozen=True, kw_only=True):
    """COCO: instances, keypoints, captions, stuff and panoptic segments, merged by image.

    `file_name` is the image's key. Images of one file that share an id cannot be used. Entries
    that share a `file_name` are merged if they give the image the same size. An annotation with the
    same id (or, like it, none), category and box as an earlier one is left out.

    Images and annotations are joined by the key. With maps, which have another extension, they are
    joined by the key without its extension. Panoptic PNGs may differ from their images in the
    beginnings and endings of their names.

    Attributes:
        images: Root folder of the images.
        annotations: The JSON files of instances, keypoints, captions and stuff.
        panoptic: The JSON file of panoptic segments.
        panoptic_masks: The folder of its PNGs.
        semantic_masks: A folder of PNGs with a class id for each pixel, named like the images.
        mask_classes: `{class id: name}` of the classes of maps.
        mask_values: `{value of a pixel: class id, or ignore}`, if values are no class ids.
        box_format: What the four numbers of `bbox` mean.
        box_units: The units of boxes, and with them of polygons, keypoints and areas.
        tasks: The keys to fill. Where None, `resolve` finds out what the files hold; until then,
            the tasks are objects and the masks that are given.
        _masks: Whether objects carry their segmentation.
        _png_names: How names of panoptic PNGs differ from those of their images.
        _mask_reading: How the PNGs of `semantic_masks` are read.
    """

    SOME_OF = ("annotations", "panoptic", "semantic_masks")
    SUMMARY = "COCO JSON: boxes, masks, keypoints, captions, panoptic and stuff"
    ROOTS = ("images", "panoptic_masks", "semantic_masks")
    # Often each of several files names its own part of one folder's images.
    UNANNOTATED = "drop"

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    annotations: Annotated[list[Location], named("COCO JSON file")] = []
    panoptic: Annotated[Location, named("COCO JSON file of panoptic segments")] | None = None
    panoptic_masks: (
        Annotated[Location, named("folder of the panoptic PNGs", metavar="DIR")] | None
    ) = None
    semantic_masks: (
        Annotated[Location, named("folder of PNGs whose pixels are class ids", metavar="DIR")]
        | None
    ) = None
    mask_classes: MaskClassesKey = {}
    mask_values: MaskValuesKey = {}
    match: Match = "path"
    box_format: BoxFormatKey = "xywh"
    box_units: BoxUnitsKey = "px"
    tasks: (
        Annotated[list[Task], msgspec.Meta(min_length=1), named("kinds of annotations to read")]
        | None
    ) = None
    _masks: bool = False
    _png_names: PngNames = PngNames()
    _mask_reading: MaskReading = MaskReading()

    def __post_init__(self) -> None:
        self.check_some()
        if (self.panoptic is None) != (self.panoptic_masks is None):
            missing = "panoptic" if self.panoptic is None else "panoptic_masks"
            raise Problem((missing,), "missing; the JSON file and the PNGs go together")
        needed_mask = "" if self.semantic_masks is not None else "semantic_masks"
        check_mask_keys(classes=self.mask_classes, values=self.mask_values, key=needed_mask)
        for task in self.tasks or ():
            given, needed = bool(self.annotations), "annotations"
            if task == "panoptic":
                given, needed = self.panoptic is not None, "panoptic and panoptic_masks"
            elif task == "semantic":
                given |= self.semantic_masks is not None
                needed = "semantic_masks, or annotations of stuff"
            if not given:
                raise Problem(("tasks",), f"{task} needs {needed}")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes JSON files whose images are in the folder."""
        return recognize_coco(folder, is_lvis=False)

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of the tasks, and masks if they are wanted; keypoints come with objects."""
        tasks = self.tasks
        if tasks is None:
            tasks = self._with_maps({"detection"} if self.annotations else set())
        kinds = {Kind(task) for task in tasks}
        if Kind.KEYPOINTS in kinds:
            kinds.add(Kind.DETECTION)
        if Kind.DETECTION in kinds and self._masks:
            kinds.add(Kind.INSTANCE_MASKS)
        return frozenset(kinds)

    def resolve(self) -> CocoFormat:
        """Finds the tasks from the beginnings of the files, unless they are given.

        The first maps of classes show what their values mean. Without annotation files, the source
        has objects: every image is a negative.

        Raises:
            InputError: A file cannot be read, or its panoptic PNGs are missing or are not named
                like their images.
            Problem: Nothing says what the values of maps mean.
        """
        names = self._png_names
        if self.panoptic and self.panoptic_masks and Kind.PANOPTIC in self.kinds:
            names = find_png_names(self.panoptic, masks=self.panoptic_masks)
        tasks = self.tasks
        if tasks is None:
            found: set[Task] = set()
            for uri in self.annotations:
                found |= sniff_tasks(uri, storage=storage_for(uri))
            tasks = self._with_maps(found) or ["detection"]
        changes = {"tasks": tasks, "_png_names": names, "_mask_reading": self._read_masks(tasks)}
        if all(getattr(self, key) == value for key, value in changes.items()):
            return self
        return msgspec.structs.replace(self, **changes)

    def _read_masks(self, tasks: Sequence[Task]) -> MaskReading:
        """Finds out what the values of `semantic_masks` mean."""
        if self.semantic_masks is None or "semantic" not in tasks:
            return MaskReading()
        if self.mask_values:
            return given_values(self.mask_values)
        maps = read_first_maps(
            (path, file)
            for path, file in RootFiles(self.semantic_masks).walk()
            if listing_exclusion(path) is None
        )
        classes = ids_of_classes(self.mask_classes)
        return decide_mask_values(
            maps,
            declared=lambda: {*classes.values(), *sniff_class_ids(self.annotations)},
            classes=classes,
        )

    def declared_categories(self) -> Iterator[Category]:
        """Returns the classes of `mask_classes`."""
        for name, class_id in ids_of_classes(self.mask_classes).items():
            yield Category(name=name, source_id=class_id, origin="mask_classes")

    def warnings(self) -> Iterator[str]:
        """Warns of files and boxes; says how maps are read if their values are no ids."""
        yield from super().warnings()
        if self._mask_reading.said:
            yield self._mask_reading.said

    def place(self, path: str, *, root: int) -> Place:
        """Distinguishes images, panoptic PNGs and maps of classes by their root.

        Root 0 holds the images. `panoptic_masks` comes next if it is given, then `semantic_masks`.
        """
        key = normalize_key(path)
        if root == 0:
            return Place(role=Role.IMAGE, key=key, join=self._join_of(key))
        if listing_exclusion(path) is not None:
            return Place(role=Role.OTHER)
        if root == 1 and self.panoptic_masks is not None:
            if Kind.PANOPTIC not in self.kinds:
                return Place(role=Role.OTHER)
            join = self._png_names.join_of(key)
            return Place(role=Role.ATTACHED, join=join, mask=MaskRole.PANOPTIC)
        if Kind.SEMANTIC not in self.kinds:
            return Place(role=Role.OTHER)
        return Place(
            role=Role.MASK,
            join=self._join_of(key),
            mask=MaskRole.SEMANTIC,
            values=self._mask_reading.values,
        )

    def annotation_files(self) -> Sequence[str]:
        """Returns the URIs of the JSON files; `panoptic` comes last."""
        if self.panoptic is None or Kind.PANOPTIC not in self.kinds:
            return self.annotations
        return (*self.annotations, self.panoptic)

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one JSON file.

        Yields:
            An entry for each of `images`, one with the defect `UNKNOWN_IMAGE_ID` for each image
            id that only annotations name, and the categories.
        """
        uri = self.annotation_files()[file_index]
        file = CocoFile(uri, storage=storage, image_type=CocoImage)
        reader = (
            AnnotationReader(
                file,
                wanted=self._wanted(uri),
                box_format=self.box_format,
                box_units=self.box_units,
            )
            if file_index < len(self.annotations)
            else PanopticReader(file, names=self._png_names)
        )
        yield from read_entries(
            file,
            reader.annotate,
            key_of=lambda image: normalize_key(image.file_name),
            join_of=self._join_of,
            file_index=file_index,
        )
        yield from reader.categories()

    def reconcile(self, annotations: ImageAnnotations) -> ImageAnnotations:
        """Leaves out a panoptic PNG if no annotation names a segment of it."""
        if annotations.segments or MaskRole.PANOPTIC not in annotations.masks:
            return annotations
        masks = dict(annotations.masks)
        del masks[MaskRole.PANOPTIC]
        return msgspec.structs.replace(annotations, masks=masks)

    def _with_maps(self, tasks: Set[Task]) -> list[Task]:
        if self.panoptic is not None:
            tasks = tasks | {"panoptic"}
        if self.semantic_masks is not None:
            tasks = tasks | {"semantic"}
        return [task for task in TASKS if task in tasks]

    def _join_of(self, key: str) -> str:
        has_maps = self.semantic_masks is not None or self.panoptic_masks is not None
        return without_extension(key) if has_maps else key

    def _wanted(self, uri: str) -> frozenset[Kind]:
        # Where objects are not wanted, a file of stuff may have any name.
        is_stuff = Kind.SEMANTIC in self.kinds and (
            is_stuff_name(uri) or Kind.DETECTION not in self.kinds
        )
        return self.kinds - {Kind.DETECTION if is_stuff else Kind.SEMANTIC}
