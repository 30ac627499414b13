"""Staging: where a run keeps files until the commit, and how another run finds them.

Below the dataset's folder:

    .staging/<plan>/commit.json              the paths that the commit may create
    .staging/<plan>/shards/<shard key>/      `done`, and for each attempt a folder of its files
    .staging/<plan>/runs/<run>/              launched, outcome.json, totals.json, progress/,
                                             rejects/, corrections/, files/

`<plan>` is a digest of the config, a shard key a digest of all that decides a shard's bytes. A run
that is killed and started again has the same plan and finds the finished shards by their keys.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import google_crc32c
import msgspec

from shardbeam.configs.decoding import JsonDecoder, MsgpackDecoder
from shardbeam.configs.passwords import hide_in, hide_passwords
from shardbeam.transforms.core.errors import InputError, describe_os_error
from shardbeam.transforms.dataset.dataset_files import DatasetFile
from shardbeam.transforms.dataset.file_names import STAGING_FOLDER, run_path
from shardbeam.transforms.dataset.outcome import WriteProgress
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult, convert_result
from shardbeam.transforms.staging.lease import LeaseClaim
from shardbeam.transforms.staging.object_lease import check_claim, release_claim
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import ChangedError, StoredFile, join_uri
from shardbeam.transforms.storage.find import storage_for
from shardbeam.transforms.storage.listed_files import read_optional

# The list of the files that a plan's commit moves, in the plan's folder.
COMMIT_LIST = "commit.json"
_SCRATCH = re.compile(rf"{re.escape(STAGING_FOLDER)}/[^/]+/runs/[^/]+/files/")
# Files by which a run reports, in its own folder.
OUTCOME = "outcome.json"
TOTALS = "totals.json"
# The mark that a launcher writes there.
LAUNCHED = "launched"
# Network file systems may remember for some time that a folder was not there.
_MARK_WAIT_S = 10.0

T = TypeVar("T", bound=msgspec.Struct)

_log = logging.getLogger(__name__)

_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder(order="deterministic")


@contextlib.contextmanager
def explain_write_errors(output: str) -> Iterator[None]:
    """Turns an OSError (a full disk, missing rights) into an error that says how to go on.

    Args:
        output: The dataset's folder.

    Raises:
        InputError: An OSError was raised within the context, or another run wrote to the output.
    """
    try:
        yield
    except ChangedError as error:
        raise InputError(
            uri=output,
            problem=f"another run writes here: {error}; let only one run at a time write to an "
            "output, and run the same command again",
        ) from error
    except InputError:
        # Some OSErrors are InputErrors as well; these name their file.
        raise
    except OSError as error:
        # On EIO, name the file; of a full disk it may be any file of the output.
        in_output = str(error.filename or output).startswith(output) and error.errno != errno.EIO
        shown = OSError(error.errno, error.strerror or str(error)) if in_output else error
        raise InputError(
            uri=output,
            problem=f"cannot be written: {describe_os_error(shown)}; fix that and run the same "
            "command again, finished shards are kept",
        ) from error


class Staging(msgspec.Struct, frozen=True, kw_only=True):
    """The staging area of one run.

    Attributes:
        output: The dataset's folder.
        plan: Digest of the config.
        run_id: The time in UTC at which this run started; it names the run's files.
        lease: The lease of the output, which the run has to hold when it commits; None if workers
            have nothing to check.
        mark: A file in the run's folder that every worker must see before it writes; empty if
            workers have nothing to check.
    """

    output: str
    plan: str
    run_id: str
    lease: LeaseClaim | None = None
    mark: str = ""

    @property
    def root(self) -> str:
        """The plan's folder."""
        return join_uri(self.output, STAGING_FOLDER, self.plan)

    @property
    def run_folder(self) -> str:
        """This run's own folder, below the plan's."""
        return f"runs/{self.run_id}"

    def uri(self, *parts: str) -> str:
        """Resolves a path below the plan's folder."""
        return join_uri(self.root, *parts)

    def new_attempt(self, *, shard_key: str) -> str:
        """Names an attempt at a shard: a folder below the plan's that no other attempt has."""
        return f"shards/{shard_key}/{uuid.uuid4().hex}"

    def check_lease(self) -> None:
        """Makes sure that no other run has taken the output meanwhile.

        Raises:
            InputError: Another run has taken it.
        """
        if self.lease is not None:
            check_claim(self.lease)

    def write_mark(self) -> None:
        """Writes the file that shows workers that they see this machine's folder."""
        if self._has_mark:
            storage_for(self.root).replace(self._mark_uri, b"")

    def remove_mark(self) -> None:
        """Removes the mark of a run that has ended, which may have written nothing else."""
        if self._has_mark:
            storage = storage_for(self.root)
            storage.delete(self._mark_uri)
            storage.prune(join_uri(self.output, STAGING_FOLDER))

    def check_mark(self) -> None:
        """Makes sure that this machine sees the run's folder. It looks once in each process.

        Raises:
            InputError: It sees another folder under this path, or none.
        """
        if self._has_mark:
            _find_mark(self)

    @property
    def _has_mark(self) -> bool:
        # A name on gs:// means the same bucket everywhere. What other schemes mean may depend on
        # the configuration of each machine.
        return bool(self.mark) and not self.output.startswith("gs://")

    @property
    def _mark_uri(self) -> str:
        return self.uri(self.run_folder, self.mark)

    def release_lease(self) -> None:
        """Gives the lease up, if that is the task of the job's workers."""
        if self.lease is not None and self.lease.is_job:
            release_claim(self.lease)

    # Finished shards

    def find_shard(self, *, shard_key: str, previous: str = "") -> ShardResult | None:
        """Returns the result of a shard that an earlier run or attempt finished.

        Returns None if one of its files is gone, both from staging and from the output; or if the
        shard has transient rejects, so that those images are read again.

        Args:
            shard_key: The shard's key.
            previous: Folder of the previous version, if this run copies from one; then a shard that
                an earlier run copied counts as copied, not as resumed.
        """
        shard = self.read_shard(shard_key=shard_key)
        if shard is None or shard.may_differ:
            return None
        for file in (shard.data, shard.index):
            staged = storage_for(self.root).stat(self.uri(shard.staged, file.path))
            is_there = (
                staged.size_bytes == file.size_bytes
                if staged is not None
                else find_misplaced([file], output=self.output, read=True) is None
            )
            if not is_there:
                return None
        is_copy = bool(previous) and shard.origin is Origin.COPIED
        resumed = shard.run_id != self.run_id and not is_copy
        return msgspec.structs.replace(shard, resumed=resumed)

    def read_shard(self, *, shard_key: str) -> ShardResult | None:
        """Returns what a finished shard's done-file says, without looking at the shard's files.

        Returns None if there is no done-file, or another version of Shardbeam wrote it differently.
        """
        done = read_optional(self._done_uri(shard_key), max_bytes=limits.METADATA_BYTES)
        try:
            return None if done is None else convert_result(MsgpackDecoder().decode(done))
        except msgspec.DecodeError:
            return None

    def finish_shard(self, shard: ShardResult) -> None:
        """Marks a shard as finished; its files must be durable."""
        # URIs of unread files may hold passwords.
        fields = hide_in(msgspec.to_builtins(shard))
        storage_for(self.root).replace(self._done_uri(shard.key), _msgpack.encode(fields))

    def discard_shards(self) -> None:
        """Deletes all finished shards of this plan."""
        storage = storage_for(self.root)
        storage.delete_many(list(storage.list(self.uri("shards"))))
        storage.prune(self.uri("shards"))

    def forget_shards(self, shard_keys: Iterable[str]) -> None:
        """Deletes the done-files and the progress of shards that were committed."""
        storage = storage_for(self.root)
        uris = [
            uri
            for key in shard_keys
            for uri in (self._done_uri(key), self.uri(self.run_folder, _progress_file(key)))
        ]
        for _ in storage.map_many(storage.delete, uris):
            pass

    def _done_uri(self, shard_key: str) -> str:
        return self.uri("shards", shard_key, "done")

    # Files by which a run reports to the command that follows it

    def write_state(self, name: str, state: msgspec.Struct) -> None:
        """Writes a file of the run's own folder: its outcome, its totals, how far a shard is."""
        text = hide_passwords(_json.encode(state).decode())
        storage_for(self.root).replace(self.uri(self.run_folder, name), text.encode())

    def read_state(self, name: str, state_type: type[T]) -> T | None:
        """Returns what `write_state` has written; None if there is no such file."""
        uri = self.uri(self.run_folder, name)
        data = read_optional(uri, max_bytes=limits.METADATA_BYTES)
        return None if data is None else JsonDecoder(state_type).decode(data)

    def write_progress(self, progress: WriteProgress, *, shard_key: str) -> None:
        """Records how far a shard is."""
        self.write_state(_progress_file(shard_key), progress)

    def read_progress(self, seen: dict[str, tuple[str, WriteProgress]]) -> list[WriteProgress]:
        """Returns the progress of each shard that was begun.

        Args:
            seen: `{path: (version, progress)}` of the last call. This call updates it, so that only
                changed files are read.
        """
        storage = storage_for(self.root)
        changed = []
        for file in storage.list(self.uri(self.run_folder, "progress")):
            version, progress = seen.get(file.path, ("", None))
            is_finished = progress is not None and progress.finished
            # A temporary file is skipped; the next call sees the file that it becomes.
            if file.path.endswith(".json") and version != file.version and not is_finished:
                changed.append(file)
        names = [f"progress/{file.path}" for file in changed]
        read = functools.partial(self.read_state, state_type=WriteProgress)
        for file, found in zip(changed, storage.map_many(read, names), strict=True):
            if found is not None:
                seen[file.path] = file.version, found
        return [progress for _, progress in seen.values()]

    # The commit

    @property
    def commit_uri(self) -> str:
        """The list of the files that the commit moves into place."""
        return self.uri(COMMIT_LIST)

    def write_commit(self, destinations: Iterable[str], *, replaces: StoredFile | None) -> None:
        """Records which paths of the output this plan's commit may create.

        Args:
            destinations: The paths.
            replaces: The version of the list that was seen there; None if there was none.

        Raises:
            ChangedError: Another run has written it meanwhile.
        """
        _swap(self.commit_uri, _json.encode(sorted(destinations)), replaces=replaces)

    def write_file(self, path: str, data: bytes, *, replaces: StoredFile | None) -> None:
        """Writes a small file of the dataset in one step.

        Args:
            path: Its path below the dataset's folder. A half-written file never appears there: it
                lies in staging.
            data: Its content.
            replaces: The version of the file that was seen there; None if there was none.

        Raises:
            ChangedError: Another run has written it meanwhile.
        """
        uri = join_uri(self.output, path)
        _swap(uri, data, replaces=replaces, scratch=self._scratch_uri(uuid.uuid4().hex))

    def stage_file(self, path: str, data: bytes) -> str:
        """Writes a small file to a place that the next run clears before it uses the output.

        Returns:
            Its URI, to be renamed.
        """
        uri = self._scratch_uri(path)
        storage_for(uri).replace(uri, data)
        return uri

    def _scratch_uri(self, name: str) -> str:
        return self.uri(self.run_folder, "files", name)

    def is_scratch_of_others(self, path: str) -> bool:
        """Returns whether a path of the output is that of a small file staged by another run."""
        return bool(_SCRATCH.match(path)) and not join_uri(self.output, path).startswith(
            self.uri(self.run_folder, "")
        )

    def is_left(self) -> bool:
        """Returns whether there is anything to clear."""
        storage = storage_for(self.root)
        folder = join_uri(self.output, STAGING_FOLDER)
        return storage.holds(folder) and (storage.holds(self.root) or not any(storage.list(folder)))

    def was_committed(self) -> bool:
        """Returns whether a committed dataset still has the staging of this plan's commit.

        A commit first deletes the old `dataset_info.json`. So if there is one, and staging as well,
        the run was killed after its commit.
        """
        storage = storage_for(self.root)
        folder = join_uri(self.output, STAGING_FOLDER)
        if storage.stat(self.commit_uri) is not None:
            return True
        # Empty folders are removed last.
        return storage.holds(folder) and not any(storage.list(folder))

    def clear(self) -> None:
        """Removes this plan's staging, and the staging folder if it is empty then.

        Raises:
            InputError: Another run has taken the output.
        """
        storage = storage_for(self.root)
        files = {file.uri: file for file in storage.list(self.root)}
        self.check_lease()
        # Delete the commit's list last: it shows that something is left to clear.
        commit = files.pop(self.commit_uri, None)
        storage.delete_many(files.values())
        storage.prune(self.uri("shards"))
        storage.prune(self.uri("runs"))
        if commit is not None:
            storage.delete(commit.uri, version=commit.version)
        folder = join_uri(self.output, STAGING_FOLDER)
        storage.prune(folder)
        if any(storage.list(folder)):
            _log.warning(
                "%s: holds the finished shards of a run with another config, which uses them when "
                "it is started again; if you will not start it again, delete the folder",
                folder,
            )


def _progress_file(shard_key: str) -> str:
    return f"progress/{shard_key}.json"


@functools.lru_cache
def _first_look_s(staging: Staging) -> float:
    """Returns when this process first looked for the run's mark."""
    return time.monotonic()


@functools.lru_cache
def _find_mark(staging: Staging) -> None:
    # A commit removes staging. If one of its steps is repeated after that, the run's record shows
    # that this is the right folder.
    uris = (staging._mark_uri, join_uri(staging.output, run_path(staging.run_id)))
    storage = storage_for(staging.root)
    # Only the first shards wait.
    deadline_s = _first_look_s(staging) + _MARK_WAIT_S
    while all(storage.stat(uri) is None for uri in uris):
        if time.monotonic() > deadline_s:
            raise InputError(
                uri=staging.output,
                problem=f"the worker on host {socket.gethostname()} does not see what this "
                "run has written there; every machine must reach the same folder under this path: "
                "share it by a mount, or write to object storage (docs/guide/runners.md)",
            )
        time.sleep(1)


def holds_staging(output: str) -> bool:
    """Whether a dataset's folder holds files of runs that have not ended."""
    return storage_for(output).holds(join_uri(output, STAGING_FOLDER))


def _swap(uri: str, data: bytes, *, replaces: StoredFile | None, scratch: str = "") -> None:
    version = None if replaces is None else replaces.version
    if storage_for(uri).swap(uri, data, version=version, scratch=scratch) is None:
        raise ChangedError(f"{uri} was changed meanwhile")


def find_misplaced(files: Sequence[DatasetFile], *, output: str, read: bool) -> str | None:
    """Looks for files that are no longer in the output as the commit moved them there.

    Files are compared by size, and by checksum if the storage keeps one.

    Args:
        files: The files.
        output: The dataset's folder.
        read: Whether a file without a checksum is read to compute it.

    Returns:
        The URI of the first file that is gone or differs; None if all are in place.
    """
    storage = storage_for(output)
    uris = [join_uri(output, file.path) for file in files]
    for file, uri, stored in zip(files, uris, storage.map_many(storage.stat, uris), strict=True):
        if stored is None or stored.size_bytes != file.size_bytes:
            return uri
        crc32c = stored.crc32c
        if read and not crc32c:
            crc32c = f"{google_crc32c.value(storage.read(uri)):08x}"
        if crc32c not in ("", file.crc32c):
            return uri
    return None
