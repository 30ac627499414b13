"""How much code there is, and how much of it a small build runs: `python -m benchmarks.weight`.

What runs is counted where Python calls it (`sys.setprofile`, in all threads of this process), from
the import of the command on. A module, the body of a class and a comprehension are code as well,
but no functions.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

from benchmarks.measure import SHARDBEAM
from benchmarks.report import markdown_table

_ROOT = Path(__file__).resolve().parents[1]
_PRODUCT = ("configs", "pipelines", "shardbeam", "transforms")
_IMAGES = 8


def count_lines() -> Counter[str]:
    """Counts the lines of Python, by folder; those of `transforms` by their rooms."""
    lines: Counter[str] = Counter()
    for top in (*_PRODUCT, "tests", "benchmarks"):
        for path in (_ROOT / top).rglob("*.py"):
            # `shardbeam` has links to the others; what a tool has made is not to be read.
            if path.resolve() == path and not path.name.endswith("_pb2.py"):
                folder = path.parent.relative_to(_ROOT).parts[: 2 if top == "transforms" else 1]
                lines["/".join(folder)] += len(path.read_bytes().splitlines())
    return lines


def code_run(run: Callable[[], object]) -> set[CodeType]:
    """Returns the code of ours that a call runs, in all threads."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        del event, argument
        codes.add(frame.f_code)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return {code for code in codes if _folder(code) in _PRODUCT}


def is_function(code: CodeType) -> bool:
    """Tells a function from a module, the body of a class and a comprehension."""
    return bool(code.co_flags & inspect.CO_OPTIMIZED) and not code.co_name.startswith("<")


def _file(code: CodeType) -> Path:
    return Path(code.co_filename).resolve()


def _folder(code: CodeType) -> str:
    path = _file(code)
    return path.relative_to(_ROOT).parts[0] if path.is_relative_to(_ROOT) else ""


def _build_small(folder: Path) -> None:
    from shardbeam.pipelines.cli import main as run_command

    output = io.StringIO()
    words = ["build", "coco", "--images", str(folder / "shapes" / "images")]
    words += ["--annotations", str(folder / "shapes" / "annotations" / "instances.json")]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = run_command([*words, "--output", str(folder / "out")])
    if code:
        raise RuntimeError(output.getvalue())


def main() -> None:
    """Prints both counts as tables."""
    lines = count_lines()
    product = sum(count for room, count in lines.items() if room.split("/")[0] in _PRODUCT)
    rows = [(room, f"{count:,}") for room, count in sorted(lines.items())]
    rows.append(("the product", f"{product:,}"))
    sys.stdout.write(markdown_table(("folder", "lines"), rows) + "\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = ("sample", "shapes", "--output", str(folder / "shapes"), "--images", str(_IMAGES))
        subprocess.run([SHARDBEAM, *words], check=True, capture_output=True)
        codes = code_run(lambda: _build_small(folder))
    rows = [
        (folder, f"{count:,}") for folder, count in sorted(Counter(map(_folder, codes)).items())
    ]
    rows += [
        ("all", f"{len(codes):,}"),
        ("files", f"{len(set(map(_file, codes))):,}"),
        ("functions", f"{sum(map(is_function, codes)):,}"),
    ]
    heading = (f"a build of {_IMAGES} COCO images runs pieces of code of", "")
    sys.stdout.write(markdown_table(heading, rows))


if __name__ == "__main__":
    main()
