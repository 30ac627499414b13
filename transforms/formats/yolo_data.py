"""The files that name YOLO's classes and splits: `data.yaml`, Darknet's `obj.data`, and lists.

The formats: https://docs.ultralytics.com/datasets/detect/#ultralytics-yolo-format and the section
"How to train (to detect your custom objects)" of Darknet's README.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import yaml

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import decode_text, split_lines, text_lines

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
# In the order in which splits are written.
_SPLIT_KEYS = ("train", "val", "valid", "validation", "test")
_NULL_TAG = "tag:yaml.org,2002:null"


class YoloData(msgspec.Struct, frozen=True, kw_only=True):
    """What a `data.yaml` or `obj.data` says.

    Attributes:
        names: `{class: name}`; empty where it names none.
        names_file: The file that names them, as it is written; empty where it names none.
        path: The root, as it is written; empty where it is not said.
        splits: `{split: folders of images, or lists of them, as written}`.
    """

    names: Mapping[int, str] = {}
    names_file: str = ""
    path: str = ""
    splits: Mapping[str, tuple[str, ...]] = {}


def parse_data_yaml(data: bytes, *, uri: str) -> YoloData:
    """Parses a `data.yaml`.

    All scalars are read as the text that is there: a class named `no` is no boolean.

    Raises:
        InputError: It is not YAML, names no classes, or gives a key that matters twice or as
            something else than what is expected.
    """
    try:
        root = yaml.compose(decode_text(data, uri=uri), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        words = ", ".join(part for part in (error.context, error.problem) if part)
        raise InputError(uri=uri, place=place, problem=" ".join(words.split())) from error
    except yaml.YAMLError as error:
        raise InputError(uri=uri, problem=" ".join(str(error).split())) from error
    except RecursionError as error:
        raise InputError(uri=uri, problem="the YAML is nested too deeply") from error
    if not isinstance(root, yaml.MappingNode):
        raise InputError(uri=uri, problem="expected a mapping with names, train and val")
    document = _Document(uri)
    nodes = document.mapping(root, place="")
    if "kpt_shape" in nodes:
        raise document.error(
            nodes["kpt_shape"], "kpt_shape", "keypoints are read from COCO JSON only; convert them"
        )
    names = document.names(nodes.get("names"))
    if not names:
        raise InputError(uri=uri, place="names", problem="missing; expected a list of names")
    document.check_count(nodes.get("nc"), names=names)
    path = nodes.get("path")
    return YoloData(
        names=names,
        path="" if path is None else document.text(path, place="path"),
        splits={
            key: paths for key in _SPLIT_KEYS if (paths := document.paths(nodes.get(key), key=key))
        },
    )


def parse_obj_data(data: bytes, *, uri: str) -> YoloData:
    """Parses Darknet's `obj.data`: `key = value` a line.

    Raises:
        InputError: A line is something else, a key is given twice, or no `names` are.
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
    """Parses a file with a name a line, in the order of the classes: `{class: name}`.

    Raises:
        InputError: It is empty, or a line between others is.
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

    def text(self, node: yaml.Node, *, place: str) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.error(node, place, "expected text, got a list or a mapping")
        return str(node.value).strip()

    def names(self, node: yaml.Node | None) -> dict[int, str]:
        if isinstance(node, yaml.SequenceNode):
            return {
                index: self._name(item, place=f"names[{index}]")
                for index, item in enumerate(node.value)
            }
        if not isinstance(node, yaml.MappingNode):
            if node is None or node.tag == _NULL_TAG:
                return {}
            raise self.error(node, "names", "expected a list, or a mapping from class to name")
        names = {}
        for key, item in self.mapping(node, place="names").items():
            if not _INDEX.fullmatch(key):
                raise self.error(item, "names", f"expected classes (0, 1, …) as keys, got {key!r}")
            names[int(key)] = self._name(item, place=f"names.{key}")
        return names

    def check_count(self, node: yaml.Node | None, *, names: Mapping[int, str]) -> None:
        if node is None:
            return
        count = self.text(node, place="nc")
        if count and count != str(len(names)):
            raise self.error(node, "nc", f"says {count[:40]!r}, but {len(names)} classes are named")

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
