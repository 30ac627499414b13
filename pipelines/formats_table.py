"""What `shardbeam formats` prints."""

from __future__ import annotations

from configs.schema import SOURCES
from configs.source_keys import source_keys
from pipelines.tables import PLAIN, Layout, make_table, render_table


def render_formats(*, layout: Layout = PLAIN) -> str:
    """Renders the formats, a line each: what it reads, and the flags that name its input."""
    table = make_table("format", "reads", "flags", numbers=[])
    for name, source_class in SOURCES.items():
        flags = [
            f"--{key.name.replace('_', '-')}"
            for key in source_keys().values()
            if name in key.formats
        ]
        table.add_row(name, source_class.SUMMARY, " ".join(flags))
    return render_table(table, layout=layout)
