"""Reads annotation files and their JSON, and describes what is wrong with them."""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
)
from shardbeam.transforms.examples.geometry.boxes import box_around, turn_points
from shardbeam.transforms.examples.geometry.segmentation import is_outline, outline_ellipse
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import Storage, nearest_path
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.gzip_file import GZIP_MAGIC

T = TypeVar("T")

# Beginnings of files that are not JSON, and what such a file is.
_SIGNATURES = (
    (GZIP_MAGIC, "the file is compressed with gzip: unpack it first"),
    (b"PK\x03\x04", "the file is a zip archive: unpack it first"),
    (
        b"version https://git-lfs",
        "the file is a Git LFS pointer: `git lfs pull` fetches its content",
    ),
    (b"<", "the file is HTML or XML, perhaps an error page that was saved in its place"),
    (codecs.BOM_UTF16_LE, "the file is UTF-16 text: save it as UTF-8"),
    (codecs.BOM_UTF16_BE, "the file is UTF-16 text: save it as UTF-8"),
)
TRUNCATED = "the JSON ends in the middle: the file is truncated"
_UTF16_WITHOUT_BOM = re.compile(rb"[\s{\[]\0|\0[\s{\[]")

# How msgspec words places: "... (byte 17)" and "... - at `$.annotations[3].bbox`".
_BYTE = re.compile(r" \(byte (\d+)\)$")
_PATH = re.compile(r" - at `\$(.*)`$", re.DOTALL)

# What Python's `json` writes, although JSON has no such numbers.
_NOT_A_NUMBER = re.compile(rb"-?\b(NaN|Infinity)\b")

# Escapes in JSON strings: a surrogate pair, half of one (the group), and any other.
_ESCAPE = re.compile(
    rb"\\u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][\da-fA-F]{2})|\\.",
    re.DOTALL,
)


# Longer JSON skips the quick comparison of its texts: a whole file has too many.
_SHORT_BYTES = 1 << 16
# What is left out of an object to compare its texts.
_OF_NUMBERS = b"0123456789.-+ ,[]"
# U+FFFD in a spelling that no program writes, so that replaced surrogates can be counted.
_REPLACED = rb"\uFffD"
_object_decoder = JsonDecoder(dict[str, msgspec.Raw])


def read_annotation_file(uri: str, *, storage: Storage) -> bytes:
    """Reads an annotation file whole, without its UTF-8 byte order mark.

    Raises:
        InputError: The file is missing, cannot be read, or is too large to be read whole.
    """
    with explain_errors(uri):
        data = storage.read_small(uri, max_bytes=limits.ANNOTATION_BYTES)
    return data.removeprefix(codecs.BOM_UTF8)


def read_part(uri: str, *, storage: Storage, offset: int = 0, size_bytes: int) -> bytes:
    """Reads bytes of an annotation file.

    Raises:
        InputError: The file is missing, or cannot be read.
    """
    with explain_errors(uri):
        return storage.read(uri, offset=offset, size_bytes=size_bytes)


@contextlib.contextmanager
def explain_errors(uri: str) -> Iterator[None]:
    """Turns errors of the system into an `InputError` that names the file."""
    try:
        yield
    except FileNotFoundError as error:
        near = nearest_path(uri, storage=storage_for(uri))
        raise InputError(uri=uri, problem=f"there is no such file{near}") from error
    except OSError as error:
        raise InputError(
            uri=uri, problem=f"the file cannot be read: {error.strerror or error}"
        ) from error
    except MemoryError as error:
        raise InputError(uri=uri, problem="the file does not fit into memory; split it") from error


def decode_text(data: bytes, *, uri: str) -> str:
    """Decodes a file of UTF-8 text, without its byte order mark.

    Raises:
        InputError: The file is not UTF-8 text.
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        problem = foreign_content(data) or "expected UTF-8 text"
        raise InputError(uri=uri, place=f"line {number}", problem=problem) from error


def split_lines(text: str) -> list[str]:
    """Splits a text at line ends only; `splitlines` splits at other characters, too."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def text_lines(data: bytes, *, uri: str) -> Iterator[tuple[int, str]]:
    """Yields `(number, line)` of each line that is neither blank nor a comment (`#`).

    Raises:
        InputError: The file is not UTF-8 text.
    """
    for number, line in enumerate(split_lines(decode_text(data, uri=uri)), 1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            yield number, stripped


def decode_json(
    data: bytes | memoryview | msgspec.Raw,
    *,
    decoder: JsonDecoder[T],
    uri: str,
    place: str = "",
    place_at: Callable[[int], str] | None = None,
) -> T:
    """Decodes a JSON file, or a part of one.

    Lone surrogates are replaced (`replace_surrogates`).

    Args:
        data: The file's content, or a part of it that `msgspec.Raw` holds.
        decoder: Decodes the expected type.
        uri: The file, for errors.
        place: The part's path in the file, such as `$.annotations[3]`; empty for the whole file.
        place_at: Finds the place of a position in `data`, where `data` is not the whole file.

    Raises:
        InputError: `data` is not JSON, or not of the type that `decoder` expects.
    """
    try:
        # This runs for each of a million annotations, so rare cases are handled below.
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise _validation_error(error, uri=uri, root=place or "$") from error
    except UnicodeDecodeError as error:
        text = bytes(data)
        place_at = place_at or functools.partial(_place_in, text)
        where = place or place_at(_first_undecodable(text))
        raise InputError(uri=uri, place=where, problem="expected UTF-8 text") from error
    except msgspec.DecodeError as error:
        text = bytes(data)
        replaced = replace_surrogates(text)
        if replaced != text:
            return decode_json(replaced, decoder=decoder, uri=uri, place=place, place_at=place_at)
        if place:
            raise InputError(uri=uri, place=place, problem=_BYTE.sub("", str(error))) from error
        place_at = place_at or functools.partial(_place_in, text)
        raise _malformed(error, data=text, uri=uri, place_at=place_at) from error
    except RecursionError as error:
        raise InputError(uri=uri, place=place, problem="the JSON is nested too deeply") from error


def _place_in(data: bytes, position: int) -> str:
    line_begin = data.rfind(b"\n", 0, position)
    lines = data.count(b"\n", 0, position)
    return f"line {lines + 1}, column {position - line_begin}"


def _first_undecodable(data: bytes) -> int:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return 0


def foreign_content(data: bytes) -> str | None:
    """Describes a foreign file by its beginning; returns None where it may be UTF-8 text."""
    start = data[:64].lstrip()
    for signature, problem in _SIGNATURES:
        if start.startswith(signature):
            return problem
    if _UTF16_WITHOUT_BOM.match(data):
        return "the file is UTF-16 text: save it as UTF-8"
    return None


def replace_surrogates(text: bytes) -> bytes:
    """Replaces lone surrogates, which JSON can write and no text can hold, by U+FFFD.

    The result is as long as the text, so that places in errors stay right.
    """
    return _ESCAPE.sub(lambda escape: _REPLACED if escape[1] else escape[0], text)


def count_replaced(text: bytes | msgspec.Raw) -> int:
    """Counts the lone surrogates that `replace_surrogates` has replaced."""
    return bytes(text).count(_REPLACED)


def decode_row(line: bytes, *, decoder: JsonDecoder[T]) -> tuple[T, int]:
    """Decodes one line, or a small file; replaces and counts its lone surrogates.

    Raises:
        msgspec.DecodeError: The decoder raises it.
    """
    try:
        return decoder.decode(line), 0
    except msgspec.DecodeError as error:
        replaced = replace_surrogates(line)
        if replaced == line:
            if problem := _not_a_number(str(error), line):
                raise msgspec.DecodeError(problem) from error
            raise
        return decoder.decode(replaced), count_replaced(replaced)


def repeated_key(text: bytes | msgspec.Raw) -> str | None:
    """Finds a key that a JSON object has twice; a decoder would silently take the last one."""
    data = bytes(text)
    # Keys that differ without their digits differ with them. Most objects of a file have the same
    # keys, and are the same without their numbers.
    if len(data) < _SHORT_BYTES and _has_different_texts(data.translate(None, _OF_NUMBERS)):
        return None
    try:
        values = {key: bytes(value) for key, value in _object_decoder.decode(data).items()}
    except (msgspec.DecodeError, UnicodeDecodeError):
        replaced = replace_surrogates(data)
        # Nobody reads a key that cannot be decoded.
        return None if replaced == data else repeated_key(replaced)

    outside = data.count(b'"') - sum(value.count(b'"') for value in values.values())
    # With more quotes than the keys have, a key is repeated, or has a quote in it.
    return None if outside == 2 * len(values) else _first_repeated(data)


def repeated_key_within(text: bytes | msgspec.Raw) -> str | None:
    """Finds a key that a JSON object, or an object within it, has twice.

    It takes ten times as long as `repeated_key`, so it is not for each of a million annotations.
    """
    repeated: list[str] = []

    def find_repeated(members: Sequence[tuple[str, object]]) -> None:
        keys = [key for key, _ in members]
        if len(set(keys)) < len(keys):
            repeated.append(next(key for key, count in Counter(keys).items() if count > 1))

    _walk(bytes(text), find_repeated)
    return repeated[0] if repeated else None


@functools.lru_cache(maxsize=1_000)
def _has_different_texts(data: bytes) -> bool:
    """Whether all texts of a JSON value differ, so that no key can be there twice."""
    texts = data.split(b'"')[1::2]
    return b"\\" not in data and len(set(texts)) == len(texts)


def _first_repeated(data: bytes) -> str | None:
    """Finds the first key that a valid JSON object has several times, by decoding all of it."""
    keys: list[str] = []

    def keep_keys(members: Sequence[tuple[str, object]]) -> None:
        # The outermost object is the last one.
        keys[:] = [key for key, _ in members]

    _walk(data, keep_keys)
    return next((key for key, count in Counter(keys).items() if count > 1), None)


def _walk(data: bytes, visit: Callable[[Sequence[tuple[str, object]]], None]) -> None:
    """Calls a function with the members of each object of a JSON text, inner ones first."""
    with contextlib.suppress(ValueError, RecursionError):
        json.loads(
            data.decode(errors="replace"),
            object_pairs_hook=visit,
            # Python's decoder refuses very long integers.
            parse_int=str,
            parse_float=str,
            strict=False,
        )


def defect_entry(
    error: InputError | RejectedError, *, key: str, path: str, split: str = ""
) -> AnnotationEntry:
    """Makes the entry for a listed annotation file that cannot be used.

    Args:
        error: The problem of the file.
        key: The text that joins the file to its image.
        path: The file's path below the root.
        split: The split of its image, if the path gives one.
    """
    if isinstance(error, RejectedError):
        reason, text = error.reason, error.detail
    else:
        place = f"{error.place}: " if error.place else ""
        reason, text = Reason.ANNOTATION_MALFORMED, f"{place}{error.problem}"
    return AnnotationEntry(key=key, defect=reason, detail=f"{path}: {text}", split=split)


def with_defect(
    entry: AnnotationEntry, problem: str, *, reason: Reason = Reason.ANNOTATION_MALFORMED
) -> AnnotationEntry:
    """Returns the entry of an image whose annotations cannot be used."""
    return msgspec.structs.replace(entry, defect=reason, detail=problem)


def with_replaced(annotations: ImageAnnotations, lone: int) -> ImageAnnotations:
    """Adds the number of lone surrogates that were replaced to the corrections."""
    if not lone:
        return annotations
    corrections = {**annotations.corrections, Correction.LONE_SURROGATE_REPLACED.value: lone}
    return msgspec.structs.replace(annotations, corrections=corrections)


def classes_in(annotations: ImageAnnotations) -> tuple[str, ...]:
    """Returns the classes of the image and of its objects, in order."""
    return (*annotations.labels, *(item.label for item in annotations.objects))


def drop_outlines(annotations: ImageAnnotations, *, unless: bool) -> tuple[ImageAnnotations, int]:
    """Drops the outlines of objects, unless the config asks for masks.

    Returns:
        The annotations, and how many outlines are dropped (`AnnotationEntry.outlines`).
    """
    if unless:
        return annotations, 0
    outlines = sum(is_outline(item.segmentation) for item in annotations.objects)
    objects = tuple(
        msgspec.structs.replace(item, segmentation=b"") if item.segmentation else item
        for item in annotations.objects
    )
    return msgspec.structs.replace(annotations, objects=objects), outlines


class FoundClasses:
    """The classes that the images of a file show.

    Attributes:
        names: The classes, in the order in which they are found.
        lost: `{class: {shape: objects}}` of objects without a box.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self.lost: dict[str, dict[str, int]] = {}

    def add(self, annotations: ImageAnnotations) -> None:
        """Adds the classes of an image."""
        self.names.update(dict.fromkeys(classes_in(annotations)))
        for name, shapes in annotations.lost.items():
            self.lost.setdefault(name, {}).update(shapes)


def lost_classes(
    lost: Mapping[str, Mapping[str, int]], *, origin: str, fixes: Mapping[str, str] = {}
) -> Iterator[Category]:
    """Names the classes of objects without a box, so that a build can say which ones vanish.

    Args:
        lost: `{class: {shape: objects}}` (`Corrections.lost`).
        origin: The file or folder that holds them.
        fixes: `{shape: what would keep it}`; `{label}` stands for the class.
    """
    for label, shapes in lost.items():
        for shape in shapes if label else ():
            fix = f": {fixes[shape].format(label=label)}" if shape in fixes else ""
            yield Category(name=label, origin=origin, lost=f"{shape}{fix}")


def _validation_error(error: msgspec.ValidationError, *, uri: str, root: str) -> InputError:
    # msgspec counts paths from the decoded part, which is at `root` in the file.
    message = str(error)
    path = _PATH.search(message)
    problem = _PATH.sub("", message).replace("`", "'")
    return InputError(
        uri=uri,
        place=root + path[1] if path else root,
        problem=problem[:1].lower() + problem[1:],
    )


def _malformed(
    error: msgspec.DecodeError, *, data: bytes, uri: str, place_at: Callable[[int], str]
) -> InputError:
    if not data or data.isspace():
        return InputError(uri=uri, problem="the file is empty")
    foreign = foreign_content(data)
    if foreign is not None:
        return InputError(uri=uri, problem=foreign)
    message = str(error)
    byte = _BYTE.search(message)
    if byte is None:
        return InputError(uri=uri, place=place_at(len(data)), problem=TRUNCATED)
    problem = _not_a_number(message, data) or _BYTE.sub("", message)
    return InputError(uri=uri, place=place_at(int(byte[1])), problem=problem)


def _not_a_number(message: str, data: bytes) -> str:
    """Describes a `NaN` or `Infinity` at which msgspec has stopped; empty for anything else."""
    byte = _BYTE.search(message)
    found = byte and _NOT_A_NUMBER.search(data, max(0, int(byte[1]) - 2), int(byte[1]) + 9)
    if not found:
        return ""
    return f"{found[0].decode()} is no JSON: write null, or leave the key out"


# Makes objects of outlines: polygons and ellipses.

_encoder = msgspec.json.Encoder()


def polygon_object(polygon: Sequence[float]) -> ObjectAnnotation:
    """Makes an object without a class of a polygon, `x, y, …`, and the box around it."""
    return ObjectAnnotation(
        label="", bbox=box_around(polygon), segmentation=_encoder.encode([polygon])
    )


def ellipse_object(
    center: tuple[float, float],
    radii: tuple[float, float],
    *,
    angle: float = 0.0,
    corners: int,
) -> ObjectAnnotation:
    """Makes an object of an ellipse, drawn as a polygon, and the box around that.

    Args:
        center: The centre.
        radii: The radii, across and down, before the ellipse is turned.
        angle: By how much it is turned clockwise, in radians.
        corners: The number of the polygon's corners.
    """
    across, down = radii
    # The box around a turned line would have an area.
    angle = angle if across and down else 0.0
    outline = outline_ellipse(center, radii, corners=corners)
    found = polygon_object(turn_points(outline, center=center, angle=angle))
    return msgspec.structs.replace(found, area=math.pi * abs(across * down))
