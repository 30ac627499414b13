"""The samples in docs/guide/scheduling start existing commands, and do what the page says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud.dataflow_v1beta3.types import JobState, LaunchFlexTemplateRequest

from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.commands.flex_template import command_line
from tests.conftest import PROJECT_ROOT
from tests.scheduling.samples import (
    CONFIG,
    FOLDER,
    PAGE,
    PROGRAM,
    Json,
    airflow_task,
    commands,
    cron_entry,
    kubernetes_objects,
    pod_spec,
    read,
    unit_settings,
)
from tests.support.dataset import Run, read_tree, run

LATEST = "gs://my-bucket/tfrecords/coco/latest"
ARGUMENTS = {
    "bucket": "my-bucket",
    "region": "us-central1",
    "image": "us-central1-docker.pkg.dev/my-project/images/shardbeam:0.2.0",
    "service_account": "shardbeam@my-project.iam.gserviceaccount.com",
}


def test_the_page_names_every_sample() -> None:
    linked = set(re.findall(r"\]\(scheduling/([^)]+)\)", PAGE))
    assert linked == {path.name for path in FOLDER.iterdir() if path.is_file()}


@pytest.mark.parametrize("sample", [*commands(), "workflow.yaml", "airflow_dag.py"])
def test_what_is_started_is_understood(
    sample: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "coco.yaml"
    if sample in commands():
        words = commands()[sample]
        assert words[:2] == ["build", CONFIG]
        data = kubernetes_objects()["ConfigMap"]["data"]
        config.write_text(data["coco.yaml"] if sample == "cronjob.yaml" else read("coco.yaml"))
    else:
        parameters = launch_parameters(monkeypatch)[sample]["parameters"]
        check_parameters(parameters)
        words = command_line([f"--{name}={value}" for name, value in parameters.items()])
        assert words[:2] == ["build", "gs://my-bucket/configs/coco.yaml"]
        config.write_text(read("coco.yaml"))
    arguments = parse_arguments(["build", str(config), *words[2:]])
    assert isinstance(arguments, BuildArguments)
    assert arguments.if_changed
    assert arguments.reuse == LATEST
    assert (arguments.log_format == "json") is (sample in commands())
    assert arguments.config.output.latest == LATEST
    assert "{fingerprint}" in arguments.config.output.path
    assert arguments.config.output.num_shards


def launch_parameters(monkeypatch: pytest.MonkeyPatch) -> dict[str, Json]:
    """The parameters with which each of the two samples launches the template."""
    launch = workflow_steps()["launch"]["try"]
    assert launch["call"] == "googleapis.dataflow.v1b3.projects.locations.flexTemplates.launch"
    _, operator = airflow_task(monkeypatch)
    bodies = {"workflow.yaml": fill_in(launch["args"]["body"]), "airflow_dag.py": operator["body"]}
    return {name: body["launchParameter"] for name, body in bodies.items()}


def check_parameters(parameters: dict[str, str]) -> None:
    """Checks parameters as Dataflow does before it launches anything."""
    metadata = json.loads((PROJECT_ROOT / "docker" / "metadata.json").read_bytes())
    known = {parameter["name"]: parameter for parameter in metadata["parameters"]}
    for name, value in parameters.items():
        assert any(re.search(pattern, value) for pattern in known[name]["regexes"]), name
    needed = {name for name, parameter in known.items() if not parameter["isOptional"]}
    assert needed <= set(parameters)


def test_the_configs_are_one() -> None:
    in_kubernetes = kubernetes_objects()["ConfigMap"]["data"]["coco.yaml"]
    assert yaml.safe_load(in_kubernetes) == yaml.safe_load(read("coco.yaml"))


class TestCrontab:
    def test_the_fields_are_times(self) -> None:
        fields, _, variables = cron_entry()
        limits = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
        for field, (low, high) in zip(fields, limits, strict=True):
            assert field == "*" or low <= int(field) <= high, field
        assert set(variables) == {"MAILTO", "LOG"}

    def test_no_percent(self) -> None:
        """Cron makes line ends of them."""
        assert "%" not in cron_entry()[1]

    @pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130])
    def test_what_is_mailed(self, code: int, tmp_path: Path) -> None:
        program = tmp_path / "shardbeam"
        program.write_text(f"#!/bin/sh\necho first >&2\necho 'the summary' >&2\nexit {code}\n")
        program.chmod(0o755)
        log = tmp_path / "log"
        log.write_text("before\n")
        command = cron_entry()[1].replace(PROGRAM, str(program))
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env={"LOG": str(log), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        mailed = "" if code in (0, 4) else f"shardbeam ended with {code}\nthe summary\n"
        assert (done.stdout, done.stderr) == (mailed, "")
        assert log.read_text() == "before\nfirst\nthe summary\n"


class TestSystemd:
    def test_what_is_tried_again(self) -> None:
        settings = unit_settings("shardbeam.service")
        assert settings["SuccessExitStatus"].split() == ["4", "130"]
        assert settings["RestartPreventExitStatus"].split() == ["2", "3"]
        # In a oneshot unit, `always` and `on-success` would be errors.
        assert (settings["Type"], settings["Restart"]) == ("oneshot", "on-failure")


class TestKubernetes:
    @pytest.mark.parametrize(
        ("code", "action"),
        [(1, "Count"), (2, "FailJob"), (3, "FailJob"), (4, "Ignore"), (130, "Count")],
    )
    def test_what_is_tried_again(self, code: int, action: str) -> None:
        assert self.judge(code) == action

    def judge(self, code: int) -> str:
        """Applies podFailurePolicy: the first matching rule; without one, the failure counts."""
        (container,) = pod_spec()["containers"]
        job = kubernetes_objects()["CronJob"]["spec"]["jobTemplate"]["spec"]
        for rule in job["podFailurePolicy"]["rules"]:
            codes: Any = rule.get("onExitCodes")
            if codes is not None:
                assert codes["containerName"] == container["name"]
                assert codes["operator"] == "In"
                if code in codes["values"]:
                    return str(rule["action"])
        return "Count"

    def test_what_belongs_together(self) -> None:
        objects = kubernetes_objects()
        pod = pod_spec()
        (container,) = pod["containers"]
        assert pod["restartPolicy"] == "Never"
        assert pod["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert set(volumes) == set(mounts)
        assert volumes["config"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
        (name,) = objects["ConfigMap"]["data"]
        assert f"{mounts['config']}/{name}" == CONFIG

    def test_there_is_a_process_for_each_cpu(self) -> None:
        """The program cannot see a request, and would count the CPUs of the node."""
        requests = pod_spec()["containers"][0]["resources"]["requests"]
        words = commands()["cronjob.yaml"]
        arguments = parse_arguments(["build", str(FOLDER / "coco.yaml"), *words[2:]])
        assert isinstance(arguments, BuildArguments)
        assert arguments.processes == int(requests["cpu"])

    def test_temporary_files_have_the_room_that_the_pod_asks_for(self) -> None:
        resources = pod_spec()["containers"][0]["resources"]
        (temporary,) = [
            volume["emptyDir"] for volume in pod_spec()["volumes"] if volume["name"] == "tmp"
        ]
        assert (
            temporary["sizeLimit"]
            == resources["requests"]["ephemeral-storage"]
            == resources["limits"]["ephemeral-storage"]
        )


def workflow_steps() -> dict[str, Json]:
    """The workflow's steps by name."""
    main = yaml.safe_load(read("workflow.yaml"))["main"]
    return {name: step for named in main["steps"] for name, step in named.items()}


def fill_in(body: Json) -> Json:
    """Puts the workflow's arguments into what it launches: text, and `bucket + "a path"`."""
    filled = re.sub(
        r'\$\{bucket \+ \\"(.*?)\\"\}', rf"gs://{ARGUMENTS['bucket']}\1", json.dumps(body)
    )
    filled = re.sub(r"\$\{args\.(\w+)\}", lambda match: ARGUMENTS[match[1]], filled)
    assert "${" not in filled
    return Json(json.loads(filled))


class TestWorkflow:
    def test_it_follows_the_job_to_each_end(self) -> None:
        done, failed, otherwise = workflow_steps()["judge"]["switch"]
        assert re.findall(r"JOB_STATE_\w+", done["condition"]) == ["JOB_STATE_DONE"]
        ends = {"FAILED", "CANCELLED", "UPDATED", "DRAINED"}
        found = re.findall(r"JOB_STATE_\w+", failed["condition"])
        assert set(found) == {JobState[f"JOB_STATE_{end}"].name for end in ends}
        assert ("return" in done, "raise" in failed) == (True, True)
        assert otherwise == {"condition": True, "next": "wait"}

    def test_a_job_that_is_at_work_is_left_alone(self) -> None:
        """Dataflow refuses a second job of the same name with 409; other refusals are raised."""
        refused, not_launched = workflow_steps()["launch"]["except"]["steps"]
        (case,) = refused["refused"]["switch"]
        assert case["condition"].endswith('"code"), 0) == 409}')
        assert case["return"].startswith("skipped: ")
        assert not_launched == {"not_launched": {"raise": "${error}"}}

    def test_scheduler_gives_it_what_it_takes(self, tmp_path: Path) -> None:
        words = run_scheduler(tmp_path, "my-project", "us-central1", "my-bucket", "host/image:1")
        deploy, create = words
        assert deploy[:3] == ["workflows", "deploy", "shardbeam-coco"]
        flags = dict(word.removeprefix("--").split("=", 1) for word in deploy[3:])
        assert Path(flags["source"]).samefile(FOLDER / "workflow.yaml")
        assert create[:5] == ["scheduler", "jobs", "create", "http", "shardbeam-coco"]
        flags = dict(word.removeprefix("--").split("=", 1) for word in create[5:])
        arguments = json.loads(json.loads(flags["message-body"])["argument"])
        assert arguments == {
            "bucket": "my-bucket",
            "region": "us-central1",
            "image": "host/image:1",
            "service_account": "shardbeam@my-project.iam.gserviceaccount.com",
        }
        used = set(re.findall(r"\bargs\.(\w+)", read("workflow.yaml")))
        assert used == set(arguments) == set(ARGUMENTS)
        assert flags["uri"].endswith(
            "/projects/my-project/locations/us-central1/workflows/shardbeam-coco/executions"
        )


def run_scheduler(folder: Path, *words: str) -> list[list[str]]:
    """Runs scheduler.sh with a stand-in for gcloud; returns the words that it was called with."""
    gcloud = folder / "gcloud"
    gcloud.write_text(
        '#!/bin/sh\nfor word; do printf "%s\\n" "$word"; done >>"$CALLS"\necho >>"$CALLS"\n'
    )
    gcloud.chmod(0o755)
    calls = folder / "calls"
    subprocess.run(
        [FOLDER / "scheduler.sh", *words],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls)},
        check=True,
    )
    return [call.split("\n") for call in calls.read_text().strip().split("\n\n")]


class TestLaunches:
    @pytest.mark.parametrize("sample", ["workflow.yaml", "airflow_dag.py"])
    def test_dataflow_reads_them(self, sample: str, monkeypatch: pytest.MonkeyPatch) -> None:
        parameter = launch_parameters(monkeypatch)[sample]
        body = json.dumps({"launchParameter": parameter})
        message = LaunchFlexTemplateRequest.from_json(body).launch_parameter
        assert dict(message.parameters) == parameter["parameters"]
        assert message.job_name == "shardbeam-coco"
        assert message.environment.max_workers == 50

    def test_they_are_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        by_workflow, by_airflow = launch_parameters(monkeypatch).values()
        assert by_workflow == by_airflow

    def test_airflow_neither_overlaps_nor_catches_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dag, operator = airflow_task(monkeypatch)
        assert (dag["max_active_runs"], dag["catchup"]) == (1, False)
        # A name of its own for each run would let two jobs be active.
        assert operator["append_job_name"] is False


class TestOnDisk:
    """The page's command and the crontab's, with the bucket as a folder."""

    @pytest.fixture
    def bucket(self, tmp_path: Path, shapes: Path) -> Path:
        bucket = tmp_path / "my-bucket"
        shutil.copytree(shapes / "images", bucket / "coco" / "train2017")
        annotations = bucket / "coco" / "annotations" / "instances_train2017.json"
        annotations.parent.mkdir()
        shutil.copy(shapes / "annotations" / "instances.json", annotations)
        (tmp_path / "coco.yaml").write_text(place(read("coco.yaml"), bucket))
        return bucket

    def build(self, bucket: Path) -> Run:
        (block, *_) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        _, *words = shlex.split(block)
        # Both start the same.
        assert [words[0], CONFIG, *words[2:]] == commands()["crontab"]
        config = str(bucket.parent / "coco.yaml")
        more = ("--set=output.num_shards=4", "--json")
        return run(words[0], config, *(place(word, bucket) for word in words[2:]), *more)

    def test_it_builds_what_has_changed(self, bucket: Path) -> None:
        pointer = Path(place(LATEST, bucket))
        first = self.build(bucket)
        assert first.exit_code == 0, first.stderr
        version = Path(pointer.read_text().strip())
        assert (version / "dataset_info.json").exists()
        before = read_tree(version)
        again = json.loads(self.build(bucket).stdout)
        assert again["current"]
        assert read_tree(version) == before
        image = min((bucket / "coco" / "train2017").iterdir())
        os.utime(image, (0, 0))
        changed = json.loads(self.build(bucket).stdout)
        assert (changed["current"], changed["exit_code"]) == (False, 0)
        assert changed["reuse"]["copied_shards"] == 3
        assert Path(pointer.read_text().strip()) != version
        assert read_tree(version) == before

    @pytest.mark.skipif(sys.version_info < (3, 11), reason="TFDS cannot be installed here")
    @pytest.mark.slow
    def test_a_trainer_follows_the_pointer(self, bucket: Path, tmp_path: Path) -> None:
        assert self.build(bucket).exit_code == 0
        (snippet,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        assert LATEST in snippet
        done = subprocess.run(
            [sys.executable, "-c", place(snippet, bucket)],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        folder = Path(place(LATEST, bucket)).read_text().strip()
        assert done.stdout == f"{folder} 40\n"


def place(text: str, bucket: Path) -> str:
    """Puts a folder in the bucket's stead."""
    return text.replace("gs://my-bucket", str(bucket))


def test_the_pages_config_is_the_samples() -> None:
    (config,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    sample = yaml.safe_load(read("coco.yaml"))
    assert yaml.safe_load(config) == {"output": sample["output"]}
