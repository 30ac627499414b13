"""Panoptic segments: a COCO JSON file, and a folder of PNGs that it names.

The format: https://cocodataset.org/#format-data (panoptic segmentation).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    Category,
    ImageAnnotations,
    ImageRef,
    MaskRole,
    Segment,
)
from shardbeam.transforms.formats.annotation_file import decode_json_part
from shardbeam.transforms.formats.coco_images import (
    CocoImage,
    ImageId,
    ImageTable,
    Int64,
    UnusableImage,
)
from shardbeam.transforms.formats.coco_sections import category_names, read_sections
from shardbeam.transforms.formats.names import normalize_key
from shardbeam.transforms.storage.archives import expand_root, list_root
from shardbeam.transforms.storage.base import Storage


class _Segment(msgspec.Struct, gc=False):
    id: Int64
    category_id: Int64 | None = None
    iscrowd: bool | int | None = None


class _Annotation(msgspec.Struct, gc=False):
    file_name: str
    segments_info: list[_Segment]


class _Owner(msgspec.Struct, gc=False):
    image_id: ImageId
    file_name: str = ""


_annotation_decoder = msgspec.json.Decoder(_Annotation)
_owner_decoder = msgspec.json.Decoder(_Owner)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PanopticFile:
    """A parsed file of panoptic segments.

    Attributes:
        uri: The file.
        table: The images.
        categories: The categories, each id once.
        names: `{category id: its name}`.
        texts: `{image's position: (place, JSON text)}` of its annotation.
        repeats: How many annotations an image has beyond that.
        masks: The PNGs, by their path below their folder.
    """

    uri: str
    table: ImageTable[CocoImage]
    categories: Sequence[Category]
    names: Mapping[int | None, str]
    texts: Mapping[int, tuple[int, msgspec.Raw]]
    repeats: Mapping[int, int]
    masks: Mapping[str, ImageRef]

    def annotations(self) -> Iterator[ImageAnnotations | UnusableImage]:
        """Yields what is said about each image, in order; nothing where no annotation is."""
        for position, image in enumerate(self.table.images):
            if position not in self.texts:
                yield image.annotated()
                continue
            index, text = self.texts[position]
            try:
                yield self._annotations(position, index=index, text=text)
            except InputError as error:
                yield UnusableImage(Reason.ANNOTATION_MALFORMED, f"{error.place}: {error.problem}")

    def _annotations(
        self, position: int, *, index: int, text: msgspec.Raw
    ) -> ImageAnnotations | UnusableImage:
        place = f"$.annotations[{index}]"
        annotation = decode_json_part(text, decoder=_annotation_decoder, uri=self.uri, place=place)
        mask = self.masks.get(normalize_key(annotation.file_name))
        if mask is None:
            return UnusableImage(
                Reason.MASK_UNREADABLE,
                f"{place}.file_name: there is no {annotation.file_name!r} in panoptic_masks",
            )
        corrections: Counter[str] = Counter()
        corrections[Correction.DUPLICATE_ANNOTATION_DROPPED.value] = self.repeats.get(position, 0)
        segments: dict[int, Segment] = {}
        for item in annotation.segments_info:
            label = self.names.get(item.category_id)
            if label is None:
                corrections[Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED.value] += 1
            elif item.id in segments:
                corrections[Correction.DUPLICATE_SEGMENT_DROPPED.value] += 1
            else:
                segments[item.id] = Segment(
                    segment_id=item.id, label=label, is_crowd=bool(item.iscrowd)
                )
        return msgspec.structs.replace(
            self.table.images[position].annotated(),
            segments=tuple(segments.values()),
            masks={MaskRole.PANOPTIC: mask},
            corrections=dict(sorted((+corrections).items())),
        )


def list_masks(root: str) -> dict[str, ImageRef]:
    """Lists the PNGs of panoptic segments: `{path below the root: where it lies}`.

    Args:
        root: Their folder, or an archive of them.

    Raises:
        InputError: It cannot be listed.
    """
    return {normalize_key(path): file for uri in expand_root(root) for path, file in list_root(uri)}


def read_panoptic_file(
    uri: str, *, masks: Mapping[str, ImageRef], storage: Storage
) -> PanopticFile:
    """Reads a file of panoptic segments.

    Args:
        uri: The file.
        masks: The PNGs, as `list_masks` gives them.
        storage: Reads the file.

    Raises:
        InputError: The file cannot be read, is no file of panoptic segments, or names none of
            the PNGs.
    """
    sections = read_sections(uri, storage=storage, image_type=CocoImage)
    sections.require("annotations", "categories")
    names = category_names(sections.categories, uri=uri)
    table = ImageTable(sections.images)
    texts: dict[int, tuple[int, msgspec.Raw]] = {}
    repeats: Counter[int] = Counter()
    first_name = ""
    matched = 0
    for index, text in enumerate(sections.annotations):
        place = f"$.annotations[{index}]"
        owner = decode_json_part(text, decoder=_owner_decoder, uri=uri, place=place)
        if not owner.file_name:
            raise InputError(
                uri=uri,
                place=place,
                problem="expected file_name and segments_info; is this a file of panoptic "
                "segments?",
            )
        first_name = first_name or owner.file_name
        matched += normalize_key(owner.file_name) in masks
        position = table.count_annotation(owner.image_id, index)
        if position is None:
            continue
        if position in texts:
            repeats[position] += 1
        else:
            texts[position] = index, text
    if sections.annotations and not matched:
        listed = min(masks, default="")
        below = min((path for path in masks if path.endswith(f"/{first_name}")), default="")
        hint = f"; add /{below.removesuffix(f'/{first_name}')} to it" if below else ""
        raise InputError(
            uri=uri,
            place="$.annotations",
            problem=f"none of the {len(sections.annotations)} PNGs that it names is in "
            f"panoptic_masks: it names {first_name!r}, the folder holds "
            f"{repr(listed) if listed else 'no file'}{hint}",
        )
    categories: dict[int, Category] = {}
    for category in sections.categories:
        declared = Category(
            name=category.name,
            source_id=category.id,
            origin=uri,
            is_thing=category.isthing is None or bool(category.isthing),
        )
        categories.setdefault(category.id, declared)
    return PanopticFile(
        uri=uri,
        table=table,
        categories=list(categories.values()),
        names=names,
        texts=texts,
        repeats=repeats,
        masks=masks,
    )
