"""The lease: who may take it, who has lost it, and what stands in its way."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset import lease as lease_module
from shardbeam.transforms.dataset.lease import (
    LEASE_S,
    START_S,
    FoundLease,
    JobAnswer,
    JobState,
    Lease,
    LeaseClaim,
    LeaseError,
    LeaseLostError,
    LeaseRecord,
    RemoteJob,
    check_claim,
    check_free,
    new_record,
    read_lease,
    release_claim,
    take_lease,
)
from shardbeam.transforms.dataset.process_identity import own_process
from shardbeam.transforms.storage.base import StoredFile
from shardbeam.transforms.storage.local import LocalStorage

JOB = RemoteJob(name="nightly", project="pictures", region="us-central1")
STARTED = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = STARTED

    def __call__(self) -> datetime.datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "out" / "runs" / ".lease.json")


def record(clock: Clock, **changes: Any) -> LeaseRecord:  # noqa: ANN401  # Any of its fields.
    """A holder on another machine."""
    new = new_record(
        plan="plan", output="/data/out", runner="LocalRunner", ends_with_process=False, clock=clock
    )
    return msgspec.structs.replace(new, **{"host": "elsewhere", "user": "ann", "pid": 7, **changes})


def refuse(job: RemoteJob) -> JobAnswer:
    raise AssertionError(f"nobody has to be asked for {job}")


def take(uri: str, clock: Clock, **changes: Any) -> Lease:  # noqa: ANN401
    found = read_lease(uri)
    check_free(found, ask=refuse, clock=clock)
    taken = take_lease(found, record(clock, **changes), clock=clock)
    assert taken is not None
    return taken


def held(uri: str, clock: Clock) -> str:
    """Says who holds the lease: the error's text."""
    with pytest.raises(LeaseError) as caught:
        check_free(read_lease(uri), ask=refuse, clock=clock)
    message = str(caught.value)
    assert "\n" not in message
    return message


# By time


def test_a_lease_is_held_until_it_expires_and_longer_if_renewed(uri: str, clock: Clock) -> None:
    lease = take(uri, clock)
    clock.advance(LEASE_S - 1)
    assert held(uri, clock) == (
        "/data/out: another run is writing it: LocalRunner, process 7 of ann@elsewhere, since "
        "2026-01-02 03:04:05 UTC; wait for its end. If it has crashed, its lease ends in 1 s, "
        "2026-01-02 03:06:05 UTC"
    )
    lease.renew()
    clock.advance(LEASE_S - 1)
    assert "since 2026-01-02 03:04:05 UTC" in held(uri, clock)
    clock.advance(1)
    take(uri, clock)


def test_a_released_lease_is_free_and_still_there(uri: str, clock: Clock) -> None:
    lease = take(uri, clock)
    lease.release()
    found = read_lease(uri).record
    assert found is not None
    assert (found.released, found.holder) == (True, lease.record.holder)
    take(uri, clock)


def test_an_expired_lease_that_nobody_took_is_still_ours(uri: str, clock: Clock) -> None:
    lease = take(uri, clock)
    clock.advance(10 * LEASE_S)
    lease.renew()
    held(uri, clock)


def test_a_lease_that_another_run_took_is_lost(uri: str, clock: Clock) -> None:
    lease = take(uri, clock)
    clock.advance(LEASE_S)
    other = take(uri, clock, host="other", user="")
    for change in (lease.renew, lease.release, lambda: lease.name_job(JOB)):
        with pytest.raises(LeaseLostError) as caught:
            change()
        assert str(caught.value) == (
            f"{uri}: this run has lost its lease of the output, and stops: LocalRunner, process 7 "
            "of other took it at 2026-01-02 03:06:05 UTC; let only one run at a time write to an "
            "output"
        )
    # Nothing that the loser tried has changed anything.
    other.renew()
    other.release()
    with pytest.raises(LeaseLostError):
        lease.renew()


def test_a_deleted_lease_is_lost(uri: str, clock: Clock) -> None:
    lease = take(uri, clock)
    Path(uri).unlink()
    with pytest.raises(LeaseLostError, match="the file is gone"):
        lease.renew()
    assert not Path(uri).exists()


def test_a_lease_counts_from_when_it_is_taken(uri: str, clock: Clock) -> None:
    new = record(clock)
    # As long as a listing may take.
    clock.advance(10 * LEASE_S)
    taken = take_lease(read_lease(uri), new, clock=clock)
    assert taken is not None
    assert "since 2026-01-02 03:24:05 UTC" in held(uri, clock)


def test_of_two_that_see_a_free_lease_one_takes_it(uri: str, clock: Clock) -> None:
    for _ in range(2):
        found = read_lease(uri)
        first = take_lease(found, record(clock), clock=clock)
        assert first is not None
        assert take_lease(found, record(clock), clock=clock) is None
        first.renew()
        first.release()


class MemoryStorage:
    """Files with versions, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}

    def stat(self, uri: str) -> StoredFile | None:
        if uri not in self.files:
            return None
        data, version = self.files[uri]
        return StoredFile(path=uri, uri=uri, size_bytes=len(data), version=str(version))

    def read(self, uri: str, *, version: str) -> bytes:
        data, current = self.files[uri]
        assert version == str(current)
        return data

    def swap(self, uri: str, data: bytes, *, version: str | None) -> str | None:
        current = self.files.get(uri)
        if (None if current is None else str(current[1])) != version:
            return None
        self.files[uri] = data, (0 if current is None else current[1]) + 1
        return str(self.files[uri][1])


STEPS = st.one_of(
    st.tuples(st.just("wait"), st.floats(min_value=0, max_value=2 * LEASE_S)),
    st.tuples(st.sampled_from(["look", "take", "renew", "release"]), st.integers(0, 2)),
)


@given(steps=st.lists(STEPS, max_size=40))
def test_no_order_of_steps_gives_two_runs_one_lease(steps: list[tuple[str, Any]]) -> None:
    clock = Clock()
    storage = MemoryStorage()
    seen: dict[int, FoundLease] = {}
    leases: dict[int, Lease] = {}
    # What must be: who was the last to take it, until when, and how often it has changed.
    holder: int | None = None
    until = STARTED
    changes = 0
    seen_at: dict[int, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease_module, "storage_for", lambda uri: storage)
        for action, value in steps:
            if action == "wait":
                clock.advance(value)
            elif action == "look":
                found = read_lease("x")
                if until <= clock.now:
                    check_free(found, ask=refuse, clock=clock)
                    seen[value], seen_at[value] = found, changes
                else:
                    with pytest.raises(LeaseError):
                        check_free(found, ask=refuse, clock=clock)
                    seen.pop(value, None)
            elif action == "take" and value in seen:
                taken = take_lease(seen[value], record(clock), clock=clock)
                assert (taken is not None) == (seen_at[value] == changes)
                if taken is not None:
                    leases[value], holder = taken, value
                    until = clock.now + datetime.timedelta(seconds=LEASE_S)
                    changes += 1
            elif action in ("renew", "release") and value in leases:
                act = leases[value].renew if action == "renew" else leases[value].release
                if holder != value:
                    with pytest.raises(LeaseLostError):
                        act()
                    del leases[value]
                    continue
                act()
                changes += 1
                until = clock.now
                if action == "renew":
                    until += datetime.timedelta(seconds=LEASE_S)
                else:
                    # Released, it is no lease to be renewed.
                    del leases[value]
                    holder = None


# By process


def test_a_process_of_this_machine_that_has_ended_holds_nothing(uri: str, clock: Clock) -> None:
    process = own_process()
    if process is None:
        pytest.skip("needs /proc")
    gone = msgspec.structs.replace(process, started=process.started - 1)
    take(uri, clock, process=gone)
    take(uri, clock, process=msgspec.structs.replace(gone, boot="of another machine"))
    held(uri, clock)


def test_a_lease_of_this_very_process_is_held_until_it_is_forgotten(uri: str, clock: Clock) -> None:
    process = own_process()
    if process is None:
        pytest.skip("needs /proc")
    lease = take(uri, clock, process=process)
    held(uri, clock)
    lease.forget()
    take(uri, clock, process=process)


# By job


def answer(state: JobState, **more: str) -> Any:  # noqa: ANN401
    return lambda job: JobAnswer(state, **more)


@pytest.mark.parametrize("state", list(JobState))
def test_a_job_holds_the_lease_as_long_as_it_runs(state: JobState, uri: str, clock: Clock) -> None:
    lease = take(uri, clock, job=JOB, runner="DataflowRunner")
    lease.name_job(msgspec.structs.replace(JOB, id="2026-01"))
    for _ in range(2):
        found = read_lease(uri)
        if state in (JobState.ENDED, JobState.ABSENT):
            check_free(found, ask=answer(state), clock=clock)
        else:
            with pytest.raises(LeaseError) as caught:
                check_free(found, ask=answer(state, problem="403 no"), clock=clock)
            words = {
                JobState.RUNNING: "since 2026-01-02 03:04:05 UTC; wait for its end, or cancel it: "
                "gcloud dataflow jobs cancel 2026-01 --region=us-central1 --project=pictures",
                JobState.UNKNOWN: "since 2026-01-02 03:04:05 UTC; whether it still runs cannot be "
                "told (403 no). Ask: gcloud dataflow jobs describe 2026-01 --region=us-central1 "
                f"--project=pictures. If it has ended, delete {uri}",
            }
            assert str(caught.value) == (
                "/data/out: another run is writing it: DataflowRunner, job 2026-01 (submitted by "
                f"process 7 of ann@elsewhere), {words[state]}"
            )
        # However long that takes.
        clock.advance(1e6)


@pytest.mark.parametrize("state", list(JobState))
@pytest.mark.parametrize("template", [False, True])
def test_a_job_without_an_id_is_looked_for_once_its_lease_has_expired(
    template: bool, state: JobState, uri: str, clock: Clock
) -> None:
    lease = take(uri, clock, job=JOB)
    if template:
        lease.name_job(JOB)
    clock.advance((START_S if template else LEASE_S) - 1)
    assert "a job named nightly" in held(uri, clock)
    clock.advance(1)
    found = read_lease(uri)
    ask = answer(state, problem="no network", job_id="2026-01")
    if state in (JobState.ENDED, JobState.ABSENT):
        check_free(found, ask=ask, clock=clock)
        return
    with pytest.raises(LeaseError) as caught:
        check_free(found, ask=ask, clock=clock)
    words = {
        JobState.RUNNING: "jobs cancel 2026-01 ",
        JobState.UNKNOWN: "(no network). Ask: gcloud dataflow jobs list --filter=name=nightly ",
    }
    assert words[state] in str(caught.value)


# In workers


def test_a_worker_notices_that_its_run_has_lost_the_lease(uri: str, clock: Clock) -> None:
    lease = take(uri, clock)
    claim = LeaseClaim(uri=uri, holder=lease.record.holder)
    check_claim(claim)
    clock.advance(LEASE_S)
    check_claim(claim)
    take(uri, clock)
    with pytest.raises(InputError, match="this run has lost its lease of the output, and stops"):
        check_claim(claim)
    # And releases nothing.
    release_claim(claim)
    held(uri, clock)
    Path(uri).unlink()
    with pytest.raises(InputError, match="the file is gone"):
        check_claim(claim)


def test_a_job_releases_its_lease_and_whoever_follows_it_finds_that_well(
    uri: str, clock: Clock
) -> None:
    lease = take(uri, clock)
    release_claim(LeaseClaim(uri=uri, holder=lease.record.holder))
    check_free(read_lease(uri), ask=refuse, clock=clock)
    lease.release()
    take(uri, clock)
    with pytest.raises(LeaseLostError):
        lease.release()


def test_a_lease_that_cannot_be_released_does_not_fail_the_job(
    uri: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lease = take(uri, clock)

    def fail(*arguments: object, **options: object) -> str:
        raise OSError("disk")

    monkeypatch.setattr(LocalStorage, "swap", fail)
    release_claim(LeaseClaim(uri=uri, holder=lease.record.holder))
    assert "the lease cannot be released" in caplog.text


# Files that are no leases


GOOD = msgspec.json.encode(record(Clock()))


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
        GOOD.replace(b'"job":null', b'"job":{"name":"x; rm -rf ~","project":"p","region":"r"}'),
        GOOD.replace(b'"job":null', b'"job":{"name":"x\\n","project":"p","region":"r"}'),
        b" " * (1 << 17),
    ],
)
def test_a_file_that_is_no_lease_is_an_error_and_stays(content: bytes, uri: str) -> None:
    assert content != GOOD
    Path(uri).parent.mkdir(parents=True)
    Path(uri).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_lease(uri)
    message = str(caught.value)
    assert message.startswith(f"{uri}: not a lease of Shardbeam: ")
    assert message.endswith("; if no run is writing there, delete the file")
    assert Path(uri).read_bytes() == content


def test_what_a_later_version_adds_does_not_matter(uri: str, clock: Clock) -> None:
    Path(uri).parent.mkdir(parents=True)
    Path(uri).write_bytes(GOOD[:-1] + b',"new":[1]}')
    held(uri, clock)
