"""What a COCO file says about each of its images.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.kinds import Kind
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.formats.annotation_file import (
    count_mended,
    decode_json,
    read_annotation_file,
    repeated_key,
)
from shardbeam.transforms.formats.json_array import JsonArray, cut_array
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
_SECTIONS = ("images", "annotations", "categories")
# COCO's files of test images hold these sections, and no annotations.
_IMAGE_INFO_SECTIONS = frozenset({"info", "licenses", "images", "categories"})


class CocoImage(msgspec.Struct, gc=False):
    """An entry of `images`."""

    id: _ImageId
    file_name: str
    width: _Pixels | None = None
    height: _Pixels | None = None


T = TypeVar("T")
ImageT = TypeVar("ImageT", bound=CocoImage)


class CocoCategory(msgspec.Struct, gc=False):
    """An entry of `categories`."""

    id: Int64
    name: str
    # Nothing but its equality with other texts matters, whatever it is.
    supercategory: object = None
    # In panoptic files: whether it has countable objects.
    isthing: bool | int | None = None
    # In keypoints files: their names.
    keypoints: msgspec.Raw = _ABSENT
    # The lines between them: pairs of their numbers, from 1.
    skeleton: msgspec.Raw = _ABSENT


class _Document(msgspec.Struct, Generic[ImageT]):
    images: list[ImageT] | None = None
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
    # In panoptic files only.
    segments_info: msgspec.Raw = _ABSENT


class _Owner(msgspec.Struct, gc=False):
    image_id: _ImageId


_sections_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entries_decoder = msgspec.json.Decoder(list[msgspec.Raw] | None)
_annotation_decoder = msgspec.json.Decoder(_Annotation)
_owner_decoder = msgspec.json.Decoder(_Owner)
_names_decoder = msgspec.json.Decoder(list[str] | None)
_pairs_decoder = msgspec.json.Decoder(list[tuple[int, int]] | None)
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

    What it takes in memory is the file's size, and twice that for a moment where the annotations
    are not as expected.

    Attributes:
        uri: The file.
        images: Its images.
        annotations: Its annotations, as JSON text.
        categories: `{position in the file: category}`, of several with one id the first.
        names: `{category id: its name}`. Annotations without a category look None up.
    """

    def __init__(self, uri: str, *, storage: Storage, image_type: type[ImageT]) -> None:
        """Reads the file.

        Raises:
            InputError: The file cannot be read, is not JSON, has no `images`, has an image or a
                category that is malformed, or gives two categories one id.
        """
        self.uri = uri
        self._image_type = image_type
        data = read_annotation_file(uri, storage=storage)
        # Text at first: decoded all at once, annotations take over twice the file's size.
        rest, cut_out = cut_array(data, key="annotations", entry_type=_Owner) or (data, None)

        def decode(decoder: msgspec.json.Decoder[T]) -> T:
            try:
                return decode_json(rest, decoder=decoder, uri=uri)
            except InputError:
                # Its place is one in the whole file.
                return decode_json(data, decoder=decoder, uri=uri)

        sections = decode(_sections_decoder)
        self._check_keys(rest, place="$")
        document: _Document[ImageT] = decode(
            msgspec.json.Decoder(_Document[image_type])  # type: ignore[valid-type]  # It is one.
        )
        # `null` is as good as nothing; a file may have no section at all.
        self._found = [
            name for name, text in sections.items() if bytes(memoryview(text)[:5]) != b"null"
        ]
        self.require("images")
        self.images: Sequence[ImageT] = document.images or ()
        self.annotations: JsonArray | Sequence[msgspec.Raw] = (
            self._entries(sections, "annotations") if cut_out is None else cut_out
        )
        self.categories: dict[int, CocoCategory] = {}
        self.names: dict[int | None, str] = {}
        # {position of an image, or name of a category: lone surrogates in its texts}
        self._lone_surrogates: dict[int | str, int] = {}
        for index, text in enumerate(self._entries(sections, "images")):
            self._check_keys(text, place=f"$.images[{index}]")
            if lone := count_mended(text):
                self._lone_surrogates[index] = lone
        texts = self._entries(sections, "categories")
        for index, category in enumerate(document.categories or ()):
            self._check_keys(texts[index], place=f"$.categories[{index}]")
            if lone := count_mended(texts[index]):
                self._lone_surrogates[category.name] = lone
            if category.id not in self.names:
                self.categories[index] = category
            name = self.names.setdefault(category.id, category.name)
            if name != category.name:
                raise InputError(
                    uri=uri,
                    place=f"$.categories[{index}].id",
                    problem=f"{category.name!r} has id {category.id}, which is {name!r}'s",
                )

    def _entries(self, sections: Mapping[str, msgspec.Raw], name: str) -> Sequence[msgspec.Raw]:
        section, place = sections.get(name, msgspec.Raw(b"null")), f"$.{name}"
        return decode_json(section, decoder=_entries_decoder, uri=self.uri, place=place) or ()

    def _check_keys(self, text: bytes | msgspec.Raw, *, place: str) -> None:
        key = repeated_key(text)
        if key is not None:
            raise InputError(uri=self.uri, place=place, problem=f"the key {key!r} is given twice")

    @property
    def is_image_info(self) -> bool:
        """Whether the file lists images and has no annotations, as for COCO's test images."""
        return set(self._found) <= _IMAGE_INFO_SECTIONS

    def is_dummy(self, category: CocoCategory) -> bool:
        """Whether a category is the dummy with id 0 that Roboflow's exports begin with.

        It has the supercategory `none`, and is the supercategory of all others.
        """
        if category.id != 0 or category.supercategory != "none":
            return False
        others = [each for each in self.categories.values() if each.id != 0]
        return bool(others) and all(each.supercategory == category.name for each in others)

    def require(self, *names: str) -> None:
        """Checks that the file has some of the sections.

        Raises:
            InputError: It lacks one.
        """
        if not set(names) <= set(self._found):
            missing = [name for name in _SECTIONS if name not in self._found]
            names_found = sorted(self._found)[:20] or ["none"]
            found = [name if name.isprintable() else repr(name) for name in names_found]
            raise InputError(
                uri=self.uri,
                place="$",
                problem="expected the sections images, annotations and categories of COCO; "
                f"missing: {', '.join(missing)}; found: {', '.join(found)}",
            )

    def decode(self, index: int, *, decoder: msgspec.json.Decoder[T]) -> T:
        """Decodes one annotation.

        Raises:
            InputError: It is not what `decoder` expects.
        """
        place = f"$.annotations[{index}]"
        return decode_json(self.annotations[index], decoder=decoder, uri=self.uri, place=place)

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
            self._check_keys(self.annotations[index], place=f"$.annotations[{index}]")
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
            found, malformed = _annotations_or_defect(annotate, image, own)
            if found is not None and self._lone_surrogates:
                found = self._count_mended(found, position)
            first = positions[str(image.id)]
            defect = self._unusable(position, key=key, keys=keys, first=first, count=len(own))
            if defect is None:
                keys[key] = position
                defect = malformed
            yield msgspec.structs.replace(
                entry,
                annotations=b"" if found is None or defect else encode_annotations(found),
                defect=defect and defect.reason,
                detail=f"{name}: {defect.detail}" if defect else "",
            )
        for position, image_id in enumerate(unlisted, len(self.images)):
            own = rows[position]
            # They tell what kind of file it is.
            _annotations_or_defect(annotate, self._image_type(id=image_id, file_name=""), own)
            yield AnnotationEntry(
                key=_id_key(image_id),
                file_index=file_index,
                position=position,
                image_id=image_id,
                defect=Reason.UNKNOWN_IMAGE_ID,
                detail=f"{name}: $.annotations[{own[0]}]: `images` lists no image id {image_id}, "
                f"which {len(own)} annotations name",
            )

    def _count_mended(self, found: ImageAnnotations, position: int) -> ImageAnnotations:
        """Counts the lone surrogates of the image's own entry, and of its classes' names."""
        labels = [item.label for item in (*found.objects, *found.stuff)]
        labels += [segment.label for segment in found.segments]
        texts: list[int | str] = [position, *found.labels, *labels]
        corrections = Counter(found.corrections)
        corrections[Correction.LONE_SURROGATE_REPLACED.value] += sum(
            self._lone_surrogates.get(text, 0) for text in texts
        )
        return msgspec.structs.replace(found, corrections=dict(sorted((+corrections).items())))

    def _unusable(
        self, position: int, *, key: str, keys: Mapping[str, int], first: int, count: int
    ) -> RejectedError | None:
        image_id = self.images[position].id
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
) -> tuple[ImageAnnotations | None, RejectedError | None]:
    try:
        return annotate(image, rows), None
    except RejectedError as error:
        return None, error
    except InputError as error:
        detail = f"{error.place}: {error.problem}"
        return None, RejectedError(Reason.ANNOTATION_MALFORMED, detail)


def _id_key(image_id: str) -> str:
    return f"image_id={escape_key(image_id)}"


class AnnotationReader:
    """Reads the annotations of a file's images, and what they say about the file as a whole.

    Args:
        file: The file.
        wanted: What is taken from it. Where it is `SEMANTIC`, the annotations with a segmentation
            are stuff, and none is an object.

    Raises:
        InputError: The file has no `annotations`, and other sections than files of test images.
    """

    def __init__(self, file: CocoFile[ImageT], *, wanted: Collection[Kind]) -> None:
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
        """Reads the annotations of one image, given by their positions in the file.

        An annotation that repeats the id, category and box of an earlier one is left out.

        Raises:
            InputError: One of them is malformed; the others are read all the same.
        """
        wants_objects = Kind.DETECTION in self._wanted
        wants_masks = Kind.INSTANCE_MASKS in self._wanted
        wants_captions = Kind.CAPTIONS in self._wanted
        wants_labels = Kind.CLASSIFICATION in self._wanted
        wants_stuff = Kind.SEMANTIC in self._wanted
        objects: dict[tuple[object, ...], ObjectAnnotation] = {}
        stuff: list[ObjectAnnotation] = []
        captions: list[str] = []
        labels: dict[str, None] = {}
        corrections = Corrections()
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
                if wants_captions:
                    captions.append(item.caption)
                    lone = count_mended(self._file.annotations[index])
                    corrections[Correction.LONE_SURROGATE_REPLACED.value] += lone
                if bbox is None:
                    continue
            label = self._file.names.get(item.category_id)
            segmentation = bytes(item.segmentation)
            if _NO_SEGMENTATION.fullmatch(segmentation):
                segmentation = b""
            if wants_stuff:
                self._known += bool(segmentation)
            elif wants_labels and bbox is None and not segmentation:
                self._known += 1
                self._needs_categories |= label is None
                if label is None:
                    corrections.note(Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED, item.category_id)
                else:
                    labels[label] = None
                continue
            elif not wants_objects:
                self._known += 1
                continue
            else:
                self._known += bbox is not None
            self._needs_categories |= label is None
            if label is None:
                corrections.note(Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED, item.category_id)
            elif wants_stuff and not segmentation:
                corrections.note(Correction.REGION_UNUSABLE_DROPPED, label)
            elif wants_stuff:
                box = bbox or (0.0, 0.0, 0.0, 0.0)
                stuff.append(_object(item, label=label, bbox=box, segmentation=segmentation))
            elif bbox is None:
                corrections.note(Correction.OBJECT_WITHOUT_BOX_DROPPED, label)
            elif (key := (item.id or 0, label, bbox)) in objects:
                corrections.note(Correction.DUPLICATE_ANNOTATION_DROPPED, item.id)
            else:
                if is_from_polygons:
                    corrections.note(Correction.BOX_FROM_POLYGONS, None, bbox)
                if not _are_keypoints(keypoints):
                    corrections.note(Correction.KEYPOINTS_MALFORMED_DROPPED, keypoints)
                    keypoints = ()
                most = max(self._keypoint_counts.get(item.category_id, 0), len(keypoints) // 3)
                self._keypoint_counts[item.category_id] = most
                kept = segmentation if wants_masks else b""
                objects[key] = _object(
                    item, label=label, bbox=bbox, segmentation=kept, keypoints=keypoints
                )
        if first_error is not None:
            raise first_error
        return ImageAnnotations(
            image_id=str(image.id),
            width=int(image.width or 0),
            height=int(image.height or 0),
            labels=tuple(labels),
            objects=tuple(objects.values()),
            corrections=corrections.counts(),
            changes=corrections.changes,
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
            if file.decode(0, decoder=_annotation_decoder).segments_info:
                raise panoptic_file_error(file.uri)
            raise InputError(
                uri=file.uri,
                place="$.annotations",
                problem=f"none of the {len(file.annotations)} annotations has a bbox, polygons or "
                "a caption; is this a file of COCO instances, keypoints, captions or stuff?",
            )
        if not {Kind.DETECTION, Kind.CLASSIFICATION, Kind.SEMANTIC} & set(self._wanted):
            return
        for index, category in file.categories.items():
            yield Category(
                name=category.name,
                source_id=category.id,
                origin=file.uri,
                keypoints=self._keypoint_names(category, index=index),
                is_thing=Kind.SEMANTIC not in self._wanted,
                skeleton=self._skeleton(category),
                is_background=file.is_dummy(category),
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
        place = f"{place}.segmentation"
        polygons = self._decode_part(item.segmentation, decoder=_polygons_decoder, place=place)
        if not isinstance(polygons, list):
            return None, False
        xs = [x for polygon in polygons for x in polygon[0::2]]
        ys = [y for polygon in polygons for y in polygon[1::2]]
        return ((min(xs), min(ys), max(xs), max(ys)), True) if xs and ys else (None, False)

    def _keypoints(self, item: _Annotation, *, index: int) -> Sequence[float]:
        if Kind.KEYPOINTS not in self._wanted or not item.keypoints:
            return ()
        place = f"$.annotations[{index}].keypoints"
        return self._decode_part(item.keypoints, decoder=_numbers_decoder, place=place) or ()

    def _keypoint_names(self, category: CocoCategory, *, index: int) -> tuple[str, ...]:
        """Names a category's keypoints, and numbers those without a name of their own."""
        if Kind.KEYPOINTS not in self._wanted:
            return ()
        declared: list[str] = []
        if category.keypoints:
            place = f"$.categories[{index}].keypoints"
            declared = (
                self._decode_part(category.keypoints, decoder=_names_decoder, place=place) or []
            )
        names: list[str] = []
        for number in range(max(self._keypoint_counts.get(category.id, 0), len(declared))):
            name = declared[number] if number < len(declared) else ""
            # A reader tells keypoints by their names.
            names.append(name if name and name not in names else f"keypoint_{number + 1}")
        return tuple(names)

    def _skeleton(self, category: CocoCategory) -> tuple[tuple[int, int], ...]:
        """Reads which keypoints are joined; nothing but a drawing depends on it.

        COCO numbers keypoints from 1. Where there is a 0, they are taken to be numbered from it.
        """
        if Kind.KEYPOINTS not in self._wanted or not category.skeleton:
            return ()
        try:
            pairs = _pairs_decoder.decode(category.skeleton) or ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return ()
        start = 0 if any(0 in pair for pair in pairs) else 1
        shifted = {(first - start, second - start) for first, second in pairs}
        return tuple(sorted(pair for pair in shifted if min(pair) >= 0))

    def _decode_part(self, part: msgspec.Raw, *, decoder: msgspec.json.Decoder[T], place: str) -> T:
        return decode_json(part, decoder=decoder, uri=self._file.uri, place=place)


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
