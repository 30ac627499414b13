"""Memory and time of hostile and large images: `python -m benchmarks.hostile [INPUTS [SEED]]`.

Prints how long the slowest of them took to be judged, and the peak of memory of builds by 1, 2
and 3 processes, beside what docs/reference/limits.md promises. Linux only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.decoders import KINDS, make_image
from benchmarks.measure import SHARDBEAM, measure
from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.memory import MemoryBudget
from shardbeam.transforms.images.check import check_image
from tests.support.hostile_images import (
    avif_of_twelve_bits,
    icon,
    jpeg_with_hidden_scans,
    progressive_jpeg,
    tiled_tiff,
    webp_with_canvas,
)

# Far less than most of the larger images take.
MEMORY_MB = 40
_THREADS = 8
_MEGAPIXELS = (0.05, 0.5, 2, 8)
# Files of 3 bytes a pixel.
_UNCOMPRESSED = {"BMP", "PPM", "TIFF RGB", "TIFF CMYK", "TIFF LZW", "TIFF 16-bit gray"}
_SMALL_FILE_BYTES = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peak:
    """The memory of one build, in bytes.

    Attributes:
        processes: How many wrote shards.
        imports: The peak of the same build of tiny images.
        measured: The peak, over all processes; pages that they share count more than once.
        allowed: Imports, the budget of each process, and the largest image.
    """

    processes: int
    imports: int
    measured: int
    allowed: int


class _Recorder(MemoryBudget):
    largest_bytes = 0.0

    @contextlib.contextmanager
    def take(self, size_bytes: float) -> Iterator[None]:
        self.largest_bytes = max(self.largest_bytes, size_bytes)
        yield


def make_inputs(count: int, *, seed: int, megapixels: Sequence[float] = _MEGAPIXELS) -> list[bytes]:
    """Makes images of all formats and sizes, half of them damaged, and some bombs."""
    rng = random.Random(seed)
    makers: list[Callable[[], bytes]] = [
        functools.partial(make_image, kind, megapixels=size)
        for kind in KINDS
        for size in megapixels
        if size <= 2 or kind not in _UNCOMPRESSED
    ]
    makers += [
        avif_of_twelve_bits,
        functools.partial(avif_of_twelve_bits, announced=8),
        *(lambda size=size: icon(make_image("PNG RGBA", megapixels=size)) for size in megapixels),
        functools.partial(progressive_jpeg, 4000, 2000, scans=12),
        functools.partial(progressive_jpeg, 4000, 2000, scans=200),
        functools.partial(jpeg_with_hidden_scans, 6000, 6000, scans=1500),
        functools.partial(webp_with_canvas, 2000, 2000),
        functools.partial(tiled_tiff, (16, 16), (3000, 3000)),
        functools.partial(tiled_tiff, (16, 16), (60_000, 60_000)),
    ]
    # Each of them once, as far as they are that many, then any.
    rng.shuffle(makers)
    images = [make() for make in makers[:count]]
    chosen = images + rng.choices(images, k=count - len(images))
    return [data if rng.random() < 0.5 else _damage(data, rng) for data in chosen]


def _damage(data: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.randint(1, 4)):
        # The header above all.
        start = rng.randrange(rng.choice([min(400, len(data)), len(data)]))
        middle = rng.choice([rng.randbytes(2), b"", data[start : start + 20] * 2])
        data = data[:start] + middle + data[start + rng.choice([len(middle), 1]) :]
    return data


def judge(inputs: Sequence[bytes]) -> tuple[float, float]:
    """Checks each of them.

    Returns:
        The most seconds of CPU time for a file of 1 MB or less, and the most bytes that any file is
        taken to need.
    """
    slowest_s = 0.0
    memory = _Recorder()
    for data in inputs:
        started = time.process_time()
        with contextlib.suppress(RejectedError):
            check_image(data, name="", settings=ImageConfig(), memory=memory)
        if len(data) <= _SMALL_FILE_BYTES:
            slowest_s = max(slowest_s, time.process_time() - started)
    return slowest_s, memory.largest_bytes


def measure_builds(
    inputs: Sequence[bytes], *, processes: Sequence[int], largest_bytes: float, folder: Path
) -> Iterator[Peak]:
    """Builds datasets of them, and of as many tiny images, by each number of processes."""
    tiny = [make_image(kind, megapixels=0.001) for kind in KINDS]
    for name, images in (("inputs", inputs), ("tiny", tiny * (len(inputs) // len(tiny) + 1))):
        (folder / name / "images").mkdir(parents=True)
        for number, data in enumerate(images):
            (folder / name / "images" / f"{number}.jpg").write_bytes(data)
    for number in processes:
        peaks = [
            measure(
                [
                    *(SHARDBEAM, "build", "image-folder", f"--images={folder / name}"),
                    *(f"--output={folder / f'{name}-{number}'}", f"--processes={number}"),
                    *(f"--threads={_THREADS}", f"--memory={MEMORY_MB}"),
                    *("--set", f"output.num_shards={4 * number}"),
                    *("--set", "rejects.max_ratio=1", "--set", "image.wrong_extension=keep"),
                ]
            ).peak_bytes()
            for name in ("tiny", "inputs")
        ]
        budgets = number * MEMORY_MB * 1_000_000
        yield Peak(
            processes=number,
            imports=peaks[0],
            measured=peaks[1],
            allowed=round(peaks[0] + budgets + largest_bytes),
        )


def main() -> None:
    """Prints the table as Markdown."""
    words = [*sys.argv[1:], "500", "0"]
    count = int(words[0])
    seed = int(words[1]) if len(sys.argv) > 2 else 0
    inputs = make_inputs(count, seed=seed)
    slowest_s, largest_bytes = judge(inputs)
    print(f"slowest file of 1 MB or less: {slowest_s:.1f} s; largest: {largest_bytes / 1e6:.0f} MB")
    print("| processes | imports | budgets | largest image | allowed | peak |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for peak in measure_builds(
            inputs, processes=(1, 2, 3), largest_bytes=largest_bytes, folder=Path(folder)
        ):
            figures = (
                peak.imports,
                peak.processes * MEMORY_MB * 1e6,
                largest_bytes,
                peak.allowed,
                peak.measured,
            )
            row = (str(peak.processes), *(f"{figure / 1e6:.0f}" for figure in figures))
            print("|", " | ".join(row), "|", flush=True)


if __name__ == "__main__":
    main()
