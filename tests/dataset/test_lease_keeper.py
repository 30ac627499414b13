"""A lease is kept while a run goes on: renewed, handed over, released, and lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset import lease_keeper
from shardbeam.transforms.dataset.lease import (
    Lease,
    LeaseLostError,
    LeaseRecord,
    RemoteJob,
    new_record,
    read_lease,
    take_lease,
)
from shardbeam.transforms.dataset.lease_keeper import LeaseKeeper
from shardbeam.transforms.storage.local import LocalStorage

JOB = RemoteJob(name="nightly", id="2026-01", project="pictures", region="us-central1")
WAIT_S = 60.0
# So often that tests need not wait, and never.
SOON_S, NEVER_S = 0.01, 1e6


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / ".lease.json")


def new_lease(uri: str) -> Lease:
    record = new_record(plan="p", output="/out", runner="LocalRunner", ends_with_process=True)
    lease = take_lease(read_lease(uri), record)
    assert lease is not None
    return lease


@pytest.fixture
def lease(uri: str) -> Lease:
    return new_lease(uri)


def never() -> None:
    raise AssertionError("the lease is not lost")


def current(uri: str) -> LeaseRecord:
    record = read_lease(uri).record
    assert record is not None
    return record


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def test_a_lease_is_renewed_and_released(uri: str, lease: Lease) -> None:
    first = current(uri)
    with LeaseKeeper(lease, on_lost=never, renew_s=SOON_S) as keeper:
        wait_for(lambda: current(uri).renewed_at > first.renewed_at)
        assert not current(uri).released
        claim = keeper.claim()
        assert claim is not None
        assert (claim.uri, claim.holder) == (uri, first.holder)
    last = current(uri)
    assert last.released
    assert last.acquired_at == first.acquired_at
    # And then no more, however often.
    keeper.release()
    keeper.leave()
    assert current(uri) == last


def test_a_lease_that_is_left_is_neither_renewed_nor_released(uri: str, lease: Lease) -> None:
    with LeaseKeeper(lease, on_lost=never, renew_s=NEVER_S) as keeper:
        before = current(uri)
        keeper.leave()
    assert current(uri) == before


def test_a_job_takes_the_lease_over(uri: str, lease: Lease) -> None:
    with LeaseKeeper(lease, on_lost=never, renew_s=SOON_S) as keeper:
        keeper.name_job(JOB)
        named = current(uri)
        assert (named.job, named.expires_at, named.released) == (JOB, None, False)
        # What is renewed no more does not change.
        assert not threading.Event().wait(0.1)
        assert current(uri) == named
        keeper.leave()
    assert current(uri) == named


def test_a_loss_is_told_once_and_is_why_the_run_ended(uri: str, lease: Lease) -> None:
    told: list[None] = []
    lost = threading.Event()

    def tell() -> None:
        told.append(None)
        lost.set()

    Path(uri).unlink()
    other = new_lease(uri)

    def run() -> None:
        with LeaseKeeper(lease, on_lost=tell, renew_s=SOON_S) as keeper:
            assert lost.wait(WAIT_S)
            with pytest.raises(LeaseLostError):
                keeper.name_job(JOB)
            raise KeyboardInterrupt

    with pytest.raises(LeaseLostError, match="this run has lost its lease"):
        run()
    assert told == [None]
    assert current(uri) == other.record


def test_a_loss_that_is_found_at_the_end_explains_an_error_and_is_none_otherwise(
    uri: str, lease: Lease
) -> None:
    Path(uri).unlink()
    new_lease(uri)
    with LeaseKeeper(lease, on_lost=never, renew_s=NEVER_S) as keeper:
        pass
    assert keeper.lost is not None

    Path(uri).unlink()
    lease = new_lease(uri)
    Path(uri).unlink()
    with (
        pytest.raises(LeaseLostError),
        LeaseKeeper(lease, on_lost=never, renew_s=NEVER_S),
    ):
        raise InputError(uri=uri, problem="a staged file is gone")


def test_other_errors_are_not_touched(uri: str, lease: Lease) -> None:
    with pytest.raises(KeyError), LeaseKeeper(lease, on_lost=never, renew_s=NEVER_S):
        raise KeyError
    assert current(uri).released


def test_a_storage_that_fails_for_a_while_loses_nothing(
    uri: str, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap = LocalStorage.swap
    failed = threading.Semaphore(0)

    def fail(storage: LocalStorage, uri: str, data: bytes, *, version: str | None) -> str | None:
        failed.release()
        raise InputError(uri=uri, problem="no network")

    monkeypatch.setattr(LocalStorage, "swap", fail)
    with LeaseKeeper(lease, on_lost=never, renew_s=SOON_S):
        for _ in range(3):
            assert failed.acquire(timeout=WAIT_S)
        before = current(uri)
        monkeypatch.setattr(LocalStorage, "swap", swap)
        wait_for(lambda: current(uri).renewed_at > before.renewed_at)
    assert current(uri).released


def test_a_storage_that_does_not_answer_holds_up_no_end(
    uri: str, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_keeper, "_END_S", 0.05)
    answers = threading.Event()
    asked = threading.Event()
    answered = threading.Event()
    swap = LocalStorage.swap

    def hang(storage: LocalStorage, uri: str, data: bytes, *, version: str | None) -> str | None:
        asked.set()
        answers.wait(WAIT_S)
        version = swap(storage, uri, data, version=version)
        answered.set()
        return version

    monkeypatch.setattr(LocalStorage, "swap", hang)
    with LeaseKeeper(lease, on_lost=never, renew_s=NEVER_S):
        pass
    assert asked.wait(WAIT_S)
    assert not current(uri).released
    # This process holds it no more: its next run need not wait.
    monkeypatch.undo()
    taken = take_lease(read_lease(uri), msgspec.structs.replace(lease.record, holder="next"))
    assert taken is not None
    # And what was asked for comes too late then.
    answers.set()
    assert answered.wait(WAIT_S)
    assert current(uri).holder == "next"


def test_without_a_lease_there_is_nothing_to_keep() -> None:
    threads = threading.active_count()
    with LeaseKeeper(None, on_lost=never) as keeper:
        assert keeper.claim() is None
        keeper.name_job(JOB)
        keeper.release()
        keeper.leave()
        assert threading.active_count() == threads
