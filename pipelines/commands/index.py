"""`shardbeam index`: writes indexes of TFRecord files. Needs no Beam and no TensorFlow."""

from __future__ import annotations

import contextlib
import posixpath

from shardbeam.pipelines.cli.commands import IndexArguments
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.interrupts import delay_interrupts, do_when_interrupted
from shardbeam.pipelines.overlap import check_outside_datasets
from shardbeam.readers.open.make_index import check_indexable, index_shard, render_idx
from shardbeam.readers.open.stored_dataset import open_dataset, read_feature_map
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.dataset.index import index_parquet
from shardbeam.transforms.storage.base import dangling_link, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.local import remove_scratch


def run_index(arguments: IndexArguments) -> None:
    """Writes an index of each TFRecord file of a dataset.

    Raises:
        UsageError: The output lies in a dataset, has an index already, or is not a folder.
        InputError: There is no dataset, or a file cannot be read or is damaged.
        OSError: An index cannot be written.
    """
    dataset = open_dataset(arguments.path)
    splits = check_indexable(dataset)
    check_outside_datasets(arguments.output, name="--output")
    kinds = (".parquet", ".idx") if arguments.idx else (".parquet",)
    storage = storage_for(arguments.output)
    is_taken = not storage.is_remote and storage.holds(arguments.output)
    if is_taken and not storage.is_folder(arguments.output):
        problem = dangling_link(arguments.output) or f"{arguments.output} is not a folder"
        raise UsageError(f"--output: {problem}; name another one")
    shards = [posixpath.basename(shard.uri) for split in splits for shard in split.shards]
    names = {name + kind for name in shards for kind in kinds}
    for name in sorted(names):
        uri = join_uri(arguments.output, name)
        if not arguments.overwrite and storage.holds(uri):
            raise UsageError(f"--output: {uri} exists; replace it with --overwrite")
    if not storage.is_remote:
        remove_scratch(arguments.output, names=names)
    feature_map = read_feature_map(dataset)
    written: list[str] = []
    lines: list[str] = []

    def remove_written() -> None:
        """Removes the files of a command that fails, so that it can be run again."""
        for uri in () if arguments.overwrite else written:
            with contextlib.suppress(OSError):
                storage.delete(uri)

    with contextlib.ExitStack() as stack, do_when_interrupted(remove_written):
        stack.callback(remove_written)
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
                        storage.replace(f"{uri}.idx", render_idx(columns))
                        written.append(f"{uri}.idx")
                    storage.replace(f"{uri}.parquet", index_parquet(columns, rows=rows))
                    written.append(f"{uri}.parquet")
                examples += rows
            counts = f"{counted(examples, 'example')} in {counted(len(split.shards), 'file')}"
            lines.append(f"{escape(split.name)}: {counts}\n")
        stack.pop_all()
    write_stdout("".join(lines))
