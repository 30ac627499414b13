"""WebDataset: tar files in which the files of a sample follow each other.

The format: https://github.com/webdataset/webdataset (README, "The WebDataset Format"): the files
of a sample have the same path up to the first dot of the base name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Annotated, Any, NamedTuple

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    Value,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import ExtraFeature
from shardbeam.transforms.formats.annotation_file import decode_row, with_replaced
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import escape_key, is_hidden, is_image_name, normalize_key
from shardbeam.transforms.formats.numbered_files import check_complete
from shardbeam.transforms.formats.parsing.root_files import common_folder
from shardbeam.transforms.formats.parsing.table_columns import Base, ColumnType, column_feature
from shardbeam.transforms.formats.recognition import Folder, Recognized
from shardbeam.transforms.storage.archives.open import (
    expand_root,
    fixed_folder,
    is_pattern,
    list_root,
)
from shardbeam.transforms.storage.archives.tar import TarMember, tar_members
from shardbeam.transforms.storage.buffered_reader import StorageReader

# The files in WebDataset's tars, grouped by sample.

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


_TAR = re.compile(r"\.(tar(\.(gz|bz2|xz|zst))?|tgz)$", re.IGNORECASE)
_MAX_INT64 = 2**63 - 1
_LINK = "a link to another file; make the tar with --dereference --hard-dereference"
# Every number with this many digits fits into 64 bits.
_MAX_DIGITS = 18
# Tars that are opened to find out how labels are written.
_FIRST_TARS = 5


class WebDatasetFormat(Format, frozen=True, kw_only=True):
    """WebDataset: tar files in which a sample's files follow each other.

    These files of each sample are read: `key.jpg` (or any other image), `key.cls` (a class: its
    number or its name), `key.txt` (a caption) and `key.json`. Without a `cls`, the JSON's `label`
    is the class; without a `txt`, its `caption` is the caption.

    Attributes:
        tars: The tar files, folders of them, or patterns.
        fields: `{field of the JSON: type}` of other fields that are written under their names.
        _keeps_ids: Whether a class's number is its id (`labels.ids: source` in the config), so that
            either all classes are numbers or none is.
        _numbered: Whether most classes of the first samples are numbers; None where that does not
            matter or is unknown.
    """

    SUMMARY = "WebDataset tar files"
    ROOTS = ("tars",)
    kinds = frozenset({Kind.CLASSIFICATION, Kind.CAPTIONS})
    lists_annotations = True
    opens_archives = False

    tars: Annotated[
        list[Location],
        msgspec.Meta(min_length=1),
        named("tar file, folder of tar files, or pattern"),
    ]
    fields: dict[str, Base] = {}
    _keeps_ids: bool = False
    _numbered: bool | None = None

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes tar files that begin with samples: an image and files about it."""
        tars = folder.named(".tar")
        if not tars:
            return None
        what = counted(len(tars), "tar file")
        first = first_files(folder.files[tars[0]])
        if not has_samples(first):
            dotted = [each for each in first if each.is_dotted_image]
            problem = f"{tars[0]}: {describe_dots(dotted[0])}" if dotted else ""
            return Recognized(what=what, problem=problem) if dotted else None
        try:
            check_complete(tars, folder=folder.uri(""), flag="--tars")
        except InputError as error:
            return Recognized(what=what, problem=str(error))
        sources = folder.shards_by_split(tars, key="tars", extension=".tar")
        return Recognized(what=what, sources=sources)

    @functools.cached_property
    def _folder(self) -> str:
        return common_folder(
            [fixed_folder(tar if _TAR.search(tar) else f"{tar}/any") for tar in self.tars]
        )

    def resolve(self) -> WebDatasetFormat:
        """Finds out whether classes are numbers.

        Raises:
            InputError: A folder holds no tar file, lacks one that the numbers of the others
                announce, or cannot be listed.
        """
        self._check_tars()
        if not self._keeps_ids:
            return self
        numbers = [_is_number(label) for label in self._first_labels()]
        names = len(numbers) - sum(numbers)
        return msgspec.structs.replace(
            self, _numbered=None if sum(numbers) == names else sum(numbers) > names
        )

    def _check_tars(self) -> None:
        """Lists the folders to find those without tars, or without all of them, before the run."""
        for root in self.tars:
            if _TAR.search(root) or is_pattern(root):
                continue
            last = ""
            tars = []
            for last, _ in list_root(root, open_archives=False):
                if self.place(last, root=0).role is Role.CONTAINER:
                    tars.append(last)
            check_complete(tars, folder=root, flag="--tars")
            if not tars:
                held = f"it holds {last!r}" if last else "there are no files"
                raise InputError(
                    uri=root,
                    problem=f"no .tar file found, {held}; for images in folders there are "
                    "image-folder and filename-label",
                )

    def warnings(self) -> Iterator[str]:
        """Names annotations in the first samples that are not read, and says if none is read.

        Raises:
            InputError: They hold no image, because of the dots in the images' names.
        """
        tar = next(self._tars(), None)
        samples = 0
        unread: dict[str, None] = {}
        is_annotated = False
        for sample in group_samples(first_files(tar)) if tar is not None else ():
            samples += any(each.is_image for each in sample)
            with contextlib.suppress(RejectedError):
                found = self._annotate(sample)
                is_annotated |= bool(found.labels or found.captions or found.values)
                unread |= dict.fromkeys(other_fields(sample) - self.fields.keys())
        if tar is None:
            return
        if not samples:
            for each in first_files(tar):
                if each.is_dotted_image:
                    raise InputError(uri=tar.uri, problem=describe_dots(each))
            return
        if unread:
            yield (
                f"{tar.uri}: of the JSON, label, caption and fields are read, and not "
                f"{', '.join(sorted(unread))}: boxes and other objects in WebDataset are not read"
            )
        if not is_annotated:
            yield (
                f"{tar.uri}: in the first {counted(samples, 'sample')}, no annotation is "
                "read, so that the Examples hold images alone; a class is in .cls or in the JSON's "
                "label, a caption in .txt or in the JSON's caption"
            )

    def _tars(self) -> Iterator[ImageRef]:
        return (
            tar
            for root in self.tars
            for uri in expand_root(root)
            for path, tar in sorted(list_root(uri, open_archives=False), key=operator.itemgetter(0))
            if self.place(path, root=0).role is Role.CONTAINER
        )

    def _first_labels(self) -> Iterator[str]:
        """Reads the classes of the first samples of the first tars that can be read."""
        for tar in itertools.islice(self._tars(), _FIRST_TARS):
            for sample in group_samples(first_files(tar)):
                with contextlib.suppress(RejectedError):
                    yield from self._annotate(sample).labels

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares the fields of the JSON files."""
        return [
            column_feature(name, ColumnType(base), per_object=False)
            for name, base in self.fields.items()
        ]

    def place(self, path: str, *, root: int) -> Place:
        """Treats tar files as containers, and ignores the files beside them."""
        is_tar = _TAR.search(path) is not None and not is_hidden(path)
        return Place(role=Role.CONTAINER if is_tar else Role.OTHER)

    def read_container(
        self, file: ImageRef, *, path: str, root: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Lists the samples of a tar file.

        An image's key begins with the tar's name, so that several tars may have the same keys.

        Raises:
            InputError: The file is not a tar file, or is truncated, damaged or compressed.
        """
        tar = file.uri.removeprefix(f"{self._folder}/")
        reader = StorageReader(file)
        # Keys of samples and of images, which must not repeat.
        seen: set[str] = set()
        labels: dict[str, None] = {}
        files = (sample_file(member, reader=reader) for member in tar_members(reader))
        for position, (key, group) in enumerate(
            itertools.groupby(files, operator.attrgetter("key"))
        ):
            sample = list(group)
            images = [each for each in sample if not key or each.is_image]
            keys = [f"{tar}/{as_key(each.member.name)}" for each in images]
            for image_key, image in zip(keys, images, strict=True):
                yield ListedImage(key=image_key, image=image.member.refuse_link(_LINK))
            if not key:
                continue
            try:
                _check_sample(sample, images=len(images), is_repeated=key in seen)
                annotations = self._annotate(sample)
            except RejectedError as error:
                # If two images share a name, the join rejects the second.
                for image_key in dict.fromkeys(keys or [f"{tar}/{as_key(key)}"]):
                    if image_key not in seen:
                        yield AnnotationEntry(
                            key=image_key,
                            position=position,
                            defect=error.reason,
                            detail=f"{tar}, sample {key!a}: {error.detail}",
                        )
            else:
                labels.update(dict.fromkeys(annotations.labels))
                yield AnnotationEntry(
                    key=keys[0],
                    annotations=encode_annotations(annotations),
                    position=position,
                    image_id=annotations.image_id,
                )
            seen.update((key, *keys))
        for label in labels:
            yield Category(
                name=label, source_id=int(label) if _is_number(label) else None, origin=file.uri
            )

    def _annotate(self, sample: Sequence[SampleFile]) -> ImageAnnotations:
        texts = {
            each.extension: decode_text(each)
            for each in sample
            if each.extension in (CLASS, CAPTION, JSON)
        }
        document, lone = decode_object(texts[JSON]) if JSON in texts else ({}, 0)
        if CLASS in texts:
            extension, labels = CLASS, [_label(texts[CLASS], place=f".{CLASS}")]
        else:
            extension, values = JSON, _listed(document.get("label"))
            labels = [_label(value, place=".json: label") for value in values]
        for label in labels:
            if self._numbered is not None and _is_number(label) is not self._numbered:
                member = next(each.member.name for each in sample if each.extension == extension)
                raise malformed(
                    f"{member!a}: the class {label!a} is {'no' if self._numbered else 'a'} number, "
                    "unlike those of the first samples; labels.ids: contiguous takes both"
                )
        if CAPTION in texts:
            captions = [texts[CAPTION].removesuffix("\n").removesuffix("\r")]
        else:
            captions = [
                _text(value, place=".json: caption") for value in _listed(document.get("caption"))
            ]
        annotations = ImageAnnotations(
            image_id=escape_key(sample[0].key),
            labels=tuple(dict.fromkeys(labels)),
            captions=tuple(captions),
            values={
                name: (_field(document[name], kind=kind, place=f".json: {name}"),)
                for name, kind in self.fields.items()
                if document.get(name) is not None
            },
        )
        return with_replaced(annotations, lone)


def _check_sample(sample: Sequence[SampleFile], *, images: int, is_repeated: bool) -> None:
    if not images:
        for each in sample:
            if each.is_dotted_image:
                raise RejectedError(Reason.MISSING_IMAGE, describe_dots(each))
        held = ", ".join(sorted(ascii(each.extension) for each in sample)[:10])
        raise RejectedError(
            Reason.MISSING_IMAGE,
            f"no image among its files ({held}), which must follow each other in the tar",
        )
    if images > 1:
        raise RejectedError(Reason.AMBIGUOUS_STEM, f"{images} images in one sample")
    if is_repeated:
        raise RejectedError(
            Reason.DUPLICATE_KEY,
            "an earlier sample has its key; files of a sample must follow each other in the tar",
        )
    extensions = [each.extension for each in sample]
    for extension in (CLASS, CAPTION, JSON):
        if extensions.count(extension) > 1:
            raise malformed(f".{extension} occurs twice")


def _listed(value: object) -> list[object]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _label(value: object, *, place: str) -> str:
    """Returns the name of a class; a number becomes its decimal text."""
    if type(value) is int and abs(value) <= _MAX_INT64:
        return str(value)
    text = _text(value, place=place).strip()
    if not text or "\0" in text or text.splitlines() != [text]:
        raise malformed(f"{place}: expected a class's number or name, got {text[:40]!a}")
    return str(int(text)) if _is_number(text) else text


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _text(value: object, *, place: str) -> str:
    if not isinstance(value, str):
        raise malformed(f"{place}: expected text, got {_shortened(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise malformed(f"{place}: not valid Unicode") from error
    return value


def _field(value: object, *, kind: str, place: str) -> Value:
    if kind == "string":
        return _text(value, place=place)
    if kind == "bool" and isinstance(value, bool):
        return int(value)
    if kind == "int" and type(value) is int and -_MAX_INT64 - 1 <= value <= _MAX_INT64:
        return value
    if kind == "float" and type(value) in (int, float) and abs(value) <= 3.4e38:  # type: ignore[arg-type]
        return float(value)  # type: ignore[arg-type]
    raise malformed(f"{place}: expected {kind}, got {_shortened(value)}")


def _shortened(value: object) -> str:
    return ascii(value)[:40]
