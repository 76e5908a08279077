"""The page: self-contained, escaped, readable at both widths and in both themes."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from temper.display.views import Heading
from temper.report import build
from tests.report.browser import Browser
from tests.report.conftest import Plan, write_run, write_study

MakeStudy = Callable[[Plan], Path]

ROBUSTNESS = "#robustness"
SCRIPT = "<script>window.attacked = 1; alert(1)</script>"
END = "</script><img src=x onerror='window.attacked = 1'>"
LONG = "model-" * 60


def hostile() -> Plan:
    return Plan(
        columns=["plain", f"uegr{END}"],
        model=SCRIPT + LONG,
        labels=[SCRIPT, END],
        shifts=[f"imdb{SCRIPT}", f'yelp" autofocus onfocus="window.attacked = 1{END}'],
        anomaly=f"trec{END}",
        notices=[f"12 rows {SCRIPT}", f"{END} and {LONG}", "<!--<script>", "{{ 7 * 7 }}"],
    )


class Elements(HTMLParser):
    """Collect the elements of a page and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.text += data


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(write_study(tmp_path_factory.mktemp("hostile") / "study", hostile()))


@pytest.fixture(scope="module")
def plain_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(write_study(tmp_path_factory.mktemp("plain") / "study", Plan()))


@pytest.fixture(scope="module")
def hostile_elements(hostile_page: Path) -> Elements:
    return Elements(hostile_page.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def elements(plain_page: Path) -> Elements:
    return Elements(plain_page.read_text(encoding="utf-8"))


def test_nothing_on_the_page_loads_anything(elements: Elements, plain_page: Path) -> None:
    page = elements
    loading = {"src", "srcset", "data", "poster", "action", "formaction", "background"}
    for tag, attributes in page.elements:
        assert not loading & set(attributes), (tag, attributes)
        assert tag not in ("link", "iframe", "object", "embed", "base", "img")
        assert (attributes.get("href") or "#").startswith("#")
    style = re.search(r"<style>(.*?)</style>", plain_page.read_text(encoding="utf-8"), re.S)
    assert style is not None
    assert "url(" not in style[1]
    assert "@import" not in style[1]


def test_the_policy_names_the_hash_of_every_script_that_runs(elements: Elements) -> None:
    page = elements
    (policy,) = [
        attributes["content"] or ""
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "'unsafe-inline'" not in policy.split("style-src")[0]
    # The figures need none.
    assert len(page.scripts) == 1
    for script in page.scripts:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_text_from_data_is_escaped_on_the_page(hostile_elements: Elements) -> None:
    page = hostile_elements
    tags = [tag for tag, _ in page.elements]
    assert tags.count("script") == 1
    assert "img" not in tags
    assert not [name for _, attributes in page.elements for name in attributes if name[:2] == "on"]
    for message in (
        SCRIPT + LONG,
        f"12 rows {SCRIPT}",
        f"imdb{SCRIPT}",
        f"uegr{END}",
        "{{ 7 * 7 }}",
    ):
        assert message in page.text


def test_each_section_begins_with_its_finding(elements: Elements, plain_page: Path) -> None:
    text = plain_page.read_text(encoding="utf-8")
    headings = [html.unescape(result) for result in re.findall(r"<h2 [^>]*>([^<]*)</h2>", text)]
    assert headings[:3] == [Heading.ACCURACY, Heading.ROBUSTNESS, Heading.CALIBRATION]
    # The whole table of scores comes last.
    assert headings.index("All scores") > headings.index(Heading.COST)
    # A significant difference is written with its interval.
    assert "`" not in elements.text
    assert "\u22125.0 points, 95% CI [\u22127.3, \u22122.7])." in elements.text
    assert "ECE is the mean difference" in elements.text


def test_a_page_is_small(plain_page: Path) -> None:
    assert plain_page.stat().st_size < 500_000


def test_every_number_of_the_table_can_be_focused_and_shows_its_n(elements: Elements) -> None:
    entries = [attributes for tag, attributes in elements.elements
               if tag == "span" and attributes.get("class") == "entry"]  # fmt: skip
    assert len(entries) > 60
    for entry in entries:
        assert entry["tabindex"] == "0"
        assert "n = 3 seeds" in (entry["title"] or "") or "n = 3 common" in (entry["title"] or "")


def test_notices_hashes_settings_and_versions_are_on_the_page(elements: Elements) -> None:
    text = elements.text
    for message in (
        "12 train rows are also in dev",
        "12.5% of the rows of set 'dev' are cut",
        "1.0% of the training rows were truncated",
        "train.hash",
        "ab12",
        "method.epsilon",
        "2.13.0",
        "uegr-s2-abc",
    ):
        assert message in text


def test_a_study_also_gets_its_table_and_scores(study: Path, tmp_path: Path) -> None:
    out = build(study, tmp_path / "else" / "page.html")
    assert sorted(path.name for path in out.parent.iterdir()) == [
        "page.html",
        "page.md",
        "scores.csv",
        "table.json",
    ]


def test_the_same_folder_gives_the_same_page(study: Path) -> None:
    assert build(study).read_bytes() == build(study).read_bytes()


@pytest.fixture(scope="module")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(400, False), (1400, True)])
def test_a_hostile_page_renders_without_fault_or_overflow(
    hostile_page: Path, browser: Browser, width: int, dark: bool
) -> None:
    browser.open(hostile_page, width=width, dark=dark)
    assert browser.faults() == []
    assert browser.requests() == [hostile_page.resolve().as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("typeof window.attacked") == "undefined"
    assert browser.evaluate("document.querySelectorAll('.chart svg').length") > 0
    keys = browser.evaluate(f"[...document.querySelectorAll('{ROBUSTNESS} .keys button')]"
                            ".map(key => key.textContent)")  # fmt: skip
    assert keys == ["plain", f"uegr{END}"]


@pytest.mark.browser
def test_the_figures_follow_the_theme(plain_page: Path, browser: Browser) -> None:
    color = f"getComputedStyle(document.querySelector('{ROBUSTNESS} .c1 .line')).stroke"
    browser.open(plain_page, width=1400)
    light = browser.evaluate(color)
    browser.open(plain_page, width=1400, dark=True)
    assert browser.evaluate(color) != light


@pytest.mark.browser
def test_the_table_can_be_sorted_and_restored(plain_page: Path, browser: Browser) -> None:
    browser.open(plain_page, width=1400)
    orders = "[...document.querySelectorAll('#scores .line')].map(r => +r.cells[1].dataset.order)"
    click = "document.querySelectorAll('#scores thead button')[0].click()"
    first = browser.evaluate(orders)
    browser.evaluate(click)
    assert browser.evaluate(orders) == sorted(first, reverse=True) != first
    browser.evaluate(click)
    assert browser.evaluate(orders) == sorted(first)
    browser.evaluate(click)
    assert browser.evaluate(orders) == first


@pytest.mark.browser
def test_focus_shows_a_numbers_detail(plain_page: Path, browser: Browser) -> None:
    browser.open(plain_page, width=400)
    assert browser.evaluate("document.getElementById('detail').hidden") is True
    browser.evaluate("document.querySelectorAll('.entry')[2].focus()")
    text = browser.evaluate("document.getElementById('detail').innerText")
    assert "95% interval over seeds, on these rows" in text
    assert browser.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.browser
def test_the_browser_check_detects_planted_faults(tmp_path: Path, browser: Browser) -> None:
    page = tmp_path / "faulty.html"
    page.write_text(
        "<!doctype html><div style='width:900px'>wide</div><img src='nowhere.png'>"
        "<script>console.error('planted'); undefined_name;</script>"
    )
    browser.open(page, width=400)
    faults = " ".join(browser.faults())
    assert "planted" in faults
    assert "undefined_name" in faults
    assert any(url.endswith("nowhere.png") for url in browser.requests())
    assert browser.evaluate("document.documentElement.scrollWidth") > 400


@pytest.mark.browser
def test_a_column_is_hidden_and_shown_in_all_figures(plain_page: Path, browser: Browser) -> None:
    browser.open(plain_page, width=1400)
    shown = (
        "[...document.querySelectorAll('.chart [data-column=uegr]')]"
        ".filter(drawn => getComputedStyle(drawn).display !== 'none').length"
    )
    key = f"document.querySelectorAll('{ROBUSTNESS} .keys button')[1]"
    pressed = (
        "[...document.querySelectorAll('.keys button')].filter(key => key.textContent === 'uegr')"
        ".map(key => key.ariaPressed)"
    )
    before = browser.evaluate(shown)
    assert before > 8
    assert set(browser.evaluate(pressed)) == {"true"}
    browser.evaluate(f"{key}.focus()")
    for kind in ("rawKeyDown", "char", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                     windowsVirtualKeyCode=13)  # fmt: skip
    assert browser.evaluate(shown) == 0
    assert set(browser.evaluate(pressed)) == {"false"}
    browser.evaluate(f"{key}.click()")
    assert browser.evaluate(shown) == before
    assert browser.faults() == []


AXE = (
    "axe.run(document, {resultTypes: ['violations']}).then(found => JSON.stringify("
    "found.violations.map(fault => [fault.id, ...fault.nodes.map(node => node.html)])))"
)


@pytest.fixture(scope="module")
def pages(
    plain_page: Path, hostile_page: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    many = Plan(columns=["plain", *(f"other{number}" for number in range(8))])
    one = folder / "one"
    write_run(one, Plan(), "uegr", 0)
    return {
        "two columns": plain_page,
        "hostile": hostile_page,
        "many columns": build(write_study(folder / "many", many)),
        "one model": build(one),
    }


@pytest.mark.browser
@pytest.mark.parametrize(
    ("name", "width", "dark"),
    [
        ("two columns", 1280, False),
        ("hostile", 320, True),
        ("many columns", 320, False),
        ("one model", 1280, True),
    ],
)
def test_axe_finds_nothing_wrong_and_nothing_scrolls_sideways(
    pages: dict[str, Path], name: str, width: int, dark: bool, browser: Browser
) -> None:
    axe = resources.files("axe_core_python") / "axe.min.js"
    browser.open(pages[name], width=width, dark=dark)
    browser.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate(axe.read_text(encoding="utf-8") + ";0")
    assert json.loads(browser.evaluate(AXE)) == []
    assert browser.faults() == []


@pytest.mark.browser
@pytest.mark.parametrize("name", ["two columns", "one model"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_first_screen_needs_no_scrolling(
    pages: dict[str, Path], name: str, width: int, height: int, browser: Browser
) -> None:
    browser.open(pages[name], width=width)
    last = "document.querySelector('.gain:last-of-type').getBoundingClientRect().bottom"
    assert browser.evaluate(last) <= height


def choose(browser: Browser, field: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const field = document.getElementById('scores-{field}'); "
        f"field.value = {json.dumps(value)}; "
        "field.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


@pytest.mark.browser
def test_scores_can_be_filtered_by_kind_perspective_verdict_and_text(
    plain_page: Path, browser: Browser
) -> None:
    browser.open(plain_page, width=1400)
    status = "document.getElementById('scores-status').textContent"
    seen = "[...document.querySelectorAll('#scores .line')].filter(line => line.checkVisibility())"
    labels = f"{seen}.map(line => line.cells[0].innerText.trim())"
    total = int(browser.evaluate(status).split()[0])
    assert total == browser.evaluate(f"{seen}.length") > 30
    choose(browser, "which", "leading")
    # The summary, in distribution, shift, two attacks, noise, calibration, anomalies.
    assert browser.evaluate(status) == f"8 of {total} scores"
    choose(browser, "which", "")
    choose(browser, "verdict", "better")
    better = browser.evaluate(labels)
    assert 0 < len(better) < total
    assert browser.evaluate(f"{seen}.every(line => line.querySelector('.verdict.better'))")
    choose(browser, "verdict", "")
    choose(browser, "search", "CALIBRATION")
    result = browser.evaluate(labels)
    # The summary's part of that name, then the rows below its heading.
    assert result[0].startswith("calibration")
    assert result[1].startswith("ECE (10 bins), dev")
    heads = "[...document.querySelectorAll('#scores .group')].filter(h => h.checkVisibility())"
    assert browser.evaluate(f"{heads}.at(-1).textContent.trim()") == "Calibration"
    choose(browser, "search", "no such score")
    assert browser.evaluate(status) == f"0 of {total} scores"
    assert browser.evaluate(f"{heads}.length") == 0
