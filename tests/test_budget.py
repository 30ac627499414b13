"""What a reader meets: the functions that a small build runs, and the code that it and `open` load.

What runs or loads more raises a number here, and says beside it what for. Files are not counted: a
file is one thing, however many there are.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import NamedTuple

from shardbeam.pipelines.commands.sample import write_shapes

IMAGES = 8

# Functions and methods of ours that a build of eight COCO images runs, those that its imports run
# among them, because some modules are imported on the way. Comprehensions do not count: from Python
# 3.12 on, most of them are no functions.
# Every stage of a build, its checks, what it counts; COCO's boxes and entries; the join's settings,
# and how it merges entries; facets and heat maps of boxes; a source's first sizes and what they
# show; sets of numbered files; how many rejects there may be; outlines that are not written.
FUNCTIONS = 954
# Lines of code in the modules that this build loads: beside the stages above, what the same build
# needs for images in archives and gzip files, on object storage, and for shards of an earlier one.
BUILD_LINES = 23_259
# Lines of code in the modules that finding, indexing and reading an Example of it loads: how heat
# maps add up, and the libraries of images, too.
OPEN_LINES = 7_948

# Blank lines, comments and the ends of lines are no code.
_NO_CODE = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    }
)

# Bodies of modules and classes are no functions: they have no `CO_OPTIMIZED`. The figures are the
# same at each run, with threads, too.
_MEASURE = """
import inspect, json, sys, threading
called = set()
def note(frame, event, argument):
    if event == "call":
        called.add(frame.f_code)
threading.setprofile(note)
sys.setprofile(note)
shapes, output = sys.argv[1:]
{program}
sys.setprofile(None)
threading.setprofile(None)
files = {{
    name: module.__file__
    for name, module in [*sys.modules.items()]
    if name.partition(".")[0] == "shardbeam" and getattr(module, "__file__", None)
}}
ours = {{*files.values()}}
functions = [
    code
    for code in called
    if code.co_filename in ours
    and code.co_flags & inspect.CO_OPTIMIZED
    and (code.co_name == "<lambda>" or not code.co_name.startswith("<"))
]
print(json.dumps({{"functions": len(functions), "files": files}}))
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
"""
_OPEN = """
import shardbeam
shardbeam.open(output, split="train")[0]
"""
# What a build never loads.
_ABOVE = ("shardbeam.readers", "shardbeam.pipelines.cli", "shardbeam.pipelines.commands")


class Usage(NamedTuple):
    """What a program uses of ours.

    Attributes:
        functions: How many functions it runs.
        files: `{module: its file}` of the modules that it loads.
    """

    functions: int
    files: dict[str, str]

    @property
    def lines(self) -> int:
        return sum(count_code_lines(Path(file).read_text()) for file in self.files.values())


def count_code_lines(source: str) -> int:
    """Counts the lines of a module, without blank lines, comments and docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            assert first.end_lineno is not None
            lines.difference_update(range(first.lineno, first.end_lineno + 1))
    return len(lines)


def test_no_more_runs_and_is_loaded_than_before(tmp_path: Path) -> None:
    shapes, output = tmp_path / "shapes", tmp_path / "out"
    write_shapes(output=shapes, images=IMAGES, seed=0, width=160, height=120, workers=1)
    build = _measure(_BUILD, shapes=shapes, output=output)
    opened = _measure(_OPEN, shapes=shapes, output=output)
    assert build.functions <= FUNCTIONS
    assert build.lines <= BUILD_LINES
    assert opened.lines <= OPEN_LINES
    assert not [name for name in build.files if name.startswith(_ABOVE)]


def test_what_is_a_line_of_code() -> None:
    source = '"""A module.\n\nOf two lines.\n"""\n\n# why\nx = """a\n\nb"""  # a text\n'
    function = 'def f():\n    """What it does."""\n    return (\n        x\n    )\n'
    assert (count_code_lines(source), count_code_lines(function)) == (3, 4)


def _measure(program: str, *, shapes: Path, output: Path) -> Usage:
    """Runs a program in a Python of its own."""
    result = subprocess.run(
        [sys.executable, "-c", _MEASURE.format(program=program), str(shapes), str(output)],
        check=True,
        capture_output=True,
        text=True,
    )
    return Usage(**json.loads(result.stdout.splitlines()[-1]))
