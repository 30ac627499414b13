"""LVIS: objects of very many categories, and which categories annotators looked for in an image.

The format: https://www.lvisdataset.org/dataset. It is COCO's without crowds, with two more lists
in each entry of `images`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.box_formats import BoxFormatKey, BoxUnitsKey
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import AnnotationEntry, Category, ImageAnnotations
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    value_list,
)
from shardbeam.transforms.formats.base import Kind, Match, Place, Role
from shardbeam.transforms.formats.coco.annotations import AnnotationReader
from shardbeam.transforms.formats.coco.coco_file import CocoFile, CocoImage, Int64, read_entries
from shardbeam.transforms.formats.coco.sniff import CocoBoxes, recognize_coco
from shardbeam.transforms.formats.names import normalize_key
from shardbeam.transforms.storage.base import Storage

if TYPE_CHECKING:
    from shardbeam.transforms.formats.recognition import Folder, Recognized

# Lists in an image's entry. The features have the same names below `image/`.
_LISTS = ("neg_category_ids", "not_exhaustive_category_ids")

# COCO's images of 2014 and 2017 are the same images with two names.
_COCO_NAME = re.compile(r"(?:.*/)?(?:COCO_(?:train|val|test)2014_)?(\d{12}\.jpg)")
# The scheme and the host, before the folder of the split.
_URL_BASE = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*/")


class LvisImage(CocoImage, gc=False):
    """An entry of `images`.

    Attributes:
        file_name: The image's path below the root; missing in v1.
        coco_url: Its download address, which ends with the path.
        neg_category_ids: Ids of categories that annotators looked for and did not find.
        not_exhaustive_category_ids: Ids of categories of which only some objects are annotated.
    """

    file_name: str = ""
    coco_url: str = ""
    neg_category_ids: list[Int64] | None = None
    not_exhaustive_category_ids: list[Int64] | None = None


class LvisFormat(CocoBoxes, frozen=True, kw_only=True):
    """LVIS v0.5 and v1.

    The images are COCO's. An image's key is its path below the root. Files with COCO's names (12
    digits, with or without `COCO_val2014_`) are joined by the digits alone: v0.5 names the files of
    2014, v1 (by `coco_url`) those of 2017 with their folder, and the root may be that folder or
    the one above it. All other names are joined whole.

    Attributes:
        images: Root folder of the images.
        annotations: The JSON files.
        box_format: What the four numbers of `bbox` mean.
        box_units: The units of boxes, and with them of polygons and areas.
        _masks: Whether objects carry their segmentation.
    """

    SUMMARY = "LVIS JSON: boxes and masks, and which categories are not in an image"
    FILES = ("annotations",)
    UNANNOTATED = "drop"

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    annotations: Annotated[list[Location], msgspec.Meta(min_length=1), named("LVIS JSON file")]
    match: Match = "path"
    box_format: BoxFormatKey = "xywh"
    box_units: BoxUnitsKey = "px"
    _masks: bool = False

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes JSON files that list the categories which annotators looked for."""
        return recognize_coco(folder, is_lvis=True)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Objects, and their masks if these are wanted."""
        return frozenset({Kind.DETECTION, Kind.INSTANCE_MASKS} if self._masks else {Kind.DETECTION})

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares the two lists of categories."""
        specs = (
            value_list(f"image/{name}", FeatureKind.INT64, FeatureRole.LABEL) for name in _LISTS
        )
        return [*map(ExtraFeature, specs)]

    def place(self, path: str, *, root: int) -> Place:
        """Joins an image by COCO's digits, or by its path."""
        key = normalize_key(path)
        return Place(role=Role.IMAGE, key=key, join=_join_of(key))

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one JSON file; see `CocoFormat.read_annotations`."""
        file = CocoFile(self.annotations[file_index], storage=storage, image_type=LvisImage)
        reader = AnnotationReader(
            file, wanted=self.kinds, box_format=self.box_format, box_units=self.box_units
        )

        def annotate(image: LvisImage, rows: Sequence[int]) -> tuple[ImageAnnotations, int]:
            said, outlines = reader.annotate(image, rows)
            corrections = Corrections(said.corrections, said.changes, said.lost)
            values: dict[str, tuple[str, ...]] = {}
            for name in _LISTS:
                ids = dict.fromkeys(getattr(image, name) or ())
                known = tuple(file.names[each] for each in ids if each in file.names)
                values[f"image/{name}"] = known
                for each in ids:
                    if each not in file.names:
                        corrections.note(Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED, each)
            said = msgspec.structs.replace(said, values=values, **corrections.fields())
            return said, outlines

        yield from read_entries(
            file, annotate, key_of=_key_of, join_of=_join_of, file_index=file_index
        )
        yield from reader.categories()


def _key_of(image: LvisImage) -> str:
    # COCO's names contain no escapes, so the path is as in the URL.
    return normalize_key(image.file_name or _URL_BASE.sub("", image.coco_url, count=1))


def _join_of(key: str) -> str:
    coco_name = _COCO_NAME.fullmatch(key)
    return key if coco_name is None else coco_name[1]
