"""All benchmarks: `python -m benchmarks.run`, or `make bench`.

A full run takes about half an hour on two CPUs, and 5 GB below `benchmarks/data/`, where
the data stay for the next time. It wants a machine that does nothing else.
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
from benchmarks.records import run_records
from benchmarks.report import describe_machine

_FOLDER = Path(__file__).parent
_PARTS = ("images", "records", "damage")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the benchmarks, prints the results and keeps those of a full run."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser().parse_args(words)
    parts: Mapping[str, Callable[[], str]] = {
        "images": lambda: run_images(
            data=arguments.data, images=arguments.images, rounds=arguments.rounds
        ),
        "records": lambda: run_records(
            data=arguments.data, images=arguments.records, rounds=arguments.rounds
        ),
        "damage": lambda: run_damage(count=arguments.damages),
    }
    arguments.data.mkdir(parents=True, exist_ok=True)
    sections = [parts[name]() for name in arguments.only or _PARTS]
    command = shlex.join(["python", "-m", "benchmarks.run", *words])
    report = "\n".join([f"# Results of `{command}`\n", describe_machine(), *sections])
    print(report)
    output = arguments.output
    if output is None and not words:
        output = _FOLDER / "RESULTS.md"
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
    parser.add_argument("--images", type=int, default=8_000, help="(default: %(default)s)")
    parser.add_argument(
        "--records", type=int, default=TRAIN2017_IMAGES, help="(default: %(default)s)"
    )
    parser.add_argument("--damages", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--data", type=Path, default=_FOLDER / "data", help="folder for the data")
    parser.add_argument(
        "--output", type=Path, help="file for the results (default of a full run: RESULTS.md)"
    )
    return parser


if __name__ == "__main__":
    main()
