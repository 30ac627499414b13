"""The lease of a job on Dataflow: it lives as long as the job, whoever waits for that."""

from __future__ import annotations

import datetime
import signal
from pathlib import Path

import msgspec
import pytest

from shardbeam.pipelines import dataflow_jobs
from shardbeam.transforms.dataset.lease import LeaseRecord, read_lease
from tests.pipelines.dataset import Run, check_whole, finish, run, start
from tests.runners.cloud import IMAGE, Cloud
from tests.runners.dataflow_service import JOB_ID, PROJECT, REGION, run_staged

SDK = f"--sdk_container_image={IMAGE}"
PLACE = f"--region={REGION} --project={PROJECT}"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataflow_jobs, "_TIMEOUT_S", 5.0)


def uri(cloud: Cloud) -> str:
    return f"{cloud.output}/runs/.lease.json"


def read_record(cloud: Cloud) -> LeaseRecord:
    record = read_lease(uri(cloud)).record
    assert record is not None
    return record


def expire(cloud: Cloud) -> None:
    """Makes the lease one that has not been renewed for long."""
    past = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
    record = msgspec.structs.replace(read_record(cloud), expires_at=past)
    cloud.gcs.write(uri(cloud), msgspec.json.encode(record))


def submit(cloud: Cloud, *more: str) -> Run:
    return run(*cloud.words(SDK, "--no-wait", *more))


def build_here(cloud: Cloud) -> Run:
    """Builds in this process; the service can be asked all the same."""
    words = cloud.words("--overwrite")
    return run(*(word for word in words if not word.startswith("--runner")))


def check_held(result: Run, *, words: str) -> None:
    assert result.exit_code == 4, result
    message = result.stderr.splitlines()[-1]
    assert message.startswith("shardbeam: error: ")
    assert words in message


def test_a_job_that_nobody_waits_for_holds_the_lease(cloud: Cloud) -> None:
    assert submit(cloud).exit_code == 0
    record = read_record(cloud)
    assert record.job is not None
    assert (record.job.id, record.job.project, record.job.region) == (JOB_ID, PROJECT, REGION)
    assert (record.runner, record.expires_at, record.released) == ("DataflowRunner", None, False)
    # The process has nothing to do with it any more.
    assert record.process is None
    cloud.service.states = ["JOB_STATE_RUNNING"]
    words = f"job {JOB_ID} (submitted by process "
    for second in (submit(cloud), build_here(cloud)):
        check_held(second, words=words)
        check_held(second, words=f"or cancel it: gcloud dataflow jobs cancel {JOB_ID} {PLACE}")
    assert read_record(cloud) == record


@pytest.mark.parametrize(
    "state", ["PENDING", "QUEUED", "CANCELLING", "DRAINING", "STOPPED", "UNKNOWN"]
)
def test_a_job_that_may_still_write_holds_it(state: str, cloud: Cloud) -> None:
    assert submit(cloud).exit_code == 0
    cloud.service.states = [f"JOB_STATE_{state}"]
    check_held(build_here(cloud), words="another run is writing it: DataflowRunner, job ")


@pytest.mark.parametrize("state", ["DONE", "FAILED", "CANCELLED", "UPDATED", "lost"])
def test_a_job_that_has_ended_holds_nothing(state: str, cloud: Cloud) -> None:
    assert submit(cloud).exit_code == 0
    cloud.service.states = [f"JOB_STATE_{state}"]
    cloud.service.lost = state == "lost"
    result = build_here(cloud)
    assert result.exit_code == 0, result.stderr
    assert check_whole(cloud.gcs.read_tree(cloud.output))
    assert read_record(cloud).runner == "LocalRunner"


@pytest.mark.parametrize("status", [403, 503])
def test_a_service_that_cannot_be_asked(status: int, cloud: Cloud) -> None:
    assert submit(cloud).exit_code == 0
    cloud.service.denial = (status, "dataflow.jobs.get is missing.")
    result = build_here(cloud)
    check_held(result, words="whether it still runs cannot be told (")
    check_held(result, words="dataflow.jobs.get is missing.")
    check_held(
        result,
        words=f"Ask: gcloud dataflow jobs describe {JOB_ID} {PLACE}. If it has ended, delete "
        f"{uri(cloud)}",
    )
    # As it says.
    cloud.gcs.delete(uri(cloud))
    assert build_here(cloud).exit_code == 0


def test_a_job_releases_the_lease_when_it_has_committed(cloud: Cloud) -> None:
    cloud.service.run_jobs(gcs=cloud.gcs)
    result = run(*cloud.words(SDK, "--wait"))
    assert result.exit_code == 0, result.stderr
    assert read_record(cloud).released
    # So that the next run need not ask.
    cloud.service.denial = (403, "no")
    assert build_here(cloud).exit_code == 0


def test_a_job_that_was_followed_to_a_bad_end_is_released(cloud: Cloud) -> None:
    cloud.service.states = ["JOB_STATE_RUNNING", "JOB_STATE_FAILED"]
    assert run(*cloud.words(SDK, "--wait")).exit_code == 1
    assert read_record(cloud).released


def test_a_job_that_is_not_accepted_is_released(cloud: Cloud) -> None:
    cloud.service.refusal = (403, "The Dataflow API is not enabled.")
    assert run(*cloud.words(SDK, "--wait")).exit_code == 1
    assert read_record(cloud).released


def test_a_job_that_cannot_be_followed_keeps_the_lease(cloud: Cloud) -> None:
    cloud.service.on_submit = lambda job: setattr(cloud.service, "denial", (403, "no more"))
    assert run(*cloud.words(SDK, "--wait")).exit_code == 1
    assert not read_record(cloud).released


def test_ctrl_c_leaves_the_lease_to_the_job(cloud: Cloud, tmp_path: Path) -> None:
    cloud.service.states = ["JOB_STATE_RUNNING"]
    process = start(*cloud.words(SDK, "--wait"), cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if JOB_ID in line:
            break
    process.send_signal(signal.SIGINT)
    assert finish(process).exit_code == 130
    check_held(build_here(cloud), words=f"gcloud dataflow jobs cancel {JOB_ID} {PLACE}")


def test_a_lease_that_is_lost_while_the_job_is_submitted(cloud: Cloud) -> None:
    def lose(job: object) -> None:
        record = msgspec.structs.replace(read_record(cloud), holder="another")
        cloud.gcs.write(uri(cloud), msgspec.json.encode(record))

    cloud.service.on_submit = lose
    result = submit(cloud)
    check_held(result, words=f"{uri(cloud)}: this run has lost its lease of the output, and stops")
    check_held(
        result,
        words=f"Job {JOB_ID} was submitted all the same, and will not commit; to cancel it: gcloud "
        f"dataflow jobs cancel {JOB_ID} {PLACE}",
    )
    assert read_record(cloud).holder == "another"


def test_a_job_whose_lease_was_taken_commits_nothing(cloud: Cloud) -> None:
    """As after somebody deleted the lease of a job that was running."""
    assert submit(cloud).exit_code == 0
    cloud.gcs.delete(uri(cloud))
    job = cloud.service.job
    assert job is not None
    assert build_here(cloud).exit_code == 0
    before = cloud.gcs.read_tree(cloud.output)
    with pytest.raises(Exception, match="this run has lost its lease of the output, and stops"):
        run_staged(job, gcs=cloud.gcs)
    after = cloud.gcs.read_tree(cloud.output)
    assert {path: after[path] for path in before} == before
    assert check_whole(after)


# Templates, whose job somebody else starts


def write_template(cloud: Cloud, name: str) -> Run:
    template = f"{cloud.bucket}/templates/{name}"
    return run(*cloud.words(SDK, f"--template_location={template}", f"--job_name={name}"))


def test_the_job_of_a_template_is_known_by_its_name(cloud: Cloud) -> None:
    assert write_template(cloud, "nightly").exit_code == 0
    record = read_record(cloud)
    assert record.job is not None
    assert (record.job.name, record.job.id) == ("nightly", "")
    # It may be about to start.
    check_held(build_here(cloud), words="a job named nightly (submitted by process ")
    expire(cloud)
    cloud.service.listed = ["daily", "nightly"]
    check_held(build_here(cloud), words=f"gcloud dataflow jobs cancel {JOB_ID} {PLACE}")
    cloud.service.denial = (403, "dataflow.jobs.list is missing")
    check_held(build_here(cloud), words=f"jobs list --filter=name=nightly {PLACE}. If it has ended")
    cloud.service.denial = None
    cloud.service.listed = ["daily"]
    result = build_here(cloud)
    assert result.exit_code == 0, result.stderr


def test_a_template_started_again_under_its_name_follows_itself(cloud: Cloud) -> None:
    assert write_template(cloud, "nightly").exit_code == 0
    check_held(write_template(cloud, "nightly"), words="a job named nightly")
    expire(cloud)
    # What runs under the name is the very job that is being written down.
    cloud.service.listed = ["nightly"]
    check_held(write_template(cloud, "daily"), words="a job named nightly")
    assert write_template(cloud, "nightly").exit_code == 0
