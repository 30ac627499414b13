"""Measures reading images one by one: `shardbeam.open`, other containers and plain files.

`python -m benchmarks.run --only reading` installs the other readers into an environment of its own
below the benchmarks' data, because their libraries are not Shardbeam's. Each reader reads the same
images in processes of its own, once in order and once in a random order, and reports the CPU time
an image, in user and system mode, imports left out.

`python -m benchmarks.reading READER ORDER DECODE PART FOLDER` is such a process; part 0/2 is the
first half of the images. Only Shardbeam's own reader imports Shardbeam.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    # Other readers' environments lack what it imports.
    from benchmarks.datasets import Dataset

OURS, IMAGES, FILES = "shardbeam", "shardbeam_images", "files"
# {reader: how tables call it}
READERS = {
    OURS: "`shardbeam.open`",
    IMAGES: '`shardbeam.open`, `features=["image/encoded"]`',
    FILES: "raw files",
    "array_record": "ArrayRecord, `group_size:1`",
    "tfrecord": "`tfrecord` 1.14, with its `.idx`",
    "webdataset": "webdataset, `.tar`",
    "parquet": "Parquet, row groups of 100",
    "grain": "Grain over `shardbeam.open`",
}
# Readers that can read only in the order of the file.
_SEQUENTIAL = frozenset({"tfrecord", "webdataset"})
# The second line is what Grain needs to read through this project.
_PACKAGES = (
    *("array-record", "tfrecord", "webdataset", "pyarrow", "simplejpeg", "grain"),
    *("msgspec", "google-crc32c", "pillow", "protobuf<7", "pycocotools"),
)
_PROJECT = Path(__file__).resolve().parents[1]
# At most this many images are decoded, which takes a hundred times as long as reading them.
_DECODED = 1_000
_TARGET = 1.3
_SEED = 0
_GROUP = 100
# Readers that fetch a whole group for each image read fewer images.
_SLOW = {("parquet", "random"): 200}


class _Way(NamedTuple):
    """How images are read."""

    order: str
    decode: bool
    workers: int

    def label(self) -> str:
        """Returns what tables call it."""
        decoded = ", decoded" if self.decode else ""
        return f"{self.order}{decoded}, {self.workers} worker{'s' * (self.workers > 1)}"


_WAYS = [
    _Way(order, decode, workers)
    for decode in (False, True)
    for order in ("sequential", "random")
    for workers in (1, 2)
]


def run_reading(*, data: Path, images: int, rounds: int, rows: int) -> str:
    """Measures all readers, and the memory of an open dataset.

    Args:
        data: Folder of the benchmarks' data.
        images: How many images.
        rounds: How often each reader runs, in turn with the others.
        rows: How many Examples the dataset has whose memory is measured.

    Returns:
        Markdown.
    """
    from benchmarks.datasets import make_shapes
    from benchmarks.report import markdown_table, target_row

    dataset = make_shapes(data, images=images)
    folder = _make_containers(data, dataset=dataset, images=images)
    readers = [name for name in READERS if _can_read(name, folder)]
    figures: dict[tuple[str, _Way], list[float]] = {}
    for _ in range(rounds):
        for way in _WAYS:
            for name in readers:
                if way.order == "random" and name in _SEQUENTIAL:
                    continue
                figures.setdefault((name, way), []).append(_measure(name, way=way, folder=folder))
    medians = {key: statistics.median(costs) for key, costs in figures.items()}
    table = markdown_table(
        ["CPU µs an image", *(way.label() for way in _WAYS)],
        [
            [
                READERS[name],
                *(f"{medians[name, way]:,.0f}" if (name, way) in medians else "" for way in _WAYS),
            ]
            for name in readers
        ],
    )
    plain = [way for way in _WAYS if not way.decode]
    ratios = {
        ours: max(medians[ours, way] / medians[FILES, way] for way in plain)
        for ours in (OURS, IMAGES)
    }
    others = [
        cost / medians[OURS, way]
        for (name, way), cost in medians.items()
        if name not in (OURS, IMAGES, FILES, "grain")
    ]
    targets = markdown_table(
        ["target", "measured", "aim", "reached"],
        [
            *(
                target_row(
                    f"{READERS[ours]} by raw files, not decoded",
                    measured=f"{ratio:.2f}",
                    target=f"≤ {_TARGET}",
                    reached=ratio <= _TARGET,
                )
                for ours, ratio in ratios.items()
            ),
            *(
                [
                    target_row(
                        "the nearest other container by `shardbeam.open`",
                        measured=f"{min(others):.2f}",
                        target="≥ 1",
                        reached=min(others) >= 1,
                    )
                ]
                if others
                else []
            ),
        ],
    )
    introduction = (
        f"{images:,} images of {dataset.mean_image_bytes() / 1e3:.0f} KB on the average with "
        f"their boxes, in the page cache; rounds: {rounds}. An item has all keys of its Example, "
        f"unless `features` says which; a raw file is the image alone. Two workers are two "
        f"processes that read half of the images each. At most {_DECODED:,} images are decoded.\n"
    )
    return "\n".join(["## Reading\n", introduction, table, targets, _memory(data, rows=rows)])


def _can_read(name: str, folder: Path) -> bool:
    return name in (OURS, IMAGES, FILES) or (folder / name).exists()


def _measure(name: str, *, way: _Way, folder: Path) -> float:
    """Runs a reader in processes of its own; returns CPU microseconds an image."""
    own = folder.parent / "readers" / "bin" / "python"
    python = sys.executable if name in (OURS, IMAGES, FILES) else str(own)
    words = [python, "-m", "benchmarks.reading", name, way.order, str(int(way.decode))]
    processes = [
        subprocess.Popen(
            [*words, f"{worker}/{way.workers}", str(folder)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=_PROJECT,
        )
        for worker in range(way.workers)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise RuntimeError(f"{' '.join(words)} failed")
    return statistics.mean(float(json.loads(output)["us_per_image"]) for output in outputs)


# The containers


def _make_containers(data: Path, *, dataset: Dataset, images: int) -> Path:
    """Builds the dataset, and writes its images to the other containers."""
    from benchmarks.datasets import make_once
    from benchmarks.measure import SHARDBEAM

    def make(folder: Path) -> None:
        words = ("--images", str(dataset.images), "--annotations", str(dataset.annotations))
        shards = ("--set", f"output.num_shards={min(8, images)}")
        command = [SHARDBEAM, "build", "coco", *words, "--output", str(folder / OURS), *shards]
        subprocess.run(command, check=True, capture_output=True)
        os.symlink(dataset.images.resolve(), folder / FILES)
        python = _install_readers(data)
        if python is not None:
            script = [str(python), "-m", "benchmarks.reading", "write", str(folder)]
            subprocess.run(script, check=True, cwd=_PROJECT)

    return make_once(data / f"reading-{images}", make=make)


def _install_readers(data: Path) -> Path | None:
    """Installs the other readers, each as far as it can be; None if none can."""
    folder = data / "readers"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    for package in _PACKAGES:
        pip = [str(python), "-m", "pip", "install", "--quiet", package]
        if subprocess.run(pip, capture_output=True, check=False).returncode:
            print(f"{package} cannot be installed, and is left out", file=sys.stderr)
    return python


def write_containers(folder: Path) -> None:
    """Writes the Examples of the dataset to each container whose package is installed."""
    for name, write in (
        ("array_record", _write_array_record),
        ("tfrecord", _write_idx),
        ("webdataset", _write_tar),
        ("parquet", _write_parquet),
        ("grain", _link_grain),
    ):
        target = folder / name
        try:
            importlib.import_module("pyarrow" if name == "parquet" else name)
        except ImportError:
            continue
        target.mkdir()
        write(_records(folder), target)


def _records(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for shard in sorted((folder / OURS).glob("*.tfrecord-*")):
        data = shard.read_bytes()
        position = 0
        while position < len(data):
            length = int.from_bytes(data[position : position + 8], "little")
            yield shard, data[position + 12 : position + 12 + length]
            position += length + 16


def _by_shard(records: Iterable[tuple[Path, bytes]]) -> dict[Path, list[bytes]]:
    shards: dict[Path, list[bytes]] = {}
    for shard, record in records:
        shards.setdefault(shard, []).append(record)
    return shards


def _write_array_record(records: Iterable[tuple[Path, bytes]], target: Path) -> None:
    module: Any = importlib.import_module("array_record.python.array_record_module")
    for number, of_shard in enumerate(_by_shard(records).values()):
        writer = module.ArrayRecordWriter(str(target / f"{number}.array_record"), "group_size:1")
        for record in of_shard:
            writer.write(record)
        writer.close()


def _write_idx(records: Iterable[tuple[Path, bytes]], target: Path) -> None:
    for number, (shard, of_shard) in enumerate(_by_shard(records).items()):
        # Relative, because the folder is renamed when it is whole.
        os.symlink(os.path.relpath(shard, target), target / f"{number}.tfrecord")
        position, lines = 0, []
        for record in of_shard:
            lines.append(f"{position} {len(record) + 16}\n")
            position += len(record) + 16
        (target / f"{number}.idx").write_text("".join(lines))


def _write_tar(records: Iterable[tuple[Path, bytes]], target: Path) -> None:
    protobuf: Any = importlib.import_module("tfrecord").example_pb2
    number = 0
    for shard, of_shard in enumerate(_by_shard(records).values()):
        with tarfile.open(target / f"{shard}.tar", "w") as archive:
            for record in of_shard:
                features = protobuf.Example.FromString(record).features.feature
                image = features["image/encoded"].bytes_list.value[0]
                values = {
                    key: list(getattr(feature, feature.WhichOneof("kind")).value)
                    for key, feature in features.items()
                    if key != "image/encoded" and feature.WhichOneof("kind") != "bytes_list"
                }
                for suffix, data in (("jpg", image), ("json", json.dumps(values).encode())):
                    member = tarfile.TarInfo(f"{number:09}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
                number += 1


def _write_parquet(records: Iterable[tuple[Path, bytes]], target: Path) -> None:
    pyarrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    for number, of_shard in enumerate(_by_shard(records).values()):
        table = pyarrow.table({"record": pyarrow.array(of_shard, pyarrow.binary())})
        path = target / f"{number}.parquet"
        parquet.write_table(table, path, row_group_size=_GROUP, compression="none")


def _link_grain(records: Iterable[tuple[Path, bytes]], target: Path) -> None:
    del records, target


# The readers: each returns a function that gives the image of a number, or an iterator of images.


def _open_shardbeam(folder: Path) -> tuple[int, Callable[[int], bytes]]:
    import shardbeam

    dataset: Any = shardbeam.open(folder / OURS)
    return len(dataset), lambda number: dataset[number]["image/encoded"]


def _open_shardbeam_images(folder: Path) -> tuple[int, Callable[[int], bytes]]:
    import shardbeam

    dataset: Any = shardbeam.open(folder / OURS, features=["image/encoded"])
    return len(dataset), lambda number: dataset[number]["image/encoded"]


def _open_grain(folder: Path) -> tuple[int, Callable[[int], bytes]]:
    import shardbeam

    grain: Any = importlib.import_module("grain")
    dataset = grain.MapDataset.source(shardbeam.open(folder / OURS))
    return len(dataset), lambda number: dataset[number]["image/encoded"]


def _open_files(folder: Path) -> tuple[int, Callable[[int], bytes]]:
    paths = sorted(str(path) for path in (folder / FILES).iterdir())

    def read(number: int) -> bytes:
        with open(paths[number], "rb") as file:
            return file.read()

    return len(paths), read


def _open_array_record(folder: Path) -> tuple[int, Callable[[int], bytes]]:
    module: Any = importlib.import_module("array_record.python.array_record_data_source")
    protobuf = _example_class()
    paths = sorted(str(path) for path in (folder / "array_record").iterdir())
    source = module.ArrayRecordDataSource(paths)
    return len(source), lambda number: _values(protobuf.FromString(source[number]))


def _open_parquet(folder: Path) -> tuple[int, Callable[[int], bytes]]:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    protobuf = _example_class()
    files = [parquet.ParquetFile(path) for path in sorted((folder / "parquet").iterdir())]
    places = [
        (file, group, row)
        for file in files
        for group in range(file.num_row_groups)
        for row in range(file.metadata.row_group(group).num_rows)
    ]
    last: list[Any] = [None, None]

    def read(number: int) -> bytes:
        file, group, row = places[number]
        if last[0] != (file, group):
            last[:] = [(file, group), file.read_row_group(group, use_threads=False)["record"]]
        return _values(protobuf.FromString(last[1][row].as_py()))

    return len(places), read


# Readers that only go through whole shards: the shards are dealt out to the workers.


def _iterate_tfrecord(folder: Path, worker: int, workers: int) -> Iterator[bytes]:
    reader: Any = importlib.import_module("tfrecord.reader")
    for path in sorted((folder / "tfrecord").glob("*.tfrecord"))[worker::workers]:
        for item in reader.tfrecord_loader(str(path), str(path.with_suffix(".idx"))):
            yield item["image/encoded"]


def _iterate_webdataset(folder: Path, worker: int, workers: int) -> Iterator[bytes]:
    webdataset: Any = importlib.import_module("webdataset")
    paths = sorted(str(path) for path in (folder / "webdataset").iterdir())[worker::workers]
    for item in webdataset.WebDataset(paths, shardshuffle=False):
        yield json.loads(item["json"]) and item["jpg"]


def _example_class() -> Any:  # noqa: ANN401
    module: Any = importlib.import_module("tfrecord")
    return module.example_pb2.Example


def _values(example: Any) -> bytes:  # noqa: ANN401
    """Reads all values of an Example, as every reader here does; returns the image."""
    item = {
        key: getattr(feature, feature.WhichOneof("kind")).value[:]
        for key, feature in example.features.feature.items()
    }
    image: bytes = item["image/encoded"][0]
    return image


_OPEN: Mapping[str, Callable[[Path], tuple[int, Callable[[int], bytes]]]] = {
    OURS: _open_shardbeam,
    IMAGES: _open_shardbeam_images,
    FILES: _open_files,
    "array_record": _open_array_record,
    "parquet": _open_parquet,
    "grain": _open_grain,
}
_ITERATE = {"tfrecord": _iterate_tfrecord, "webdataset": _iterate_webdataset}


def _read(name: str, *, order: str, decode: bool, part: str, folder: Path) -> float:
    """Reads a part of the images; returns CPU microseconds an image."""
    worker, workers = (int(word) for word in part.split("/"))
    if decode:
        simplejpeg: Any = importlib.import_module("simplejpeg")
        take: Callable[[bytes], object] = simplejpeg.decode_jpeg
    else:
        take = len
    limit = _DECODED // workers if decode else None
    if name in _ITERATE:
        # Take one image before, because modules are imported when they are first used.
        next(_ITERATE[name](folder, worker, workers))
        started_s = time.process_time()
        count = 0
        for image in itertools.islice(_ITERATE[name](folder, worker, workers), limit):
            take(bytes(image))
            count += 1
        return (time.process_time() - started_s) / count * 1e6
    count, read = _OPEN[name](folder)
    numbers = list(range(count))
    if order == "random":
        random.Random(_SEED).shuffle(numbers)
    numbers = numbers[count * worker // workers : count * (worker + 1) // workers]
    numbers = numbers[: _SLOW.get((name, order), limit)]
    take(read(numbers[0]))
    started_s = time.process_time()
    for number in numbers:
        take(read(number))
    return (time.process_time() - started_s) / len(numbers) * 1e6


# Memory


def _memory(data: Path, *, rows: int) -> str:
    command = [sys.executable, "-m", "benchmarks.reading", "memory", str(data), str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    return (
        f"An open dataset of {rows:,} Examples in {found['shards']} shards takes "
        f"{found['bytes_per_row']:.1f} bytes of memory a row ({found['selected']:.1f} more for "
        f"each one that `where` selects), and opens in {found['open_s']:.2f} s of CPU time; "
        f"pickled, it has {found['pickled_bytes']:,} bytes.\n"
    )


def measure_memory(data: Path, *, rows: int) -> dict[str, float]:
    """Opens a dataset of empty images, and measures what stays in memory."""
    import pickle
    import tempfile
    import tracemalloc

    import google_crc32c

    import shardbeam
    from shardbeam.pipelines.cli.main import main
    from shardbeam.readers.open.selection import Where
    from shardbeam.transforms.containers.tfrecord import frame
    from shardbeam.transforms.examples.example_pb2 import Example

    shards = 8
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as temporary:
        folder = Path(temporary)
        example = Example()
        example.features.feature["image/object/class/label"].int64_list.value.append(1)
        record = example.SerializeToString(deterministic=True)
        header, footer = frame(len(record), crc32c=google_crc32c.value(record))
        for number in range(shards):
            count = (rows + number) // shards
            name = f"a-{number:05}-of-{shards:05}.tfrecord"
            (folder / name).write_bytes((header + record + footer) * count)
        with contextlib.redirect_stdout(io.StringIO()):
            main(["index", str(folder), "--output", str(folder / "index")])
        shardbeam.open(folder)
        started_s = time.process_time()
        dataset = shardbeam.open(folder)
        open_s = time.process_time() - started_s
        tracemalloc.start()
        try:
            # The first one fills caches, which do not count.
            held = [shardbeam.open(folder)]
            marks = [tracemalloc.get_traced_memory()[0]]
            conditions: list[Where | None] = [None, {"classes": [1]}]
            for where in conditions:
                held.append(shardbeam.open(folder, where=where))
                marks.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert [len(each) for each in held] == [rows] * 3
        all_rows, selected = (after - before for before, after in itertools.pairwise(marks))
        return {
            "shards": shards,
            "bytes_per_row": all_rows / rows,
            "selected": (selected - all_rows) / rows,
            "open_s": open_s,
            "pickled_bytes": len(pickle.dumps(dataset)),
        }


def _main(words: Sequence[str]) -> None:
    if words[0] == "write":
        write_containers(Path(words[1]))
    elif words[0] == "memory":
        print(json.dumps(measure_memory(Path(words[1]), rows=int(words[2]))))
    else:
        name, order, decode, part, folder = words
        cost = _read(name, order=order, decode=decode == "1", part=part, folder=Path(folder))
        print(json.dumps({"us_per_image": cost}))


if __name__ == "__main__":
    _main(sys.argv[1:])
