"""The password of a URI is in no message, no summary, no log, and no file of a dataset.

The files lie in fsspec's file system in memory, which takes `user:password@host` for a folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

import shardbeam.pipelines.cli.run
from shardbeam.configs.passwords import hide_passwords
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.cli.logging import (
    configure_logging,
    render_interrupt,
    render_json_line,
)
from tests.support.dataset import Run, run
from tests.support.python_runs import run_python

SECRET = "s3cr3t"
SHOWN = "user:***@host"


@contextlib.contextmanager
def sample_behind_a_password(shapes: Path) -> Iterator[str]:
    """Yields the root of a storage that takes a password, with the sample dataset in `shapes`."""
    root = f"memory://user:{SECRET}@host-{uuid.uuid4().hex}"
    system = fsspec.filesystem("memory")
    for path in shapes.rglob("*"):
        if path.is_file() and "class_folders" not in path.parts:
            place = path.relative_to(shapes).as_posix()
            system.pipe_file(f"{root}/shapes/{place}", path.read_bytes())
    yield root
    system.rm(root, recursive=True)


@pytest.fixture
def remote(shapes: Path) -> Iterator[str]:
    with sample_behind_a_password(shapes) as root:
        yield root


@pytest.fixture(scope="module")
def built(shapes: Path) -> Iterator[str]:
    """A storage as `remote`, with a dataset in `out`, for commands that change neither."""
    with sample_behind_a_password(shapes) as root:
        assert run(*words(root)).exit_code == 0
        yield root


def words(remote: str, *more: str) -> list[str]:
    return [
        *("build", "coco", "--images", f"{remote}/shapes/images"),
        *("--annotations", f"{remote}/shapes/annotations/instances.json"),
        *("--output", f"{remote}/out", *more),
    ]


def stored(remote: str) -> dict[str, bytes]:
    system = fsspec.filesystem("memory")
    return {path: system.cat_file(path) for path in system.find(f"{remote}/out")}


def check_hidden(result: Run, *, exit_code: int) -> None:
    assert result.exit_code == exit_code, result
    for text in (result.stdout, result.stderr):
        assert SECRET not in text


@pytest.mark.parametrize("flags", [(), ("--json", "--log-format", "json")])
def test_a_build_and_its_dataset(flags: tuple[str, ...], remote: str) -> None:
    system = fsspec.filesystem("memory")
    system.pipe_file(f"{remote}/shapes/images/bad.jpg", b"no image")
    tolerant = ("--set", "rejects.max_ratio=0.1", "--set", f"description='from {remote}/x'")
    result = run(*words(remote, *tolerant, *flags))
    check_hidden(result, exit_code=0)
    assert SHOWN[:9] in (result.stdout or result.stderr)
    files = stored(remote)
    assert not [path for path, data in files.items() if SECRET.encode() in data]
    (runs,) = (data for path, data in files.items() if "/runs/20" in path)
    assert f"{hide_passwords(remote)}/shapes/annotations" in runs.decode()
    # Another password is no other file: there is nothing to do.
    again = run(*words(remote, *tolerant, "--if-changed", *flags))
    check_hidden(again, exit_code=0)
    assert "unchanged" in again.stdout + again.stderr or json.loads(again.stdout)["current"]


def test_what_a_run_could_not_read_is_tried_again(
    remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_type = type(fsspec.filesystem("memory"))
    read = system_type.cat_file

    def fail(self: object, path: str, *more: object, **options: object) -> object:
        if path.endswith("07.jpg"):
            raise FileNotFoundError(path)
        return read(self, path, *more, **options)

    flags = ("--set", "rejects.max_ratio=0.1")
    with monkeypatch.context() as patch:
        patch.setattr(system_type, "cat_file", fail)
        refused = run(*words(remote, "--set", "rejects.max_ratio=0"))
        check_hidden(refused, exit_code=3)
        # The files kept for the next run do not show the password either.
        staged = {path: data for path, data in stored(remote).items() if "/.staging/" in path}
        assert [path for path in staged if path.endswith("/done")]
        assert not [path for path, data in staged.items() if SECRET.encode() in data]
        result = run(*words(remote, *flags))
    check_hidden(result, exit_code=0)
    assert not [path for path, data in stored(remote).items() if SECRET.encode() in data]
    again = run(*words(remote, *flags, "--if-changed", "--json"))
    check_hidden(again, exit_code=0)
    assert json.loads(again.stdout)["splits"]["train"]["rejected"] == {}


AS_JSON = ("--json", "--log-format", "json")


@pytest.mark.parametrize(
    ("more", "exit_code"),
    [
        (("--set", "splits.train.annotations=[{remote}/none.json]"), 1),
        (("--set", "splits.train.annotations=[{remote}/none.json]", *AS_JSON), 1),
        (("--set", "image.quality={remote}", *AS_JSON), 2),
        (("--set", "expect={{min_images: 1000}}", *AS_JSON), 3),
        (("--set", "splits.train.annotation={remote}/none.json"), 2),
        (("--set", "{remote}"), 2),
        (("--set", "image.quality={remote}"), 2),
        (("--set", "image.quality='{remote}"), 2),
        (("--threads", "{remote}"), 2),
        (("--outptu={remote}",), 2),
        (("--reuse", "{remote}/none"), 2),
        (("--set", "expect={{min_images: 1000}}"), 3),
        (("--set", "output.latest={remote}/latest"), 2),
    ],
)
def test_builds_that_fail(more: tuple[str, ...], exit_code: int, remote: str) -> None:
    result = run(*words(remote, *(word.format(remote=remote) for word in more)))
    check_hidden(result, exit_code=exit_code)
    if exit_code == 3:
        (outcome,) = (
            data for path, data in stored(remote).items() if path.endswith("outcome.json")
        )
        assert SECRET.encode() not in outcome


@pytest.mark.parametrize(
    ("line", "exit_code"),
    [
        ("show {out}", 0),
        ("show {out} --json", 0),
        ("show {out} --rejects", 0),
        ("show {out} --image 1 --output {remote}/p.svg", 0),
        ("show {out} --key none", 1),
        ("stats {out}", 0),
        ("stats {out} --recount --json --report {remote}/s.json", 0),
        ("verify {out}", 0),
        ("verify {out} --json --report {remote}/v.json", 0),
        ("report {out} --output {remote}/r.html", 0),
        ("diff {out} {out}", 0),
        ("diff {out} {remote}/none --json", 1),
        ("init {remote}/shapes", 0),
        ("init {remote}/shapes --output {remote}/c.yaml", 0),
        ("init {remote}/none", 1),
        ("show {remote}/none", 1),
        ("stats {remote}/none", 1),
        ("verify {remote}/none", 1),
        ("report {remote}/none", 1),
        ("build {remote}/none.yaml", 2),
        ("plan {remote}", 2),
        ("{remote}", 2),
        ("show filecache::{remote}", 1),
        ("verify {out} --repair {remote}/none.yaml", 2),
    ],
)
def test_other_commands(line: str, exit_code: int, built: str) -> None:
    check_hidden(run(*line.format(remote=built, out=f"{built}/out").split()), exit_code=exit_code)
    system = fsspec.filesystem("memory")
    for name in ("s.json", "v.json", "r.html", "c.yaml", "p.svg"):
        if system.exists(f"{built}/{name}"):
            assert SECRET.encode() not in system.cat_file(f"{built}/{name}")


def test_a_config_with_a_password(remote: str, tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    for text in (f"name: [{remote}", f"{remote}: 1", f"name: {remote}", f"name: a\nx: {remote}"):
        path.write_text(text)
        check_hidden(run("build", str(path)), exit_code=2)


def test_logs_interrupts_and_tracebacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"ftp://user:{SECRET}@host/x"
    for as_json in (False, True):
        logger = logging.getLogger()
        monkeypatch.setattr(logger, "handlers", [])
        with configure_logging(as_json=as_json):
            beam = logging.getLogger("apache_beam.io")
            beam.warning("cannot read %s", uri, exc_info=ValueError(uri))
        printed = capsys.readouterr().err
        assert "ftp://user:***@host/x" in printed
        assert SECRET not in printed
    assert SECRET not in render_json_line(uri, stack_trace=uri) + render_interrupt(uri)


def test_an_error_that_nobody_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: BuildArguments) -> int:
        raise ZeroDivisionError(arguments.config.output.path)

    monkeypatch.setattr(shardbeam.pipelines.cli.run, "run_build", fail)
    output = f"ftp://user:{SECRET}@host/x"
    flags = ("--images", "i", "--output", output, "--log-format", "json")
    check_hidden(run("build", "image-folder", *flags), exit_code=1)
    code = f"""
import shardbeam.pipelines.cli.main, sys
from shardbeam.__main__ import console
def fail(words):
    raise ZeroDivisionError({output!r})
shardbeam.pipelines.cli.main.main = lambda: fail([])
console()
"""
    ended = run_python(code)
    assert ended.returncode == 1
    assert ended.stderr.endswith("ZeroDivisionError: ftp://user:***@host/x\n")
    assert SECRET not in ended.stderr.replace(code, "")
