"""`shardbeam.open(cache=...)`: copies of shards, whom they belong to, and what they may take."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

import shardbeam
from shardbeam.readers.open.items import Item
from shardbeam.readers.open.sequence import ExampleSequence
from shardbeam.transforms.core.errors import DamagedError, InputError
from tests.support.builds import Build, build_shapes

SHARDS = 7


@pytest.fixture(scope="module")
def coco(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    output = tmp_path_factory.mktemp("coco") / "out"
    return build_shapes(shapes, "--set", f"output.num_shards={SHARDS}", output=output)


@pytest.fixture
def copied(coco: Build, tmp_path: Path) -> Path:
    """A dataset that a test may damage."""
    return Path(shutil.copytree(coco.output, tmp_path / "copied"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def user_folder(cache: Path) -> Path:
    return cache / f"shardbeam-{os.geteuid()}"


def copies(cache: Path) -> list[Path]:
    """The copies in a cache, without its lock."""
    return sorted(path for path in cache.rglob("*") if path.is_file() and path.name != ".lock")


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tfrecord-*"))


def keys_of(dataset: ExampleSequence[Item]) -> list[bytes]:
    return [bytes(item["image/filename"]) for item in dataset]  # type: ignore[arg-type]


def sizes_of(folder: Path) -> list[int]:
    return [path.stat().st_size for path in shards(folder)]


def first_of_each(folder: Path) -> list[int]:
    """The number of the first Example of each shard."""
    (split,) = json.loads((folder / "dataset_info.json").read_bytes())["splits"]
    return np.cumsum([0, *map(int, split["shardLengths"])])[:-1].tolist()


# Copies


def test_copies_of_shards(coco: Build, cache: Path) -> None:
    dataset = shardbeam.open(coco.output, cache=cache)
    assert copies(cache) == []
    _ = dataset[0]
    assert len(copies(cache)) == 1
    assert keys_of(dataset) == keys_of(shardbeam.open(coco.output))
    data = sorted(path.read_bytes() for path in copies(cache))
    assert data == sorted(path.read_bytes() for path in shards(coco.output))


def test_copies_outlive_the_dataset_and_are_not_mixed_up(copied: Path, cache: Path) -> None:
    expected = keys_of(shardbeam.open(copied, cache=cache))
    dataset = shardbeam.open(copied, cache=cache)
    for path in shards(copied):
        path.write_bytes(bytes(path.stat().st_size))
    assert keys_of(dataset) == expected
    # Opened again, the shards have another version, so that they are copied, and are wrong.
    with pytest.raises(InputError, match="checksum"):
        _ = shardbeam.open(copied, cache=cache)[0]
    assert not list(cache.rglob("*.part"))


def set_checksum(dataset: Path, checksum: str) -> None:
    """Changes what the manifest says about the first shard."""
    manifest = json.loads((dataset / "manifest.json").read_bytes())
    (split,) = manifest["splits"].values()
    split["shards"][0]["crc32c"] = checksum
    (dataset / "manifest.json").write_text(json.dumps(manifest))


def test_a_copy_is_compared_with_the_manifest(copied: Path, cache: Path) -> None:
    path = shards(copied)[0]
    data = bytearray(path.read_bytes())
    data[data.index(b"image/filename") + 22] ^= 1
    path.write_bytes(data)
    dataset = shardbeam.open(copied, cache=cache)
    with pytest.raises(DamagedError, match=rf"{path.name}: its copy has the checksum \w+, not \w+"):
        _ = dataset[0]
    assert copies(cache) == []


def test_a_copy_of_a_single_shard_is_compared_with_the_manifest(copied: Path, cache: Path) -> None:
    set_checksum(copied, "00000000")
    path = shards(copied)[0]
    with pytest.raises(
        DamagedError, match=rf"{path.name}: its copy has the checksum \w+, not 0000"
    ):
        _ = shardbeam.open(path, cache=cache)[0]


def test_a_shard_of_the_same_length_and_time_is_copied_again(copied: Path, cache: Path) -> None:
    """`cp -p` and `rsync -t` restore both: the manifest says that it is another shard."""
    key = keys_of(shardbeam.open(copied, cache=cache))[0]
    path = shards(copied)[0]
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(key, key[::-1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    set_checksum(copied, f"{google_crc32c.value(path.read_bytes()):08x}")
    assert shardbeam.open(copied, cache=cache)[0]["image/filename"] == key[::-1]


def test_no_room_for_copies(coco: Build, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(coco.output)
    size = sum(sizes_of(coco.output))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=size - 1))
    with pytest.raises(InputError, match=rf"no room for {SHARDS} shards of {size:,} bytes.* set "):
        shardbeam.open(coco.output, cache=cache)
    # What the copies may take is not there.
    with pytest.raises(InputError, match=rf"no room for {SHARDS} shards of {size:,} bytes.* lower"):
        shardbeam.open(coco.output, cache=cache, cache_bytes=2 * size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=size - 2))
    with pytest.raises(InputError, match=rf"{size - 1:,} more bytes of copies .cache_b"):
        shardbeam.open(coco.output, cache=cache, cache_bytes=size - 1)
    assert len(shardbeam.open(coco.output, cache=cache, cache_bytes=size - 2)) == 40
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=size))
    dataset = shardbeam.open(coco.output, cache=cache)
    _ = dataset[0]

    def write(self: object, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("google_crc32c.extend", write)
    with pytest.raises(InputError, match="has no room for"):
        _ = dataset[-1]
    assert len(copies(cache)) == 1


@pytest.mark.parametrize("cache_bytes", [None, 10**9])
def test_a_killed_copy_is_made_again(cache_bytes: int | None, coco: Build, cache: Path) -> None:
    _ = shardbeam.open(coco.output, cache=cache, cache_bytes=cache_bytes)[0]
    (copy,) = copies(cache)
    whole = copy.read_bytes()
    copy.rename(f"{copy}.part")
    with open(f"{copy}.part", "r+b") as file:
        file.truncate(1_000)
    _ = shardbeam.open(coco.output, cache=cache, cache_bytes=cache_bytes)[0]
    assert copy.read_bytes() == whole
    assert copies(cache) == [copy]


# The folder of the user


def test_only_the_user_can_enter(coco: Build, cache: Path) -> None:
    cache.mkdir(0o777)
    cache.chmod(0o1777)
    before = os.umask(0)
    try:
        _ = shardbeam.open(coco.output, cache=cache, cache_bytes=10**9)[0]
    finally:
        os.umask(before)
    assert [path.name for path in cache.iterdir()] == [f"shardbeam-{os.geteuid()}"]
    assert stat.S_IMODE(user_folder(cache).stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in user_folder(cache).iterdir()}
    assert modes == {0o600}


def test_links_that_another_user_planted(coco: Build, cache: Path, tmp_path: Path) -> None:
    """The name of a copy can be guessed: a link there led to a file that was overwritten."""
    _ = shardbeam.open(coco.output, cache=cache)[0]
    (copy,) = copies(cache)
    copy.unlink()
    mine = tmp_path / "mine"
    mine.write_bytes(b"precious")
    (cache / f"{copy.name}.part").symlink_to(mine)
    planted = tmp_path / "planted"
    planted.write_bytes(bytes(sizes_of(coco.output)[0]))
    (cache / copy.name).symlink_to(planted)
    # A pickle, because this process has the copy open.
    program = "import sys, pickle; print(len(pickle.load(sys.stdin.buffer)[0]))"
    pickled = pickle.dumps(shardbeam.open(coco.output, cache=cache))
    subprocess.run([sys.executable, "-c", program], input=pickled, check=True)
    assert mine.read_bytes() == b"precious"


@pytest.mark.parametrize("suffix", ["", ".part"])
def test_links_in_the_folder_are_not_followed(
    suffix: str, coco: Build, cache: Path, tmp_path: Path
) -> None:
    _ = shardbeam.open(coco.output, cache=cache)[0]
    (copy,) = copies(cache)
    copy.unlink()
    mine = tmp_path / "mine"
    mine.write_bytes(b"precious")
    copy.with_name(f"{copy.name}{suffix}").symlink_to(mine)
    with pytest.raises(InputError, match="is not a regular file; remove it"):
        _ = shardbeam.open(coco.output, cache=cache)[0]
    assert mine.read_bytes() == b"precious"


@pytest.mark.parametrize("suffix", ["", ".part", ".lock"])
def test_a_pipe_in_the_folder_is_not_waited_for(suffix: str, coco: Build, cache: Path) -> None:
    program = "import shardbeam, sys; shardbeam.open(*sys.argv[1:2], cache=sys.argv[2], "
    program += "cache_bytes=10**9)[0]"
    command = [sys.executable, "-c", program, str(coco.output), str(cache)]
    subprocess.run(command, check=True)
    (copy,) = copies(cache)
    copy.unlink()
    pipe = copy.with_name(suffix if suffix == ".lock" else f"{copy.name}{suffix}")
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert f"{pipe.name} is not a regular file; remove it" in ended.stderr


def make_link(folder: Path) -> None:
    (folder.parent / "other").mkdir(0o700)
    folder.symlink_to(folder.parent / "other")


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (make_link, "is a link or a file, and must be a folder; remove it, or choose"),
        (Path.touch, "is a link or a file, and must be a folder; remove it, or choose"),
        (lambda path: (path.mkdir(), path.chmod(0o777)), "has the mode 0777 instead of 0700"),
        (lambda path: (path.mkdir(), path.chmod(0o750)), "has the mode 0750 instead of 0700"),
    ],
    ids=["link", "file", "writable", "readable"],
)
@pytest.mark.parametrize("opened", [False, True])
def test_a_folder_that_others_may_have_made(
    make: Callable[[Path], object], problem: str, opened: bool, coco: Build, cache: Path
) -> None:
    dataset = None
    if opened:
        # Its copies were deleted, and the folder was replaced.
        dataset = shardbeam.open(coco.output, cache=cache)
        user_folder(cache).rmdir()
    cache.mkdir(exist_ok=True)
    make(user_folder(cache))
    with pytest.raises(InputError, match=problem):
        _ = (dataset or shardbeam.open(coco.output, cache=cache))[0]
    assert copies(cache) in ([], [user_folder(cache)])


def test_a_folder_of_another_user(
    coco: Build, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(InputError, match=rf"{owner + 1}: belongs to another user \({owner}\)"):
        shardbeam.open(coco.output, cache=cache)


def test_a_cache_that_is_a_file(coco: Build, cache: Path) -> None:
    cache.touch()
    with pytest.raises(InputError, match=f"{cache}: cannot be made: File exists"):
        shardbeam.open(coco.output, cache=cache)


# What copies may take


def test_the_copies_opened_longest_ago_go(coco: Build, cache: Path) -> None:
    sizes = sizes_of(coco.output)
    bound = sum(sizes[:3])
    firsts = first_of_each(coco.output)
    dataset = shardbeam.open(coco.output, cache=cache, cache_bytes=bound)
    mine = user_folder(cache) / "notes.txt"
    mine.write_bytes(bytes(bound))
    os.utime(mine, (0, 0))
    age: dict[Path, int] = {}
    for number, first in enumerate(firsts[:3]):
        _ = dataset[first]
        (new,) = set(copies(cache)).difference(age, [mine])
        age[new] = number
    # In another order than they were made, and the second is opened again, by another process.
    for path, number in age.items():
        os.utime(path, (1_000 + number, 1_000 + number))
    second = shardbeam.open(coco.output, cache=cache)[firsts[1] : firsts[1] + 1]
    program = "import sys, pickle; pickle.load(sys.stdin.buffer)[0]"
    subprocess.run([sys.executable, "-c", program], input=pickle.dumps(second), check=True)
    _ = dataset[firsts[3]]
    left = {age[path] for path in copies(cache) if path in age}
    assert left in ({1}, {1, 2})
    assert sum(path.stat().st_size for path in copies(cache) if path != mine) <= bound
    assert mine.exists()


def test_a_smaller_bound_holds_at_once(coco: Build, cache: Path) -> None:
    expected = keys_of(shardbeam.open(coco.output, cache=cache))
    assert len(copies(cache)) == SHARDS
    bound = max(sizes_of(coco.output))
    dataset = shardbeam.open(coco.output, cache=cache, cache_bytes=bound)
    assert sum(path.stat().st_size for path in copies(cache)) <= bound
    assert keys_of(dataset) == expected
    assert sum(path.stat().st_size for path in copies(cache)) <= bound


def test_a_shard_that_is_larger(coco: Build, cache: Path) -> None:
    size = max(sizes_of(coco.output))
    with pytest.raises(
        InputError, match=rf"has {size:,} bytes, more than .*cache_bytes={size - 1:,}\)"
    ):
        shardbeam.open(coco.output, cache=cache, cache_bytes=size - 1)
    assert keys_of(shardbeam.open(coco.output, cache=cache, cache_bytes=size))


def deleted_files() -> list[str]:
    """Files that this process has open and that have no name any more."""
    links = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue
    return [link for link in links if link.endswith(" (deleted)") and "tfrecord" in link]


def test_deleted_copies_are_closed(coco: Build, cache: Path) -> None:
    """They would take room on the disk as long as they are open."""
    bound = max(sizes_of(coco.output))
    dataset = shardbeam.open(coco.output, cache=cache, cache_bytes=bound)
    before = len(deleted_files())
    assert len(keys_of(dataset)) == 40
    assert len(deleted_files()) <= before


def test_leftovers_count_and_go(coco: Build, cache: Path) -> None:
    bound = max(sizes_of(coco.output))
    dataset = shardbeam.open(coco.output, cache=cache, cache_bytes=bound)
    left = user_folder(cache) / "0123456789abcdef-killed.tfrecord-00000-of-00001.part"
    left.write_bytes(bytes(bound))
    _ = dataset[0]
    assert not left.exists()


HOLD = """
import sys, shardbeam
dataset = shardbeam.open(sys.argv[1], cache=sys.argv[2])
print(dataset[0]["image/filename"].decode(), flush=True)
sys.stdin.readline()
print(dataset[1]["image/filename"].decode(), flush=True)
sys.stdin.readline()
print(dataset[int(sys.argv[3])]["image/filename"].decode(), flush=True)
"""


def test_a_copy_that_another_process_reads_may_go(copied: Path, cache: Path) -> None:
    keys = keys_of(shardbeam.open(copied))
    firsts = first_of_each(copied)
    program = [sys.executable, "-c", HOLD, str(copied), str(cache), str(firsts[1])]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == keys[0].decode()
        (open_there,) = copies(cache)
        bound = max(sizes_of(copied))
        dataset = shardbeam.open(copied, cache=cache, cache_bytes=bound)
        _ = dataset[firsts[1]], dataset[firsts[2]]
        assert not open_there.exists()
        # It cannot be copied again.
        shards(copied)[0].rename(copied / "away")
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline().strip() == keys[1].decode()
        # This one was deleted before the process opened it: it makes a new copy.
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline().strip() == keys[firsts[1]].decode()
        assert reader.wait(60) == 0


FILL = """
import random, sys, threading, shardbeam
path, cache, bound, seed = sys.argv[1:]
dataset = shardbeam.open(path, cache=cache, cache_bytes=int(bound) or None)
keys = [item["image/filename"].decode() for item in shardbeam.open(path)]
wrong = []

def read(seed):
    for number in random.Random(seed).choices(range(len(keys)), k=60):
        try:
            if dataset[number]["image/filename"].decode() != keys[number]:
                wrong.append(number)
        except BaseException as error:
            wrong.append(repr(error))

threads = [threading.Thread(target=read, args=(f"{seed} {n}",)) for n in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(wrong)
"""


def taken_bytes(cache: Path) -> int:
    """What the copies take at one moment, when nobody makes room."""
    try:
        lock = (user_folder(cache) / ".lock").open()
    except FileNotFoundError:
        return 0
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sizes = []
        for name in os.listdir(user_folder(cache)):
            with contextlib.suppress(FileNotFoundError):
                sizes.append((user_folder(cache) / name).stat().st_size)
        return sum(sizes)


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(0, id="all"),
        pytest.param(1, id="one"),
        pytest.param(3, id="three", marks=pytest.mark.slow),
    ],
)
def test_processes_and_threads_share_a_cache(bound: int, coco: Build, cache: Path) -> None:
    """With room for all shards, for the largest and for three; never do files take more."""
    size = sum(sorted(sizes_of(coco.output))[-bound:]) if bound else 0
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", FILL, coco.output, cache, str(size), str(seed)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(3)
    ]
    most = 0
    while any(process.poll() is None for process in processes):
        most = max(most, taken_bytes(cache))
        time.sleep(0.002)
    # What is left; on a busy machine all may have been done between two looks.
    most = max(most, taken_bytes(cache))
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert printed == ["[]\n"] * 3
    assert not list(cache.rglob("*.part"))
    if bound:
        assert 0 < most <= size
    else:
        data = sorted(path.read_bytes() for path in copies(cache))
        assert data == sorted(path.read_bytes() for path in shards(coco.output))


def test_a_pickle_keeps_the_bound(coco: Build, cache: Path) -> None:
    bound = max(sizes_of(coco.output))
    dataset = shardbeam.open(coco.output, cache=cache, cache_bytes=bound)
    again = pickle.loads(pickle.dumps(dataset))
    assert keys_of(again) == keys_of(shardbeam.open(coco.output))
    assert sum(path.stat().st_size for path in copies(cache)) <= bound
