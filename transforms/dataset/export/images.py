"""Reads a dataset's Examples as images with their annotations, ready to be written as files."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.decode import (
    Picture,
    annotations_of,
    class_of,
    keypoint_names,
    recognize_image,
)
from shardbeam.transforms.examples.image_features import IMAGE
from shardbeam.transforms.examples.legend import Legend, Skeletons
from shardbeam.transforms.images.check import store_cifar
from shardbeam.transforms.images.sniff import FileFormat

# Keys of an image, of its boxes and of its keypoints; what else they say follows from these.
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
# An Example with one of them says which objects its image has, even if it has none.
OBJECT_KEYS = frozenset({"image/object/bbox/xmin", "annotation/bbox"})
_IMAGE_IDS = ("image/source_id", "annotation/image_id")
_RAW = "raw"
# Name and id of the class of an object that has none.
_BACKGROUND = ("0", 0)


class Losses:
    """Counts what cannot be brought back, and keeps the first case of each kind.

    Attributes:
        counts: `{what it is: how many}`.
        first: `{what it is: the first case}`, where a case can be named.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def note(self, what: str, *, count: int = 1, example: str = "") -> None:
        """Counts a loss."""
        if count:
            self.counts[what] += count
            if example:
                self.first.setdefault(what, example)


class Classes:
    """The classes of a dataset: their ids, and the keypoints of their objects.

    A class keeps its id. One without an id, or whose id another name has, gets the next free one.
    Beside named classes, the id 0 without a name is no class.

    Args:
        declared: `{id: name}` of the classes that are known before an Example is read.
        skeletons: Lines between keypoints, by class.

    Attributes:
        ids: `{name: id}`.
        numbers: `{name: number}`: from 0 up, in the order of the ids that were declared.
        keypoints: Names of the keypoints that each object has; empty until an object has some.
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
        """Adds a class, unless there is one with its name, or it is none.

        Args:
            name: Its name, or its id as text.
            class_id: Its id; negative where there is none.
            of_image: Whether it is the class of an image: there, 0 is a class like any other.
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

    def add_from(self, picture: Picture, *, legend: Legend) -> None:
        """Adds the classes of a picture, and the names of its keypoints."""
        for name, class_id in zip(picture.labels, picture.label_ids, strict=True):
            self.add(name, class_id, of_image=True)
        for item in picture.objects:
            self.add(*class_of(item))
        self.keypoints = self.keypoints or keypoint_names(picture, legend=legend)

    def sort(self) -> None:
        """Numbers all classes that are known by now, in the order of their ids."""
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
        data: The stored image; of bare pixels, a PNG of them.
        format: Its format.
        width: Width of the image in pixels; 0 if that is not known.
        height: Height of the image in pixels; 0 if that is not known.
        image_id: The source's id; empty if it has none.
        labels: Classes of the image as a whole.
        captions: Texts that describe it.
        objects: Its objects, in fractions of the image.
        has_objects: Whether its Example has the keys of objects.
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


class ImageReader:
    """Makes images of a dataset's pictures.

    Args:
        path: The dataset, for errors.
        legend: How its Examples are read.
        classes: Its classes, to which those that are found are added.
        losses: Counts what the images do not hold.
        keys: Default keys that the export brings back.
    """

    def __init__(
        self,
        path: str,
        *,
        legend: Legend,
        classes: Classes,
        losses: Losses,
        keys: Collection[str],
    ) -> None:
        self._path = path
        self._legend = legend
        self._classes = classes
        self._losses = losses
        self._keys = keys
        self._masks = "image/object/mask" in keys
        self._defaults = {written: key for key, written in legend.keys.items() if written}

    def read(self, pictures: Iterable[Picture]) -> Iterator[ExportImage]:
        """Yields the images of a split.

        Neighbouring Examples of the objects of one image (`example_per: annotation`) are one image.

        Raises:
            InputError: An Example has no image, or values that contradict each other.
        """
        current: ExportImage | None = None
        same: tuple[str, int] | None = None
        for picture in pictures:
            where = f"{picture.split}, Example {picture.number:,} ({picture.shard})"
            try:
                annotations = self._annotate(picture)
                identity = picture.key, zlib.crc32(picture.image)
                if current is not None and picture.is_of_annotation and identity == same:
                    current.objects.extend(annotations.objects)
                    continue
                following = self._make(picture, annotations=annotations, where=where)
            except (RejectedError, ValueError) as error:
                detail = error.detail if isinstance(error, RejectedError) else str(error)
                raise self._error(detail, where=where) from error
            if current is not None:
                yield current
            current, same = following, identity if picture.is_of_annotation else None
        if current is not None:
            yield current

    def _annotate(self, picture: Picture) -> ImageAnnotations:
        annotations = annotations_of(picture, legend=self._legend, masks=self._masks)
        self._classes.add_from(picture, legend=self._legend)
        dropped = len(picture.objects) - len(annotations.objects)
        self._losses.note("objects without a box", count=dropped, example=picture.key)
        objects = tuple(item for item in annotations.objects if item.label in self._classes.ids)
        dropped = len(annotations.objects) - len(objects)
        self._losses.note(
            "objects of the background (id 0 without a name)", count=dropped, example=picture.key
        )
        for written, values in picture.features.items():
            key = self._defaults.get(written, written)
            # An image under another key is the image.
            if values and key not in self._keys and values[:1] != (picture.image,):
                self._losses.note(f"{key} (images)", example=picture.key)
        return msgspec.structs.replace(annotations, objects=objects)

    def _make(self, picture: Picture, *, annotations: ImageAnnotations, where: str) -> ExportImage:
        data, (file_format, orientation) = picture.image, _describe(picture)
        if picture.format == _RAW:
            data = store_cifar(data, raw=False).data
            self._losses.note("images of bare pixels, written as PNG", example=picture.key)
        if orientation != 1:
            self._losses.note(
                "images that viewers turn (EXIF), with annotations of the pixels as stored",
                example=picture.key,
            )
        return ExportImage(
            key=picture.key,
            number=picture.number,
            data=data,
            format=file_format,
            width=picture.width,
            height=picture.height,
            image_id=annotations.image_id or self._first(picture, _IMAGE_IDS),
            labels=annotations.labels,
            captions=annotations.captions,
            objects=list(annotations.objects),
            has_objects=any(
                self._legend.keys.get(key, key) in picture.features for key in OBJECT_KEYS
            ),
            where=where,
        )

    def _first(self, picture: Picture, keys: Iterable[str]) -> str:
        for key in keys:
            values = picture.features.get(self._legend.keys.get(key, key), ())
            if values and isinstance(values[0], int):
                return str(values[0])
        return ""

    def _error(self, detail: str, *, where: str) -> InputError:
        return InputError(
            uri=self._path,
            place=where,
            problem=f"{detail}; `shardbeam build tfrecord` leaves such Examples out and counts "
            "them, so export what it writes",
        )


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
    pictures: Iterable[Picture], *, legend: Legend, declared: Mapping[int, str]
) -> Classes:
    """Makes the classes of a dataset; without declared ones, it reads its pictures for them."""
    classes = Classes(declared, skeletons=legend.skeletons)
    if not declared:
        for picture in pictures:
            classes.add_from(picture, legend=legend)
        classes.sort()
    return classes
