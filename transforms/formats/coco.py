"""COCO: one JSON file, or several, for many images.

The format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardbeam.transforms.core.records import AnnotationEntry, Category, MaskRole
from shardbeam.transforms.formats.base import Format, Place, Role
from shardbeam.transforms.formats.coco_file import AnnotationReader, CocoFile, CocoImage, Wanted
from shardbeam.transforms.formats.coco_panoptic import PanopticReader, list_masks
from shardbeam.transforms.formats.coco_tasks import (
    Task,
    in_order,
    is_stuff_name,
    kinds_of_tasks,
    sniff_tasks,
)
from shardbeam.transforms.formats.names import listing_exclusion, normalize_key, without_extension
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

_NEEDED = {
    Task.DETECTION: "annotations",
    Task.KEYPOINTS: "annotations",
    Task.CAPTIONS: "annotations",
    Task.CLASSIFICATION: "annotations",
    Task.PANOPTIC: "panoptic and panoptic_masks",
    Task.SEMANTIC: "semantic_masks, or annotations of stuff",
}


class CocoFormat(Format):
    """COCO: instances, keypoints, captions, stuff and panoptic segments, merged on the image.

    `file_name` is the image's key. Of images with one id the first keeps the id and its
    annotations, and the later ones are duplicates by id, whatever their `file_name`; of images
    with one `file_name` and several ids the first keeps the file. An annotation that repeats the
    id (or the lack of one), category and box of an earlier one is left out.

    Images and annotations are joined by the key, or, where there are semantic masks, which have
    another extension, by the key without its extension.

    Args:
        annotations: The JSON files of instances, keypoints, captions and stuff.
        panoptic: The JSON file of panoptic segments.
        panoptic_masks: The folder of its PNGs.
        semantic_masks: A folder of PNGs with a class id a pixel, named as the images.
        tasks: Which keys to fill (`Task`). Where None, `resolved_settings` finds out what the
            files have; until then, it is objects, and the masks that are given.
        masks: Whether objects carry their segmentation.

    Raises:
        TypeError: `annotations` is no list of names.
        ValueError: A task is not known, or has no file.
    """

    def __init__(
        self,
        *,
        annotations: Sequence[str] = (),
        panoptic: str | None = None,
        panoptic_masks: str | None = None,
        semantic_masks: str | None = None,
        tasks: Sequence[str] | None = None,
        masks: bool = False,
    ) -> None:
        # A lone string is a sequence of strings as well.
        if isinstance(annotations, str) or not all(isinstance(uri, str) for uri in annotations):
            raise TypeError("annotations: expected a list of files")
        if (panoptic is None) != (panoptic_masks is None):
            raise ValueError("panoptic and panoptic_masks: expected both or none")
        if not annotations and panoptic is None and semantic_masks is None:
            raise ValueError(
                "annotations: expected at least one file, or panoptic, or semantic_masks"
            )
        self._annotations = tuple(annotations)
        self._panoptic = panoptic
        self._panoptic_masks = panoptic_masks
        self._semantic_masks = semantic_masks
        self._masks = masks
        self._are_tasks_given = tasks is not None
        self._tasks = (
            self._with_masks({Task.DETECTION} if annotations else set())
            if tasks is None
            else frozenset(map(Task, tasks))
        )
        for task in self._tasks:
            self._check_task(task)
        self.kinds = kinds_of_tasks(self._tasks, masks=masks)

    def resolved_settings(self) -> Mapping[str, Any]:
        """Tells the tasks from the beginnings of the files, unless they are given.

        A source without any annotation is one of objects: of images that show none.
        """
        if self._are_tasks_given:
            return {}
        found: set[Task] = set()
        for uri in self._annotations:
            found |= sniff_tasks(uri, storage=storage_for(uri))
        tasks = self._with_masks(found)
        return {"tasks": in_order(tasks or {Task.DETECTION})}

    def place(self, path: str, *, root: int) -> Place:
        """Tells images, and the PNGs of segments and of classes, by their root.

        The roots are those of the images, of `panoptic_masks` and of `semantic_masks`, as far as
        they are given. PNGs of segments are named by their JSON file; here they only count as
        input.
        """
        key = normalize_key(path)
        if root == 0:
            return Place(role=Role.IMAGE, key=key, join=self._join_of(key))
        if listing_exclusion(path) is not None:
            return Place(role=Role.OTHER)
        if root == 1 and self._panoptic_masks is not None:
            return Place(role=Role.ATTACHED)
        if Task.SEMANTIC not in self._tasks:
            return Place(role=Role.OTHER)
        return Place(role=Role.MASK, join=self._join_of(key), mask=MaskRole.SEMANTIC)

    def annotation_files(self) -> Sequence[str]:
        """URIs of the JSON files, that of panoptic segments last."""
        if self._panoptic is None or Task.PANOPTIC not in self._tasks:
            return self._annotations
        return (*self._annotations, self._panoptic)

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one JSON file; see the base class.

        Yields:
            An entry for each of `images`, one with the defect `UNKNOWN_IMAGE_ID` for each image
            id that only annotations name, and the categories.
        """
        uri = self.annotation_files()[file_index]
        file = CocoFile(uri, storage=storage, image_type=CocoImage)
        reader = (
            AnnotationReader(file, wanted=self._wanted(uri))
            if file_index < len(self._annotations)
            else PanopticReader(file, masks=list_masks(self._panoptic_masks or ""))
        )
        yield from file.entries(
            reader.annotate, key_of=_key_of, join_of=self._join_of, file_index=file_index
        )
        yield from reader.categories()

    def _with_masks(self, tasks: set[Task]) -> frozenset[Task]:
        if self._panoptic is not None:
            tasks = tasks | {Task.PANOPTIC}
        if self._semantic_masks is not None:
            tasks = tasks | {Task.SEMANTIC}
        return frozenset(tasks)

    def _check_task(self, task: Task) -> None:
        given = bool(self._annotations)
        if task is Task.PANOPTIC:
            given = self._panoptic is not None
        elif task is Task.SEMANTIC:
            given = given or self._semantic_masks is not None
        if not given:
            raise ValueError(f"tasks: {task.value} needs {_NEEDED[task]}")

    def _join_of(self, key: str) -> str:
        return key if self._semantic_masks is None else without_extension(key)

    def _wanted(self, uri: str) -> Wanted:
        objects = not self._tasks.isdisjoint((Task.DETECTION, Task.KEYPOINTS))
        # Where there are no other objects than stuff, its file may have any name.
        stuff = Task.SEMANTIC in self._tasks and (is_stuff_name(uri) or not objects)
        return Wanted(
            objects=objects and not stuff,
            segmentations=self._masks,
            keypoints=Task.KEYPOINTS in self._tasks,
            captions=Task.CAPTIONS in self._tasks,
            labels=Task.CLASSIFICATION in self._tasks,
            stuff=stuff,
        )


def _key_of(image: CocoImage) -> str:
    return normalize_key(image.file_name)
