"""Frames of CVAT for video 1.1: an XML file of tracks, whose shapes name frames by their numbers.

The format: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/ (version 1.1).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.parsing.xml_file import XmlElement

# As CVAT names the frames that it saves, or with the number alone.
_FRAME = re.compile(r"(?:frame_?)?([0-9]{1,9})", re.IGNORECASE)
_STEP = re.compile(r"step\s*=\s*([0-9]{1,9})")
# Elements of a track that are shapes.
_SHAPES = frozenset(
    {"box", "polygon", "ellipse", "mask", "skeleton", "polyline", "points", "cuboid"}
)
_FIX = "export the task as `CVAT for images 1.1`"


class Video(msgspec.Struct, frozen=True):
    """The video of a task.

    Attributes:
        start: Its first frame.
        stop: Its last frame; before `start` where the file does not say it.
        step: The distance of its frames.
        width: Their width; 0 if the file gives none.
        height: Their height.
    """

    start: int = 0
    stop: int = -1
    step: int = 1
    width: int = 0
    height: int = 0

    @property
    def frames(self) -> range:
        """The numbers of the frames that were annotated."""
        return range(self.start, self.stop + 1, self.step)

    def check_numbers(self, numbers: Collection[int], *, uri: str) -> None:
        """Checks that images are numbered like the frames.

        Raises:
            InputError: They are numbered otherwise, for example from 1.
        """
        found, frames = set(numbers), self.frames
        is_other = len(found) == len(frames) and found != set(frames)
        is_shifted = self.step == 1 and self.start not in found and self.stop + 1 in found
        if frames and found and (is_other or is_shifted):
            raise InputError(
                uri=uri,
                problem=f"the images have the numbers {min(found)} to {max(found)}, and the frames "
                f"{frames[0]} to {frames[-1]}, each {self.step}: name them as CVAT does "
                f"({frame_name(frames[0])}), or {_FIX}",
            )


def frame_name(number: int) -> str:
    """Returns the name that CVAT gives a frame."""
    return f"frame_{number:06}"


def frame_number(key: str) -> int | None:
    """Returns the number in the name of a frame's image; None for other names."""
    match = _FRAME.fullmatch(key.rpartition("/")[2].partition(".")[0])
    return int(match[1]) if match else None


def read_video(meta: XmlElement) -> Video:
    """Reads what `meta` says about the frames.

    Raises:
        InputError: The file is of images, or of several videos.
    """
    tasks = [*_find(meta, "task"), *_find(meta, "job")]
    if len(tasks) > 1:
        raise tasks[1].error(f"frames of several tasks have the same numbers: {_FIX}")
    found = {each.tag: each for task in tasks for each in task.children}
    if "mode" in found and found["mode"].text == "annotation":
        problem = "the task is of images, and tracks do not name them"
        raise found["mode"].error(f"{problem}: {_FIX}")
    step = _STEP.search(found["frame_filter"].text) if "frame_filter" in found else None
    start = found["start_frame"].pixels() if "start_frame" in found else 0
    each = max(1, int(step[1])) if step else 1
    stop = found["stop_frame"].pixels() if "stop_frame" in found else -1
    if stop < 0 and "size" in found:
        stop = start + (found["size"].pixels() - 1) * each
    sizes = [*_find(meta, "original_size")][:1]
    sides = [
        side.pixels() for size in sizes for name in ("width", "height") if (side := size.one(name))
    ]
    width, height = sides if len(sides) == 2 else (0, 0)
    return Video(start=start, stop=stop, step=each, width=width, height=height)


def read_frames(tracks: Iterable[XmlElement], *, video: Video, uri: str) -> Iterator[XmlElement]:
    """Yields an `image` for each frame with shapes, by number, with the tracks' shapes in it.

    The file lists a shape in each frame that shows it; where `outside` is set, it is gone.

    Raises:
        InputError: A shape has no frame, or the file lists keyframes alone.
    """
    frames: dict[int, list[XmlElement]] = {}
    tasks: set[str] = set()
    keyframes: Counter[str] = Counter()
    missing = 0
    for track in tracks:
        tasks.add(track.attributes.get("task_id", ""))
        if len(tasks) > 1:
            raise track.error(f"frames of several tasks have the same numbers: {_FIX}")
        own = {
            name: value
            for name, value in (
                ("label", track.attributes.get("label")),
                ("track", track.attributes.get("id")),
            )
            if value is not None
        }
        visible: int | None = None
        for shape in track.children:
            if "frame" not in shape.attributes:
                if shape.tag in _SHAPES:
                    shape.required("frame")
                continue
            number = shape.attribute_pixels("frame")
            keyframes[shape.attributes.get("keyframe", "1")] += 1
            missing += visible is not None and number - visible > video.step
            visible = None
            if all(each.attributes.get("outside") == "1" for each in _parts(shape)):
                continue
            visible = number
            placed = msgspec.structs.replace(shape, attributes={**shape.attributes, **own})
            frames.setdefault(number, []).append(placed)
    if missing and not keyframes["0"]:
        raise InputError(
            uri=uri,
            problem=f"only keyframes are listed ({keyframes['1']:,}, with {missing:,} gaps between "
            f"them), and nothing is computed here: {_FIX}, or export `CVAT for video 1.1` from "
            "CVAT, which lists each frame",
        )
    for number, shapes in sorted(frames.items()):
        yield XmlElement(
            "image",
            line=shapes[0].line,
            uri=uri,
            attributes={
                "id": str(number),
                "name": frame_name(number),
                "width": str(video.width),
                "height": str(video.height),
            },
            children=shapes,
        )


def _parts(shape: XmlElement) -> list[XmlElement]:
    """Returns what says whether a shape is gone: the points of a skeleton, or the shape."""
    return (shape.tag == "skeleton" and shape.all("points")) or [shape]


def _find(element: XmlElement, tag: str) -> Iterator[XmlElement]:
    for child in element.children:
        if child.tag == tag:
            yield child
        else:
            yield from _find(child, tag)
