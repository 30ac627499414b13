"""Files of one picture with its annotations, and values that cannot be drawn."""

from __future__ import annotations

import base64
import io
import re
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest
from PIL import Image

from shardbeam.readers.report.picture_file import PictureFile, render_picture_file
from shardbeam.readers.report.styles import Classes
from shardbeam.transforms.core.text import Mark
from shardbeam.transforms.examples.decode.feature_map import FeatureMap
from shardbeam.transforms.examples.decode.picture import Picture, PictureObject

SIDE = 60
MARK = Mark("picture", "a--b<")


def png(pixels: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, "PNG")
    return file.getvalue()


def make_picture(*objects: PictureObject, **fields: object) -> Picture:
    picture = Picture(
        key="a.png",
        split="train",
        shard="s",
        number=1,
        image=png(np.full((SIDE, SIDE, 3), 128)),
        format="png",
        width=SIDE,
        height=SIDE,
    )
    return msgspec.structs.replace(picture, **{"objects": objects, **fields})


CLASSES = {1: "person", 3: "cat", 4: "dog", 7: "sky"}
NAMESPACE = "{http://www.w3.org/2000/svg}"


def render(
    picture: Picture, *, names: dict[int, str] | None = None, as_page: bool = False
) -> PictureFile:
    feature_map = FeatureMap(class_names=CLASSES if names is None else names)
    return render_picture_file(picture, feature_map=feature_map, mark=MARK, as_page=as_page)


class Drawing:
    """A file that was parsed as XML."""

    def __init__(self, file: PictureFile) -> None:
        self.root = ElementTree.fromstring(file.content)

    def find(self, tag: str, css_class: str) -> list[ElementTree.Element]:
        return [
            element
            for element in self.root.iter(NAMESPACE + tag)
            if css_class in element.get("class", "").split()
        ]

    @property
    def texts(self) -> list[str]:
        """The texts below the picture."""
        (group,) = self.find("g", "texts")
        return ["".join(text.itertext()) for text in group.iter(f"{NAMESPACE}text")]

    @property
    def style(self) -> str:
        return next(self.root.iter(f"{NAMESPACE}style")).text or ""


def draw(picture: Picture, *, names: dict[int, str] | None = None) -> Drawing:
    return Drawing(render(picture, names=names))


def pixels_of(image: ElementTree.Element) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    data = base64.b64decode(image.get("href", "").partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def css_colour(name: str, names: dict[int, str]) -> str:
    return f"#{bytes(Classes(names).style(name).rgb).hex()}"


def place(element: ElementTree.Element) -> list[float]:
    return [float(element.get(side, "")) for side in ("x", "y", "width", "height")]


def test_a_box_lies_where_the_annotation_says() -> None:
    drawing = draw(make_picture(PictureObject(label="cat", box=(0.25, 0.25, 0.75, 0.5))))
    (box,) = drawing.find("rect", "layer-boxes")
    assert place(box) == [15, 15, 30, 15]
    colour = next(name for name in box.get("class", "").split() if name.startswith("k"))
    assert f".{colour} {{ color: {css_colour('cat', CLASSES)}; }}" in drawing.style
    assert ".layer-boxes { fill: none; stroke: currentColor;" in drawing.style
    # Not every program that opens SVG knows variables of CSS.
    assert "var(" not in drawing.style
    # The picture is 16 times as large, its pixels are squares.
    (picture,) = drawing.find("svg", "picture")
    assert picture.get("viewBox") == "0 0 60 60"
    assert "coarse" in picture.get("class", "")
    assert drawing.root.get("width") == "960"
    (tag,) = drawing.find("svg", "tag")
    assert "".join(tag.itertext()) == "cat"
    assert drawing.texts == ["train, example 1: a.png", "png, 60x60 pixels", "cat, 1"]


def test_the_picture_and_its_masks_are_in_the_file() -> None:
    mask = np.zeros((SIDE, SIDE))
    mask[10:20, 30:50] = 1
    drawing = draw(make_picture(PictureObject(label="dog", label_id=4, mask=png(mask))))
    (photo,) = drawing.find("image", "photo")
    assert (np.abs(pixels_of(photo)[..., :3].astype(int) - 128) < 3).all()
    (area,) = drawing.find("image", "layer-masks")
    assert place(area) == [30, 10, 20, 10]
    pixels = pixels_of(area)
    assert (pixels[..., :3] == Classes(CLASSES).style("dog").rgb).all()
    assert 0 < pixels[5, 10, 3] < pixels[0, 0, 3] < 255


def test_keypoints_and_their_skeleton() -> None:
    points = ((0.2, 0.5, 2), (0.8, 0.5, 1), (0.5, 0.9, 0), (1e30, -1e30, 2))
    item = PictureObject(
        label="person", label_id=1, keypoints=points, skeleton=((0, 1), (1, 2), (0, 3))
    )
    drawing = draw(make_picture(item))
    (bones,), (hollow,) = drawing.find("path", "bone"), drawing.find("path", "hollow")
    assert bones.get("d") == "M12 30L48 30M12 30L180 -180"
    assert hollow.get("d") == "M48 30h0"


@pytest.mark.parametrize("names", [{}, {0: "ground", 7: "sky"}])
def test_a_class_map_has_its_classes(names: dict[int, str]) -> None:
    pixels = np.full((SIDE, SIDE), 7)
    pixels[:, :20] = 0
    pixels[:, 40:] = 255
    drawing = draw(make_picture(class_map=png(pixels)), names=names)
    # 0 is the background, unless it is a class; 255 is what readers ignore.
    shares = ["ground, 33.3%", "sky, 33.3%"] if names else ["class 7, 33.3%"]
    assert drawing.texts[2:] == shares
    assert len(drawing.find("image", "layer-map")) == len(shares)


@pytest.mark.parametrize(("name", "dashed"), [("tree", False), ("sea", True)])
def test_classes_with_the_same_colour_have_different_lines(name: str, dashed: bool) -> None:
    # There are 96 colours.
    names = {number: f"name {number}" for number in range(1, 98)}
    drawing = draw(
        make_picture(
            PictureObject(label="cat", box=(0.1, 0.1, 0.9, 0.4)),
            PictureObject(label=name, box=(0.1, 0.6, 0.9, 0.9)),
        ),
        names={**names, 1: "cat", 2: "tree", 97: "sea"},
    )
    assert (".l1 { stroke-width: 2px; stroke-dasharray: 10px 6px; }" in drawing.style) == dashed
    # The line of its name, too.
    assert len(drawing.find("path", "layer-boxes")) == dashed


def test_a_picture_is_drawn_the_same_again() -> None:
    item = PictureObject(label="cat", box=(0.1, 0.1, 0.9, 0.9), is_crowd=True)
    picture = make_picture(item, labels=("a", "b"), captions=("a cat",))
    assert render(picture) == render(picture)
    assert "cat, crowd" in render(picture).content


@pytest.mark.parametrize(
    ("fields", "texts"),
    [
        ({"labels": ("dog", "cat")}, ["labels: dog, cat"]),
        ({"captions": ("a dog",)}, ['"a dog"']),
        ({"problems": ("a side of the boxes is missing",)}, ["! a side of the boxes is missing"]),
        ({"objects": (PictureObject(label="dog"),) * 2}, ["dog, 2"]),
        ({"class_map": png(np.full((SIDE, SIDE), 7))}, ["sky, 100.0%"]),
        ({"class_map": b"no PNG"}, ["! the class map cannot be drawn: "]),
        ({"class_map": png(np.zeros((3, 3)))}, ["! the class map cannot be drawn: "]),
        (
            {"class_map": png(np.zeros((SIDE, SIDE))), "instance_map": png(np.zeros((3, 3)))},
            ["! the instance map cannot be drawn: "],
        ),
        (
            {"objects": (PictureObject(mask=b"no PNG"),)},
            ["object, 1", "! a mask cannot be drawn: "],
        ),
        (
            {"objects": (PictureObject(label="dog"),) * 1001},
            ["dog, 1,001", "! only 1,000 of 1,001 objects are drawn"],
        ),
        ({"captions": ("a",) * 14}, [*['"a"'] * 12, "… and 2 more captions"]),
        ({"captions": ("wide " * 79,)}, ['"wide wide', "wide", "wide", "wide"]),
    ],
)
def test_what_is_said_of_a_picture_stands_below_it(
    fields: dict[str, object], texts: list[str]
) -> None:
    drawn = draw(make_picture(**fields)).texts[2:]
    # The rest of a long problem is on a line of its own.
    assert all(line.startswith(text) for line, text in zip(drawn, texts, strict=False))
    assert len(texts) <= len(drawn) <= len(texts) + (texts[-1][-2:] == ": ")


HOSTILE = (
    *("</style><script>alert(1)</script>", "]]>", "--><b>", '"onload="alert(1)', "&lt;", "{{ 1 }}"),
    *("\x00\x1b[2J\n", "\u202eevil", "\ufffe\uffff", "url(http://a.example/)"),
)


@pytest.mark.parametrize("as_page", [False, True])
@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_the_data_are_only_texts(text: str, as_page: bool) -> None:
    picture = make_picture(
        PictureObject(label=text, box=(0.2, 0.2, 0.9, 0.9), keypoints=((0.5, 0.5, 2),)),
        key=text,
        split=text,
        labels=(text,),
        captions=(text,),
        problems=(text,),
        class_map=png(np.full((SIDE, SIDE), 7)),
    )
    content = render(picture, names={7: text}, as_page=as_page).content
    elements = {
        *("svg", "metadata", "title", "style", "rect", "image", "g", "path", "text"),
        *(("html", "head", "meta", "link", "body") if as_page else ()),
    }
    assert set(re.findall(r"<([^\s>/!]+)", content)) <= elements
    svg = ElementTree.fromstring(content[content.index("<svg") : content.rindex("</svg>") + 6])
    attributes = [item for element in svg.iter() for item in element.attrib.items()]
    assert not [name for name, _ in attributes if name.startswith("on")]
    links = [value for name, value in attributes if name.endswith("href")]
    assert links
    assert all(link.startswith("data:image/") for link in links)
    (style,) = svg.iter(f"{NAMESPACE}style")
    assert not re.search("url|@|script", style.text or "")
    # It begins with what shows that it may be replaced.
    assert MARK.text in content[:1000]


def test_a_page_allows_no_script_and_no_requests() -> None:
    content = render(make_picture(), as_page=True).content
    (policy,) = re.findall('content="(default-src [^"]+)"', content)
    assert policy.startswith("default-src &#39;none&#39;; img-src data:; style-src &#39;sha256-")
    assert "<svg xmlns=" in content


@pytest.mark.parametrize("as_page", [False, True])
@pytest.mark.parametrize(
    "picture",
    [
        make_picture(image=b""),
        make_picture(image=b"no image", format="raw"),
        make_picture(image=png(np.zeros((9, 9)))[:-30]),
        make_picture(image=bytes(range(256)) * 12, format="raw"),
        make_picture(image=png(np.zeros((1, 1)))),
        make_picture(image=png(np.zeros((1, 3000)))),
        make_picture(image=png(np.zeros((3000, 1, 4)))),
        make_picture(
            PictureObject(mask=png(np.ones((9, 4)))),
            image=png(np.zeros((4, 9))),
            class_map=png(np.ones((4, 9))),
            instance_map=png(np.ones((9, 4))),
        ),
        make_picture(PictureObject(box=(5.0, 0.0, 6.0, 1.0))),
        make_picture(PictureObject(box=(0.9, 0.9, 0.1, 0.1))),
        make_picture(PictureObject(box=(-1e30, -1e30, 1e30, 1e30))),
        make_picture(PictureObject(box=(0.5, 0.5, 0.5, 0.5), label="x" * 5000)),
        make_picture(*[PictureObject(label="same", box=(0.4, 0.4, 0.6, 0.6))] * 1200),
        make_picture(*[PictureObject(label=f"class {n}") for n in range(100)]),
        make_picture(captions=("\x1b[2J\n" * 50, "x" * 10_000, "臉書 \U0001f600", "", " ") * 9),
        make_picture(labels=("\udcff".encode(errors="replace").decode(), "é")),
    ],
)
def test_anything_can_be_drawn(picture: Picture, as_page: bool) -> None:
    file = render(picture, as_page=as_page)
    svg = file.content[file.content.index("<svg") : file.content.rindex("</svg>") + 6]
    root = ElementTree.fromstring(svg)
    assert root.get("viewBox") == f"0 0 {file.width} {file.height}"
    assert 480 <= file.width <= 1600
    assert file.height <= 5000


def test_pixels_of_cifar() -> None:
    planes = np.zeros((3, 32, 32), np.uint8)
    planes[1] = 200
    (photo,) = draw(make_picture(image=planes.tobytes(), format="raw")).find("image", "photo")
    assert np.abs(pixels_of(photo)[16, 16].astype(int) - (0, 200, 0, 255)).max() < 3
