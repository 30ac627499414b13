"""No command hangs on a special file, and its error names the file in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import build
from tests.support.dataset import run
from tests.support.image_makers import photograph, save

# A command that hangs fails.
pytestmark = pytest.mark.timeout(120)

# {kind: its name in errors}
SPECIAL = {
    "pipe": "a named pipe",
    "socket": "a socket",
    "device": "a device",
    "folder": "a folder",
}
# The length of a sparse file, which takes no room on the disk.
_SPARSE_BYTES = 30 << 30
KINDS = (*SPECIAL, "sparse")
JPEG = save(photograph(), "JPEG")


@contextlib.contextmanager
def placed(path: Path, kind: str) -> Iterator[None]:
    """Puts something into a file's place: one of `SPECIAL`, or a `sparse` file of 30 GB."""
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, stat.S_IFSOCK | 0o600)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, _SPARSE_BYTES)
    try:
        yield
    finally:
        if kind == "pipe":
            # Who hangs in opening it is let go: the test has failed by then.
            os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def image_words(images: Path, output: Path, *more: str) -> list[str]:
    words = ["image-folder", "--images", str(images), "--output", str(output)]
    return [*words, "--set", "rejects.max_ratio=1", *more]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures, one of them twice, and a reject."""
    root = tmp_path_factory.mktemp("special") / "images"
    for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.jpg", "dog/bad.jpg"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(save(photograph(seed=2), "JPEG") if "2" in name else JPEG)
    (root / "dog" / "bad.jpg").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def whole(images: Path) -> Path:
    output = images.parent / "dataset"
    assert run("build", *image_words(images, output)).exit_code == 0
    return output


SHARD = "image_folder-train.tfrecord-00000-of-00001"
# {file of a dataset: commands that open it}
OPENED = {
    "manifest.json": "verify stats report key diff overwrite",
    "dataset_info.json": "verify stats report show key diff",
    "statistics.json": "verify stats report diff",
    "features.json": "verify",
    "labels.txt": "verify",
    "duplicates.parquet": "verify report exclude group",
    "rejects/train.jsonl": "verify report rejects",
    f"index/{SHARD}.parquet": "verify report key diff",
    SHARD: "verify report show key",
}
# The message about something that is not a regular file, whether it is opened or listed.
SAID = (
    "only regular files are read",
    "is not a regular file",
    "is missing",
    "dataset_info.json is missing",
)
SAID_OF_SPARSE = ("has more than", "bytes; the manifest says", "not a TFRecord file")


def words_of(command: str, dataset: Path, *, whole: Path, images: Path) -> list[str]:
    new = dataset.parent / "new"
    table = {
        "verify": ["verify", str(dataset)],
        "stats": ["stats", str(dataset)],
        "report": ["report", str(dataset), "--output", str(dataset.parent / "report.html")],
        "show": ["show", str(dataset)],
        "key": ["show", str(dataset), "--key", "cat/2.jpg"],
        "rejects": ["show", str(dataset), "--rejects"],
        "diff": ["diff", str(dataset), str(whole)],
        "overwrite": ["build", *image_words(images, dataset, "--overwrite")],
        "exclude": [
            "plan",
            *image_words(images, new, "--exclude", str(dataset / "duplicates.parquet")),
        ],
        "group": [
            "plan",
            *image_words(images, new, "--group-by", str(dataset / "duplicates.parquet")),
            *("--fractions", "a=0.5,b=0.5"),
        ],
    }
    return table[command]


def in_place_of(*files: tuple[str, ...]) -> list[Any]:
    """Returns each file's words with each kind; all but a pipe and one other kind are slow."""
    return [
        pytest.param(
            *words,
            kind,
            marks=() if kind in ("pipe", KINDS[1:][number % 4]) else pytest.mark.slow,
        )
        for number, words in enumerate(files)
        for kind in KINDS
    ]


@pytest.mark.parametrize(
    ("file", "command", "kind"),
    in_place_of(
        *((file, command) for file, commands in OPENED.items() for command in commands.split())
    ),
)
def test_a_datasets_own_files(
    file: str, command: str, kind: str, whole: Path, images: Path, tmp_path: Path
) -> None:
    dataset = Path(shutil.copytree(whole, tmp_path / "dataset"))
    with placed(dataset / file, kind):
        result = run(*words_of(command, dataset, whole=whole, images=images))
    said = result.stdout + result.stderr if command == "verify" else result.stderr or result.stdout
    if (command, kind) == ("rejects", "folder"):
        assert said == "no rejects\n"
        return
    assert result.exit_code in (1, 2, 5), said
    assert "Traceback" not in said
    assert any(words in said for words in (SAID_OF_SPARSE if kind == "sparse" else SAID)), said
    if kind != "folder":
        assert file in said
    if command != "verify":
        assert said.count("shardbeam: error: ") == 1
        assert len(said.splitlines()) == 1


# {what names the file: words of `shardbeam plan`}
NAMED: dict[str, tuple[str, ...]] = {
    "config": ("{file}",),
    "exclude": ("image-folder", "--images", "{images}", "--exclude", "{file}"),
    "classes": ("image-folder", "--images", "{images}", "--classes", "{file}"),
    "coco": ("coco", "--images", "{images}", "--annotations", "{file}"),
    "panoptic": (
        *("coco", "--images", "{images}", "--panoptic", "{file}"),
        *("--panoptic-masks", "{images}"),
    ),
    "cvat": ("cvat", "--images", "{images}", "--annotations", "{file}.xml"),
    "via": ("via", "--images", "{images}", "--annotations", "{file}.json"),
    "keras-txt": ("keras-txt", "--images", "{images}", "--annotations", "{file}.txt"),
    "csv": ("csv", "--manifest", "{file}.csv", "--image-root", "{images}"),
    "jsonl": ("jsonl", "--manifest", "{file}.jsonl", "--image-root", "{images}"),
    "data.yaml": ("yolo", "--root", "{images}", "--data", "{file}.yaml"),
    "archive": ("image-folder", "--images", "{file}.zip"),
    "tar": ("image-folder", "--images", "{file}.tar"),
}


@pytest.mark.parametrize(("named", "kind"), in_place_of(*((named,) for named in NAMED)))
def test_files_that_a_config_names(named: str, kind: str, images: Path, tmp_path: Path) -> None:
    file = tmp_path / "named"
    words = [word.format(file=file, images=images) for word in NAMED[named]]
    path = Path(next(word for word in words if word.startswith(str(file))))
    output = () if named == "config" else ("--output", str(tmp_path / "out"))
    with placed(path, kind):
        result = run("plan", *words, *output)
    said = result.stderr
    assert result.exit_code in (1, 2), said
    assert "Traceback" not in said
    assert said.count("shardbeam: error: ") == 1
    assert str(path) in said
    if kind != "sparse":
        assert SPECIAL[kind].split()[-1] in said or (named, kind) in FOLDERS_ARE_ROOTS, said


# An archive's name is one that a folder may have.
FOLDERS_ARE_ROOTS = (("archive", "folder"), ("tar", "folder"))

# {a listed file: its name, that of its image, and the format}
LISTED = {
    "image": ("cat/{}.jpg", "cat/{}.jpg", "image-folder --images"),
    "xml": ("Annotations/{}.xml", "JPEGImages/{}.jpg", "voc --root"),
    "json": ("{}.json", "{}.jpg", "labelme --root"),
}


@pytest.mark.parametrize("listed", LISTED)
def test_a_listed_file_costs_itself(listed: str, tmp_path: Path) -> None:
    name, image, words = LISTED[listed]
    root = tmp_path / "root"
    # A folder's files are listed.
    kinds = [kind for kind in KINDS if kind != "folder"]
    write_files(root, {image.format(each): JPEG for each in ("good", *kinds)})
    write_files(root, {"good.json": '{"imagePath": "good.jpg", "shapes": []}'})
    with contextlib.ExitStack() as stack:
        for kind in kinds:
            (root / name.format(kind)).parent.mkdir(exist_ok=True)
            stack.enter_context(placed(root / name.format(kind), kind))
        built = build(
            *words.split(),
            root,
            *("--set", "rejects.max_ratio=1", "--set", "objects=none"),
            *("--set", "unannotated=keep"),
            output=tmp_path / "out",
        )
    reasons = dict.fromkeys(
        kinds, "image_unreadable" if listed == "image" else "annotation_malformed"
    )
    if listed == "image":
        reasons = dict.fromkeys(kinds, "image_unreadable") | {"sparse": "file_too_large"}
    # The images beside LabelMe's files are listed for themselves.
    rejected = name if listed == "json" else image
    assert dict(built.reasons()) == {
        (rejected.format(kind), reason): 1 for kind, reason in reasons.items()
    }
    assert image.format("good") in built.by_key()
