"""Decides by the first pictures whether one folder holds the masks of another, or asks."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.first_pictures import LookOfPairs, look_at_pairs
from shardbeam.transforms.formats.recognition import FOLDERS, Folder, Recognized
from shardbeam.transforms.formats.sibling_folders import find_siblings, find_twins, is_no_class

_DIGIT = re.compile(r"[0-9]")
# What `init` does with another answer to its question.
_OTHERWISE = {"image-folder": "reads folders of classes", "images": "reads pictures without labels"}


def doubt_masks(
    pairs: Sequence[tuple[str, str]], *, folder: Folder, are_side_by_side: bool, needs_size: bool
) -> str | None:
    """Looks at pairs of pictures whose names alone do not show that one is the other's mask.

    Args:
        pairs: `(image, mask)`, paths.
        folder: The folder that holds them.
        are_side_by_side: Whether both may be classes, because nothing says that one holds images.
        needs_size: Whether masks must have the sizes of their images.

    Returns:
        The question that only the user can answer; empty if they are masks. None if they are none.
    """
    look = look_at_pairs(pairs, files=folder.files)
    image, mask = pairs[0]
    if look is None:
        doubt = "neither these nor the next ones can be read"
    elif are_side_by_side and _are_classes(look):
        return None
    elif not look.masks.is_like_masks:
        doubt = f"it and the next ones have {look.masks.values:,} colours and few even areas"
    elif needs_size and look.other_size:
        doubt = look.other_size
    else:
        return ""
    return (
        f"is {mask} the mask of {image}? {doubt}; {_answers(folder, is_flat=not are_side_by_side)}"
    )


def _are_classes(look: LookOfPairs) -> bool:
    """Whether two folders hold pictures of one kind, and not photos and their masks."""
    are_alike = look.photos.is_gray or not look.masks.is_gray
    return look.photos.has_few_values or (are_alike and not look.masks.is_like_masks)


def ask_about_twins(folder: Folder) -> Recognized | None:
    """Asks about two folders with the same names if one looks like masks of the other."""
    twins = find_twins(folder.images)
    look = twins and look_at_pairs(twins.pairs, files=folder.files)
    if not twins or not look or look.other_size:
        return None
    sides = ((look.photos, look.masks), (look.masks, look.photos))
    fits = [
        masks.has_few_values and not (photos.is_gray and photos.has_few_values)
        for photos, masks in sides
    ]
    if sum(fits) != 1:
        return None
    names = [twins.first, twins.second]
    images, masks = names if fits[0] else names[::-1]
    image, mask = twins.pairs[0] if fits[0] else twins.pairs[0][::-1]
    sources = {
        split: {
            "images": folder.uri(posixpath.join(root, images)),
            "semantic_masks": folder.uri(posixpath.join(root, masks)),
        }
        for split, root in twins.roots.items()
    }
    answers = _answers(folder, is_flat=any(map(is_no_class, names)))
    return Recognized(
        what=counted(len(twins.pairs), "mask"),
        problem=f"is {mask} the mask of {image}? Both folders have the same names and sizes, and "
        f"{masks}/ has few colours; {answers}",
        sources=sources,
        rank=FOLDERS,
        asks=True,
    )


def _answers(folder: Folder, *, is_flat: bool) -> str:
    other = "images" if is_flat else "image-folder"
    command = f"`shardbeam init {shlex.quote(folder.root)} --format"
    return f"{command} masks` reads masks, {command} {other}` {_OTHERWISE[other]}"


def describe_classes(images: Iterable[str]) -> Iterator[str]:
    """Says that folders of images with masks are not read as classes, if they may be some."""
    siblings = find_siblings(images)
    # Names with digits are those of patients, places and videos.
    if siblings and not any(map(_DIGIT.search, siblings.classes)):
        yield (
            f"not read: the names of the folders {list_classes(siblings.classes)}, in case that "
            "these are classes"
        )
