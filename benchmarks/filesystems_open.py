"""Reads all objects below a prefix with Beam's `FileSystems.open`, as a DoFn would.

`python -m benchmarks.filesystems_open PREFIX THREADS`; prints images a second, imports left out.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from apache_beam.internal.gcp import auth
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions


def read(path: str) -> int:
    with FileSystems.open(path) as file:
        return len(file.read())


def main() -> None:
    prefix, threads = sys.argv[1:]
    # A stand-in of the service asks for no credentials; Beam looks for them for half a minute.
    auth._Credentials._credentials_init = True
    FileSystems.set_options(PipelineOptions([]))
    started_s = time.monotonic()
    paths = [metadata.path for metadata in FileSystems.match([f"{prefix}**"])[0].metadata_list]
    with ThreadPoolExecutor(max_workers=int(threads)) as executor:
        read_bytes = sum(executor.map(read, paths))
    wall_time_s = time.monotonic() - started_s
    print(json.dumps({"images_per_s": len(paths) / wall_time_s, "bytes": read_bytes}))


if __name__ == "__main__":
    main()
