"""What `shardbeam formats` prints."""

from __future__ import annotations

from shardbeam.configs.keys import keys_of
from shardbeam.configs.load import describe_ready_config, ready_configs
from shardbeam.pipelines.flags import flag_name
from shardbeam.pipelines.tables import PLAIN, Layout, make_table, render_table
from shardbeam.transforms.formats.load import built_in_formats


def render_formats(*, layout: Layout = PLAIN) -> str:
    """Renders the formats, a line each: what it reads, and the flags that name its input.

    Below them are the ready configs, which stand in a command line where a format may.
    """
    formats = make_table("format", "reads", "flags", numbers=[])
    for name, format_class in built_in_formats().items():
        flags = [flag_name(key.name) for key in keys_of(format_class).values() if key.has_flag]
        formats.add_row(name, format_class.SUMMARY, " ".join(flags))
    ready = make_table("ready config", "writes", numbers=[])
    for name, file in ready_configs().items():
        ready.add_row(name, describe_ready_config(file))
    return "\n".join(render_table(table, layout=layout) for table in (formats, ready))
