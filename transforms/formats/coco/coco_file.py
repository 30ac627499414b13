"""A COCO file: its images, its categories, the texts of its annotations; an entry for each image.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Generic, TypeAlias, TypeVar

import msgspec
import numpy as np

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.counters import BLOCK, counters
from shardbeam.transforms.core.errors import (
    DECODING_ERRORS,
    InputError,
    RejectedError,
    UnreadableError,
)
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import AnnotationEntry, ImageAnnotations, encode_annotations
from shardbeam.transforms.formats.annotation_file import (
    count_replaced,
    decode_json,
    explain_errors,
    repeated_key,
)
from shardbeam.transforms.formats.names import escape_key, key_problem
from shardbeam.transforms.formats.parsing.json_sections import Entries, find_sections, open_json
from shardbeam.transforms.storage.base import Storage

# Crowd annotations have ids beyond int32.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
ImageId = Int64 | str
_Pixels = (
    Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    | Annotated[float, msgspec.Meta(ge=0, le=2**31 - 1, multiple_of=1)]
)

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


class CocoAnnotation(msgspec.Struct, gc=False):
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


# Some tools write numbers as texts, or ids as `1.0`.
_category_decoder = JsonDecoder(CocoCategory, strict=False)


class CocoFile(Generic[ImageT]):
    """A COCO file whose annotations are still text: decoded, they take several times its size.

    A file of more than 512 MiB stays on disk; a shorter one is in memory as a whole.

    Attributes:
        uri: The file.
        image_type: The type of its images.
        images: Its images.
        annotations: Its annotations, as JSON text.
        categories: `{position in the file: category}`, with the first category of each id.
        names: `{category id: its name}`. None, for annotations without a category, is never a key.
        lone_surrogates: `{position of an image, or name of a category: lone surrogates in its
            texts}`.
    """

    def __init__(self, uri: str, *, storage: Storage, image_type: type[ImageT]) -> None:
        """Reads the file.

        Raises:
            InputError: The file cannot be read, is not JSON, has no `images`, has a malformed image
                or category, repeats a key, or gives two categories one id.
        """
        self.uri = uri
        self.image_type = image_type
        with explain_errors(uri):
            text = open_json(uri, storage=storage)
            head = text.read(0, min(_HEAD_BYTES, text.size_bytes))
            if problem := describe_results(head):
                raise InputError(uri=uri, place="$", problem=problem)
            self._sections = find_sections(text, arrays=_SECTIONS, uri=uri)
        self.require("images")
        counters.annotation_bytes.add(
            text.size_bytes - sum(each.size_bytes for each in self._sections.values() if each)
        )
        self.annotations = self._sections.get("annotations") or Entries()
        self.lone_surrogates: dict[int | str, int] = {}
        self.images: list[ImageT] = []
        for index, entry, image in self.decode_all("images", JsonDecoder(image_type, strict=False)):
            self.images.append(image)
            if lone := count_replaced(entry):
                self.lone_surrogates[index] = lone
        self.categories: dict[int, CocoCategory] = {}
        self.names: dict[int | None, str] = {}
        for index, entry, category in self.decode_all("categories", _category_decoder):
            if lone := count_replaced(entry):
                self.lone_surrogates[category.name] = lone
            if category.id not in self.names:
                self.categories[index] = category
            name = self.names.setdefault(category.id, category.name)
            if name != category.name:
                raise InputError(
                    uri=uri,
                    place=f"$.categories[{index}].id",
                    problem=f"{category.name!r} has id {category.id}, which is {name!r}'s",
                )

    def decode_all(
        self, section: str, decoder: JsonDecoder[T]
    ) -> Iterator[tuple[int, bytes | msgspec.Raw, T]]:
        """Decodes each entry of a section once, and checks that it has no key twice.

        Yields:
            The position of the entry, its text, and the entry.

        Raises:
            InputError: An entry is not what `decoder` expects, or has a key twice.
        """
        decode = decoder.decode
        for index, text in _count_bytes(self._sections.get(section) or Entries()):
            try:
                item = decode(text)
            except DECODING_ERRORS:
                place = f"$.{section}[{index}]"
                item = decode_json(text, decoder=decoder, uri=self.uri, place=place)
            if (key := repeated_key(text)) is not None:
                place, problem = f"$.{section}[{index}]", f"the key {key!r} is given twice"
                raise InputError(uri=self.uri, place=place, problem=problem)
            yield index, text, item

    @property
    def is_image_info(self) -> bool:
        """Whether the file lists images and has no annotations, as for COCO's test images."""
        return self._sections.keys() <= _IMAGE_INFO_SECTIONS

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
        if not set(names) <= set(self._sections):
            missing = [name for name in _SECTIONS if name not in self._sections]
            names_found = sorted(self._sections)[:20] or ["none"]
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
        (text,) = self.annotations.texts([index])
        place = f"$.annotations[{index}]"
        return decode_json(text, decoder=decoder, uri=self.uri, place=place)


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


def _count_bytes(entries: Entries) -> Iterator[tuple[int, bytes | msgspec.Raw]]:
    """Yields entries with their positions, and counts their bytes on the way."""
    counted, number = 0, len(entries)
    for index, text in enumerate(entries):
        yield index, text
        if index % BLOCK == 0 or index == number - 1:
            # Each text counts for the same share, because their lengths hardly differ.
            passed = entries.size_bytes * (index + 1) // number
            counters.annotation_bytes.add(passed - counted)
            counted = passed


# Makes an entry for each image of a COCO file, with the annotations that name it.

# Reads the annotations of an image, and counts the outlines that are not written.
Annotate: TypeAlias = Callable[[ImageT, Sequence[int]], tuple[ImageAnnotations, int]]

# Numbers as they are written; longer ones are no ids that are numbers.
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


class _Owner(msgspec.Struct, gc=False):
    image_id: ImageId


# Some tools write ids as `1.0`.
_owner_decoder = JsonDecoder(_Owner, strict=False)


def read_entries(
    file: CocoFile[ImageT],
    annotate: Annotate[ImageT],
    *,
    key_of: Callable[[ImageT], str],
    join_of: Callable[[str], str],
    file_index: int,
) -> Iterator[AnnotationEntry]:
    """Makes an entry for each image, and for each image id that only annotations name.

    Image ids are compared as text. If images share an id, none of them can be used, unless they
    are one image, with one name and one size; then the first has the annotations.

    Args:
        file: The file.
        annotate: Reads the annotations of an image, given by their positions, and counts the
            outlines that are not written (`AnnotationEntry.outlines`). It is called for every
            image id, whether the image can be used or not. An `InputError` or `RejectedError`
            becomes the defect of the image's entry.
        key_of: Finds the image's key.
        join_of: Finds the text that a key is joined by.
        file_index: Number of the file among the source's annotation files.

    Raises:
        InputError: An annotation has no image id; or the file has changed meanwhile.
    """
    # Details are written into the dataset, which must not depend on the input's folder.
    name = file.uri.rpartition("/")[2]
    owners = _Owners(file.images)
    found = array("i")
    for _, _, item in file.decode_all("annotations", _owner_decoder):
        found.append(owners[item.image_id])
    rows = _Rows(found, number=len(owners.firsts) + len(owners.unlisted))
    firsts, unlisted = owners.firsts, owners.unlisted
    del owners

    twins = _find_twins(file, firsts, key_of=key_of)
    for position, image in enumerate(file.images):
        key = key_of(image)
        problem = key_problem(key)
        own = rows[position]
        said, outlines, malformed = _annotations_or_defect(annotate, image, own)
        if said is not None and file.lone_surrogates:
            said = _add_surrogates(file, said, position)
        if said is not None and firsts[position] != position:
            repeated = {**said.corrections, Correction.ENTRIES_MERGED.value: 1}
            said = msgspec.structs.replace(said, corrections=repeated)
        defect = malformed
        if problem is not None:
            detail = f"$.images[{position}]: file_name: {problem}"
            defect = RejectedError(Reason.UNREADABLE_NAME, detail)
        elif position in twins:
            defect = _shared_id(file, position, twins[position])
        yield AnnotationEntry(
            key=join_of(key) if problem is None else escape_key(key) or _id_key(str(image.id)),
            file_index=file_index,
            position=position,
            image_id=str(image.id),
            annotations=b"" if said is None or defect else encode_annotations(said),
            defect=None if defect is None else defect.reason,
            detail=f"{name}: {defect.detail}" if defect else "",
            outlines=outlines,
        )
    for position, image_id in enumerate(unlisted, len(file.images)):
        own = rows[position]
        # These annotations, too, show what kind of file it is.
        _annotations_or_defect(annotate, file.image_type(id=image_id, file_name=""), own)
        yield AnnotationEntry(
            key=_id_key(image_id),
            file_index=file_index,
            position=position,
            image_id=image_id,
            defect=Reason.UNKNOWN_IMAGE_ID,
            detail=f"{name}: $.annotations[{own[0]}]: `images` lists no image id {image_id}, "
            f"which {len(own)} annotations name",
        )


def _add_surrogates(
    file: CocoFile[ImageT], found: ImageAnnotations, position: int
) -> ImageAnnotations:
    """Adds the lone surrogates in the image's own entry and in the names of its classes."""
    labels = [item.label for item in (*found.objects, *found.stuff)]
    labels += [segment.label for segment in found.segments]
    texts: list[int | str] = [position, *found.labels, *labels]
    corrections = Counter(found.corrections)
    corrections[Correction.LONE_SURROGATE_REPLACED.value] += sum(
        file.lone_surrogates.get(text, 0) for text in texts
    )
    return msgspec.structs.replace(found, corrections=dict(sorted((+corrections).items())))


def _find_twins(
    file: CocoFile[ImageT], firsts: Sequence[int], *, key_of: Callable[[ImageT], str]
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
        images = [file.images[position] for position in positions]
        names = set(map(key_of, images))
        # An unknown size contradicts none.
        sizes = {(each.width, each.height) for each in images if each.width and each.height}
        if max(len(names), len(sizes)) > 1:
            twins.update(zip(positions, [*positions[1:], positions[0]], strict=True))
    return twins


def _shared_id(file: CocoFile[ImageT], position: int, twin: int) -> RejectedError:
    image, other = file.images[position], file.images[twin]
    return RejectedError(
        Reason.DUPLICATE_IMAGE_ID,
        f"$.images[{position}]: {other.file_name!r} ($.images[{twin}]) has the image id "
        f"{image.id}, too, and nobody knows whose its annotations are: give each image its own "
        "id",
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


def _annotations_or_defect(
    annotate: Annotate[ImageT], image: ImageT, rows: Sequence[int]
) -> tuple[ImageAnnotations | None, int, RejectedError | None]:
    try:
        annotations, outlines = annotate(image, rows)
        return annotations, outlines, None
    except RejectedError as error:
        return None, 0, error
    except UnreadableError:
        raise
    except InputError as error:
        detail = f"{error.place}: {error.problem}"
        return None, 0, RejectedError(Reason.ANNOTATION_MALFORMED, detail)


def _id_key(image_id: str) -> str:
    return f"image_id={escape_key(image_id)}"
