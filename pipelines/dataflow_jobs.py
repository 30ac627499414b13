"""Asking Dataflow how a job stands that another run has submitted."""

from __future__ import annotations

from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions
from apache_beam.runners.dataflow.internal.apiclient import DataflowApplicationClient
from google.api_core.exceptions import GoogleAPIError, NotFound
from google.auth.exceptions import GoogleAuthError
from google.cloud import dataflow

from shardbeam.transforms.dataset.lease import JobAnswer, JobState, RemoteJob

# Whoever finds a lease is not to wait for long.
_TIMEOUT_S = 10.0
_MAX_WORDS = 200
_ENDED = frozenset(
    {
        dataflow.JobState.JOB_STATE_DONE,
        dataflow.JobState.JOB_STATE_FAILED,
        dataflow.JobState.JOB_STATE_CANCELLED,
        dataflow.JobState.JOB_STATE_UPDATED,
        dataflow.JobState.JOB_STATE_DRAINED,
    }
)


def ask_for_job(job: RemoteJob, *, options: PipelineOptions) -> JobAnswer:
    """Asks how a job stands, by its id, or by its name where it has none.

    Args:
        job: The job.
        options: This program's own options: how it talks to the service.
    """
    google = options.view_as(GoogleCloudOptions)
    if google.template_location and _is_own(job, google=google):
        # This program writes down a job that was started under this name, and of one name only
        # one can run.
        return JobAnswer(JobState.ENDED)
    try:
        # One request, where Beam would go on asking for ten minutes.
        jobs = DataflowApplicationClient(options)._jobs_client
        return _ask_by_id(jobs, job) if job.id else _ask_by_name(jobs, job)
    except (GoogleAPIError, GoogleAuthError, OSError, ValueError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        return JobAnswer(JobState.UNKNOWN, problem=words[:_MAX_WORDS])


def _is_own(job: RemoteJob, *, google: GoogleCloudOptions) -> bool:
    own = (google.job_name, google.project, google.region)
    return (job.name, job.project, job.region) == own


def _ask_by_id(jobs: dataflow.JobsV1Beta3Client, job: RemoteJob) -> JobAnswer:
    request = dataflow.GetJobRequest(job_id=job.id, project_id=job.project, location=job.region)
    try:
        found = jobs.get_job(request, timeout=_TIMEOUT_S)
    except NotFound:
        return JobAnswer(JobState.ABSENT)
    ended = found.current_state in _ENDED
    return JobAnswer(JobState.ENDED if ended else JobState.RUNNING)


def _ask_by_name(jobs: dataflow.JobsV1Beta3Client, job: RemoteJob) -> JobAnswer:
    request = dataflow.ListJobsRequest(
        name=job.name,
        project_id=job.project,
        location=job.region,
        filter=dataflow.ListJobsRequest.Filter.ACTIVE,
    )
    for found in jobs.list_jobs(request, timeout=_TIMEOUT_S):
        # The service may know no search by name.
        if found.name == job.name and found.current_state not in _ENDED:
            return JobAnswer(JobState.RUNNING, job_id=found.id)
    return JobAnswer(JobState.ABSENT)
