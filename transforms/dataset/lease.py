"""The lease of an output: a small file that says which run may write there, and until when.

It is made and changed by compare-and-swap only, and never deleted: of two runs that come at the
same moment one gets it, and one that comes too late notices. A holder renews it; one that is killed
does not, and the lease expires. A run that is done marks it as released.

Whoever finds a lease asks, in this order: is it released; has its job, or its process, ended; is it
expired. What expires is not lost as long as nobody else has taken it.
"""

from __future__ import annotations

import datetime
import enum
import getpass
import logging
import os
import platform
import uuid
from collections.abc import Callable
from typing import Annotated

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.dataset.process_identity import ProcessIdentity, has_ended, own_process
from shardbeam.transforms.storage.base import ChangedError
from shardbeam.transforms.storage.find import storage_for

_log = logging.getLogger(__name__)

LEASE_NAME = ".lease.json"
# How long a holder is believed to live without a sign of it.
LEASE_S = 120.0
# How long a job may take to start, once it is written down.
START_S = 900.0

# A lease is about 1 KB.
_MAX_BYTES = 1 << 16
# They are put into commands that users may copy.
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.:-]*\Z")]
_Time = Annotated[datetime.datetime, msgspec.Meta(tz=True)]

Clock = Callable[[], datetime.datetime]

# Leases that this process holds. One that says it does, and is not among them, was not released.
_held_here: set[str] = set()


class LeaseError(Exception):
    """Another run holds the lease. The message is one line."""


class LeaseLostError(LeaseError):
    """Another run has taken the lease that this one had."""


class RemoteJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs without the process that submitted it.

    Attributes:
        name: Its name.
        id: Its id; empty before the service has given it one.
        project: Its project.
        region: Its region.
    """

    name: _Name
    id: _Name = ""
    project: _Name
    region: _Name


class JobState(enum.Enum):
    """What the service says of a job."""

    RUNNING = "running"
    ENDED = "ended"
    # There is none.
    ABSENT = "absent"
    # It cannot be asked, or does not answer.
    UNKNOWN = "unknown"


class JobAnswer(msgspec.Struct, frozen=True):
    """The answer to the question for a job.

    Attributes:
        state: How it stands.
        job_id: Its id, where it was asked for by name.
        problem: Why its state is unknown.
    """

    state: JobState
    job_id: str = ""
    problem: str = ""


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says.

    Attributes:
        holder: A random id of the holding run.
        plan: Digest of its config.
        output: The dataset's folder, as it names it.
        runner: Name of its runner.
        user: Who started it, where that is known.
        host: On which machine.
        pid: In which process there.
        process: The process more exactly, if the run ends with it, and where the system tells.
        job: The job, where it runs by itself.
        acquired_at: Since when it holds the lease.
        renewed_at: When it last said so.
        expires_at: Until when it is believed; None where the job's service is asked instead.
        released: Whether it holds the lease no more.
    """

    holder: str
    plan: str
    output: str
    runner: str
    user: str
    host: str
    pid: int
    process: ProcessIdentity | None
    job: RemoteJob | None
    acquired_at: _Time
    renewed_at: _Time
    expires_at: _Time | None
    released: bool = False


class LeaseClaim(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker needs to know of its run's lease.

    Attributes:
        uri: Where it lies.
        holder: The run's id.
        released_by_job: Whether the job itself releases it, since nobody may be waiting for it.
    """

    uri: str
    holder: str
    released_by_job: bool = False


class FoundLease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as it was read.

    Attributes:
        uri: Where it lies.
        record: What it says; None where there is none.
        version: Its version, for the swap; None where there is none.
    """

    uri: str
    record: LeaseRecord | None
    version: str | None


def utc_now() -> datetime.datetime:
    """Returns the time."""
    return datetime.datetime.now(tz=datetime.timezone.utc)


def new_record(
    *,
    plan: str,
    output: str,
    runner: str,
    ends_with_process: bool,
    job: RemoteJob | None = None,
    clock: Clock = utc_now,
) -> LeaseRecord:
    """Describes this process as a holder.

    Args:
        plan: Digest of the config.
        output: The dataset's folder.
        runner: Name of the runner.
        ends_with_process: Whether nothing of the run is left once this process has ended.
        job: The job that is going to run, without an id.
        clock: Tells the time.
    """
    now = clock()
    return LeaseRecord(
        holder=uuid.uuid4().hex,
        plan=plan,
        output=output,
        runner=runner,
        user=_user(),
        host=platform.node(),
        pid=os.getpid(),
        process=own_process() if ends_with_process else None,
        job=job,
        acquired_at=now,
        renewed_at=now,
        expires_at=now + datetime.timedelta(seconds=LEASE_S),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A number without a name, as in many containers.
        return ""


def read_lease(uri: str) -> FoundLease:
    """Reads a lease, and its version.

    Raises:
        InputError: It cannot be read, or is none.
    """
    storage = storage_for(uri)
    while True:
        stored = storage.stat(uri)
        if stored is None:
            return FoundLease(uri=uri, record=None, version=None)
        if stored.size_bytes > _MAX_BYTES:
            raise _not_a_lease(uri, problem=f"{stored.size_bytes:,} bytes long")
        try:
            data = storage.read(uri, version=stored.version)
        except ChangedError:
            # Its holder renews it just now.
            continue
        except OSError as error:
            raise InputError(
                uri=uri, problem=f"cannot be read: {error.strerror or error}"
            ) from error
        try:
            record = msgspec.json.decode(data, type=LeaseRecord)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _not_a_lease(uri, problem=str(error)) from error
        return FoundLease(uri=uri, record=record, version=stored.version)


def _not_a_lease(uri: str, *, problem: str) -> InputError:
    # Whoever wrote it, it may stand for a run that goes on.
    return InputError(
        uri=uri,
        problem=f"not a lease of Shardbeam: {problem}; if no run is writing there, delete the file",
    )


def check_free(
    found: FoundLease,
    *,
    ask: Callable[[RemoteJob], JobAnswer],
    clock: Clock = utc_now,
) -> None:
    """Makes sure that a lease may be taken.

    Args:
        found: The lease.
        ask: Asks a job's service for the job: by its id, or by its name where it has none.
        clock: Tells the time.

    Raises:
        LeaseError: Another run holds it, or it cannot be told that none does.
    """
    record = found.record
    if record is None or record.released:
        return
    now = clock()
    expired = record.expires_at is not None and record.expires_at <= now
    if record.job is not None and (record.job.id or expired):
        answer = ask(record.job)
        if answer.state in (JobState.RUNNING, JobState.UNKNOWN):
            raise LeaseError(_describe_job(found, record, record.job, answer=answer))
        return
    if expired or (record.process is not None and _is_gone(record, record.process)):
        return
    raise LeaseError(_describe_holder(record, now=now))


def _is_gone(record: LeaseRecord, process: ProcessIdentity) -> bool:
    if process == own_process():
        return record.holder not in _held_here
    return has_ended(process)


def _describe_holder(record: LeaseRecord, *, now: datetime.datetime) -> str:
    words = (
        f"{record.output}: another run is writing it: {_who(record)}, since "
        f"{_time(record.acquired_at)}"
    )
    if record.expires_at is None:
        return words
    seconds = max(1, round((record.expires_at - now).total_seconds()))
    return (
        f"{words}; wait for its end. If it has crashed, its lease ends in {seconds} s, "
        f"{_time(record.expires_at)}"
    )


def _describe_job(
    found: FoundLease, record: LeaseRecord, job: RemoteJob, *, answer: JobAnswer
) -> str:
    place = f"--region={job.region} --project={job.project}"
    words = f"{record.output}: another run is writing it: {_who(record)}"
    since = f"since {_time(record.acquired_at)}"
    if answer.state is JobState.RUNNING:
        return (
            f"{words}, {since}; wait for its end, or cancel it: gcloud dataflow jobs cancel "
            f"{job.id or answer.job_id} {place}"
        )
    question = f"describe {job.id}" if job.id else f"list --filter=name={job.name}"
    return (
        f"{words}, {since}; whether it still runs cannot be told ({answer.problem}). Ask: gcloud "
        f"dataflow jobs {question} {place}. If it has ended, delete {found.uri}"
    )


def _who(record: LeaseRecord) -> str:
    starter = f"{record.user}@{record.host}" if record.user else record.host
    if record.job is None:
        return f"{record.runner}, process {record.pid} of {starter}"
    name = f"job {record.job.id}" if record.job.id else f"a job named {record.job.name}"
    return f"{record.runner}, {name} (submitted by process {record.pid} of {starter})"


def _time(time: datetime.datetime) -> str:
    return f"{time.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def take_lease(found: FoundLease, record: LeaseRecord, *, clock: Clock = utc_now) -> Lease | None:
    """Takes a lease that is free.

    Args:
        found: The lease as it was read, and found free.
        record: The new holder, from now on.
        clock: Tells the time.

    Returns:
        The lease; None if another run has come first: then it is to be read again.

    Raises:
        InputError: The file cannot be written.
        OSError: The same, on local disk.
    """
    now = clock()
    expires_at = now + datetime.timedelta(seconds=LEASE_S)
    record = msgspec.structs.replace(record, acquired_at=now, renewed_at=now, expires_at=expires_at)
    _held_here.add(record.holder)
    try:
        version = storage_for(found.uri).swap(found.uri, _encode(record), version=found.version)
    except BaseException:
        # Perhaps it was written all the same: then it is found as one that nobody holds.
        _held_here.discard(record.holder)
        raise
    if version is None:
        _held_here.discard(record.holder)
        return None
    return Lease(uri=found.uri, record=record, version=version, clock=clock)


class Lease:
    """A lease that this process holds. For one thread at a time."""

    def __init__(self, *, uri: str, record: LeaseRecord, version: str, clock: Clock) -> None:
        self.uri = uri
        self._record = record
        self._version: str | None = version
        self._clock = clock

    @property
    def record(self) -> LeaseRecord:
        """What the file says."""
        return self._record

    def renew(self) -> None:
        """Says that the holder lives.

        Raises:
            LeaseLostError: Another run has taken the lease.
            InputError: The file cannot be written; it may be possible later.
            OSError: The same, on local disk.
        """
        self._write(self._record, lives_s=LEASE_S)

    def name_job(self, job: RemoteJob) -> None:
        """Hands the lease over to a job, which holds it as long as it runs.

        Args:
            job: The job; without an id it is one that somebody else is going to start.

        Raises:
            LeaseLostError: Another run has taken the lease.
            InputError: The file cannot be written.
            OSError: The same, on local disk.
        """
        self._write(
            msgspec.structs.replace(self._record, job=job), lives_s=None if job.id else START_S
        )

    def release(self) -> None:
        """Gives the lease up. What the file says of the holder stays, for people to read.

        Raises:
            LeaseLostError: Another run has taken the lease.
            InputError: The file cannot be written.
            OSError: The same, on local disk.
        """
        self.forget()
        self._write(msgspec.structs.replace(self._record, released=True), lives_s=0)

    def forget(self) -> None:
        """Lets other runs of this process find a lease that could not be released."""
        _held_here.discard(self._record.holder)

    def _write(self, record: LeaseRecord, *, lives_s: float | None) -> None:
        now = self._clock()
        expires_at = None if lives_s is None else now + datetime.timedelta(seconds=lives_s)
        record = msgspec.structs.replace(record, renewed_at=now, expires_at=expires_at)
        storage = storage_for(self.uri)
        while (swapped := storage.swap(self.uri, _encode(record), version=self._version)) is None:
            found = read_lease(self.uri)
            if found.record is None or found.record.holder != record.holder:
                raise LeaseLostError(f"{self.uri}: {_describe_loss(found.record)}")
            # A change that seemed to have failed; or its job has released it.
            self._record, self._version = found.record, found.version
            if found.record.released:
                return
        self._record, self._version = record, swapped


def _describe_loss(record: LeaseRecord | None) -> str:
    taken = (
        "the file is gone"
        if record is None
        else f"{_who(record)} took it at {_time(record.acquired_at)}"
    )
    return (
        f"this run has lost its lease of the output, and stops: {taken}; let only one run at a "
        "time write to an output"
    )


def check_claim(claim: LeaseClaim) -> None:
    """Makes sure, in a worker, that a run's lease is still its own.

    Raises:
        InputError: Another run has taken it.
    """
    found = read_lease(claim.uri)
    if found.record is None or found.record.holder != claim.holder:
        raise InputError(uri=claim.uri, problem=_describe_loss(found.record))


def release_claim(claim: LeaseClaim) -> None:
    """Releases a run's lease, in a worker, at the run's very end.

    A lease that cannot be released is found by its job, which has ended.
    """
    try:
        found = read_lease(claim.uri)
        if found.record is not None and found.record.holder == claim.holder:
            now = utc_now()
            record = msgspec.structs.replace(
                found.record, released=True, renewed_at=now, expires_at=now
            )
            storage_for(claim.uri).swap(claim.uri, _encode(record), version=found.version)
    except (InputError, OSError):
        _log.warning("the lease cannot be released: %s", claim.uri, exc_info=True)


def _encode(record: LeaseRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"
