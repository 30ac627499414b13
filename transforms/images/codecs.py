"""The libraries that decode and encode images, and their versions."""

from __future__ import annotations

import PIL
import simplejpeg
from PIL import features

from shardbeam.transforms.core.extras import import_heif
from shardbeam.transforms.images.header import FileFormat

# Libraries inside Pillow that decode or encode.
_PILLOW_CODECS = ("libjpeg_turbo", "jpg", "zlib", "zlib_ng", "libtiff", "webp", "jpg_2000", "avif")
_JPEG, _PNG = ("jpg", "libjpeg_turbo"), ("zlib", "zlib_ng")
# {format: the libraries with which Pillow decodes and encodes it}; Pillow alone reads the others.
_CODECS: dict[FileFormat, tuple[str, ...]] = {
    FileFormat.JPEG: _JPEG,
    FileFormat.PNG: _PNG,
    FileFormat.ICO: _PNG,
    FileFormat.TIFF: ("libtiff", *_JPEG, *_PNG, "webp"),
    FileFormat.WEBP: ("webp",),
    FileFormat.JPEG_2000: ("jpg_2000",),
    FileFormat.AVIF: ("avif",),
}
# Decodes JPEG files strictly.
TURBO_JPEG = "simplejpeg"


def codec_versions() -> dict[str, str]:
    """Returns `{library: version}` of the libraries that decide the bytes of stored images."""
    versions = {"pillow": PIL.__version__, TURBO_JPEG: simplejpeg.__version__}
    for codec in _PILLOW_CODECS:
        version = features.version(codec)
        if version is not None:
            versions[codec] = version
    return {**versions, **_heif_versions()}


def pillow_libraries(file_format: FileFormat) -> tuple[str, ...]:
    """Returns the libraries that decide what Pillow makes of a file of some format.

    One of them may not be installed: then the file is rejected, and would not be if it were.
    """
    if file_format is FileFormat.HEIC:
        return "pillow", _HEIF, *_heif_versions()
    return "pillow", *_CODECS.get(file_format, ())


_HEIF = "libheif"


def _heif_versions() -> dict[str, str]:
    heif = import_heif()
    if heif is None:
        return {}
    # {"libde265": "libde265 HEVC decoder, version 1.1.3"}
    return {_HEIF: heif.libheif_version(), **heif.libheif_info()["decoders"]}
