"""Logs on stderr: as text only those that users need, as JSON all of them.

Of a JSON log each line is one object, and the last one the summary, whatever happens.
"""

from __future__ import annotations

import datetime
import io
import json
import logging
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardbeam.pipelines.cli.run
from shardbeam.pipelines import execute
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.cli.logging import (
    configure_logging,
    log_everything,
    render_json_line,
    wants_json_log,
)
from shardbeam.pipelines.cli.main import main
from shardbeam.pipelines.failures import explain_failure
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.staging.lease import LeaseError
from shardbeam.transforms.storage.base import WriteFailedError
from tests.support.builds import wait_for_a_shard
from tests.support.dataset import (
    Run,
    coco_words,
    finish,
    run,
    start,
)
from tests.support.watching import bare_root

SHARDS = ("--set", "output.num_shards=100")
JSON_LOG = ("--log-format", "json")
SEVERITIES = {"DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"}

Line = dict[str, Any]


def parse(text: str) -> list[Line]:
    """Parses a log, and checks what all its lines have in common."""
    assert text.endswith("\n")
    lines: list[Line] = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        assert line["severity"] in SEVERITIES
        assert isinstance(line["message"], str)
        assert line["logger"]
        time = datetime.datetime.fromisoformat(line["time"])
        assert time.utcoffset() == datetime.timedelta(0)
    return lines


def summary_of(result: Run) -> Line:
    """The last line of a log, and of it only one; stdout has nothing."""
    assert result.stdout == ""
    lines = parse(result.stderr)
    assert [line.get("step") == "summary" for line in lines] == [False] * (len(lines) - 1) + [True]
    assert lines[-1]["exit_code"] == result.exit_code
    assert lines[-1]["wall_time_s"] >= 0
    return lines[-1]


# Whole runs


def test_a_good_run_and_what_stdout_still_gets(shapes: Path, tmp_path: Path) -> None:
    result = run(*coco_words(shapes, tmp_path / "out", *JSON_LOG, "--json"), exit_code=0)
    printed = json.loads(result.stdout)
    summary = summary_of(result._replace(stdout=""))
    assert (summary["severity"], summary["status"]) == ("INFO", "committed")
    assert summary["message"] == f"committed: {tmp_path}/out"
    assert summary["splits"]["train"]["examples"] == 40
    assert printed.pop("message") == ""
    assert {key: summary.get(key, "") for key in printed} == printed


def test_an_error_that_nobody_expected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: BuildArguments) -> int:
        raise ZeroDivisionError(arguments.config.name)

    monkeypatch.setattr(shardbeam.pipelines.cli.run, "run_build", fail)
    words = ["build", "image-folder", "--images", "i", "--output", "o", *JSON_LOG]
    exit_code = main(words)
    printed = capsys.readouterr()
    summary = summary_of(Run(exit_code, printed.out, printed.err))
    assert (summary["severity"], summary["exit_code"]) == ("ERROR", 1)
    assert summary["message"] == "ZeroDivisionError: image_folder"
    assert summary["stack_trace"].startswith("Traceback (most recent call last):\n")
    assert "raise ZeroDivisionError(arguments.config.name)\n" in summary["stack_trace"]


@pytest.mark.timing
def test_an_interrupt_is_one_line(shapes: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    process = start(*coco_words(shapes, output, *SHARDS, *JSON_LOG), cwd=tmp_path)
    wait_for_a_shard(process, output)
    process.terminate()
    result = finish(process)
    *_, last = parse(result.stderr)
    assert (result.exit_code, result.stdout) == (130, "")
    assert (last["severity"], last["status"], last["exit_code"]) == ("WARNING", "interrupted", 130)
    assert last["message"].startswith("interrupted; ")


# Lines


@given(message=st.text(st.characters(codec=None)), value=st.text())
def test_a_line_stays_one_line(message: str, value: str) -> None:
    text = render_json_line(message, severity="ERROR", value=value, empty="")
    assert text.isascii()
    assert "\n" not in text
    (line,) = parse(f"{text}\n")
    assert line["message"] == message.encode("utf-8", "backslashreplace").decode()
    assert line.get("value", "") == value
    assert "empty" not in line


def test_records_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("mine")
    hook = threading.excepthook
    with bare_root(), configure_logging(as_json=True):
        log_everything()
        logging.getLogger().setLevel(logging.DEBUG)
        for level in (10, 20, 25, 30, 40, 50):
            logger.log(level, "level %d\n", level)
        try:
            raise ValueError("bad\nvalue")
        except ValueError:
            logger.exception("failed")
        logger.warning("%d of them", "none")
        warnings.warn("old\nthing", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=_divide)
        thread.start()
        thread.join()
    *levels, failed, unformatted, warned, thread_failed = lines = parse(capsys.readouterr().err)
    # Only workers know that.
    assert not [line for line in lines if "step" in line]
    assert [line["severity"] for line in levels] == [
        *("DEBUG", "INFO", "INFO", "WARNING", "ERROR", "CRITICAL")
    ]
    assert levels[0]["message"] == "level 10\n"
    assert failed["stack_trace"].endswith("ValueError: bad\nvalue")
    assert unformatted["message"] == "cannot be formatted: '%d of them'"
    assert (warned["severity"], warned["logger"]) == ("WARNING", "py.warnings")
    assert "old\nthing" in warned["message"]
    assert thread_failed["severity"] == "ERROR"
    assert "ZeroDivisionError" in thread_failed["stack_trace"]
    assert threading.excepthook is hook


def _divide() -> None:
    print(1 // 0)


# Steps of the graph

FORMAT = """\
import logging

from shardbeam.transforms.formats.image_folder import ImageFolderFormat


class Talkative(ImageFolderFormat):
    def annotate_listed(self, key):
        logging.getLogger("mine").warning("at\\n%s", key)
        return super().annotate_listed(key)
"""


def test_workers_name_their_step(shapes: Path, tmp_path: Path) -> None:
    (tmp_path / "talkative.py").write_text(FORMAT)
    config = {
        "name": "d",
        "source": {
            "format": f"{tmp_path}/talkative.py:Talkative",
            "images": str(shapes / "class_folders"),
        },
        "output": {"path": str(tmp_path / "out")},
    }
    (tmp_path / "d.yaml").write_text(json.dumps(config))
    result = finish(start("build", f"{tmp_path}/d.yaml", *JSON_LOG, cwd=tmp_path))
    assert summary_of(result)["exit_code"] == 0
    said = [line for line in parse(result.stderr) if line["message"].startswith("at\n")]
    assert said
    for line in said:
        assert line["severity"] == "WARNING"
        assert line["step"].startswith("ListImages/")


# The flag


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("build x", False),
        ("build x --log-format json", True),
        ("--log-format=json build x", True),
        ("build x --log-format=json --log-format text", False),
        ("build x --log-format", False),
        ("build x --log-format xml", False),
    ],
)
def test_the_flag(line: str, wanted: bool) -> None:
    assert wants_json_log(line.split()) == wanted


# Text

BEAM = "apache_beam.runners.portability.local_job_service"


def log_examples() -> None:
    beam = logging.getLogger(BEAM)
    beam.info("started")
    beam.warning("Really starting service: x")
    beam.warning("Really destroying service: x")
    beam.error(
        "shardbeam.transforms.core.errors.InputError: a.json: cut off [while running 'Read']"
    )
    beam.error("out of memory")
    logging.getLogger("mine").warning("Really starting service, says a user's format")
    logging.warning("apitools not found, and bigquery client libraries are not available")
    logging.warning("no tools found")
    logging.getLogger("aiobotocore.tokens").warning("expired", exc_info=ValueError("no token"))


def test_warnings_and_errors_that_mean_something(capsys: pytest.CaptureFixture[str]) -> None:
    with bare_root(), configure_logging():
        log_examples()
        logging.getLogger("mine").warning("%d of them", "none")
    assert capsys.readouterr().err == (
        f"ERROR {BEAM}: out of memory\n"
        "WARNING mine: Really starting service, says a user's format\n"
        "WARNING root: no tools found\n"
        "shardbeam: error: cannot be formatted: '%d of them'\n"
    )


def errors_of_workers() -> list[type[InputError]]:
    # Both modules define errors.
    assert issubclass(WriteFailedError, InputError)
    kinds = [InputError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return kinds


@pytest.mark.parametrize("kind", errors_of_workers())
def test_an_error_that_the_command_reports_has_no_traceback(
    kind: type[InputError], capsys: pytest.CaptureFixture[str]
) -> None:
    error = kind(uri="a.tfrecord", problem="cut off")
    with bare_root(), configure_logging():
        logging.getLogger(BEAM).error("a bundle failed", exc_info=error)
        logging.getLogger(BEAM).error(f"{kind.__name__}: {error} [while running 'Write']")
    assert capsys.readouterr().err == ""
    explained = explain_failure(RuntimeError(f"{kind.__name__}: {error} [while running 'Write']"))
    assert str(explained) == str(error)


def test_everything_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    with bare_root(), configure_logging():
        log_everything()
        log_examples()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 10
    assert f"INFO {BEAM}: started" in printed.err


def test_logs_go_where_stderr_is_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced = io.StringIO()
    with bare_root(), configure_logging():
        monkeypatch.setattr(sys, "stderr", replaced)
        logging.getLogger(BEAM).error("out of memory")
    assert replaced.getvalue() == f"ERROR {BEAM}: out of memory\n"
    assert capsys.readouterr().err == ""


def test_a_run_that_finds_another_one_is_no_error(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise LeaseError("out: another run writes to it")

    monkeypatch.setattr(execute, "hold_output", refuse)
    summary = summary_of(run(*coco_words(shapes, tmp_path / "out", *JSON_LOG)))
    assert (summary["severity"], summary["exit_code"]) == ("WARNING", 4)


def test_logged_warnings_are_in_the_json(shapes: Path, tmp_path: Path) -> None:
    words = coco_words(shapes, tmp_path / "out", "--num_workers=3")
    warning = "--num_workers is for Dataflow, and changes nothing on this machine; "
    for command in ("plan", "build"):
        printed = json.loads(run(command, *words[1:], "--json", exit_code=0).stdout)
        assert [line for line in printed["warnings"] if line.startswith(warning)]
    summary = summary_of(run(*words, "--overwrite", *JSON_LOG))
    assert [line for line in summary["warnings"] if line.startswith(warning)]
    quiet = json.loads(run(*words[:-1], "--overwrite", "--json", exit_code=0).stdout)
    assert quiet["warnings"] == []
