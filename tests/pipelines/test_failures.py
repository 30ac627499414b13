"""Errors that nobody expected end a command, and errors of the machine are one line."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbeam.pipelines.commands import index
from shardbeam.pipelines.failures import explain_failure, list_causes
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.shards import count, verify_shard
from shardbeam.transforms.storage.failures import one_line
from shardbeam.transforms.storage.local import LocalStorage
from tests.support.dataset import coco_words, run
from tests.support.stored import before_each, fail_with
from tests.support.watching import bare_root

FULL = os.strerror(errno.ENOSPC)


@pytest.fixture(scope="module")
def whole(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "dataset"
    assert run(*coco_words(shapes, output)).exit_code == 0
    return output


# Causes


def circle(*errors: BaseException) -> BaseException:
    """Makes each error the cause of the one before, and the first that of the last."""
    for error, cause in zip(errors, [*errors[1:], errors[0]], strict=True):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_causes_that_form_a_circle_are_listed_once(length: int) -> None:
    error = circle(*(ValueError(str(number)) for number in range(length)))
    assert [str(each) for each in list_causes(error)] == [str(each) for each in range(length)]
    assert isinstance(error, Exception)
    assert explain_failure(error) is error
    assert one_line(error) == "0"


@pytest.mark.timeout(20)
def test_an_error_that_is_its_own_reason_is_one_line() -> None:
    error = OSError("no route")
    error.reason = error  # type: ignore[attr-defined]
    assert one_line(error) == "no route"
    error.args = (error,)
    with contextlib.suppress(RecursionError):
        one_line(error)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("words", "module", "function"),
    [
        (("verify",), verify_shard, "find_container"),
        (("stats", "--recount"), count, "find_container"),
    ],
)
def test_a_command_ends_after_an_unexpected_error_of_a_worker(
    words: tuple[str, ...],
    module: Any,  # noqa: ANN401
    function: str,
    whole: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("nobody expects this")

    monkeypatch.setattr(module, function, fail)
    with pytest.raises(Exception, match="nobody expects this") as raised:
        run(words[0], str(whole), *words[1:])
    assert raised.value.__cause__ is not raised.value


# Errors of the machine


@contextlib.contextmanager
def file_limit(limit_bytes: int) -> Iterator[None]:
    """Lets this process write no longer files: more raises EFBIG."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("container", ["webdataset", "hf_parquet"])
def test_a_file_that_grows_too_long_while_a_shard_is_copied(
    container: str, shapes: Path, tmp_path: Path
) -> None:
    dataset = tmp_path / "dataset"
    words = coco_words(shapes, dataset, "--set", f"output.container={container}")
    assert run(*words).exit_code == 0
    with file_limit(5_000):
        for command in ("verify", "show"):
            # `show` has printed the splits.
            (line,) = run(command, str(dataset), exit_code=1).stderr.splitlines()
            assert "File too large (EFBIG)" in line
            assert f"{tempfile.gettempdir()}/shardbeam-" in line


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOTEMPTY, errno.ELOOP, errno.EPROTO])
def test_any_error_of_the_system_is_a_line_with_path_and_code(
    code: int,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before_each(monkeypatch, "replace", fail_with(code))
    caplog.set_level(logging.DEBUG, "shardbeam")
    line = run("index", str(whole), "--output", str(tmp_path), exit_code=1).error
    assert line.startswith(f"{tmp_path}/coco-train.tfrecord-00000-of-00001.parquet: ")
    assert os.strerror(code) in line
    assert errno.errorcode[code] in line
    (logged,) = (record for record in caplog.records if record.exc_info)
    assert logged.levelno == logging.DEBUG
    assert logged.exc_info is not None
    assert isinstance(logged.exc_info[1], OSError)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_is_full_or_fails_is_no_wrong_command_line(
    code: int, shapes: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_each(monkeypatch, "replace", fail_with(code))
    for words in (
        ("report", str(whole), "--output", f"{tmp_path}/page.html"),
        ("show", str(whole), "--image", "1", "--output", f"{tmp_path}/page.svg"),
        ("verify", str(whole), "--report", f"{tmp_path}/report.json"),
        ("init", str(shapes), "--output", f"{tmp_path}/config.yaml"),
    ):
        result = run(*words)
        assert result.exit_code == (2 if code == errno.EACCES else 1), words
        assert f"error: {words[-2]}: {words[-1]}: {os.strerror(code)}" in result.stderr


def test_an_index_that_cannot_be_written_leaves_no_files_that_refuse_the_next_one(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("index", str(whole), "--output", str(tmp_path / "index"), "--idx")
    with monkeypatch.context() as patch:
        before_each(patch, "replace", fail_with(errno.ENOSPC, where=".parquet"))
        assert "fix it and run the same command again" in run(*words, exit_code=1).error
    assert run(*words).exit_code == 0


def test_an_index_that_cannot_be_written_leaves_what_others_wrote(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(uri: str) -> None:
        if uri.endswith(".parquet"):
            Path(uri.replace(".parquet", ".idx")).write_bytes(b"of another command")
            raise OSError(errno.ENOSPC, FULL, uri)

    before_each(monkeypatch, "replace", fill)
    run("index", str(whole), "--output", str(tmp_path), "--idx", exit_code=1)
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b"of another command"


def test_storage_that_fails_to_remove_an_index_hides_no_error_and_delays_no_interrupt(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answers = threading.Event(), threading.Event()
    removed: list[str] = []
    delete = LocalStorage.delete
    actions: list[Callable[[], None]] = []

    def interrupt(uri: str) -> None:
        if uri.endswith(".parquet"):
            actions[0]()
            asked.wait()
            answers.set()
            raise OSError(errno.ENOSPC, FULL, uri)

    def hang(storage: LocalStorage, uri: str, **options: str | None) -> bool:
        if uri.endswith(".tmp"):
            return delete(storage, uri, **options)
        removed.append(uri)
        asked.set()
        answers.wait()
        raise InputError(uri=uri, problem="the storage does not answer")

    def remember(action: Callable[[], None]) -> contextlib.nullcontext[None]:
        actions.append(action)
        return contextlib.nullcontext()

    monkeypatch.setattr(index, "do_when_interrupted", remember)
    monkeypatch.setattr(index, "_REMOVING_S", 0.01)
    before_each(monkeypatch, "replace", interrupt)
    monkeypatch.setattr(LocalStorage, "delete", hang)
    error = run("index", str(whole), "--output", str(tmp_path), "--idx", exit_code=1).error
    assert FULL in error
    # Once by the interrupt, and once because of the full disk.
    assert len(removed) == 2


def fill_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets all writes to temporary files of commands fail."""
    write = Path.write_bytes

    def write_bytes(path: Path, data: bytes) -> int:
        if path.name == "inputs":
            raise OSError(errno.ENOSPC, FULL)
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    before_each(monkeypatch, "replace", fail_with(errno.ENOSPC, where="/report.json"))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", ["verify", "stats --recount"])
def test_a_full_folder_of_temporary_files_is_named(
    command: str, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_temporary_folder(monkeypatch)
    name, *flags = command.split()
    line = run(name, str(whole), *flags, exit_code=1).error
    assert line.startswith(
        f"the folder of temporary files, {tempfile.gettempdir()}, has no room left; free some, or "
        "set TMPDIR to a folder that has room ("
    )


@pytest.mark.parametrize("name", ["out", "shardbeam-output/x", "dataset/shardbeam-ab12_xyz/x"])
def test_other_files_in_it_are_not_called_temporary(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = f"{tmp_path}/{name}"
    shown = str(explain_failure(RuntimeError(f"OSError: [Errno 28] {FULL}: {path!r}")))
    assert shown.startswith(f"{path}: {FULL} (ENOSPC); fix it")
    in_it = f"{tmp_path}/shardbeam-ab12_xyz/x"
    shown = str(explain_failure(RuntimeError(f"OSError: [Errno 28] {FULL}: {in_it!r}")))
    assert shown.startswith(f"the folder of temporary files, {tmp_path}, has no room left")


def test_writes_name_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = str(tmp_path / "shard")
    with file_limit(10), pytest.raises(OSError, match="File too large") as raised:
        LocalStorage().replace(uri, bytes(100))
    assert raised.value.filename.startswith(uri)
    assert list(tmp_path.iterdir()) == []


def test_an_index_cannot_be_written_below_a_file(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run("index", str(whole), "--output", f"{tmp_path}/file/below")
    assert f"{tmp_path}/file" in result.error


def test_verbose_shows_the_traceback(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_each(monkeypatch, "replace", fail_with(errno.ENOSPC))
    words = coco_words(shapes, tmp_path / "out")
    with bare_root():
        result = run(*words, "--verbose")
    assert "DEBUG shardbeam.pipelines.failures: " in result.stderr
    assert "Traceback (most recent call last)" in result.stderr
    with bare_root():
        assert "Traceback" not in run(*words).stderr
