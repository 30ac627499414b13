"""What a COCO file says about each of its images.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.examples.schema import MAX_FLOAT32
from shardbeam.transforms.formats.annotation_file import (
    decode_json,
    decode_json_part,
    read_annotation_file,
)
from shardbeam.transforms.formats.names import escape_key, key_problem
from shardbeam.transforms.storage.base import Storage

# Crowd annotations have ids beyond int32.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_ImageId = Int64 | str
_Pixels = (
    Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    | Annotated[float, msgspec.Meta(ge=0, le=2**31 - 1, multiple_of=1)]
)
_Box = tuple[float, float, float, float]

_ABSENT = msgspec.Raw()
_NO_SEGMENTATION = re.compile(rb"(null|\[\s*\]|\{\s*\})?")
_KEYPOINT_VALUES = 3
_VISIBILITIES = frozenset({0.0, 1.0, 2.0})
# COCO's files of test images hold these sections, and no annotations.
_IMAGE_INFO_SECTIONS = frozenset({"info", "licenses", "images", "categories"})


class CocoImage(msgspec.Struct, gc=False):
    """An entry of `images`.

    Attributes:
        id: Its id.
        file_name: Its path relative to some root.
        width: Width in pixels.
        height: Height in pixels.
    """

    id: _ImageId
    file_name: str
    width: _Pixels | None = None
    height: _Pixels | None = None


T = TypeVar("T")
ImageT = TypeVar("ImageT", bound=CocoImage)


class CocoCategory(msgspec.Struct, gc=False):
    """An entry of `categories`.

    Attributes:
        id: Its id.
        name: Its name.
        isthing: In panoptic files: whether it has countable objects.
        keypoints: In keypoints files: the JSON list of its keypoints' names.
    """

    id: Int64
    name: str
    isthing: bool | int | None = None
    keypoints: msgspec.Raw = _ABSENT


class _Document(msgspec.Struct, Generic[ImageT]):
    images: list[ImageT] | None = None
    # Text at first: decoded all at once, annotations take over twice the file's size.
    annotations: list[msgspec.Raw] | None = None
    categories: list[CocoCategory] | None = None


class _Annotation(msgspec.Struct, gc=False):
    image_id: _ImageId
    id: Int64 | None = None
    category_id: Int64 | None = None
    bbox: list[float] | None = None
    area: float | None = None
    iscrowd: bool | int | None = None
    caption: str | None = None
    # Decoded only where a setting needs them.
    segmentation: msgspec.Raw = _ABSENT
    keypoints: msgspec.Raw = _ABSENT


class _Owner(msgspec.Struct, gc=False):
    image_id: _ImageId


class _Panoptic(msgspec.Struct, gc=False):
    segments_info: msgspec.Raw = _ABSENT


_sections_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_annotation_decoder = msgspec.json.Decoder(_Annotation)
_owner_decoder = msgspec.json.Decoder(_Owner)
_panoptic_decoder = msgspec.json.Decoder(_Panoptic)
_names_decoder = msgspec.json.Decoder(list[str] | None)
_numbers_decoder = msgspec.json.Decoder(list[float] | None)
# A mapping is a run-length encoding.
_polygons_decoder = msgspec.json.Decoder(list[list[float]] | dict[str, msgspec.Raw] | None)


def panoptic_file_error(uri: str) -> InputError:
    """Makes the error for a file of panoptic segments that is named as `annotations`."""
    return InputError(
        uri=uri,
        place="$.annotations",
        problem="a file of panoptic segments: name it as `panoptic` (--panoptic FILE), and the "
        "folder of its PNGs as `panoptic_masks` (--panoptic-masks DIR)",
    )


class CocoFile(Generic[ImageT]):
    """A COCO file whose annotations are still text.

    At its peak, reading takes about twice the file's size in memory; what stays is the content.

    Attributes:
        uri: The file.
        images: Its images.
        annotations: Its annotations, as JSON text.
        categories: Its categories; of several with one id the first one counts.
        names: `{category id: its name}`. Annotations without a category look None up.
    """

    def __init__(self, uri: str, *, storage: Storage, image_type: type[ImageT]) -> None:
        """Reads the file.

        Args:
            uri: The file.
            storage: Reads it.
            image_type: What an entry of `images` is: `CocoImage`, or more.

        Raises:
            InputError: The file cannot be read, is not JSON, has no `images`, has an image or a
                category that is malformed, or gives two categories one id.
        """
        data = read_annotation_file(uri, storage=storage)
        decoder = msgspec.json.Decoder(_Document[image_type])  # type: ignore[valid-type]  # It is one.
        document: _Document[ImageT] = decode_json(data, decoder=decoder, uri=uri)
        self._found: Sequence[str] = ()
        if None in (document.images, document.annotations, document.categories):
            sections = decode_json(data, decoder=_sections_decoder, uri=uri)
            # `null` is as good as nothing; a file may have no section at all.
            self._found = sorted(
                name for name, text in sections.items() if bytes(text) != b"null"
            ) or ("none",)
        self.uri = uri
        self._image_type = image_type
        self.images: Sequence[ImageT] = document.images or ()
        self.annotations: Sequence[msgspec.Raw] = document.annotations or ()
        self.categories: Sequence[CocoCategory] = document.categories or ()
        self.names: dict[int | None, str] = {}
        self.require("images")
        for index, category in enumerate(self.categories):
            name = self.names.setdefault(category.id, category.name)
            if name != category.name:
                raise InputError(
                    uri=uri,
                    place=f"$.categories[{index}].id",
                    problem=f"{category.name!r} has id {category.id}, which is {name!r}'s",
                )

    @property
    def is_image_info(self) -> bool:
        """Whether the file lists images and has no annotations, as for COCO's test images."""
        return bool(self._found) and set(self._found) <= _IMAGE_INFO_SECTIONS

    def require(self, *names: str) -> None:
        """Checks that the file has some of the sections.

        Raises:
            InputError: It lacks one.
        """
        if self._found and not set(names) <= set(self._found):
            missing = [name for name in _Document.__struct_fields__ if name not in self._found]
            raise InputError(
                uri=self.uri,
                place="$",
                problem="expected the sections images, annotations and categories of COCO; "
                f"missing: {', '.join(missing)}; found: {', '.join(self._found[:20])}",
            )

    def decode(self, index: int, *, decoder: msgspec.json.Decoder[T]) -> T:
        """Decodes one annotation.

        Raises:
            InputError: It is not what `decoder` expects.
        """
        return decode_json_part(
            self.annotations[index],
            decoder=decoder,
            uri=self.uri,
            place=f"$.annotations[{index}]",
        )

    def entries(
        self,
        annotate: Callable[[ImageT, Sequence[int]], ImageAnnotations],
        *,
        key_of: Callable[[ImageT], str],
        join_of: Callable[[str], str],
        file_index: int,
    ) -> Iterator[AnnotationEntry]:
        """Makes an entry for each image, and for each image id that only annotations name.

        Image ids are compared as text. Of images with one id the first has its annotations.

        Args:
            annotate: Reads the annotations of an image, given by their positions. It is called
                for every image id, whether the image can be used or not; an `InputError` or
                `RejectedError` is the defect of the image's entry.
            key_of: Finds the image's key.
            join_of: Finds what a key is joined by.
            file_index: Which of the source's files it is.

        Raises:
            InputError: An annotation does not tell its image.
        """
        # Details end up in the dataset, which must not depend on where its input lies.
        name = self.uri.rpartition("/")[2]
        # {image id: position of the first image that has it}; ids that only annotations name
        # come after the images.
        positions: dict[str, int] = {}
        for position, image in enumerate(self.images):
            positions.setdefault(str(image.id), position)
        unlisted: list[str] = []
        rows: defaultdict[int, list[int]] = defaultdict(list)
        for index in range(len(self.annotations)):
            image_id = str(self.decode(index, decoder=_owner_decoder).image_id)
            if image_id not in positions:
                positions[image_id] = len(self.images) + len(unlisted)
                unlisted.append(image_id)
            rows[positions[image_id]].append(index)

        # {key: position of the image that keeps it}
        keys: dict[str, int] = {}
        for position, image in enumerate(self.images):
            key = key_of(image)
            entry = AnnotationEntry(
                key=join_of(key)
                if key_problem(key) is None
                else escape_key(key) or _id_key(str(image.id)),
                file_index=file_index,
                position=position,
                image_id=str(image.id),
            )
            own = rows.get(position, ())
            annotations, defect = _annotations_or_defect(annotate, image, own)
            first = positions[str(image.id)]
            unusable = self._unusable(position, key=key, keys=keys, first=first, count=len(own))
            if unusable is None:
                keys[key] = position
                unusable = defect
            if unusable is None:
                yield msgspec.structs.replace(entry, annotations=annotations)
            else:
                yield msgspec.structs.replace(
                    entry, defect=unusable.reason, detail=f"{name}: {unusable.detail}"
                )
        for position, image_id in enumerate(unlisted, len(self.images)):
            # They tell what kind of file it is.
            _annotations_or_defect(
                annotate, self._image_type(id=image_id, file_name=""), rows[position]
            )
            yield AnnotationEntry(
                key=_id_key(image_id),
                file_index=file_index,
                position=position,
                image_id=image_id,
                defect=Reason.UNKNOWN_IMAGE_ID,
                detail=f"{name}: $.annotations[{rows[position][0]}]: `images` lists no image id "
                f"{image_id}, which {len(rows[position])} annotations name",
            )

    def _unusable(
        self, position: int, *, key: str, keys: Mapping[str, int], first: int, count: int
    ) -> RejectedError | None:
        image_id = str(self.images[position].id)
        place = f"$.images[{position}]"
        problem = key_problem(key)
        if problem is not None:
            return RejectedError(Reason.UNREADABLE_NAME, f"{place}: file_name: {problem}")
        if first != position:
            return RejectedError(
                Reason.DUPLICATE_IMAGE_ID,
                f"{place}: image id {image_id} is $.images[{first}]'s, and its annotations with it",
            )
        if key in keys:
            return RejectedError(
                Reason.DUPLICATE_KEY,
                f"{place}: image id {image_id} has the file_name of image id "
                f"{self.images[keys[key]].id} ($.images[{keys[key]}]); its {count} annotations "
                "are left out",
            )
        return None


def _annotations_or_defect(
    annotate: Callable[[ImageT, Sequence[int]], ImageAnnotations],
    image: ImageT,
    rows: Sequence[int],
) -> tuple[bytes, RejectedError | None]:
    try:
        return encode_annotations(annotate(image, rows)), None
    except RejectedError as error:
        return b"", error
    except InputError as error:
        detail = f"{error.place}: {error.problem}"
        return b"", RejectedError(Reason.ANNOTATION_MALFORMED, detail)


def _id_key(image_id: str) -> str:
    return f"image_id={escape_key(image_id)}"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be taken from a file's annotations.

    Attributes:
        objects: Those with a box are objects.
        segmentations: Objects get their segmentation.
        keypoints: Objects get their keypoints.
        captions: Captions.
        labels: Those with a category and nothing else are classes of the image.
        stuff: Those with a segmentation are stuff; then none is an object.
    """

    objects: bool = False
    segmentations: bool = False
    keypoints: bool = False
    captions: bool = False
    labels: bool = False
    stuff: bool = False


class AnnotationReader:
    """Reads the annotations of a file's images, and what they say about the file as a whole.

    Raises:
        InputError: The file has no `annotations`, and other sections than files of test images.
    """

    def __init__(self, file: CocoFile[ImageT], *, wanted: Wanted) -> None:
        if not file.is_image_info:
            file.require("annotations")
        self._file = file
        self._wanted = wanted
        # How many annotations are of a kind that is read.
        self._known = 0
        self._first_error: tuple[int, InputError] | None = None
        self._needs_categories = False
        # {category id: the most keypoints that an object of it has}
        self._keypoint_counts: dict[int | None, int] = {}

    def annotate(self, image: CocoImage, rows: Sequence[int]) -> ImageAnnotations:
        """Reads the annotations of one image.

        An annotation that repeats the id, category and box of an earlier one is left out.

        Args:
            image: The image.
            rows: Positions of its annotations in the file.

        Raises:
            InputError: One of them is malformed; the others are read all the same.
        """
        wanted = self._wanted
        objects: dict[tuple[object, ...], ObjectAnnotation] = {}
        stuff: list[ObjectAnnotation] = []
        captions: list[str] = []
        labels: dict[str, None] = {}
        corrections: Counter[Correction] = Counter()
        first_error: InputError | None = None
        for index in rows:
            try:
                item = self._file.decode(index, decoder=_annotation_decoder)
                bbox, is_from_polygons = self._bbox(item, index=index)
                keypoints = self._keypoints(item, index=index)
            except InputError as error:
                first_error = first_error or error
                if self._first_error is None or index < self._first_error[0]:
                    self._first_error = index, error
                continue
            if item.caption is not None:
                self._known += 1
                if wanted.captions:
                    captions.append(item.caption)
                if bbox is None:
                    continue
            label = self._file.names.get(item.category_id)
            segmentation = _segmentation_text(item.segmentation)
            if wanted.stuff:
                self._known += bool(segmentation)
            elif wanted.labels and bbox is None and not segmentation:
                self._known += 1
                self._needs_categories |= label is None
                if label is None:
                    corrections[Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED] += 1
                else:
                    labels[label] = None
                continue
            elif not wanted.objects:
                self._known += 1
                continue
            else:
                self._known += bbox is not None
            self._needs_categories |= label is None
            if label is None:
                corrections[Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED] += 1
            elif wanted.stuff and not segmentation:
                corrections[Correction.REGION_UNUSABLE_DROPPED] += 1
            elif wanted.stuff:
                box = bbox or (0.0, 0.0, 0.0, 0.0)
                stuff.append(_object(item, label=label, bbox=box, segmentation=segmentation))
            elif bbox is None:
                corrections[Correction.OBJECT_WITHOUT_BOX_DROPPED] += 1
            elif (key := (item.id or 0, label, bbox)) in objects:
                corrections[Correction.DUPLICATE_ANNOTATION_DROPPED] += 1
            else:
                if is_from_polygons:
                    corrections[Correction.BOX_FROM_POLYGONS] += 1
                if not _are_keypoints(keypoints):
                    corrections[Correction.KEYPOINTS_MALFORMED_DROPPED] += 1
                    keypoints = ()
                self._count_keypoints(item, keypoints)
                objects[key] = _object(
                    item,
                    label=label,
                    bbox=bbox,
                    segmentation=segmentation if wanted.segmentations else b"",
                    keypoints=keypoints,
                )
        if first_error is not None:
            raise first_error
        return ImageAnnotations(
            image_id=str(image.id),
            width=int(image.width or 0),
            height=int(image.height or 0),
            labels=tuple(labels),
            objects=tuple(objects.values()),
            corrections=dict(sorted((each.value, count) for each, count in corrections.items())),
            captions=tuple(captions),
            stuff=tuple(stuff),
        )

    def categories(self) -> Iterator[Category]:
        """Checks, after all images, that the file is of a kind that is read, and declares classes.

        Yields:
            Each category once; none where no category matters.

        Raises:
            InputError: No annotation can be used, the categories are missing, or names of
                keypoints are no texts.
        """
        file = self._file
        if self._needs_categories:
            file.require("categories")
        if file.annotations and not self._known:
            if self._first_error is not None:
                raise self._first_error[1]
            if file.decode(0, decoder=_panoptic_decoder).segments_info:
                raise panoptic_file_error(file.uri)
            raise InputError(
                uri=file.uri,
                place="$.annotations",
                problem=f"none of the {len(file.annotations)} annotations has a bbox, polygons or "
                "a caption; is this a file of COCO instances, keypoints, captions or stuff?",
            )
        wanted = self._wanted
        if not (wanted.objects or wanted.labels or wanted.stuff):
            return
        declared: set[int] = set()
        for index, category in enumerate(file.categories):
            if category.id not in declared:
                declared.add(category.id)
                yield Category(
                    name=category.name,
                    source_id=category.id,
                    origin=file.uri,
                    keypoints=self._keypoint_names(category, index=index),
                    is_thing=not wanted.stuff,
                )

    def _bbox(self, item: _Annotation, *, index: int) -> tuple[_Box | None, bool]:
        """The box as `(xmin, ymin, xmax, ymax)`, and whether it is that of the polygons."""
        place = f"$.annotations[{index}]"
        if item.bbox:
            if len(item.bbox) != 4:
                raise InputError(
                    uri=self._file.uri,
                    place=f"{place}.bbox",
                    problem=f"expected [x, y, width, height], got {len(item.bbox)} numbers",
                )
            x, y, width, height = item.bbox
            return (x, y, x + width, y + height), False
        if item.caption is not None or not item.segmentation:
            return None, False
        polygons = decode_json_part(
            item.segmentation,
            decoder=_polygons_decoder,
            uri=self._file.uri,
            place=f"{place}.segmentation",
        )
        if not isinstance(polygons, list):
            return None, False
        xs = [x for polygon in polygons for x in polygon[0::2]]
        ys = [y for polygon in polygons for y in polygon[1::2]]
        return ((min(xs), min(ys), max(xs), max(ys)), True) if xs and ys else (None, False)

    def _keypoints(self, item: _Annotation, *, index: int) -> Sequence[float]:
        if not self._wanted.keypoints or not item.keypoints:
            return ()
        place = f"$.annotations[{index}].keypoints"
        values = decode_json_part(
            item.keypoints, decoder=_numbers_decoder, uri=self._file.uri, place=place
        )
        return values or ()

    def _count_keypoints(self, item: _Annotation, keypoints: Sequence[float]) -> None:
        known = self._keypoint_counts.get(item.category_id, 0)
        self._keypoint_counts[item.category_id] = max(known, len(keypoints) // _KEYPOINT_VALUES)

    def _keypoint_names(self, category: CocoCategory, *, index: int) -> tuple[str, ...]:
        """Names a category's keypoints, and numbers those without a name of their own."""
        if not self._wanted.keypoints:
            return ()
        declared: list[str] = []
        if category.keypoints:
            declared = (
                decode_json_part(
                    category.keypoints,
                    decoder=_names_decoder,
                    uri=self._file.uri,
                    place=f"$.categories[{index}].keypoints",
                )
                or []
            )
        names: list[str] = []
        for number in range(max(self._keypoint_counts.get(category.id, 0), len(declared))):
            name = declared[number] if number < len(declared) else ""
            # A reader tells keypoints by their names.
            names.append(name if name and name not in names else f"keypoint_{number + 1}")
        return tuple(names)


def _object(
    item: _Annotation,
    *,
    label: str,
    bbox: _Box,
    segmentation: bytes,
    keypoints: Sequence[float] = (),
) -> ObjectAnnotation:
    return ObjectAnnotation(
        label=label,
        bbox=bbox,
        area=-1.0 if item.area is None else item.area,
        is_crowd=bool(item.iscrowd),
        annotation_id=item.id or 0,
        segmentation=segmentation,
        keypoints=tuple(keypoints),
    )


def _are_keypoints(values: Sequence[float]) -> bool:
    return not values or (
        len(values) % _KEYPOINT_VALUES == 0
        and _VISIBILITIES.issuperset(values[2::_KEYPOINT_VALUES])
        and max(values) <= MAX_FLOAT32
        and min(values) >= -MAX_FLOAT32
    )


def _segmentation_text(segmentation: msgspec.Raw) -> bytes:
    """The JSON text of a segmentation; empty for one that says nothing."""
    text = bytes(segmentation)
    return b"" if _NO_SEGMENTATION.fullmatch(text) else text
