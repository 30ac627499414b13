"""Names of exported images: inside their folder, fit for any disk, and each used once."""

from __future__ import annotations

import hashlib
import posixpath
import re
import unicodedata
from collections.abc import Collection, Sequence

import numpy as np

from shardbeam.transforms.formats.names import is_hidden, is_image_name
from shardbeam.transforms.images.sniff import FileFormat, claimed_format, usual_extension

# Most file systems allow 255 bytes; the rest is for `~` and a number.
_MAX_NAME_BYTES = 240
# Linux allows 4,096 bytes with the folder above.
_MAX_PATH_BYTES = 1024
_DIGEST_DIGITS = 8
_NUMBER_DIGITS = 9
# Control characters, lone surrogates, and what separates folders on Windows.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\\\\\ud800-\udfff]")
# {split: names of its folder in other layouts}
_SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "test": ("test", "testing"),
}
_IMAGES = "images"
# At most this many numbers are kept in a set, or an eighth of all.
_MAX_RECENT = 1 << 16


def split_names(split: str) -> Collection[str]:
    """Returns the names that a split has in different layouts; only its own if it has others."""
    return next((names for names in _SPLITS.values() if split in names), (split,))


def safe_name(name: str) -> str:
    """Returns the name of a file or a folder for a text: without separators, never hidden."""
    name = _UNSAFE.sub("_", name.replace("/", "_"))
    return _shorten(f"_{name}" if not name or is_hidden(name) else name)


def strip_layout(key: str, *, split: str) -> str:
    """Removes `images/<split>/` and `<split>/images/` from the beginning of an image's key.

    The export has such folders itself, and keys of YOLO begin with them.
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
    """Returns a relative path for an image: that of its key, where the key is a safe one.

    No part of it is hidden or leads out of the folder. Its extension is one of the image's format.
    No folder has an extension of images, so that none has the name of a file.

    Args:
        key: The image's key, which may hold anything.
        image_format: The format of the stored image.
        number: Number of its Example, for an image without a key.
        reserved: Names that no folder may have, in lower case.
    """
    parts = [part for part in key.split("/") if part not in ("", ".")]
    *folders, name = map(safe_name, parts or [f"{number:0{_NUMBER_DIGITS}}"])
    folders = [
        _shorten(f"{folder}_") if is_image_name(folder) or folder.casefold() in reserved else folder
        for folder in folders
    ]
    if claimed_format(name) is not image_format:
        stem = posixpath.splitext(name)[0] if is_image_name(name) else name
        name = _shorten(stem + usual_extension(image_format))
    path = "/".join([*folders, name])
    return path if len(path.encode()) <= _MAX_PATH_BYTES else _shorten(name, digest_of=key)


def _shorten(name: str, *, digest_of: str = "") -> str:
    """Cuts a name that is too long, and adds a digest; `digest_of` does it in any case."""
    if len(name.encode()) <= _MAX_NAME_BYTES and not digest_of:
        return name
    stem, extension = posixpath.splitext(name)
    if not is_image_name(name):
        stem, extension = name, ""
    digest = hashlib.sha256((digest_of or name).encode(errors="replace")).hexdigest()
    ending = f"~{digest[:_DIGEST_DIGITS]}{extension}"
    kept = stem.encode()[: _MAX_NAME_BYTES - len(ending)].decode(errors="ignore")
    return f"{kept}{ending}"


class UniqueNames:
    """Gives each image of a folder its own name, on disks that ignore case and forms of Unicode.

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
            number: Number of the image's Example, which makes it different.
        """
        stem, extension = posixpath.splitext(path)
        endings = ["", f"~{number}"]
        while True:
            candidate = f"{stem}{endings[0]}"
            compared = candidate if self._by_stem else f"{candidate}{extension}"
            if self._taken.add(_digest(_folded(compared))):
                return f"{candidate}{extension}"
            endings = endings[1:] or [f"{endings[0]}~{number}"]


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class NumberSet:
    """A set of numbers from 0 to 2^64 - 1, which takes about 8 bytes for each, and not 100."""

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
