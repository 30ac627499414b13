"""What the command says about a job on Dataflow: where it runs, and how to cancel it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shardbeam.pipelines.cli.logging import logged_warnings, write_line, write_stdout, writes_json
from shardbeam.pipelines.interrupts import say_when_interrupted
from shardbeam.transforms.core.text import escape

if TYPE_CHECKING:
    from shardbeam.pipelines.runners.dataflow import Job


def announce_job(job: Job) -> None:
    """Writes to stderr where a job runs, before the command waits for its end."""
    say_when_interrupted(
        f"interrupted; job {job.id} goes on without this command. To cancel it: "
        f"{job.cancel_command}"
    )
    write_line(f"job {job.id}: {job.console}")


def print_job(job: Job | None, *, output: str, as_json: bool) -> None:
    """Prints what was submitted, if the command does not wait for its end.

    Args:
        job: The job; None if a template was written instead.
        output: The dataset's folder.
        as_json: Whether to print one JSON object on one line: `status` (`submitted` or
            `template`), `exit_code`, `output`, `warnings`, and of a job `job_id`, `console` and
            `cancel`.
    """
    value: dict[str, Any] = {"status": "submitted" if job else "template"}
    value |= {"exit_code": 0, "output": output, "warnings": logged_warnings()}
    lines = [f"template written; it builds {escape(output)}"]
    if job is not None:
        value |= {"job_id": job.id, "console": job.console, "cancel": job.cancel_command}
        lines = [
            f"submitted, for: {escape(output)}",
            f"job: {job.id}",
            f"console: {job.console}",
            f"to cancel it: {job.cancel_command}",
        ]
    if as_json or not writes_json():
        write_stdout(json.dumps(value) + "\n" if as_json else "\n".join(lines) + "\n")
    if writes_json():
        write_line(lines[0], step="summary", **value)
