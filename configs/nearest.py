"""Suggests the known name that is nearest to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

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
