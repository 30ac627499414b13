"""Errors for users: their base class, places in a config, and the nearest name to a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from shardbeam.configs.hints.nearest import nearest_name

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


def did_you_mean(name: str, known: Iterable[str], *, show: Callable[[str], str] = repr) -> str:
    """Returns `; did you mean 'x'?` with the known name nearest to `name`; empty if none is near.

    Args:
        name: The wrong name.
        known: The known names.
        show: Formats the name: `repr` for names from data, `str` for names that Shardbeam defines.
    """
    nearest = nearest_name(name, known)
    return f"; did you mean {show(nearest)}?" if nearest is not None else ""
