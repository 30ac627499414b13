"""Results as Markdown, and the machine that they come from."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

_LIBRARIES = (
    "shardbeam",
    "apache-beam",
    "msgspec",
    "pillow",
    "simplejpeg",
    "tensorflow",
    "tensorflow-datasets",
)


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Makes a table; the first column holds names, the others numbers."""
    rules = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, rules, *rows)) + "\n"


def target_row(what: str, *, measured: str, target: str, reached: bool) -> tuple[str, ...]:
    """Makes a row of a table of targets."""
    return what, measured, target, "yes" if reached else "**no**"


def megabytes(size_bytes: float) -> str:
    """Writes a size in MB (10⁶ bytes)."""
    return f"{size_bytes / 1e6:,.0f}"


def median_and_range(values: Sequence[float]) -> str:
    """Writes a median, and of several values the smallest and the largest."""
    median = f"{statistics.median(values):.1f}"
    return median if len(values) == 1 else f"{median} ({min(values):.1f} to {max(values):.1f})"


def describe_machine() -> str:
    """Describes processor, memory, system, libraries and the day."""
    libraries = ", ".join(f"{name} {_library_version(name)}" for name in _LIBRARIES)
    lines = (
        f"Processor: {_processor_name()}, {os.cpu_count()} CPUs",
        f"Memory: {psutil.virtual_memory().total / 1e9:.1f} GB",
        f"System: {platform.system()} {platform.release()}, Python {platform.python_version()}",
        f"Libraries: {libraries}",
        f"Date: {datetime.datetime.now(tz=datetime.timezone.utc):%Y-%m-%d}",
    )
    return "".join(f"- {line}\n" for line in lines)


def _library_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _processor_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
