"""The steps of a commit, each repeated and interrupted in many ways."""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.commit import commit as commit_module
from shardbeam.transforms.commit.commit import CommitSettings, GateError, finish, gate
from shardbeam.transforms.commit.moves import (
    CommitBatch,
    Move,
    check_moved,
    clear,
    end_commit,
    foreign_files,
    make_batches,
    move,
    prepare_output,
    staged_commits,
)
from shardbeam.transforms.commit.runs import RunSettings
from shardbeam.transforms.core.counts import Count, count_all, sum_counts
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import Corrected, Reject
from shardbeam.transforms.dataset.dataset_files import DatasetFile, describe_data
from shardbeam.transforms.dataset.input_counts import InputCounts, ListingSummary
from shardbeam.transforms.dataset.outcome import (
    DuplicateCounts,
    Outcome,
    SplitOutcome,
    Status,
    WriteProgress,
)
from shardbeam.transforms.dataset.rejects import RejectsFile
from shardbeam.transforms.dataset.shard_result import ShardResult
from shardbeam.transforms.duplicates.duplicates import Duplicates, pack_shard, report_duplicates
from shardbeam.transforms.staging import staging as staging_module
from shardbeam.transforms.staging.lease import LeaseClaim
from shardbeam.transforms.staging.staging import LAUNCHED, OUTCOME, Staging
from shardbeam.transforms.storage.base import StoredFile
from tests.support.example_builders import make_label_map
from tests.support.manifests import make_dataset, make_manifest, make_shard_result
from tests.support.shards import statistics_of
from tests.support.stored import before_each, fail_with

RUN_ID = "20260102T030405.678901Z"


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(output=str(tmp_path / "out"), plan="plan", run_id=RUN_ID)


def stage(staging: Staging, path: str, data: bytes = b"data") -> DatasetFile:
    write(Path(staging.uri("shards/key/1", path)), data)
    return describe_data(path, data)


def stage_move(staging: Staging, *paths: str) -> Move:
    return Move("shards/key/1", tuple(stage(staging, path) for path in paths))


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def write_output(staging: Staging, *paths: str, data: bytes = b"old") -> None:
    for path in paths:
        write(Path(staging.output, path), data)


def tree(folder: str) -> list[str]:
    root = Path(folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


class Commit:
    """A commit of two shards, of which a step can be repeated.

    Args:
        staging: The run's staging area.
        listed: How many images were listed; 6 were written.
        latest: The pointer.
        more: Whether there are a reject, a correction and duplicates, too.
        repairs: Whether it is a repair.
        classes: The classes.
        lost_moves: How many moves the runner loses.
    """

    def __init__(
        self,
        staging: Staging,
        *,
        listed: int = 6,
        latest: str = "",
        more: bool = False,
        repairs: bool = False,
        classes: Mapping[str, int] | None = None,
        lost_moves: int = 0,
    ) -> None:
        self.label_map = make_label_map(dict(classes or {}))
        self.lost_moves = lost_moves
        self.settings = CommitSettings(
            dataset=make_dataset(),
            run=RunSettings(
                started_at="2026-01-02T03:04:05.678901+00:00",
                runner="",
                annotation_files=(),
                latest=latest,
            ),
            staging=staging,
            repairs=repairs,
        )
        self.corrected: list[Corrected] = []
        self.rejects: list[RejectsFile] = []
        self.duplicates: Duplicates | None = None
        if more:
            self.corrected = [
                Corrected(split="train", source="train", key="a.jpg", what="box_clipped")
            ]
            self.duplicates = Duplicates(
                counts=DuplicateCounts(groups=1, images=2),
                staged="shards/key/1",
                file=stage(staging, "duplicates.parquet"),
            )
            self.rejects = [
                RejectsFile(
                    split="train",
                    staged="shards/key/1",
                    file=stage(staging, "rejects/train.jsonl"),
                    counts={"missing_image": 1},
                    unlisted=1,
                    first=(REJECT,),
                )
            ]
        self.shards = [self._stage_shard(index) for index in range(2)]
        self.inputs = InputCounts(
            listing=ListingSummary(files={"train": listed}),
            splits={"train": SplitOutcome(listed=listed)},
        )

    def _stage_shard(self, index: int) -> ShardResult:
        data = stage(self.settings.staging, f"toy-train.tfrecord-{index:05d}-of-00002")
        rows = stage(self.settings.staging, f"index/{data.path}.parquet")
        shard = make_shard_result(data, rows, shard_index=index, num_shards=2, key=f"{index:064x}")
        self.settings.staging.finish_shard(shard)
        return shard

    def gate(self) -> list[CommitBatch]:
        return gate(
            self.inputs,
            self.shards,
            self.rejects,
            self.label_map,
            settings=self.settings,
            statistics=statistics_of(*self.shards, corrected=self.corrected),
            duplicates=self.duplicates,
        )

    def move(self) -> Count:
        staging = self.settings.staging
        batches = self.gate()
        deleted = [move(batch, staging=staging) for batch in batches]
        return sum_counts(check_moved(batch, deleted, staging=staging) for batch in batches)

    def finish(self) -> str:
        moved = [shard.data for shard in self.shards] + [each.file for each in self.rejects]
        if self.duplicates is not None and self.duplicates.file is not None:
            moved.append(self.duplicates.file)
        moved = moved[self.lost_moves :]
        return finish(
            self.inputs,
            self.shards,
            self.rejects,
            self.label_map,
            [count_all(file.path.encode() for file in moved)],
            settings=self.settings,
            statistics=statistics_of(*self.shards, corrected=self.corrected),
            duplicates=self.duplicates,
        )

    def end(self) -> str:
        return end_commit(self.finish(), staging=self.settings.staging)


def prepare(*moves: Move, staging: Staging) -> None:
    for batch in make_batches([], prepare_output(moves, metadata=[], staging=staging)):
        move(batch, staging=staging)


REJECT = Reject(
    split="train",
    source="train",
    key="x.jpg",
    stage="join",
    reason=Reason.MISSING_IMAGE,
    detail="",
    listed=False,
)
COMMIT_LIST = ".staging/plan/commit.json"
COMMITTED = [
    "README.md",
    "croissant.json",
    "dataset_info.json",
    "features.json",
    *(f"index/toy-train.tfrecord-{index:05d}-of-00002.parquet" for index in range(2)),
    "manifest.json",
    *(f"runs/.shards/{index:064x}.json" for index in range(2)),
    f"runs/{RUN_ID}.json",
    "statistics.json",
    *(f"toy-train.tfrecord-{index:05d}-of-00002" for index in range(2)),
]


def test_every_step_may_be_repeated(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Commit(staging)
    (batch,) = commit.gate()
    for shard in commit.shards:
        staging.write_progress(WriteProgress(1, True), shard_key=shard.key)
    for _ in range(2):
        assert commit.move().number == 2
    for _ in range(2):
        commit.finish()
        assert [path for path in tree(staging.output) if path[0] != "."] == COMMITTED
    for _ in range(2):
        clear(batch, "done", staging=staging)
        left = [path for path in tree(staging.output) if path.startswith(".staging")]
        run = f".staging/plan/{staging.run_folder}"
        assert left == [COMMIT_LIST, f"{run}/files/dataset_info.json", f"{run}/{OUTCOME}"]
    deleted: list[str] = []
    before_each(monkeypatch, "delete", deleted.append)
    released: list[Staging] = []
    monkeypatch.setattr(Staging, "release_lease", lambda staging: released.append(staging))
    for _ in range(2):
        assert end_commit("done", staging=staging) == "done"
        assert tree(staging.output) == COMMITTED
    # The commit's list goes last: it shows that something is left to clear.
    assert deleted[-1] == staging.commit_uri
    assert released == [staging, staging]


def test_the_gate_refuses_before_anything_is_touched(staging: Staging) -> None:
    write_output(staging, "dataset_info.json")
    with pytest.raises(GateError, match="the counts do not add up, nothing was committed"):
        Commit(staging, listed=7).gate()
    assert [path for path in tree(staging.output) if not path.startswith(".staging")] == [
        "dataset_info.json"
    ]
    outcome = staging.read_state(OUTCOME, Outcome)
    assert outcome is not None
    assert outcome.status is Status.FAILED


def test_all_that_was_found_is_committed(staging: Staging, tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    commit = Commit(staging, more=True, latest=str(latest))
    assert commit.move().number == 4
    assert not latest.exists()
    commit.end()

    more = ["corrections/train.jsonl", "duplicates.parquet", "rejects/train.jsonl"]
    assert tree(staging.output) == sorted([*COMMITTED, *more])
    assert latest.read_text() == f"{staging.output}\n"
    record = json.loads(Path(staging.output, "runs", f"{RUN_ID}.json").read_bytes())
    found = [record["outcome"][name] for name in ("rejects", "corrections")]
    assert found == [f"{staging.output}/rejects", f"{staging.output}/corrections"]
    assert record["outcome"]["duplicates"]["groups"] == 1


def test_a_run_without_rejects_names_no_folder_of_them(staging: Staging) -> None:
    commit = Commit(staging)
    commit.move()
    commit.finish()
    record = json.loads(Path(staging.output, "runs", f"{RUN_ID}.json").read_bytes())
    assert [record["outcome"][name] for name in ("rejects", "corrections")] == ["", ""]


def test_nothing_is_published_if_a_runner_lost_a_move(staging: Staging) -> None:
    commit = Commit(staging, lost_moves=1)
    commit.move()
    with pytest.raises(InputError, match="moves: 2 were sent and 1 arrived"):
        commit.finish()
    assert not Path(staging.output, "dataset_info.json").exists()


@pytest.mark.parametrize("folder", ["index", "rejects", "corrections"])
def test_folders_that_the_old_dataset_leaves_empty_are_removed(
    folder: str, staging: Staging
) -> None:
    Path(staging.output, folder, "old").mkdir(parents=True)
    commit = Commit(staging)
    commit.move()
    commit.finish()
    assert not Path(staging.output, folder, "old").exists()
    assert Path(staging.output, folder).exists() == (folder == "index")


@pytest.mark.parametrize(
    ("repairs", "card", "kept"),
    [(False, b"mine", False), (True, b"mine", True), (True, None, False)],
)
def test_only_a_repair_keeps_the_card_that_people_may_have_added_to(
    repairs: bool,
    card: bytes | None,
    kept: bool,
    staging: Staging,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_module, "decide_repair", lambda outcome, *_, **__: outcome)
    if card is not None:
        write_output(staging, "README.md", data=card)
    write_output(staging, "manifest.json", data=make_manifest())
    commit = Commit(staging, repairs=repairs)
    commit.move()
    commit.finish()
    assert (Path(staging.output, "README.md").read_bytes() == b"mine") == kept


def test_a_refused_run_lets_others_have_the_output(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that commits keeps it: only the end of the commit gives it up."""
    released: list[str] = []
    monkeypatch.setattr(Staging, "release_lease", lambda staging: released.append(staging.run_id))
    Commit(staging).gate()
    assert not released
    with pytest.raises(GateError):
        Commit(staging, listed=7).gate()
    assert released == [RUN_ID]


def test_findings_of_a_run_name_no_classes_that_never_occur(staging: Staging) -> None:
    """A warning names them, so that they are not said twice."""
    commit = Commit(staging, classes={"cat": 1, "cats": 2})
    commit.move()
    commit.finish()
    record = json.loads(Path(staging.output, "runs", f"{RUN_ID}.json").read_bytes())
    kinds = [found["kind"] for found in record["outcome"]["findings"]]
    assert kinds == ["correction"]
    assert "cat" in str(record["outcome"]["warnings"])


def test_corrections_of_a_run_that_is_refused_are_kept(staging: Staging) -> None:
    with pytest.raises(GateError):
        Commit(staging, more=True, listed=7).gate()
    outcome = staging.read_state(OUTCOME, Outcome)
    assert outcome is not None
    (file,) = Path(outcome.corrections).iterdir()
    assert json.loads(file.read_bytes())["key"] == "a.jpg"


def test_corrections_of_a_run_that_goes_on_are_written_at_its_end(staging: Staging) -> None:
    Commit(staging, more=True).gate()
    assert not Path(staging.uri(staging.run_folder, "corrections")).exists()


def test_a_repair_that_would_change_the_dataset_keeps_nothing(staging: Staging) -> None:
    """Not even the finished shards: once the sources are put back, their keys are the same."""
    write_output(staging, "manifest.json", data=make_manifest())
    with pytest.raises(GateError):
        Commit(staging, repairs=True).gate()
    outcome = staging.read_state(OUTCOME, Outcome)
    assert outcome is not None
    assert outcome.status is Status.NOT_REPAIRED
    assert not Path(staging.uri("shards")).exists()


@pytest.mark.parametrize("step", ["gate", "move", "finish", "clear", "end"])
def test_a_run_that_was_overtaken_changes_nothing(
    step: str, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_output(staging, "old")
    write_output(staging, "manifest.json", data=make_manifest("old"))
    commit = Commit(staging)
    batches = commit.gate()
    if step not in ("gate", "move"):
        commit.move()
    before = tree(staging.output)

    def overtaken(staging: Staging) -> None:
        raise InputError(uri=staging.output, problem="another run has taken it")

    monkeypatch.setattr(Staging, "check_lease", overtaken)
    steps: dict[str, Callable[[], object]] = {
        "gate": commit.gate,
        "move": partial(move, batches[0], staging=staging),
        "finish": commit.finish,
        "clear": partial(clear, batches[0], "", staging=staging),
        "end": partial(end_commit, "", staging=staging),
    }
    with pytest.raises(InputError, match="another run has taken it"):
        steps[step]()
    # `dataset_info.json` is staged before it is looked who holds the output.
    left = [path for path in tree(staging.output) if not path.startswith(".staging/plan/runs")]
    assert left == [path for path in before if not path.startswith(".staging/plan/runs")]


@pytest.mark.parametrize("step", ["gate", "move", "check", "finish", "index", "duplicates"])
def test_a_machine_that_sees_another_folder_changes_nothing(
    step: str, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "_MARK_WAIT_S", 0)
    commit = Commit(msgspec.structs.replace(staging, mark=LAUNCHED))
    write_output(staging, "dataset_info.json", "kept.tfrecord")
    for shard in commit.shards:
        for file in (shard.data, shard.index):
            Path(staging.uri(shard.staged, file.path)).unlink()
    before = tree(staging.output)
    shard = commit.shards[0]
    elsewhere = Move("shards/key/1", (shard.data,))
    settings: dict[str, Any] = {"splits": ("train",), "near": 0}
    steps: dict[str, Callable[..., object]] = {
        "gate": commit.gate,
        "move": partial(move, CommitBatch((elsewhere,))),
        "check": partial(check_moved, CommitBatch((elsewhere,)), ()),
        "finish": commit.finish,
        "index": partial(pack_shard, shard, **settings, partitions=1),
        "duplicates": partial(report_duplicates, [], [], **settings),
    }
    own = {} if step in ("gate", "finish") else {"staging": commit.settings.staging}
    with pytest.raises(InputError, match="does not see what this run has written there"):
        steps[step](**own)
    assert tree(staging.output) == before


def test_a_folder_that_cannot_be_looked_at_is_explained(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Commit(msgspec.structs.replace(staging, mark=LAUNCHED))
    before_each(monkeypatch, "stat", fail_with(errno.EACCES))
    with pytest.raises(InputError, match=r"Permission denied.*; fix that and run the same command"):
        commit.gate()


@pytest.mark.parametrize("content", [None, b"dat", b"data and more"])
def test_a_file_that_was_changed_after_its_move_is_found(
    content: bytes | None, staging: Staging
) -> None:
    commit = Commit(staging)
    commit.move()
    path = Path(staging.output, commit.shards[1].data.path)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    batch = CommitBatch((Move("", (commit.shards[1].data,)),))
    with pytest.raises(InputError, match=f"{path}: was changed while the dataset was committed"):
        check_moved(batch, (), staging=staging)


@pytest.mark.parametrize("content", [None, b"atad"])
def test_a_file_that_is_nowhere_or_another_is_an_error(
    content: bytes | None, staging: Staging
) -> None:
    one = stage_move(staging, "x")
    Path(staging.uri("shards/key/1/x")).unlink()
    if content is not None:
        write_output(staging, "x", data=content)
    with pytest.raises(InputError, match="its staged file is gone"):
        move(CommitBatch((one,)), staging=staging)


def test_preparing_removes_what_the_old_manifest_lists_and_nothing_else(staging: Staging) -> None:
    mine = ["mine.txt", "runs/.shards/mine.json", "runs/1.json"]
    old = ["kept.tfrecord", "old.tfrecord", "index/old.parquet"]
    kept, gone = "a" * 64, "b" * 64
    records = [f"runs/.shards/{key}.json" for key in (kept, gone)]
    write_output(staging, "dataset_info.json", *mine, *old, *records)
    write_output(staging, "manifest.json", data=make_manifest(*old))
    assert foreign_files(staging.output) == mine
    new = msgspec.structs.replace(stage_move(staging, "kept.tfrecord"), shard_key=kept)
    for _ in range(2):
        found = prepare_output([new], metadata=["manifest.json"], staging=staging)
        assert not Path(staging.output, "dataset_info.json").exists()
        for _ in range(2):
            move(CommitBatch(deletes=tuple(found)), staging=staging)
        assert [path for path in tree(staging.output) if not path.startswith(".staging")] == sorted(
            ["kept.tfrecord", "manifest.json", records[0], *mine]
        )


LATE = [
    "index/toy-train.tfrecord-00003-of-00009.parquet",
    "rejects/no-split.jsonl",
    "rejects/train-00000-of-00002.jsonl",
    "toy-train.tfrecord-00003-of-00009",
]


@pytest.mark.parametrize("lease", [None, LeaseClaim(uri="", holder="")])
def test_what_a_run_that_was_overtaken_has_moved_late_goes(
    lease: LeaseClaim | None, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Staging, "check_lease", lambda staging: None)
    mine = [
        "corrections/mine.jsonl",
        "index/mine.parquet",
        "rejects/mine.jsonl",
        "toy-test.tfrecord-00000-of-00001",
    ]
    write_output(staging, *LATE, *mine)
    Commit(msgspec.structs.replace(staging, lease=lease)).move()
    # On disk a lock keeps such a run out.
    left = set(tree(staging.output)).intersection([*mine, *LATE])
    assert left == {*mine, *(() if lease else LATE)}


def test_another_plans_unfinished_commit_is_undone_and_its_shards_are_kept(
    staging: Staging, caplog: pytest.LogCaptureFixture
) -> None:
    other = Staging(output=staging.output, plan="other", run_id="run")
    stage(other, "finished.tfrecord")
    other.write_commit(["half.tfrecord", "never.tfrecord"], replaces=None)
    write_output(staging, "half.tfrecord")
    assert foreign_files(staging.output) == []
    new = stage_move(staging, "new.tfrecord")
    for _ in range(2):
        # Otherwise that run might still move it into place.
        other.stage_file("dataset_info.json", b"{}")
        prepare(new, staging=staging)
        assert staged_commits(staging.output)["other"] == []
        assert tree(staging.output) == [
            ".staging/other/shards/key/1/finished.tfrecord",
            ".staging/plan/commit.json",
            ".staging/plan/shards/key/1/new.tfrecord",
        ]
    staging.clear()
    assert tree(staging.output) == [".staging/other/shards/key/1/finished.tfrecord"]
    assert f"{staging.output}/.staging: holds the finished shards of a run with another" in (
        caplog.text
    )
    assert other.is_left()
    assert not staging.is_left()
    caplog.clear()
    other.clear()
    assert tree(staging.output) == []
    assert not caplog.text


def test_this_plans_own_unfinished_commit_of_other_input_is_removed(staging: Staging) -> None:
    for path in ("0-of-1", "0-of-2"):
        one = stage_move(staging, path)
        prepare(one, staging=staging)
        move(CommitBatch((one,)), staging=staging)
    staging.clear()
    assert tree(staging.output) == ["0-of-2"]


@pytest.mark.parametrize("damaged", [".staging/other/commit.json", "manifest.json"])
def test_nothing_is_removed_by_a_list_that_is_damaged(damaged: str, staging: Staging) -> None:
    write_output(staging, "dataset_info.json", "old.tfrecord")
    write_output(staging, "manifest.json", data=make_manifest("old.tfrecord"))
    write_output(staging, damaged, data=b"[")
    before = tree(staging.output)
    with pytest.raises(InputError, match=damaged):
        prepare_output([], metadata=[], staging=staging)
    assert tree(staging.output) == before


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "./x"])
def test_a_commit_list_that_leads_out_of_the_output_is_refused(staging: Staging, path: str) -> None:
    other = Staging(output=staging.output, plan="other", run_id="run")
    other.write_commit([path], replaces=None)
    with pytest.raises(InputError, match="not below the dataset"):
        prepare_output([], metadata=[], staging=staging)


def test_what_is_not_ours_is_foreign(staging: Staging) -> None:
    write_output(staging, "a.txt", "x.tfrecord", "runs/1.json", f"runs/{RUN_ID}.json")
    assert foreign_files(staging.output) == ["a.txt", "runs/1.json", "x.tfrecord"]
    write_output(staging, "manifest.json", data=make_manifest("x.tfrecord"))
    assert foreign_files(staging.output) == ["a.txt", "runs/1.json"]


def test_nothing_is_committed_if_a_runner_lost_deletions_of_old_files(staging: Staging) -> None:
    names = [f"old-{number}" for number in range(200)]
    write_output(staging, *names)
    write_output(staging, "manifest.json", data=make_manifest(*names))
    batches = Commit(staging).gate()
    assert len(batches) == 2
    assert {batch.all_deletes.number for batch in batches} == {200}
    deleted = [move(batch, staging=staging) for batch in batches]
    with pytest.raises(InputError, match="old dataset: 200 were sent and 100 arrived"):
        check_moved(batches[0], deleted[:1], staging=staging)
    assert check_moved(batches[0], deleted, staging=staging).number == 1


@given(st.integers(0, 300), st.integers(0, 900))
def test_batches_share_out_all_files(num_moves: int, num_deletes: int) -> None:
    moves = [Move(str(number), ()) for number in range(num_moves)]
    files = [StoredFile(str(number), "", 0, "") for number in range(num_deletes)]
    batches = make_batches(moves, files)
    assert sorted(each.staged for batch in batches for each in batch.moves) == sorted(
        each.staged for each in moves
    )
    assert Counter(each for batch in batches for each in batch.deletes) == Counter(files)
    assert all(len(batch.moves) <= 64 and len(batch.deletes) <= 192 for batch in batches)
    assert all(batch.all_deletes.number == num_deletes for batch in batches)
