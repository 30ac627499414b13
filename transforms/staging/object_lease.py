"""The lease of an output on object storage: an object that names its holder and when it expires.

Every change of the object is conditional on its generation: if two runs come at the same moment,
one gets the lease, and the other notices. A run deletes the object only if it created it and the
output holds nothing else; the output is then as it was before the run. The holder renews the lease;
a run that was killed does not, and its lease expires. The holder of an expired lease keeps it until
another run takes it.
"""

from __future__ import annotations

import datetime
import getpass
import logging
import os
import platform
import threading
import uuid
from collections.abc import Callable
from typing import Annotated

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError, unreadable
from shardbeam.transforms.staging.lease import (
    LEASE_PATH,
    Lease,
    LeaseClaim,
    LeaseError,
    LeaseLostError,
)
from shardbeam.transforms.storage.base import ChangedError, join_uri
from shardbeam.transforms.storage.find import storage_for

_log = logging.getLogger(__name__)

# How long a process holds the lease without renewing it, and how long it waits between renewals.
LEASE_S = 120.0
RENEW_S = LEASE_S / 3
# How long a job holds it without the process that submitted it; its workers renew it.
JOB_S = 900.0

# A lease is about 1 KB.
_MAX_BYTES = 1 << 16
_Time = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
Clock = Callable[[], datetime.datetime]


class LeaseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the object.

    Attributes:
        holder: A random id of the holding run.
        plan: Digest of its config.
        output: The dataset's folder.
        runner: Name of its runner.
        user: Who started the run, if that is known.
        host: The run's machine.
        pid: The run's process there.
        job_name: Id or name of the run's job, if that continues without the process.
        acquired_at: When the run took the lease.
        renewed_at: When the run last renewed the lease.
        expires_at: When the lease expires, unless the run renews it.
        released: Whether the run has given the lease up.
    """

    holder: str
    plan: str
    output: str
    runner: str
    user: str
    host: str
    pid: int
    job_name: str = ""
    acquired_at: _Time
    renewed_at: _Time
    expires_at: _Time
    released: bool = False

    def renewed(self, now: datetime.datetime, *, lives_s: float) -> LeaseRecord:
        """Returns the record of a lease that is held for `lives_s` seconds from now."""
        expires_at = now + datetime.timedelta(seconds=lives_s)
        return msgspec.structs.replace(self, renewed_at=now, expires_at=expires_at)

    def released_at(self, now: datetime.datetime) -> LeaseRecord:
        """Returns the record of a lease that is not held any more."""
        return msgspec.structs.replace(self.renewed(now, lives_s=0), released=True)


def utc_now() -> datetime.datetime:
    """Returns the time in UTC."""
    return datetime.datetime.now(tz=datetime.timezone.utc)


class ObjectLease(Lease):
    """A lease that is an object in the output.

    Args:
        output: The dataset's folder.
        plan: Digest of the config.
        runner: Name of the runner.
        clock: Returns the time.
        renew_s: Seconds between two renewals.

    Raises:
        LeaseError: Another run holds it.
        InputError: It cannot be read, or something else lies in its place.
    """

    def __init__(
        self,
        output: str,
        *,
        plan: str,
        runner: str,
        clock: Clock = utc_now,
        renew_s: float = RENEW_S,
    ) -> None:
        super().__init__(output)
        self.uri = join_uri(output, LEASE_PATH)
        self._clock = clock
        self._renew_s = renew_s
        self._lives_s = LEASE_S
        now = clock()
        self._record = LeaseRecord(
            holder=uuid.uuid4().hex,
            plan=plan,
            output=output,
            runner=runner,
            user=_user(),
            host=platform.node(),
            pid=os.getpid(),
            acquired_at=now,
            renewed_at=now,
            expires_at=now,
        )
        self._is_held = False
        self._is_new = False
        self._ended = threading.Event()
        self._releasing: threading.Thread | None = None
        self._version = self._find_free()

    def _find_free(self) -> str | None:
        record, version = read_lease(self.uri)
        now = self._clock()
        if record is not None and not record.released and now < record.expires_at:
            raise LeaseError(
                f"{self.output}: another run is writing there: {_who(record)}, since "
                f"{_time(record.acquired_at)}; wait until it has ended. If it has crashed, "
                f"its lease ends in {(record.expires_at - now).total_seconds():.0f} s, "
                f"{_time(record.expires_at)}"
            )
        return version

    def take(self) -> bool:
        """Creates or replaces the object, and starts a thread that renews it."""
        self._record = msgspec.structs.replace(self._record, acquired_at=self._clock())
        data = self._encode(released=False)
        version = storage_for(self.uri).swap(self.uri, data, version=self._version)
        if version is None:
            self._version = self._find_free()
            return False
        self._is_new = self._version is None
        self._version = version
        self._is_held = True
        threading.Thread(target=self._keep, name="lease", daemon=True).start()
        return True

    def _keep(self) -> None:
        while self.lost is None and not self._ended.wait(self._renew_s):
            self.renew()

    def renew(self) -> None:
        """Renews the lease; if another run has taken it, sets `lost`."""
        try:
            self._replace()
        except LeaseLostError as error:
            # The next step that checks the lease fails.
            self.lost = error
        except (InputError, OSError):
            _log.info("the lease could not be renewed: %s", self.uri, exc_info=True)

    def claim(self, *, is_job: bool = False) -> LeaseClaim:
        """Describes the lease for workers."""
        return LeaseClaim(uri=self.uri, holder=self._record.holder, is_job=is_job)

    def hand_over(self, job: str) -> None:
        """Names the job in the object, and lets the lease live longer without renewal."""
        self._record = msgspec.structs.replace(self._record, job_name=job)
        self._lives_s = JOB_S
        # From now on the job's workers write to the output, too.
        self._is_new = False
        try:
            self._replace()
        except LeaseLostError as error:
            self.lost = error
            raise
        except (InputError, OSError):
            _log.warning("the lease does not name its job: %s", self.uri, exc_info=True)

    def leave(self) -> None:
        """Stops renewing the object, and leaves it as it is."""
        self._is_held = False
        self._ended.set()

    def release(self, *, wait_s: float = 10.0) -> None:
        """Marks the object as released, or deletes it if the output holds nothing else.

        A new thread makes the request, so that the caller waits no longer than `wait_s`, even if
        the storage does not answer, or the interrupted code holds a lock of the client.
        """
        if self._is_held:
            self._is_held = False
            self._releasing = threading.Thread(target=self._release, name="release", daemon=True)
            self._releasing.start()
        if self._releasing is not None:
            self._releasing.join(wait_s)

    def _release(self) -> None:
        self._ended.set()
        try:
            # If a renewal came in between, the version differs, and delete() does nothing.
            if not (
                self._is_alone() and storage_for(self.uri).delete(self.uri, version=self._version)
            ):
                self._replace(released=True)
        except LeaseLostError as error:
            self.lost = error
        except (InputError, OSError):
            _log.info("the lease could not be released: %s", self.uri, exc_info=True)

    def _is_alone(self) -> bool:
        """Returns whether this run made the object, and the output holds nothing else."""
        if not self._is_new:
            return False
        try:
            return all(file.uri == self.uri for file in storage_for(self.uri).list(self.output))
        except (InputError, OSError):
            _log.info("the output could not be listed: %s", self.output, exc_info=True)
            return False

    def _replace(self, *, released: bool = False) -> None:
        """Replaces the object, if it is still this run's.

        A renewal and a release may run at the same time: one of two replacements of the same
        generation wins, and the other reads the object again.

        Raises:
            LeaseLostError: Another run has taken the lease.
            InputError: It cannot be written.
        """
        storage = storage_for(self.uri)
        while True:
            expected = self._version
            if self._ended.is_set() and not released:
                # A release sets `_ended` before it changes the version: no renewal undoes it.
                return
            data = self._encode(released=released)
            version = storage.swap(self.uri, data, version=expected)
            if version is not None:
                self._version = version
                return
            record, version = read_lease(self.uri)
            if record is None or record.holder != self._record.holder:
                raise LeaseLostError(f"{self.uri}: {_describe_loss(record)}")
            if record.released:
                return
            self._version = version

    def _encode(self, *, released: bool) -> bytes:
        now = self._clock()
        if released:
            return _encode(self._record.released_at(now))
        return _encode(self._record.renewed(now, lives_s=self._lives_s))


def check_claim(claim: LeaseClaim, *, clock: Clock = utc_now) -> None:
    """Checks in a worker that the run still holds its lease; renews the lease of a job.

    Raises:
        InputError: Another run has taken the lease, or it cannot be read.
    """
    record, version = read_lease(claim.uri)
    if record is None or record.holder != claim.holder:
        raise InputError(uri=claim.uri, problem=_describe_loss(record))
    now = clock()
    if claim.is_job and now > record.renewed_at + datetime.timedelta(seconds=JOB_S / 3):
        data = _encode(record.renewed(now, lives_s=JOB_S))
        # If this fails, another worker has just renewed it.
        storage_for(claim.uri).swap(claim.uri, data, version=version)


def release_claim(claim: LeaseClaim) -> None:
    """Releases a job's lease in a worker when the job ends; if that fails, the lease expires.

    Beam may repeat steps of the job afterwards: they pass the check until another run takes it.
    """
    try:
        record, version = read_lease(claim.uri)
        if record is not None and record.holder == claim.holder:
            data = _encode(record.released_at(utc_now()))
            storage_for(claim.uri).swap(claim.uri, data, version=version)
    except (InputError, OSError):
        _log.warning("the lease cannot be released: %s", claim.uri, exc_info=True)


def read_lease(uri: str) -> tuple[LeaseRecord | None, str | None]:
    """Reads a lease and its version; None for both where there is none.

    Raises:
        InputError: The object cannot be read, or is not a lease.
    """
    storage = storage_for(uri)
    while True:
        stored = storage.stat(uri)
        if stored is None:
            return None, None
        if stored.size_bytes > _MAX_BYTES:
            raise _not_a_lease(uri, problem=f"{stored.size_bytes:,} bytes long")
        try:
            data = storage.read(uri, version=stored.version)
            return JsonDecoder(LeaseRecord).decode(data), stored.version
        except ChangedError:
            # Its holder has just renewed it.
            continue
        except OSError as error:
            raise unreadable(uri, error) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _not_a_lease(uri, problem=str(error)) from error


def _not_a_lease(uri: str, *, problem: str) -> InputError:
    # Another version's run may have written it, and may still be at work.
    return InputError(
        uri=uri,
        problem=f"not a lease of Shardbeam: {problem}; if no run is writing there, delete the file",
    )


def _encode(record: LeaseRecord) -> bytes:
    return msgspec.json.format(msgspec.json.encode(record)) + b"\n"


def _describe_loss(record: LeaseRecord | None) -> str:
    taken = (
        "the file is gone"
        if record is None
        else f"{_who(record)} took it at {_time(record.acquired_at)}"
    )
    return (
        f"this run has lost its lease on the output and stops: {taken}; let only one run at a "
        "time write to an output"
    )


def _who(record: LeaseRecord) -> str:
    starter = f"{record.user}@{record.host}" if record.user else record.host
    if not record.job_name:
        return f"{record.runner}, process {record.pid} of {starter}"
    return f"{record.runner}, {record.job_name} (submitted by process {record.pid} of {starter})"


def _time(time: datetime.datetime) -> str:
    return f"{time.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # The user has a number but no name, as in many containers.
        return ""
