"""Which files hold YOLO's labels, and which image a file of labels belongs to."""

from __future__ import annotations

from collections.abc import Sequence

from shardbeam.transforms.formats.names import is_hidden, is_image_name

_IMAGE_FOLDERS = frozenset({"images", "image"})
_LABEL_FOLDERS = frozenset({"labels", "label", "annotations"})
# Replaces either of them in the text that joins images and labels.
LABELS = "labels"
# Text files that are never labels.
_KNOWN_TEXTS = frozenset({"classes.txt", "license.txt", "requirements.txt"})


def join_of_image(key: str) -> str:
    """Returns the text that joins an image and its labels: the label file's path without `.txt`.

    As in YOLO, the last folder `images` is replaced by `labels`.

    Args:
        key: The image's path below the root.
    """
    stem = key.rpartition(".")[0] if is_image_name(key) else key
    return _swap(stem, (_IMAGE_FOLDERS, _LABEL_FOLDERS))


def join_of_labels(key: str) -> str:
    """Returns the text that joins a label file and its image (`join_of_image`)."""
    return _swap(key.rpartition(".")[0], (_LABEL_FOLDERS, _IMAGE_FOLDERS))


def _swap(path: str, names: Sequence[frozenset[str]]) -> str:
    *folders, name = path.split("/")
    for known in names:
        for index in reversed(range(len(folders))):
            if folders[index].casefold() in known:
                return "/".join([*folders[:index], LABELS, *folders[index + 1 :], name])
    return path


def labels_of_folder(folder: str) -> str:
    """Returns the folder with the labels of a folder's images."""
    return join_of_image(join_path(folder, "x")).rpartition("/")[0]


def in_label_folder(key: str) -> bool:
    """Whether a path is in a folder of labels."""
    return any(folder.casefold() in _LABEL_FOLDERS for folder in key.split("/")[:-1])


def join_path(*parts: str) -> str:
    """Joins the parts of a path, some of which may be empty."""
    return "/".join(part for part in parts if part)


def is_labels(key: str, *, beside: bool) -> bool:
    """Whether a file is a file of labels.

    Args:
        key: Its path below the root.
        beside: Whether labels are beside their images.
    """
    if is_hidden(key) or not key.lower().endswith(".txt"):
        return False
    name = key.rpartition("/")[2].casefold()
    is_known = name in _KNOWN_TEXTS or name.startswith("readme")
    return (beside or in_label_folder(key)) and not is_known
