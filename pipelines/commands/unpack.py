"""`shardbeam unpack`: writes Parquet files again, with images that are not compressed.

A build reads such images where they are, instead of copying them.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
from pyarrow import parquet, types

from shardbeam.pipelines.cli.commands import UnpackArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.failures import UsageError, blaming, machine_error
from shardbeam.pipelines.interrupts import delay_interrupts
from shardbeam.pipelines.overlap import check_apart, check_outside_datasets
from shardbeam.pipelines.own_folders import FOLDER_INSIDE, folder_inside
from shardbeam.transforms.core.errors import DamagedError, InputError
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.formats.huggingface.pages import read_image_column
from shardbeam.transforms.formats.names import is_hidden
from shardbeam.transforms.storage.archives.open import is_archive
from shardbeam.transforms.storage.base import StoredFile, is_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.parquet import (
    PARQUET_ERRORS,
    describe_parquet_error,
    most_bytes,
    raise_shortage,
)

# Rows that are decoded at a time, and what a row group has at least.
_BATCH_ROWS = 64
_GROUP_ROWS, _GROUP_BYTES = 4096, 32 << 20
# A column is read in parts of this size, not a whole row group at a time.
_READ_BYTES = 1 << 20
# Files beside the Parquet files that say what is in them.
_COPIED = ("README.md", "*.json")
# Names the folder that was unpacked, so that only files of the same one are replaced.
_MARK = ".unpacked-by-shardbeam"


def run_unpack(arguments: UnpackArguments) -> None:
    """Writes the Parquet files of a folder again, those that are not there already.

    Each is complete when it gets its name, and has its old file's time of change, which shows that
    it need not be written again.

    Raises:
        UsageError: The output may not be written, or lacks room.
        InputError: A file cannot be read, or nothing in the folder is compressed.
        RunError: The disk is full, or fails.
    """
    files = _find_files(arguments.path)
    output = _check_output(arguments.to, source=arguments.path)
    packed = {file.path: _packed(file) for file in files}
    if not any(packed.values()):
        raise InputError(
            uri=arguments.path,
            problem="holds no Parquet files whose images are compressed or dictionary encoded, so "
            "there is nothing to unpack; build it as it is",
        )
    try:
        missing = [file for file in files if not _is_done(file, output=output)]
        _check_room(missing, output=output)
        with folder_inside(output) as folder:
            _write_mark(output, source=arguments.path)
            for file in missing:
                new = os.path.join(folder, "new")
                rows = _write(file, new=new, leaves=packed[file.path])
                times = os.stat(file.uri)
                os.utime(new, ns=(times.st_atime_ns, times.st_mtime_ns))
                path = os.path.join(output, file.path)
                with delay_interrupts():
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    os.replace(new, path)
                done = "copied" if rows is None else counted(rows, "row")
                write_stdout(f"{escape(file.path)}: {done}\n")
    except OSError as error:
        raise machine_error(error, path=output) from error
    write_stdout(f"{counted(len(files), 'file')} in {escape(arguments.to)}; build from there\n")


def _find_files(path: str) -> list[StoredFile]:
    """Finds the Parquet files of a folder, and what describes them.

    Raises:
        InputError: There are none.
    """
    if is_uri(path):
        raise InputError(uri=path, problem="is not on a disk; copy it to one first")
    if is_archive(path):
        raise InputError(uri=path, problem="is an archive, or lies in one; unpack that first")
    storage = storage_for(path)
    if os.path.isfile(path):
        # A file of its own is described by its name alone.
        found = [msgspec.structs.replace(storage.find(path), path=os.path.basename(path))]
    else:
        found = [file for file in storage.list(path) if not is_hidden(file.path)]
    files = [
        file
        for file in sorted(found, key=lambda file: file.path)
        if _is_parquet(file)
        or any(fnmatch.fnmatchcase(os.path.basename(file.path), name) for name in _COPIED)
    ]
    if not any(map(_is_parquet, files)):
        raise InputError(uri=path, problem="holds no Parquet files (*.parquet)")
    return files


def _is_parquet(file: StoredFile) -> bool:
    return file.path.endswith(".parquet")


def _check_output(output: str, *, source: str) -> str:
    """Returns the real path of a folder that is new, empty, or holds unpacked files of the source.

    Raises:
        UsageError: It may not be written.
    """
    if is_uri(output):
        raise UsageError(f"--to: {output}: expected a folder on disk; copy the files from it")
    check_outside_datasets(output, name="--to")
    check_apart(output, name="--to", inputs=[source])
    path = os.path.realpath(output)
    with blaming(f"--to: {output}"):
        if os.path.lexists(path):
            if not os.path.isdir(path):
                raise UsageError(f"--to: {output} is not a folder; name another one")
            mark = os.path.join(path, _MARK)
            # `read` refuses a pipe, from which reading would never end.
            if os.path.lexists(mark) and storage_for(mark).read(mark) == _real_name(source):
                return path
            if not all(name.startswith(FOLDER_INSIDE) for name in os.listdir(path)):
                raise UsageError(
                    f"--to: {output} holds other files than unpacked ones of {source}; name a new "
                    "or an empty folder"
                )
    return path


def _write_mark(output: str, *, source: str) -> None:
    mark = os.path.join(output, _MARK)
    if not os.path.lexists(mark):
        storage_for(mark).replace(mark, _real_name(source))


def _real_name(path: str) -> bytes:
    return os.fsencode(os.path.realpath(path))


def _is_done(file: StoredFile, *, output: str) -> bool:
    try:
        there = os.stat(os.path.join(output, file.path))
    except FileNotFoundError:
        return False
    return there.st_mtime_ns == os.stat(file.uri).st_mtime_ns


def _check_room(files: Sequence[StoredFile], *, output: str) -> None:
    """Says how much is written, because the old files stay.

    Raises:
        UsageError: The disk has too little room for it. (Images hardly shrink when they are
            compressed, but equal ones may have been stored once.)
    """
    needed = sum(file.size_bytes for file in files)
    folder = output
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    size = f"{needed / 1e6:,.1f} MB"
    if needed > free:
        raise UsageError(
            f"--to: {output} needs at least {size}, as much again as the old files, and its disk "
            f"has {free / 1e6:,.1f} MB left; free some, or name a folder on another disk"
        )
    if files:
        write_stdout(
            f"writing {counted(len(files), 'file')}, at least {size}; the old ones stay, so both "
            "need room\n"
        )


def _packed(file: StoredFile) -> Mapping[str, str] | None:
    """Returns `{column: leaf}` of the columns of images, if some are compressed; else None."""
    if not _is_parquet(file):
        return None
    with _reading(file) as old:
        leaves = dict(_image_leaves(old.schema_arrow))
    storage = storage_for(file.uri)
    columns = [read_image_column(file.uri, storage=storage, column=column) for column in leaves]
    return leaves if any(column.why_not for column in columns) else None


def _image_leaves(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yields the columns of a schema that may be images, and the path of their bytes."""
    for field in schema:
        kind, leaf = field.type, field.name
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind, leaf = kind.field("bytes").type, f"{leaf}.bytes"
        if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
            yield field.name, leaf


def _write(file: StoredFile, *, new: str, leaves: Mapping[str, str] | None) -> int | None:
    """Writes a file again.

    Returns:
        The number of its rows; None if it was copied.

    Raises:
        DamagedError: It is damaged.
        OSError: It cannot be written.
    """
    with storage_for(new).create(new) as target:
        if leaves is None:
            with open(file.uri, "rb") as source:
                shutil.copyfileobj(source, target)
            return None
        with _reading(file) as old:
            metadata = old.metadata
            paths = [metadata.schema.column(it).path for it in range(metadata.num_columns)]
            others = [path for path in paths if path not in leaves.values()]
            with parquet.ParquetWriter(
                target,
                old.schema_arrow,
                compression={path: "snappy" if path in others else "none" for path in paths},
                use_dictionary=others,
                write_statistics=others,
            ) as writer:
                rows = 0
                for group in _groups(old.iter_batches(_BATCH_ROWS, use_threads=False)):
                    writer.write_table(group)
                    rows += group.num_rows
            if rows != metadata.num_rows:
                raise ValueError(
                    f"its footer says {metadata.num_rows:,} rows, and it holds {rows:,}"
                )
            return rows


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Joins batches until they are enough for a row group."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES or len(held) * _BATCH_ROWS >= _GROUP_ROWS:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


@contextlib.contextmanager
def _reading(file: StoredFile) -> Iterator[parquet.ParquetFile]:
    """Opens a Parquet file, and explains errors that its content causes."""
    most = file.size_bytes
    try:
        with parquet.ParquetFile(
            file.uri,
            buffer_size=_READ_BYTES,
            # The default reads whole row groups.
            pre_buffer=False,
            page_checksum_verification=True,
        ) as opened:
            most = most_bytes(opened.metadata)
            yield opened
    except PARQUET_ERRORS as error:
        # Those of a disk have a number; those of damage do not.
        if isinstance(error, InputError) or (isinstance(error, OSError) and error.errno):
            raise
        raise_shortage(error, uri=file.uri, most_bytes=most)
        problem = f"not a Parquet file, or a damaged one: {describe_parquet_error(error)}"
        raise DamagedError(uri=file.uri, problem=f"{problem}; download it again") from error
