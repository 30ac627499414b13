"""Writing an object while its content is made."""

from __future__ import annotations

import io
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

if TYPE_CHECKING:
    from typing_extensions import Buffer

# A request of an upload. The storage wants multiples of 256 KiB, and advises at least 8 MiB.
PART_BYTES = 8 << 20


class AbandonedError(Exception):
    """Whoever made the content has given up: the upload must not come to its end."""


class UploadStream(io.RawIOBase):
    """A file to write to, whose content another thread uploads as it comes.

    At most two parts wait for the upload. Content of less than one part is uploaded at the end,
    in a single request.

    Args:
        upload: Uploads all of a stream.
        upload_small: Uploads content of less than a part.
    """

    def __init__(
        self, *, upload: Callable[[BinaryIO], None], upload_small: Callable[[bytes], object]
    ) -> None:
        self._upload = upload
        self._upload_small = upload_small
        self._part = bytearray()
        self._pipe = _Pipe()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Takes content, and waits if the upload cannot keep up.

        Raises:
            Exception: What the upload has failed with.
        """
        view = memoryview(data).cast("B")
        self._part += view
        if len(self._part) >= PART_BYTES:
            self._send()
        return len(view)

    def finish(self) -> None:
        """Returns when all is uploaded.

        Raises:
            Exception: What the upload has failed with.
        """
        if self._thread is None:
            self._upload_small(bytes(self._part))
            return
        self._send()
        self._pipe.finish()
        self._thread.join()
        self._raise_error()

    def abandon(self) -> None:
        """Gives the upload up, and does not wait for it; nothing of it stays."""
        self._pipe.abandon()

    def _send(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="upload", daemon=True)
            self._thread.start()
        if not self._pipe.put(bytes(self._part)):
            self._raise_error()
        self._part.clear()

    def _run(self) -> None:
        try:
            self._upload(cast(BinaryIO, self._pipe))
        except BaseException as error:  # noqa: BLE001
            # Raised where the content is made.
            self._error = error
        finally:
            self._pipe.close_for_reading()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


class _Pipe(io.RawIOBase):
    """What one thread puts in, another reads."""

    _MAX_WAITING = 2

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._front = b""
        self._position = 0
        self._finished = False
        self._abandoned = False
        self._unread = False

    def put(self, data: bytes) -> bool:
        """Adds data, once there is room; False if nobody reads any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._unread or len(self._waiting) < self._MAX_WAITING)
            self._waiting.append(data)
            self._changed.notify_all()
            return not self._unread

    def finish(self) -> None:
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def abandon(self) -> None:
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def close_for_reading(self) -> None:
        with self._changed:
            self._unread = True
            self._waiting.clear()
            self._changed.notify_all()

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def read(self, size: int = -1, /) -> bytes:
        """Reads `size` bytes, fewer only at the end."""
        parts = []
        while size:
            if not self._front:
                self._front = self._next()
            if not self._front:
                break
            part, self._front = self._front[:size], self._front[size:]
            parts.append(part)
            self._position += len(part)
            size -= len(part)
        return b"".join(parts)

    def _next(self) -> bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._finished or self._abandoned)
            if self._abandoned:
                raise AbandonedError
            if not self._waiting:
                return b""
            self._changed.notify_all()
            return self._waiting.popleft()
