"""The first Examples of a dataset, and the formats. Neither Beam nor TensorFlow is needed."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Sequence

import numpy as np
from rich.filesize import decimal
from rich.text import Text

from shardbeam.configs.keys import flag_name, keys_of
from shardbeam.configs.load import describe_ready_config, ready_configs
from shardbeam.pipelines.flags import describe_format
from shardbeam.pipelines.logs import escape, write_stdout
from shardbeam.pipelines.tables import PLAIN, Layout, make_table, render_table, stdout_layout
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.read.dataset import StoredDataset, open_dataset
from shardbeam.transforms.dataset.read.examples import (
    feature_values,
    read_examples,
    recognize_image,
)
from shardbeam.transforms.examples.example_pb2 import Example
from shardbeam.transforms.formats.load import built_in_formats

# About as much as fits beside the keys on a usual terminal.
_VALUES_CHARACTERS = 64
_HEX_BYTES = 8
_SEPARATOR = ", "
_MORE = "…"
_TIMES = "\N{MULTIPLICATION SIGN}"


def show_dataset(path: str, *, split: str | None, limit: int) -> None:
    """Prints a dataset's splits, and the first Examples of one of them, on stdout.

    Args:
        path: What `open_dataset` opens.
        split: Which split; the first where None.
        limit: How many Examples.

    Raises:
        InputError: There is nothing to show, or not as much as asked for is whole.
    """
    layout = stdout_layout()
    dataset = open_dataset(path)
    shown = dataset.find_split(dataset.splits[0].name if split is None else split)
    if not write_stdout(_render_splits(dataset, layout=layout)):
        return
    examples = (
        (shard, example)
        for shard in shown.shards
        for example in read_examples(shard, container=shown.container)
    )
    number = 0
    for number, (shard, example) in enumerate(itertools.islice(examples, limit), 1):
        of = "" if shown.examples is None else f" of {shown.examples:,}"
        title = f"{shown.name}, example {number:,}{of}, in {posixpath.basename(shard.uri)}"
        if not write_stdout(f"\n{escape(title)}\n{render_example(example, layout=layout)}"):
            return
    if not number:
        raise InputError(uri=path, problem=f"no records in split {shown.name!r}")


def show_formats(name: str = "") -> None:
    """Prints the formats, a line each: what it reads, and the flags that name its input.

    Below them are the ready configs, which stand in a command line where a format may.

    Args:
        name: A format; then its help is printed instead.

    Raises:
        FormatError: There is no such format.
    """
    if name:
        write_stdout(describe_format(name))
        return
    formats = make_table("format", "reads", "flags", numbers=[])
    for name, format_class in built_in_formats().items():
        flags = [flag_name(key.name) for key in keys_of(format_class).values() if key.help]
        formats.add_row(name, format_class.SUMMARY, " ".join(flags))
    ready = make_table("ready config", "writes", numbers=[])
    for name, file in ready_configs().items():
        ready.add_row(name, describe_ready_config(file))
    layout = stdout_layout()
    write_stdout("\n".join(render_table(table, layout=layout) for table in (formats, ready)))


def render_example(example: Example, *, layout: Layout = PLAIN) -> str:
    """Renders an Example as a table: a line a key, with kind, number of values, and values."""
    table = make_table("key", "kind", numbers=["count"])
    table.add_column("values", overflow="fold")
    for key in sorted(example.features.feature):
        kind, values = feature_values(example.features.feature[key])
        table.add_row(
            Text(escape(key)),
            "none" if kind is None else kind.value,
            f"{len(values):,}",
            Text(describe_values(values)),
        )
    return render_table(table, layout=layout)


def _render_splits(dataset: StoredDataset, *, layout: Layout) -> str:
    table = make_table("split", numbers=["shards", "examples", "bytes"])
    for split in dataset.splits:
        table.add_row(
            Text(escape(split.name)),
            f"{len(split.shards):,}",
            "?" if split.examples is None else f"{split.examples:,}",
            decimal(sum(shard.size_bytes for shard in split.shards)),
        )
    return render_table(table, layout=layout)


def describe_values(values: Sequence[bytes | int | float]) -> str:
    """Describes the values of a feature in about a line."""
    described: list[str] = []
    room = _VALUES_CHARACTERS
    for value in values:
        text = _describe_value(value)
        room -= len(text) + len(_SEPARATOR)
        if described and room < 0:
            return f"{_SEPARATOR.join([*described, _MORE])} ({len(values):,})"
        described.append(text)
    return _SEPARATOR.join(described)


def _describe_value(value: bytes | int | float) -> str:
    if isinstance(value, bytes):
        return _describe_bytes(value)
    # The shortest text that tells a 32-bit float from all others.
    return str(np.float32(value)) if isinstance(value, float) else str(value)


def _describe_bytes(value: bytes) -> str:
    text = _text(value)
    if text is not None:
        return text
    image = recognize_image(value)
    size = decimal(len(value))
    if image is None:
        more = f" {_MORE}" if len(value) > _HEX_BYTES else ""
        return f"{size}: {value[:_HEX_BYTES].hex(' ')}{more}"
    file_format, header = image
    sides = "" if header is None else f" {header.width}{_TIMES}{header.height}"
    return f"{file_format.value}{sides}, {size}"


def _text(value: bytes) -> str | None:
    """Quotes what is text; None for other bytes, which may be UTF-8 by chance, but hold NULs."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    if len(text) > _VALUES_CHARACTERS:
        return f"'{escape(text[:_VALUES_CHARACTERS])}{_MORE} ({len(text):,})"
    return f"'{escape(text)}'"
