"""A COCO file: its images, categories and the texts of its annotations.

The format: https://cocodataset.org/#format-data (object detection, keypoint detection, image
captioning, stuff segmentation).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Generic, TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.counters import BLOCK, counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import (
    DECODING_ERRORS,
    count_replaced,
    decode_json,
    explain_errors,
    repeated_key,
)
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
