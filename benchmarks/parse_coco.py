"""Parses a COCO file as a build's worker does, and drops the result.

`python -m benchmarks.parse_coco FILE` prints seconds and entries as JSON; without a file it
ends after its imports, which a measurement of memory subtracts.
"""

from __future__ import annotations

import json
import sys
import time

from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.storage.find import storage_for


def main() -> None:
    if len(sys.argv) == 1:
        return
    uri = sys.argv[1]
    started_s = time.monotonic()
    source_format = CocoFormat(images="", annotations=[uri])
    entries = sum(1 for _ in source_format.read_annotations(storage=storage_for(uri), file_index=0))
    print(json.dumps({"parse_s": time.monotonic() - started_s, "entries": entries}))


if __name__ == "__main__":
    main()
