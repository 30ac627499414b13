from __future__ import annotations

import pickle

from apache_beam.options.pipeline_options import (
    DirectOptions,
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
)

from shardbeam.pipelines.beam_options import PipelineViews

GIVEN = {"runner": "PrismRunner", "project": "p", "direct_num_workers": 2}


def test_views_say_what_beams_own_say() -> None:
    ours, beams = PipelineViews([], **GIVEN), PipelineOptions([], **GIVEN)
    for options in (ours, beams):
        assert options.view_as(StandardOptions).runner == "PrismRunner"
        assert options.view_as(GoogleCloudOptions).project == "p"
    assert ours.get_all_options() == beams.get_all_options()


def test_a_view_is_made_once_and_shows_what_is_set_through_another() -> None:
    options = PipelineViews([], **GIVEN)
    view = options.view_as(DirectOptions)
    assert options.view_as(DirectOptions) is view
    options.view_as(StandardOptions).view_as(DirectOptions).direct_num_workers = 5
    assert view.direct_num_workers == 5


def test_options_travel() -> None:
    options = PipelineViews([], **GIVEN)
    options.view_as(StandardOptions)
    copy = pickle.loads(pickle.dumps(options))
    assert copy.get_all_options() == options.get_all_options()
