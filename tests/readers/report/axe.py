"""Looks for what keeps people with disabilities from using a page, with axe-core."""

from __future__ import annotations

import textwrap

import pytest
from playwright.sync_api import Page

from tests.runners.tools import TOOLS

CONTRAST = "color-contrast"


def check_accessibility(page: Page) -> None:
    """Checks what the page shows now, in light and in dark colours.

    Skips the test where axe-core is missing.
    """
    path = TOOLS / "axe" / "axe.min.js"
    if not path.exists():
        pytest.skip("axe-core is not here; `make axe` gets it")
    # The page's content security policy holds for scripts of the page, but not for this one.
    page.evaluate(path.read_text(encoding="utf-8"))
    found = []
    for dark in (False, True):
        page.emulate_media(color_scheme="dark" if dark else "light")
        # Only one rule looks at colours.
        choice = {"runOnly": [CONTRAST]} if dark else {}
        result = page.evaluate("(choice) => axe.run(choice)", choice)
        assert CONTRAST in {rule["id"] for rule in result["passes"]}
        for rule in result["violations"]:
            colours = "dark" if dark else "light"
            found.append(f"{colours}: {rule['id']} ({rule['impact']}): {rule['help']}")
            for element in rule["nodes"]:
                found.append(f"  {element['target']}")
                found.append(textwrap.indent(element["failureSummary"], "    "))
    assert not found, "\n".join(["axe-core finds violations", *found])
