"""Reads XML files safely: without entities, without fetching anything, and with lines in errors."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn
from xml.parsers import expat

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import foreign_content

# Python's `float` also takes `nan`, `1_0` and other digits; these are refused.
NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_MAX_SIDE_PX = 2**31 - 1

_DECLARATION = re.compile(rb"<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})[\"']")
# Encodings that tools on East Asian systems declare and Expat does not know.
_RECODED = frozenset(
    codecs.lookup(name).name
    for name in (
        *("gb2312", "gbk", "gb18030", "big5", "cp950"),
        *("shift_jis", "cp932", "euc_jp", "euc_kr", "cp949"),
    )
)


def read_xml(data: bytes, *, root: str, max_depth: int, uri: str) -> XmlElement:
    """Parses a whole file and returns its root element; raises the errors of `xml_children`."""
    if not data.strip():
        raise InputError(uri=uri, problem="the file is empty")
    data, encoding = _recode(data, uri=uri)
    top = XmlElement(root, line=1, uri=uri)
    top.children += xml_children([data], root=root, max_depth=max_depth, uri=uri, encoding=encoding)
    return top


def xml_children(
    parts: Iterable[bytes], *, root: str, max_depth: int, uri: str, encoding: str | None = None
) -> Iterator[XmlElement]:
    """Parses a file piece by piece; yields each child of the root as soon as it has ended.

    Nothing that the file refers to is read, and a file that declares entities is refused.

    Args:
        parts: The file's content.
        root: The name of its root element.
        max_depth: Elements below this depth are not read; the root has depth 1.
        uri: The file, for errors.
        encoding: The file's encoding, where the file does not declare it.

    Raises:
        InputError: The file is not well-formed XML, has another root, or declares or uses
            entities.
    """
    parser = expat.ParserCreate(encoding)
    parser.buffer_text = True
    path: list[XmlElement] = []
    ended: list[XmlElement] = []

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        element = XmlElement(tag, line=parser.CurrentLineNumber, uri=uri, attributes=attributes)
        if not path and tag != root:
            raise element.error(f"expected <{root}>, found <{tag[:40]}>")
        if 2 <= len(path) < max_depth:
            path[-1].children.append(element)
        path.append(element)

    def end(_: str) -> None:
        element = path.pop()
        if len(path) == 1:
            ended.append(element)

    def refuse_entity(*_: object) -> NoReturn:
        raise InputError(
            uri=uri,
            place=f"line {parser.CurrentLineNumber}",
            problem="entities (<!ENTITY ...>, &name;) are not read; write the text itself",
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = lambda text: path[-1].texts.append(text)
    # Entities are neither expanded nor fetched: they can make a small file fill the memory, or
    # refer to files of this machine.
    parser.EntityDeclHandler = refuse_entity
    parser.SkippedEntityHandler = refuse_entity
    first = b""
    for part, is_last in _mark_last(parts):
        first = first or part
        try:
            parser.Parse(part, is_last)
        except expat.ExpatError as error:
            foreign = None if first.lstrip().startswith(b"<") else foreign_content(first)
            if foreign is not None:
                raise InputError(uri=uri, problem=foreign) from error
            raise InputError(
                uri=uri,
                place=f"line {error.lineno}, column {error.offset + 1}",
                problem=f"the XML is broken: {expat.ErrorString(error.code)}",
            ) from error
        except (ValueError, LookupError) as error:
            # Expat does not know some encodings with several bytes for a character.
            problem = f"the XML's encoding: {error}"
            raise InputError(uri=uri, place="line 1", problem=problem) from error
        yield from ended
        ended.clear()


def _mark_last(parts: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    for part in parts:
        yield part, False
    yield b"", True


def _recode(data: bytes, *, uri: str) -> tuple[bytes, str | None]:
    """Returns the content in an encoding that Expat reads, and its name if it is not declared."""
    declared = _DECLARATION.match(data)
    if declared is None:
        return data, None
    try:
        name = codecs.lookup(declared[1].decode("ascii")).name
    except LookupError:
        return data, None
    if name not in _RECODED:
        return data, None
    try:
        return data.decode(name).encode(), "utf-8"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            uri=uri, place=f"line {line}", problem=f"expected {name} text, as the file declares"
        ) from error


class XmlElement(msgspec.Struct):
    """An element of a file, with its line."""

    tag: str
    line: int
    uri: str
    attributes: Mapping[str, str] = {}
    children: list[XmlElement] = []
    texts: list[str] = []

    @property
    def text(self) -> str:
        """The element's text on one line."""
        # Line breaks in a value are only the file's layout.
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[XmlElement]:
        """Returns the children with a name."""
        return [child for child in self.children if child.tag == tag]

    def one(self, tag: str) -> XmlElement | None:
        """Returns the child with a name, or None; raises InputError where there are several."""
        found = self.all(tag)
        if len(found) > 1:
            raise found[1].error(f"<{tag}> is given twice")
        return found[0] if found else None

    def number(self) -> float:
        """Reads the element's text as a finite number."""
        return self.parse_number(self.text, what=f"<{self.tag}>")

    def pixels(self) -> int:
        """Reads the element's text as the length of an image's side."""
        return self._pixels(self.text, what=f"<{self.tag}>")

    def required(self, name: str) -> str:
        """Returns an attribute; raises InputError where it is missing."""
        if name not in self.attributes:
            raise self.error(f"a <{self.tag}> without {name}")
        return self.attributes[name]

    def attribute_pixels(self, name: str) -> int:
        """Reads an attribute as the length of an image's side; 0 where it is missing."""
        return self._pixels(self.attributes.get(name, "0"), what=name)

    def parse_number(self, text: str, *, what: str) -> float:
        """Reads a finite number of the element; errors call it `what`."""
        number = float(text) if NUMBER.fullmatch(text) else math.nan
        if not math.isfinite(number):
            raise self.error(f"{what}: expected a number, got {text[:40]!r}")
        return number

    def _pixels(self, text: str, *, what: str) -> int:
        number = self.parse_number(text, what=what)
        if not 0 <= number <= _MAX_SIDE_PX or number != int(number):
            raise self.error(f"{what}: expected pixels, got {text[:40]!r}")
        return int(number)

    def error(self, problem: str) -> InputError:
        """Makes an error with the element's line."""
        return InputError(uri=self.uri, place=f"line {self.line}", problem=problem)
