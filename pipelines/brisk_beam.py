"""Beam in this process, without what it does again and again there, and without its waits.

A build is some twenty bundles, one after another. By itself each takes about 10 ms whatever there
is to do, and up to a fifth of its time more for nothing: Beam is made for few bundles that take
minutes. What a pipeline does stays the same.
"""

from __future__ import annotations

import bz2
import contextlib
import functools
import threading
import types
from collections.abc import Iterator
from typing import Any

from apache_beam.internal import cloudpickle_pickler
from apache_beam.runners.worker import statesampler
from apache_beam.transforms import core, userstate
from apache_beam.typehints import decorators

# Pickles begin otherwise.
_BZ2_MAGIC = b"BZh"
# Beam's own, of each stack.
_FRAMES_SKIPPED = 2

_Specs = tuple[set[Any], set[Any]]

_find_specs = userstate.get_dofn_specs
_inspect_arguments = core.get_function_args_defaults
_specs_by_class: dict[type, _Specs] = {}


@contextlib.contextmanager
def brisk_beam(*, in_memory: bool = False) -> Iterator[None]:
    """Makes Beam quick within the context; nothing else should run a pipeline meanwhile.

    Args:
        in_memory: Whether what is pickled in the context stays in this process.
    """
    with (
        # A thread samples where time goes, which nobody asks for. At the end of a bundle Beam waits
        # for it: it sleeps, for up to a fifth of the bundle's time or 200 ms.
        _replaced(statesampler, "StateSampler", _NoSampler),
        # Whenever a step is made, checked, encoded and set up, Beam inspects all the methods that
        # its DoFn has, some thirty. Most are those of DoFn itself.
        _replaced(userstate, "get_dofn_specs", _specs),
        _replaced(core, "get_function_args_defaults", _arguments),
        # It reads the source of each step for a likely mistake.
        _replaced(core, "_check_fn_use_yield_and_return", lambda _: False),
        # It formats the stack for each type hint, to say where a wrong one came from.
        _replaced(decorators, "TRACEBACK_LIMIT", -_FRAMES_SKIPPED),
        # Level 9 clears 7 MB for each pickle of a few KB. What is packed can be read by any Beam.
        _replaced(cloudpickle_pickler, "bz2", _NoBz2 if in_memory else _LightBz2),
    ):
        yield


@contextlib.contextmanager
def _replaced(module: types.ModuleType, name: str, value: object) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


class _NoSampler(statesampler.StateSampler):
    """Follows which step is running, and does not sample it."""

    def start(self) -> None:
        self.tracked_thread = threading.current_thread()
        statesampler.set_current_tracker(self)
        self.started = True

    def stop(self) -> None:
        statesampler.set_current_tracker(None)
        self.finished = True


def _specs(do_fn: core.DoFn) -> _Specs:
    """Finds the states and timers that a DoFn's methods ask for."""
    if any(isinstance(value, types.MethodType) for value in vars(do_fn).values()):
        return _find_specs(do_fn)
    kind = type(do_fn)
    if kind not in _specs_by_class:
        _specs_by_class[kind] = _find_specs(do_fn)
    states, timers = _specs_by_class[kind]
    return set(states), set(timers)


class _Bound:
    """Whatever a method is bound to: its arguments do not depend on it."""


@functools.lru_cache(maxsize=1024)
def _method_arguments(function: types.FunctionType) -> tuple[list[str], list[Any]]:
    return _inspect_arguments(types.MethodType(function, _Bound()))


def _arguments(function: Any) -> tuple[list[str], list[Any]]:  # noqa: ANN401  # As Beam has it.
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        names, defaults = _method_arguments(function.__func__)
        return list(names), list(defaults)
    return _inspect_arguments(function)


class _LightBz2:
    @staticmethod
    def compress(data: bytes, compresslevel: int = 9) -> bytes:
        del compresslevel
        return bz2.compress(data, compresslevel=1)

    decompress = staticmethod(bz2.decompress)


class _NoBz2:
    """Leaves pickles as they are; other Beams' are unpacked all the same."""

    @staticmethod
    def compress(data: bytes, compresslevel: int = 9) -> bytes:
        del compresslevel
        return data

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return bz2.decompress(data) if data.startswith(_BZ2_MAGIC) else data
