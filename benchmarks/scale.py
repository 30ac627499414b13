"""What grows with what: each stage on more and more records, and the slopes."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

import msgspec
import numpy as np

from benchmarks.datasets import make_once
from benchmarks.measure import measure
from benchmarks.report import markdown_table, megabytes
from benchmarks.scale_stages import OBJECTS, staged_shard
from shardbeam.transforms.staging.staging import Staging
from tests.support.gcs_server import find_server, running_server
from tests.support.listing_server import ListingServer, Names

# The largest number is given; the others are that many times smaller.
_RECORD_STEPS = (100, 10, 1)
_SHARD_STEPS = (1000, 100, 10, 1)
# A record's shards are a thousandth, by default; to see what many shards cost, take a tenth.
_RECORDS_PER_SHARD = 10
_RECORDS_PER_OBJECT = 100
_FEWEST = 100
_FOLDER_FILES = 1000
_HOST_VARIABLE = "STORAGE_EMULATOR_HOST"

_INTRODUCTION = """\
Each stage runs in a process of its own, on the in-process runner with one worker, on synthetic
records without images (an image's record has 3 boxes and is about 0.4 KB long). A slope is that of
the straight line through the numbers, by least squares. Time is that of CPUs, in user and system
mode, which depends less than the time of day on what else the machine does; memory is the peak
beyond the imports. The in-process runner keeps in memory what is shuffled; others do not.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A stage, measured once.

    Attributes:
        number: How many of what it works on.
        wall_s: Seconds.
        cpu_s: Seconds of CPUs.
        peak_bytes: Memory, beyond the imports.
        input_bytes: What its input is long, where that is a file.
    """

    number: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    input_bytes: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Stage:
    """A stage.

    Attributes:
        name: What `benchmarks.scale_stages` calls it.
        words: What it does.
        unit: What is counted.
        prepare: Makes its input; returns the folder, and the length of the input.
    """

    name: str
    words: str
    unit: str
    prepare: Callable[[int, Path], tuple[Path, int]]


def run_scale(*, data: Path, records: int) -> str:
    """Measures the stages.

    Args:
        data: Folder of the benchmarks' data.
        records: The largest number of records; of shards, a tenth.

    Returns:
        Markdown.
    """
    numbers = _numbers(records, _RECORD_STEPS)
    shards = _numbers(records // _RECORDS_PER_SHARD, _SHARD_STEPS)
    with tempfile.TemporaryDirectory(dir=data, prefix="output-") as temporary:
        scratch = Path(temporary)
        make = functools.partial(_prepare, data=data, scratch=scratch)
        measured = {
            stage: [_measure(stage, number, data=scratch) for number in of]
            for stage, of in (
                *((stage, numbers) for stage in _record_stages(make)),
                *((stage, shards) for stage in _shard_stages(make)),
            )
        }
    tables = [_table(measured), _measure_listings(names=records)]
    program = find_server()
    if program is None:
        tables.append("Requests were not measured: fake-gcs-server is not here.\n")
    else:
        tables.append(_measure_requests(program, objects=max(10, records // _RECORDS_PER_OBJECT)))
    return "\n".join(["## Scale\n", _INTRODUCTION, *tables])


def _numbers(largest: int, steps: Sequence[int]) -> list[int]:
    # Of fewer, nothing can be said.
    return [largest // step for step in steps if largest // step >= _FEWEST or step == 1]


def _record_stages(make: Callable[..., Callable[[int, Path], tuple[Path, int]]]) -> list[_Stage]:
    return [
        _Stage(name="list", words="list a folder, summarize", unit="file", prepare=make(_files)),
        _Stage(
            name="survey",
            words="JSON Lines: find out types (at launch)",
            unit="row",
            prepare=make(_rows),
        ),
        _Stage(
            name="parse_jsonl", words="JSON Lines: parse in parts", unit="row", prepare=make(_rows)
        ),
        _Stage(name="parse_coco", words="COCO: parse one file", unit="image", prepare=make(_coco)),
        _Stage(name="join", words="join", unit="image", prepare=make(None)),
        _Stage(name="group", words="split, shard, group, sort", unit="record", prepare=make(None)),
        _Stage(name="cut", words="ends of exact splits", unit="image", prepare=make(None)),
        _Stage(name="rejects", words="one file of rejects", unit="reject", prepare=make(None)),
    ]


def _shard_stages(make: Callable[..., Callable[[int, Path], tuple[Path, int]]]) -> list[_Stage]:
    return [
        _Stage(
            name="commit", words="commit: gate, move, finish", unit="shard", prepare=make(_staged)
        ),
        _Stage(
            name="gather",
            words="gate and finish without the runner",
            unit="shard",
            prepare=make(None),
        ),
        _Stage(
            name="read_manifest",
            words="read the manifest (next run)",
            unit="shard",
            prepare=make(_committed),
        ),
    ]


def _prepare(
    write: Callable[[int, Path, Path], tuple[Path, int]] | None, *, data: Path, scratch: Path
) -> Callable[[int, Path], tuple[Path, int]]:
    def prepare(number: int, folder: Path) -> tuple[Path, int]:
        return (folder, 0) if write is None else write(number, data, scratch)

    return prepare


def _measure(stage: _Stage, number: int, *, data: Path) -> Point:
    folder, input_bytes = stage.prepare(number, data)
    point = _measure_stage(stage.name, number, folder=folder, input_bytes=input_bytes)
    print(
        f"scale: {stage.words}: {number:,} {stage.unit}s: {point.cpu_s:.1f} s of CPUs, "
        f"{point.peak_bytes / 1e6:,.0f} MB",
        file=sys.stderr,
    )
    return point


def _measure_stage(name: str, number: int, *, folder: Path, input_bytes: int = 0) -> Point:
    words = (name, str(number), str(folder))
    measured = measure((sys.executable, "-m", "benchmarks.scale_stages", *words))
    found = json.loads(measured.stdout.splitlines()[-1])
    return Point(number=number, input_bytes=input_bytes, **found)


def _files(number: int, data: Path, scratch: Path) -> tuple[Path, int]:
    del scratch

    def make(folder: Path) -> None:
        for begin in range(0, number, _FOLDER_FILES):
            below = folder / f"{begin // _FOLDER_FILES:06d}"
            below.mkdir(parents=True)
            for index in range(begin, min(number, begin + _FOLDER_FILES)):
                os.close(os.open(below / f"{index:012d}.jpg", os.O_CREAT))

    return make_once(data / f"scale-files-{number}", make=make), 0


def _rows(number: int, data: Path, scratch: Path) -> tuple[Path, int]:
    del scratch

    def make(folder: Path) -> None:
        folder.mkdir()
        with (folder / "rows.jsonl").open("w") as file:
            for index in range(number):
                row = {
                    "image": f"gs://a-bucket/of-images/train/{index // 1000:06d}/{index:012d}.jpg",
                    "label": f"class {index % 1000}",
                    "source": "camera",
                    "score": index % 97 / 97,
                }
                file.write(f"{json.dumps(row)}\n")

    folder = make_once(data / f"scale-rows-{number}", make=make)
    return folder, (folder / "rows.jsonl").stat().st_size


def _coco(number: int, data: Path, scratch: Path) -> tuple[Path, int]:
    del scratch

    def make(folder: Path) -> None:
        folder.mkdir()
        with (folder / "instances.json").open("w") as file:
            file.write('{"categories": [{"id": 1, "name": "thing"}], "images": [')
            for index in range(number):
                image = {"id": index, "file_name": f"{index:012d}.jpg", "width": 640, "height": 480}
                file.write(f"{',' if index else ''}{json.dumps(image)}\n")
            file.write('], "annotations": [')
            for index in range(OBJECTS * number):
                annotation = {
                    "id": index,
                    "image_id": index % number,
                    "category_id": 1,
                    "bbox": [10.25, 20.5, 100.75, 200.5],
                    "area": 20200.375,
                    "iscrowd": 0,
                }
                file.write(f"{',' if index else ''}{json.dumps(annotation)}\n")
            file.write("]}")

    folder = make_once(data / f"scale-coco-{number}", make=make)
    return folder, (folder / "instances.json").stat().st_size


def _staged(number: int, data: Path, scratch: Path) -> tuple[Path, int]:
    """Stages empty shards, each with its index and its done-file, in a folder of its own."""
    del data
    folder = scratch / f"shards-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    staging = Staging(output=str(folder / "output"), plan="plan", run_id="")
    for index in range(number):
        shard = staged_shard(index, num_shards=number)
        for file in (shard.data, shard.index):
            path = Path(staging.uri(shard.staged, file.path))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        # Not synced to the disk, other than the real one.
        done = Path(staging.uri("shards", shard.key, "done"))
        done.write_bytes(msgspec.msgpack.encode(shard))
    return folder, 0


def _committed(number: int, data: Path, scratch: Path) -> tuple[Path, int]:
    del data
    folder = scratch / f"shards-{number}"
    return folder, (folder / "output" / "manifest.json").stat().st_size


def slope(points: Sequence[Point], value: Callable[[Point], float]) -> float:
    """Finds how much a value grows with each more, by least squares."""
    if len(points) == 1:
        return value(points[0]) / points[0].number
    each, _ = np.polyfit([point.number for point in points], [*map(value, points)], deg=1)
    return float(each)


def _table(measured: dict[_Stage, list[Point]]) -> str:
    return markdown_table(
        [
            "stage",
            "numbers",
            "CPU time, s",
            "slope, µs of CPU each",
            "peak memory, MB",
            "slope, bytes each",
            "input, bytes each",
        ],
        [
            (
                stage.words,
                f"{', '.join(_short(point.number) for point in points)} {stage.unit}s",
                ", ".join(f"{point.cpu_s:.2f}" for point in points),
                f"{1e6 * slope(points, lambda point: point.cpu_s):,.1f}",
                ", ".join(f"{point.peak_bytes / 1e6:,.0f}" for point in points),
                f"{slope(points, lambda point: point.peak_bytes):,.0f}",
                f"{points[-1].input_bytes / points[-1].number:,.0f}"
                if points[-1].input_bytes
                else "",
            )
            for stage, points in measured.items()
        ],
    )


def _short(number: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if number >= size and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def _measure_listings(*, names: int) -> str:
    stages = [("gs://", "gcs_list")]
    if importlib.util.find_spec("s3fs"):
        stages.append(("s3://", "s3_list"))
    rows = []
    for layout, folders in (("one folder", 0), ("1,000 folders", 1000)):
        for scheme, stage in stages:
            with (
                ListingServer(Names(names, folders=folders)) as server,
                mock.patch.dict(os.environ, server.environment),
                tempfile.TemporaryDirectory() as temporary,
            ):
                point = _measure_stage(stage, names, folder=Path(temporary))
            cpu = f"{1e6 * point.cpu_s / names:.1f}"
            row = (f"`{scheme}`, {layout}", f"{names:,}", f"{server.requests:,}")
            rows.append((*row, cpu, megabytes(point.peak_bytes)))
    headings = [
        *("list", "names", "requests", "µs of the client's CPU each"),
        "peak memory beyond the imports, MB",
    ]
    return markdown_table(headings, rows)


def _measure_requests(program: str, *, objects: int) -> str:
    with (
        running_server(program) as storage,
        mock.patch.dict(os.environ, {_HOST_VARIABLE: storage.proxy.host}),
        tempfile.TemporaryDirectory() as temporary,
    ):
        bucket = storage.make_bucket("scale")
        for index in range(objects):
            storage.write(f"{bucket}/objects/{index:012d}", b"")
        rows = []
        for name, words, requests in (
            ("gcs_rename", "move: ask for its version, rewrite, delete", 3),
            ("gcs_delete", "delete (and list)", 1 + 1 / 1000),
        ):
            point = _measure_stage(name, objects, folder=Path(temporary))
            milliseconds = 1e3 * point.cpu_s / objects
            rows.append((words, f"{objects:,}", f"{requests:g}", f"{milliseconds:.3f}"))
    headings = [
        "in Google Cloud Storage",
        "objects",
        "requests each",
        "ms of the client's CPU each",
    ]
    return markdown_table(headings, rows)
