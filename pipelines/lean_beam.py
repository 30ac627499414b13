"""Importing Beam without what a run on this machine does not use."""

from __future__ import annotations

import contextlib
import importlib.machinery
import logging
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType

# What Beam imports for its own sources and sinks, and to submit jobs. It is made to do without, as
# they may not be installed. Whatever imports them afterwards gets them.
_CLIENTS = frozenset(
    (
        "apache_beam.io.gcp.bigquery",
        "apitools",
        "google.cloud.bigquery",
        "google.cloud.bigquery_storage_v1",
        "google.cloud.dataflow",
        "google.cloud.pubsub",
        "google.cloud.storage",
        "pymongo",
    )
)


class _HideClients:
    """An import hook by which these packages are not there."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if name in _CLIENTS:
            raise ModuleNotFoundError(f"{name} is not wanted here", name=name)
        return None


class _NoSubhintError(Exception):
    """What Beam takes for beartype's own."""


def _is_subhint(hint: object, of: object) -> bool:
    from beartype import door, roar

    try:
        return door.is_subhint(hint, of)
    except roar.BeartypeDoorException as error:
        raise _NoSubhintError from error


@contextlib.contextmanager
def _later_beartype() -> Iterator[None]:
    """Keeps beartype out of Beam's imports, until a type hint asks for it, which is rare.

    Of all that Beam imports it takes the longest.
    """
    door = ModuleType("beartype.door")
    vars(door)["is_subhint"] = _is_subhint
    roar = ModuleType("beartype.roar")
    vars(roar)["BeartypeDoorException"] = _NoSubhintError
    later = {"beartype.door": door, "beartype.roar": roar}
    if later.keys() & sys.modules.keys():
        yield
        return
    sys.modules.update(later)
    try:
        yield
    finally:
        for name in later:
            sys.modules.pop(name, None)


def import_lean_beam() -> None:
    """Imports Beam without what it has for other services: in a third less of the time.

    Its sources and sinks for BigQuery, Pub/Sub and MongoDB, and DataflowRunner, stay without in
    this process. Storage on `gs://` is not Beam's here, and works all the same. Does nothing where
    Beam is imported already.
    """
    sys.meta_path.insert(0, _HideClients)
    # It would warn of what is not there.
    logging.disable(logging.WARNING)
    try:
        with _later_beartype():
            import apache_beam  # noqa: F401
    finally:
        logging.disable(logging.NOTSET)
        sys.meta_path.remove(_HideClients)
