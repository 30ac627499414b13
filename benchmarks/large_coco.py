"""Reads long COCO files as a build's worker does, and prints the memory and the CPU time.

`python -m benchmarks.large_coco`, or `make bench-large`. Files of 367 MB and 4 GB, like COCO's own,
are written below `benchmarks/data/` first, where they stay for the next time. The memory is what
the process holds beyond its imports, without pages of files (`RssAnon`, so Linux only). Then the
shorter one is read as files of up to 512 MiB are, from memory, for comparison.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.coco_like import write_instances
from benchmarks.datasets import make_once
from benchmarks.measure import anonymous_bytes
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.find import storage_for

_FOLDER = Path(__file__).parent
_SAMPLE_INTERVAL_S = 0.01
# 367 MB and 4 GB.
_IMAGES = (91_500, 1_000_000)
_START = "start"


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the files, reads each, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=_IMAGES, metavar="N")
    parser.add_argument("--data", type=Path, default=_FOLDER / "data")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--masks", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--in-memory", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.read:
        _read(arguments.read, masks=arguments.masks, in_memory=arguments.in_memory)
        return
    arguments.data.mkdir(parents=True, exist_ok=True)
    print("| file | read | from | memory | CPU time |")
    print("|---:|---|---|---:|---:|", flush=True)
    for images in arguments.images:
        path = _make(arguments.data, images=images)
        for masks in ([], ["--masks"]):
            places: dict[str, list[str]] = {"disk": []}
            if images == min(arguments.images):
                places["memory"] = ["--in-memory"]
            for place, words in places.items():
                peak_bytes, cpu_s = _measure([*masks, *words, "--read", str(path)])
                print(
                    f"| {path.stat().st_size / 1e6:,.0f} MB | {'masks' if masks else 'boxes'} "
                    f"| {place} | {peak_bytes / 1e6:,.0f} MB | {cpu_s:.1f} s |",
                    flush=True,
                )


def _make(data: Path, *, images: int) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        write_instances(folder / "instances.json", images=images)

    return make_once(data / f"coco-instances-{images}", make=make) / "instances.json"


def _read(uri: str, *, masks: bool, in_memory: bool) -> None:
    """Reads a file once the parent says so, and prints the CPU time."""
    limits.WHOLE_ANNOTATION_BYTES = limits.ANNOTATION_BYTES if in_memory else 0
    source_format = CocoFormat(images="", annotations=[uri], tasks=["detection"], _masks=masks)
    print(_START, flush=True)
    sys.stdin.readline()
    started_s = time.process_time()
    for _ in source_format.read_annotations(storage=storage_for(uri), file_index=0):
        pass
    print(json.dumps(time.process_time() - started_s))


def _measure(words: Sequence[str]) -> tuple[int, float]:
    """Returns the peak of memory beyond the imports, and the CPU time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.large_coco", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline().strip() != _START:
            raise RuntimeError(f"{words}: the process has failed")
        before_bytes = peak_bytes = anonymous_bytes(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        while process.poll() is None:
            peak_bytes = max(peak_bytes, anonymous_bytes(process.pid))
            time.sleep(_SAMPLE_INTERVAL_S)
        return peak_bytes - before_bytes, json.loads(process.stdout.read())
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
