"""Reading what an `ImageRef` points to."""

from __future__ import annotations

import errno
import zlib

from transforms.errors import RejectedError
from transforms.reasons import Reason
from transforms.records import Coding, ImageRef
from transforms.storage import ChangedError, storage_for

# The worker itself is in trouble, not the file.
_WORKER_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def read_bytes(file: ImageRef, *, unreadable: Reason = Reason.IMAGE_UNREADABLE) -> bytes:
    """Reads a file, or a member of a container, and decompresses it where need be.

    Args:
        file: Where it lies.
        unreadable: The reason code where it cannot be read or decompressed.

    Raises:
        RejectedError: It is not what was listed any more, or cannot be read.
        OSError: The worker is out of file descriptors or memory.
    """
    try:
        data = storage_for(file.uri).read(
            file.uri,
            offset=file.offset,
            size_bytes=None if file.whole else file.size_bytes,
            version=file.version,
        )
    except ChangedError as error:
        raise RejectedError(Reason.CHANGED_SINCE_LISTING, str(error)) from error
    except OSError as error:
        if error.errno in _WORKER_ERRNOS:
            raise
        raise RejectedError(unreadable, error.strerror or str(error)) from error
    if len(data) != file.size_bytes:
        raise RejectedError(
            Reason.CHANGED_SINCE_LISTING,
            f"listed with {file.size_bytes} bytes, read with {len(data)}",
        )
    if file.coding is Coding.DEFLATED:
        data = _inflate(data, file=file, unreadable=unreadable)
    if file.crc32 >= 0 and zlib.crc32(data) != file.crc32:
        raise RejectedError(unreadable, "the checksum in its archive is that of other bytes")
    return data


def _inflate(data: bytes, *, file: ImageRef, unreadable: Reason) -> bytes:
    decompressor = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    try:
        # A bomb must not be let grow: one byte more than announced is enough to see it.
        content = decompressor.decompress(data, file.decoded_bytes + 1)
    except zlib.error as error:
        raise RejectedError(unreadable, f"cannot be decompressed: {error}") from error
    if len(content) != file.decoded_bytes or not decompressor.eof:
        raise RejectedError(
            unreadable, f"its archive announces {file.decoded_bytes} bytes, it holds another number"
        )
    return content
