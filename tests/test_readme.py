"""The first page and others: their commands run, and their links lead somewhere."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardbeam.pipelines.cli.main import main
from shardbeam.transforms.core.reasons import Exclusion, Reason
from tests.conftest import PROJECT_ROOT
from tests.support.archive_files import write_files, write_zip
from tests.support.builds import write_coco
from tests.support.config_page import PAGE, config_page
from tests.support.dataset import coco_words, run
from tests.support.pages import blocks, commands, reading_rows
from tests.support.tfrecords import draw_image

README = (PROJECT_ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    path.relative_to(PROJECT_ROOT).as_posix()
    for path in (
        *PROJECT_ROOT.glob("*.md"),
        *(PROJECT_ROOT / "docs").rglob("*.md"),
        PROJECT_ROOT / "examples" / "README.md",
    )
]


SEPARATOR = "the end of a program\n"
ONE_BY_ONE = f"""
import sys
for program in sys.argv[1:]:
    exec(program, {{"__name__": "__main__"}})
    print({SEPARATOR!r}, end="")
"""


def prose(page: str) -> str:
    """A page without its code."""
    text = (PROJECT_ROOT / page).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """Returns the part of a link behind the # for a heading."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def test_the_first_page_is_short() -> None:
    assert len(README.split()) <= 1500


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages_and_headings(page: str) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (PROJECT_ROOT / page).parent / path if path else PROJECT_ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(str(target))):
            broken.append(link)
    assert broken == []


def test_the_pages_that_code_names_exist() -> None:
    files = [
        path
        for folder in ("benchmarks", "configs", "pipelines", "readers", "transforms")
        for path in (PROJECT_ROOT / folder).rglob("*")
        if path.suffix in {".py", ".yaml", ".j2", ".js"}
    ]
    named = {
        (page, anchor)
        for file in (*files, PROJECT_ROOT / "Makefile", PROJECT_ROOT / "pyproject.toml")
        for page, anchor in re.findall(
            r"(?<![\w/.])(docs/[\w/-]+(?:\.md)?)#?([\w-]*)", file.read_text(encoding="utf-8")
        )
    }
    assert ("docs/guide/runners.md", "spark") in named
    missing = [
        (page, anchor)
        for page, anchor in named
        if not (PROJECT_ROOT / page).exists() or (anchor and anchor not in anchors(page))
    ]
    assert missing == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_the_modules_that_pages_name_exist(page: str) -> None:
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", prose(page))) - {"path/to/file.py"}
    # A page on the design leaves the first folder out.
    folders = (PROJECT_ROOT, PROJECT_ROOT / "transforms")
    assert [name for name in named if not any((folder / name).exists() for folder in folders)] == []


def test_the_index_names_every_page() -> None:
    docs = PROJECT_ROOT / "docs"
    index = (docs / "README.md").read_text(encoding="utf-8")
    names = {path.relative_to(docs).as_posix() for path in docs.glob("*/*.md")}
    assert sorted(name for name in names if f"]({name})" not in index) == []


@pytest.mark.parametrize("codes", [Reason, Exclusion])
def test_every_code_is_explained(codes: type[Reason | Exclusion]) -> None:
    page = prose("docs/reference/rejects.md")
    assert sorted(code.value for code in codes if f"\n| `{code.value}` |" not in page) == []


def test_the_config_page_is_that_of_the_schema() -> None:
    assert PAGE.read_text(encoding="utf-8") == config_page(), "run `make config-page`"


@pytest.fixture
def data(tmp_path: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder in which the README's paths exist, on the sample."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "annotations").mkdir()
    for split in ("train2017", "val2017"):
        (folder / split).symlink_to(shapes / "images")
        (folder / "annotations" / f"instances_{split}.json").symlink_to(
            shapes / "annotations" / "instances.json"
        )
    (folder / "flowers").symlink_to(shapes / "class_folders")
    return folder


@pytest.mark.usefixtures("data")
def test_the_commands_run() -> None:
    shown = commands("README.md")
    assert [command[1:3] for command in shown] == [
        ["init", "data/flowers"],
        ["plan", "flowers.yaml"],
        ["build", "flowers.yaml"],
        ["report", "tfrecords/flowers"],
        ["build", "coco"],
        ["build", "image-folder"],
    ]
    for command in shown:
        assert main(command[1:]) == 0


@pytest.mark.usefixtures("data")
def test_the_config_runs() -> None:
    (config,) = blocks("docs/reference/config.md", "yaml")
    Path("coco.yaml").write_text(config, encoding="utf-8")
    (command,) = commands("docs/reference/config.md")
    assert main(command[1:]) == 0


@pytest.fixture
def demo(tmp_path: Path, shapes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the dataset that `make demo` writes."""
    monkeypatch.chdir(tmp_path)
    build = ["build", "coco", "--images", str(shapes / "images"), "--name", "shapes"]
    annotations = str(shapes / "annotations" / "instances.json")
    assert main([*build, "--annotations", annotations, "--output", "demo/coco"]) == 0
    return tmp_path


@pytest.mark.usefixtures("demo")
def test_the_page_on_deleting_is_true(shapes: Path) -> None:
    shutil.rmtree("demo/coco/runs")
    assert main(["verify", "demo/coco"]) == 0
    again = run(*coco_words(shapes, "demo/coco", "--name", "shapes", "--if-changed"), exit_code=2)
    assert "inputs or config have changed" in again.stderr

    for name in ("coco/.staging", "coco-limit-5"):
        (Path("data/tfrecords") / name).mkdir(parents=True)
    (block,) = (
        block for block in blocks("docs/reference/output.md", "sh") if "rm -r data" in block
    )
    shown = subprocess.run(["sh", "-ec", block], check=True, capture_output=True, text=True)
    assert shown.stdout == "data/tfrecords/coco/.staging\n"
    assert [*Path("data/tfrecords").iterdir()] == []


@pytest.mark.slow
def test_the_snippets_run(demo: Path) -> None:
    """TensorFlow is kept out of this process, and one process imports it once for all of them."""
    first, reading = blocks("README.md", "python"), blocks("docs/guide/reading.md", "python")
    # The others need other libraries (`test_examples.py`) or a dataset of another kind
    # (`test_consumers.py`).
    others = re.compile(r"^import (torch|grain)$", re.MULTILINE)
    reading = [each for each in reading if "demo/" in each and not others.search(each)]
    assert (len(first), len(reading)) == (1, 6)
    shown = reading_rows()
    assert list(shown) == ["torch", "grain", "shardbeam", "tfds", "datasets", "webdataset"]
    first += [
        f"import shardbeam\nfor batch in {shown['shardbeam']}:\n"
        "    print(batch['image/encoded'][0].to_tensor().shape)",
        f"import tensorflow_datasets as tfds\nfor example in {shown['tfds']}:\n"
        "    print(example['image/encoded'].shape)",
    ]
    # A snippet reads with this index.
    (command,) = commands("docs/guide/reading.md")
    assert command[1] == "index"
    assert main(command[1:]) == 0
    programs = [
        snippet
        for snippet in (*first, *reading)
        if "tensorflow_datasets" not in snippet or sys.version_info >= (3, 11)
    ]
    run = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, *programs],
        cwd=demo,
        check=True,
        capture_output=True,
        text=True,
    )
    printed = run.stdout.split(SEPARATOR)
    assert len(printed) == len(programs) + 1
    assert all("(120, 160, 3)" in each for each in printed[:-1])


def test_the_page_on_filters_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = {"empty": 250, "small": 150, "wide": 250}
    (tmp_path / "images").mkdir()
    for name, width in sizes.items():
        image = draw_image("JPEG", width=width, height=100 + len(name))
        (tmp_path / "images" / f"{name}.jpg").write_bytes(image)
    document = {
        "images": [{"id": number, "file_name": f"{name}.jpg"} for number, name in enumerate(sizes)],
        "annotations": [
            {"id": number, "image_id": number, "category_id": 1, "bbox": [10, 10, 50, 50]}
            for number in (1, 2)
        ],
        "categories": [{"id": 1, "name": "rose"}],
    }
    write_coco(tmp_path / "coco.json", document)
    (tmp_path / "flowers.yaml").write_text(
        "name: flowers\nsource: {format: coco, images: images, annotations: [coco.json]}\n"
        "output: {path: tfrecords/flowers}\nunannotated: keep\n"
    )
    assert main(["build", "flowers.yaml"]) == 0
    # The page has a dataset of each kind.
    (tmp_path / "tfrecords" / "coco").symlink_to("flowers")
    (snippet,) = blocks("docs/guide/filter.md", "python")
    exec(snippet, {})
    lines = sorted(Path("exclude.txt").read_text().splitlines())
    assert [line.partition("\t")[2] for line in lines] == ["empty.jpg", "small.jpg"]

    build, show = commands("docs/guide/filter.md")
    assert main(build[1:]) == 0
    (diff,) = re.findall(r"`(shardbeam diff [^`]*)`", prose("docs/guide/filter.md"))
    found = json.loads(run(*diff.split()[1:], "--json").stdout)
    removed = [each["key"] for each in found["changes"] if each["kinds"] == ["removed"]]
    assert sorted(removed) == ["empty.jpg", "small.jpg"]
    *words, redirect, file = show[1:]
    assert (redirect, file) == (">>", "exclude.txt")
    assert run(*words).exit_code == 0


@pytest.mark.slow
def test_the_page_on_tools_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image = draw_image("JPEG", width=32, height=24)
    # COCO of Roboflow, as a zip.
    exported: dict[str, bytes | str] = {"README.roboflow.txt": "animals"}
    for split in ("train", "valid", "test"):
        document = {
            "images": [{"id": 0, "file_name": "a_jpg.rf.0.jpg", "width": 32, "height": 24}],
            "annotations": [{"id": 0, "image_id": 0, "category_id": 1, "bbox": [1, 2, 3, 4]}],
            "categories": [
                {"id": 0, "name": "animals", "supercategory": "none"},
                {"id": 1, "name": "cat", "supercategory": "animals"},
            ],
        }
        exported |= {
            f"{split}/_annotations.coco.json": json.dumps(document),
            f"{split}/a_jpg.rf.0.jpg": image,
        }
    write_zip(tmp_path / "animals.v1i.coco.zip", exported)
    # Tables of Kaggle.
    boxes = 'image_id,width,height,bbox,source\na,32,24,"[1.0, 2.0, 3.0, 4.0]",usask_1\n'
    write_files(
        tmp_path,
        {
            **dict.fromkeys(("dogs/train/a.jpg", "dogs/test/b.jpg", "wheat/train/a.jpg"), image),
            "dogs/labels.csv": "id,breed\na,pug\n",
            "dogs/sample_submission.csv": "id,breed\nb,pug\n",
            "wheat/train.csv": boxes,
        },
    )
    shown = commands("docs/guide/from-your-tool.md")
    results = [run(*words) for _, *words in shown]

    assert [each.exit_code for each in results] == [0] * len(shown), results
    said = [each.stdout + each.stderr for each in results]
    assert "coco: 3 annotation files, 3 images; splits test, train, valid" in said[0]
    assert "the category with the id 0, animals, counts as the background" in said[2]
    assert "1 class: pug" in said[3]
    assert "1 class: usask_1" in said[4]
    # As the page says, `init` prints the command of a table that lacks only the name of a column.
    (_, *words) = shown[3]
    command = shlex.join(["shardbeam", *words[:-2]])
    assert f"`{command} --output tfrecords/dogs`" in run("init", "dogs").stderr


def test_the_makefile_runs_the_documented_commands() -> None:
    makefile = (PROJECT_ROOT / "Makefile").read_text(encoding="utf-8")
    for command in re.findall(r"(?:^|`)make ([\w-]+)", README, re.MULTILINE):
        assert re.search(rf"^{command}:", makefile, re.MULTILINE), command
    assert "make test" in (PROJECT_ROOT / ".ci" / "run").read_text(encoding="utf-8")
