"""Recognizes the pointers that Git LFS leaves in place of files that were not fetched.

The format: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""

from __future__ import annotations

# Pointers with the usual three lines have about 130 bytes; hardly any image is as short.
LFS_POINTER_BYTES = 200
LFS_POINTER = "it is a Git LFS pointer; `git lfs pull` in its repository fetches the file itself"

_BEGINNINGS = (
    b"version https://git-lfs.github.com/spec/",
    b"version https://hawser.github.com/spec/",
)


def is_lfs_pointer(data: bytes) -> bool:
    """Whether a file, or its beginning, is a pointer of Git LFS."""
    return data.startswith(_BEGINNINGS)
