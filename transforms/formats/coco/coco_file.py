"""Reads a COCO file and makes an entry for each of its images.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Generic, TypeVar

import msgspec
import numpy as np

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.counters import BLOCK, counters
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageAnnotations,
    encode_annotations,
)
from shardbeam.transforms.formats.annotation_file import (
    count_replaced,
    decode_json,
    explain_errors,
    open_json,
    repeated_key,
)
from shardbeam.transforms.formats.json_text import Excerpt, TextInMemory, TextOnDisk, whole
from shardbeam.transforms.formats.names import escape_key, key_problem
from shardbeam.transforms.formats.parsing.json_array import JsonArray, array_of, cut_array
from shardbeam.transforms.formats.parsing.json_scan import ArrayOnDisk, scan_array
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.disk_file import UnreadableError

# Crowd annotations have ids beyond int32.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
ImageId = Int64 | str
_Pixels = (
    Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    | Annotated[float, msgspec.Meta(ge=0, le=2**31 - 1, multiple_of=1)]
)

# Numbers as they are written; longer ones are no ids that are numbers.
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)
ABSENT = msgspec.Raw()
# The beginning of a file that shows whether it is a list of results.
_HEAD_BYTES = 4_096
_SECTIONS = ("images", "annotations", "categories")
# COCO's files of test images hold these sections, and no annotations.
_IMAGE_INFO_SECTIONS = frozenset({"info", "licenses", "images", "categories"})


class CocoImage(msgspec.Struct, gc=False):
    """An entry of `images`."""

    id: ImageId
    file_name: str
    width: _Pixels | None = None
    height: _Pixels | None = None


# Takes the position of an annotation, and the decoded annotations from there on.
Keep = Callable[[int, Sequence["CocoAnnotation"]], None]
Annotations = JsonArray | ArrayOnDisk
T = TypeVar("T")
ImageT = TypeVar("ImageT", bound=CocoImage)


class CocoCategory(msgspec.Struct, gc=False):
    """An entry of `categories`."""

    id: Int64
    name: str
    # Only compared with the names of categories.
    supercategory: object = None
    # In panoptic files: whether the category has countable objects.
    isthing: bool | int | None = None
    # In keypoints files: the names of the keypoints.
    keypoints: msgspec.Raw = ABSENT
    # Lines between keypoints: pairs of their numbers, from 1.
    skeleton: msgspec.Raw = ABSENT


class CocoAnnotation(msgspec.Struct, gc=False, omit_defaults=True):
    """An entry of `annotations`."""

    image_id: ImageId
    id: Int64 | None = None
    category_id: Int64 | None = None
    bbox: list[float] | None = None
    area: float | None = None
    iscrowd: bool | int | None = None
    caption: str | None = None
    # Decoded only where a setting needs them.
    segmentation: msgspec.Raw = ABSENT
    keypoints: msgspec.Raw = ABSENT
    # Where CVAT writes by how much a box is turned.
    attributes: msgspec.Raw = ABSENT
    # In panoptic files only.
    segments_info: msgspec.Raw = ABSENT
    # Not read from here, only known to `_has_all_members`.
    file_name: msgspec.Raw = ABSENT
    num_keypoints: msgspec.Raw = ABSENT


class _Document(msgspec.Struct, Generic[ImageT]):
    images: list[ImageT] | None = None
    categories: list[CocoCategory] | None = None


class _Owner(msgspec.Struct, gc=False):
    image_id: ImageId


_sections_decoder = JsonDecoder(dict[str, msgspec.Raw])
_entries_decoder = JsonDecoder(list[msgspec.Raw] | None)
# Some tools write numbers as texts, or ids as `1.0`.
_owner_decoder = JsonDecoder(_Owner, strict=False)
_block_decoder = JsonDecoder(list[CocoAnnotation])
_lax_block_decoder = JsonDecoder(list[CocoAnnotation], strict=False)
_block_encoder = msgspec.json.Encoder()


class CocoFile(Generic[ImageT]):
    """A COCO file whose annotations are still text.

    A file of more than 256 MB stays on disk; a shorter one is in memory as a whole.

    Attributes:
        uri: The file.
        images: Its images.
        annotations: Its annotations, as JSON text.
        categories: `{position in the file: category}`, with the first category of each id.
        names: `{category id: its name}`. None, for annotations without a category, is never a key.
    """

    def __init__(self, uri: str, *, storage: Storage, image_type: type[ImageT]) -> None:
        """Reads the file.

        Raises:
            InputError: The file cannot be read, is not JSON, has no `images`, has a malformed image
                or category, repeats a key, or gives two categories one id.
        """
        self.uri = uri
        self._image_type = image_type
        with explain_errors(uri):
            content = open_json(uri, storage=storage)
            rest, annotations = _cut_annotations(content, uri=uri)

        if problem := describe_results(rest.data[:_HEAD_BYTES]):
            raise InputError(uri=uri, place="$", problem=problem)

        def decode(decoder: JsonDecoder[T]) -> T:
            return decode_json(rest.data, decoder=decoder, uri=uri, places=rest)

        sections = decode(_sections_decoder)
        self._check_keys(rest.data, place="$")
        # Most of the rest are the images; they are counted while they are checked.
        images_bytes = len(memoryview(sections.get("images", ABSENT)))
        counters.annotation_bytes.add(len(rest.data) - images_bytes)
        document: _Document[ImageT] = decode(
            JsonDecoder(_Document[image_type], strict=False)  # type: ignore[valid-type]  # mypy takes it for a value.
        )
        # A section that is `null` counts as missing.
        self._found = [
            name for name, text in sections.items() if bytes(memoryview(text)[:5]) != b"null"
        ]
        self.require("images")
        self.images: Sequence[ImageT] = document.images or ()
        if annotations is None:
            annotations = array_of(self._entries(sections, "annotations"))
        self.annotations: Annotations = annotations
        self.categories: dict[int, CocoCategory] = {}
        self.names: dict[int | None, str] = {}
        # {position of an image, or name of a category: lone surrogates in its texts}
        self._lone_surrogates: dict[int | str, int] = {}
        image_texts = self._entries(sections, "images")
        for index, text in _count_bytes(image_texts, size_bytes=images_bytes):
            self._check_keys(text, place=f"$.images[{index}]")
            if lone := count_replaced(text):
                self._lone_surrogates[index] = lone
        texts = self._entries(sections, "categories")
        for index, category in enumerate(document.categories or ()):
            self._check_keys(texts[index], place=f"$.categories[{index}]")
            if lone := count_replaced(texts[index]):
                self._lone_surrogates[category.name] = lone
            if category.id not in self.names:
                self.categories[index] = category
            name = self.names.setdefault(category.id, category.name)
            if name != category.name:
                raise InputError(
                    uri=uri,
                    place=f"$.categories[{index}].id",
                    problem=f"{category.name!r} has id {category.id}, which is {name!r}'s",
                )

    def _entries(self, sections: Mapping[str, msgspec.Raw], name: str) -> Sequence[msgspec.Raw]:
        section, place = sections.get(name, msgspec.Raw(b"null")), f"$.{name}"
        return decode_json(section, decoder=_entries_decoder, uri=self.uri, place=place) or ()

    def _check_keys(self, text: bytes | msgspec.Raw, *, place: str) -> None:
        key = repeated_key(text)
        if key is not None:
            raise InputError(uri=self.uri, place=place, problem=f"the key {key!r} is given twice")

    @property
    def is_image_info(self) -> bool:
        """Whether the file lists images and has no annotations, as for COCO's test images."""
        return set(self._found) <= _IMAGE_INFO_SECTIONS

    def is_dummy(self, category: CocoCategory) -> bool:
        """Whether a category is the dummy with id 0 that Roboflow's exports begin with.

        It has the supercategory `none`, and is the supercategory of all others.
        """
        if category.id != 0 or category.supercategory != "none":
            return False
        others = [each for each in self.categories.values() if each.id != 0]
        return bool(others) and all(each.supercategory == category.name for each in others)

    def require(self, *names: str) -> None:
        """Checks that the file has all sections with these names.

        Raises:
            InputError: The file lacks one of them.
        """
        if not set(names) <= set(self._found):
            missing = [name for name in _SECTIONS if name not in self._found]
            names_found = sorted(self._found)[:20] or ["none"]
            found = [name if name.isprintable() else repr(name) for name in names_found]
            raise InputError(
                uri=self.uri,
                place="$",
                problem="expected the sections images, annotations and categories of COCO; "
                f"missing: {', '.join(missing)}; found: {', '.join(found)}",
            )

    def decode(self, index: int, *, decoder: JsonDecoder[T]) -> T:
        """Decodes one annotation.

        Raises:
            InputError: It is not what `decoder` expects.
        """
        place = f"$.annotations[{index}]"
        return decode_json(self.annotations[index], decoder=decoder, uri=self.uri, place=place)

    def read_rows(self, rows: Sequence[int]) -> Iterator[tuple[bytes, CocoAnnotation | None]]:
        """Reads annotations, given by their positions.

        Yields:
            The text of each, and the annotation; None where one of them has an unexpected form, so
            that each has to be decoded by itself.
        """
        texts = self.annotations.texts(rows)
        block = b"[%b]" % b",".join(texts)
        items: Sequence[CocoAnnotation | None] | None = _decode_block(block) or _decode_block(
            block, decoder=_lax_block_decoder
        )
        yield from zip(texts, items or [None] * len(rows), strict=True)

    def entries(
        self,
        annotate: Callable[[ImageT, Sequence[int]], ImageAnnotations],
        *,
        key_of: Callable[[ImageT], str],
        join_of: Callable[[str], str],
        file_index: int,
        keep: Keep | None = None,
    ) -> Iterator[AnnotationEntry]:
        """Makes an entry for each image, and for each image id that only annotations name.

        Image ids are compared as text. If images share an id, none of them can be used, unless they
        are one image, with one name and one size; then the first has the annotations.

        Args:
            annotate: Reads the annotations of an image, given by their positions. It is called
                for every image id, whether the image can be used or not. An `InputError` or
                `RejectedError` becomes the defect of the image's entry.
            key_of: Finds the image's key.
            join_of: Finds the text that a key is joined by.
            file_index: Number of the file among the source's annotation files.
            keep: Takes all annotations before `annotate` is called, block by block, without the
                blocks that hold one of an unexpected form, or a number as a text.

        Raises:
            InputError: An annotation has no image id; or the file has changed meanwhile.
        """
        # Details are written into the dataset, which must not depend on the input's folder.
        name = self.uri.rpartition("/")[2]
        owners = _Owners(self.images)
        rows = _Rows(
            self._find_owners(owners, keep), number=len(owners.firsts) + len(owners.unlisted)
        )
        firsts, unlisted = owners.firsts, owners.unlisted
        del owners

        twins = self._find_twins(firsts, key_of=key_of)
        for position, image in enumerate(self.images):
            key = key_of(image)
            entry = AnnotationEntry(
                key=join_of(key)
                if key_problem(key) is None
                else escape_key(key) or _id_key(str(image.id)),
                file_index=file_index,
                position=position,
                image_id=str(image.id),
            )
            own = rows[position]
            found, malformed = _annotations_or_defect(annotate, image, own)
            if found is not None and self._lone_surrogates:
                found = self._add_surrogates(found, position)
            if found is not None and firsts[position] != position:
                repeated = {**found.corrections, Correction.ENTRIES_MERGED.value: 1}
                found = msgspec.structs.replace(found, corrections=repeated)
            defect = self._unusable(position, key=key, twin=twins.get(position)) or malformed
            yield msgspec.structs.replace(
                entry,
                annotations=b"" if found is None or defect else encode_annotations(found),
                defect=defect and defect.reason,
                detail=f"{name}: {defect.detail}" if defect else "",
            )
        for position, image_id in enumerate(unlisted, len(self.images)):
            own = rows[position]
            # These annotations, too, show what kind of file it is.
            _annotations_or_defect(annotate, self._image_type(id=image_id, file_name=""), own)
            yield AnnotationEntry(
                key=_id_key(image_id),
                file_index=file_index,
                position=position,
                image_id=image_id,
                defect=Reason.UNKNOWN_IMAGE_ID,
                detail=f"{name}: $.annotations[{own[0]}]: `images` lists no image id {image_id}, "
                f"which {len(own)} annotations name",
            )

    def _find_owners(self, owners: _Owners, keep: Keep | None) -> array[int]:
        """Finds the image of each annotation, and checks the annotations' keys."""
        found = array("i")
        for positions, text in self.annotations.blocks():
            items = _decode_block(text)
            counters.annotation_bytes.add(len(text))
            if keep is not None and items is not None:
                keep(positions.start, items)
            if items is None:
                items = _decode_block(text, decoder=_lax_block_decoder)
            if items is not None and _has_all_members(items, text):
                found.extend([owners[item.image_id] for item in items])
                continue
            texts = self.annotations.texts(positions)
            for index, text in zip(positions, texts, strict=True):
                place = f"$.annotations[{index}]"
                item: _Owner | CocoAnnotation = (
                    decode_json(text, decoder=_owner_decoder, uri=self.uri, place=place)
                    if items is None
                    else items[index - positions.start]
                )
                self._check_keys(text, place=place)
                found.append(owners[item.image_id])
        return found

    def _add_surrogates(self, found: ImageAnnotations, position: int) -> ImageAnnotations:
        """Adds the lone surrogates in the image's own entry and in the names of its classes."""
        labels = [item.label for item in (*found.objects, *found.stuff)]
        labels += [segment.label for segment in found.segments]
        texts: list[int | str] = [position, *found.labels, *labels]
        corrections = Counter(found.corrections)
        corrections[Correction.LONE_SURROGATE_REPLACED.value] += sum(
            self._lone_surrogates.get(text, 0) for text in texts
        )
        return msgspec.structs.replace(found, corrections=dict(sorted((+corrections).items())))

    def _find_twins(
        self, firsts: Sequence[int], *, key_of: Callable[[ImageT], str]
    ) -> dict[int, int]:
        """Finds images that share their id with another image, of another name or size.

        Returns:
            `{position of an image: position of another one with its id}`
        """
        groups: dict[int, list[int]] = {}
        for position, first in enumerate(firsts):
            if first != position:
                groups.setdefault(first, [first]).append(position)
        twins: dict[int, int] = {}
        for positions in groups.values():
            images = [self.images[position] for position in positions]
            names = set(map(key_of, images))
            # An unknown size contradicts none.
            sizes = {(each.width, each.height) for each in images if each.width and each.height}
            if max(len(names), len(sizes)) > 1:
                twins.update(zip(positions, [*positions[1:], positions[0]], strict=True))
        return twins

    def _unusable(self, position: int, *, key: str, twin: int | None) -> RejectedError | None:
        place = f"$.images[{position}]"
        problem = key_problem(key)
        if problem is not None:
            return RejectedError(Reason.UNREADABLE_NAME, f"{place}: file_name: {problem}")
        if twin is None:
            return None
        image, other = self.images[position], self.images[twin]
        return RejectedError(
            Reason.DUPLICATE_IMAGE_ID,
            f"{place}: {other.file_name!r} ($.images[{twin}]) has the image id {image.id}, too, "
            "and nobody knows whose its annotations are: give each image its own id",
        )


def describe_results(head: bytes) -> str:
    """Describes a list of results, such as a model's, by the beginning of its file.

    The format: https://cocodataset.org/#format-results.

    Returns:
        What it is, and the fix; empty if it is something else.
    """
    if not head.lstrip().startswith(b"[") or b'"image_id"' not in head:
        return ""
    return (
        "a list of results, without the images and categories that it numbers: name the file with "
        "images, annotations and categories instead; to build a dataset of the results, put them "
        "in the place of its annotations"
    )


def _count_bytes(
    texts: Sequence[msgspec.Raw], *, size_bytes: int
) -> Iterator[tuple[int, msgspec.Raw]]:
    """Yields texts with their numbers, and counts their bytes on the way."""
    counted = 0
    for index, text in enumerate(texts):
        yield index, text
        if index % BLOCK == 0 or index == len(texts) - 1:
            # Each text counts for the same share, because their lengths hardly differ.
            passed = size_bytes * (index + 1) // len(texts)
            counters.annotation_bytes.add(passed - counted)
            counted = passed


def _cut_annotations(
    content: bytes | TextOnDisk, *, uri: str
) -> tuple[Excerpt, Annotations | None]:
    """Cuts the annotations out, which stay text: decoded, they take over twice the file's size."""
    if isinstance(content, TextOnDisk):
        return scan_array(content, key="annotations", uri=uri)
    return cut_array(content, key="annotations", entry_type=_Owner) or (
        whole(TextInMemory(content)),
        None,
    )


class _Owners(dict[ImageId, int]):
    """`{image id: position of the first image that has it}`; ids are compared as text.

    Ids that only annotations name get positions after those of the images.

    Attributes:
        firsts: The position of the first image with the same id, for each image.
        unlisted: The ids that only annotations name.
    """

    def __init__(self, images: Iterable[CocoImage]) -> None:
        super().__init__()
        self.unlisted: list[str] = []
        self.firsts = array("i")
        for position, image in enumerate(images):
            self.firsts.append(self.setdefault(_comparable(image.id), position))

    def __missing__(self, image_id: ImageId) -> int:
        comparable = _comparable(image_id)
        if comparable not in self:
            self[comparable] = len(self.firsts) + len(self.unlisted)
            self.unlisted.append(str(image_id))
        # A text may be written like a number.
        owner = self[image_id] = self[comparable]
        return owner


def _comparable(image_id: ImageId) -> ImageId:
    """Returns one value for ids whose texts are equal, such as 7 and "7"."""
    is_number = isinstance(image_id, str) and _DECIMAL.fullmatch(image_id)
    return int(image_id) if is_number else image_id


class _Rows:
    """The positions of each image's annotations.

    Args:
        owners: The position of the image of each annotation.
        number: Number of images.
    """

    def __init__(self, owners: array[int], *, number: int) -> None:
        found = np.asarray(owners, np.int32)
        self._rows = np.argsort(found, kind="stable").astype(np.int32)
        self._ends = np.cumsum(np.bincount(found, minlength=number))

    def __getitem__(self, position: int) -> list[int]:
        begin = self._ends[position - 1] if position else 0
        rows: list[int] = self._rows[begin : self._ends[position]].tolist()
        return rows


def _decode_block(
    text: bytes, *, decoder: JsonDecoder[list[CocoAnnotation]] = _block_decoder
) -> list[CocoAnnotation] | None:
    """Decodes an array of annotations; returns None where one has an unexpected form."""
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _has_all_members(items: Sequence[CocoAnnotation], text: bytes) -> bool:
    """Returns whether annotations hold all that is in their text; then no key is there twice.

    The decoder drops unknown keys, nulls, and the first of two members with one key. So encoding
    the annotations again gives fewer quotes if anything was dropped.
    """
    # A quote may be written as `\u0022`, which is encoded as one.
    if rb"\u" in text:
        return False
    return _block_encoder.encode(items).count(b'"') == text.count(b'"')


def _annotations_or_defect(
    annotate: Callable[[ImageT, Sequence[int]], ImageAnnotations],
    image: ImageT,
    rows: Sequence[int],
) -> tuple[ImageAnnotations | None, RejectedError | None]:
    try:
        return annotate(image, rows), None
    except RejectedError as error:
        return None, error
    except UnreadableError:
        raise
    except InputError as error:
        detail = f"{error.place}: {error.problem}"
        return None, RejectedError(Reason.ANNOTATION_MALFORMED, detail)


def _id_key(image_id: str) -> str:
    return f"image_id={escape_key(image_id)}"
