"""Stand-ins on loopback for the services that a build on Dataflow needs."""

from __future__ import annotations

from shardbeam.pipelines.runners.options import own_versions
from tests.runners.dataflow_service import DataflowService
from tests.support.dataset import MIXED_SETTINGS
from tests.support.gcs_server import FakeGcs

VERSIONS = own_versions()
# One of Beam's own, whose name tells its versions.
IMAGE = f"apache/beam_python{VERSIONS.python}_sdk:{VERSIONS.beam}"


class Cloud:
    """A bucket with the sample, and the service.

    Attributes:
        gcs: Storage.
        bucket: The bucket's URI.
        service: Dataflow.
        output: Where the dataset goes.
        job_flags: The flags that send a build to the service.
    """

    def __init__(
        self, *, gcs: FakeGcs, bucket: str, service: DataflowService, flags: tuple[str, ...]
    ) -> None:
        self.gcs = gcs
        self.bucket = bucket
        self.service = service
        self.output = f"{bucket}/out"
        # Beam would ask pip for the installed packages, to log them, before each job.
        quick = "--experiments=disable_logging_submission_environment"
        self.job_flags = (*flags, f"--temp_location={bucket}/tmp", quick)

    def words(self, *more: str) -> list[str]:
        """The command line of a build; what comes later wins."""
        return [
            *("build", "coco"),
            *("--images", f"{self.bucket}/images"),
            *("--annotations", f"{self.bucket}/annotations/instances.json"),
            *("--output", self.output),
            *MIXED_SETTINGS,
            *self.job_flags,
            *more,
        ]
