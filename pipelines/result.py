"""What a build or a plan returns to the program that called it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardbeam.configs.problem import ShardbeamError
from shardbeam.transforms.dataset.outcome import Outcome, Status
from shardbeam.transforms.storage.usage import StorageUsage

if TYPE_CHECKING:
    from shardbeam.pipelines.runners.dataflow import Job


class PlanResult(Outcome, frozen=True, kw_only=True):
    """What a build would write; `shardbeam plan --json` prints the same.

    Attributes:
        output: The dataset's folder.
        latest: The pointer that names the dataset; empty if there is none.
        replaced: Name, version and size of the dataset that was there before; empty if none was.
        current: Whether nothing was done, because inputs and config are those of the dataset there.
        storage: Requests to object storage.
        wall_time_s: How long it took, in seconds.
        memory_bytes: The estimated memory of a build on this machine, if the command `plan` ran.
        processes: Of a plan: how many processes such a build would write shards in.
    """

    output: str
    latest: str = ""
    replaced: str = ""
    current: bool = False
    storage: StorageUsage = StorageUsage()
    wall_time_s: float = 0.0
    memory_bytes: int = 0
    processes: int = 0

    @property
    def images_per_s(self) -> float:
        """Images that this run wrote (and did not copy) per second; 0 if it wrote none."""
        if self.current or self.status is Status.APPROVED or self.wall_time_s <= 0:
            return 0.0
        images = sum(split.images for split in self.splits.values())
        images -= self.resumed.images + (self.reuse.copied_images if self.reuse else 0)
        return images / self.wall_time_s


class BuildResult(PlanResult, frozen=True, kw_only=True):
    """What a build did; `shardbeam build --json` prints the same.

    Attributes:
        job: The submitted job, if the build did not wait for its end.
    """

    job: Job | None = None


class RefusedError(ShardbeamError):
    """The gate refused to commit what was built.

    Attributes:
        result: What was built, and why it was refused.
    """

    def __init__(self, result: BuildResult) -> None:
        self.result = result
        super().__init__(result.message)
