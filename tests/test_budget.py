"""How many modules a build, a reader and the help load: what loads more raises a number here.

A change that raises a number says beside it what the new modules are for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_COUNT = """
import sys

def loaded():
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return [
        name
        for name, file in files.items()
        if name.startswith("shardbeam.") and file and not file.endswith("__init__.py")
    ]
"""
_BUILD = """
import shardbeam
source = {
    "format": "coco",
    "images": f"{shapes}/images",
    "annotations": [f"{shapes}/annotations/instances.json"],
}
config = {"name": "s", "splits": {"train": source}, "output": {"path": output}}
shardbeam.build(config)
above = ("shardbeam.readers", "shardbeam.pipelines.cli", "shardbeam.pipelines.commands")
assert not [name for name in loaded() if name.startswith(above)]
"""
_OPEN = """
import shardbeam
shardbeam.open(output, split="train")[0]
"""
_HELP = """
from shardbeam.pipelines.cli.main import main
main(["--help"])
"""


# Modules of Shardbeam, without `__init__`, that are loaded.
# every stage of a build, its checks, what it counts; COCO's boxes and entries; the join's settings,
# and how it merges entries; facets and heat maps of boxes; the libraries that images need, a
# source's first sizes and what they show, and the comparison of both when a shard is taken over;
# sets of numbered files; how many rejects there may be
BUILD = 121
OPEN = 50  # what finds, indexes and reads Examples; how heat maps add up; libraries of images
HELP = 33  # names, flags and help of all commands, and the formats' keys


def test_no_more_modules_are_loaded_than_before(shapes: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    for code, most in ((_BUILD, BUILD), (_OPEN, OPEN), (_HELP, HELP)):
        assert _count(code, shapes=shapes, output=output) <= most


def _count(code: str, *, shapes: Path, output: Path) -> int:
    """Runs code in a Python of its own; returns how many modules of Shardbeam it has loaded."""
    program = f"shapes, output = sys.argv[1:]{code}print(len(loaded()), file=sys.stderr)"
    result = subprocess.run(
        [sys.executable, "-c", f"{_COUNT}{program}", str(shapes), str(output)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(result.stderr.split()[-1])
