"""What of Beam's logs reaches stderr."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from shardbeam.pipelines.logs import configure_logging, log_everything
from tests.support.watching import bare_root

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


def test_warnings_and_errors_that_mean_something(capsys: pytest.CaptureFixture[str]) -> None:
    with bare_root():
        configure_logging()
        log_examples()
    assert capsys.readouterr().err == (
        f"ERROR {BEAM}: out of memory\n"
        "WARNING mine: Really starting service, says a user's format\n"
    )


def test_everything_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    with bare_root():
        configure_logging()
        log_everything()
        log_examples()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 6
    assert f"INFO {BEAM}: started" in printed.err


def test_logs_go_where_stderr_is_now(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced = io.StringIO()
    with bare_root():
        configure_logging()
        monkeypatch.setattr(sys, "stderr", replaced)
        logging.getLogger(BEAM).error("out of memory")
    assert replaced.getvalue() == f"ERROR {BEAM}: out of memory\n"
    assert capsys.readouterr().err == ""
