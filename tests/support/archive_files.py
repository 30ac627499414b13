"""Writes files: into a folder, a tar or a zip archive."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

# Content by path.
Files = Mapping[str, bytes | str]


def write_files(folder: Path, files: Files) -> Path:
    """Writes files into a folder, which it gives back."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def write_tar(
    path: Path,
    files: Mapping[str, bytes] | Iterable[tuple[str, bytes]],
    *,
    tar_format: int = tarfile.PAX_FORMAT,
) -> Path:
    """Writes a tar archive; a name may come twice where `files` is no mapping."""
    pairs = files.items() if isinstance(files, Mapping) else files
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in pairs:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_zip(path: Path, files: Files, *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Writes a zip archive."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, compress_type=method)
    return path
