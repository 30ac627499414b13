"""How Examples are to be read: renamed keys, names of classes, skeletons."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from shardbeam.transforms.core.errors import reading
from shardbeam.transforms.core.labels import LABEL_MAP, LABELS, Skeletons
from shardbeam.transforms.core.records import Kind, Value
from shardbeam.transforms.examples.features import CATEGORY_MAP, ExtraFeature
from shardbeam.transforms.examples.geometry.boxes import Box
from shardbeam.transforms.storage.base import join_uri
from shardbeam.transforms.storage.find import storage_for

# The file for ImageNet-21k has 2 MB.
_MAX_LABELS_BYTES = 16_000_000
_ID_DIGITS = 19
# A text, a comment, a word, a number or a brace of a protobuf message in its text form. A text ends
# with its line at the latest, so that an open quote is not looked for again and again.
_TOKEN = re.compile(
    r""""([^"\\\n]*(?:\\.[^"\\\n]*)*)"?|'([^'\\\n]*(?:\\.[^'\\\n]*)*)'?"""
    r"""|\#[^\n]*|([A-Za-z_]\w*)|(-?\d+)|([{}])"""
)
# An escape in such a text: the bytes are written in octal or in hex, or as a letter.
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))"
)
_LETTERS = dict(zip(b"abfnrtv\\'\"?", b"\a\b\f\n\r\t\v\\'\"?", strict=True))


class FeatureMap(msgspec.Struct, frozen=True, kw_only=True):
    """How Examples are to be read.

    Attributes:
        keys: `{default key: key as written}` where the two differ; empty for a dropped key.
        class_names: `{id: name}`, if the dataset says so.
        numbered_maps: Whether values of maps are plain numbers instead of class ids.
        skeletons: `{class name: pairs of indexes into the keypoints as written}`.
        constants: The keys whose values are the same in every Example, by the config.
        is_ours: Whether this comes from a manifest; otherwise the usual keys are assumed.
    """

    keys: Mapping[str, str] = {}
    class_names: Mapping[int, str] = {}
    skeletons: Skeletons = {}
    constants: Collection[str] = frozenset()
    is_ours: bool = False
    numbered_maps: bool = False

    @classmethod
    def of_manifest(
        cls,
        *,
        config: Mapping[str, Any],
        labels: Mapping[str, int],
        skeletons: Skeletons,
        numbered_maps: bool,
    ) -> FeatureMap:
        """Makes the feature map of a dataset from the fields of its manifest with these names."""
        keys = _written_keys(config)
        return cls(
            keys=keys,
            class_names={label_id: name for name, label_id in labels.items()},
            skeletons=skeletons,
            constants=_constant_keys(config),
            is_ours=True,
            # Without its map of classes, a panoptic dataset has no values that are ids.
            numbered_maps=numbered_maps or keys.get(CATEGORY_MAP) == "",
        )

    def map_names(self) -> Mapping[int, str]:
        """Returns the names of the values in maps."""
        return {} if self.numbered_maps else self.class_names


class StoredKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of the Examples of a source, as its first Examples or its manifest show them.

    Attributes:
        kinds: The groups of default keys that they have.
        extras: Their other keys.
        left_out: `{key: why it is not carried over}`.
        raw: Whether the images are bare pixels.
        single_label: Whether a manifest says that every Example has exactly one label.
    """

    kinds: tuple[Kind, ...] = ()
    extras: tuple[ExtraFeature, ...] = ()
    left_out: Mapping[str, str] = {}
    raw: bool = False
    single_label: bool = False


def _written_keys(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns `{default key: key as written}` where they differ; empty for dropped keys.

    Args:
        config: The config as the manifest holds it. It may have been edited: a value that is not a
            text is treated as a dropped key.
    """
    features = config.get("features")
    if not isinstance(features, dict):
        return {}
    renamed, dropped = features.get("rename"), features.get("drop")
    keys: dict[str, str] = {}
    if isinstance(dropped, list):
        keys |= {key: "" for key in dropped if isinstance(key, str)}
    if isinstance(renamed, dict):
        keys |= {key: name if isinstance(name, str) else "" for key, name in renamed.items()}
    return keys


def _constant_keys(config: Mapping[str, Any]) -> frozenset[str]:
    features = config.get("features")
    constants = features.get("constants") if isinstance(features, dict) else None
    return frozenset(constants) if isinstance(constants, dict) else frozenset()


def read_class_names(root: str) -> dict[int, str]:
    """Reads `{id: name}` from a file of names in a folder; empty where there is none.

    The file is a `label_map.pbtxt`, a `labels.txt` with one name a line, from 0, or else the only
    `.pbtxt` file in the folder.

    Raises:
        InputError: The file cannot be read.
    """
    for name, parse in ((LABEL_MAP, _parse_label_map), (LABELS, _parse_labels)):
        if (text := _read_names(root, name)) is not None:
            return dict(parse(text))
    try:
        others = [name for name in storage_for(root).names(root) if name.endswith(".pbtxt")]
    except OSError:
        return {}
    text = _read_names(root, others[0]) if len(others) == 1 else None
    return {} if text is None else dict(_parse_label_map(text))


def _read_names(root: str, name: str) -> str | None:
    uri = join_uri(root, name)
    with reading(uri):
        try:
            data = storage_for(uri).read(uri, size_bytes=_MAX_LABELS_BYTES)
        except FileNotFoundError:
            return None
    return data.decode(errors="replace")


def _parse_labels(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(line.strip() for line in text.splitlines())


def _parse_label_map(text: str) -> Iterator[tuple[int, str]]:
    """Reads a `StringIntLabelMap` of the TF Object Detection API in its text form."""
    depth, key = 0, ""
    label_id: int | None = None
    texts: dict[str, str] = {}
    for token in _TOKEN.finditer(text):
        double, single, word, number, brace = token.groups()
        if word is not None:
            key = word
        elif brace == "{":
            depth += 1
        elif brace == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                if label_id is not None:
                    yield label_id, texts.get("display_name") or texts.get("name", "")
                label_id, texts = None, {}
        elif depth == 1 and number is not None and key == "id":
            # No id has more digits; int() refuses more than a few thousand.
            label_id = int(number[:_ID_DIGITS])
        elif depth == 1 and (double is not None or single is not None):
            texts[key] = _unescape(double if double is not None else single)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_escaped, text.encode()).decode(errors="replace")


def _escaped(escape: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, letter = escape.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    if letter is not None:
        return bytes([_LETTERS[letter[0]]]) if letter[0] in _LETTERS else escape[0]
    number = int(short or long, 16)
    # No character has such a number; half of a pair is none, either.
    is_character = number <= sys.maxunicode and not 0xD800 <= number < 0xE000
    return chr(number if is_character else 0xFFFD).encode()


# An Example as a picture to look at: its image, labels, objects and maps.

# The id of an object or label that has none.
NO_ID = -1
# Values of the pixels without a class in a class map, unless a class of the dataset has that id.
NO_CLASS = (0, 255)
OBJECT = "image/object/"
ANNOTATION = "annotation/"
# x and y in fractions of the image; visibility.
Keypoint: TypeAlias = tuple[float, float, int]
# No image has a longer side.
MAX_SIDE_PX = (1 << 31) - 1
FeatureValues: TypeAlias = Sequence["bytes | int | float"]


class PictureObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a picture.

    Attributes:
        label: Name of its class; empty where it is not known.
        label_id: Id of its class; `NO_ID` where there is none.
        box: `(xmin, ymin, xmax, ymax)` in fractions of the image, as written: the box may reach
            beyond the image, or end before it begins; None if there is none.
        is_crowd: Whether it is a group of objects.
        area: In pixels² of the image; 0 where it is not written.
        mask: A PNG of the whole image with the values 0 and 1; empty if there is none.
        keypoints: `(x, y, visibility)` each: in fractions of the image, and 0 (not labelled), 1
            (hidden) or 2 (visible).
        skeleton: Pairs of indexes into `keypoints` that a line joins.
        attributes: Its other values, by their key without `image/object/`.
        annotation_id: Its id in `example_per: annotation`; 0 where there is none.
    """

    label: str = ""
    label_id: int = NO_ID
    box: Box | None = None
    is_crowd: bool = False
    area: float = 0.0
    mask: bytes = b""
    keypoints: tuple[Keypoint, ...] = ()
    skeleton: tuple[tuple[int, int], ...] = ()
    attributes: Mapping[str, Value] = {}
    annotation_id: int = 0


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """An Example as a picture to be drawn.

    Attributes:
        key: The image's key (`image/filename`, or else `image/source_id`).
        split: Its split.
        shard: Name of its shard's file.
        number: Its number in the split, from 1.
        image: The encoded image; empty where there is none.
        format: Format of the image: `jpeg`, `png`, `raw`, or another one that its bytes show.
        width: Width of the image in pixels; 0 if it is not known.
        height: Height of the image in pixels; 0 if it is not known.
        labels: Classes of the image as a whole: their names, or their ids.
        label_ids: Their ids; `NO_ID` where there is none.
        captions: Texts that describe it.
        objects: Its objects.
        class_map: A PNG with the class id of each pixel, or one of `NO_CLASS`; the category mask of
            a panoptic map; empty if there is none.
        instance_map: A PNG with the segment number of each pixel of a panoptic map; empty if there
            is none.
        features: `{key as written: values}` of the whole Example.
        problems: The values that do not fit together, one line each.
        contradictions: Those of them that leave open what is annotated.
        is_of_annotation: Whether the Example holds one object of its image (`example_per:
            annotation`).
    """

    key: str
    split: str = ""
    shard: str = ""
    number: int = 1
    image: bytes = b""
    format: str = ""
    width: int = 0
    height: int = 0
    labels: tuple[str, ...] = ()
    label_ids: tuple[int, ...] = ()
    captions: tuple[str, ...] = ()
    objects: tuple[PictureObject, ...] = ()
    class_map: bytes = b""
    instance_map: bytes = b""
    features: Mapping[str, FeatureValues] = {}
    problems: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    is_of_annotation: bool = False
