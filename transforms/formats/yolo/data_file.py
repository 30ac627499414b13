"""Parses the files that name YOLO's classes: a `data.yaml`, Darknet's `obj.data`, or a list."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec
import yaml

from shardbeam.configs.yaml_text import YamlError, compose_yaml
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import decode_text, split_lines, text_lines

_MAX_KEYPOINTS = 1_000
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
# In the order of the splits.
_SPLIT_KEYS = ("train", "val", "valid", "validation", "test")
_NULL_TAG = "tag:yaml.org,2002:null"


class YoloData(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a `data.yaml` or `obj.data`.

    Attributes:
        names: `{class: name}`; empty where it names no classes.
        names_file: The path of the file with the names, as written; empty where there is none.
        path: The root, as written; empty where there is none.
        splits: `{split: folders of images, or lists of them, as written}`.
        keypoints: `{class: names of its keypoints}`; empty where objects have none.
        point_values: As in `YoloLayout`.
    """

    names: Mapping[int, str] = {}
    names_file: str = ""
    path: str = ""
    splits: Mapping[str, tuple[str, ...]] = {}
    keypoints: Mapping[int, tuple[str, ...]] = {}
    point_values: int = 0


def parse_data_yaml(data: bytes, *, uri: str) -> YoloData:
    """Parses a `data.yaml`.

    All scalars are read as text: a class named `no` is not a boolean.

    Raises:
        InputError: The file is not YAML, names no classes, or gives a key that is read twice or
            with another type.
    """
    try:
        root = compose_yaml(decode_text(data, uri=uri))
    except YamlError as error:
        raise InputError(uri=uri, place=error.place, problem=error.problem) from error
    if not isinstance(root, yaml.MappingNode):
        raise InputError(uri=uri, problem="expected a mapping with names, train and val")
    document = _Document(uri)
    nodes = document.mapping(root, place="")
    names = document.names(nodes.get("names"))
    if not names:
        raise InputError(uri=uri, place="names", problem="missing; expected a list of names")
    count = document.text(nodes.get("nc"), place="nc")
    if count and count != str(len(names)):
        problem = f"says {count[:40]!r}, but {len(names)} classes are named"
        raise document.error(nodes["nc"], "nc", problem)
    keypoints, point_values = _read_keypoints(document, nodes, classes=names)
    return YoloData(
        names=names,
        keypoints=keypoints,
        point_values=point_values,
        path=document.text(nodes.get("path"), place="path"),
        splits={
            key: paths for key in _SPLIT_KEYS if (paths := document.paths(nodes.get(key), key=key))
        },
    )


def _read_keypoints(
    document: _Document, nodes: Mapping[str, yaml.Node], *, classes: Iterable[int]
) -> tuple[dict[int, tuple[str, ...]], int]:
    """Reads `kpt_shape`, `flip_idx` and `kpt_names`.

    `flip_idx` exchanges keypoints in mirrored images. No image is mirrored here, so it is only
    checked.

    Returns:
        `{class: names of its keypoints}`, and the number of values of a keypoint.
    """
    shape = nodes.get("kpt_shape")
    if shape is None or shape.tag == _NULL_TAG:
        return {}, 0
    numbers = document.integers(shape, place="kpt_shape")
    if len(numbers) != 2 or not 1 <= numbers[0] <= _MAX_KEYPOINTS or numbers[1] not in (2, 3):
        problem = f"expected [keypoints, 2 or 3], at most {_MAX_KEYPOINTS:,} keypoints"
        raise document.error(shape, "kpt_shape", problem)
    count, point_values = numbers
    flip = nodes.get("flip_idx", shape)
    is_given = flip is not shape and flip.tag != _NULL_TAG
    if is_given and sorted(document.integers(flip, place="flip_idx")) != list(range(count)):
        problem = f"expected each of 0 to {count - 1} once, as kpt_shape has {count} keypoints"
        raise document.error(flip, "flip_idx", problem)
    keypoints = dict.fromkeys(classes, tuple(f"keypoint_{n + 1}" for n in range(count)))
    named = nodes.get("kpt_names")
    if isinstance(named, yaml.MappingNode):
        for key, node in document.mapping(named, place="kpt_names").items():
            place = f"kpt_names.{key}"
            names = tuple(document.names(node, place=place).values())
            if len(set(names)) != count or len(names) != count:
                raise document.error(node, place, f"expected {count} names, each once")
            if not _INDEX.fullmatch(key) or int(key) not in keypoints:
                raise document.error(node, place, "there is no such class")
            keypoints[int(key)] = names
    return keypoints, point_values


def parse_obj_data(data: bytes, *, uri: str) -> YoloData:
    """Parses Darknet's `obj.data`, with `key = value` on each line.

    Raises:
        InputError: A line has another form, a key is given twice, or `names` is missing.
    """
    values: dict[str, str] = {}
    for number, line in text_lines(data, uri=uri):
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals or key in values:
            problem = f"{key} is given twice" if equals else "expected `key = value`"
            raise InputError(uri=uri, place=f"line {number}", problem=problem)
        values[key] = value
    if not values.get("names"):
        raise InputError(uri=uri, place="names", problem="missing; expected a file of names")
    return YoloData(
        names_file=values["names"],
        splits={key: (values[key],) for key in _SPLIT_KEYS if values.get(key)},
    )


def parse_names(data: bytes, *, uri: str) -> dict[int, str]:
    """Parses a file with the names of classes 0, 1, … on its lines: `{class: name}`.

    Raises:
        InputError: The file is empty, or a line before the last name is.
    """
    lines = [line.strip() for line in split_lines(decode_text(data, uri=uri))]
    while lines and not lines[-1]:
        lines.pop()
    if "" in lines:
        place = f"line {lines.index('') + 1}"
        raise InputError(uri=uri, place=place, problem="expected a class name, the line is empty")
    if not lines:
        raise InputError(uri=uri, problem="the file names no classes")
    return dict(enumerate(lines))


class _Document:
    """Reads the nodes of a YAML document."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def error(self, node: yaml.Node, place: str, problem: str) -> InputError:
        line = node.start_mark.line + 1
        return InputError(uri=self._uri, place=f"line {line}: {place}", problem=problem)

    def mapping(self, node: yaml.MappingNode, *, place: str) -> dict[str, yaml.Node]:
        values: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = self.text(key_node, place=place or "key")
            if key in values:
                raise self.error(key_node, place or key, f"{key} is given twice")
            values[key] = value
        return values

    def text(self, node: yaml.Node | None, *, place: str) -> str:
        if node is None:
            return ""
        if not isinstance(node, yaml.ScalarNode):
            raise self.error(node, place, "expected text, got a list or a mapping")
        return str(node.value).strip()

    def names(self, node: yaml.Node | None, *, place: str = "names") -> dict[int, str]:
        if isinstance(node, yaml.SequenceNode):
            return {
                index: self._name(item, place=f"{place}[{index}]")
                for index, item in enumerate(node.value)
            }
        if not isinstance(node, yaml.MappingNode):
            if node is None or node.tag == _NULL_TAG:
                return {}
            raise self.error(node, place, "expected a list, or a mapping from class to name")
        names = {}
        for key, item in self.mapping(node, place=place).items():
            if not _INDEX.fullmatch(key):
                raise self.error(item, place, f"expected classes (0, 1, …) as keys, got {key!r}")
            names[int(key)] = self._name(item, place=f"{place}.{key}")
        return names

    def integers(self, node: yaml.Node, *, place: str) -> list[int]:
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        texts = [self.text(item, place=place) for item in items]
        if not all(map(_INDEX.fullmatch, texts)):
            raise self.error(node, place, "expected a list of whole numbers from 0 up")
        return [int(text) for text in texts]

    def paths(self, node: yaml.Node | None, *, key: str) -> tuple[str, ...]:
        if node is None or node.tag == _NULL_TAG:
            return ()
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return tuple(path for item in items if (path := self.text(item, place=key)))

    def _name(self, node: yaml.Node, *, place: str) -> str:
        name = " ".join(self.text(node, place=place).split())
        if not name:
            raise self.error(node, place, "expected a name")
        return name
