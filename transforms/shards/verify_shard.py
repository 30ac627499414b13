"""Compares a shard with its dataset's metadata: every byte, record, Example and image."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import google_crc32c
import msgspec

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.containers.base import find_container, parse_example
from shardbeam.transforms.core.errors import DamagedError, InputError, RejectedError, reading
from shardbeam.transforms.dataset.file_names import FEATURES
from shardbeam.transforms.dataset.index import IndexRow, IndexRows, decode_index, read_known_columns
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.examples.features import StoredFeature, feature_values
from shardbeam.transforms.images.check import check_image
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import read_listed

# Problems that are listed for each shard; further ones are only counted.
_MAX_PROBLEMS = 100
# Bytes that are read at a time to compute a checksum.
_PART_BYTES = 8 << 20
# Columns of an index that describe the shard's records.
_RECORD_COLUMNS = frozenset({"split", "shard", "length", "crc32c"})
# JPEG and PNG, the formats of stored images.
_SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_STRICT = ImageConfig(verify="decode", max_pixels=1 << 31, max_decoded_mb=1 << 31)


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that is wrong with a dataset.

    Attributes:
        file: Path of the file below the dataset's folder.
        place: The place in the file, such as `byte 1234` or `row 5`; empty for the whole file.
        key: The image's key, where it is known.
        problem: What is wrong.
    """

    file: str
    place: str = ""
    key: str = ""
    problem: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.place, self.key, self.problem) if part)


class CheckTask(msgspec.Struct, frozen=True, kw_only=True):
    """A shard to check, with what its dataset says about it.

    Attributes:
        data: The shard.
        container: Name of its container (`find_container`).
        split: Its split.
        shard_index: Its number within the split; None if unknown.
        examples: How many Examples it holds; None if unknown.
        crc32c: Checksum of the whole file, 8 hex digits; empty if unknown.
        index: Its index, if there is one, with the `crc32c` of the manifest.
        features: The features of each Example; empty if unknown.
        image_key: Key of the image that the index has a digest of; empty if there is none.
        damaged_images: What the config does with JPEGs whose data is damaged.
    """

    data: StoredFile
    container: str
    split: str
    shard_index: int | None = None
    examples: int | None = None
    crc32c: str = ""
    index: StoredFile | None = None
    features: tuple[StoredFeature, ...] = ()
    image_key: str = ""
    damaged_images: Literal["reject", "keep"] = "reject"


class CheckReport(msgspec.Struct, kw_only=True):
    """The problems that were found in one or several shards.

    Attributes:
        shards: How many were checked.
        examples: Examples that were read.
        num_bytes: Bytes that were read.
        count: How many problems there are.
        problems: The first of them.
    """

    shards: int = 0
    examples: int = 0
    num_bytes: int = 0
    count: int = 0
    problems: tuple[Problem, ...] = ()


def check_shard(check: CheckTask, *, decode: bool = False) -> CheckReport:
    """Reads a shard to its end, and compares it with its dataset's metadata.

    Args:
        check: The shard.
        decode: Whether images are decoded completely, too.

    Raises:
        InputError: The shard cannot be read; it may be whole.
    """
    return _Checker(check, decode=decode).read()


def merge_reports(reports: Sequence[CheckReport]) -> CheckReport:
    """Adds reports up."""
    return CheckReport(
        shards=sum(report.shards for report in reports),
        examples=sum(report.examples for report in reports),
        num_bytes=sum(report.num_bytes for report in reports),
        count=sum(report.count for report in reports),
        problems=tuple(problem for report in reports for problem in report.problems),
    )


class _Checker:
    """Reads one shard, and collects the problems on the way."""

    def __init__(self, check: CheckTask, *, decode: bool) -> None:
        self._check = check
        self._decode = decode
        self._features = {feature.key: feature for feature in check.features}
        self._container = find_container(check.container)
        self._rows: IndexRows | None = None
        self._crc32c = 0
        self._report = CheckReport(shards=1)

    def read(self) -> CheckReport:
        check, report = self._check, self._report
        if check.index is not None:
            self._read_index(check.index)
        is_whole = self._read_records()
        if is_whole and check.crc32c and f"{self._crc32c:08x}" != check.crc32c:
            self._add(
                f"its checksum is {self._crc32c:08x}, not {check.crc32c}: was the file swapped "
                "with another?"
            )
        if is_whole and check.examples is not None and report.examples != check.examples:
            self._add(f"holds {report.examples:,} Examples; the manifest says {check.examples:,}")
        if is_whole and self._rows is not None and report.examples != len(self._rows):
            self._add(f"holds {report.examples:,} Examples, its index {len(self._rows):,} rows")
        return report

    def _read_index(self, file: StoredFile) -> None:
        most = self._check.examples
        try:
            data = read_listed(file.uri, max_bytes=limits.INDEX_BYTES)
            if problem := find_change([data], crc32c=file.crc32c):
                self._add(problem, file=file.path)
            self._rows = decode_index(
                data, uri=file.uri, max_rows=limits.INDEX_ROWS if most is None else most
            )
        except DamagedError as error:
            self._add(error.problem, file=file.path)

    def _read_records(self) -> bool:
        """Reads all records; after a damaged one it continues at the next, if the index says where.

        Returns:
            Whether all could be read.
        """
        start = number = 0
        is_whole = True
        while True:
            see = self._see if is_whole else None
            try:
                for place, record in self._container.read(self._check.data, start=start, see=see):
                    self._report.examples += 1
                    self._check_record(record, place=place, row=self._row(number))
                    number += 1
                return is_whole
            except DamagedError as error:
                row = self._row(number) if error.place else None
                self._add(error.problem, place=error.place, key=row.key if row else "")
                if not error.place:
                    return False
            is_whole = False
            following = self._row(number + 1)
            if following is None:
                if self._rows is None:
                    self._add("the rest was not checked: no index says where it begins")
                return is_whole
            number += 1
            start = following.offset

    def _row(self, number: int) -> IndexRow | None:
        rows = self._rows
        return rows[number] if rows is not None and number < len(rows) else None

    def _see(self, data: bytes) -> None:
        self._crc32c = google_crc32c.extend(self._crc32c, data)
        self._report.num_bytes += len(data)

    def _check_record(self, record: bytes, *, place: int, row: IndexRow | None) -> None:
        words = self._container.describe_place(place)
        key = row.key if row else ""
        try:
            example = parse_example(record, uri=self._check.data.uri, place=words)
        except InputError as error:
            self._add(error.problem, place=words, key=key)
            return
        for problem in self._example_problems(example):
            self._add(problem, place=words, key=key)
        if row is None:
            return
        for problem in self._row_problems(row, place=place, record=record, example=example):
            self._add(problem, place=words, key=key)

    def _example_problems(self, example: Example) -> Iterator[str]:
        stored = example.features.feature
        for key, spec in self._features.items():
            if key not in stored:
                yield f"the Example has no {key!r}"
                continue
            kind, values = feature_values(stored[key])
            size = math.prod(spec.shape)
            if kind is not spec.kind:
                yield f"{key!r} is {kind.value if kind else 'empty'}, not {spec.kind.value}"
            elif len(values) % size if spec.repeated else len(values) != size:
                yield f"{key!r} has {len(values):,} values; {FEATURES} says {size:,}"
        if self._features:
            for key in stored:
                if key not in self._features:
                    yield f"the Example has {key!r}, which {FEATURES} lacks"
        if self._decode:
            yield from self._image_problems(example)

    def _image_problems(self, example: Example) -> Iterator[str]:
        settings = msgspec.structs.replace(_STRICT, damaged=self._check.damaged_images)
        for key, feature in example.features.feature.items():
            spec = self._features.get(key)
            for value in feature.bytes_list.value:
                # Recognize masks in a list, and images that no feature describes, by their bytes.
                if (spec and spec.image_shape) or value.startswith(_SIGNATURES):
                    try:
                        check_image(value, name="", settings=settings)
                    except RejectedError as error:
                        yield f"{key!r} cannot be decoded: {error}"

    def _row_problems(
        self, row: IndexRow, *, place: int, record: bytes, example: Example
    ) -> Iterator[str]:
        check = self._check
        if (row.offset, row.length) != (place, len(record)):
            yield (
                f"the index says {row.length:,} bytes at "
                f"{self._container.describe_place(row.offset)}; the record has {len(record):,}"
            )
        if (row.split, row.shard) != (check.split, check.shard_index):
            yield f"the index says split {row.split!r}, shard {row.shard}"
        if row.crc32c is not None and google_crc32c.value(record) != row.crc32c:
            yield "the index has the checksum of another Example"
        if row.sha256 and check.image_key:
            images = example.features.feature[check.image_key].bytes_list.value
            found = hashlib.sha256(images[0]).hexdigest() if images else "none"
            if found != row.sha256:
                yield f"the image's SHA-256 is {found}; the index says {row.sha256}"

    def _add(self, problem: str, *, file: str = "", place: str = "", key: str = "") -> None:
        self._report.count += 1
        if len(self._report.problems) < _MAX_PROBLEMS:
            path = file or self._check.data.path
            found = Problem(file=path, place=place, key=key, problem=problem)
            self._report.problems += (found,)


def find_contradiction(check: CheckTask) -> str:
    """Compares a shard with its index.

    The shard itself is only read if its checksum does not follow from the index.

    Args:
        check: The shard, with its index, its checksum and how many Examples it holds.

    Returns:
        How it contradicts its index; empty if it does not.

    Raises:
        InputError: A file cannot be read.
    """
    assert check.index is not None
    try:
        data = read_listed(check.index.uri, max_bytes=limits.INDEX_BYTES)
        columns = read_known_columns(data, uri=check.index.uri, max_rows=limits.INDEX_ROWS)
    except DamagedError as error:
        return f"its index: {error.problem}"
    if not columns.keys() >= _RECORD_COLUMNS or None in columns["crc32c"]:
        # Another version has written it.
        return ""
    lengths, checksums = columns["length"], columns["crc32c"]
    if len(lengths) != check.examples:
        return f"holds {check.examples:,} Examples, its index {len(lengths):,} rows"
    if set(zip(columns["split"], columns["shard"], strict=True)) - {
        (check.split, check.shard_index)
    }:
        return "its index is that of another shard"
    checksum = find_container(check.container).checksum(zip(lengths, checksums, strict=True))
    if checksum is not None:
        is_same = f"{checksum:08x}" == check.crc32c
        return "" if is_same else "its index has the checksums of other Examples"
    try:
        decode_index(data, uri=check.index.uri)
    except DamagedError:
        return ""
    problems = check_shard(check).problems
    return str(problems[0]) if problems else ""


def find_change(parts: Iterable[bytes], *, crc32c: str) -> str:
    """Describes a difference in checksums; empty if they agree, or `crc32c` is empty."""
    found = f"{functools.reduce(google_crc32c.extend, parts, 0):08x}"
    if crc32c in ("", found):
        return ""
    return f"was changed: its checksum is {found}, not {crc32c}"


def read_parts(file: StoredFile) -> Iterator[bytes]:
    """Reads a file of any length in parts.

    Raises:
        InputError: It cannot be read.
    """
    storage = storage_for(file.uri)
    for offset in range(0, file.size_bytes, _PART_BYTES):
        with reading(file.uri):
            yield storage.read(file.uri, offset=offset, size_bytes=_PART_BYTES)
