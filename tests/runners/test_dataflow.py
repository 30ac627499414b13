"""Jobs on Dataflow: Beam's own runner against a stand-in of the service, and staging in a server.

What is staged is run: its bytes are compared with those of a build at home.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import tarfile
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import shardbeam
from shardbeam.pipelines.commands.flex_template import launch
from shardbeam.transforms.dataset.file_names import RUN_FILE
from tests.conftest import PROJECT_ROOT
from tests.runners.cloud import IMAGE, Cloud
from tests.runners.dataflow_service import (
    JOB_ID,
    PROJECT,
    REGION,
    run_staged,
)
from tests.support.dataset import (
    MIXED_SETTINGS,
    Run,
    Tree,
    check_whole,
    coco_words,
    dataset_files,
    finish,
    read_dataset,
    run,
    start,
)

CONSOLE = f"https://console.cloud.google.com/dataflow/jobs/{REGION}/{JOB_ID}?project={PROJECT}"
CANCEL = f"gcloud dataflow jobs cancel {JOB_ID} --region={REGION} --project={PROJECT}"


@pytest.fixture(scope="module")
def expected(mixed: Path, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    output = tmp_path_factory.mktemp("expected") / "out"
    assert run(*coco_words(mixed, output, *MIXED_SETTINGS)).exit_code == 0
    return read_dataset(output)


def test_a_job(cloud: Cloud, expected: Tree) -> None:
    cloud.service.run_jobs(gcs=cloud.gcs)
    result = run(*cloud.words(f"--sdk_container_image={IMAGE}", "--wait"))
    assert result.exit_code == 0, result.stderr
    assert f"shardbeam: job {JOB_ID}: {CONSOLE}" in result.stderr.splitlines()
    assert f"committed: {cloud.output}" in result.stdout.splitlines()
    written = cloud.gcs.read_tree(cloud.output)
    assert not [path for path in written if path.startswith(".staging/")]
    assert check_whole(written)
    assert dataset_files(written) == expected
    (record,) = [data for path, data in written.items() if path.startswith("runs/2")]
    assert json.loads(record)["runner"] == "DataflowRunner"


def test_a_dataset_is_verified_by_a_job(cloud: Cloud) -> None:
    assert run(*cloud.words("--runner=DirectRunner")).exit_code == 0
    cloud.service.run_jobs(gcs=cloud.gcs)
    flags = (*cloud.job_flags, f"--sdk_container_image={IMAGE}")
    words = ("verify", cloud.output, "--report", f"{cloud.bucket}/report.json", *flags)
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines()[-1] == f"shardbeam: job {JOB_ID}: {CONSOLE}"
    assert result.stdout.startswith(f"whole: {cloud.output}: shards: ")
    assert cloud.service.job is not None
    assert re.fullmatch(r"shardbeam-verify-\d{8}-\d{6}", cloud.service.job["name"])

    tree = cloud.gcs.read_tree(cloud.output)
    # One that is not empty.
    shard = max(
        (name for name in tree if name.startswith("coco-")), key=lambda name: len(tree[name])
    )
    data = tree[shard]
    cloud.gcs.write(f"{cloud.output}/{shard}", data[:200] + bytes([data[200] ^ 1]) + data[201:])
    result = run(*words)
    assert result.exit_code == 5
    assert result.stdout.startswith(f"{shard}: byte 0: ")

    cloud.service.states = ["JOB_STATE_CANCELLED"]
    cloud.service.on_submit = lambda job: None
    result = run(*words)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].endswith(
        f"job {JOB_ID} was cancelled; run the same command again"
    )


def test_a_job_names_the_latest_version_by_itself(cloud: Cloud, expected: Tree) -> None:
    cloud.service.run_jobs(gcs=cloud.gcs)
    versions = ("--output", f"{cloud.output}/{{fingerprint}}")
    latest = ("--set", f"output.latest={cloud.output}/latest")
    words = cloud.words(f"--sdk_container_image={IMAGE}", *versions, *latest)
    result = run(*words, "--wait", "--log-format=json")
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert f"job {JOB_ID}: {CONSOLE}" in [line["message"] for line in lines]
    assert (lines[-1]["status"], lines[-1]["step"]) == ("committed", "summary")
    output = cloud.gcs.read(f"{cloud.output}/latest").decode().strip()
    assert output == lines[-1]["output"]
    assert dataset_files(cloud.gcs.read_tree(output)) == expected
    # Written by the job, which has nobody waiting for it.
    (record,) = [data for path, data in cloud.gcs.read_tree(output).items() if RUN_FILE.match(path)]
    assert json.loads(record)["runner"] == "DataflowRunner"

    result = run(*words, "--no-wait", "--if-changed", "--log-format=json")
    assert result.exit_code == 0
    assert json.loads(result.stderr.splitlines()[-1])["current"]
    result = run(*words, "--no-wait", "--set", "image.quality=90", "--log-format=json")
    assert result.stdout == ""
    submitted = json.loads(result.stderr.splitlines()[-1])
    assert (submitted["status"], submitted["job_id"]) == ("submitted", JOB_ID)


def test_what_is_submitted(cloud: Cloud) -> None:
    cloud.service.states = ["JOB_STATE_RUNNING"]
    result = run(
        *cloud.words(
            f"--sdk_container_image={IMAGE}",
            "--no-wait",
            "--labels=team=vision",
            "--machine_type=n2-standard-8",
            "--max_num_workers=20",
            "--disk_size_gb=50",
            "--service_account_email=builder@example.iam.gserviceaccount.com",
            "--no_use_public_ips",
        )
    )
    assert result == Run(
        exit_code=0,
        stdout=f"submitted, for: {cloud.output}\njob: {JOB_ID}\nconsole: {CONSOLE}\n"
        f"to cancel it: {CANCEL}\n",
        stderr="",
    )
    job = cloud.service.job
    assert job is not None
    assert re.fullmatch(r"shardbeam-coco-\d{8}-\d{6}", job["name"])
    assert job["labels"] == {"team": "vision"}
    environment = job["environment"]
    assert environment["serviceAccountEmail"] == "builder@example.iam.gserviceaccount.com"
    (pool,) = environment["workerPools"]
    assert pool["workerHarnessContainerImage"] == IMAGE
    assert [image["containerImage"] for image in pool["sdkHarnessContainerImages"]] == [IMAGE]
    assert pool["machineType"] == "n2-standard-8"
    assert pool["diskSizeGb"] == 50
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 20
    # The service's JSON has the name or the number of an enumeration's value.
    assert pool["ipConfiguration"] in (2, "WORKER_IP_PRIVATE")
    options = environment["sdkPipelineOptions"]["options"]
    assert options["pipelineUrl"].startswith(f"{cloud.bucket}/tmp/{job['name']}.")
    assert options["pipelineUrl"].removeprefix(f"{cloud.bucket}/") in cloud.gcs.names(cloud.bucket)
    # Nothing of the dataset is there yet.
    assert cloud.gcs.names(cloud.output) == ["runs/.lease.json"]


def test_no_wait_as_json(cloud: Cloud) -> None:
    result = run(*cloud.words(f"--sdk_container_image={IMAGE}", "--no-wait", "--json"))
    assert json.loads(result.stdout) == {
        "status": "submitted",
        "exit_code": 0,
        "output": cloud.output,
        "job_id": JOB_ID,
        "console": CONSOLE,
        "cancel": CANCEL,
        "warnings": [],
    }


def test_a_template(cloud: Cloud) -> None:
    template = f"{cloud.bucket}/templates/job"
    # As the launcher of Flex Templates asks for it.
    result = run(
        *cloud.words(f"--sdk_container_image={IMAGE}", f"--template_location={template}", "--wait")
    )
    assert result == Run(0, f"template written; it builds {cloud.output}\n", "")
    assert cloud.service.job is None
    job = json.loads(cloud.gcs.read(template))
    staged = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
    assert cloud.gcs.read(staged)


@pytest.mark.slow
def test_a_template_with_nothing_to_do(cloud: Cloud, capfd: pytest.CaptureFixture[str]) -> None:
    """Dataflow counts a launcher that records no job as failed; so would the schedule."""
    cloud.service.run_jobs(gcs=cloud.gcs)
    assert run(*cloud.words(f"--sdk_container_image={IMAGE}", "--wait")).exit_code == 0
    before = cloud.gcs.read_tree(cloud.output)
    template = f"{cloud.bucket}/templates/job"
    code = launch(
        [
            "--format=coco",
            f"--images={cloud.bucket}/images",
            f"--annotations={cloud.bucket}/annotations/instances.json",
            f"--output={cloud.output}",
            "--fractions=train=0.7,validation=0.3",
            '--set=["output.num_shards=5", "rejects.max_ratio=1", "unannotated=keep"]',
            "--if_changed=true",
            f"--sdk_container_image={IMAGE}",
            f"--template_location={template}",
            "--job_name=nightly",
            *cloud.job_flags,
        ]
    )
    printed = capfd.readouterr()
    assert code == 0, printed.err
    assert "nothing to do: inputs and config are as they were" in printed.out + printed.err
    job = json.loads(cloud.gcs.read(template))
    assert job["name"] == "nightly"
    run_staged(job, gcs=cloud.gcs)
    assert cloud.gcs.read_tree(cloud.output) == before


def test_code_from_a_checkout(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Building leaves files behind; and the folder that it is in must not matter afterwards.
    checkout = tmp_path / "checkout"
    names = ("configs", "pipelines", "readers", "transforms")
    for name in (*names, "shardbeam"):
        shutil.copytree(
            PROJECT_ROOT / name,
            checkout / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT_ROOT / name, checkout)
    (checkout / "configs" / "example.yaml").write_text("name: example\n")
    monkeypatch.chdir(checkout)
    result = run(*cloud.words("--setup_file=./setup.py", "--no-wait"))
    assert result.exit_code == 0, result.stderr
    assert Path.cwd() == checkout
    assert cloud.service.job is not None
    (pool,) = cloud.service.job["environment"]["workerPools"]
    packages = {package["name"]: package["location"] for package in pool["packages"]}
    sdist = cloud.gcs.read(packages["workflow.tar.gz"].replace("storage.googleapis.com/", "gs://"))
    with tarfile.open(fileobj=io.BytesIO(sdist)) as archive:
        shipped = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        path.relative_to(checkout).as_posix()
        for name in names
        for path in (checkout / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sorted(wanted - shipped) == []


def test_a_checkout_that_cannot_be_built(cloud: Cloud, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("raise ValueError('no package')")
    result = run(*cloud.words(f"--setup_file={tmp_path / 'setup.py'}", "--no-wait"))
    assert (result.exit_code, result.stdout) == (1, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("shardbeam: error: the job could not be submitted: ")
    assert "setup.py" in last
    assert cloud.service.job is None


# How jobs end


def check_failed(result: Run, *, message: str, exit_code: int = 1) -> None:
    assert result.exit_code == exit_code
    assert result.stderr.splitlines()[-1] == f"shardbeam: error: {message}"
    assert "Traceback" not in result.stderr


def test_a_refused_build_has_its_own_exit_code(cloud: Cloud) -> None:
    cloud.service.run_jobs(gcs=cloud.gcs)
    words = cloud.words(f"--sdk_container_image={IMAGE}", "--wait")
    result = run(*words, "--set", "rejects.max_ratio=0", "--json")
    # All that the service says is FAILED.
    assert cloud.service.states == ["JOB_STATE_FAILED"]
    assert result.exit_code == 3
    summary = json.loads(result.stdout)
    assert summary["status"] == "refused"
    assert "too many rejects" in summary["message"]


def test_bad_input_is_told_as_at_home(cloud: Cloud) -> None:
    cloud.gcs.write(f"{cloud.bucket}/annotations/instances.json", b"{")
    cloud.service.run_jobs(gcs=cloud.gcs)
    words = cloud.words(f"--sdk_container_image={IMAGE}", "--wait")
    result = run(*words)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith(f"shardbeam: error: {cloud.bucket}/annotations/instances.json: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {
                "states": ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_FAILED"],
                "errors": ["The zone has no more of these machines.\nTry another."],
            },
            f" ended as FAILED ({CONSOLE}): The zone has no more of these machines. Try another.",
        ),
        (
            {"states": ["JOB_STATE_RUNNING", "JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED"]},
            " was cancelled; run the same command again, finished shards are kept",
        ),
        (
            {"lost": True},
            " is lost: the service does not know it any more; run the same command again, "
            "finished shards are kept",
        ),
    ],
    ids=["failed", "cancelled", "lost"],
)
def test_a_job_that_ends_badly(changes: dict[str, object], message: str, cloud: Cloud) -> None:
    for name, value in changes.items():
        setattr(cloud.service, name, value)
    result = run(*cloud.words(f"--sdk_container_image={IMAGE}", "--wait"))
    check_failed(result, message=f"job {JOB_ID}{message}")


def test_a_job_that_is_not_accepted(cloud: Cloud) -> None:
    cloud.service.refusal = (403, "The Dataflow API is not enabled.")
    result = run(*cloud.words(f"--sdk_container_image={IMAGE}", "--wait"))
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("shardbeam: error: the job was not accepted: 403 ")
    assert last.endswith("The Dataflow API is not enabled.")


def test_ctrl_c_leaves_the_job_alone(cloud: Cloud, tmp_path: Path) -> None:
    cloud.service.states = ["JOB_STATE_RUNNING"]
    words = cloud.words(f"--sdk_container_image={IMAGE}", "--wait")
    process = start(*words, cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if JOB_ID in line:
            break
    process.send_signal(signal.SIGINT)
    check_failed(
        finish(process),
        message=f"interrupted; job {JOB_ID} goes on without this command. To cancel it: {CANCEL}",
        exit_code=130,
    )
    assert cloud.service.requested == []


def test_a_program_submits_a_job(cloud: Cloud) -> None:
    cloud.service.on_submit = lambda job: None
    config = {
        "name": "coco",
        "splits": {
            "train": {
                "format": "coco",
                "images": f"{cloud.bucket}/images",
                "annotations": f"{cloud.bucket}/annotations/instances.json",
            }
        },
        "output": {"path": cloud.output},
    }
    flags = [*cloud.job_flags, f"--sdk_container_image={IMAGE}"]
    before = dict(os.environ)
    result = shardbeam.build(config, options=PipelineOptions(flags), wait=False)
    assert (result.status.value, result.output) == ("submitted", cloud.output)
    assert result.job is not None
    assert (result.job.id, result.job.console, result.job.cancel_command) == (
        JOB_ID,
        CONSOLE,
        CANCEL,
    )
    assert dict(os.environ) == before
    # The job holds the output.
    with pytest.raises(shardbeam.LeaseError, match=JOB_ID):
        shardbeam.build(config)
