"""The sections of a COCO file: images, annotations, categories.

The format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Generic

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.annotation_file import decode_json, read_annotation_file
from shardbeam.transforms.formats.coco_images import ImageT, Int64
from shardbeam.transforms.formats.coco_tables import NOTHING
from shardbeam.transforms.storage.base import Storage


class CocoCategory(msgspec.Struct, gc=False):
    """An entry of `categories`, as it is there.

    Attributes:
        id: Its id.
        name: Its name.
        isthing: In panoptic files: whether it has countable objects.
        keypoints: In keypoints files: the JSON list of its keypoints' names.
    """

    id: Int64
    name: str
    isthing: bool | int | None = None
    keypoints: msgspec.Raw = NOTHING


class _Document(msgspec.Struct, Generic[ImageT]):
    images: list[ImageT] | None = None
    annotations: list[msgspec.Raw] | None = None
    categories: list[CocoCategory] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CocoSections(Generic[ImageT]):
    """The sections of a COCO file.

    Attributes:
        uri: The file.
        images: The images.
        annotations: The annotations, as text at first: decoded all at once, those of a file
            without segmentations take over twice the file's size.
        categories: The categories.
        found: Names of all sections, where one of these three is missing.
    """

    uri: str
    images: Sequence[ImageT]
    annotations: Sequence[msgspec.Raw]
    categories: Sequence[CocoCategory]
    found: Sequence[str] = ()

    def require(self, *names: str) -> None:
        """Checks that the file has some of the sections.

        Raises:
            InputError: It lacks one.
        """
        if self.found and not set(names) <= set(self.found):
            missing = [name for name in _Document.__struct_fields__ if name not in self.found]
            raise InputError(
                uri=self.uri,
                place="$",
                problem="expected the sections images, annotations and categories of COCO; "
                f"missing: {', '.join(missing)}; found: {', '.join(self.found[:20])}",
            )


_sections_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_sections(uri: str, *, storage: Storage, image_type: type[ImageT]) -> CocoSections[ImageT]:
    """Reads a COCO file's sections.

    Raises:
        InputError: The file cannot be read, is not JSON, has no `images`, or an image or a
            category is not as it should be.
    """
    data = read_annotation_file(uri, storage=storage)
    decoder = msgspec.json.Decoder(_Document[image_type])  # type: ignore[valid-type]  # It is one.
    document: _Document[ImageT] = decode_json(data, decoder=decoder, uri=uri)
    found: Sequence[str] = ()
    if None in (document.images, document.annotations, document.categories):
        names = decode_json(data, decoder=_sections_decoder, uri=uri)
        # `null` is as good as nothing; a file may have no section at all.
        found = sorted(name for name, text in names.items() if bytes(text) != b"null") or ("none",)
    sections = CocoSections(
        uri=uri,
        images=document.images or (),
        annotations=document.annotations or (),
        categories=document.categories or (),
        found=found,
    )
    sections.require("images")
    return sections


def category_names(categories: Sequence[CocoCategory], *, uri: str) -> dict[int | None, str]:
    """Gives each category's name: `{id: name}`.

    Raises:
        InputError: Two categories have one id.
    """
    # Annotations without a category look None up.
    names: dict[int | None, str] = {}
    for index, category in enumerate(categories):
        name = names.setdefault(category.id, category.name)
        if name != category.name:
            raise InputError(
                uri=uri,
                place=f"$.categories[{index}].id",
                problem=f"{category.name!r} has id {category.id}, which is {name!r}'s",
            )
    return names
