"""What a Pascal VOC annotation file says about its image.

The format: the development kits of http://host.robots.ox.ac.uk/pascal/VOC/, section
"Annotation files", and what annotation tools make of it.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Mapping
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

_SIZE = ("annotation", "size")
_OBJECT = ("annotation", "object")
_BOX = ("annotation", "object", "bndbox")
_SIZE_FIELDS = frozenset({"width", "height"})
_OBJECT_FIELDS = frozenset({"name", "pose", "truncated", "difficult"})
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_FIELDS = {
    _SIZE: _SIZE_FIELDS,
    _OBJECT: _OBJECT_FIELDS,
    _BOX: frozenset(_CORNERS),
}


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
    reader = _Reader(uri)
    data, encoding = _recode(data, uri=uri)
    parser = expat.ParserCreate(encoding)
    parser.buffer_text = True
    reader.attach(parser)
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
    return reader.annotation()


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


class _Value(msgspec.Struct, frozen=True):
    text: str
    line: int


class _ObjectFields:
    """What has been read of an object."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.fields: dict[str, _Value] = {}
        self.box: dict[str, _Value] | None = None


class _Reader:
    """Collects the few elements that matter, whatever stands around them."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._path: list[str] = []
        self._text: list[str] = []
        self._size: dict[str, _Value] = {}
        self._objects: list[_ObjectFields] = []

    def attach(self, parser: expat.XMLParserType) -> None:
        self._parser = parser
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        # Neither is ever expanded or fetched: entities can make a small file fill the memory,
        # or name files of the machine.
        parser.EntityDeclHandler = self._refuse_entity
        parser.SkippedEntityHandler = self._refuse_entity

    def annotation(self) -> VocAnnotation:
        return VocAnnotation(
            width=self._pixels("width"),
            height=self._pixels("height"),
            objects=tuple(map(self._object, self._objects)),
        )

    def _start(self, tag: str, attributes: Mapping[str, str]) -> None:
        del attributes
        if not self._path and tag != "annotation":
            self._refuse(f"expected <annotation>, found <{tag[:40]}>")
        self._path.append(tag)
        self._text.clear()
        depth = len(self._path)
        if depth == 2 and tag == "object":
            self._objects.append(_ObjectFields(self._parser.CurrentLineNumber))
        elif depth == 3 and tuple(self._path) == _BOX:
            if self._objects[-1].box is not None:
                self._refuse("a second <bndbox> in one <object>")
            self._objects[-1].box = {}

    def _end(self, tag: str) -> None:
        if len(self._path) in (3, 4):
            parent = tuple(self._path[:-1])
            if tag in _FIELDS.get(parent, ()):
                self._keep(tag, into=self._fields_of(parent))
        self._path.pop()
        self._text.clear()

    def _fields_of(self, parent: tuple[str, ...]) -> dict[str, _Value]:
        if parent == _SIZE:
            return self._size
        last = self._objects[-1]
        return last.fields if parent == _OBJECT or last.box is None else last.box

    def _keep(self, tag: str, *, into: dict[str, _Value]) -> None:
        if tag in into:
            self._refuse(f"<{tag}> is given twice")
        # Line breaks within a value are the file's layout.
        text = " ".join("".join(self._text).split())
        into[tag] = _Value(text, self._parser.CurrentLineNumber)

    def _refuse(self, problem: str) -> NoReturn:
        raise self._error(self._parser.CurrentLineNumber, problem)

    def _refuse_entity(self, *_: object) -> NoReturn:
        self._refuse("entities (<!ENTITY ...>, &name;) are not read; write the text itself")

    def _error(self, line: int, problem: str) -> InputError:
        return InputError(uri=self._uri, place=f"line {line}", problem=problem)

    def _pixels(self, side: str) -> int:
        value = self._size.get(side)
        if value is None or not value.text:
            return 0
        number = self._number(side, value)
        if not 0 <= number <= _MAX_SIDE_PX or number != int(number):
            raise self._error(value.line, f"<{side}>: expected pixels, got {value.text[:40]!r}")
        return int(number)

    def _object(self, item: _ObjectFields) -> VocObject:
        name = item.fields.get("name")
        if name is None or not name.text:
            raise self._error(item.line, "an <object> without <name>")
        pose = item.fields.get("pose")
        return VocObject(
            name=name.text,
            box=self._box(item),
            pose="" if pose is None else pose.text,
            truncated=_flag(item.fields.get("truncated")),
            difficult=_flag(item.fields.get("difficult")),
        )

    def _box(self, item: _ObjectFields) -> tuple[float, float, float, float] | None:
        if item.box is None:
            return None
        for corner in _CORNERS:
            if corner not in item.box:
                raise self._error(item.line, f"an <object> whose <bndbox> has no <{corner}>")
        xmin, ymin, xmax, ymax = (self._number(corner, item.box[corner]) for corner in _CORNERS)
        return xmin, ymin, xmax, ymax

    def _number(self, tag: str, value: _Value) -> float:
        number = float(value.text) if _NUMBER.fullmatch(value.text) else math.nan
        if not math.isfinite(number):
            raise self._error(value.line, f"<{tag}>: expected a number, got {value.text[:40]!r}")
        return number


def _flag(value: _Value | None) -> int | None:
    """Reads 0 or 1; whatever else tools write there ("Unspecified") says nothing."""
    if value is None:
        return None
    if _NUMBER.fullmatch(value.text):
        number = float(value.text)
        return None if number < 0 else int(number > 0)
    return _YES_NO.get(value.text.casefold())
