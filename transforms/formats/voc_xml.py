"""What a Pascal VOC annotation file says about its image.

The format: the development kits of http://host.robots.ox.ac.uk/pascal/VOC/, section
"Annotation files", and what annotation tools make of it.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn
from xml.parsers import expat

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import foreign_content

_MAX_SIDE_PX = 2**31 - 1
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_YES_NO = {"true": 1, "yes": 1, "false": 0, "no": 0}

_DECLARATION = re.compile(rb"<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})[\"']")
# Encodings that tools on East Asian systems declare and Expat does not know.
_RECODED = frozenset(
    codecs.lookup(name).name
    for name in (
        *("gb2312", "gbk", "gb18030", "big5", "cp950"),
        *("shift_jis", "cp932", "euc_jp", "euc_kr", "cp949"),
    )
)

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
# Elements below `annotation/object/bndbox/xmin` say nothing that is read.
_MAX_DEPTH = 4


class VocObject(msgspec.Struct, frozen=True, kw_only=True):
    """An `object`, as it is there.

    Attributes:
        name: Its class, each run of white space made one space.
        box: `(xmin, ymin, xmax, ymax)` as written; None where there is no `bndbox`.
        pose: The view; empty where it is not said.
        truncated: 0 or 1; None where it is not said.
        difficult: 0 or 1; None where it is not said.
    """

    name: str
    box: tuple[float, float, float, float] | None
    pose: str = ""
    truncated: int | None = None
    difficult: int | None = None


class VocAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """An `annotation`.

    Attributes:
        width: Width of the image in pixels; 0 where it is not said.
        height: Height of the image in pixels; 0 where it is not said.
        objects: Its objects, in their order.
    """

    width: int
    height: int
    objects: tuple[VocObject, ...]


def parse_voc_xml(data: bytes, *, uri: str) -> VocAnnotation:
    """Parses an annotation file.

    Nothing that the file refers to is read: a file that declares entities is refused.

    Args:
        data: Its content.
        uri: The file, for errors.

    Raises:
        InputError: It is not well-formed XML, not an `annotation`, declares or uses entities,
            or a value that is needed is missing, no number, or given twice.
    """
    if not data.strip():
        raise InputError(uri=uri, problem="the file is empty")
    data, encoding = _recode(data, uri=uri)
    root = _parse(data, encoding=encoding, uri=uri)
    if root.tag != "annotation":
        raise root.error(f"expected <annotation>, found <{root.tag[:40]}>")
    sizes = root.all("size")
    return VocAnnotation(
        width=_pixels(sizes, "width"),
        height=_pixels(sizes, "height"),
        objects=tuple(map(_object, root.all("object"))),
    )


def _recode(data: bytes, *, uri: str) -> tuple[bytes, str | None]:
    """Gives the content in an encoding that Expat reads, and its name where it is not declared."""
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


class _Element:
    """An element of the file, and where it begins."""

    def __init__(self, tag: str, *, line: int, uri: str) -> None:
        self.tag = tag
        self.line = line
        self.uri = uri
        self.children: list[_Element] = []
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        # Line breaks within a value are the file's layout.
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[_Element]:
        return [child for child in self.children if child.tag == tag]

    def one(self, tag: str) -> _Element | None:
        """The child of that name; None where there is none."""
        found = self.all(tag)
        if len(found) > 1:
            raise found[1].error(f"<{tag}> is given twice")
        return found[0] if found else None

    def number(self) -> float:
        number = float(self.text) if _NUMBER.fullmatch(self.text) else math.nan
        if not math.isfinite(number):
            raise self.error(f"<{self.tag}>: expected a number, got {self.text[:40]!r}")
        return number

    def error(self, problem: str) -> InputError:
        return InputError(uri=self.uri, place=f"line {self.line}", problem=problem)


def _parse(data: bytes, *, encoding: str | None, uri: str) -> _Element:
    """Parses the file into elements, as deep as values stand.

    Raises:
        InputError: It is not well-formed XML, or has entities.
    """
    parser = expat.ParserCreate(encoding)
    parser.buffer_text = True
    top = _Element("", line=1, uri=uri)
    path = [top]

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        del attributes
        element = _Element(tag, line=parser.CurrentLineNumber, uri=uri)
        if len(path) <= _MAX_DEPTH:
            path[-1].children.append(element)
        path.append(element)

    def end(tag: str) -> None:
        del tag
        path.pop()

    def add_text(text: str) -> None:
        path[-1].texts.append(text)

    def refuse_entity(*_: object) -> NoReturn:
        raise InputError(
            uri=uri,
            place=f"line {parser.CurrentLineNumber}",
            problem="entities (<!ENTITY ...>, &name;) are not read; write the text itself",
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = add_text
    # No entity is expanded or fetched: entities can make a small file fill the memory, or name
    # files of the machine.
    parser.EntityDeclHandler = refuse_entity
    parser.SkippedEntityHandler = refuse_entity
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        foreign = None if data.lstrip().startswith(b"<") else foreign_content(data)
        if foreign is not None:
            raise InputError(uri=uri, problem=foreign) from error
        raise InputError(
            uri=uri,
            place=f"line {error.lineno}, column {error.offset + 1}",
            problem=f"the XML is broken: {expat.ErrorString(error.code)}",
        ) from error
    except (ValueError, LookupError) as error:
        # An encoding of several bytes a character that Expat does not know.
        raise InputError(uri=uri, place="line 1", problem=f"the XML's encoding: {error}") from error
    return top.children[0]


def _pixels(sizes: Sequence[_Element], side: str) -> int:
    for size in sizes:
        value = size.one(side)
        if value is not None and value.text:
            number = value.number()
            if not 0 <= number <= _MAX_SIDE_PX or number != int(number):
                raise value.error(f"<{side}>: expected pixels, got {value.text[:40]!r}")
            return int(number)
    return 0


def _object(element: _Element) -> VocObject:
    name, pose, box = (element.one(tag) for tag in ("name", "pose", "bndbox"))
    if name is None or not name.text:
        raise element.error("an <object> without <name>")
    corners = []
    if box is not None:
        for tag in _CORNERS:
            corner = box.one(tag)
            if corner is None:
                raise element.error(f"an <object> whose <bndbox> has no <{tag}>")
            corners.append(corner.number())
    return VocObject(
        name=name.text,
        box=(corners[0], corners[1], corners[2], corners[3]) if corners else None,
        pose="" if pose is None else pose.text,
        truncated=_flag(element.one("truncated")),
        difficult=_flag(element.one("difficult")),
    )


def _flag(value: _Element | None) -> int | None:
    """Reads 0 or 1; whatever else tools write there ("Unspecified") says nothing."""
    if value is None:
        return None
    if _NUMBER.fullmatch(value.text):
        number = float(value.text)
        return None if number < 0 else int(number > 0)
    return _YES_NO.get(value.text.casefold())
