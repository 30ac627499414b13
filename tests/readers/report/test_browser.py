"""The page in a real browser: its pictures and its controls."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, expect

from shardbeam.transforms.formats.join.sources import excluded_images, find_key_file
from tests.readers.report.axe import check_accessibility
from tests.readers.report.conftest import OpenPage
from tests.readers.report.hostile import HOSTILE_TEXTS, write_hostile
from tests.support.builds import Build, WrittenExample, build, build_config
from tests.support.dataset import run
from tests.support.tfrecords import draw_image, make_example, write_tfrecord

# All of them wait for the browser, which is another process.
pytestmark = [pytest.mark.browser, pytest.mark.timing]

WIDTHS = (390, 1440)
LAYERS = ("boxes", "labels", "masks", "keypoints", "captions")


class Made(NamedTuple):
    """A dataset and its page."""

    built: Build
    page: Path

    def examples(self) -> dict[str, WrittenExample]:
        found: dict[str, WrittenExample] = {}
        for split in self.built.summary["splits"]:
            found |= self.built.by_key(split)
        return found


def make_report(built: Build, *words: str) -> Made:
    assert built.exit_code == 0, built.stderr
    page = built.output.with_suffix(".html")
    result = run("report", str(built.output), "--output", str(page), *words)
    assert (result.exit_code, result.stderr) == (0, "")
    return Made(built, page)


@pytest.fixture(scope="module")
def objects(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Boxes, masks, keypoints and captions, in two splits."""
    annotations = shapes / "annotations"
    built = build(
        *("coco", "--images", shapes / "images", "--name", "shapes", "--masks", "png"),
        *("--annotations", annotations / "person_keypoints.json"),
        *("--annotations", annotations / "captions.json"),
        *("--fractions", "train=0.7,validation=0.3"),
        output=tmp_path_factory.mktemp("objects") / "out",
    )
    return make_report(built)


@pytest.fixture(scope="module")
def found(planted: Build) -> Made:
    """One image of each kind is worth a look."""
    return make_report(planted)


@pytest.fixture(scope="module")
def panoptic(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    source = {
        "format": "coco",
        "images": str(shapes / "images"),
        "panoptic": str(shapes / "annotations" / "panoptic.json"),
        "panoptic_masks": str(shapes / "panoptic"),
    }
    folder = tmp_path_factory.mktemp("panoptic")
    return make_report(build_config({"splits": {"train": source}}, folder=folder))


@pytest.fixture(scope="module")
def folders(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Rejects, corrections, exclusions and duplicates."""
    folder = tmp_path_factory.mktemp("folders")
    files = sorted((shapes / "class_folders").rglob("*.jpg"))
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
    for number, file in enumerate(files[:16]):
        shutil.copy(file, folder / "images" / "cat" / f"{number}.jpg")
        if number % 4 == 0:
            shutil.copy(file, folder / "images" / "dog" / f"{number}.jpg")
        if number % 8 == 0:
            data = file.read_bytes()
            (folder / "images" / "dog" / f"cut {number}.jpg").write_bytes(data[:-300])
    (folder / "images" / "dog" / "notes.txt").write_text("no image")
    built = build(
        *("image-folder", "--images", folder / "images", "--set", "rejects.max_ratio=1"),
        *("--fractions", "train=0.5,test=0.5", "--max-side", "160"),
        output=folder / "out",
    )
    return make_report(built, "--images", str(folder / "images"))


@pytest.fixture(scope="module")
def changed(shapes: Path, objects: Made, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Objects of other sizes and classes than before."""
    folder = tmp_path_factory.mktemp("changed")
    document = json.loads((shapes / "annotations" / "person_keypoints.json").read_text())
    classes = [category["id"] for category in document["categories"]]
    for number, item in enumerate(document["annotations"][:12]):
        item["bbox"][2] *= 0.9
        item["category_id"] = classes[number % len(classes)]
    (folder / "boxes.json").write_text(json.dumps(document))
    built = build(
        *("coco", "--images", shapes / "images", "--name", "shapes", "--masks", "png"),
        *("--annotations", folder / "boxes.json"),
        *("--annotations", shapes / "annotations" / "captions.json"),
        *("--fractions", "train=0.7,validation=0.3"),
        output=folder / "out",
    )
    return make_report(built, "--previous", str(objects.built.output), "--examples", "4")


def box_of(locator: Locator) -> tuple[float, float, float, float]:
    """Where an element is on the screen: left, top, right and bottom in pixels."""
    left, top, right, bottom = locator.evaluate(
        "(element) => { const box = element.getBoundingClientRect();"
        " return [box.left, box.top, box.right, box.bottom]; }"
    )
    return left, top, right, bottom


def place(
    box: tuple[float, float, float, float], *, within: tuple[float, float, float, float]
) -> list[float]:
    """Where a box in fractions of a picture is on the screen."""
    left, top, right, bottom = within
    xmin, ymin, xmax, ymax = box
    return [
        left + xmin * (right - left),
        top + ymin * (bottom - top),
        left + xmax * (right - left),
        top + ymax * (bottom - top),
    ]


def close(found: tuple[float, ...] | list[float], expected: list[float], *, px: float) -> bool:
    return all(abs(one - other) <= px for one, other in zip(found, expected, strict=True))


def card_of(page: Page, key: str) -> Locator:
    # Other cards may name it, too.
    return page.locator(f'.card:has(> .key bdi:text-is("{key}"))')


def check_boxes(drawing: Locator, example: WrittenExample) -> int:
    """Compares the boxes that are drawn with those that are written."""
    photo = box_of(drawing.locator(".photo"))
    drawn = [box_of(each) for each in drawing.locator(".layer-boxes").all()]
    expected = [place(box, within=photo) for box in example.boxes]
    assert len(drawn) == len(expected)
    for box in expected:
        # Strokes are not a part of a rectangle's box.
        assert any(close(each, box, px=1.0) for each in drawn), (box, drawn)
    return len(drawn)


@pytest.mark.parametrize("width", WIDTHS)
def test_boxes_lie_where_they_are_annotated(width: int, objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page, width=width)
    examples = objects.examples()
    cards = page.locator(".card").all()
    assert len(cards) == len(examples) == 40
    checked = 0
    for card in cards:
        key = card.locator(".key").inner_text()
        card.scroll_into_view_if_needed()
        checked += check_boxes(card.locator(".open"), examples[key])
    assert checked > 50
    # Larger.
    key = next(key for key, example in examples.items() if len(example.boxes) > 2)
    card_of(page, key).locator(".open").click()
    stage = page.locator("#enlarged .stage")
    assert check_boxes(stage, examples[key]) > 2
    left, _, right, _ = box_of(stage.locator(".photo"))
    assert right - left > 300


def test_masks_and_keypoints_lie_where_they_are_annotated(
    objects: Made, open_page: OpenPage
) -> None:
    page = open_page(objects.page)
    examples = objects.examples()
    masks = points = 0
    for card in page.locator(".card").all():
        example = examples[card.locator(".key").inner_text()].features
        photo = box_of(card.locator(".photo"))
        pixel = (photo[2] - photo[0]) / example["image/width"][0]
        by_class: dict[bytes, Any] = {}
        for name, mask in zip(
            example["image/object/class/text"], example["image/object/mask"], strict=True
        ):
            pixels = np.asarray(Image.open(io.BytesIO(mask))) > 0
            by_class[name] = by_class.get(name, False) | pixels
        drawn = [box_of(each) for each in card.locator(".layer-masks").all()]
        shown = [pixels for pixels in by_class.values() if pixels.any()]
        assert len(drawn) == len(shown)
        for pixels in shown:
            height, width = pixels.shape
            rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
            box = (
                columns[0] / width,
                rows[0] / height,
                (columns[-1] + 1) / width,
                (rows[-1] + 1) / height,
            )
            expected = place(box, within=photo)
            assert any(close(each, expected, px=2 * pixel) for each in drawn), (expected, drawn)
            masks += 1
        visible = sum(value > 0 for value in example["image/object/keypoint/visibility"])
        paths = "".join(
            path.get_attribute("d") or "" for path in card.locator(".layer-keypoints .rim").all()
        )
        assert paths.count("M") == visible
        points += visible
    assert masks > 30
    assert points > 100


def test_layers_are_switched(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    boxes = page.locator(".toolbar [data-layer]")
    assert boxes.evaluate_all("(all) => all.map((each) => each.dataset.layer)") == list(LAYERS)

    def shown() -> set[str]:
        return {layer for layer in LAYERS if page.locator(f".card .layer-{layer}:visible").count()}

    assert shown() == set(LAYERS)
    for layer in LAYERS:
        page.locator(f"[data-layer={layer}]").uncheck()
        assert shown() == set(LAYERS) - {layer}
        page.locator(f"[data-layer={layer}]").check()
    # By keyboard, and enlarged pictures obey, too.
    page.locator("[data-layer=boxes]").focus()
    page.keyboard.press("Space")
    key = next(key for key, example in objects.examples().items() if example.boxes)
    card_of(page, key).locator(".open").click()
    expect(page.locator("#enlarged .layer-boxes").first).to_be_hidden()
    expect(page.locator("#enlarged .layer-labels").first).to_be_visible()
    page.locator("#enlarged [data-layer=labels]").uncheck()
    page.locator("#enlarged [data-layer=boxes]").check()
    expect(page.locator("#enlarged .layer-labels").first).to_be_hidden()
    expect(page.locator("#enlarged .layer-boxes").first).to_be_visible()
    page.keyboard.press("Escape")
    assert shown() == set(LAYERS) - {"labels"}
    expect(page.locator(".toolbar [data-layer=labels]")).not_to_be_checked()


def test_classes_are_switched(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    switch = page.locator(".classes label", has_text="star").locator("input")
    number = switch.get_attribute("data-switch")
    star = page.locator(f".card .layer-boxes[data-class='{number}']:visible")
    others = page.locator(f".card .layer-boxes:not([data-class='{number}']):visible")
    stars, rest = star.count(), others.count()
    assert stars > 5
    assert rest > 20
    switch.uncheck()
    assert (star.count(), others.count()) == (0, rest)
    page.locator("#no-classes").click()
    assert others.count() == 0
    page.locator("#all-classes").click()
    assert (star.count(), others.count()) == (stars, rest)


def test_filters(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    examples = {split: objects.built.by_key(split) for split in ("train", "validation")}

    def shown() -> list[str]:
        keys = page.locator(".card:visible .key").all_inner_texts()
        expect(page.locator("#shown")).to_have_text(f"{len(keys)} of 40 pictures")
        return sorted(keys)

    page.locator("#filter-split").select_option(label="validation")
    assert shown() == sorted(examples["validation"])
    option = page.locator("#filter-class option", has_text="circle").get_attribute("value")
    page.locator("#filter-class").select_option(option)
    assert shown() == sorted(
        key
        for key, example in examples["validation"].items()
        if "circle" in {name for name, _ in example.labels}
    )
    page.locator("#filter-split").select_option(label="all")
    page.locator("#filter-class").select_option("")
    page.locator("#filter-name").fill("0012.JPG")
    assert shown() == ["000000000012.jpg"]
    page.locator("#filter-name").fill("no such picture")
    assert shown() == []
    expect(page.locator("#nothing")).to_be_visible()


def test_the_address_holds_the_view(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    page.locator("#filter-split").select_option(label="train")
    class_option = page.locator("#filter-class option", has_text="circle").get_attribute("value")
    page.locator("#filter-class").select_option(class_option)
    page.locator("#filter-name").fill("+ &=#é%")
    page.locator("#filter-name").fill("0")
    page.locator("#order").select_option("most")
    address = page.evaluate("location.href")
    assert address.endswith("#gallery?split=train&class=circle&name=0&sort=most")
    keys = page.locator(".card:visible .key").all_inner_texts()
    examples = objects.examples()
    counts = [len(examples[key].boxes) for key in keys]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 2
    page.locator("#classes a", has_text="star").first.click()
    assert page.evaluate("location.hash") == "#gallery?class=star"
    page.go_back()
    for opened in (page, open_page(objects.page)):
        if opened is not page:
            opened.goto(address)
        expect(opened.locator("#gallery-title")).to_be_focused()
        assert opened.locator(".card:visible .key").all_inner_texts() == keys
    # An address of another page may name what is not here.
    page.goto(f"{address.partition('#')[0]}#gallery?split=test&sort=x&bar=y&page=9&class=star")
    expect(page.locator("#shown")).not_to_have_text("0 of 40 pictures")
    expect(page.locator("#filter-bar")).to_be_hidden()


def test_the_strongest_findings_come_first(found: Made, open_page: OpenPage) -> None:
    page = open_page(found.page)
    cards = page.locator(".card:visible")
    has_findings = "(all) => all.map((each) => each.dataset.kinds !== '')"
    page.locator("#order").select_option("smallest")
    unsorted = cards.evaluate_all(has_findings)
    page.locator("#order").select_option("strongest")
    assert cards.evaluate_all(has_findings) == sorted(unsorted, reverse=True) != unsorted
    page.locator("#filter-kind").select_option("large_box")
    strengths = cards.evaluate_all("(all) => all.map((each) => strengthOf(each, 'large_box'))")
    assert strengths == sorted(strengths, reverse=True)


def test_enlarging_by_mouse_and_by_keyboard(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    dialog = page.locator("#enlarged")
    keys = page.locator(".card .key").all_inner_texts()
    first = page.locator(".card .open").first
    expect(dialog).to_be_hidden()
    first.click()
    expect(dialog).to_be_visible()
    expect(page.locator("#enlarged-title")).to_have_text(keys[0])
    # All features of the Example.
    rows = dialog.locator(".features th code").all_inner_texts()
    assert rows == sorted(objects.examples()[keys[0]].features)
    page.locator("#close").click()
    expect(dialog).to_be_hidden()
    expect(first).to_be_focused()

    second = page.locator(".card .open").nth(1)
    second.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#enlarged-title")).to_have_text(keys[1])
    page.keyboard.press("ArrowRight")
    expect(page.locator("#enlarged-title")).to_have_text(keys[2])
    page.locator("#previous").click()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#enlarged-title")).to_have_text(keys[-1])
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator(".card .open").last).to_be_focused()


def test_a_finding_leads_to_its_picture(found: Made, open_page: OpenPage) -> None:
    page = open_page(found.page, width=390)
    # The problems are on the first screens, before all charts.
    assert box_of(page.locator("#look .evidence .open").first)[1] < 844
    last = page.locator("#look .finding").last
    assert box_of(page.locator(".chart").first)[1] > box_of(last)[3]
    # Past the navigation by keyboard, to the first finding and its picture.
    page.keyboard.press("Tab")
    expect(page.locator(".skip").first).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#look') !== null")
    # Findings that may be meant so are folded.
    for kind in ("duplicate_box", "same_box"):
        expect(page.locator(f"#look-{kind} .open")).to_be_hidden()
        page.locator(f"#look-{kind} summary").focus()
        page.keyboard.press("Enter")
    twice = page.locator("#look-duplicate_box .open")
    twice.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#enlarged-title")).to_have_text("twice.jpg")
    expect(page.locator("#enlarged .notes")).to_contain_text("of one class")
    assert page.locator("#enlarged .stage .layer-boxes.lit").count() == 2
    assert page.locator("#enlarged .objects tr.odd").count() == 2
    page.keyboard.press("ArrowRight")
    expect(page.locator("#enlarged-title")).to_have_text("both.jpg")
    page.keyboard.press("Escape")
    expect(page.locator("#look-same_box .open")).to_be_focused()


def test_the_picture_of_a_finding_is_seen_while_its_card_is_not(
    found: Made, open_page: OpenPage
) -> None:
    page = open_page(found.page)
    page.locator("#filter-name").fill("no such picture")
    page.locator("#look-large_box summary").click()
    drawing = page.locator("#look-large_box .open")
    drawing.scroll_into_view_if_needed()
    pixels = np.asarray(Image.open(io.BytesIO(drawing.screenshot())).convert("L"))
    assert pixels.std() > 20


def test_a_card_leads_to_the_other_picture(found: Made, open_page: OpenPage) -> None:
    page = open_page(found.page)
    page.locator("#filter-name").fill("again")
    twin = card_of(page, "again.jpg").locator(".twin")
    drawing = np.asarray(Image.open(io.BytesIO(twin.locator("svg").screenshot())).convert("L"))
    assert drawing.std() > 20
    twin.locator("a").focus()
    page.keyboard.press("Enter")
    # The filter hid it.
    expect(card_of(page, "0.jpg").locator(".open")).to_be_focused()
    page.keyboard.press("Enter")
    page.locator("#enlarged .twin a").click()
    expect(page.locator("#enlarged-title")).to_have_text("again.jpg")


def test_the_keyboard_skips_the_pictures(many: Path, open_page: OpenPage) -> None:
    page = open_page(many)
    skip = page.locator("#gallery .skip")
    skip.focus()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("#page-on")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".card:visible .open").first).to_be_focused()
    expect(page.locator("#page-number")).to_have_text("page 2 of 3")


def test_bars_classes_and_splits_lead_to_their_pictures(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    every = objects.examples()
    keys = page.locator(".card:visible .key")

    def follow(link: Locator) -> set[str]:
        link.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#gallery-title")).to_be_focused()
        expect(page.locator("#gallery-title")).to_be_in_viewport()
        return set(keys.all_inner_texts())

    # All examples are in the gallery, so the numbers of a bar are those of its pictures.
    rows = page.locator("#sizes tr", has=page.locator("[data-show-bar]"))
    checked = 0
    for row in rows.all():
        table = row.locator("xpath=ancestor::table").inner_text()
        if table.startswith("Images by"):
            number = int(row.locator("td.number").last.inner_text())
            assert len(follow(row.locator("a"))) == number
            checked += 1
    assert checked > 3
    expect(page.locator("#filter-bar")).to_contain_text("Images by number of objects")
    page.locator("#filter-bar").click()
    assert keys.count() == 40
    found = follow(page.locator("#classes a", has_text="star").first)
    assert found == {
        key for key, example in every.items() if "star" in {name for name, _ in example.labels}
    }
    found = follow(page.locator("#files a", has_text="validation"))
    assert found == objects.built.by_key("validation").keys()


def test_heat_maps_of_a_class_and_log_scales(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    centres = page.locator('.heat[data-map="centres"]')
    drawn = page.locator(".heat path")
    whole = drawn.evaluate_all("paths => paths.map(path => path.getAttribute('d'))")
    chosen = page.locator("#heat-class")
    chosen.select_option(index=1)
    one = drawn.evaluate_all("paths => paths.map(path => path.getAttribute('d'))")
    assert one != whole
    name = page.locator("#heat-class option").nth(1).get_attribute("data-name") or "?"
    expect(centres.locator("svg title")).to_have_text(f"Where boxes are: {name}")
    # What the page was rendered with is what the script draws.
    chosen.select_option(index=0)
    assert drawn.evaluate_all("paths => paths.map(path => path.getAttribute('d'))") == whole

    page.evaluate("document.querySelector('[data-most]').dataset.most = '1000'")
    bar = page.locator("svg[data-count] rect").first
    width = float((bar.get_attribute("width") or "")[:-1])
    page.evaluate("scaleBars(document.querySelector('[data-most]'), true)")
    assert float((bar.get_attribute("width") or "")[:-1]) > width
    page.evaluate("scaleBars(document.querySelector('[data-most]'), false)")
    assert float((bar.get_attribute("width") or "")[:-1]) == width


def test_rows_highlight_boxes_and_boxes_highlight_rows(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    key = next(key for key, example in objects.examples().items() if len(example.boxes) > 2)
    card_of(page, key).locator(".open").click()
    boxes = page.locator("#enlarged .stage .layer-boxes")
    rows = page.locator("#enlarged .objects tr[data-object]")
    # Boxes are sorted by size, rows are in the order of the Example.
    for row in rows.all():
        row.locator("button").focus()
        number = row.get_attribute("data-object")
        lit = page.locator("#enlarged .stage .layer-boxes.lit")
        assert [each.get_attribute("data-object") for each in lit.all()] == [number]
    expect(boxes.first).to_have_css(
        "opacity", "0.35" if number != boxes.first.get_attribute("data-object") else "1"
    )
    number = boxes.last.get_attribute("data-object")
    # The smallest box lies above the others.
    boxes.last.click(force=True)
    row = page.locator(f"#enlarged .objects tr[data-object='{number}']")
    expect(row).to_have_class(re.compile("lit"))
    expect(row.locator("button")).to_have_attribute("aria-pressed", "true")


def test_zooming(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    page.locator(".card .open").first.click()
    photo = page.locator("#enlarged .photo")

    def width() -> float:
        left, _, right, _ = box_of(photo)
        return right - left

    whole = width()
    page.locator("#zoom-in").click()
    assert width() == pytest.approx(2 * whole, rel=0.05)
    page.keyboard.press("+")
    assert width() == pytest.approx(4 * whole, rel=0.05)
    stage = page.locator("#enlarged .stage")
    stage.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#enlarged-title")).to_have_text(
        page.locator(".card .key").first.inner_text()
    )
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert width() == pytest.approx(whole, rel=0.05)
    expect(page.locator("#zoom-out")).to_be_disabled()


def test_marked_keys_are_lines_for_exclude(
    found: Made, open_page: OpenPage, tmp_path: Path
) -> None:
    page = open_page(found.page)
    expect(page.locator(".marks")).to_be_hidden()
    page.locator("#look-tiny_box summary").click()
    page.locator("#look-tiny_box .mark input").check()
    # The card of the same picture is marked, too.
    expect(card_of(page, "tiny.jpg").locator(".mark input").first).to_be_checked()
    page.locator("#gallery .card", has_text="both.jpg").locator(".open").click()
    page.keyboard.press("m")
    page.keyboard.press("Escape")
    expect(page.locator("#marked")).to_have_text("2 keys are marked")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#copy-marks").click()
    expect(page.locator("#marked")).to_have_text("Copied")
    lines = page.evaluate("navigator.clipboard.readText()")
    assert lines == page.locator("#mark-lines").input_value() == "tiny.jpg\nboth.jpg\n"
    (tmp_path / "exclude.txt").write_text(lines)
    excluded = excluded_images(find_key_file(str(tmp_path / "exclude.txt")))
    assert excluded == {("", "tiny.jpg"), ("", "both.jpg")}
    page.locator("#clear-marks").click()
    expect(page.locator(".marks")).to_be_hidden()
    assert page.locator("[data-mark]:checked").count() == 0


def test_marks_survive_a_reload(found: Made, open_page: OpenPage) -> None:
    page = open_page(found.page)
    for key in ("tiny.jpg", "both.jpg"):
        card_of(page, key).locator(".mark input").first.check()
    # Another picture under a known key, and keys that are not on this page.
    page.evaluate(
        "localStorage.setItem(MARKS_KEY, JSON.stringify([...storedMarks(),"
        " ['0.jpg', 'of another picture'], ['gone.jpg', '0'], ['__proto__', '0']]))"
    )
    page.reload()
    expect(page.locator("#marked")).to_have_text("2 keys are marked")
    expect(card_of(page, "tiny.jpg").locator(".mark input").first).to_be_checked()
    page.locator("#clear-marks").click()
    assert page.evaluate("[...storedMarks().keys()]") == ["gone.jpg", "__proto__"]
    page.evaluate("localStorage.setItem(MARKS_KEY, '{')")
    page.reload()
    expect(page.locator(".marks")).to_be_hidden()
    # Without a storage, marks last as long as the page.
    page.add_init_script("delete window.localStorage; delete Window.prototype.localStorage;")
    for _ in range(2):
        page.reload()
        expect(page.locator(".marks")).to_be_hidden()
        page.locator(".card .mark input").first.check()
        expect(page.locator("#marked")).to_have_text("1 key is marked")


def test_duplicates_and_rejects_are_enlarged(folders: Made, open_page: OpenPage) -> None:
    page = open_page(folders.page)
    pair = page.locator(".pair .item").first
    pair.locator(".open").click()
    expect(page.locator("#enlarged-title")).to_have_text(pair.locator(".key").inner_text())
    left, _, right, _ = box_of(page.locator("#enlarged .photo"))
    assert right - left > 300
    page.keyboard.press("Escape")
    # The rejected images are cut off, so that none can be drawn; the table leads to their rows.
    page.locator("#rejects a").first.click()
    expect(page.locator("#rejects tr.item").first).to_be_in_viewport()


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ninety small pictures of as many classes."""
    folder = tmp_path_factory.mktemp("many")
    image = draw_image("JPEG", width=24, height=16)
    records = [
        make_example(
            {
                "image/encoded": image,
                "image/filename": b"%d.jpg" % number,
                "image/class/text": [b"class %d" % number, b"every"],
            }
        )
        for number in range(90)
    ]
    write_tfrecord(folder / "a.tfrecord", *records)
    page = folder / "page.html"
    assert run("report", str(folder / "a.tfrecord"), "--output", str(page)).exit_code == 0
    return page


def test_the_gallery_has_pages(many: Path, open_page: OpenPage) -> None:
    page = open_page(many)
    shown = page.locator(".card:visible")
    assert page.locator(".card").count() == 90
    assert shown.count() == 40
    expect(page.locator("#page-back")).to_be_disabled()
    page.locator("#page-on").click()
    expect(page.locator("#page-number")).to_have_text("page 2 of 3")
    page.locator("#page-on").click()
    assert shown.count() == 10
    expect(page.locator("#page-on")).to_be_disabled()
    # A filter begins with the first page.
    page.locator("#filter-name").fill("1")
    expect(page.locator("#shown")).to_have_text("18 of 90 pictures")
    assert shown.count() == 18
    expect(page.locator(".pages")).to_be_hidden()


def test_classes_are_searched_and_sorted(many: Path, open_page: OpenPage) -> None:
    page = open_page(many)
    names = page.locator(".class-chart tbody tr:visible bdi")
    assert names.count() == 25
    assert names.first.inner_text() == "every"
    page.locator("#class-search").fill("class 8")
    expect(page.locator("#classes-shown")).to_have_text("11 of 91 classes")
    page.locator("#class-order").select_option("name")
    assert names.all_inner_texts() == ["class 8", *(f"class 8{digit}" for digit in range(10))]
    page.locator("#class-search").fill("")
    page.locator("#class-order").select_option("least")
    assert names.first.inner_text() != "every"
    page.locator("#more-classes").click()
    assert names.count() == 91
    assert names.last.inner_text() == "every"


@pytest.mark.parametrize("width", WIDTHS)
def test_labels_do_not_cover_each_other(width: int, objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page, width=width)
    labelled = 0

    def check(drawing: Locator) -> int:
        tags = [box_of(tag.locator("rect")) for tag in drawing.locator(".tag:visible").all()]
        for one, other in itertools.combinations(tags, 2):
            assert not (
                one[0] < other[2] - 0.5
                and other[0] < one[2] - 0.5
                and one[1] < other[3] - 0.5
                and other[1] < one[3] - 0.5
            ), (one, other)
        return len(tags)

    for card in page.locator(".card").all()[:12]:
        labelled += check(card.locator(".open"))
        card.locator(".open").click()
        labelled += check(page.locator("#enlarged .stage"))
        page.keyboard.press("Escape")
    assert labelled > 20


def test_elements_that_scroll_can_be_focused(folders: Made, open_page: OpenPage) -> None:
    page = open_page(folders.page, width=390)
    scrolling = page.locator(".scroll").evaluate_all(
        "(all) => all.map((each) => [each.scrollWidth > each.clientWidth, each.tabIndex])"
    )
    assert {scrolls for scrolls, _ in scrolling} == {True, False}
    assert all((index == 0) == scrolls for scrolls, index in scrolling)
    # Bars are wide enough to compare them.
    bars = page.locator(".chart .bar").all()
    assert all(right - left > 200 for left, _, right, _ in map(box_of, bars))


@pytest.mark.parametrize("width", WIDTHS)
def test_numbers_are_below_their_headings(objects: Made, open_page: OpenPage, width: int) -> None:
    page = open_page(objects.page, width=width)
    ends = page.locator(".chart:visible").evaluate_all(
        "(charts) => charts.map((chart) => [...chart.querySelectorAll('tr:not(.threshold)')].map("
        " (row) => [...row.querySelectorAll('.number')].map("
        " (each) => each.getBoundingClientRect().right)))"
    )
    # Keypoints are visible, hidden or not labelled; others are counted in two splits.
    assert {len(heading) for heading, *_ in ends} >= {3, 4}
    for heading, *rows in ends:
        assert all(close(row, heading, px=0.5) for row in rows)


def test_maps_of_segments(panoptic: Made, open_page: OpenPage) -> None:
    page = open_page(panoptic.page)
    areas = page.locator(".card .layer-segments:visible")
    assert areas.count() > 80
    # The segments of a picture cover it.
    card = page.locator(".card").first
    photo = box_of(card.locator(".photo"))
    boxes = [box_of(each) for each in card.locator(".layer-segments").all()]
    sides = [
        side(values)
        for side, values in zip((min, min, max, max), zip(*boxes, strict=True), strict=True)
    ]
    assert close(sides, list(photo), px=1.0)
    classes = page.locator(".classes label bdi").all_inner_texts()
    assert {"sky", "grass", "circle", "star"} <= set(classes)
    page.locator("[data-layer=segments]").uncheck()
    assert areas.count() == 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("made", ["objects", "folders"])
def test_nothing_is_wider_than_the_page(
    *, made: str, width: int, request: pytest.FixtureRequest, open_page: OpenPage
) -> None:
    page = open_page(request.getfixturevalue(made).page, width=width)
    folded = page.locator("details:not([open]) > summary")
    while folded.count():
        folded.first.click()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    page.locator(".card .open").first.click()
    assert page.evaluate("document.querySelector('#enlarged').scrollWidth") <= width
    expect(page.locator("body")).to_have_css("background-color", "rgb(245, 246, 248)")
    page.emulate_media(color_scheme="dark")
    expect(page.locator("body")).to_have_css("background-color", "rgb(17, 20, 26)")


def test_sections_and_their_links(folders: Made, open_page: OpenPage) -> None:
    page = open_page(folders.page)
    links = page.locator("nav a")
    assert links.all_inner_texts() == [
        *("Worth a look", "Classes", "Sizes", "Gallery", "Duplicates", "Rejects"),
        *("Corrections", "Files"),
    ]
    for link in links.all():
        link.click()
        section = page.locator(f"section{(link.get_attribute('href') or '').strip()}")
        expect(section.locator("h2")).to_be_in_viewport()
    # The pictures of a pair are side by side.
    for pair in page.locator(".pair").all():
        tops = [box_of(frame)[1] for frame in pair.locator(".frame").all()]
        assert len(tops) == 2
        assert len(set(tops)) == 1
    # The widths of bars are the counts.
    bars = page.locator("#files table").first.locator("tbody tr")
    counts = [int(row.locator("td").first.inner_text()) for row in bars.all()]
    widths = [right - left for left, _, right, _ in map(box_of, bars.locator("rect").all())]
    assert len(counts) == 2
    assert widths[0] / widths[1] == pytest.approx(counts[0] / counts[1], rel=0.02)


def test_on_paper(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    page.emulate_media(media="print")
    expect(page.locator(".toolbar")).to_be_hidden()
    expect(page.locator("nav")).to_be_hidden()
    expect(page.locator(".card").last).to_be_visible()


def test_pictures_have_names(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page)
    examples = objects.examples()
    for card in page.locator(".card").all():
        key = card.locator(".key").inner_text()
        label = card.locator("svg.picture").get_attribute("aria-label") or ""
        assert label.startswith(f"{key}, 160 by 120 pixels")
        assert all(name in label for name, _ in examples[key].labels)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["objects", "found", "panoptic", "folders", "changed", "many"])
def test_pages_are_accessible(
    *, name: str, width: int, request: pytest.FixtureRequest, open_page: OpenPage
) -> None:
    made = request.getfixturevalue(name)
    page = open_page(made if isinstance(made, Path) else made.page, width=width)
    # What is hidden is not checked: show all that can be shown.
    page.locator("details").evaluate_all("(all) => all.forEach((each) => (each.open = true))")
    page.locator("[data-layer]:visible").last.uncheck()
    if name == "many":
        page.locator("#class-search").fill("class 8")
    else:
        page.locator("[data-show-bar]:visible").first.click()
        page.locator(".mark input:visible").first.check()
        page.locator("#mark-lines").evaluate("(lines) => (lines.hidden = false)")
    check_accessibility(page)
    page.locator("#gallery .open:visible").first.click()
    page.locator("#zoom-in").click()
    if page.locator("#enlarged .objects").count():
        page.locator("#enlarged .objects button").first.click()
    check_accessibility(page)


def test_marks_do_not_cover_what_has_the_focus(objects: Made, open_page: OpenPage) -> None:
    page = open_page(objects.page, width=390)
    page.locator(".card .mark input").first.check()
    marks = page.locator(".marks")
    for _ in range(50):
        page.keyboard.press("Tab")
        assert box_of(page.locator(":focus"))[3] <= box_of(marks)[1]
    page.locator("footer").scroll_into_view_if_needed()
    assert box_of(page.locator("footer"))[1] >= box_of(marks)[3]


def test_hostile_texts_are_texts(tmp_path: Path, open_page: OpenPage) -> None:
    folder = write_hostile(tmp_path)
    path = tmp_path / "page.html"
    assert run("report", str(folder), "--output", str(path)).exit_code == 0
    page = open_page(path)
    cards = page.locator(".card")
    assert cards.count() == len(HOSTILE_TEXTS)
    for card in cards.all():
        card.locator(".open").click()
        page.keyboard.press("Escape")
    assert page.evaluate("window.pwned") is None
    assert page.locator("img, iframe, object, embed, a[href^=javascript]").count() == 0
    assert page.locator("script").count() == 1
    keys = page.locator(".card .key").all_inner_texts()
    assert "</script><img src=x onerror=pwned=1>" in keys
    page.locator("#filter-name").fill("<img src=x")
    assert page.locator(".card:visible").count() >= 1
