"""Builds on Google Cloud Dataflow: checks before the job, submitting it, and following it."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)
from apache_beam.runners.runner import PipelineRunner, PipelineState
from apache_beam.utils.retry import PermanentException

from shardbeam.pipelines.failures import RunError, UsageError
from shardbeam.pipelines.runners.options import DATAFLOW_RUNNER, check_image, name_job
from shardbeam.transforms.core.extras import install_command

try:
    import google.cloud.storage as storage
    from apache_beam.io.gcp.gcsio import create_storage_client
    from apache_beam.runners.dataflow.dataflow_runner import DataflowPipelineResult, DataflowRunner
    from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
    from google.api_core.exceptions import GoogleAPICallError, NotFound
except ImportError as missing:
    raise UsageError(
        f"--runner={DATAFLOW_RUNNER}: a package that only Dataflow needs is missing "
        f"({missing}); run: {install_command('dataflow')}"
    ) from missing

_POLL_S = 5.0
# (images, workers, minutes, dollars): the table of docs/guide/runners.md, for images of this size.
COSTS = (
    (10**5, 2, "4.8", "0.09"),
    (10**6, 4, "8.3", "0.62"),
    (10**7, 8, "40", "6.14"),
    (10**8, 25, "180", "67.54"),
)
_IMAGE_BYTES = 135_000
_SETUP_FILES = ("setup.py", "pyproject.toml")


class JobEndedError(RunError):
    """A job failed or was cancelled."""


class Job(NamedTuple):
    """A submitted job, with Beam's result and Beam's client of the service."""

    result: DataflowPipelineResult
    client: DataflowApplicationClient
    id: str
    project: str
    region: str

    @property
    def console(self) -> str:
        """The address of the job's page."""
        return (
            f"https://console.cloud.google.com/dataflow/jobs/{self.region}/{self.id}"
            f"?project={self.project}"
        )

    @property
    def cancel_command(self) -> str:
        """The command that cancels the job."""
        return (
            f"gcloud dataflow jobs cancel {self.id} --region={self.region} --project={self.project}"
        )

    def follow(self, *, kept: str = ", finished shards are kept") -> None:
        """Waits until the job ends.

        Args:
            kept: What an error says about a second run of the same command.

        Raises:
            JobEndedError: It failed (with the service's messages, in several lines), or was
                cancelled.
            RunError: The service no longer knows it, or does not answer.
        """
        try:
            while not PipelineState.is_terminal(state := self.result.state):
                time.sleep(_POLL_S)
            if state != PipelineState.DONE:
                raise JobEndedError(self._describe_end(state, kept=kept))
        except NotFound as error:
            raise RunError(
                f"job {self.id} is lost: the service does not know it any more; run the same "
                f"command again{kept}"
            ) from error
        except GoogleAPICallError as error:
            raise RunError(
                f"job {self.id} cannot be followed any more ({error.message}), and may go on: "
                f"{self.console}"
            ) from error

    def _describe_end(self, state: str, *, kept: str) -> str:
        if state == PipelineState.CANCELLED:
            return f"job {self.id} was cancelled; run the same command again{kept}"
        messages = list(self._errors())
        # A step's error says more than the message that a work item failed four times.
        causes = [text for text in messages if "Traceback" in text] or messages
        cause = causes[-1] if causes else "the service does not say why"
        return f"job {self.id} ended as {state} ({self.console}): {cause}"

    def _errors(self) -> Iterator[str]:
        token = None
        while True:
            messages, token = self.client.list_messages(
                self.id, page_token=token, minimum_importance="JOB_MESSAGE_ERROR"
            )
            for message in messages:
                yield message.message_text
            if not token:
                return


def prepare_job(
    options: PipelineOptions,
    *,
    name: str,
    folders: Mapping[str, str],
    files: Mapping[str, str],
    read: Mapping[str, str],
) -> None:
    """Checks options before anything is staged, and fills in those that can be worked out.

    Args:
        options: The job's options.
        name: What the job is named after.
        folders: `{setting: URI}` of folders that its workers write to, in their own region.
        files: `{setting: URI}` of single files that they write; an empty URI for none.
        read: `{URI: what to do if it is local}` of what they read.

    Raises:
        UsageError: The job could not run: a flag is missing, a path is out of its workers' reach,
            or its workers would have other versions than this program.
    """
    google = options.view_as(GoogleCloudOptions)
    missing = [
        f"--{flag}" for flag in ("project", "region", "temp_location") if not getattr(google, flag)
    ]
    if missing:
        raise UsageError(f"--runner={DATAFLOW_RUNNER}: missing {', '.join(missing)}")
    written = {"--temp_location": google.temp_location}
    if google.staging_location:
        written["--staging_location"] = google.staging_location
    written |= folders
    for setting, uri in {**written, **files}.items():
        if uri and not uri.startswith("gs://"):
            raise UsageError(f"{setting}: Dataflow writes to gs:// only, got {uri}")
    for uri, remedy in read.items():
        if "://" not in uri:
            raise UsageError(f"{uri}: a local path, which Dataflow's workers cannot read; {remedy}")
    _check_code(options)
    client = create_storage_client(options, not google.no_auth)
    for setting, uri in written.items():
        _check_bucket(uri, name=setting, region=google.region, client=client)
    name_job(options, name=name)


def describe_cost(*, images: int, num_bytes: int) -> str:
    """Says how long a build takes there and what it costs, by the next row of the table.

    Args:
        images: How many images it has.
        num_bytes: Their length; more images count for long ones.
    """
    images = max(images, num_bytes // _IMAGE_BYTES)
    row = next((row for row in COSTS if images <= row[0]), COSTS[-1])
    than = "up to" if images <= row[0] else "more than the"
    return (
        f"Dataflow: {than} {row[2]} minutes and {row[3]} dollars of {row[1]} workers, as computed "
        f"for {row[0]:,} images of 135 KB that are not resized, not measured "
        "(docs/guide/runners.md#minutes-and-dollars)"
    )


def _check_code(options: PipelineOptions) -> None:
    """Makes sure that workers run this program, in the same versions."""
    setup = options.view_as(SetupOptions)
    image = options.view_as(WorkerOptions).sdk_container_image
    if setup.setup_file:
        # Beam changes the folder while it builds the package.
        setup.setup_file = os.path.abspath(setup.setup_file)
        if not os.path.isfile(setup.setup_file):
            raise UsageError(f"--setup_file: no such file: {setup.setup_file}")
        if os.path.basename(setup.setup_file) not in _SETUP_FILES:
            raise UsageError(f"--setup_file: expected a setup.py, got {setup.setup_file}")
        if importlib.util.find_spec("build") is None:
            raise UsageError(f"--setup_file: needs the package build: {install_command('build')}")
    elif not image:
        raise UsageError(
            "Dataflow's workers need the program: give --sdk_container_image=IMAGE, or from a "
            "checkout --setup_file=./setup.py (docs/guide/runners.md)"
        )
    if image:
        check_image(image)


def _check_bucket(uri: str, *, name: str, region: str, client: storage.Client) -> None:
    bucket_name = uri.removeprefix("gs://").partition("/")[0]
    try:
        bucket = client.get_bucket(bucket_name, timeout=30)
    except NotFound:
        raise UsageError(f"{name}: there is no bucket gs://{bucket_name}; make it first") from None
    except GoogleAPICallError as error:
        raise UsageError(
            f"{name}: gs://{bucket_name} cannot be looked at ({error.message}); the permission "
            "storage.buckets.get is needed"
        ) from error
    # Only names of regions have a dash; US, EU and NAM4 span several regions.
    location = bucket.location or ""
    if "-" in location and location.lower() != region.lower():
        raise UsageError(
            f"{name}: gs://{bucket_name} lies in {location}, and the workers in {region}: "
            "every byte would cross regions; choose a bucket near them, or another --region"
        )


def submit_job(
    pipeline: beam.Pipeline, *, runner: PipelineRunner, options: PipelineOptions
) -> Job | None:
    """Stages a pipeline and submits its job.

    Returns:
        The job; None if `--template_location` asks for a template instead.

    Raises:
        RunError: It was not accepted.
    """
    google = options.view_as(GoogleCloudOptions)
    try:
        result = pipeline.run()
    except GoogleAPICallError as error:
        raise RunError(f"the job was not accepted: {error.code} {error.message}") from error
    except (OSError, RuntimeError, PermanentException) as error:
        # Storage failed, the package could not be built, or a job of this name is running.
        raise RunError(f"the job could not be submitted: {' '.join(str(error).split())}") from error
    assert isinstance(runner, DataflowRunner)
    assert isinstance(result, DataflowPipelineResult)
    if not result.has_job:
        return None
    return Job(
        result=result,
        client=runner.dataflow_client,
        id=result.job_id(),
        project=google.project,
        region=google.region,
    )
