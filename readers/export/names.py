"""Names of exported images: they stay in their folder, fit any disk, and are unique."""

from __future__ import annotations

import hashlib
import posixpath
import re
import unicodedata
from collections.abc import Collection, Sequence

import numpy as np

from shardbeam.transforms.formats.names import is_hidden, is_image_name
from shardbeam.transforms.images.header import FileFormat, claimed_format, usual_extension

# Most file systems allow 255 bytes; this leaves room for `~` and a number.
_MAX_NAME_BYTES = 240
# Linux allows 4,096 bytes, with the path of the output.
_MAX_PATH_BYTES = 1024
_DIGEST_DIGITS = 8
_NUMBER_DIGITS = 9
# Control characters, lone surrogates, and the separator of Windows.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\\\\\ud800-\udfff]")
# Part of a path that Windows refuses: some characters, a dot or a space at the end, and the names
# of devices, whatever follows their first dot. (learn.microsoft.com, "Naming Files, Paths, and
# Namespaces")
_WINDOWS = re.compile(
    r"""[<>:"|?*] | [. ](?=/|$) | (?:^|/)(?:con|prn|aux|nul|(?:com|lpt)[0-9¹²³])\ *(?=[./]|$)""",
    re.IGNORECASE | re.VERBOSE,
)
# {usual name of a split: all names that layouts use for it}
_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_IMAGES = "images"
# An integer as it is usually written; `007` would come back as another text.
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")
# New numbers are sorted into the array once there are more than this, or than an eighth of all.
_MAX_RECENT = 1 << 16


def split_names(split: str) -> Collection[str]:
    """Returns all names that layouts use for a split; only its own if it is not a usual one."""
    return next((names for names in _SPLITS.values() if split in names), (split,))


def safe_name(name: str, *, around: int = 0) -> str:
    """Makes a text the name of a file or folder: no separators, not hidden, at most 240 bytes.

    Args:
        name: The text.
        around: The bytes that names of files have before and after it.
    """
    name = _UNSAFE.sub("_", name.replace("/", "_"))
    return _shorten(f"_{name}" if not name or is_hidden(name) else name, room=around)


def is_refused_by_windows(path: str) -> bool:
    """Returns whether Windows cannot have a file of this name, or a folder that it lies in."""
    return _WINDOWS.search(path) is not None


def strip_layout(key: str, *, split: str) -> str:
    """Removes `images/<split>/` and `<split>/images/` from the beginning of an image's key.

    The export makes such folders itself, and keys of YOLO datasets begin with them.
    """
    first, _, rest = key.partition("/")
    second, _, below = rest.partition("/")
    named = split_names(split)
    if below and ((first == _IMAGES and second in named) or (first in named and second == _IMAGES)):
        return below
    return key


def safe_path(
    key: str, *, image_format: FileFormat, number: int, reserved: Collection[str] = ()
) -> str:
    """Returns a relative path for an image: its key, if that is safe.

    No part of it is hidden or leads out of the folder. Its extension is one of the image's format.
    No folder has the extension of an image, so that no folder takes the name of a file.

    Args:
        key: The image's key, which may hold anything.
        image_format: The format of the stored image.
        number: Number of its Example, for an image without a key.
        reserved: Names that no folder may have, in lower case, and extensions that none may have.
    """
    parts = [part for part in key.split("/") if part not in ("", ".")]
    *folders, name = map(safe_name, parts or [f"{number:0{_NUMBER_DIGITS}}"])
    folders = [
        _shorten(f"{folder}_")
        if is_image_name(folder)
        or not {folder.casefold(), posixpath.splitext(folder)[1].casefold()}.isdisjoint(reserved)
        else folder
        for folder in folders
    ]
    if claimed_format(name) is not image_format:
        stem = posixpath.splitext(name)[0] if is_image_name(name) else name
        name = _shorten(stem + usual_extension(image_format))
    path = "/".join([*folders, name])
    return path if len(path.encode()) <= _MAX_PATH_BYTES else _shorten(name, digest_of=key)


def _shorten(name: str, *, digest_of: str = "", room: int = 0) -> str:
    """Cuts a name that is too long, and adds a digest; with `digest_of`, it always adds one."""
    if len(name.encode()) <= _MAX_NAME_BYTES - room and not digest_of:
        return name
    stem, extension = posixpath.splitext(name)
    if not is_image_name(name):
        stem, extension = name, ""
    digest = hashlib.sha256((digest_of or name).encode(errors="replace")).hexdigest()
    ending = f"~{digest[:_DIGEST_DIGITS]}{extension}"
    kept = stem.encode()[: _MAX_NAME_BYTES - room - len(ending)].decode(errors="ignore")
    return f"{kept}{ending}"


class UniqueNames:
    """Gives the images of a folder unique names, even on disks that ignore case or Unicode forms.

    Args:
        by_stem: Whether names must differ without their extensions.
    """

    def __init__(self, *, by_stem: bool) -> None:
        self._by_stem = by_stem
        self._taken = NumberSet()

    def take(self, path: str, *, number: int) -> str:
        """Returns a path that no earlier image has: the given one if it is free.

        Args:
            path: The path.
            number: Number of the image's Example, which is added to a name that is taken.
        """
        stem, extension = posixpath.splitext(path)
        ending = ""
        while True:
            candidate = f"{stem}{ending}"
            compared = candidate if self._by_stem else f"{candidate}{extension}"
            if self._taken.add(_digest(_folded(compared))):
                return f"{candidate}{extension}"
            ending += f"~{number}"


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class NumberSet:
    """A set of integers from 0 to 2^64 - 1 that takes about 8 bytes for each, not 100."""

    def __init__(self) -> None:
        self._sorted = np.empty(0, np.uint64)
        self._recent: set[int] = set()

    def add(self, number: int) -> bool:
        """Adds a number, and returns whether it is new."""
        place = int(np.searchsorted(self._sorted, np.uint64(number)))
        is_old = place < self._sorted.size and int(self._sorted[place]) == number
        if is_old or number in self._recent:
            return False
        self._recent.add(number)
        if len(self._recent) > max(_MAX_RECENT, self._sorted.size // 8):
            recent: Sequence[int] = list(self._recent)
            self._sorted = np.sort(np.append(self._sorted, np.array(recent, np.uint64)))
            self._recent.clear()
        return True


class ImageIds:
    """Gives each image of a COCO file an integer that no other image of its split has."""

    def __init__(self) -> None:
        self._used = NumberSet()
        self._last = 0

    def begin_split(self) -> None:
        """Begins another split, whose images may have the ids of the last one."""
        self._used = NumberSet()

    def give(self, own: str) -> int:
        """Returns an image's own id if it is an unused integer, or else the next free one."""
        if _INTEGER.fullmatch(own) and self._used.add(int(own)):
            return int(own)
        self._last += 1
        while not self._used.add(self._last):
            self._last += 1
        return self._last
