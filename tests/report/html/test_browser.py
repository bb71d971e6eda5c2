"""A page in a real browser: it opens, opens its boxes, and says the plan's numbers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from partitioner.report.units import format_bytes, format_seconds
from tests.report.html.browser import (
    MISSING,
    contrasts,
    faults,
    marks,
    open_page,
    opened_browser,
    requested,
)
from tests.report.html.plans import LAYERS, ZOO, Block, deep_plan, page_of, zoo_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selenium.webdriver.remote.webelement import WebElement

LEAST_CONTRAST = 4.5
"""What WCAG 2 asks for (level AA)."""

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    with opened_browser() as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("pages")

    @cache
    def page(name: str) -> Path:
        path = folder / f"{name}.html"
        path.write_text(page_of(name), encoding="utf-8")
        return path

    return page


def box(driver: Chrome, *names: str) -> WebElement:
    """Find a box by the names of the boxes around it and its own."""
    found = driver.find_element(By.CSS_SELECTOR, ".model")
    for name in names:
        boxes = found.find_elements(By.CSS_SELECTOR, ":scope > .flow > .row > .box")
        (found,) = [one for one in boxes if name_of(one) == name]
    return found


def name_of(found: WebElement) -> str:
    name = found.find_element(By.CSS_SELECTOR, ":scope > summary > .name")
    return str(name.get_property("textContent"))


def inside(found: WebElement) -> list[str]:
    boxes = found.find_elements(By.CSS_SELECTOR, ":scope > .flow > .row > .box")
    return [name_of(one) for one in boxes if one.is_displayed()]


def filled(driver: Chrome, found: WebElement) -> list[str]:
    """Return what is inside of a box once it is there: the page fills it on opening."""
    names: list[str] = WebDriverWait(driver, 20).until(lambda _: inside(found))
    return names


def facts(found: WebElement) -> dict[str, str]:
    rows = found.find_elements(By.CSS_SELECTOR, ":scope > .facts > div")
    pairs = [row.find_elements(By.CSS_SELECTOR, "dt, dd") for row in rows]
    return {label.text: value.text for label, value in pairs}


def closed(found: WebElement) -> WebElement:
    if found.get_attribute("open") is not None:
        found.find_element(By.CSS_SELECTOR, "summary").click()
    return found


def tooltip(driver: Chrome, chart: str, said: str) -> dict[str, str]:
    """Put the pointer on a bar and read what appears."""
    bar = driver.find_element(By.CSS_SELECTOR, f'#{chart} [aria-label^="{said}"]')
    here = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
    driver.execute_script(here, bar)
    ActionChains(driver).move_to_element(bar).perform()
    shown = WebDriverWait(driver, 10).until(
        lambda found: found.find_element(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
    )
    rows = shown.find_elements(By.CSS_SELECTOR, "tr")
    pairs = [row.find_elements(By.CSS_SELECTOR, "td") for row in rows]
    return {key.text: value.text for key, value in pairs}


@pytest.mark.parametrize("name", ZOO)
def test_a_page_opens_without_a_fault_and_asks_for_nothing(browser, pages, name):
    open_page(browser, pages(name))
    assert faults(browser) == []
    elsewhere = [url for url in requested(browser) if not url.startswith("data:")]
    assert elsewhere == [pages(name).as_uri()]
    charts = browser.find_elements(By.CSS_SELECTOR, ".chart")
    assert len(charts) == 4
    for chart in charts:
        assert chart.find_elements(By.CSS_SELECTOR, "svg path")
        assert len(str(chart.get_attribute("aria-label"))) > 20
        assert chart.get_attribute("role") == "graphics-document"


@pytest.mark.parametrize("name", ZOO)
def test_a_stage_under_the_pointer_says_the_plans_numbers(browser, pages, name):
    open_page(browser, pages(name))
    plan = zoo_plan(name)
    for stage in plan.stages:
        said = tooltip(browser, "stage-times", f"stage {stage.index}, backward")
        assert said == {
            "where": f"stage {stage.index}",
            "what": "backward",
            "time": format_seconds(stage.backward_s),
            "whole stage": format_seconds(stage.time_s),
        }
        said = tooltip(browser, "memory-kinds", f"stage {stage.index}, weights")
        assert said["size"] == format_bytes(stage.held.weight_bytes)
        assert said["whole stage"] == format_bytes(stage.memory_bytes)


def test_a_module_opens_by_key_and_says_what_it_costs(browser, pages):
    open_page(browser, pages("gpt-2"))
    plan = zoo_plan("gpt-2")
    rows = {row["name"]: row for row in plan.breakdown("module", depth=4)["rows"]}
    layer = closed(box(browser, "transformer", "h.0"))
    assert inside(layer) == []
    layer.find_element(By.CSS_SELECTOR, "summary").send_keys(Keys.ENTER)
    assert filled(browser, layer)[:2] == ["ln_1", "attn"]
    row = rows["transformer.h.0"]
    assert facts(layer)["forward"] == format_seconds(row["forward_s"])
    assert facts(layer)["saved for backward"] == format_bytes(row["saved_bytes"])
    assert browser.switch_to.active_element.tag_name == "summary"
    browser.switch_to.active_element.send_keys(Keys.SPACE)
    WebDriverWait(browser, 20).until(lambda _: not inside(layer))


def test_every_summary_is_reached_by_tab_and_opens_by_click(browser, pages):
    open_page(browser, pages("gpt-2"))
    outer = box(browser, "transformer")
    first = outer.find_element(By.CSS_SELECTOR, "summary")
    browser.execute_script("arguments[0].focus()", first)
    browser.switch_to.active_element.send_keys(Keys.TAB)
    reached = browser.switch_to.active_element
    assert reached.find_element(By.CSS_SELECTOR, ".name").text == inside(outer)[0]
    reached.click()
    opened = reached.find_element(By.XPATH, "..")
    WebDriverWait(browser, 20).until(lambda _: "forward" in facts(opened))


@pytest.mark.parametrize("name", ZOO)
def test_cuts_stand_between_the_stages_with_the_plans_bytes(browser, pages, name):
    open_page(browser, pages(name))
    browser.find_element(By.CSS_SELECTOR, "[data-open=cut]").click()
    cuts = [one.text for one in browser.find_elements(By.CSS_SELECTOR, ".model .cut")]
    for boundary in zoo_plan(name).to_dict()["boundaries"]:
        stage = boundary["after_stage"]
        size = format_bytes(sum(value["bytes"] for value in boundary["values"]))
        drawn = [cut for cut in cuts if cut.startswith(f"stage {stage}\n")]
        assert drawn
        for text in drawn:
            assert size in text
            assert ("part of" in text) == (len(drawn) > 1)
            assert text.endswith(f"stage {stage + 1}")


def test_lines_join_the_boxes_that_hand_tensors_on(browser, pages):
    open_page(browser, pages("u-net"))
    drawn = "return document.querySelectorAll('.model .lines path').length"
    WebDriverWait(browser, 20).until(lambda found: found.execute_script(drawn) > 0)
    browser.find_element(By.CSS_SELECTOR, "[data-open='']").click()
    flow = browser.find_element(By.CSS_SELECTOR, ".model > .flow")
    lines = flow.find_elements(By.CSS_SELECTOR, ":scope > .lines .mark-line path")
    row = flow.find_element(By.CSS_SELECTOR, ".row:nth-child(2) > .box")
    first = lines[0]
    # The first line ends at the top of the second row, wherever that is by now.
    WebDriverWait(browser, 20).until(
        lambda _: abs(bottom(first) - row.rect["y"]) < 3,
        f"{bottom(first)} is not {row.rect['y']}",
    )


def bottom(found: WebElement) -> float:
    return float(found.rect["y"] + found.rect["height"])


def test_the_page_follows_the_system_and_the_button_to_the_dark(browser, pages):
    open_page(browser, pages("gpt-2"))
    button = browser.find_element(By.ID, "theme")

    def paper() -> str:
        script = "return getComputedStyle(document.body).backgroundColor"
        return str(browser.execute_script(script))

    light = paper()
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        assert paper() != light
        # The page is told of the system's colours a moment after they are there.
        WebDriverWait(browser, 10).until(lambda _: button.text == "Light")
        button.click()
        assert paper() == light
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(browser, pages, theme):
    open_page(browser, pages("deep"))  # eight stages: every colour that stages have
    chosen = "document.documentElement.dataset.theme = arguments[0]"
    browser.execute_script(chosen, theme)
    found = contrasts(browser)
    assert len(found) > 200
    assert [one for one in found if one[0] < LEAST_CONTRAST] == []


@pytest.mark.parametrize("width", [380, 900])
@pytest.mark.parametrize("name", [*ZOO, "deep"])
def test_a_narrow_window_scrolls_in_one_direction_alone(browser, pages, name, width):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        open_page(browser, pages(name))
        needed = "return document.documentElement.scrollWidth"
        assert browser.execute_script(needed) <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_equal_layers_of_a_deep_model_are_one_box_each_and_open(browser, pages):
    open_page(browser, pages("deep"))
    assert faults(browser) == []
    assert set(marks(browser)) == {"interactive", "drawn"}
    root = browser.find_element(By.CSS_SELECTOR, ".model")
    names = inside(root)
    groups = [name for name in names if "…" in name]
    assert len(names) < LAYERS / 2
    group = closed(box(browser, groups[0]))
    group.find_element(By.CSS_SELECTOR, "summary").click()
    layers = filled(browser, group)
    first, last = groups[0].removeprefix("layers.").split("…")
    assert layers == [f"layers.{i}" for i in range(int(first), int(last) + 1)]
    layer = box(browser, groups[0], layers[1])
    layer.find_element(By.CSS_SELECTOR, "summary").send_keys(Keys.ENTER)
    assert set(dict(Block(4).named_children())) <= set(filled(browser, layer))
    row = next(
        row
        for row in deep_plan().breakdown("module")["rows"]
        if row["name"] == layers[1]
    )
    assert facts(layer)["backward"] == format_seconds(row["backward_s"])


def test_a_module_deep_inside_is_found_by_its_path(browser, pages):
    open_page(browser, pages("deep"))
    field = browser.find_element(By.CSS_SELECTOR, ".tools input")
    field.send_keys("layers.57.value", Keys.ENTER)
    found = browser.switch_to.active_element
    assert found.find_element(By.CSS_SELECTOR, ".name").text == "value"
    assert found.find_element(By.CSS_SELECTOR, ".type").text == "Linear"
    outer = found.find_element(By.XPATH, "../ancestor::details[1]")
    assert name_of(outer) == "layers.57"
    assert browser.find_element(By.CSS_SELECTOR, ".tools output").text == ""
    field.clear()
    field.send_keys("layers.126", Keys.ENTER)
    said = browser.find_element(By.CSS_SELECTOR, ".tools output").text
    assert said == "The forward calls no module layers.126."


def test_the_step_is_zoomed_with_the_keyboard(browser, pages):
    open_page(browser, pages("gpt-2"))

    def passes() -> list[WebElement]:
        return browser.find_elements(By.CSS_SELECTOR, "#step-events .mark-rect path")

    before, width = len(passes()), passes()[0].rect["width"]
    zoom = browser.find_element(By.CSS_SELECTOR, "#step-events input[name=zoom]")
    zoom.send_keys(Keys.END)
    WebDriverWait(browser, 10).until(
        lambda _: passes()[0].rect["width"] == pytest.approx(40 * width, rel=0.1)
    )
    assert len(passes()) == before
