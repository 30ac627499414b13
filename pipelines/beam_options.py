"""Beam's options, cheaper to ask."""

from __future__ import annotations

from typing import Any, TypeVar

from apache_beam.options.pipeline_options import PipelineOptions

T = TypeVar("T", bound=PipelineOptions)


class PipelineViews(PipelineOptions):
    """Options that make each of their views once.

    Beam asks for views several times for every step of a graph, and makes a parser each time: half
    the time of building a graph. Views hold no values of their own, so one serves as well as two.
    """

    def view_as(self, cls: type[T]) -> T:
        """Returns a view of these options; see the base class."""
        # Past the base class, which takes attributes for options.
        views: dict[type[PipelineOptions], Any] = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]
