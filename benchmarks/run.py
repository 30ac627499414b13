"""All benchmarks: `python -m benchmarks.run`, or `make bench`.

A full run takes about half an hour on two CPUs, 8 GB of memory (for the naive Beam graph) and 7 GB
below `benchmarks/data/`, where the data stay for the next time. It wants a machine that does
nothing else.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.coco_like import TRAIN2017_IMAGES
from benchmarks.images import run_images
from benchmarks.memory import run_memory
from benchmarks.records import run_records
from benchmarks.report import describe_machine
from benchmarks.storage import run_storage

_FOLDER = Path(__file__).parent
_PARTS = ("images", "records", "memory", "storage", "damage")
# How many by default, how many for --quick, and the fewest that make sense.
_COUNTS = {
    "images": (8_000, 24, 8),
    "records": (TRAIN2017_IMAGES, 200, 10),
    "objects": (2_000, 24, 8),
    "damages": (1_000, 14, 7),
    "rounds": (3, 1, 1),
}

_METHOD = """\
What is measured are whole processes, from their start to their exit. Before each, what others have
written is synced to the disk, its input is in the page cache, and memory for its work has just been
used. Of several rounds a time is the median (least to most), and memory the most of all. Memory is
the resident set of the process and all its children, sampled every 50 ms. 1 MB is 10⁶ bytes.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmarks, prints the results and keeps those of a full run."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(words)
    for flag, (default, quick, _) in _COUNTS.items():
        if getattr(arguments, flag) is None:
            setattr(arguments, flag, quick if arguments.quick else default)
    parts: Mapping[str, Callable[[], str]] = {
        "images": lambda: run_images(
            data=arguments.data, images=arguments.images, rounds=arguments.rounds
        ),
        "records": lambda: run_records(
            data=arguments.data, images=arguments.records, rounds=arguments.rounds
        ),
        "memory": lambda: run_memory(data=arguments.data, images=arguments.records),
        "storage": lambda: run_storage(data=arguments.data, images=arguments.objects),
        "damage": lambda: run_damage(count=arguments.damages),
    }
    arguments.data.mkdir(parents=True, exist_ok=True)
    sections = [parts[name]() for name in arguments.only or _PARTS]
    command = shlex.join(["python", "-m", "benchmarks.run", *words])
    report = "\n".join([f"# Results of `{command}`\n", describe_machine(), _METHOD, *sections])
    print(report)
    output = arguments.output
    if output is None and not words:
        # RESULTS.md is edited by hand, and has figures of several machines.
        output = arguments.data / "results.md"
    if output is not None:
        output.write_text(report, encoding="utf-8")


def run_damage(*, count: int) -> str:
    """Damages JPEGs, and counts who notices.

    Args:
        count: How many.

    Returns:
        Markdown.
    """
    # A process of its own, as it imports TensorFlow.
    command = [sys.executable, "-m", "benchmarks.jpeg_damage", "--count", str(count)]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return f"## Damaged JPEGs\n\n{count:,} good JPEGs, each damaged once.\n\n{table}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument(
        "--only", choices=_PARTS, action="append", help="only this part (repeatable)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few of everything, once: tries the benchmarks only"
    )
    for flag, (default, _, minimum) in _COUNTS.items():
        parser.add_argument(
            f"--{flag}", type=_at_least(minimum), metavar="N", help=f"(default: {default:,})"
        )
    parser.add_argument("--data", type=Path, default=_FOLDER / "data", help="folder for the data")
    parser.add_argument(
        "--output", type=Path, help="file for the results (default of a full run: data/results.md)"
    )
    return parser


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"expected a whole number from {minimum} up")
        return int(text)

    return parse


if __name__ == "__main__":
    main()
