"""Errors for users: their base class, places in a config, and the nearest name to a wrong one."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import regex


# Where a value lies: keys of mappings, and positions in lists.
Path: TypeAlias = tuple[str | int, ...]


class ShardbeamError(Exception):
    """The base class of all errors whose message is meant for users.

    Attributes:
        exit_code: The exit code of a command that ends with it.
    """

    exit_code = 1


class Problem(ValueError):
    """A value of a config cannot be used.

    A config class raises it with a path relative to itself; `convert` completes the path.

    Attributes:
        path: Where the value lies.
        text: What was expected, what it is, and the nearest known name.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        super().__init__(f"{format_path(path)}: {text}" if path else text)


def format_path(path: Path) -> str:
    """Writes a path as configs do: `splits.train.annotations[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            # A key with a blank, a dot or a control character must not look like a path.
            plain = part.isprintable() and part and not set(" .:'") & set(part)
            text += f"{'.' if text else ''}{part if plain else repr(part)}"
    return text


# {a name that other tools give a flag or a key, with dashes: Shardbeam's flag; its key}
_OTHER_TOOLS = {
    **dict.fromkeys(("workers", "num-workers", "jobs", "n-jobs"), ("--processes", "")),
    **dict.fromkeys(
        ("resize", "size", "image-size", "img-size", "imgsz"),
        (
            "--max-side, or --set 'image.resize={width: 640, height: 640}'",
            "image.max_side or image.resize",
        ),
    ),
    **dict.fromkeys(
        ("val-split", "validation-split", "train-split", "test-size", "split-ratio"),
        ("--fractions", "fractions"),
    ),
    **dict.fromkeys(("input", "input-dir", "image-dir", "img-dir"), ("--images", "images")),
    **dict.fromkeys(("labels.rename", "class-map"), ("", "labels.merge")),
}


def named_otherwise(name: str, *, is_flag: bool) -> str:
    """Returns Shardbeam's flag or key for a name that other tools use; empty if none is known.

    Args:
        name: The name, of a flag with its dashes.
        is_flag: Whether it is a flag, and not a key of a config.
    """
    flag, key = _OTHER_TOOLS.get(name.strip("-").lower().replace("_", "-"), ("", ""))
    if is_flag:
        return flag or (f"--set {key}=VALUE" if key else "")
    return key


def did_you_mean(name: str, known: Iterable[str], *, show: Callable[[str], str] = repr) -> str:
    """Returns `; did you mean 'x'?` with the known name nearest to `name`; empty if none is near.

    Args:
        name: The wrong name.
        known: The known names.
        show: Formats the name: `repr` for names from data, `str` for names that Shardbeam defines.
    """
    # Sorted, so that two equally near names always give the same suggestion.
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {show(nearest[0])}?" if nearest else ""


# Regular expressions that users write.


@functools.cache
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compiles a regular expression of Python's `re` for searches with a time limit.

    Raises:
        ValueError: It is not a valid regular expression.
    """
    # Imported here, so that commands which only print help stay fast.
    import regex

    try:
        re.compile(pattern)
        return regex.compile(pattern)
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
