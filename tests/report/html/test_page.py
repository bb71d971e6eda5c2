"""Tests of partitioner.report.html: one file, whole, safe, and of bounded size."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from partitioner import PartitionerError
from partitioner.report.html import html_page
from partitioner.report.units import format_seconds
from tests.report.html.documents import page_of_gpt2
from tests.report.html.plans import LAYERS, page_of, zoo_plan

MIB = 2**20


class Outline(HTMLParser):
    """Tags with their attributes, and the text that is no script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open:
            self.words.append(data.strip())


def test_the_page_has_all_it_needs_in_itself():
    page = Outline(page_of("gpt-2"))
    for tag, attributes in page.tags:
        for name in ("src", "href", "srcset", "action", "data"):
            address = attributes.get(name)
            assert not address or address[0] == "#" or address == "data:,", tag
    policy = [a["content"] for _, a in page.tags if "http-equiv" in a]
    assert policy[0].startswith("default-src 'none'")
    assert "http" not in policy[0]


def test_the_figures_are_there_without_a_script():
    page = Outline(page_of("gpt-2"))
    for stage in zoo_plan("gpt-2").stages:
        assert format_seconds(stage.time_s) in page.words
        assert format_seconds(stage.backward_s) in page.words
    assert "transformer.wte.weight" in page.words
    headings = [tag for tag, _ in page.tags if tag in ("h1", "h2")]
    assert headings == ["h1", *["h2"] * 9]


def test_every_reference_leads_somewhere_and_every_table_has_headings():
    page = Outline(page_of("gpt-2"))
    names = [a["id"] for _, a in page.tags if "id" in a]
    assert len(names) == len(set(names))
    for _, attributes in page.tags:
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in names
        if "aria-labelledby" in attributes:
            assert attributes["aria-labelledby"] in names
    scopes = [a.get("scope") for tag, a in page.tags if tag == "th"]
    assert scopes
    assert set(scopes) == {"row", "col"}
    shapes = {a["data-shape"] for _, a in page.tags if "data-shape" in a}
    assert {f"shape-{shape}" for shape in shapes} <= set(names)


def test_names_of_models_are_text_and_nothing_else():
    evil = "</script><script>alert(1)</script><b onclick='x'>"
    document = page_of_gpt2()
    document["provenance"]["model_class"] = f"models.{evil}"
    document["stages"][0]["modules"] = [evil]
    document["outline"]["children"][1]["name"] = evil
    document["outline"]["children"][1]["kind"] = evil
    document["assumptions"] = [evil]
    document["comparison"]["splits"][1]["name"] = evil
    plain, changed = Outline(page_of("gpt-2")), Outline(html_page(document))
    count = [tag for tag, _ in plain.tags].count("script")
    assert [tag for tag, _ in changed.tags].count("script") == count
    assert "b" not in {tag for tag, a in changed.tags if "onclick" in a}
    assert evil in changed.words


def test_a_model_of_126_layers_stays_small():
    text = page_of("deep")
    assert len(text.encode()) < 3 * MIB
    # Equal layers are written once: no part is written as often as there are layers.
    assert 0 < len(re.findall(r'<span class="name">query</span>', text)) < LAYERS / 2


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_a_missing_library_is_named_before_anything_is_planned(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    found = util.find_spec
    monkeypatch.setattr(
        "partitioner.report.html.find_spec",
        lambda name: None if name == missing else found(name),
    )
    path = tmp_path / "page.html"
    with pytest.raises(PartitionerError, match=missing.replace("_", "-")) as error:
        zoo_plan("gpt-2").save_html(path)
    assert error.value.hint == "pip install 'fx-partitioner[html]'"
    assert not path.exists()


def test_a_page_that_cannot_be_written_is_an_error(tmp_path: Path):
    with pytest.raises(PartitionerError, match="the page could not be written"):
        zoo_plan("gpt-2").save_html(tmp_path / "absent" / "page.html")
