"""`shardbeam formats`. Neither Beam nor TensorFlow is needed."""

from __future__ import annotations

from shardbeam.configs.keys import flag_name, keys_of
from shardbeam.configs.load import describe_ready_config, ready_configs
from shardbeam.pipelines.cli.commands import FormatsArguments
from shardbeam.pipelines.cli.flags import describe_format
from shardbeam.pipelines.cli.logging import write_stdout
from shardbeam.pipelines.cli.tables import make_table, render_table, stdout_layout
from shardbeam.transforms.formats.base import built_in_formats


def run_formats(arguments: FormatsArguments) -> None:
    """Prints one line for each format: what it reads, and the flags that name its input.

    Below are the ready configs, which a command takes in place of a format. If a format is given,
    this prints the help of that format instead.

    Raises:
        FormatError: There is no such format.
    """
    if arguments.format:
        write_stdout(describe_format(arguments.format))
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
