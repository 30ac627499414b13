"""Turns Examples into the items of a sequence: dictionaries, or images with their targets."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypedDict, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.example_pb2 import Example, Feature
from shardbeam.transforms.examples.features import FeatureKind, StoredFeature

T = TypeVar("T")

Floats: TypeAlias = npt.NDArray[np.float32]
Integers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
# A single value; a list of numbers as an array; a list of texts or files; a decoded image.
ItemValue: TypeAlias = bytes | int | float | list[bytes] | npt.NDArray[Any]
Item: TypeAlias = dict[str, ItemValue]
BoxFormat: TypeAlias = Literal["xyxy", "xywh", "rel_yxyx"]

BOX_FORMATS: tuple[BoxFormat, ...] = ("xyxy", "xywh", "rel_yxyx")
_IMAGE = "image/encoded"
_IMAGE_LABEL = "image/class/label"
_OBJECT, _ANNOTATION = "image/object/", "annotation/"
_SIDES = tuple(f"{_OBJECT}bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_KEYPOINTS = tuple(f"{_OBJECT}keypoint/{name}" for name in ("x", "y", "visibility"))
_DTYPES = {FeatureKind.INT64: np.int64, FeatureKind.FLOAT: np.float32}
_FIELDS = {kind: f"{kind.value}_list" for kind in FeatureKind}


class _Target(TypedDict):
    boxes: Floats
    labels: Integers
    area: Floats
    iscrowd: Integers
    image_id: str


class DetectionTarget(_Target, total=False):
    """The objects of an image, with the names that torchvision gives them.

    Attributes:
        boxes: (n, 4), in the form that was asked for.
        labels: (n,), ids of their classes (`class_names`).
        area: (n,), in pixels² of the image.
        iscrowd: (n,), 1 for a group of objects and 0 for a single one.
        image_id: The source's id of the image, or its path.
        masks: (n, height, width), the values 0 and 1; only if asked for.
        keypoints: (n, k, 3), x and y in pixels and visibility: 0 not labelled, 1 hidden, 2 visible;
            only if asked for. Without objects, k is that of the split's first image with some.
    """

    masks: Bytes
    keypoints: Floats


class SplitContents(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of all Examples of a split.

    Attributes:
        path: The dataset, for errors.
        features: Their features.
        is_inferred: Whether the features were inferred from some Examples, so that others may have
            more keys.
        feature_map: Reads how the Examples are to be read (`read_feature_map`).
        with_objects: Reads the split's first Example with objects; None if it has none.
    """

    path: str
    features: Sequence[StoredFeature]
    is_inferred: bool
    feature_map: Callable[[], FeatureMap]
    with_objects: Callable[[], Example | None]


class Form(Generic[T]):
    """What the items of a sequence are.

    Implementations are values: they can be compared, printed and pickled. This is no abstract
    class, because its metaclass and that of msgspec's structs exclude each other.
    """

    def prepare(self, contents: SplitContents) -> Callable[[Example], T]:
        """Returns a function that makes an item of an Example.

        The function raises `ValueError` or `RejectedError` if it cannot.

        Raises:
            InputError: The Examples lack a key that it needs.
        """
        raise NotImplementedError


class Dictionaries(msgspec.Struct, Form[Item], frozen=True):
    """Items are dictionaries with the keys of the Examples.

    Attributes:
        decode: Whether images are decoded.
        features: The keys to read; None for all.
    """

    decode: bool = False
    features: tuple[str, ...] | None = None

    def prepare(self, contents: SplitContents) -> Callable[[Example], Item]:
        """Returns a function that reads the values of each key."""
        chosen = self._choose(contents)
        readers = {feature.key: _value_reader(feature, decode=self.decode) for feature in chosen}
        repeated = {feature.key: feature for feature in chosen if feature.repeated}
        takes_others = self.features is None and contents.is_inferred

        def make(example: Example) -> Item:
            stored = example.features.feature
            item = {key: read(stored[key]) for key, read in readers.items() if key in stored}
            if len(item) < len(readers):
                for key in readers.keys() - item.keys():
                    if key not in repeated:
                        raise ValueError(f"the Example has no {key!r}")
                    dtype = _DTYPES.get(repeated[key].kind)
                    item[key] = np.empty((0, *repeated[key].shape), dtype) if dtype else []
            if takes_others:
                item |= {key: _read_unknown(stored[key]) for key in stored if key not in readers}
            return item

        return make

    def _choose(self, contents: SplitContents) -> Sequence[StoredFeature]:
        """Returns the features to read.

        Raises:
            InputError: The Examples lack one.
        """
        if self.features is None:
            return contents.features
        known = {feature.key: feature for feature in contents.features}
        for key in self.features:
            if key not in known:
                problem = f"its Examples have no {key!r}{did_you_mean(key, known)}"
                raise InputError(uri=contents.path, problem=problem)
        return [known[key] for key in self.features]


class Detections(msgspec.Struct, Form["tuple[Bytes, DetectionTarget]"], frozen=True):
    """Items are images with their objects, as detectors take them.

    Attributes:
        boxes: The form of boxes.
        masks: Whether masks are read.
        keypoints: Whether keypoints are read.
    """

    boxes: BoxFormat = "xyxy"
    masks: bool = False
    keypoints: bool = False

    def prepare(
        self, contents: SplitContents
    ) -> Callable[[Example], tuple[Bytes, DetectionTarget]]:
        """Returns a function that decodes the image and collects its objects."""
        from shardbeam.readers.open.pixels import decode_masks, decode_rgb

        values = _Values(contents)
        # Each object has its own Example with `example_per: annotation`.
        objects = _ANNOTATION if values.has(f"{_ANNOTATION}bbox") else _OBJECT
        values.require(_IMAGE)
        is_other = values.has(_IMAGE_LABEL)
        hint = "; it has classes of images: use .classification()" if is_other else ""
        values.require(f"{objects}class/label", hint=hint)
        if objects is _OBJECT:
            values.require(*_SIDES)
        if self.masks:
            values.require(f"{objects}mask", hint="; build it with masks: png")
        if self.keypoints:
            values.require(*_KEYPOINTS)

        @functools.cache
        def keypoints_of_others() -> int:
            """Returns how many keypoints an object has, for images without any."""
            example = contents.with_objects()
            if example is None:
                return 0
            read = values.of(example)
            objects_of_it = max(1, len(read.integers(f"{objects}class/label")))
            return len(read.floats(_KEYPOINTS[0])) // objects_of_it

        def make(example: Example) -> tuple[Bytes, DetectionTarget]:
            read = values.of(example)
            image = decode_rgb(read.single(_IMAGE))
            height, width, _ = image.shape
            labels = read.integers(f"{objects}class/label")
            count = len(labels)
            if objects is _ANNOTATION:
                x, y, *size = read.floats(f"{_ANNOTATION}bbox", count=4).tolist()
                right, bottom = x + size[0], y + size[1]
                corners = [x / width, y / height, right / width, bottom / height]
                fractions = np.array([corners], np.float32)
            else:
                fractions = np.stack([read.floats(side, count=count) for side in _SIDES], axis=1)
            boxes = _in_form(fractions, self.boxes, width=width, height=height)
            areas = read.floats(f"{objects}area", count=count)
            if not values.has(f"{objects}area"):
                sizes = _in_form(fractions, "xywh", width=width, height=height)
                areas = sizes[:, 2] * sizes[:, 3]
            target = DetectionTarget(
                boxes=boxes,
                labels=labels,
                area=areas,
                iscrowd=read.integers(f"{objects}is_crowd", count=count),
                image_id=read.text("image/source_id") or read.text("image/filename"),
            )
            if self.masks:
                target["masks"] = decode_masks(
                    read.bytes_of(f"{objects}mask", count=count),
                    height=height,
                    width=width,
                    key=values.written(f"{objects}mask"),
                )
            if self.keypoints:
                xs, ys, visibilities = (read.floats(key) for key in _KEYPOINTS)
                each = len(xs) // count if count else keypoints_of_others()
                if not len(xs) == len(ys) == len(visibilities) == each * count:
                    raise ValueError(f"{len(xs):,} keypoints do not fit {count:,} objects")
                points = np.stack([xs * width, ys * height, visibilities], axis=1)
                target["keypoints"] = points.reshape(count, each, 3)
            return image, target

        return make


def _in_form(fractions: Floats, form: BoxFormat, *, width: int, height: int) -> Floats:
    """Writes boxes in a form.

    Args:
        fractions: (n, 4): xmin, ymin, xmax, ymax in fractions of the image.
        form: The form.
        width: Width of the image in pixels.
        height: Height of the image in pixels.
    """
    if form == "rel_yxyx":
        return fractions[:, [1, 0, 3, 2]]
    boxes = fractions * np.array([width, height, width, height], np.float32)
    if form == "xywh":
        boxes[:, 2:] -= boxes[:, :2]
    return boxes


class Classifications(msgspec.Struct, Form["tuple[Bytes, int]"], frozen=True):
    """Items are images with the ids of their classes, as classifiers take them."""

    def prepare(self, contents: SplitContents) -> Callable[[Example], tuple[Bytes, int]]:
        """Returns a function that decodes the image and reads its label."""
        from shardbeam.readers.open.pixels import decode_rgb

        values = _Values(contents)
        values.require(_IMAGE)
        is_other = any(values.has(f"{objects}class/label") for objects in (_OBJECT, _ANNOTATION))
        hint = "; it has objects: use .detection()" if is_other else ""
        values.require(_IMAGE_LABEL, hint=hint)

        def make(example: Example) -> tuple[Bytes, int]:
            read = values.of(example)
            labels = read.integers(_IMAGE_LABEL)
            if len(labels) != 1:
                raise ValueError(
                    f"the image has {len(labels):,} labels, and a classifier takes one; read "
                    "'image/class/label' of the items themselves"
                )
            return decode_rgb(read.single(_IMAGE)), int(labels[0])

        return make


class _Values:
    """Finds values of Examples by their default keys."""

    def __init__(self, contents: SplitContents) -> None:
        self._path = contents.path
        self._keys = contents.feature_map().keys
        self._known = {feature.key for feature in contents.features}

    def require(self, *keys: str, hint: str = "") -> None:
        """Makes sure that the Examples have some default keys.

        Raises:
            InputError: They do not.
        """
        for key in keys:
            written = self.written(key)
            if not self.has(key):
                name = f"{key!r}, written as {written!r}" if written not in ("", key) else repr(key)
                raise InputError(uri=self._path, problem=f"its Examples have no {name}{hint}")

    def has(self, key: str) -> bool:
        """Returns whether the Examples have a default key."""
        return self.written(key) in self._known

    def written(self, key: str) -> str:
        """Returns a key as it is written; empty if the config drops it."""
        return self._keys.get(key, key)

    def of(self, example: Example) -> _ExampleValues:
        """Returns the values of an Example."""
        return _ExampleValues(dict(example.features.feature.items()), names=self)


class _ExampleValues:
    """The values of one Example; a key that is missing has none."""

    def __init__(self, stored: Mapping[str, Feature], *, names: _Values) -> None:
        self._stored = stored
        self._names = names

    def integers(self, key: str, *, count: int | None = None) -> Integers:
        """Returns integers; zeros if the key is missing and `count` says how many there are."""
        return np.array(self._read(key, FeatureKind.INT64, count=count), np.int64)

    def floats(self, key: str, *, count: int | None = None) -> Floats:
        """Returns numbers, as `integers` does."""
        return np.array(self._read(key, None, count=count), np.float32)

    def bytes_of(self, key: str, *, count: int) -> list[bytes]:
        """Returns texts or files.

        Raises:
            ValueError: There is another number of them.
        """
        if self._names.written(key) not in self._stored and count:
            raise ValueError(f"the Example has no {self._names.written(key)!r}")
        return self._read(key, FeatureKind.BYTES, count=count)

    def single(self, key: str) -> bytes:
        """Returns the only value of a key.

        Raises:
            ValueError: There is none.
        """
        found: list[bytes] = self._read(key, FeatureKind.BYTES)
        if len(found) != 1:
            raise ValueError(f"{self._names.written(key)!r} has {len(found):,} values instead of 1")
        return found[0]

    def text(self, key: str) -> str:
        """Returns a text; empty if there is none."""
        return next(iter(self._read(key, FeatureKind.BYTES)), b"").decode(errors="replace")

    def _read(self, key: str, kind: FeatureKind | None, *, count: int | None = None) -> list[Any]:
        feature = self._stored.get(self._names.written(key))
        if feature is None:
            return [0] * (count or 0)
        field = feature.WhichOneof("kind") or ""
        if kind is not None and field not in ("", _FIELDS[kind]):
            raise ValueError(f"{self._names.written(key)!r} holds no {kind.value} values")
        values = list(getattr(feature, field).value) if field else []
        if count is not None and len(values) != count:
            raise ValueError(
                f"{self._names.written(key)!r} has {len(values):,} values for {count:,} objects"
            )
        return values


def _value_reader(feature: StoredFeature, *, decode: bool) -> Callable[[Feature], ItemValue]:
    """Returns a function that reads the values of a key."""
    key, field = feature.key, _FIELDS[feature.kind]
    find = operator.attrgetter(f"{field}.value")

    def check_kind(stored: Feature) -> None:
        kind = stored.WhichOneof("kind")
        if kind not in (None, field):
            raise ValueError(f"{key!r} is a {kind}, not a {field}")

    if not feature.repeated and not feature.shape:
        decoder = _decoder(feature) if decode else None

        def read_single(stored: Feature) -> ItemValue:
            values = find(stored)
            if len(values) != 1:
                check_kind(stored)
                raise ValueError(f"{key!r} has {len(values):,} values instead of 1")
            return values[0] if decoder is None else decoder(values[0])

        return read_single
    if feature.kind is FeatureKind.BYTES:

        def read_list(stored: Feature) -> ItemValue:
            values: list[bytes] = find(stored)[:]
            if not values:
                check_kind(stored)
            return values

        return read_list
    dtype = _DTYPES[feature.kind]
    # Of single values, or of arrays of a fixed shape.
    shape = (-1, *feature.shape) if feature.repeated else feature.shape
    size = math.prod(feature.shape)

    def read_array(stored: Feature) -> ItemValue:
        values = find(stored)
        count = len(values)
        if not count:
            check_kind(stored)
        # A hostile shape may have no values.
        if (count % size if size else count) if feature.repeated else count != size:
            raise ValueError(f"{key!r} has {count:,} values, which do not fit the shape {shape}")
        array = np.fromiter(values, dtype, count)
        return array.reshape(shape) if feature.shape else array

    return read_array


def _decoder(feature: StoredFeature) -> Callable[[bytes], ItemValue] | None:
    if feature.image_shape is None:
        return None
    from shardbeam.readers.open.pixels import decode_gray, decode_rgb

    # The image of most datasets has colours, gray or not.
    is_gray = feature.image_shape[-1] == 1 and feature.key != _IMAGE
    return decode_gray if is_gray else decode_rgb


def _read_unknown(stored: Feature) -> ItemValue:
    """Reads a list that none of the sampled Examples had."""
    field = stored.WhichOneof("kind")
    values = [] if field is None else list(getattr(stored, field).value)
    if field in (None, "bytes_list"):
        return values
    return np.array(values, _DTYPES[FeatureKind(field.removesuffix("_list"))])
