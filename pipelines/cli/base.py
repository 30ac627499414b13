"""What the arguments of all commands have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from shardbeam.configs.keys import named

Count = Annotated[int, msgspec.Meta(ge=1, description="a whole number from 1 up")]
Anonymous = Annotated[bool, named("read public buckets (gs://) without credentials")]
JsonResult = Annotated[bool, named("print the result as one JSON object")]
Report = Annotated[
    str | None,
    named("write the result as JSON to this file; needed with --runner", metavar="URI"),
]
Overwrite = Annotated[
    bool,
    named("replace any file of this name (default: only an older one of this dataset)"),
]
# For commands that run a job to read a dataset.
BEAM_EPILOG = """\
All pipeline options of Apache Beam work, too. Without --runner, it runs on this machine.
"""


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a command; a field with a help text (`named`) is a flag.

    Attributes:
        RUN: `module:function` in `pipelines` that runs the command and returns its exit code.
        WORDS: `{field: its name in messages}` for the words after the command, in order.
        USAGE: The first lines of its help.
        HELP: What it does.
        EPILOG: The last lines of its help.
    """

    RUN: ClassVar[str] = ""
    WORDS: ClassVar[Mapping[str, str]] = {}
    USAGE: ClassVar[str]
    HELP: ClassVar[str | None] = None
    EPILOG: ClassVar[str | None] = None
