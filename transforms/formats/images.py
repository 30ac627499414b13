"""Pictures without labels, in any folders."""

from __future__ import annotations

import re

from shardbeam.transforms.core.records import Kind
from shardbeam.transforms.formats.recognition import IMAGES, Folder, Recognized
from shardbeam.transforms.formats.split_folders import SplitFolderFormat

_DESCRIPTION = re.compile(r"(.*/)?(readme|licen[cs]e)[^/]*", re.IGNORECASE | re.DOTALL)


class ImagesFormat(SplitFolderFormat, frozen=True, kw_only=True):
    """Pictures without labels."""

    SUMMARY = "pictures without labels, in any folders"
    kinds = frozenset[Kind]()

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes images if there is no other file, which might annotate them."""
        zips = {folder.zip_of(path) for path in folder.images}
        others = folder.files.keys() - {*folder.images}
        if len(zips) != 1 or not all(map(_DESCRIPTION.fullmatch, others)):
            return None
        return Recognized(
            what="pictures without labels",
            sources={"": {"images": folder.uri(zips.pop())}},
            notes=(
                "nothing labels them; if they have classes, put the images of each class into a "
                "folder, at least two",
            ),
            rank=IMAGES,
        )
