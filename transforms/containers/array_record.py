"""ArrayRecord files, in which a program can read any record by its number.

Format: https://github.com/google/array_record; `tfds.data_source` and Grain read it. The package
only reads and writes local files. It promises the same records in all of its versions, but the same
bytes only within one version. It reads a truncated file as an empty one, so size and checksum are
compared first.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shardbeam.transforms.containers.base import (
    ChecksummedFile,
    Container,
    ExampleParts,
    ExampleSchema,
    WriteExample,
    copy_to_disk,
)
from shardbeam.transforms.core.errors import DamagedError
from shardbeam.transforms.core.extras import install_command
from shardbeam.transforms.core.temporary_files import TEMPORARY_PREFIX
from shardbeam.transforms.storage.base import StoredFile

# As TFDS writes them, so that each record can be read by itself.
_OPTIONS = "group_size:1"
_PART_BYTES = 8 << 20


class ArrayRecord(Container):
    """ArrayRecord files; a record's place is its number."""

    suffix = ".array_record"
    tfds_name = "array_record"
    readers = "tfds.builder_from_directory(path).as_data_source(split), or with Grain"
    checks_records = False
    # Records are compressed.
    stores_images = False
    recipe = (
        "import tensorflow_datasets as tfds\n\n"
        'builder = tfds.builder_from_directory("path/to/this/folder")\n'
        "dataset = builder.as_data_source(split={split})"
    )

    def versions(self) -> Mapping[str, str]:
        """Returns the version of the array-record package."""
        _package()
        return {"array-record": importlib.metadata.version("array-record")}

    @contextlib.contextmanager
    def writer(self, file: ChecksummedFile, *, schema: ExampleSchema) -> Iterator[WriteExample]:
        """Writes Examples to a temporary file, and copies its bytes to `file` at the end."""
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as folder:
            path = os.path.join(folder, "records")
            writer = _package().ArrayRecordWriter(path, _OPTIONS)
            number = 0

            def write(example: ExampleParts) -> int:
                nonlocal number
                with _raises_os_errors(path):
                    writer.write(example.data)
                number += 1
                return number - 1

            try:
                yield write
            except BaseException:
                # The file is incomplete anyway.
                with contextlib.suppress(RuntimeError):
                    writer.close()
                raise
            with _raises_os_errors(path):
                writer.close()
            with open(path, "rb") as written:
                while part := written.read(_PART_BYTES):
                    file.write(part)

    def read(
        self, file: StoredFile, *, start: int = 0, see: Callable[[bytes], None] | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Yields the records, after comparing the file's checksum."""
        with copy_to_disk(file, see=see) as path:
            reader = _package().ArrayRecordReader(path)
            if not reader.ok():
                raise DamagedError(
                    uri=file.uri, problem="not an ArrayRecord file, or a damaged one"
                )
            for number in range(start, reader.num_records()):
                try:
                    record = reader.read([number])[0]
                except RuntimeError as error:
                    place = self.describe_place(number)
                    raise DamagedError(uri=file.uri, place=place, problem=str(error)) from error
                yield number, record

    def describe_place(self, place: int) -> str:
        """Returns "record" and its number."""
        return f"record {place}"


CONTAINER = ArrayRecord()


@contextlib.contextmanager
def _raises_os_errors(path: str) -> Iterator[None]:
    """Raises an OSError if the package cannot write a file; it raises RuntimeError itself."""
    try:
        yield
    except RuntimeError as error:
        # The text holds that of the system's error; most likely the disk is full.
        text = str(error)
        code = next((code for code in errno.errorcode if os.strerror(code) in text), errno.EIO)
        known = os.strerror(code)
        raise OSError(code, known if known in text else text, path) from error


def _package() -> Any:  # noqa: ANN401  # The package has no types.
    try:
        return importlib.import_module("array_record.python.array_record_module")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}; array_record files need it: {install_command('array_record')}",
            name=error.name,
        ) from error
