"""Finding damage inside a JPEG file's data."""

from __future__ import annotations

import simplejpeg

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.decode import decode_image
from shardbeam.transforms.images.jpeg import essential_jpeg
from shardbeam.transforms.images.sniff import FileFormat


def find_damage(data: bytes, *, max_pixels: int) -> str | None:
    """Decodes a JPEG file strictly.

    Damage shows in the compressed data no longer fitting together: libjpeg warns of it, and fills
    the gap with something. Most decoders ignore the warning.

    Args:
        data: A file whose header `scan_jpeg` calls storable. No other must come here: TurboJPEG,
            which decodes it, can write past its buffer on a lossless one.
        max_pixels: For the decoder that is asked where TurboJPEG gives up.

    Returns:
        The damage in libjpeg's words; None where there is none.

    Raises:
        RejectedError: It cannot be decoded at all.
    """
    if _complaint(data, strict=True) is None:
        return None
    # It may have warned of nothing but the header's form, and then of nothing else.
    essential = essential_jpeg(data)
    complaint = _complaint(essential, strict=True)
    if complaint is None or _complaint(essential, strict=False) is None:
        return complaint
    # No warning but an error, or one of the samplings that TurboJPEG does not know.
    decode_image(data, file_format=FileFormat.JPEG, max_pixels=max_pixels)
    return None


def _complaint(data: bytes, *, strict: bool) -> str | None:
    try:
        # Gray needs no colour conversion, yet all components are read.
        simplejpeg.decode_jpeg(data, "GRAY", strict=strict)
    except ValueError as error:
        return str(error)
    except MemoryError as error:
        raise RejectedError(Reason.DECOMPRESSION_BOMB, "JPEG: MemoryError") from error
    return None
