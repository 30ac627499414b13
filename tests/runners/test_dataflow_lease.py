"""The lease of a job on Dataflow: its workers renew it, and the job's end releases it."""

from __future__ import annotations

import datetime
import signal
from pathlib import Path

import msgspec
import pytest

from shardbeam.transforms.staging.object_lease import JOB_S, LeaseRecord, read_lease
from tests.runners.cloud import IMAGE, Cloud
from tests.runners.dataflow_service import JOB_ID, PROJECT, REGION, run_staged
from tests.support.dataset import Run, check_whole, finish, run, start

SDK = f"--sdk_container_image={IMAGE}"


def uri(cloud: Cloud) -> str:
    return f"{cloud.output}/runs/.lease.json"


def read_record(cloud: Cloud) -> LeaseRecord:
    record, _ = read_lease(uri(cloud))
    assert record is not None
    return record


def age(cloud: Cloud, *, seconds: float) -> None:
    """Makes the lease one that was renewed so long ago."""
    record = read_record(cloud)
    ago = datetime.timedelta(seconds=seconds)
    record = msgspec.structs.replace(
        record, renewed_at=record.renewed_at - ago, expires_at=record.expires_at - ago
    )
    cloud.gcs.write(uri(cloud), msgspec.json.encode(record))


def submit(cloud: Cloud, *more: str) -> Run:
    return run(*cloud.words(SDK, "--no-wait", *more))


def build_here(cloud: Cloud) -> Run:
    """Builds in this process."""
    words = cloud.words("--overwrite")
    return run(*(word for word in words if not word.startswith("--runner")))


def check_held(result: Run, *, words: str) -> None:
    assert result.exit_code == 4, result
    message = result.stderr.splitlines()[-1]
    assert message.startswith("shardbeam: error: ")
    assert words in message


def test_a_job_without_a_process_holds_the_lease(cloud: Cloud) -> None:
    assert submit(cloud).exit_code == 0
    record = read_record(cloud)
    assert (record.job_name, record.runner) == (f"job {JOB_ID}", "DataflowRunner")
    assert (record.expires_at - record.renewed_at).total_seconds() == JOB_S
    for second in (submit(cloud), build_here(cloud)):
        check_held(second, words=f"DataflowRunner, job {JOB_ID} (submitted by process ")
    assert read_record(cloud) == record
    # A job that has ended badly does not renew it.
    age(cloud, seconds=JOB_S)
    assert build_here(cloud).exit_code == 0
    assert check_whole(cloud.gcs.read_tree(cloud.output))


def test_the_workers_of_a_job_renew_the_lease_and_the_end_releases_it(cloud: Cloud) -> None:
    assert submit(cloud).exit_code == 0
    age(cloud, seconds=2 * JOB_S)
    before = read_record(cloud)
    job = cloud.service.job
    assert job is not None
    run_staged(job, gcs=cloud.gcs)
    record = read_record(cloud)
    assert record.released
    assert record.expires_at > before.expires_at
    assert build_here(cloud).exit_code == 0


@pytest.mark.parametrize(
    ("states", "refusal"),
    [
        (["JOB_STATE_RUNNING", "JOB_STATE_FAILED"], None),
        (["JOB_STATE_DONE"], (403, "The Dataflow API is not enabled.")),
    ],
    ids=["failed", "not accepted"],
)
def test_a_job_that_was_followed_to_a_bad_end_is_released(
    states: list[str], refusal: tuple[int, str] | None, cloud: Cloud
) -> None:
    cloud.service.states, cloud.service.refusal = states, refusal
    assert run(*cloud.words(SDK, "--wait")).exit_code == 1
    if refusal is None:
        assert read_record(cloud).released
    else:
        # It has written nothing, and takes its lease away.
        assert cloud.gcs.names(cloud.output) == []


def test_a_refused_job_releases_the_lease(cloud: Cloud) -> None:
    assert submit(cloud, "--set", "rejects.max_ratio=0").exit_code == 0
    images = f"{cloud.bucket}/images"
    cloud.gcs.write(f"{images}/{cloud.gcs.names(images)[0]}", b"")
    job = cloud.service.job
    assert job is not None
    with pytest.raises(Exception, match="too many rejects"):
        run_staged(job, gcs=cloud.gcs)
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
    check_held(build_here(cloud), words=f"job {JOB_ID} (submitted by process {process.pid} of ")


def test_a_lease_that_is_lost_while_the_job_is_submitted(cloud: Cloud) -> None:
    def lose(job: object) -> None:
        record = msgspec.structs.replace(read_record(cloud), holder="another")
        cloud.gcs.write(uri(cloud), msgspec.json.encode(record))

    cloud.service.on_submit = lose
    result = submit(cloud)
    check_held(result, words=f"{uri(cloud)}: this run has lost its lease on the output and stops")
    check_held(
        result,
        words=f"Job {JOB_ID} was submitted anyway, and will not commit; to cancel it: gcloud "
        f"dataflow jobs cancel {JOB_ID} --region={REGION} --project={PROJECT}",
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
    with pytest.raises(Exception, match="this run has lost its lease on the output and stops"):
        run_staged(job, gcs=cloud.gcs)
    after = cloud.gcs.read_tree(cloud.output)
    assert {path: after[path] for path in before} == before
    assert check_whole(after)


def test_the_job_of_a_template_is_known_by_its_name(cloud: Cloud) -> None:
    template = f"{cloud.bucket}/templates/nightly"
    words = cloud.words(SDK, f"--template_location={template}", "--job_name=nightly")
    assert run(*words).exit_code == 0
    # It may be about to start.
    for second in (run(*words), build_here(cloud)):
        check_held(second, words="a job named nightly (submitted by process ")
