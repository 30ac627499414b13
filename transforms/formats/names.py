"""Keys of images, and what a listed file's name says by itself."""

from __future__ import annotations

import unicodedata

from shardbeam.transforms.core.reasons import Exclusion

# What Windows, macOS and network drives leave in folders; names that begin with a dot aside.
_SYSTEM_NAMES = frozenset(
    {"__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin", "@eadir", "icon\r"}
)

# Names of folders that hold files of one kind, whatever their class.
FILE_FOLDERS = frozenset(
    {"images", "image", "imgs", "img", "jpegimages", "annotations", "labels", "masks"}
)

# Raster formats that datasets come in. One that cannot be decoded is here as well: it ends as a
# reject with its reason, which says more than a file left out.
_IMAGE_EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".jp2", ".j2k", ".jpx", ".jxl"),
    *(".png", ".apng", ".gif", ".webp", ".avif", ".heic", ".heif"),
    *(".bmp", ".dib", ".tif", ".tiff", ".tga", ".exr"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".pfm"),
)


def normalize_key(name: str) -> str:
    """Turns a path, as a listing or an annotation writes it, into a key.

    Empty and `.` components go, and Unicode is composed (NFC): macOS lists `é` as two characters
    that an annotation writes as one. `..` and a leading `/` stay, so that such a path equals no
    listed key.
    """
    name = unicodedata.normalize("NFC", name)
    root = "/" if name.startswith("/") else ""
    return root + "/".join(part for part in name.split("/") if part not in ("", "."))


def without_extension(key: str) -> str:
    """Gives a key without its extension, for joining files whose extensions differ."""
    stem, dot, extension = key.rpartition(".")
    return stem if dot and stem and not stem.endswith("/") and "/" not in extension else key


def loosened(name: str, match: str) -> str:
    """What a name is joined by.

    Args:
        name: What it would be joined by otherwise.
        match: `path` for the name as it is; `suffix` for the last folder and the file's name;
            `name` for that alone. Both leave case and the image's extension out.
    """
    if match == "path":
        return name
    parts = normalize_key(name.replace("\\", "/")).split("/")
    end = "/".join(parts[-2 if match == "suffix" else -1 :])
    return (without_extension(end) if is_image_name(end) else end).casefold()


def key_problem(key: str) -> str | None:
    """Says in words why a text cannot be a key; None if it can.

    What passes can be encoded as UTF-8 and names a file on every system.
    """
    if not key:
        return "the name is empty"
    if "\0" in key:
        return "the name holds a NUL character"
    if not is_encodable(key):
        return "the name is not valid Unicode"
    return None


def escape_key(text: str) -> str:
    """Shows a text that cannot be a key, its offending characters as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def is_hidden(key: str) -> bool:
    """Whether a file, or a folder it is in, is kept from sight or made by the system itself."""
    return any(part.startswith(".") or part.casefold() in _SYSTEM_NAMES for part in key.split("/"))


def is_linked_folder(path: str) -> bool:
    """Whether a listed path is a link to a folder whose files are not listed."""
    return path.endswith("/")


def is_image_name(key: str) -> bool:
    """Whether a file's extension is an image format's; its case does not matter."""
    return key.lower().endswith(_IMAGE_EXTENSIONS)


def listing_exclusion(key: str) -> Exclusion | None:
    """Which rule leaves a listed file out; None if it is to be read as an image."""
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
