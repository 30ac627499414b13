"""`shardbeam verify` as a command, and the build that repairs the damage it finds."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

from shardbeam.pipelines import plan as plan_module
from shardbeam.transforms.dataset.index import load_index
from shardbeam.transforms.dataset.manifest import encode_manifest
from shardbeam.transforms.examples.encode import encode as encode_module
from shardbeam.transforms.examples.encode.encode import ExampleLayout, library_versions
from shardbeam.transforms.staging.staging import Staging
from tests.support.archive_files import write_files
from tests.support.dataset import coco_words, read_dataset, read_tree, run
from tests.support.image_makers import photograph, save

SETTINGS = ("--set", "output.num_shards=3")
SHARD = "coco-train.tfrecord-00001-of-00003"


@pytest.fixture(scope="module")
def whole(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "dataset"
    assert run(*coco_words(shapes, output, *SETTINGS)).exit_code == 0
    return output


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(whole, tmp_path / "damaged"))
    flip(folder / SHARD)
    return folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("flags", [(), ("--decode",), ("--quick",)])
def test_a_whole_dataset(whole: Path, flags: tuple[str, ...]) -> None:
    result = run("verify", str(whole), *flags)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith(f"whole: {whole}: ")
    assert ("shards: 3, examples: 40" in result.stdout) == ("--quick" not in flags)


def test_a_damaged_dataset(damaged: Path) -> None:
    result = run("verify", str(damaged), exit_code=5)
    problem, last, hint = result.stdout.splitlines()
    assert problem.startswith(f"{SHARD}: byte 0: ")
    assert problem.endswith("the checksum of a record's data does not match")
    assert last.startswith(f"damaged: {damaged}: 1 problem (shards: 3, examples: 39, ")
    assert hint.endswith(f": shardbeam verify {damaged} --repair CONFIG.yaml")


def test_images_whose_damage_was_kept_are_no_damage(tmp_path: Path) -> None:
    data = save(photograph(), "JPEG")
    files = {"1.jpg": data, "2.jpg": data[:-200] + data[-100:]}
    write_files(tmp_path / "images" / "cat", files)
    output = tmp_path / "out"
    words = ("image-folder", "--images", str(tmp_path / "images"), "--damaged", "keep")
    assert run("build", *words, "--output", str(output)).exit_code == 0
    assert run("verify", str(output), "--decode").exit_code == 0
    summary = json.loads((output / "manifest.json").read_bytes())["splits"]["train"]
    assert json.dumps(summary).count('"jpeg_damage_kept": 1') == 1


def test_json_and_a_file_for_the_result(damaged: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    (damaged / "labels.txt").unlink()
    result = run("verify", str(damaged), "--json", "--report", str(report), exit_code=5)
    document = json.loads(result.stdout)
    written = json.loads(report.read_bytes())
    assert next(iter(written.items())) == ("made_by", "Shardbeam result of verify (coco)")
    assert {"made_by": written["made_by"], **document} == {"path": str(damaged), **written}
    assert (document["count"], document["examples"]) == (2, 39)
    assert [problem.get("place") for problem in document["problems"]] == [None, "byte 0"]


def test_a_quick_look_reads_no_shard(damaged: Path) -> None:
    assert run("verify", str(damaged), "--quick").exit_code == 0
    (damaged / SHARD).write_bytes(b"")
    result = run("verify", str(damaged), "--quick", exit_code=5)
    assert f"{SHARD}: has 0 bytes; the manifest says " in result.stdout


def test_people_may_add_to_the_data_card(damaged: Path) -> None:
    card = damaged / "README.md"
    card.write_text(f"{card.read_text()}\nMore about it.\n")
    assert "README" not in run("verify", str(damaged)).stdout
    card.unlink()
    assert "README.md: is missing" in run("verify", str(damaged)).stdout


def test_names_of_files_cannot_forge_lines(damaged: Path) -> None:
    (damaged / "x.tfrecord\nwhole: y").write_text("")
    assert "\nwhole" not in run("verify", str(damaged)).stdout


def test_a_build_on_the_dataset_itself_repairs_it(shapes: Path, whole: Path, damaged: Path) -> None:
    (damaged / "index" / f"{SHARD[:-14]}00002-of-00003.parquet").unlink()
    words = coco_words(shapes, damaged, *SETTINGS, "--overwrite", "--reuse", str(damaged))
    result = run(*words, exit_code=0)
    assert "reused: 1 of 3 shards copied" in result.stdout
    assert read_dataset(damaged) == read_dataset(whole)
    assert run("verify", str(damaged), "--decode").exit_code == 0


@pytest.fixture(scope="module")
def built(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs, a config, and in `1.0.0` its dataset, which a pointer names."""
    home = tmp_path_factory.mktemp("repair") / "home"
    for name in ("images", "annotations"):
        shutil.copytree(shapes / name, home / name)
    annotations = [f"{home}/annotations/instances.json"]
    source = {"format": "coco", "images": f"{home}/images", "annotations": annotations}
    output = {"path": f"{home}/{{version}}", "latest": f"{home}/latest", "num_shards": 3}
    path = home / "coco.yaml"
    path.write_text(json.dumps({"name": "coco", "splits": {"train": source}, "output": output}))
    assert run("build", str(path)).exit_code == 0
    shutil.copytree(home, home.with_name("copy"))
    return home


@pytest.fixture
def home(built: Path) -> Path:
    """That folder at the paths of its build, and a shard of its dataset is damaged."""
    shutil.rmtree(built)
    shutil.copytree(built.with_name("copy"), built)
    flip(built / "1.0.0" / SHARD)
    return built


@pytest.fixture
def config(home: Path) -> Path:
    return home / "coco.yaml"


def test_a_repair_that_was_interrupted_at_its_end_is_cleared_up(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = config.parent / "1.0.0"
    words = ("verify", str(damaged), "--repair", str(config))

    def interrupt(_: Staging) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Staging, "clear", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(*words)
    assert (damaged / ".staging").exists()
    assert run("verify", str(damaged)).exit_code == 0

    run(*words, exit_code=0)

    assert not (damaged / ".staging").exists()
    assert run("verify", str(damaged)).exit_code == 0


def test_repair_keeps_what_people_added_to_the_data_card(config: Path, home: Path) -> None:
    card = home / "1.0.0" / "README.md"
    before = card.read_bytes()
    card.write_bytes(before + b"More about it.\n")
    assert run("build", str(config), "--if-changed").stdout.count("README.md") == 0
    run("verify", str(home / "1.0.0"), "--repair", str(config), exit_code=0)
    assert card.read_bytes() == before + b"More about it.\n"
    assert run("verify", str(home / "1.0.0")).exit_code == 0
    flip(home / "1.0.0" / SHARD)
    card.unlink()
    assert run("verify", str(home / "1.0.0"), "--repair", str(config)).exit_code == 0
    assert card.read_bytes() == before


def test_repair_builds_the_damaged_shards_alone(whole: Path, config: Path, home: Path) -> None:
    (home / "latest").write_text("/elsewhere\n")
    # A name of which neither YAML nor the template of `output.path` may make another one.
    folder = (home / "1.0.0").rename(home / '"\N{SLIGHTLY SMILING FACE}" {x} # y')
    result = run("verify", str(folder), "--repair", str(config), exit_code=0)
    assert f"{SHARD}: byte 0: " in result.stdout
    assert "to repair it" not in result.stdout
    assert "reused: 2 of 3 shards copied" in result.stdout
    assert (folder / SHARD).read_bytes() == (whole / SHARD).read_bytes()
    assert run("verify", str(folder), "--decode").exit_code == 0
    assert (home / "latest").read_text() == "/elsewhere\n"


def test_a_file_too_many_is_for_a_person_to_delete(
    config: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = home / "1.0.0"
    (folder / "index" / "mine.parquet").write_bytes(b"mine")
    assert run("verify", str(folder), "--repair", str(config)).exit_code == 0
    assert f"{folder}: {SHARD}: byte 0: " in caplog.text
    assert "mine.parquet" not in caplog.text
    before = read_tree(folder)
    for flags in ((), ("--repair", str(config))):
        result = run("verify", str(folder), *flags, exit_code=5)
        assert result.stderr == f"shardbeam: error: damaged: {folder}: 1 problem\n"
        problem, last = result.stdout.splitlines()
        assert problem.startswith("index/mine.parquet: is not in the manifest: ")
        assert problem.endswith("; move it elsewhere")
        assert last.startswith(f"damaged: {folder}: 1 problem (")
    assert read_tree(folder) == before


@pytest.mark.parametrize("change", ["an image", "the config"])
def test_what_was_changed_is_not_repaired(change: str, config: Path, home: Path) -> None:
    if change == "an image":
        next((home / "images").iterdir()).touch()
    else:
        config.write_text(config.read_text().replace('"num_shards": 3', '"num_shards": 4'))
    before = read_tree(home / "1.0.0")
    result = run("verify", f"{home}/1.0.0", "--repair", str(config), exit_code=2)
    assert "not repaired: its images, annotations or config are not those" in result.stderr
    assert read_tree(home / "1.0.0") == before


def replace(path: Path, data: bytes) -> None:
    """Replaces a file by another of the same size and time."""
    found = path.stat()
    assert len(data) == found.st_size
    path.write_bytes(data)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def padded_jpeg(size: tuple[int, int], *, size_bytes: int) -> bytes:
    """Makes a JPEG of a given length, by a comment."""
    data = save(Image.new("RGB", size, (10, 20, 30)), "JPEG")
    comment = size_bytes - len(data)
    return data[:2] + b"\xff\xfe" + (comment - 2).to_bytes(2, "big") + bytes(comment - 4) + data[2:]


# {change of a source: message about the shard}
REPLACED = {
    "another picture": "{shard}: another picture: '{key}'\n",
    "a broken picture": "{shard}: {less} examples, but the manifest says {examples}; no longer "
    "written: '{key}' (not_an_image: ",
    "other annotations": "{shard}: the same picture with other labels or features: '{key}'",
}


@pytest.mark.parametrize(
    ("what", "flags"),
    [
        *((what, ()) for what in REPLACED if what != "other annotations"),
        pytest.param("other annotations", (), marks=pytest.mark.slow),
        pytest.param("another picture", ("--json",), marks=pytest.mark.slow),
    ],
)
def test_what_would_come_out_otherwise_is_not_repaired(
    what: str, flags: tuple[str, ...], config: Path, whole: Path, home: Path
) -> None:
    folder = home / "1.0.0"
    rows = load_index(f"{folder}/index/{SHARD}.parquet", listed=None).to_pylist()
    key = rows[-1]["key"]
    image, annotations = home / "images" / key, home / "annotations" / "instances.json"
    source = annotations if what == "other annotations" else image
    original, times = source.read_bytes(), source.stat()
    if what == "another picture":
        with Image.open(image) as picture:
            replace(image, padded_jpeg(picture.size, size_bytes=len(original)))
    elif what == "a broken picture":
        replace(image, bytes(len(original)))
    else:
        document = json.loads(original)
        number = next(each["id"] for each in document["images"] if each["file_name"] == key)
        found = next(each for each in document["annotations"] if each["image_id"] == number)
        found["iscrowd"] = 1
        replace(
            annotations, json.dumps(document, separators=(",", ":")).encode().ljust(len(original))
        )
    before = read_tree(folder)
    result = run("verify", str(folder), "--repair", str(config), *flags, exit_code=5)
    said = json.loads(result.stdout.splitlines()[-1])["message"] if flags else result.stdout
    assert (
        REPLACED[what].format(shard=SHARD, key=key, examples=len(rows), less=len(rows) - 1) in said
    )
    assert "replaced by another of the same size and time" in said
    assert f"--overwrite --reuse {folder}" in said
    assert read_tree(folder) == before
    # Staged files must not be used now.
    source.write_bytes(original)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert run("verify", str(folder), "--repair", str(config)).exit_code == 0
    assert read_dataset(folder)[SHARD] == read_dataset(whole)[SHARD]


def test_a_repair_by_other_versions_of_libraries(
    config: Path, whole: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "1.0.0"
    versions = library_versions() | {"Pillow": "99"}
    for module in (plan_module, encode_module):
        monkeypatch.setattr(module, "library_versions", lambda: versions)
    before = read_tree(folder)
    # That version encodes differently.
    monkeypatch.setattr(encode_module, "digest_image", lambda _: "0" * 16)
    monkeypatch.setattr(ExampleLayout, "serialize", lambda *_, **__: (b"",))
    result = run("verify", str(folder), "--repair", str(config), exit_code=5)
    assert "it was built by other versions, which may be the cause: Pillow " in result.stdout
    assert " (now 99)\n" in result.stdout
    assert read_tree(folder) == before
    monkeypatch.undo()
    for module in (plan_module, encode_module):
        monkeypatch.setattr(module, "library_versions", lambda: versions)
    # That version writes the same bytes.
    result = run("verify", str(folder), "--repair", str(config), exit_code=0)
    # Its undamaged images need no such library.
    assert "reused: 2 of 3 shards" in result.stdout
    assert read_dataset(folder)[SHARD] == read_dataset(whole)[SHARD]


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_manifest_that_was_changed_is_no_measure(
    is_replaced: bool, config: Path, whole: Path, home: Path
) -> None:
    folder = home / "1.0.0"
    manifest = folder / "manifest.json"
    checksum = json.loads(manifest.read_bytes())["splits"]["train"]["shards"][1]["crc32c"]
    manifest.write_text(manifest.read_text().replace(checksum, "0" * 8))
    if is_replaced:
        key = load_index(f"{folder}/index/{SHARD}.parquet", listed=None).to_pylist()[0]["key"]
        image = home / "images" / key
        with Image.open(image) as picture:
            replace(image, padded_jpeg(picture.size, size_bytes=image.stat().st_size))
    result = run("verify", str(folder), "--repair", str(config))
    assert result.exit_code == (5 if is_replaced else 0), result.stdout
    if is_replaced:
        assert f"{SHARD}: another picture: '{key}'" in result.stdout
    else:
        assert (folder / "manifest.json").read_bytes() == (whole / "manifest.json").read_bytes()


def seal(manifest: Path, **changes: object) -> None:
    """Edits a manifest, and makes its checksum agree."""
    document = json.loads(manifest.read_bytes())
    document.pop("checksum")
    manifest.write_bytes(encode_manifest({**document, **changes}))


@pytest.mark.parametrize("command", ["verify", "build"])
def test_a_manifest_that_was_edited_is_named_and_written_again(
    command: str, config: Path, whole: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = home / "1.0.0"
    manifest = folder / "manifest.json"
    splits = json.loads(manifest.read_bytes())["splits"]
    splits["train"]["shards"][1]["crc32c"] = "0" * 8
    seal(manifest, splits=splits)
    found = run("verify", str(folder), "--quick", exit_code=5).stdout
    assert "manifest.json: was changed after it was written: no run has its checksum" in found
    if command == "verify":
        result = run("verify", str(folder), "--repair", str(config), exit_code=0)
    else:
        result = run("build", str(config), "--if-changed", exit_code=0)
    assert "have changed" not in result.stderr
    assert "manifest.json: was changed after it was written" in caplog.text
    assert read_dataset(folder) == read_dataset(whole)
    assert run("verify", str(folder)).exit_code == 0


def test_no_report_is_left_of_a_dataset_that_was_not_looked_at(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text('{"made_by":"Shardbeam result of verify (nowhere)","count":0}')
    assert run("verify", str(tmp_path / "nowhere"), "--report", str(report)).exit_code == 1
    assert not report.exists()
