"""A bucket in memory whose requests a scheduler orders, and a clock that only it moves.

Each run is a thread that stops at each of its requests; one runs at a time. A request is one
change: the storage itself compares a generation and changes an object in one step.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import itertools
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import BinaryIO, ClassVar, NamedTuple

import google_crc32c

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.dataset.file_names import DATASET_INFO, MANIFEST
from shardbeam.transforms.dataset.manifest import Manifest
from shardbeam.transforms.staging.object_lease import LEASE_S
from shardbeam.transforms.storage.base import ChangedError, StoredFile
from shardbeam.transforms.storage.gcs.storage import GcsStorage

OUTPUT = "gs://bucket/out"
_STARTED = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
KILLED = "killed"
# For one whole schedule, which takes some milliseconds.
_TIMEOUT_S = 30.0


class _Object(NamedTuple):
    data: bytes
    generation: int
    crc32c: str


class Run:
    """A run, as the scheduler sees it.

    Attributes:
        name: Its name.
        requests: How many it has made.
        is_killed: Whether none of its requests does anything any more.
        end: How it ended; empty while it has not.
        error: The traceback of an error that none should end by.
        clean_up: What to call when the schedule is over.
    """

    def __init__(self, name: str, *, world: World, work: Callable[[Run], str]) -> None:
        self.name = name
        self.requests = 0
        self.is_killed = False
        self.end = ""
        self.error = ""
        self.clean_up: list[Callable[[], None]] = []
        self._world = world
        self._work = work
        self._may_go = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def go_on(self) -> None:
        """Lets it run."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._may_go.release()

    def wait(self) -> None:
        """Stops the calling thread, which is this run's, until it may go on."""
        if not self._may_go.acquire(timeout=_TIMEOUT_S):
            raise SystemExit

    def _run(self) -> None:
        try:
            end = self._work(self)
        except SystemExit:
            end = KILLED
        except BaseException:  # noqa: BLE001  # The search reports it.
            end, self.error = "error", traceback.format_exc()
        self.end = KILLED if self.is_killed else end
        self._world.hand_on()


# Chooses, before a request of the run that runs now, what happens to it and who runs then: "" and
# the run itself, or "pause", "expire" (its lease ends meanwhile) or "kill", and another run.
Choose = Callable[["World", Run], tuple[str, Run]]


class World:
    """The bucket, the clock and the runs.

    Args:
        objects: What is in the bucket.
        without: Names of conditions that are not kept, to show that the search finds out:
            "lease check", "swap", "rename", "delete", "fence", "renew".

    Attributes:
        storage: The bucket, as each run sees it.
        spoiled: How the invariant was hurt first; empty where it never was.
    """

    def __init__(self, objects: Mapping[str, _Object] | None = None, *, without: str = "") -> None:
        self.objects = dict(objects or {})
        self.storage = MemoryGcs(self)
        self.runs: list[Run] = []
        self.without = without
        self.spoiled = ""
        self.now = _STARTED
        self._choose: Choose | None = None
        self._current: Run | None = None
        self._following: Run | None = None
        self._is_over = threading.Event()
        self._generations = itertools.count(
            1 + max((each.generation for each in self.objects.values()), default=0)
        )

    def clock(self) -> datetime.datetime:
        """Returns the time."""
        return self.now

    def let_leases_expire(self) -> None:
        self.now += datetime.timedelta(seconds=LEASE_S + 1)

    def play(self, runs: list[Run], *, choose: Choose) -> None:
        """Plays one schedule to its end.

        Raises:
            AssertionError: It does not come to its end.
        """
        self.runs = runs
        self._choose = choose
        self._is_over.clear()
        self._current = runs[0]
        runs[0].go_on()
        if not self._is_over.wait(_TIMEOUT_S):
            raise AssertionError("the schedule hangs: " + ", ".join(map(_describe, runs)))
        for run in runs:
            for clean_up in run.clean_up:
                clean_up()

    def hand_on(self) -> None:
        """Lets another run go on, where the current one has ended; or ends the schedule."""
        following, self._following = self._following, None
        live = [run for run in self.runs if not run.end]
        if not live:
            self._is_over.set()
            return
        self._current = following or live[0]
        self._current.go_on()

    def request(self) -> None:
        """Stops the thread that makes a request until the scheduler lets the request go."""
        run = self._current
        if run is None or self._choose is None:
            return
        if run.is_killed:
            raise SystemExit
        action, following = self._choose(self, run)
        run.requests += 1
        if not action:
            return
        if action in ("expire", "kill"):
            self.let_leases_expire()
        if action == "kill":
            # The other goes on when nothing of this one does any more.
            # No thread reports a SystemExit.
            run.is_killed = True
            self._following = following
            raise SystemExit
        self._current = following
        following.go_on()
        run.wait()

    def store(self, uri: str, data: bytes) -> str:
        generation = next(self._generations)
        self.objects[uri] = _Object(data, generation, f"{google_crc32c.value(data):08x}")
        self.check()
        return str(generation)

    def check(self) -> None:
        """Checks the invariant, which holds at every instant."""
        info = self.objects.get(f"{OUTPUT}/{DATASET_INFO}")
        if info is None or self.spoiled:
            return
        manifest = self.objects.get(f"{OUTPUT}/{MANIFEST}")
        if manifest is None:
            self.spoiled = "there is no manifest"
            return
        files = _files(manifest.data)
        for path, size_bytes, crc32c in files:
            found = self.objects.get(f"{OUTPUT}/{path}")
            if found is None or (len(found.data), found.crc32c) != (size_bytes, crc32c):
                self.spoiled = f"{path} is {'gone' if found is None else 'another'}"
                return


_known: dict[bytes, list[tuple[str, int, str]]] = {}


def _files(manifest: bytes) -> list[tuple[str, int, str]]:
    if manifest not in _known:
        decoded = JsonDecoder(Manifest).decode(manifest)
        _known[manifest] = [
            (file.path, file.size_bytes, file.crc32c)
            for file in (*decoded.shards(), *decoded.files)
        ]
    return _known[manifest]


def _describe(run: Run) -> str:
    return f"{run.name} {run.end or 'at its request'} {run.requests}"


class MemoryGcs(GcsStorage):
    """Google Cloud Storage, but for its requests: each is answered by the world."""

    # Many requests at a time would be threads that the scheduler does not know.
    is_remote: ClassVar[bool] = False

    def __init__(self, world: World) -> None:
        self._world = world

    def list(self, root: str) -> Iterator[StoredFile]:
        self._world.request()
        prefix = f"{root.rstrip('/')}/"
        found = [
            _stored(uri, each, path=uri.removeprefix(prefix))
            for uri, each in self._world.objects.items()
            if uri.startswith(prefix)
        ]
        return iter(found)

    def stat(self, uri: str) -> StoredFile | None:
        self._world.request()
        found = self._world.objects.get(uri)
        return None if found is None else _stored(uri, found, path=uri.rpartition("/")[2])

    def read(
        self,
        uri: str,
        *,
        offset: int = 0,
        size_bytes: int | None = None,
        version: str | None = None,
    ) -> bytes:
        self._world.request()
        found = self._world.objects.get(uri)
        if version is not None and (found is None or str(found.generation) != version):
            raise ChangedError(uri)
        if found is None:
            raise FileNotFoundError(uri)
        return found.data[offset : None if size_bytes is None else offset + size_bytes]

    def read_small(self, uri: str, *, max_bytes: int, version: str | None = None) -> bytes:
        del max_bytes
        return self.read(uri, version=version)

    @contextlib.contextmanager
    def create(self, uri: str) -> Iterator[BinaryIO]:
        file = io.BytesIO()
        yield file
        self.insert(uri, file.getvalue(), generation=0)

    def insert(self, uri: str, data: bytes, *, generation: int | None) -> str:
        self._world.request()
        if self._is_another(uri, generation, unless="swap"):
            raise FileExistsError(uri)
        return self._world.store(uri, data)

    def rewrite(
        self,
        source: str,
        destination: str,
        *,
        version: str | None = None,
        generation: int | None = None,
    ) -> StoredFile:
        self._world.request()
        found = self._world.objects.get(source)
        if found is None or version not in (None, str(found.generation)):
            raise FileNotFoundError(source)
        if self._is_another(destination, generation, unless="rename"):
            raise ChangedError(destination)
        self._world.store(destination, found.data)
        return _stored(destination, self._world.objects[destination], path="")

    def renew(self, file: StoredFile) -> None:
        if self._world.without != "renew":
            super().renew(file)

    def delete(self, uri: str, *, version: str | None = None) -> bool:
        self._world.request()
        if uri not in self._world.objects:
            return True
        if self._is_another(uri, None if version is None else int(version), unless="delete"):
            return False
        del self._world.objects[uri]
        self._world.check()
        return True

    def _is_another(self, uri: str, generation: int | None, *, unless: str) -> bool:
        if generation is None or self._world.without == unless:
            return False
        found = self._world.objects.get(uri)
        return (0 if found is None else found.generation) != generation


def _stored(uri: str, found: _Object, *, path: str) -> StoredFile:
    return StoredFile(
        path=path,
        uri=uri,
        size_bytes=len(found.data),
        version=str(found.generation),
        crc32c=found.crc32c,
    )
