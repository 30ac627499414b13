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
    """Writes files into a folder and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(_encode(content))
    return folder


def tar_bytes(
    files: Files | Iterable[tuple[str, bytes]], *, tar_format: int = tarfile.PAX_FORMAT
) -> bytes:
    """Makes a tar archive; a name may occur twice if `files` is not a mapping."""
    buffer = io.BytesIO()
    pairs = files.items() if isinstance(files, Mapping) else files
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for name, content in pairs:
            data = _encode(content)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def zip_bytes(files: Files, *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), _encode(content), compress_type=method)
    return buffer.getvalue()


def write_tar(
    path: Path,
    files: Files | Iterable[tuple[str, bytes]],
    *,
    tar_format: int = tarfile.PAX_FORMAT,
) -> Path:
    path.write_bytes(tar_bytes(files, tar_format=tar_format))
    return path


def write_zip(path: Path, files: Files, *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.write_bytes(zip_bytes(files, method=method))
    return path


def _encode(content: bytes | str) -> bytes:
    return content.encode() if isinstance(content, str) else content
