"""How long a build on Dataflow takes and what it costs, by measured CPU times and list prices.

`python -m benchmarks.dataflow_cost` prints the table of docs/guide/runners.md. Nothing was run
there.
"""

from __future__ import annotations

import dataclasses
import math

from benchmarks.report import markdown_table

# Assumptions about the images, and measured CPU times (docs/internals/scale.md)
IMAGE_BYTES = 135_000
SHARD_BYTES = 150_000_000
# Reading from object storage with `verify: header`, and what `verify: decode` adds.
CPU_S_AN_IMAGE = 0.0020 + 0.0012
# A page of 1,000 names and its round trip; a flat folder has one page after the other.
PAGE_NAMES = 1000
PAGE_S = 0.05
# https://cloud.google.com/storage/docs/request-rate: where a bucket begins, and how fast it grows
READS_PER_S = 5000
CHANGES_PER_S = 1000
DOUBLING_S = 20 * 60
# A move of a shard, its index and its record, and two deletions in staging
CHANGES_A_SHARD = 7
# Until workers are there and have the image; assumed, not measured.
START_S = 4 * 60

# List prices in US dollars, us-central1, batch, as of 2026-11-26
# https://cloud.google.com/dataflow/pricing
VCPU_HOUR_USD = 0.056
MEMORY_GB_HOUR_USD = 0.003557
SHUFFLED_GB_USD = 0.011
DISK_GB_HOUR_USD = 0.000054
# https://cloud.google.com/storage/pricing, Standard storage in a region
LISTS_AND_WRITES_USD = 0.005 / 1000
READS_USD = 0.0004 / 1000
# Lists, inserts and rewrites of a shard, and its gets (docs/internals/scale.md)
WRITES_A_SHARD = 7
READS_A_SHARD = 12
# A record crosses two shuffles.
SHUFFLED_BYTES_AN_IMAGE = 2 * 1000


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of the table, on `n2-standard-4`.

    Attributes:
        images: How many images it builds from.
        workers: `--max_num_workers`.
        vcpus: CPUs of a machine; Dataflow runs a worker process on each.
        memory_gb: Memory of a machine.
        disk_gb: `--disk_size_gb`.
    """

    images: int
    workers: int
    vcpus: int = 4
    memory_gb: int = 16
    disk_gb: int = 50

    @property
    def shards(self) -> int:
        """The number of shards."""
        return math.ceil(self.images * IMAGE_BYTES / SHARD_BYTES)

    def list_s(self) -> float:
        """Seconds to list the images in one flat folder."""
        return self.images / PAGE_NAMES * PAGE_S

    def write_s(self) -> float:
        """Seconds to read, encode and write: by the workers' CPUs or the bucket's rate."""
        cpus = min(self.workers * self.vcpus, self.shards)
        return max(self.images * CPU_S_AN_IMAGE / cpus, read_s(self.images))

    def commit_s(self) -> float:
        """Seconds to move all shards into place and to clear staging."""
        return self.shards * CHANGES_A_SHARD / CHANGES_PER_S

    def total_s(self) -> float:
        """Seconds from the submission to the end."""
        return START_S + self.list_s() + self.write_s() + self.commit_s()

    def cost_usd(self) -> float:
        """Dollars, as if all workers were there from the beginning to the end."""
        machine = (
            self.vcpus * VCPU_HOUR_USD
            + self.memory_gb * MEMORY_GB_HOUR_USD
            + self.disk_gb * DISK_GB_HOUR_USD
        )
        writes = self.images / PAGE_NAMES + self.shards * WRITES_A_SHARD
        reads = self.images + self.shards * READS_A_SHARD
        return (
            self.workers * machine * self.total_s() / 3600
            + self.images * SHUFFLED_BYTES_AN_IMAGE / 1e9 * SHUFFLED_GB_USD
            + writes * LISTS_AND_WRITES_USD
            + reads * READS_USD
        )


JOBS = (
    Job(images=10**5, workers=2),
    Job(images=10**6, workers=4),
    Job(images=10**7, workers=8),
    Job(images=10**8, workers=25),
)


def read_s(images: int) -> float:
    """Seconds in which a bucket answers a read of each image, if its rate doubles steadily."""
    seconds, rate = 0.0, READS_PER_S
    while images > rate * DOUBLING_S:
        images -= rate * DOUBLING_S
        seconds += DOUBLING_S
        rate *= 2
    return seconds + images / rate


def make_table() -> str:
    """Renders the table of docs/guide/runners.md."""
    rows = [
        (
            f"{job.images:,}",
            f"{job.workers}",
            _minutes(job.total_s()),
            f"{job.cost_usd():,.2f}",
        )
        for job in JOBS
    ]
    return markdown_table(["images", "workers", "minutes", "dollars"], rows)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:,.1f}" if seconds < 600 else f"{seconds / 60:,.0f}"


if __name__ == "__main__":
    print(make_table())
