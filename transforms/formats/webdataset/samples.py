"""The files in WebDataset's tars, grouped by sample."""

from __future__ import annotations

import itertools
import operator
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any, NamedTuple

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import ImageRef
from shardbeam.transforms.formats.annotation_file import decode_row
from shardbeam.transforms.formats.names import escape_key, is_hidden, is_image_name, normalize_key
from shardbeam.transforms.storage.archives.tar import TarMember, tar_members
from shardbeam.transforms.storage.reader import StorageReader

_KEY_AND_EXTENSION = re.compile(r"(?P<key>(?:.*/)?[^./]+)\.(?P<extension>[^/]*)", re.DOTALL)
# Files of a tar that show what it is, and tars that are opened.
_FIRST_FILES = 50
CLASS = "cls"
CAPTION = "txt"
JSON = "json"
# Fields of the JSON that other programs write for annotations, and that are not read here.
_OTHER_ANNOTATIONS = frozenset(
    {"objects", "annotations", "bbox", "bboxes", "boxes", "labels", "captions", "classes"}
    | {"category", "segmentation", "masks", "keypoints"}
)
_MAX_TEXT_BYTES = 16 << 20
_json_decoder = JsonDecoder()


class SampleFile(NamedTuple):
    """One file of a sample.

    Attributes:
        key: The sample; empty for a file outside of samples.
        extension: The text after the key and a dot, in lower case.
        member: The file.
        content: The file's content, if this format reads it.
    """

    key: str
    extension: str
    member: TarMember
    content: bytes | None

    @property
    def is_image(self) -> bool:
        """Whether its name is that of an image."""
        return "." not in self.extension and is_image_name(f".{self.extension}")

    @property
    def is_dotted_image(self) -> bool:
        """Whether it is no image only because its name has another dot before the extension."""
        return "." in self.extension and is_image_name(f".{self.extension}")


def first_files(tar: ImageRef) -> list[SampleFile]:
    """Reads the first files of a tar; returns nothing where that is not possible."""
    reader = StorageReader(tar)
    try:
        members = itertools.islice(tar_members(reader), _FIRST_FILES)
        return [sample_file(member, reader=reader) for member in members]
    except (InputError, OSError):
        # The run itself reports the error.
        return []


def group_samples(files: Iterable[SampleFile]) -> Iterator[list[SampleFile]]:
    """Groups files that follow each other by sample; files outside of samples are left out."""
    for key, sample in itertools.groupby(files, operator.attrgetter("key")):
        if key:
            yield list(sample)


def other_fields(sample: Iterable[SampleFile]) -> Set[str]:
    """Returns fields of a sample's JSON that may be annotations, and are not read.

    Raises:
        RejectedError: The JSON cannot be read.
    """
    found: set[str] = set()
    for each in sample:
        if each.extension == JSON:
            document, _ = decode_object(decode_text(each))
            found |= document.keys() & _OTHER_ANNOTATIONS
    return found


def describe_dots(file: SampleFile) -> str:
    """Explains why a file is no image because of the dots in its name."""
    return (
        f"the extension is all that follows the first dot of a name, so that {file.member.name!a} "
        f"is a file {('.' + file.extension)!a} of the sample {file.key!a}; write the files without "
        "other dots"
    )


def has_samples(files: Sequence[SampleFile]) -> bool:
    """Whether an image has a label, a caption or a JSON file."""
    images = {each.key for each in files if each.key and each.is_image}
    annotated = {each.key for each in files if each.extension in (CLASS, CAPTION, JSON)}
    return bool(images & annotated)


def as_key(name: str) -> str:
    """Returns the key of a name."""
    return normalize_key(escape_key(name))


def sample_file(member: TarMember, *, reader: StorageReader) -> SampleFile:
    """Finds the sample of a member, and reads the member if this format uses it."""
    name = posixpath.normpath(member.name)
    match = None if is_hidden(name) else _KEY_AND_EXTENSION.fullmatch(name)
    if match is None:
        return SampleFile("", "", member, None)
    extension = match["extension"].lower()
    size_bytes = member.file.size_bytes
    is_read = extension in (CLASS, CAPTION, JSON) and size_bytes <= _MAX_TEXT_BYTES
    offset = member.file.offset - reader.file.offset
    content = reader.read_at(offset, size_bytes) if is_read else None
    return SampleFile(match["key"], extension, member, content)


def decode_text(file: SampleFile) -> str:
    """Decodes a file of text."""
    if file.member.target or file.member.file.problem or file.content is None:
        problem = file.member.file.problem or "a link, or too long for a text about one image"
        raise malformed(f".{file.extension}: {problem}")
    try:
        return file.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise malformed(f".{file.extension}: byte {error.start}: expected UTF-8 text") from error


def decode_object(text: str) -> tuple[dict[str, Any], int]:
    """Decodes a JSON object."""
    try:
        document, lone = decode_row(text.encode(), decoder=_json_decoder)
    except (ValueError, RecursionError) as error:
        raise malformed(f".json: {error}") from error
    if not isinstance(document, dict):
        raise malformed(".json: expected an object")
    return document, lone


def malformed(detail: str) -> RejectedError:
    """Makes the reject of a sample whose annotations cannot be read."""
    return RejectedError(Reason.ANNOTATION_MALFORMED, detail)
