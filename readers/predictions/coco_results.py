"""Reads detections in COCO's format for results: a JSON list with one object for each detection.

The format: https://cocodataset.org/#format-results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.readers.predictions.given_labels import Boxes, Indexes
from shardbeam.transforms.core.errors import InputError, unreadable
from shardbeam.transforms.storage.base import ChangedError
from shardbeam.transforms.storage.find import storage_for

# Weaker detections hardly change a margin, and are most of a file.
LEAST_SCORE = 0.05
_ROUNDING = 1e-6
# The file is read in pieces of this length; a longer result is an error.
PIECE_BYTES = 8 << 20
# Commas that may stand between two results are tried from the last one of a piece.
_TRIES = 20
_BETWEEN = re.compile(rb"\}[ \t\r\n]*,")
_INDEX = re.compile(r"\$\[(\d+)\]")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_EXPECTED = "expected COCO results: [{image_id, category_id, bbox: [x, y, width, height], score}]"
# No picture is larger.
_FAR_PX = 1e9
_MOST_INT = (1 << 63) - 1


class _Result(msgspec.Struct, frozen=True, gc=False):
    image_id: int | str | float
    bbox: tuple[float, float, float, float]
    score: float
    category_id: int | float | None = None
    category: str | None = None


class Detections(NamedTuple):
    """The detections of a model, without those that cannot be used.

    Attributes:
        ids: Names of images, each once.
        categories: Ids or names of classes, each once.
        images: The image of each detection, as an index of `ids`.
        classes: Its class, as an index of `categories`.
        boxes: Its box as the file has it: left, top, width and height in pixels.
        scores: Its score, from 0 to 1.
        left_out: `{why: how many}` of the others.
    """

    ids: list[str]
    categories: list[int | str]
    images: Indexes
    classes: Indexes
    boxes: Boxes
    scores: npt.NDArray[np.float32]
    left_out: Counter[str]


_decoder = JsonDecoder(list[_Result])


def read_detections(uri: str) -> Detections:
    """Reads detections, 8 MB of the file at a time; each takes 28 bytes of memory.

    Raises:
        InputError: The file cannot be read, is no list of results, or a score is not from 0 to 1.
    """
    ids: dict[str, int] = {}
    categories: dict[int | str, int] = {}
    left_out: Counter[str] = Counter()
    parts: list[tuple[Indexes, Indexes, Boxes, npt.NDArray[np.float32]]] = []
    number = 0
    for results in _read_pieces(uri):
        images = [ids.setdefault(str(_whole(each.image_id)), len(ids)) for each in results]
        classes = [
            categories.setdefault(_category(each, number + n, uri=uri), len(categories))
            for n, each in enumerate(results)
        ]
        boxes = np.array([each.bbox for each in results], np.float64).reshape(-1, 4)
        scores = np.array([each.score for each in results])
        bad = np.flatnonzero((scores < -_ROUNDING) | (scores > 1 + _ROUNDING))
        if bad.size:
            raise InputError(
                uri=uri,
                place=f"result {number + bad[0] + 1:,}",
                problem=f"its score is {scores[bad[0]]:g}; expected a probability from 0 to 1",
            )
        is_weak, is_flat = scores < LEAST_SCORE, ~(boxes[:, 2:] > 0).all(axis=1)
        used = ~(is_weak | is_flat)
        left_out[f"with a score below {LEAST_SCORE}"] += int(is_weak.sum())
        left_out["with a box without area"] += int((is_flat & ~is_weak).sum())
        parts.append(
            (
                np.array(images, np.int32)[used],
                np.array(classes, np.int32)[used],
                np.clip(boxes[used], -_FAR_PX, _FAR_PX).astype(np.float32),
                np.clip(scores[used], 0, 1).astype(np.float32),
            )
        )
        number += len(results)
    if not number:
        raise InputError(uri=uri, problem="holds no predictions")
    image, class_, box, score = zip(*parts, strict=True)
    return Detections(
        list(ids),
        list(categories),
        np.concatenate(image),
        np.concatenate(class_),
        np.concatenate(box),
        np.concatenate(score),
        left_out,
    )


def _whole(number: int | str | float) -> int | str:
    """Returns an id as it was meant: pandas writes the ids of a column with gaps as 1.0."""
    if isinstance(number, float):
        return int(number) if number.is_integer() and abs(number) < _MOST_INT else str(number)
    return number


def _category(result: _Result, number: int, *, uri: str) -> int | str:
    found = result.category_id if result.category is None else result.category
    if found is None:
        problem = "has neither a category_id nor a category"
        raise InputError(uri=uri, place=f"result {number + 1:,}", problem=problem)
    return _whole(found)


def _read_pieces(uri: str) -> Iterator[list[_Result]]:
    """Yields the results of a file, some at a time."""
    # `text` begins with a bracket, which stands at the byte `begin`, before the result `number`.
    text, begin, number = b"", 0, 0
    for piece in read_file(uri):
        text += piece if text else piece.removeprefix(b"\xef\xbb\xbf")
        results, cut = _decode_start(text)
        if results:
            yield results
            text, begin, number = b"[" + text[cut + 1 :], begin + cut, number + len(results)
        elif len(text) > 2 * PIECE_BYTES:
            break
    if not text.strip():
        raise InputError(uri=uri, problem=f"is empty; {_EXPECTED}")
    try:
        yield _decoder.decode(text)
    except msgspec.ValidationError as error:
        words = str(error)
        if found := _INDEX.search(words):
            words = words.replace(found[0], f"result {number + int(found[1]) + 1:,}")
        raise InputError(uri=uri, problem=f"{words}; {_EXPECTED}") from error
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        words, found = str(error), _BYTE.search(str(error))
        place = f"byte {begin + int(found[1]):,}" if found else ""
        words = _BYTE.sub("", words).strip()
        raise InputError(
            uri=uri,
            place=place,
            problem=f"{words}; {_EXPECTED}. JSON has no NaN and no Infinity",
        ) from error


def _decode_start(text: bytes) -> tuple[list[_Result], int]:
    """Decodes the results at the beginning of a text that goes on, up to a comma, which it returns.

    A comma after a brace may also stand within a result, or within a string: then what is before it
    is no list of results, and an earlier comma is tried.
    """
    cuts = [found.end() - 1 for found in _BETWEEN.finditer(text)]
    for cut in cuts[: -_TRIES - 1 : -1]:
        try:
            return _decoder.decode(b"%b]" % text[:cut]), cut
        except msgspec.ValidationError:
            break
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
    return [], 0


def read_file(uri: str) -> Iterator[bytes]:
    """Yields the bytes of a file, 8 MB at a time.

    Raises:
        InputError: It is not there, cannot be read, or has changed meanwhile.
    """
    storage = storage_for(uri)
    try:
        file = storage.find(uri)
        for offset in range(0, file.size_bytes, PIECE_BYTES):
            yield storage.read(uri, offset=offset, size_bytes=PIECE_BYTES, version=file.version)
    except ChangedError as error:
        raise InputError(uri=uri, problem="has changed while it was read") from error
    except OSError as error:
        raise unreadable(uri, error) from error
