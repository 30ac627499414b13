"""`shardbeam.build` and `plan`: the laws hold for programs, and programs stay as they are."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import apache_beam as beam
import msgspec
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

import shardbeam
from shardbeam.pipelines import execute, library
from shardbeam.pipelines.failures import NotStartedError, RunError
from shardbeam.transforms import take_records
from shardbeam.transforms.staging.staging import Staging
from shardbeam.transforms.storage.base import is_anonymous
from tests.support.dataset import TIMEOUT_S, coco_words, held, read_dataset, run

Json = dict[str, Any]


def make_config(shapes: Path, output: Path, **keys: object) -> Json:
    source = {
        "format": "coco",
        "images": f"{shapes}/images",
        "annotations": f"{shapes}/annotations/instances.json",
    }
    output_keys = {"path": str(output), "num_shards": 4}
    return {"name": "coco", "splits": {"train": source}, "output": output_keys, **keys}


@pytest.fixture
def config(shapes: Path, tmp_path: Path) -> Json:
    return make_config(shapes, tmp_path / "out")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


# Builds


def test_a_build_is_what_the_command_builds(
    config: Json, output: Path, shapes: Path, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(config))
    planned = shardbeam.plan(file)
    assert (planned.output, planned.splits["train"].examples) == (str(output), 40)
    assert not output.exists()
    built = shardbeam.build(shardbeam.load_config(file))
    assert (built.status.value, built.output, built.current) == ("committed", str(output), False)
    assert built.splits["train"].examples == 40
    words = coco_words(shapes, tmp_path / "by-command", "--set", "output.num_shards=4")
    assert run(*words).exit_code == 0
    assert read_dataset(output) == read_dataset(tmp_path / "by-command")


@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_result_has_what_the_command_prints(
    command: str, config: Json, output: Path, shapes: Path
) -> None:
    words = coco_words(shapes, output, "--set", "output.num_shards=4", "--json")
    printed = json.loads(run(command, *words[1:]).stdout)
    # The same again is nothing to do, and its result is that of the run before.
    result = (
        shardbeam.build(config, if_changed=True) if command == "build" else shardbeam.plan(config)
    )
    assert getattr(result, "current", False) == (command == "build")
    told = {name for name in printed if name != "exit_code"}
    assert all(hasattr(result, name) for name in told)
    assert result.classes == tuple(printed["classes"])
    assert result.splits["train"].images == printed["splits"]["train"]["images"]


# Refusals


def test_an_output_that_another_run_holds_is_refused(config: Json, output: Path) -> None:
    with held(output), pytest.raises(shardbeam.LeaseError, match="another run"):
        shardbeam.build(config)


def test_what_the_gate_refuses_is_an_error_with_its_result(
    config: Json, output: Path, shapes: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "annotations").symlink_to(shapes / "annotations")
    (folder / "images").mkdir()
    for index, file in enumerate(sorted((shapes / "images").iterdir())):
        (folder / "images" / file.name).write_bytes(b"" if index < 4 else file.read_bytes())
    config = make_config(folder, output)
    with pytest.raises(shardbeam.RefusedError, match="too many rejects") as refused:
        shardbeam.build(config)
    result = refused.value.result
    assert result.splits["train"].rejected == {"zero_byte": 4}
    assert Path(result.rejects).is_dir()
    assert not (output / "dataset_info.json").exists()
    # The same errors, by name, and one base for all of them.
    assert isinstance(refused.value, shardbeam.ShardbeamError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "processes: expected a whole number from 1 up, got 0"),
        ({"runner": "Dircet"}, "unknown runner 'Dircet'"),
        ({"options": {"direct_num_worker": 2}}, "did you mean 'direct_num_workers'"),
        ({"options": {"streaming": True}}, "streaming is refused"),
        ({"options": {"direct_running_mode": "multi_threading"}}, "Beam loses elements"),
        ({"options": PipelineOptions([], streaming=True)}, "streaming is refused"),
        ({"options": {"runner": "FlinkRunner"}, "runner": "PrismRunner"}, "name 'FlinkRunner'"),
        ({"reuse": "elsewhere"}, "no committed dataset"),
    ],
)
def test_options_are_read_strictly(options: Json, message: str, config: Json) -> None:
    with pytest.raises(shardbeam.UsageError, match=message):
        shardbeam.build(config, **options)


def test_a_config_is_read_strictly(config: Json) -> None:
    with pytest.raises(shardbeam.ConfigError, match="config: sede: unknown key; did you mean seed"):
        shardbeam.build({**config, "sede": 1})


def test_a_failing_disk_is_an_error_of_ours(config: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(5, os.strerror(5), "shard")

    monkeypatch.setattr(execute, "hold_output", fail)
    with pytest.raises(shardbeam.RunError, match="shard: Input/output error"):
        shardbeam.build(config)


# Records of a program


def make_records(shapes: Path, **said: Any) -> list[shardbeam.Record]:  # noqa: ANN401
    files = sorted((shapes / "images").iterdir())
    return [
        shardbeam.Record.of(file.name, image=str(file), **{"labels": ["shape"], **said})
        for file in files
    ]


def test_a_program_gives_the_records(shapes: Path, output: Path) -> None:
    config = {
        "name": "mine",
        "splits": ["train", "test"],
        "output": {"path": str(output), "num_shards": {"train": 2}},
        "rejects": {"max_ratio": 0.5},
    }
    records = [
        msgspec.structs.replace(record, split="test" if number < 5 else "train")
        for number, record in enumerate(make_records(shapes, boxes=[("circle", 1, 1, 9, 9)]))
    ]
    result = shardbeam.build(config, records=beam.Create([*records, records[0]]))
    assert {name: split.images for name, split in result.splits.items()} == {"train": 35, "test": 5}
    assert result.splits["test"].listed == 6
    assert result.splits["test"].rejected == {"duplicate_key": 1}
    assert result.classes == ("circle", "shape")


@pytest.mark.parametrize(
    "keys",
    [
        {"fractions": {"train": 0.8, "test": 0.2}, "exact": True},
        {"fractions": {"train": 0.5, "test": 0.5}, "stratify": True},
        {"fractions": {"train": 0.8, "test": 0.2}, "limit": 3},
    ],
)
def test_the_configs_rules_hold_for_them(keys: Json, shapes: Path, output: Path) -> None:
    config = {"name": "mine", "output": {"path": str(output)}, **keys}
    result = shardbeam.build(config, records=beam.Create(make_records(shapes)))
    images = {name: split.images for name, split in result.splits.items()}
    if "limit" in keys:
        assert images == {"train": 3, "test": 3}
    else:
        share = round(40 * keys["fractions"]["train"])
        assert images == {"train": share, "test": 40 - share}


def test_records_that_get_lost_commit_nothing(
    shapes: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = take_records._TakeFn._take
    names = {record.key for record in make_records(shapes)}
    lost = min(names)
    monkeypatch.setattr(
        take_records._TakeFn,
        "_take",
        lambda fn, record: take(fn, record) if record.key != lost else iter(()),
    )
    config = {"name": "mine", "output": {"path": str(output)}}
    with pytest.raises(shardbeam.RefusedError, match="40 listed, but 39 written"):
        shardbeam.build(config, records=beam.Create(make_records(shapes)))


@pytest.mark.parametrize(
    ("change", "options", "error"),
    [
        (
            {"source": {"format": "image-folder", "images": "x"}},
            {},
            "source: not together with",
        ),
        ({}, {"if_changed": True}, "if_changed: not together with records"),
        (
            {"output": {"path": "{fingerprint}"}},
            {},
            "in output.path: not together",
        ),
    ],
)
def test_what_does_not_go_with_records(change: Json, options: Json, error: str) -> None:
    config = {"name": "mine", "output": {"path": "out"}, **change}
    with pytest.raises(shardbeam.ShardbeamError, match=error):
        shardbeam.build(config, records=beam.Create([]), **options)


@pytest.mark.parametrize(
    ("splits", "expected"),
    [({}, "expected splits, or source"), (["train"], "expected a source for each split")],
)
def test_a_config_without_a_source_needs_records(splits: object, expected: str) -> None:
    config = {"name": "mine", "splits": splits, "output": {"path": "out"}}
    words = rf"splits: missing; {expected}; only shardbeam\.build\(records=...\) needs no source"
    with pytest.raises(shardbeam.ConfigError, match=words):
        shardbeam.build(config)


# Threads


def test_of_two_threads_with_one_output_one_builds(config: Json, output: Path) -> None:
    together = threading.Barrier(2)

    def build(seed: int) -> str:
        together.wait()
        try:
            return shardbeam.build({**config, "seed": seed}).status.value
        except shardbeam.ShardbeamError as error:
            return type(error).__name__

    with ThreadPoolExecutor(2) as threads:
        ends = sorted(threads.map(build, [0, 1]))
    # The second one comes while the first one builds, or after its commit.
    assert ends in (["LeaseError", "committed"], ["UsageError", "committed"])
    assert (output / "dataset_info.json").exists()


def test_two_threads_build_at_a_time(shapes: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "other"]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(shardbeam.build, [make_config(shapes, folder) for folder in folders]))
    assert read_dataset(folders[0]) == read_dataset(folders[1])


def test_credentials_are_left_out_until_the_build_ends(
    config: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    monkeypatch.setattr(library, "check_versions", lambda *_, **__: seen.append(is_anonymous()))
    shardbeam.plan(config, anonymous=True)
    shardbeam.plan(config)
    assert seen == [True, False]
    assert not is_anonymous()


# Programs and processes


def python(program: str, **values: object) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(program).format(**values)]


CAUGHT = """
    import json, logging, sys
    import shardbeam
    from shardbeam.transforms.containers.base import ChecksummedFile

    if {has_handlers}:
        logging.basicConfig()
    config = json.loads({config!r})
    for changes in ({{"expect": {{"min_images": 1000}}}}, {{"labels": {{"include": ["none"]}}}}):
        try:
            shardbeam.build({{**config, **changes}})
        except shardbeam.ShardbeamError as error:
            print(type(error).__name__)
    logging.getLogger("shardbeam.pipelines").warning("ours")

    def fail(*_):
        logging.getLogger("theirs").warning("seen")
        raise OSError(27, "File too large")

    ChecksummedFile.write = fail
    try:
        shardbeam.build({{**config, "output": {{"path": config["output"]["path"] + "-2"}}}})
    except shardbeam.ShardbeamError as error:
        print(error)
"""


@pytest.mark.parametrize("has_handlers", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_error_that_is_caught_prints_nothing(has_handlers: bool, config: Json) -> None:
    ended = subprocess.run(
        python(CAUGHT, config=json.dumps(config), has_handlers=has_handlers),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.stdout.splitlines()[:2] == ["RefusedError", "RunError"]
    assert "File too large (EFBIG)" in ended.stdout
    said = [line for line in ended.stderr.splitlines() if "seen" not in line]
    assert said == (["WARNING:shardbeam.pipelines:ours"] if has_handlers else [])
    assert "seen" in ended.stderr


def test_a_process_that_may_have_no_children_writes_all_itself(config: Json, output: Path) -> None:
    """A task of a scheduler may be such a process."""
    program = """
        import json, multiprocessing
        import shardbeam

        def task(config):
            shardbeam.build(config, processes=3)

        if __name__ == "__main__":
            process = multiprocessing.get_context("fork").Process(
                target=task, args=[json.loads({config!r})], daemon=True
            )
            process.start()
            process.join()
            assert process.exitcode == 0
    """
    subprocess.run(python(program, config=json.dumps(config)), timeout=TIMEOUT_S, check=True)
    assert (output / "dataset_info.json").exists()


# Interrupts


def test_a_mark_that_cannot_be_removed_does_not_hide_why_the_run_failed(
    config: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise NotStartedError("no job server answers")

    def fail_to_remove(_: Staging) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(execute, "submit", fail)
    monkeypatch.setattr(Staging, "remove_mark", fail_to_remove)
    with pytest.raises(RunError, match="no job server answers"):
        shardbeam.build(config, runner="PrismRunner")


# Worker processes are started from a script without a guard, too.
PROGRAM = """
    import json, logging, multiprocessing, os, signal, sys, tempfile, threading

    import shardbeam
    from shardbeam.transforms.staging import staging
    from shardbeam.transforms.staging.lease import FolderLock

    # Tests in the background of a shell inherit that it is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def state():
        handlers = {{number: signal.getsignal(number) for number in signal.valid_signals()}}
        root = logging.getLogger()
        return [dict(os.environ), tempfile.gettempdir(), [*root.handlers], root.level, handlers,
                threading.excepthook, sys.excepthook, os.getcwd(), threading.active_count()]

    config = json.loads({config!r})
    before = state()
    shardbeam.plan(config)
    shardbeam.build(
        {{**config, "output": {{"path": config["output"]["path"] + "-before"}}}},
        processes={processes},
    )
    assert state() == before, (before, state())
    assert "tensorflow" not in sys.modules
    finish_shard = staging.Staging.finish_shard
    once = threading.Lock()

    def interrupt(*arguments):
        finish_shard(*arguments)
        # Once: another one would come while the first is dealt with.
        if once.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)

    staging.Staging.finish_shard = interrupt
    # Until here nothing is printed; Beam logs an interrupt.
    print("interrupting", file=sys.stderr)
    try:
        shardbeam.build(config, processes={processes})
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("not interrupted")
    assert state() == before, (before, state())
    assert multiprocessing.active_children() == []
    lock = FolderLock(config["output"]["path"])
    assert lock.take()
    lock.release()
    result = shardbeam.build(config)
    assert result.resumed.shards >= 1
"""


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_program_stays_as_it_is_after_builds_and_an_interrupt(
    processes: int, shapes: Path, output: Path, tmp_path: Path
) -> None:
    config = make_config(shapes, output)
    config["output"]["num_shards"] = 30
    script, temporary = tmp_path / "script.py", tmp_path / "tmp"
    temporary.mkdir()
    program = textwrap.dedent(PROGRAM).format(config=json.dumps(config), processes=processes)
    script.write_text(program)
    ended = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert ended.stderr.startswith("interrupting\n")
    assert list(temporary.iterdir()) == []
    assert (output / "dataset_info.json").exists()
