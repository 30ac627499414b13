"""Keeps what Beam computes of functions and classes, so that small builds take less time."""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from apache_beam.internal import cloudpickle_pickler
from apache_beam.runners.worker import statecache
from apache_beam.transforms import core, userstate
from apache_beam.typehints import decorators


def make_quick(patch: pytest.MonkeyPatch) -> None:
    """Changes functions of Beam that only depend on a function's or a class's code."""
    # What is searched for in a DoFn's methods eight times a step depends on its class alone.
    specs = _kept(userstate.get_dofn_specs, key=type)
    patch.setattr(userstate, "get_dofn_specs", specs)
    signature = _kept(decorators.get_signature, key=_function)
    patch.setattr(decorators, "get_signature", signature)
    patch.setattr(core, "get_signature", signature)
    # Beam tokenizes the source of each DoFn's `process`, to find its `return`.
    body = _kept(core._get_function_body_without_inners, key=lambda function: function.__code__)
    patch.setattr(core, "_get_function_body_without_inners", body)
    # Beam looks through all modules whenever a step reads a side input, to size its cache of them;
    # here no cache comes near its limit.
    patch.setattr(statecache, "get_deep_size", lambda *_: 1)
    # Pickled functions stay in this process: they need not be small.
    patch.setattr(cloudpickle_pickler, "bz2", _Plain)


class _Plain:
    """Has the names of `bz2` that Beam uses, and compresses nothing."""

    @staticmethod
    def compress(data: bytes, **_: int) -> bytes:
        return data

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return data


def _function(function: Any) -> Hashable:  # noqa: ANN401  # Any callable.
    """What a callable's signature depends on; `None` if that may be its state."""
    if isinstance(function, types.MethodType):
        return function.__func__, True
    if isinstance(function, types.FunctionType) and function.__closure__ is None:
        return function, False
    return None


def _kept(compute: Callable[[Any], Any], *, key: Callable[[Any], Hashable]) -> Callable[[Any], Any]:
    """Returns the function, which then keeps each result."""
    found: dict[Hashable, Any] = {}

    def look_up(of: Any) -> Any:  # noqa: ANN401  # What Beam gives.
        name = key(of)
        if name is None:
            return compute(of)
        if name not in found:
            found[name] = compute(of)
        return found[name]

    return look_up
