"""A browser that blocks other requests and collects all complaints of the page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, sync_playwright

from tests.support.builds import Build, build_config
from tests.support.planted import write_planted

CHROMIUM_VARIABLE = "SHARDBEAM_CHROMIUM"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Opens a page at a width.
OpenPage = Callable[..., Page]


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A dataset in which one image of each kind is worth a look (`tests.support.planted`)."""
    folder = tmp_path_factory.mktemp("planted")
    config = {"name": "planted", "splits": {"train": write_planted(folder)}}
    return build_config(config, folder=folder)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = os.environ.get(CHROMIUM_VARIABLE) or next(filter(None, map(shutil.which, _NAMES)), None)
    if path is None:
        pytest.skip(f"no Chromium is here; {CHROMIUM_VARIABLE} may name one")
    # Root has no sandbox to be in.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens pages from the disk; fails the test if one complains or asks for anything."""
    complaints: list[str] = []
    contexts = []

    def open_(path: Path, *, width: int = 1440) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(5_000)
        uri = path.as_uri()

        def answer(route: Route) -> None:
            if route.request.url.partition("#")[0] == uri:
                route.continue_()
            else:
                complaints.append(f"asks for {route.request.url}")
                route.abort()

        def hear(message: ConsoleMessage) -> None:
            complaints.append(f"{message.type}: {message.text}")

        page.route("**/*", answer)
        page.on("console", hear)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.add_init_script(
            "document.addEventListener('securitypolicyviolation',"
            " (event) => console.error(`policy: ${event.violatedDirective}`))"
        )
        page.goto(uri)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
