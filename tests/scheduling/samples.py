"""The commands that the samples in docs/guide/scheduling start."""

from __future__ import annotations

import re
import shlex
import sys
import types
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT_ROOT

Json = dict[str, Any]

FOLDER = PROJECT_ROOT / "docs" / "guide" / "scheduling"
PAGE = (PROJECT_ROOT / "docs" / "guide" / "scheduling.md").read_text(encoding="utf-8")
PROGRAM = "/opt/shardbeam/bin/shardbeam"
CONFIG = "/etc/shardbeam/coco.yaml"


def read(name: str) -> str:
    """Reads a sample."""
    return (FOLDER / name).read_text(encoding="utf-8")


def kubernetes_objects() -> dict[str, Json]:
    """The objects of cronjob.yaml, by kind."""
    return {item["kind"]: item for item in yaml.safe_load_all(read("cronjob.yaml"))}


def pod_spec() -> Json:
    """The pod that the CronJob starts."""
    spec: Json = kubernetes_objects()["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return spec


def unit_settings(name: str) -> dict[str, str]:
    """The settings of a systemd unit, the last of each; lines that go on are put together."""
    text = read(name).replace("\\\n", "")
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


def cron_entry() -> tuple[list[str], str, dict[str, str]]:
    """The one line of the crontab: its five fields, its command, and the variables set above."""
    lines = [line for line in read("crontab").splitlines() if line and not line.startswith("#")]
    variables = dict(line.split("=", 1) for line in lines[:-1])
    *fields, command = lines[-1].split(maxsplit=5)
    return fields, command, variables


def commands() -> dict[str, list[str]]:
    """The command line that each sample starts, without the program's name."""
    _, command, _ = cron_entry()
    by_cron = shlex.split(command.partition(">>")[0])
    by_systemd = shlex.split(unit_settings("shardbeam.service")["ExecStart"])
    by_kubernetes = pod_spec()["containers"][0]["args"]
    assert [words[0] for words in (by_cron, by_systemd)] == [PROGRAM] * 2
    assert by_kubernetes[0] == "shardbeam"
    return {
        "crontab": by_cron[1:],
        "shardbeam.service": by_systemd[1:],
        "cronjob.yaml": by_kubernetes[1:],
    }


def airflow_task(monkeypatch: pytest.MonkeyPatch) -> tuple[Json, Json]:
    """Executes airflow_dag.py on stand-ins for what it imports.

    Returns:
        The arguments of the DAG, and of its operator.
    """
    made: dict[str, Json] = {}

    class Recorder:
        def __init__(self, **arguments: object) -> None:
            made[type(self).__name__] = arguments

        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None: ...

    for module, name in {
        "airflow.sdk": "DAG",
        "airflow.providers.google.cloud.operators.dataflow": "DataflowStartFlexTemplateOperator",
    }.items():
        stand_in = types.ModuleType(module)
        setattr(stand_in, name, type(name, (Recorder,), {}))
        monkeypatch.setitem(sys.modules, module, stand_in)
    exec(compile(read("airflow_dag.py"), "airflow_dag.py", "exec"), {"__name__": "dag"})
    return made["DAG"], made["DataflowStartFlexTemplateOperator"]
