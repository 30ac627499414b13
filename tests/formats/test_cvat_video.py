"""CVAT for video: which frames the shapes of tracks are on, and what cannot be joined."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.testing import FormatReport, check_format
from tests.support.archive_files import write_files
from tests.support.builds import Build, build
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg
from tests.support.making import make_format

JPEG = plain_jpeg()
META = (
    "<meta><job><size>4</size><mode>interpolation</mode><start_frame>2</start_frame>"
    "<stop_frame>8</stop_frame><frame_filter>step=2</frame_filter><labels><label><name>car</name>"
    "<attributes><attribute><name>kind</name></attribute></attributes></label>"
    "<label><name>body</name></label><label><name>nose</name><parent>body</parent></label>"
    "<label><name>tail</name><parent>body</parent></label>"
    "</labels></job><original_size><width>32</width><height>24</height></original_size></meta>"
)


def box(frame: object, *, x: object = 8, key: int = 1, more: str = "", attributes: str = "") -> str:
    corners = f'xtl="{x}" ytl="0" xbr="16" ybr="12"'
    return f'<box frame="{frame}" keyframe="{key}" {corners} {more}>{attributes}</box>'


def kind(name: str) -> str:
    return f'<attribute name="kind">{name}</attribute>'


def track(*shapes: str, number: object = 0, label: str = "car", more: str = "") -> str:
    return f'<track id="{number}" label="{label}" {more}>{"".join(shapes)}</track>\n'


def write(folder: Path, *tracks: str, meta: str = META, names: tuple[str, ...] = ()) -> None:
    names = names or tuple(f"frame_{number:06}.jpg" for number in (2, 4, 6, 8))
    text = f"<annotations><version>1.1</version>{meta}{''.join(tracks)}</annotations>"
    write_files(folder, {"a.xml": text, **{f"images/{name}": JPEG for name in names}})


def report(folder: Path, **more: str) -> FormatReport:
    keys = {"images": f"{folder}/images", "annotations": [f"{folder}/a.xml"], **more}
    return check_format(make_format("cvat", **keys), damages=0)


def build_video(folder: Path, *words: str | Path, exit_code: int = 0) -> Build:
    named = ("--images", folder / "images", "--annotations", folder / "a.xml")
    return build("cvat", *named, *words, output=folder / "out", exit_code=exit_code)


def test_shapes_are_on_the_frames_that_list_them(tmp_path: Path) -> None:
    gone = 'outside="1"'
    points = "".join(
        f'<points label="{name}" points="{at}" outside="{{0}}"/>'
        for name, at in (("nose", "4,6"), ("tail", "8,8"))
    )
    write(
        tmp_path,
        track(
            box(2, more='occluded="1"', attributes=kind("van")),
            box(4, x=4, key=0, attributes=kind(" big  van ")),
            box(6, more=gone),
        ),
        track(
            *(
                f'<skeleton frame="{at}">{points.format(out)}</skeleton>'
                for at, out in ((4, 0), (6, 1))
            ),
            number=7,
            label="body",
        ),
        # Read in spite of its gap, because the file lists interpolated shapes.
        track(box(2), box(8), number=9),
    )
    built = build_video(tmp_path)
    found = built.by_key()
    assert {
        key: (
            example.features["image/object/class/text"],
            example.features["image/object/track/label"],
            example.features["image/object/occluded"],
            example.features["image/object/bbox/xmin"],
        )
        for key, example in found.items()
    } == {
        "frame_000002.jpg": ([b"car", b"car"], [0, 9], [1, 0], [0.25, 0.25]),
        "frame_000004.jpg": ([b"car", b"body"], [0, 7], [0, 0], [0.125, 0.125]),
        "frame_000008.jpg": ([b"car"], [9], [0], [0.25]),
    }
    run("init", str(tmp_path), "--output", str(tmp_path / "c.yaml"), exit_code=0)
    assert "match" not in (tmp_path / "c.yaml").read_text().split("# More")[0].split("name:")[1]

    by_attribute = build(
        *("cvat", "--images", tmp_path / "images", "--annotations", tmp_path / "a.xml"),
        *("--label-attribute", "kind", "--unannotated", "keep"),
        output=tmp_path / "kinds",
    )
    texts = {
        key: it.features["image/object/class/text"] for key, it in by_attribute.by_key().items()
    }
    assert texts["frame_000002.jpg"] == [b"van", b"car"]
    assert texts["frame_000004.jpg"] == [b"big van", b"body"]
    assert texts["frame_000006.jpg"] == []


@pytest.mark.parametrize("name", ["{}.jpg", "{:04}.jpg", "Frame{}.jpg", "a/b/frame_{:06}.jpg"])
def test_names_of_frames(tmp_path: Path, name: str) -> None:
    write(tmp_path, track(box(2)), names=tuple(map(name.format, (2, 4, 6, 8))))
    assert [*report(tmp_path).annotations] == [name.format(2)]


@pytest.mark.parametrize(
    ("tracks", "meta", "names", "message"),
    [
        (
            [track(box(2), box(8))],
            META,
            (),
            "only keyframes are listed (2, with 1 gaps between them), and nothing is computed here",
        ),
        (
            [track(box(2))],
            META.replace("interpolation", "annotation"),
            (),
            "line 1: the task is of images, and tracks do not name them: export the task as `CVAT "
            "for images 1.1`",
        ),
        (
            [track(box(2), more='task_id="1"'), track(box(2), more='task_id="2"')],
            META,
            (),
            "line 2: frames of several tasks have the same numbers",
        ),
        (
            [track(box(2))],
            META,
            ("1.jpg", "2.jpg", "3.jpg", "4.jpg"),
            "the images have the numbers 1 to 4, and the frames 2 to 8, each 2: name them as CVAT",
        ),
        (
            [track(box(0))],
            "<meta><task><size>9</size></task></meta>",
            tuple(f"{number}.jpg" for number in (1, 3, 9)),
            "the images have the numbers 1 to 9, and the frames 0 to 8, each 1",
        ),
        ([track(box("x"))], META, (), "line 1: frame: expected a number, got 'x'"),
        ([track(box("1e300"))], META, (), "line 1: frame: expected pixels, got '1e300'"),
        ([track("<box/>")], META, (), "line 1: a <box> without frame"),
        (
            [track(box(2)), '<image name="a.jpg"/>'],
            META,
            (),
            "line 2: images and tracks in one file",
        ),
        ([track(box(2))[:-20]], META, (), "the XML is broken"),
        (
            [track(box(2))],
            META.replace("<size>", "<size>&e;"),
            (),
            "the XML is broken: undefined entity",
        ),
    ],
)
def test_what_cannot_be_joined(
    tmp_path: Path, tracks: list[str], meta: str, names: tuple[str, ...], message: str
) -> None:
    write(tmp_path, *tracks, meta=meta, names=names)
    with pytest.raises(InputError, match=re.escape(message)):
        report(tmp_path)


def test_a_bad_shape_rejects_its_frame_alone(tmp_path: Path) -> None:
    write(
        tmp_path,
        track(box(2), box(4, x="nan"), box(6), box(8, x="1e99")),
        track(box(6), number="x"),
    )
    found = report(tmp_path)
    assert [*found.annotations] == ["frame_000002.jpg"]
    assert {each.key.partition(".")[0]: each.detail for each in found.rejects} == {
        "frame_000004": "a.xml: line 1: xtl: expected a number, got 'nan'",
        "frame_000006": "a.xml: line 2: track: expected a number, got 'x'",
        "frame_000008": "a.xml: line 1: xtl: too large a number",
    }


def test_several_videos_and_an_unknown_attribute(tmp_path: Path) -> None:
    write(tmp_path, track(box(2)))
    build_video(tmp_path, "--annotations", str(tmp_path / "a.xml"), exit_code=1)
    write_files(tmp_path, {"b.xml": (tmp_path / "a.xml").read_text()})
    several = build_video(tmp_path, "--annotations", str(tmp_path / "b.xml"), exit_code=1)
    assert "name a source for each video" in several.stderr
    assert "name a source for each video" in run("init", str(tmp_path)).stderr
    unknown = build_video(tmp_path, "--label-attribute", "Kind", exit_code=2)
    assert "label_attribute: no label has this attribute; there are: 'kind'" in unknown.stderr


def test_an_attribute_is_the_class_in_images_too(tmp_path: Path) -> None:
    corners = 'xtl="2" ytl="3" xbr="16" ybr="12"'
    image = (
        '<image id="0" name="a.jpg" width="32" height="24">'
        f'<box label="car" {corners}>{kind(" big  van ")}</box><box label="car" {corners}/></image>'
    )
    write(tmp_path, image, names=("a.jpg",), meta=META.replace("interpolation", "annotation"))
    built = build_video(tmp_path, "--label-attribute", "kind")
    example = built.by_key()["a.jpg"]
    # A shape without the attribute keeps its label.
    assert example.features["image/object/class/text"] == [b"big van", b"car"]
