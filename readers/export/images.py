"""Reads a dataset's Examples as images with their annotations, ready to be written as files."""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.labels import Skeletons
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.decode.annotations import (
    annotations_of,
    class_of,
    keypoint_names,
)
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture
from shardbeam.transforms.examples.encode.image_features import IMAGE
from shardbeam.transforms.examples.geometry.boxes import Size
from shardbeam.transforms.examples.geometry.orientation import orient_size
from shardbeam.transforms.images.check import store_cifar
from shardbeam.transforms.images.header import FileFormat
from shardbeam.transforms.images.read_header import recognize_image

# Keys of an image, its boxes and its keypoints that an export can hold; some of them, such as the
# digest, follow from the others.
IMAGE_KEYS = frozenset(
    {IMAGE, "image/filename", "image/format", "image/height", "image/width", "image/key/sha256"}
)
BOX_KEYS = frozenset(
    {
        *(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax")),
        *("image/object/class/label", "image/object/class/text", "image/object/is_crowd"),
        *("annotation/bbox", "annotation/is_crowd"),
        *("annotation/class/label", "annotation/class/text"),
    }
)
KEYPOINT_KEYS = frozenset(
    f"image/object/keypoint/{name}" for name in ("x", "y", "visibility", "num", "text")
)
MASK_KEYS = frozenset({"image/object/mask", "annotation/mask"})
# An Example with one of these keys lists the objects of its image, even if there are none.
OBJECT_KEYS = frozenset({"image/object/bbox/xmin", "annotation/bbox"})
_IMAGE_IDS = ("image/source_id", "annotation/image_id")
_RAW = "raw"
# Keys that are lost are named up to this number, so that memory does not grow with the data.
_MAX_LOST_KEYS = 200
_OTHER_KEYS = "other keys (images)"
# How `class_of` names the id 0 without a name, which stands for no class in many datasets.
_BACKGROUND = ("0", 0)


class Losses:
    """Counts what an export loses or changes, and keeps the first case of each kind.

    Attributes:
        counts: `{what is lost or changed: how many}`.
        first: `{what is lost or changed: the first case}`, for kinds whose cases have names.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._keys: set[str] = set()

    def note(self, what: str, *, count: int = 1, example: str = "") -> None:
        """Counts a loss.

        Args:
            what: What is lost or changed.
            count: How many; 0 is no loss.
            example: A case, such as the key of an image.
        """
        if count:
            self.counts[what] += count
            if example:
                self.first.setdefault(what, example)

    def name_key(self, key: str) -> str:
        """Returns what is counted for a key that is lost: itself, or that it is one of many."""
        if key not in self._keys:
            if len(self._keys) == _MAX_LOST_KEYS:
                return _OTHER_KEYS
            self._keys.add(key)
        return f"{key} (images)"


class Classes:
    """The classes of a dataset: their ids, and the keypoints of their objects.

    A class keeps its id. A class without an id, or whose id another class has, gets the id after
    the largest. In a dataset with named classes, the id 0 without a name is no class of objects.

    Args:
        declared: `{id: name}` of the classes that the dataset declares.
        skeletons: Lines between keypoints, by class.

    Attributes:
        ids: `{name: id}`.
        numbers: `{name: number}`: from 0 up, in the order of ids; then the classes that were not
            declared.
        keypoints: Names of the keypoints of the object with the most so far; empty until an object
            has some.
    """

    def __init__(self, declared: Mapping[int, str], *, skeletons: Skeletons) -> None:
        self.ids: dict[str, int] = {}
        self.keypoints: tuple[str, ...] = ()
        self._skeletons = skeletons
        self._used: set[int] = set()
        self._has_names = self._has_class_0 = False
        for class_id, name in sorted(declared.items()):
            self.add(name, class_id)
        self.numbers = {name: number for number, name in enumerate(self.ids)}

    def add(self, name: str, class_id: int, *, of_image: bool = False) -> None:
        """Adds a class, unless its name is known or stands for no class.

        Args:
            name: Its name, or its id as text.
            class_id: Its id; negative where there is none.
            of_image: Whether it is the class of an image, whose id 0 is like any other.
        """
        self._has_class_0 |= of_image
        is_background = (name, class_id) == _BACKGROUND and not self._has_class_0
        if not name or name in self.ids or (self._has_names and is_background):
            return
        self._has_names |= name != str(class_id)
        if class_id < 0 or class_id in self._used:
            class_id = max(self._used, default=0) + 1
        self._used.add(class_id)
        self.ids[name] = class_id

    def add_from(self, picture: Picture, *, feature_map: FeatureMap) -> None:
        """Adds the classes of a picture, and the names of its keypoints."""
        for name, class_id in zip(picture.labels, picture.label_ids, strict=True):
            self.add(name, class_id, of_image=True)
        for item in picture.objects:
            self.add(*class_of(item))
        if picture.objects and len(picture.objects[0].keypoints) > len(self.keypoints):
            self.keypoints = keypoint_names(picture, feature_map=feature_map)

    def sort(self) -> None:
        """Numbers the classes that are known by now in the order of their ids."""
        background, class_id = _BACKGROUND
        is_background = self.ids.get(background) == class_id and not self._has_class_0
        if self._has_names and is_background:
            del self.ids[background]
        self.numbers = {name: number for number, name in enumerate(self.by_id().values())}

    def number_of(self, name: str) -> int:
        """Returns the number of a class; one that was not declared follows the others."""
        return self.numbers.setdefault(name, len(self.numbers))

    def by_id(self) -> dict[int, str]:
        """Returns `{id: name}`, sorted."""
        return {class_id: name for name, class_id in sorted(self.ids.items(), key=lambda i: i[1])}

    def skeleton_of(self, name: str) -> list[tuple[int, int]]:
        """Returns the pairs of keypoints, numbered from 0, that a line joins."""
        pairs = self._skeletons.get(name, ())
        return [pair for pair in pairs if min(pair) >= 0 and max(pair) < len(self.keypoints)]


class ExportImage(msgspec.Struct, kw_only=True):
    """An image to be written as a file, with its annotations.

    Attributes:
        key: Its key.
        number: Number of its (first) Example in the split, from 1.
        data: The stored image file; a PNG file for bare pixels.
        format: The format of `data`.
        width: Width of the image that `objects` refer to, in pixels: the stored image, or the
            upright one if the Example gives its size; 0 if that is not known.
        height: Its height in pixels; 0 if that is not known.
        image_id: The source's id; empty if it has none.
        labels: Classes of the image as a whole.
        captions: Texts that describe it.
        objects: Its objects, in fractions of the image.
        has_objects: Whether its Example has keys of objects, even if they are empty.
        where: The place of its Example, for errors.
    """

    key: str
    number: int
    data: bytes
    format: FileFormat
    width: int
    height: int
    image_id: str
    labels: tuple[str, ...]
    captions: tuple[str, ...]
    objects: list[ObjectAnnotation]
    has_objects: bool
    where: str


@dataclasses.dataclass(eq=False, kw_only=True)
class ImageReader:
    """Turns the pictures of a dataset into images for the export.

    Attributes:
        path: The dataset's path, for errors.
        feature_map: How its Examples are to be read.
        classes: Its classes; others that are found are added.
        losses: Counts what the images do not hold.
        keys: Default keys that the layout writes.
    """

    path: str
    feature_map: FeatureMap
    classes: Classes
    losses: Losses
    keys: Collection[str]

    def __post_init__(self) -> None:
        self._masks = not MASK_KEYS.isdisjoint(self.keys)
        self._defaults = {written: key for key, written in self.feature_map.keys.items() if written}

    def read(self, pictures: Iterable[Picture]) -> Iterator[ExportImage]:
        """Yields the images of a split.

        Consecutive Examples of the objects of one image (`example_per: annotation`) become one
        image.

        Raises:
            InputError: An Example has no image, or values that contradict each other.
        """
        current: ExportImage | None = None
        same: tuple[str, int] | None = None
        lost: set[str] = set()
        for picture in pictures:
            where = f"{picture.split}, Example {picture.number:,} ({picture.shard})"
            identity = None
            if picture.is_of_annotation:
                identity = picture.key, zlib.crc32(picture.image)
            is_same = identity is not None and identity == same
            if not is_same:
                lost = set()
            try:
                file_format, orientation = _describe(picture)
                annotations = self._read_annotations(picture, orientation=orientation, lost=lost)
                if current is not None and is_same:
                    current.objects.extend(annotations.objects)
                    continue
                following = self._make_image(
                    picture,
                    annotations=annotations,
                    file_format=file_format,
                    orientation=orientation,
                    where=where,
                )
            except (RejectedError, ValueError) as error:
                detail = error.detail if isinstance(error, RejectedError) else str(error)
                raise self._error(detail, where=where) from error
            if current is not None:
                yield current
            current, same = following, identity
        if current is not None:
            yield current

    def _read_annotations(
        self, picture: Picture, *, orientation: int, lost: set[str]
    ) -> ImageAnnotations:
        """Reads what can be exported, and counts the rest.

        Args:
            picture: The picture.
            orientation: The EXIF orientation of its image, 1 to 8.
            lost: Names of keys that were counted for its image already; others are added.
        """
        annotations = annotations_of(picture, feature_map=self.feature_map, masks=self._masks)
        self.classes.add_from(picture, feature_map=self.feature_map)
        dropped = len(picture.objects) - len(annotations.objects)
        self.losses.note("objects without a box", count=dropped, example=picture.key)
        size = _frame_of(picture, annotations=annotations, orientation=orientation)
        objects = tuple(
            self._with_fitting_mask(item, size=size, key=picture.key)
            for item in annotations.objects
            if item.label in self.classes.ids
        )
        dropped = len(annotations.objects) - len(objects)
        self.losses.note(
            "objects of the background (id 0 without a name)", count=dropped, example=picture.key
        )
        # Sorted, because protobuf has its keys in another order in each process.
        for written, values in sorted(picture.features.items()):
            key = self._defaults.get(written, written)
            # The image may be stored under another key; it is exported all the same.
            is_lost = values and key not in self.keys and values[:1] != (picture.image,)
            if is_lost and (name := self.losses.name_key(key)) not in lost:
                lost.add(name)
                self.losses.note(name, example=picture.key)
        return msgspec.structs.replace(annotations, objects=objects)

    def _with_fitting_mask(
        self, item: ObjectAnnotation, *, size: Size, key: str
    ) -> ObjectAnnotation:
        """Leaves out the mask of an object if it does not have the size of the image."""
        if not item.segmentation:
            return item
        height, width = runs_decoder.decode(item.segmentation).size
        if (width, height) == size:
            return item
        self.losses.note("masks of another size than the image, left out", example=key)
        return msgspec.structs.replace(item, segmentation=b"")

    def _make_image(
        self,
        picture: Picture,
        *,
        annotations: ImageAnnotations,
        file_format: FileFormat,
        orientation: int,
        where: str,
    ) -> ExportImage:
        data = picture.image
        if picture.format == _RAW:
            data = store_cifar(data, raw=False).data
            self.losses.note("images of bare pixels, written as PNG", example=picture.key)
        stored, stated = (picture.width, picture.height), (annotations.width, annotations.height)
        width, height = _frame_of(picture, annotations=annotations, orientation=orientation)
        if orientation != 1:
            frame = "the stored pixels" if (width, height) == stored else "the upright image"
            self.losses.note(
                f"images that viewers turn (EXIF); annotations are of {frame}", example=picture.key
            )
        if stated not in ((0, 0), (width, height)):
            self.losses.note(
                "images of another size than their Example says; annotations are scaled",
                example=f"{picture.key}: {stated[0]}x{stated[1]}, stored as {width}x{height}",
            )
        return ExportImage(
            key=picture.key,
            number=picture.number,
            data=data,
            format=file_format,
            width=width,
            height=height,
            image_id=annotations.image_id or self._first_integer(picture, _IMAGE_IDS),
            labels=annotations.labels,
            captions=annotations.captions,
            objects=list(annotations.objects),
            has_objects=any(
                self.feature_map.keys.get(key, key) in picture.features for key in OBJECT_KEYS
            ),
            where=where,
        )

    def _first_integer(self, picture: Picture, keys: Iterable[str]) -> str:
        """Returns the first integer under any of these keys as text; empty if there is none."""
        for key in keys:
            values = picture.features.get(self.feature_map.keys.get(key, key), ())
            if values and isinstance(values[0], int):
                return str(values[0])
        return ""

    def _error(self, detail: str, *, where: str) -> InputError:
        return InputError(
            uri=self.path,
            place=where,
            problem=f"{detail}; `shardbeam build tfrecord` leaves such Examples out and counts "
            "them, so export what it writes",
        )


class Runs(msgspec.Struct):
    """An object's mask (`encode_crop`).

    Attributes:
        size: Its height and width.
        counts: Its runs.
    """

    size: tuple[int, int]
    counts: list[int]


runs_decoder = JsonDecoder(Runs)


def _frame_of(picture: Picture, *, annotations: ImageAnnotations, orientation: int) -> Size:
    """Returns the size of the image that annotations refer to, in pixels.

    That is the stored image, or the upright one if the Example gives its size. Readers that turn
    images by EXIF (OpenCV, Detectron2), and `build coco`, which compares sizes, then find the
    boxes where they are.
    """
    stored = picture.width, picture.height
    upright = orient_size(stored, orientation=orientation)
    return upright if (annotations.width, annotations.height) == upright else stored


def _describe(picture: Picture) -> tuple[FileFormat, int]:
    """Returns the format and the EXIF orientation of a picture's image.

    Raises:
        ValueError: There is no image, or it is not an image file.
    """
    if picture.format == _RAW:
        return FileFormat.PNG, 1
    recognized = recognize_image(picture.image)
    if recognized is None:
        problem = "is not an image file" if picture.image else "is missing"
        raise ValueError(f"the image ({IMAGE}) {problem}")
    file_format, header = recognized
    return file_format, 1 if header is None else header.orientation


def find_classes(
    pictures: Iterable[Picture], *, feature_map: FeatureMap, declared: Mapping[int, str]
) -> Classes:
    """Collects the classes of a dataset: the declared ones, or else those of its pictures.

    Args:
        pictures: The pictures; they are read only if no class is declared.
        feature_map: How the pictures are to be read.
        declared: `{id: name}` of the classes that the dataset declares.
    """
    classes = Classes(declared, skeletons=feature_map.skeletons)
    if not declared:
        for picture in pictures:
            classes.add_from(picture, feature_map=feature_map)
        classes.sort()
    return classes
