"""The page of `border-report` in a real browser, without a network: what is drawn, and what the controls do."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.report import main
from tests.unit.test_report import write_run

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("plotly")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = [
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    with sync_api.sync_playwright() as p:
        yield p.chromium.launch(executable_path=CHROMIUM, args=options)


@pytest.fixture(params=[(400, "dark"), (1600, "light")], ids=str)
def page(browser: Any, tmp_path: Path, request: Any) -> Iterator[Any]:
    """The open page of two groups with two seeds each. Nothing may be loaded, and the console stays empty."""
    for lr in (1e-3, 5e-4):
        for seed in (1, 2):
            points = [(n, n * seed / 100, n * lr * seed) for n in (1000, 2000, 3000)]
            write_run(tmp_path / f"{lr}-{seed}", points, lr=lr, seed=seed)
    assert main([str(tmp_path)]) == 0
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened, wrong = context.new_page(), list[str]()
    opened.on("console", lambda message: wrong.append(message.text))
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on(
        "request", lambda r: None if r.url.startswith(("file:", "data:", "blob:")) else wrong.append(r.url)
    )
    opened.goto((tmp_path / "report" / "report.html").as_uri())
    opened.wait_for_selector(".plot .scatterlayer .trace")
    yield opened
    assert wrong == []
    context.close()


def lines(page: Any) -> int:
    return int(page.locator(".plot .scatterlayer .trace").count())


def test_it_fits_the_window_and_each_control_changes_the_curves(page: Any) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert lines(page) == 6  # two means, four runs
    page.get_by_label("single runs").uncheck()
    assert lines(page) == 2
    page.get_by_label("agent.lr=0.0005").uncheck()
    assert lines(page) == 1
    page.get_by_label("single runs").check()
    page.locator("#legend summary").last.click()
    page.get_by_label("seed 2").last.uncheck()
    assert lines(page) == 2
    page.get_by_label("seconds", exact=True).check()
    assert page.locator(".plot .xtitle").text_content() == "seconds"
    page.locator("#metric").select_option("train/episodes")
    assert "train/episodes" in page.locator(".plot .ytitle").text_content()


def test_the_pointer_shows_values(page: Any) -> None:
    page.get_by_label("single runs").uncheck()
    page.locator(".plot").scroll_into_view_if_needed()
    box = page.locator(".plot .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.995, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hoverlayer text")
    shown = " ".join(page.locator(".hoverlayer text").all_text_contents())
    at, *values = (float(figure.replace(",", "")) for figure in re.findall(r"(?:^| : )([\d,.]+)", shown))
    # the means over seeds 1 and 2 of n · lr · seed
    assert at > 2900 and sorted(values) == pytest.approx([at * 1.5 * 5e-4, at * 1.5 * 1e-3], rel=1e-3)


def test_a_click_on_a_head_sorts_a_table(page: Any) -> None:
    names = lambda: page.locator("table").first.locator("tbody td:first-child").all_text_contents()  # noqa: E731
    head = page.get_by_role("button", name="last score")
    head.click()
    assert [name.rpartition("=")[2] for name in names()] == ["0.001", "0.0005"]
    head.click()
    assert [name.rpartition("=")[2] for name in names()] == ["0.0005", "0.001"]
