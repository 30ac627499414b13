"""Lists object storage: folders side by side, the names of a folder page after page.

A listing gives names in order, in pages of 1,000, and does not say how many follow. So when other
threads have nothing to do, one more request asks for the folders that follow, and the rest is
divided at their names. A folder without folders in it is listed by one thread. Dividing neither
loses a name nor repeats one, whatever changes in the bucket meanwhile.
"""

from __future__ import annotations

import abc
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import NamedTuple, TypeAlias, cast

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import ListingPart, Storage, StoredFile

PAGE_SIZE = 1000
# Pages that are requested at a time.
_THREADS = 16
# Pages that the first worker lists alone; COCO has 119 pages, so other workers list the rest.
_FIRST_PAGES = 64
# The most requests for names of folders in an attempt to divide a range.
_FOLDER_PAGES = 16
# The fewest pages of a part that holds small folders: its last page costs a request, too, although
# it is not full.
_PAGES_PER_PART = 4


class Page(NamedTuple):
    """A page of a listing.

    Attributes:
        files: Its objects, in order. Paths of objects that represent folders end with a slash.
        folders: The paths of its folders, in order; each ends with a slash.
        token: What the next page is requested with; empty on the last page.
    """

    files: Sequence[StoredFile]
    folders: Sequence[str]
    token: str


class _Range(NamedTuple):
    """Names that are still to be listed.

    Attributes:
        part: The names.
        folder: The folder whose folders may divide them; those above it have none that follow.
        pages: Pages of it that were listed. After 1, 2, 4, 8, ... pages it may be divided, because
            each attempt costs requests.
    """

    part: ListingPart
    folder: str = ""
    pages: int = 0


# The files of a page, and the ranges that are left of the page's range.
_Listed: TypeAlias = tuple[Sequence[StoredFile], Sequence[_Range]]


class ObjectStorage(Storage):
    """A storage that lists the names of objects in pages.

    Objects whose name ends in a slash are left out: consoles create them to represent empty
    folders.
    """

    @abc.abstractmethod
    def list_page(self, part: ListingPart, *, folder: str = "", deep: bool = True) -> Page:
        """Makes one request for names.

        Args:
            part: The names. The page may hold names behind its end, too.
            folder: The folder of the names, a path below the root with a slash at its end; empty
                for the root.
            deep: Whether to list everything below the folder, or its own files and folders.

        Returns:
            The page, without the root's own object; empty if there is nothing.

        Raises:
            InputError: The names cannot be listed.
        """

    def list(self, root: str) -> Iterator[StoredFile]:
        """Yields every object below `root/`."""
        return self.list_part(ListingPart(root))

    def names(self, root: str) -> Iterator[str]:
        """Yields the names directly below `root/`, page by page."""
        part = ListingPart(root)
        while True:
            page = self._list_page(part, deep=False)
            yield from sorted([*page.folders, *(file.path for file in page.files)])
            if not page.token:
                return
            part = msgspec.structs.replace(part, token=page.token)

    def begin_listing(self, root: str) -> Iterator[StoredFile | ListingPart]:
        """Lists the first pages, and yields the rest as parts."""
        return self._list(ListingPart(root), max_pages=_FIRST_PAGES)

    def list_part(self, part: ListingPart) -> Iterator[StoredFile]:
        """Yields the objects of a part."""
        return cast(Iterator[StoredFile], self._list(part, max_pages=None))

    def _list(
        self, part: ListingPart, *, max_pages: int | None
    ) -> Iterator[StoredFile | ListingPart]:
        # The first page alone: often there are no more, or the caller wants no more.
        files, rest = self._list_range(_Range(part), spare_threads=0)
        yield from files
        pages = 1
        waiting = deque(rest)
        running: set[Future[_Listed]] = set()
        listed: Sequence[Sequence[StoredFile]] = ()
        with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="list") as executor:
            while waiting or running or listed:
                # The next pages are requested before the caller gets the last ones.
                while waiting and len(running) < _THREADS and pages != max_pages:
                    spare = _THREADS - len(running) - len(waiting)
                    names = waiting.popleft()
                    running.add(executor.submit(self._list_range, names, spare_threads=spare))
                    pages += 1
                for files in listed:
                    yield from files
                if not running:
                    break
                done, running = wait(running, return_when=FIRST_COMPLETED)
                results = [future.result() for future in done]
                listed = [files for files, _ in results]
                waiting.extend(itertools.chain.from_iterable(rest for _, rest in results))
        yield from (names.part for names in waiting)

    def _list_range(self, names: _Range, *, spare_threads: int) -> _Listed:
        """Lists a page of a range, and divides the rest if other threads have nothing to do."""
        page = self._list_page(names.part)
        files = [file for file in page.files if not file.path.endswith("/")]
        if not page.token:
            return files, []
        rest = names._replace(part=_rest(names.part, page), pages=names.pages + 1)
        if spare_threads < 2 or rest.part.token or rest.pages & (rest.pages - 1):
            return files, [rest]
        return files, self._divide(rest, page=page, max_ranges=spare_threads)

    def _list_page(self, part: ListingPart, *, folder: str = "", deep: bool = True) -> Page:
        """Lists a page, without what lies behind the part's end."""
        try:
            page = self.list_page(part, folder=folder, deep=deep)
        except InputError as error:
            if not part.token:
                raise
            raise InputError(
                uri=error.uri,
                problem=f"{error.problem} (requested with the page token {part.token}; if that has "
                "expired, run the same command again)",
            ) from error
        if not part.end:
            return page
        files = [file for file in page.files if file.path < part.end]
        folders = [each for each in page.folders if each < part.end]
        is_cut = len(files) + len(folders) < len(page.files) + len(page.folders)
        return Page(files, folders, "" if is_cut else page.token)

    def _divide(self, names: _Range, *, page: Page, max_ranges: int) -> Sequence[_Range]:
        """Divides a range at names of folders, if it holds enough folders.

        Args:
            names: The range.
            page: The page before it.
            max_ranges: The most ranges to make.
        """
        start = names.part.start
        # Files may lie behind it.
        folder = names.folder if start.startswith(names.folder) else ""
        is_followed = False
        while True:
            seen = {_step(file.path, folder) for file in page.files if file.path.startswith(folder)}
            # The larger the folders, the fewer the requests for their names among the others.
            max_pages = max(1, _FOLDER_PAGES // len(seen))
            borders, has_more = self._find_folders(names.part, folder, max_pages=max_pages)
            # Folders that are smaller than a page stay together.
            ended = len(seen) - 1
            most = len(borders) // max(1, ended * _PAGES_PER_PART)
            if most:
                number = min(most, max_ranges - 1)
                chosen = [
                    borders[len(borders) * one // (number + 1)] for one in range(1, number + 1)
                ]
                *parts, last = [
                    msgspec.structs.replace(names.part, start=one, end=other)
                    for one, other in itertools.pairwise([start, *chosen, names.part.end])
                ]
                # Only the last part may hold more folders than were found.
                pages = 2 * _PAGES_PER_PART if ended else 0
                return [*(_Range(part, folder, pages) for part in parts), _Range(last, folder)]
            step = _step(start, folder)
            if not step.endswith("/"):
                return [names]
            folder += step
            is_followed = is_followed or has_more or bool(borders)
            if not is_followed:
                names = names._replace(folder=folder)

    def _find_folders(
        self, part: ListingPart, folder: str, *, max_pages: int
    ) -> tuple[Sequence[str], bool]:
        """Finds folders of a part behind its start; returns them, and whether more follow."""
        folders: Sequence[str] = []
        for _ in range(max_pages):
            page = self._list_page(part, folder=folder, deep=False)
            # Without the folder in which the part begins.
            folders = [*folders, *(each for each in page.folders if each > part.start)]
            part = msgspec.structs.replace(part, token=page.token)
            if not page.folders or not page.token:
                break
        return folders, bool(part.token)


def _rest(part: ListingPart, page: Page) -> ListingPart:
    """Returns what is left of a part behind a page.

    It begins at a name rather than with a token: tokens can expire.

    Raises:
        InputError: The names are not in order.
    """
    names = [part.start, *(file.path for file in page.files)]
    is_sorted = all(one < other for one, other in itertools.pairwise(names))
    if is_sorted and len(names) > 1 and not part.token:
        return msgspec.structs.replace(part, start=names[-1])
    # A page may be empty although more follow. Some kinds of buckets do not sort their names.
    if len(names) == 1 or part.token or not part.start:
        return msgspec.structs.replace(part, token=page.token)
    raise InputError(
        uri=part.root,
        problem=f"the storage does not list names in order: some after {part.start!r} come before "
        "it; copy the files to a bucket of another kind",
    )


def _step(path: str, folder: str) -> str:
    """Returns the first component of a path below a folder, with its slash if it is a folder."""
    return "".join(path[len(folder) :].partition("/")[:2])
