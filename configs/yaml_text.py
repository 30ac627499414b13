"""YAML for configs: plain scalars follow YAML 1.2, and every key is a unique text.

PyYAML follows YAML 1.1, where `no` is false, `1e-3` is a string, `010` is 8 and `2024-05-01` is
a date. Class names and paths may look like these, and here they stay texts (YAML 1.2.2, section
10.3, the core schema, without octal and hexadecimal numbers, infinity and NaN).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import yaml

T = TypeVar("T")

# Greatest number of values in a document. A value that an alias or merge key repeats counts again.
_MAX_VALUES = 100_000


class YamlError(ValueError):
    """A text is not YAML, or not allowed in configs; the message is one line with the place."""

    def __init__(self, problem: str, *, place: str = "") -> None:
        self.place = place
        self.problem = problem
        super().__init__(f"{place}: {problem}" if place else problem)


class _Loader(yaml.SafeLoader):
    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _count_values(node, counted={}) > _MAX_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"more than {_MAX_VALUES:,} values, counted each time that an alias "
                "(*name) repeats them",
                problem_mark=node.start_mark,
            )
        return node

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="tags (!name) are not supported; quote a text that begins with !",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern in (
    ("null", r"~|null|Null|NULL|"),
    ("bool", r"true|True|TRUE|false|False|FALSE"),
    ("int", r"[-+]?(0|[1-9][0-9]*)"),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"),
    ("merge", r"<<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None
    )


def _count_values(node: yaml.Node, *, counted: dict[yaml.Node, int]) -> int:
    """Counts the values of a document with its aliases written out."""
    if node not in counted:
        # Recursive aliases are refused later.
        counted[node] = 0
        parts: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            parts = node.value
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        counted[node] = 1 + sum(_count_values(part, counted=counted) for part in parts)
    return counted[node]


def _construct_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    seen = set()
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        problem = ""
        if key_node.tag != "tag:yaml.org,2002:str" and not _is_number(key_node):
            shown = f", got {key_node.value}; quote it" if isinstance(key_node.value, str) else ""
            problem = f"expected text as a key{shown}"
        elif key_node.value in seen:
            problem = f"the key {key_node.value!r} is given twice"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        seen.add(key_node.value)
    loader.flatten_mapping(node)
    return {
        key_node.value: loader.construct_object(value_node, deep=True)
        for key_node, value_node in node.value
    }


def _is_number(key: yaml.Node) -> bool:
    """Whether a key is a whole number from 0 up, which is a text, as in JSON."""
    return key.tag == "tag:yaml.org,2002:int" and str(key.value).isdecimal()


def _construct_sequence(loader: _Loader, node: yaml.SequenceNode) -> list[Any]:
    return [loader.construct_object(item, deep=True) for item in node.value]


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    try:
        return loader.construct_yaml_int(node)
    except ValueError as error:
        # Python refuses to convert thousands of digits.
        raise yaml.MarkedYAMLError(
            problem="a number has too many digits", problem_mark=node.start_mark
        ) from error


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _construct_sequence)


def parse_yaml(text: str) -> Any:  # noqa: ANN401  # Any YAML value.
    """Parses a YAML document.

    Returns:
        Mappings with string keys, lists, strings, ints, floats, booleans and None.

    Raises:
        YamlError: The text is not valid, or a key is repeated, or neither a text nor a whole
            number from 0 up.
    """
    return _read(lambda: yaml.load(text, Loader=_Loader))


def compose_yaml(text: str) -> yaml.Node | None:
    """Parses a YAML document into nodes, whose scalars are still text; raises YamlError."""
    return _read(lambda: yaml.compose(text, Loader=yaml.SafeLoader))


def dump_yaml(value: object, **options: Any) -> str:  # noqa: ANN401  # Those of PyYAML.
    """Writes YAML as `yaml.safe_dump` does, in the order of the keys.

    If a text has characters that a terminal obeys or cannot show, all beyond ASCII are escapes.
    """
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, **options)
    if all(each.isprintable() or each.isspace() for each in text):
        return text
    text = yaml.safe_dump(value, sort_keys=False, **options)
    return text


def _read(read: Callable[[], T]) -> T:
    try:
        return read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        if r"character '\t' that cannot start" in problem:
            problem = "a tab, which YAML does not allow here; write spaces instead"
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}"
        raise YamlError(" ".join(problem.split()), place=place) from error
    except yaml.reader.ReaderError as error:
        raise YamlError(f"character {error.position + 1}: {error.reason}") from error
    except RecursionError as error:
        raise YamlError("nested too deeply") from error
