"""What `shardbeam formats` prints."""

from __future__ import annotations

from shardbeam.configs.load import describe_ready_config, ready_configs
from shardbeam.configs.schema import SOURCES
from shardbeam.configs.source_keys import source_keys
from shardbeam.pipelines.tables import PLAIN, Layout, make_table, render_table


def render_formats(*, layout: Layout = PLAIN) -> str:
    """Renders the formats, a line each: what it reads, and the flags that name its input.

    Below them are the ready configs, which stand in a command line where a format may.
    """
    formats = make_table("format", "reads", "flags", numbers=[])
    for name, source_class in SOURCES.items():
        flags = [
            f"--{key.name.replace('_', '-')}"
            for key in source_keys().values()
            if name in key.formats
        ]
        formats.add_row(name, source_class.SUMMARY, " ".join(flags))
    ready = make_table("ready config", "writes", numbers=[])
    for name, file in ready_configs().items():
        ready.add_row(name, describe_ready_config(file))
    return "\n".join(render_table(table, layout=layout) for table in (formats, ready))
