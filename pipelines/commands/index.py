"""`shardbeam index`: writes indexes of TFRecord files. Needs no Beam and no TensorFlow."""

from __future__ import annotations

import contextlib
import posixpath
import threading
from collections.abc import Sequence

from shardbeam.pipelines.cli.commands import IndexArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.interrupts import delay_interrupts, do_when_interrupted
from shardbeam.pipelines.overlap import check_outside_datasets
from shardbeam.readers.open.make_index import check_indexable, index_shard, render_idx
from shardbeam.readers.open.stored_dataset import StoredSplit, open_dataset, read_feature_map
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.dataset.index import index_parquet
from shardbeam.transforms.storage.base import Storage, StoredFile, dangling_link, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import remove_scratch

# How long an interrupt waits for storage to remove files.
_REMOVING_S = 10.0


def run_index(arguments: IndexArguments) -> None:
    """Writes an index of each TFRecord file of a dataset.

    Raises:
        UsageError: The output lies in a dataset, has an index already, or is not a folder.
        InputError: There is no dataset, or a file cannot be read or is damaged.
        OSError: An index cannot be written.
    """
    dataset = open_dataset(arguments.path)
    splits = check_indexable(dataset)
    _check_output(arguments, splits)
    feature_map = read_feature_map(dataset)
    output = _Output(storage_for(arguments.output), keeps=arguments.overwrite)
    lines: list[str] = []
    with contextlib.ExitStack() as stack, do_when_interrupted(output.remove_soon):
        stack.callback(output.remove)
        for split in splits:
            examples = 0
            for number, shard in enumerate(split.shards):
                columns, rows = index_shard(
                    shard, split=split.name, shard_index=number, feature_map=feature_map
                )
                uri = join_uri(arguments.output, posixpath.basename(shard.uri))
                # An interrupt leaves no temporary file.
                with delay_interrupts():
                    if arguments.idx:
                        output.write(f"{uri}.idx", render_idx(columns))
                    output.write(f"{uri}.parquet", index_parquet(columns, rows=rows))
                examples += rows
            counts = f"{counted(examples, 'example')} in {counted(len(split.shards), 'file')}"
            lines.append(f"{escape(split.name)}: {counts}\n")
        stack.pop_all()
    write_stdout("".join(lines))


def _check_output(arguments: IndexArguments, splits: Sequence[StoredSplit]) -> None:
    check_outside_datasets(arguments.output, name="--output")
    storage = storage_for(arguments.output)
    is_taken = not storage.is_remote and storage.holds(arguments.output)
    if is_taken and not storage.is_folder(arguments.output):
        problem = dangling_link(arguments.output) or f"{arguments.output} is not a folder"
        raise UsageError(f"--output: {problem}; name another one")
    kinds = (".parquet", ".idx") if arguments.idx else (".parquet",)
    shards = [posixpath.basename(shard.uri) for split in splits for shard in split.shards]
    names = {name + kind for name in shards for kind in kinds}
    for name in sorted(names):
        uri = join_uri(arguments.output, name)
        if not arguments.overwrite and storage.holds(uri):
            raise UsageError(f"--output: {uri} exists; replace it with --overwrite")
    if not storage.is_remote:
        remove_scratch(arguments.output, names=names)


class _Output:
    """The files that the command has written, which a failure removes so that it can run again.

    Args:
        storage: Where they are written.
        keeps: Whether a failure leaves them, because they may have replaced older ones.
    """

    def __init__(self, storage: Storage, *, keeps: bool) -> None:
        self._storage = storage
        self._keeps = keeps
        self._written: dict[str, StoredFile | None] = {}

    def write(self, uri: str, data: bytes) -> None:
        """Writes a file, or replaces it."""
        self._storage.replace(uri, data)
        self._written[uri] = self._storage.stat(uri)

    def remove(self) -> None:
        """Removes the files; one that another command has replaced meanwhile stays."""
        # Storage that fails for one file may take minutes to fail for each of the others.
        with contextlib.suppress(OSError, InputError):
            for uri, file in [] if self._keeps else [*self._written.items()]:
                if file is not None and self._storage.stat(uri) == file:
                    self._storage.delete(uri, version=file.version)

    def remove_soon(self) -> None:
        """Removes the files, but does not wait for storage that hangs."""
        thread = threading.Thread(target=self.remove, daemon=True)
        thread.start()
        thread.join(_REMOVING_S)
