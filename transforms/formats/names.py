"""Keys of images, and rules that need only a file's name."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

from shardbeam.transforms.core.extras import import_heif
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.text import describe_base64

# Files that systems leave in folders. Names that begin with a dot are hidden anyway.
_SYSTEM_NAMES = frozenset(
    {"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "@eadir", "icon\r"}
)

# Names of folders that hold all files of one kind; such folders are not classes.
FILE_FOLDERS = frozenset(
    {"images", "image", "imgs", "img", "jpegimages", "annotations", "labels", "masks"}
)

# Names of splits, in their usual order.
SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
# Phones and cameras write these; an extra decodes them.
_HEIF_EXTENSIONS = (".heic", ".heif", ".hif")
# Raster formats in datasets. Formats that cannot be decoded are listed, too: a reject with its
# reason says more than a file that is left out.
_IMAGE_EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".j2k", ".jpx", ".jxl"),
    *(".png", ".apng", ".gif", ".webp", ".avif", *_HEIF_EXTENSIONS),
    *(".bmp", ".dib", ".tif", ".tiff", ".tga", ".exr"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
)
# Those of them that nothing here decodes.
_UNDECODABLE = (".jxl", ".tga", ".exr", ".pfm")
# Keys have lost one slash of `https://`; one letter and a colon are a drive.
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/", re.ASCII)
_ESCAPED = re.compile(r"%[0-9A-Fa-f]{2}")


def is_split_name(folder: str) -> bool:
    """Whether a folder is named like a split."""
    return folder.casefold() in SPLIT_NAMES


def normalize_key(name: str) -> str:
    """Turns a path, as a listing or an annotation writes it, into a key.

    Empty and `.` components are removed, and Unicode is composed (NFC): macOS lists `é` as two
    characters, and annotations write it as one. `..` and a leading `/` stay, so that such a path
    equals no listed key.
    """
    name = unicodedata.normalize("NFC", name)
    root = "/" if name.startswith("/") else ""
    return root + "/".join(part for part in name.split("/") if part not in ("", "."))


def without_extension(key: str) -> str:
    """Returns a key without its extension, to join files whose extensions differ."""
    stem, dot, extension = key.rpartition(".")
    return stem if dot and stem and not stem.endswith("/") and "/" not in extension else key


def normalize_for_match(name: str, match: str) -> str:
    """Returns the part of a name that is compared when images are joined.

    Args:
        name: The name.
        match: `path` for all of it; `suffix` for the last folder and the file's name; `name` for
            the file's name. The last two ignore case and the image's extension.
    """
    if match == "path":
        return name
    parts = normalize_key(name.replace("\\", "/")).split("/")
    end = "/".join(parts[-2 if match == "suffix" else -1 :])
    return (without_extension(end) if is_image_name(end) else end).casefold()


# The name by which formats outside this project may import it.
loosened = normalize_for_match


def key_problem(key: str) -> str | None:
    """Describes why a text cannot be a key; returns None if it can.

    A key can be encoded as UTF-8, and can name a file on every system.
    """
    if not key:
        return "the name is empty"
    if "\0" in key:
        return "the name holds a NUL character"
    if not is_encodable(key):
        return "the name is not valid Unicode"
    return None


def foreign_name(name: str) -> str:
    """Describes a text that annotations have in place of an image's path: a URL, or an image.

    Returns:
        What it is, and the fix; empty if it may be a path.
    """
    if encoded := describe_base64(name):
        return f"that is {encoded} and no name: save it as a file, and name the file there"
    if name.startswith("data:"):
        return "that is a data URI and no name: save the image as a file, and name the file there"
    if url := _URL.match(name):
        return (
            f"that is a URL ({url[1].lower()}) and no path: download the images, and name the files"
        )
    if escape := _ESCAPED.search(name):
        return (
            f"{escape[0]} stands for {unquote(escape[0])!r} in URLs, but not in paths: write the "
            f"name as {unquote(name)!r}"
        )
    return ""


def escape_key(text: str) -> str:
    """Writes the characters that cannot be in a key as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def is_hidden(key: str) -> bool:
    """Whether a file, or a folder that it is in, is hidden or made by the system."""
    return any(part.startswith(".") or part.casefold() in _SYSTEM_NAMES for part in key.split("/"))


def is_linked_folder(path: str) -> bool:
    """Whether a listed path is a link to a folder whose files are not listed."""
    return path.endswith("/")


def is_image_name(key: str) -> bool:
    """Whether a file has the extension of an image format, in upper or lower case."""
    return key.lower().endswith(_IMAGE_EXTENSIONS)


def is_heif_name(key: str) -> bool:
    """Whether a file has an extension of HEIC, which may also be that of an AVIF file."""
    return key.lower().endswith(_HEIF_EXTENSIONS)


def is_undecodable_name(key: str) -> bool:
    """Whether a file has the extension of an image format that cannot be decoded."""
    return key.lower().endswith(_UNDECODABLE) or (is_heif_name(key) and import_heif() is None)


def listing_exclusion(key: str) -> Exclusion | None:
    """Finds the rule that leaves a listed file out; None if it is read as an image."""
    if is_hidden(key):
        return Exclusion.HIDDEN_FILE
    if is_linked_folder(key):
        return Exclusion.LINKED_FOLDER
    if not is_image_name(key):
        return Exclusion.NOT_AN_IMAGE_NAME
    return None


def is_encodable(text: str) -> bool:
    """Whether a text is valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
