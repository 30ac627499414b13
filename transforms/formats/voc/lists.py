"""Finds the lists of ImageSets, which name the images of splits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shardbeam.configs.problem import did_you_mean
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.names import is_hidden
from shardbeam.transforms.formats.parsing.root_files import RootFiles, SplitList

# `trainval` repeats the two splits before it, so it is used only if both are missing.
_BOTH = "trainval"
_DEFAULT_SPLITS = ("train", "val", _BOTH, "test")
# Names of folders by their content, in lower case. They are left out when files are joined.
_IMAGE_FOLDER = "JPEGImages"
# A line of `aeroplane_train.txt`: whether an image shows the class.
_PRESENCE = re.compile(r"\S+\s+(-1|0|1)")


def read_list(item: SplitList) -> list[tuple[int, str]]:
    """Reads `(line, name)` of the images that a list names, without quotes."""
    return [
        (number, line[1:-1] if len(line) > 2 and line[0] == line[-1] == '"' else line)
        for number, line in item.lines()
    ]


def find_lists(files: RootFiles, *, image_set: str) -> tuple[dict[str, list[SplitList]], bool]:
    """Finds the lists of splits, and whether there is a `JPEGImages`."""
    folder = f"ImageSets/{image_set}"
    found: dict[str, list[SplitList]] = {}
    has_image_folder = files.holds(_IMAGE_FOLDER)
    # The root may hold VOCdevkit, or several years.
    for below in (folder, ""):
        for path, file in files.walk(below):
            head, _, name = path.rpartition("/")
            has_image_folder |= head.endswith(_IMAGE_FOLDER)
            is_list = name.endswith(".txt") and not is_hidden(path)
            if is_list and f"/{head}".endswith(f"/{folder}"):
                item = SplitList(split=name.removesuffix(".txt"), path=path, file=file)
                found.setdefault(item.split, []).append(item)
        if found:
            break
    return found, has_image_folder


def choose_lists(
    found: Mapping[str, Sequence[SplitList]],
    *,
    splits: Sequence[str] | None,
    image_set: str,
    root: str,
) -> Iterator[SplitList]:
    """Yields the lists of the wanted splits, by default of those that name images.

    Raises:
        InputError: A list is missing, or lists no images.
    """
    chosen: list[str] = []
    for split in splits or _DEFAULT_SPLITS:
        lists = sorted(found.get(split, ()), key=lambda item: item.path)
        names = [name for item in lists for _, name in read_list(item)]
        if not splits and (not names or (split == _BOTH and chosen)):
            continue
        if not lists:
            raise InputError(
                uri=root,
                problem=f"there is no list ImageSets/{image_set}/{split}.txt"
                f"{did_you_mean(split, known=found)}; found: "
                f"{', '.join(sorted(found)[:20]) or 'none'}",
            )
        if "_" in split and names and all(map(_PRESENCE.fullmatch, names)):
            raise InputError(
                uri=lists[0].file.uri,
                problem=f"{names[0]!r} says whether an image shows a class; "
                "the list is not a split",
            )
        chosen.append(split)
        yield from lists
