"""Sets of numbered files of which some are missing: in a folder an error, else a line."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import shardbeam
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.huggingface.files import find_files
from shardbeam.transforms.formats.numbered_files import check_complete, describe_incomplete
from tests.support.archive_files import tar_bytes, write_files, write_zip
from tests.support.builds import build
from tests.support.dataset import run
from tests.support.hub_files import IMAGE, classes, hub_image, hub_parquet
from tests.support.image_makers import plain_jpeg
from tests.support.tfrecords import make_example, tfrecord

JPEG = plain_jpeg((32, 24))
FEATURES = {"image": IMAGE, "label": classes("cat", "dog")}
ROWS = [{"image": hub_image(JPEG), "label": row % 2} for row in range(3)]
PARQUET = hub_parquet(ROWS, FEATURES)
RECORD = make_example({"image/encoded": JPEG, "image/class/label": 1})


@pytest.mark.parametrize(
    ("paths", "missing", "line"),
    [
        (["train-00000-of-00002.parquet"], "train-00001-of-00002.parquet", "1 of 2 files of train"),
        (["a/x-1-of-3.tar", "a/x-3-of-3.tar"], "a/x-2-of-3.tar", "2 of 3 files of x"),
        (["x-00001-of-00002", "x-00002-of-00003"], "x-00000-of-00002", "1 of 2 files of x"),
        (["c.tfrecord-00001-of-00002"], "c.tfrecord-00000-of-00002", "1 of 2 files of c"),
        (["t-0-of-2-0f5e3a77.arrow"], "t-1-of-2-*.arrow", "1 of 2 files of t"),
        (["t-0-of-2-jpg.tar", "t-1-of-2-txt.tar"], "t-1-of-2-jpg.tar", "1 of 2 files of t"),
        (["t-0-of-2.tar", "t-1-of-2.tar.gz"], "t-1-of-2.tar", "1 of 2 files of t"),
        (["t-000000-of-999999"], "t-000001-of-999999", "1 of 999,999 files of t"),
        (["a\nb-0-of-2"], r"a\nb-1-of-2", r"1 of 2 files of a\nb"),
    ],
)
def test_the_first_missing_file_is_named(paths: Sequence[str], missing: str, line: str) -> None:
    with pytest.raises(InputError) as error:
        check_complete(paths, folder="data", flag="--data")
    assert error.value.problem.startswith(f"{missing} is missing: {line}; copy it here, or,")
    said = next(describe_incomplete(f"gs://a/{path}" for path in paths))
    assert said == f"{line}: {missing.rpartition('/')[2]} is not among them"


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["train.parquet", "train-00000.parquet", "x-0-of-0", "x-of-2", "x-1-of-"],
        ["x-0-of-1", "x-1-of-2", "x-2-of-2", "y-00001-of-00002.tar", "y-00000-of-00002.tar"],
        ["t-0-of-2-0f5e3a77.arrow", "t-1-of-2-11223344.arrow"],
    ],
)
def test_complete_sets_and_other_names(paths: Sequence[str]) -> None:
    check_complete(paths, folder="data", flag="--data")
    assert not [*describe_incomplete(paths)]


def test_the_pattern_in_the_error_takes_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "it's"
    write_files(folder, {"data/train-00000-of-00002.parquet": PARQUET})
    with pytest.raises(InputError) as error:
        find_files([str(folder)], config_name=None)
    pattern = str(folder / "data/train-*-of-00002.parquet")
    assert error.value.problem.endswith(f"--data {shlex.quote(pattern)}")
    assert [file.split for file in find_files([pattern], config_name=None).files] == ["train"]


def saved(folder: Path, *, batches: int | None = None, names: Sequence[str] = ()) -> Path:
    """Writes a split as `save_to_disk` does; `batches` are those before a cut."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema([("image", image), ("label", pa.int64())])
    described = json.dumps({"info": {"features": FEATURES}})
    table = pa.Table.from_pylist(ROWS, schema=schema.with_metadata({"huggingface": described}))
    stream = io.BytesIO()
    ends = []
    with pa.ipc.new_stream(stream, table.schema) as writer:
        for batch in table.to_batches(max_chunksize=1):
            writer.write_batch(batch)
            ends.append(stream.tell())
    data = stream.getvalue()
    name = "data-00000-of-00001.arrow"
    files = [{"filename": name} for name in names or [name]]
    # What is left of other rows: `select` and `train_test_split` do not change it.
    info = {"features": FEATURES, "splits": {"train": {"num_examples": 999}}}
    write_files(
        folder,
        {
            name: data if batches is None else data[: ends[batches - 1]],
            "state.json": json.dumps({"_data_files": files}),
            "dataset_info.json": json.dumps(info),
        },
    )
    return folder / name


# {format: (its key, a file, its name)}
SETS: Mapping[str, tuple[str, bytes, str]] = {
    "huggingface": ("data", PARQUET, "train-{}.parquet"),
    "tfrecord": ("tfrecords", tfrecord(RECORD), "train.tfrecord-{}"),
    "webdataset": ("tars", tar_bytes([("a.jpg", JPEG), ("a.cls", b"1")]), "train-{}.tar"),
}


@pytest.mark.parametrize("name", SETS)
def test_a_folder_must_be_complete_and_a_pattern_gets_a_line(tmp_path: Path, name: str) -> None:
    key, data, names = SETS[name]
    numbers = ("00000-of-00003", "00002-of-00003")
    folder = write_files(tmp_path / "in", {names.format(each): data for each in numbers})
    missing = names.format("00001-of-00003")
    problem = f"{missing} is missing: 2 of 3 files of train; copy it here"
    assert problem in run("init", str(folder), exit_code=1).stderr
    assert problem in run("init", str(folder), "--format", name, exit_code=1).stderr
    output = tmp_path / "out"
    assert problem in build(name, f"--{key}", folder, output=output, exit_code=1).stderr
    config: dict[str, Any] = {"name": "x", "source": {"format": name, key: [str(folder)]}}
    (tmp_path / "x.yaml").write_text(json.dumps(config | {"output": {"path": str(output)}}))
    assert problem in run("plan", str(tmp_path / "x.yaml"), exit_code=1).stderr
    assert not output.exists()

    line = f"2 of 3 files of train: {missing} is not among them"
    pattern = folder / names.format("*")
    built = build(name, f"--{key}", pattern, output=output)
    assert line in built.summary["warnings"]
    source = {"format": name, key: [str(pattern)]}
    config["output"] = {"path": str(output)}
    assert line in shardbeam.plan(config | {"source": source}).warnings
    # Files that another split names are not left out.
    (folder / missing).write_bytes(data)
    files = [str(folder / names.format(f"0000{each}-of-00003")) for each in range(3)]
    splits = {
        "train": {"format": name, key: files[:2]},
        "validation": {"format": name, key: files[2:]},
    }
    plan = shardbeam.plan({"name": "x", "splits": splits, "output": config["output"]})
    assert not [warning for warning in plan.warnings if "of 3 files" in warning]


def test_a_readme_names_a_pattern_or_a_file(tmp_path: Path) -> None:
    readme = "---\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"
    files = {"a-00000-of-00002.parquet": PARQUET}
    write_files(tmp_path, {**files, "README.md": readme.format("'a-*'")})
    with pytest.raises(InputError, match=r"a-00001-of-00002.parquet is missing: 1 of 2"):
        find_files([str(tmp_path)], config_name=None)
    for pattern in ("a-00000-of-00002.parquet", "'a-00000-*'"):
        (tmp_path / "README.md").write_text(readme.format(pattern))
        assert len(find_files([str(tmp_path)], config_name=None).files) == 1


def test_files_in_a_zip(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", {"data/train-00000-of-00002.parquet": PARQUET})
    problem = build(
        "huggingface", "--data", path / "data", output=tmp_path / "out", exit_code=1
    ).stderr
    assert "train-00001-of-00002.parquet is missing: 1 of 2 files of train" in problem


README = """---
dataset_info:
  features:
  - {name: image, dtype: image}
  splits:
  - {name: train, num_examples: NUMBER}
---
"""


def test_rows_that_are_not_those_of_the_readme_are_a_warning(tmp_path: Path) -> None:
    files = {f"data/train-0000{each}-of-00002.parquet": PARQUET for each in range(2)}
    config: dict[str, Any] = {
        "name": "x",
        "source": {"format": "huggingface", "data": [str(tmp_path / "in")]},
        "output": {"path": str(tmp_path / "out")},
    }
    for number, said in ((16, True), (6, False)):
        readme = README.replace("NUMBER", str(number))
        write_files(tmp_path / "in", {**files, "README.md": readme})
        line = f"README.md says that train has {number} rows, and its files have 6"
        plan = shardbeam.plan(config)
        assert (line in plan.warnings) is said
        init = run("init", str(tmp_path / "in"), exit_code=0)
        assert (line in init.stdout + init.stderr) is said


def test_an_arrow_stream_that_is_cut_between_two_batches(tmp_path: Path) -> None:
    path = saved(tmp_path / "in/train", batches=2)
    problem = (
        "the mark of its end is missing, so that it may be the beginning of a longer file: copy "
        f"it again, or, to read only its 2 rows, name the file itself and not its folder: --data "
        f"{path}"
    )
    for given in (tmp_path / "in", tmp_path / "in/train", path.with_name("data-*")):
        ended = build("huggingface", "--data", given, output=tmp_path / "out", exit_code=1)
        assert problem in ended.stderr
    assert problem in run("init", str(tmp_path / "in"), exit_code=1).stderr
    built = build("huggingface", "--data", path, output=tmp_path / "out")
    assert len(built.examples("data")) == 2


def test_a_whole_split_of_save_to_disk_has_rows_of_its_own(tmp_path: Path) -> None:
    saved(tmp_path / "in/train")
    built = build("huggingface", "--data", tmp_path / "in", output=tmp_path / "out")
    assert not [line for line in built.summary["warnings"] if "999" in line]
    saved(tmp_path / "in/train", names=["data-00000-of-00001.arrow", "data-1.arrow"])
    ended = build("huggingface", "--data", tmp_path / "in", output=tmp_path / "o", exit_code=1)
    assert "state.json: names 'data-1.arrow', which is not there" in ended.stderr


@pytest.mark.parametrize("name", SETS)
def test_object_storage(tmp_path: Path, name: str) -> None:
    key, data, names = SETS[name]
    files = fsspec.filesystem("memory")
    for number in (0, 2):
        files.pipe(f"/numbered/{name}/{names.format(f'0000{number}-of-00003')}", data)
    folder, output = f"memory://numbered/{name}", tmp_path / "out"
    missing = names.format("00001-of-00003")
    ended = build(name, f"--{key}", folder, output=output, exit_code=1)
    assert f"{folder}: {missing} is missing: 2 of 3 files of train" in ended.stderr
    built = build(name, f"--{key}", f"{folder}/{names.format('*')}", output=output)
    assert f"2 of 3 files of train: {missing} is not among them" in built.summary["warnings"]


def test_convert_reads_no_empty_shards_and_says_nothing_about_them(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "in", {"train.parquet": PARQUET})
    build("huggingface", "--data", folder, "--set", "output.num_shards=8", output=tmp_path / "out")
    words = ("convert", str(tmp_path / "out"), "--container", "webdataset", "--json")
    done = run(*words, "--output", str(tmp_path / "tars"), exit_code=0)
    assert not [line for line in json.loads(done.stdout)["warnings"] if "files of" in line]
