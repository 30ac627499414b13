"""Finds out how a source names its masks: which files are masks, and which image each belongs to.

Tools use folders (`images/a.jpg`, `masks/a.png`, also `train_masks/a.png`), endings or beginnings
of names (`a.jpg`, `a_mask.png`), or both.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shardbeam.transforms.formats.names import is_image_name, is_split_name, normalize_key

_IMAGE_WORDS = frozenset(
    {"image", "images", "img", "imgs", "jpegimages", "pngimages", "leftimg8bit", "input", "inputs"}
)
_VOC_FOLDERS = frozenset({"segmentationclass", "segmentationclasspng"})
_MASK_WORDS = _VOC_FOLDERS | {
    *("mask", "masks", "label", "labels", "annotation", "annotations", "annot", "ann", "target"),
    *("targets", "truth", "groundtruth", "gt", "gtfine", "gtcoarse", "segmentation", "semantic"),
    "trimaps",
}
# Words that say nothing beside one of the others: `ann_dir`, `ground_truth`, `png_masks`.
_FILLERS = frozenset({"dir", "png", "ground", "binary"})
_OBJECT_FOLDERS = frozenset({"segmentationobject", "segmentationobjectpng"})
_WORD = re.compile(r"[^\W_]+")
# SegNet's names of folders have no mark between their words.
_JOINED = re.compile(r"\A(train|val|test)(?=(annot|masks?|labels?)\Z)", re.IGNORECASE)
# Other pictures that Cityscapes has beside its masks.
_BESIDE_LABEL_IDS = ("_color", "_instanceIds", "_labelTrainIds", "_instanceTrainIds")


class Naming(NamedTuple):
    """How names of masks differ from those of their images.

    Attributes:
        image_end: Ending of an image's name without extension where its mask's has `mask_end`.
        mask_end: The ending that `image_end` replaces.
        image_start: Beginning of an image's name where its mask's name has `mask_start`.
        mask_start: The beginning that `image_start` replaces.
    """

    image_end: str = ""
    mask_end: str = ""
    image_start: str = ""
    mask_start: str = ""

    def is_mask(self, path: str) -> bool:
        """Whether a picture is a mask, by its folders or its name."""
        folders, stem = _split(path)
        return any(_read_folder(each)[0] for each in folders) or self._rename(stem) != stem

    def join_image(self, path: str) -> str:
        """Returns an image's path without its extension and without folders such as `images`."""
        folders, stem = _split(path)
        read = ((folder, *_read_folder(folder)) for folder in folders)
        return _join((folder if is_of_masks else rest for folder, is_of_masks, rest in read), stem)

    def join_mask(self, path: str) -> str:
        """Returns the text that joins a mask to its image; empty if it is another picture.

        Folders such as `masks` are left out, too.
        """
        folders, stem = _split(path)
        if self.mask_end.endswith("_labelIds") and stem.endswith(_BESIDE_LABEL_IDS):
            return ""
        return _join((_read_folder(folder)[1] for folder in folders), self._rename(stem))

    def may_rename(self, stem: str) -> bool:
        """Whether a name without extension begins and ends like those of masks."""
        return stem.startswith(self.mask_start) and stem.endswith(self.mask_end)

    def _rename(self, stem: str) -> str:
        core = stem.removeprefix(self.mask_start).removesuffix(self.mask_end)
        if not core or f"{self.mask_start}{core}{self.mask_end}" != stem:
            return stem
        return f"{self.image_start}{core}{self.image_end}"


# The most usual ways first.
_ENDINGS = (
    *(("", ""), ("", "_mask"), ("", "_L"), ("", "_segmentation"), ("", "_label"), ("", "_seg")),
    *(("", "_gt"), ("", "_labelIds"), ("", "-mask"), ("_sat", "_mask")),
    *(("_leftImg8bit", "_gtFine_labelIds"), ("_leftImg8bit", "_gtCoarse_labelIds")),
)
_BEGINNINGS = (("", "mask_"), ("image_", "mask_"), ("image_", "label_"), ("image_", "gt_"))
_NAMINGS = [
    *(Naming(*each) for each in _ENDINGS),
    *(Naming(image_start=image, mask_start=mask) for image, mask in _BEGINNINGS),
]
_MARK = re.compile(r"[\W_]")
# Masks whose names may show another ending.
_FIRST = 3


class Pairs(NamedTuple):
    """The images and masks that belong together by a naming.

    Attributes:
        naming: The naming.
        joins: `{text that joins: paths of the masks}` of the images with masks.
    """

    naming: Naming
    joins: dict[str, list[str]]


def find_pairs(paths: Sequence[str], *, masks: Iterable[str] | None = None) -> Pairs:
    """Finds the naming by which most images have a mask; none may have one.

    Args:
        paths: All images, or all images and masks if these have one root.
        masks: The masks, if they have another root.
    """
    listed = [path for path in paths if not holds_objects(path)]
    given = None if masks is None else [*masks]
    stems = [_split(path)[1] for path in (listed if given is None else given)]
    # Each naming takes a while for a million images, and none pairs more than this.
    most = len(listed) // 2 if given is None else min(len(listed), len(given))
    best = Pairs(Naming(), {})
    for naming in itertools.chain(_NAMINGS, _other_endings(listed, given)):
        if not any(map(naming.may_rename, stems)):
            # It pairs the same files as the naming by folders alone, which is the first.
            continue
        pairs = _pair(listed, given, naming=naming)
        if len(pairs.joins) > len(best.joins):
            best = pairs
        if len(best.joins) == most:
            break
    return best


def _pair(listed: Sequence[str], given: Sequence[str] | None, *, naming: Naming) -> Pairs:
    images, masks = _sort(listed, given, naming=naming)
    joins: defaultdict[str, list[str]] = defaultdict(list)
    for path in masks:
        joins[naming.join_mask(path)].append(path)
    named = {naming.join_image(path) for path in images} if joins else set()
    return Pairs(naming, {join: paths for join, paths in joins.items() if join in named})


def _sort(
    listed: Sequence[str], given: Sequence[str] | None, *, naming: Naming
) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the images and the masks."""
    if given is not None:
        return listed, given
    masks = {path for path in listed if naming.is_mask(path)}
    return [path for path in listed if path not in masks], sorted(masks)


def _other_endings(listed: Sequence[str], given: Sequence[str] | None) -> Iterator[Naming]:
    """Yields the endings by which the first masks in folders of their own differ from images."""
    naming = Naming()
    images, masks = _sort(listed, given, naming=naming)
    named = {naming.join_image(path) for path in images}
    for join in map(naming.join_mask, heapq.nsmallest(_FIRST, masks)):
        starts = [mark.start() for mark in _MARK.finditer(join) if join[: mark.start()] in named]
        if starts:
            yield Naming(mask_end=join[starts[-1] :])


def is_voc_folder(path: str) -> bool:
    """Whether a mask is in a folder in which Pascal VOC's colours are usual."""
    return any(folder.casefold() in _VOC_FOLDERS for folder in path.split("/")[:-1])


def holds_objects(path: str) -> bool:
    """Whether a picture is one of Pascal VOC's masks of objects."""
    return any(folder.casefold() in _OBJECT_FOLDERS for folder in path.split("/")[:-1])


def _split(path: str) -> tuple[list[str], str]:
    *folders, name = normalize_key(path).split("/")
    # Some tools write `a.jpg.png`.
    while is_image_name(name) and not name.startswith("."):
        name = name.rpartition(".")[0]
    return folders, name


def _join(folders: Iterable[str], stem: str) -> str:
    return "/".join([*filter(None, folders), stem])


@functools.lru_cache(maxsize=4096)
def _read_folder(name: str) -> tuple[bool, str]:
    """Returns whether a folder is one of masks, and its name without words that say what it holds.

    Beside such words only splits and numbers may stand: `train_masks`, but not `with_mask`.
    """
    words = _WORD.findall(_JOINED.sub(r"\1_", name))
    known = _IMAGE_WORDS | _MASK_WORDS
    rest = [word for word in words if word.casefold() not in known | _FILLERS]
    is_named = any(word.casefold() in known for word in words)
    if not is_named or not all(is_split_name(word) or word.isdigit() for word in rest):
        return False, name
    return any(word.casefold() in _MASK_WORDS for word in words), "_".join(rest)
