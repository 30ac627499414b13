"""The lease on object storage: runs that may take it, that have lost it, and obstacles."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.staging import object_lease
from shardbeam.transforms.staging.lease import LeaseError, LeaseLostError
from shardbeam.transforms.staging.object_lease import (
    JOB_S,
    LEASE_S,
    LeaseRecord,
    ObjectLease,
    check_claim,
    read_lease,
    release_claim,
)
from shardbeam.transforms.storage.base import ChangedError, StoredFile

OUTPUT = "gs://bucket/out"
URI = f"{OUTPUT}/runs/.lease.json"
STARTED = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
WAIT_S = 60.0
# Between renewals: so short that tests need not wait, and so long that none happens.
SOON_S, NEVER_S = 0.01, 1e6


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = STARTED

    def __call__(self) -> datetime.datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)


class MemoryStorage:
    """Objects with generations, in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.swaps = 0
        # Held by changes: a test makes its own between two renewals.
        self.lock = threading.RLock()
        # Called before each swap.
        self.before_swap: Callable[[], None] = lambda: None
        # Files that runs have written beside the lease.
        self.others = [StoredFile(path="x", uri=f"{OUTPUT}/x", size_bytes=0, version="")]

    def list(self, root: str) -> list[StoredFile]:
        assert root == OUTPUT
        return [*filter(None, map(self.stat, self.objects)), *self.others]

    def delete(self, uri: str, *, version: str) -> bool:
        if version == str(self.objects[uri][1]):
            del self.objects[uri]
        return uri not in self.objects

    def stat(self, uri: str) -> StoredFile | None:
        if (found := self.objects.get(uri)) is None:
            return None
        data, version = found
        return StoredFile(path=uri, uri=uri, size_bytes=len(data), version=str(version))

    def read(self, uri: str, *, version: str) -> bytes:
        data, current = self.objects.get(uri, (b"", None))
        if version != str(current):
            raise ChangedError(uri)
        return data

    def swap(self, uri: str, data: bytes, *, version: str | None) -> str | None:
        self.before_swap()
        with self.lock:
            current = self.objects.get(uri)
            if (None if current is None else str(current[1])) != version:
                return None
            self.swaps += 1
            self.objects[uri] = data, self.swaps
            return str(self.swaps)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> MemoryStorage:
    storage = MemoryStorage()
    monkeypatch.setattr(object_lease, "storage_for", lambda uri: storage)
    return storage


@pytest.fixture
def clock(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(object_lease.getpass, "getuser", lambda: "ann")  # type: ignore[attr-defined]
    monkeypatch.setattr(object_lease.platform, "node", lambda: "host")  # type: ignore[attr-defined]
    monkeypatch.setattr(object_lease.os, "getpid", lambda: 7)  # type: ignore[attr-defined]
    return Clock()


@pytest.fixture
def take(clock: Clock) -> Iterator[Callable[..., ObjectLease]]:
    """Takes the lease, which must be free."""
    taken: list[ObjectLease] = []

    def take(*, renew_s: float = NEVER_S) -> ObjectLease:
        lease = find(clock, renew_s=renew_s)
        assert lease.take()
        taken.append(lease)
        return lease

    yield take
    for lease in taken:
        lease.leave()


def find(clock: Clock, *, renew_s: float = NEVER_S) -> ObjectLease:
    return ObjectLease(OUTPUT, plan="p", runner="LocalRunner", clock=clock, renew_s=renew_s)


def current() -> LeaseRecord:
    record, _ = read_lease(URI)
    assert record is not None
    return record


def held(clock: Clock) -> str:
    """Returns the error's text, which names the holder of the lease."""
    with pytest.raises(LeaseError) as caught:
        find(clock)
    return str(caught.value)


Take = Callable[..., ObjectLease]


def test_a_lease_is_held_until_it_expires(take: Take, clock: Clock) -> None:
    take()
    clock.advance(LEASE_S - 1)
    assert held(clock) == (
        f"{OUTPUT}: another run is writing there: LocalRunner, process 7 of ann@host, since "
        "2026-01-02 03:04:05 UTC; wait until it has ended. If it has crashed, its lease ends in "
        "1 s, 2026-01-02 03:06:05 UTC"
    )
    clock.advance(1)
    take()


def test_a_lease_is_renewed_and_released(take: Take, clock: Clock) -> None:
    with take(renew_s=SOON_S) as lease:
        for _ in range(3):
            clock.advance(LEASE_S / 2)
            wait_for(lambda: current().renewed_at == clock.now)
    last = current()
    assert (last.released, last.acquired_at) == (True, STARTED)
    # And then no more, however often.
    lease.release()
    assert current() == last
    take()


def wait_for(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never came")


def test_a_lease_counts_from_when_it_is_taken(clock: Clock) -> None:
    lease = find(clock)
    # As long as a listing may take.
    clock.advance(10 * LEASE_S)
    assert lease.take()
    assert "since 2026-01-02 03:24:05 UTC" in held(clock)
    lease.leave()


def test_a_run_that_leaves_nothing_leaves_no_lease(
    storage: MemoryStorage, take: Callable[..., ObjectLease]
) -> None:
    for others, is_left in ((storage.others, True), ([], True), ([], False)):
        storage.others = others
        lease = take()
        lease.release()
        # The second run has found one, and leaves it.
        assert bool(storage.objects) == is_left
        if not others:
            storage.objects.clear()


def test_of_two_that_see_a_free_lease_one_takes_it(clock: Clock) -> None:
    one, other = find(clock), find(clock)
    assert one.take()
    with pytest.raises(LeaseError):
        other.take()
    one.release()
    # The view of the output may be outdated by now.
    third = find(clock)
    assert third.take()
    third.release()
    assert not other.take()
    assert other.take()
    other.release()


@pytest.mark.parametrize("is_deleted", [True, False])
@pytest.mark.parametrize("act", ["renewal", "release", "hand_over"])
def test_a_lease_that_was_taken_is_lost(
    act: str, is_deleted: bool, take: Take, storage: MemoryStorage
) -> None:
    lease = take(renew_s=SOON_S if act == "renewal" else NEVER_S)
    with storage.lock:
        if is_deleted:
            del storage.objects[URI]
        else:
            found = msgspec.structs.replace(current(), holder="another", host="other", user="")
            storage.objects[URI] = msgspec.json.encode(found), -1
    before = dict(storage.objects)
    if act == "renewal":
        wait_for(lambda: lease.lost is not None)
    elif act == "release":
        lease.release()
    else:
        with pytest.raises(LeaseLostError):
            lease.hand_over("job 1")
    taken = "the file is gone"
    if not is_deleted:
        taken = "LocalRunner, process 7 of other took it at 2026-01-02 03:04:05 UTC"
    assert str(lease.lost) == (
        f"{URI}: this run has lost its lease on the output and stops: {taken}; let only one run "
        "at a time write to an output"
    )
    lease.release()
    assert storage.objects == before


def test_a_loss_is_why_the_run_ended_badly_and_is_none_otherwise(
    take: Take, storage: MemoryStorage
) -> None:
    def lose(lease: ObjectLease, error: Exception | None) -> None:
        with lease:
            del storage.objects[URI]
            if error is not None:
                raise error

    lose(take(), None)
    with pytest.raises(LeaseLostError, match="this run has lost its lease"):
        lose(take(), InputError(uri=URI, problem="a staged file is gone"))
    with pytest.raises(KeyError), take():
        raise KeyError
    assert current().released


def test_a_storage_that_fails_for_a_while_loses_nothing(
    take: Take, clock: Clock, storage: MemoryStorage
) -> None:
    failed = threading.Semaphore(0)

    def fail() -> None:
        failed.release()
        raise InputError(uri=URI, problem="no network")

    with take(renew_s=SOON_S) as lease:
        storage.before_swap = fail
        for _ in range(3):
            assert failed.acquire(timeout=WAIT_S)
        # It expires meanwhile, and no other run takes it.
        clock.advance(10 * LEASE_S)
        storage.before_swap = lambda: None
        wait_for(lambda: current().renewed_at == clock.now)
    assert lease.lost is None
    assert current().released


def test_a_listing_that_fails_does_not_keep_the_next_run_waiting(
    take: Take, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(root: str) -> list[StoredFile]:
        raise InputError(uri=root, problem="no network")

    monkeypatch.setattr(storage, "list", fail)
    storage.others = []
    take().release()
    assert current().released


def test_a_storage_that_does_not_answer_holds_up_no_end(take: Take, storage: MemoryStorage) -> None:
    answers = threading.Event()
    lease = take()
    storage.before_swap = lambda: void(answers.wait(WAIT_S))
    lease.release(wait_s=0.05)
    assert not current().released
    answers.set()
    lease.release()
    assert current().released


def void(value: object) -> None:
    del value


def test_a_renewal_under_way_does_not_undo_a_release(take: Take, storage: MemoryStorage) -> None:
    """The renewal's request arrives late: before the release's, or after it."""
    for is_first in (True, False):
        asked, goes_on = threading.Event(), threading.Event()
        lease = take(renew_s=SOON_S)

        def wait(asked: threading.Event = asked, goes_on: threading.Event = goes_on) -> None:
            if threading.current_thread().name == "lease":
                asked.set()
                goes_on.wait(WAIT_S)

        storage.before_swap = wait
        assert asked.wait(WAIT_S)
        if is_first:
            goes_on.set()
        lease.release()
        goes_on.set()
        wait_for(lambda: not any(thread.name == "lease" for thread in threading.enumerate()))
        assert current().released
        storage.before_swap = lambda: None


def test_a_renewal_that_has_only_begun_undoes_no_release(
    storage: MemoryStorage,
) -> None:
    asked, goes_on = threading.Event(), threading.Event()

    def clock() -> datetime.datetime:
        if threading.current_thread().name == "lease":
            asked.set()
            assert goes_on.wait(WAIT_S)
        return STARTED

    lease = ObjectLease(OUTPUT, plan="p", runner="LocalRunner", clock=clock, renew_s=SOON_S)
    assert lease.take()
    assert asked.wait(WAIT_S)
    lease.release()
    goes_on.set()
    wait_for(lambda: not any(thread.name == "lease" for thread in threading.enumerate()))
    assert current().released


STEPS = st.one_of(
    st.tuples(st.just("wait"), st.floats(min_value=0, max_value=2 * LEASE_S)),
    st.tuples(st.sampled_from(["find", "take", "renew", "release"]), st.integers(0, 2)),
)


@given(steps=st.lists(STEPS, max_size=40))
def test_no_order_of_steps_gives_two_runs_one_lease(steps: list[tuple[str, Any]]) -> None:
    clock = Clock()
    storage = MemoryStorage()
    leases: dict[int, ObjectLease] = {}
    # The expected state: the run that took the lease last, and until when.
    holder: int | None = None
    until = STARTED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_lease, "storage_for", lambda uri: storage)
        for action, value in steps:
            if action == "wait":
                clock.advance(value)
            elif action == "find" and value not in leases:
                if until <= clock.now:
                    leases[value] = find(clock)
                else:
                    held(clock)
            elif action == "take" and value in leases and holder != value:
                swaps = storage.swaps
                try:
                    taken = leases[value].take()
                except LeaseError:
                    assert clock.now < until
                    leases.pop(value)
                    continue
                assert taken == (storage.swaps == swaps + 1)
                if taken:
                    holder = value
                    until = clock.now + datetime.timedelta(seconds=LEASE_S)
            elif action in ("renew", "release") and value in leases:
                lease = leases[value]
                if action == "renew" and holder == value:
                    lease._replace()
                    until = clock.now + datetime.timedelta(seconds=LEASE_S)
                elif action == "release":
                    before = dict(storage.objects)
                    lease.release()
                    if holder == value:
                        assert lease.lost is None
                        holder, until = None, clock.now
                    else:
                        assert storage.objects == before
                    del leases[value]
        for lease in leases.values():
            lease.leave()


# Jobs


def test_a_job_holds_the_lease_for_longer_and_its_workers_renew_it(
    take: Take, clock: Clock
) -> None:
    lease = take()
    claim = lease.claim(is_job=True)
    lease.hand_over("job 2026-01")
    lease.leave()
    clock.advance(JOB_S / 3)
    check_claim(claim, clock=clock)
    assert current().renewed_at == STARTED
    clock.advance(JOB_S / 3)
    check_claim(claim, clock=clock)
    clock.advance(JOB_S - 1)
    assert held(clock).startswith(
        f"{OUTPUT}: another run is writing there: LocalRunner, job 2026-01 (submitted by process "
        "7 of ann@host), since "
    )
    clock.advance(1)
    # It has expired, and is still the job's.
    check_claim(claim, clock=clock)
    held(clock)
    release_claim(claim)
    take()


def test_a_worker_of_a_process_renews_nothing(take: Take, clock: Clock) -> None:
    claim = take().claim()
    clock.advance(2 * JOB_S)
    check_claim(claim, clock=clock)
    assert current().renewed_at == STARTED


def test_a_worker_notices_that_its_run_has_lost_the_lease(
    take: Take, clock: Clock, storage: MemoryStorage
) -> None:
    claim = take().claim(is_job=True)
    clock.advance(LEASE_S)
    other = take()
    with pytest.raises(InputError, match="this run has lost its lease on the output and stops"):
        check_claim(claim, clock=clock)
    # And releases nothing.
    release_claim(claim)
    assert not current().released
    other.release()
    storage.objects.clear()
    with pytest.raises(InputError, match="the file is gone"):
        check_claim(claim, clock=clock)


def test_a_job_releases_its_lease_and_the_process_that_follows_it_finds_that_well(
    take: Take,
) -> None:
    lease = take()
    lease.hand_over("job 1")
    release_claim(lease.claim(is_job=True))
    before = current()
    lease.release()
    assert (lease.lost, current()) == (None, before)


def test_a_lease_that_cannot_be_released_does_not_fail_the_job(
    take: Take, storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    claim = take().claim(is_job=True)

    def fail() -> None:
        raise OSError("no network")

    storage.before_swap = fail
    release_claim(claim)
    assert "the lease cannot be released" in caplog.text


# Objects that are no leases


GOOD = msgspec.json.encode(
    LeaseRecord(
        holder="x",
        plan="p",
        output="o",
        runner="r",
        user="",
        host="h",
        pid=1,
        acquired_at=STARTED,
        renewed_at=STARTED,
        expires_at=STARTED,
    )
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        GOOD[:-10],
        GOOD + b"x",
        GOOD.replace(b"2026-01-02T03:04:05Z", b"2026-01-02T03:04:05"),
        b" " * (1 << 17),
    ],
)
def test_what_is_no_lease_is_an_error_and_stays(
    content: bytes, clock: Clock, storage: MemoryStorage
) -> None:
    assert content != GOOD
    storage.objects[URI] = content, 1
    with pytest.raises(InputError) as caught:
        find(clock)
    message = str(caught.value)
    assert message.startswith(f"{URI}: not a lease of Shardbeam: ")
    assert message.endswith("; if no run is writing there, delete the file")
    assert storage.objects[URI] == (content, 1)


def test_what_other_versions_add_does_not_matter(storage: MemoryStorage) -> None:
    storage.objects[URI] = GOOD[:-1] + b',"new":[1],"job":null,"process":null}', 1
    assert current().holder == "x"
