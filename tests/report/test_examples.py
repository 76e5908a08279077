"""The examples under attack: selection, outcomes, and the table in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.display.folders import read
from temper.errors import CheckpointError
from temper.report import build
from temper.report.examples import CUT, OUTCOMES, Gallery, gallery, shorten, word_diff
from tests.report.browser import Browser
from tests.report.conftest import (
    Plan,
    add_attacks,
    attack_study,
    attacked_text,
    text,
    write_evaluation,
    write_study,
)

WORDS = st.lists(st.sampled_from(["a", "good", "g00d", "film", "don't", ",", " ", "\n", "né"]))
TEXTS = st.one_of(st.text(max_size=40), WORDS.map(" ".join))


@given(TEXTS, TEXTS)
def test_segments_of_a_diff_join_to_both_texts(original: str, changed: str) -> None:
    segments = word_diff(original, changed)
    assert "".join(text for kind, text in segments if kind != "added") == original
    assert "".join(text for kind, text in segments if kind != "removed") == changed
    assert all(text for _, text in segments)


@given(TEXTS)
def test_a_text_does_not_differ_from_itself(text: str) -> None:
    assert word_diff(text, text) == ([("same", text)] if text else [])


@given(TEXTS, TEXTS)
def test_neighboring_segments_are_of_different_kinds(original: str, changed: str) -> None:
    kinds = [kind for kind, _ in word_diff(original, changed)]
    assert all(one != other for one, other in pairwise(kinds))


def test_one_changed_word_is_all_that_is_marked() -> None:
    assert word_diff("It's a good film.", "It's a goood film.") == [
        ("same", "It's a "),
        ("removed", "good"),
        ("added", "goood"),
        ("same", " film."),
    ]


def test_words_changed_side_by_side_read_as_one_change() -> None:
    assert word_diff("a very good film", "a truly fine film") == [
        ("same", "a "),
        ("removed", "very good"),
        ("added", "truly fine"),
        ("same", " film"),
    ]


def test_a_removed_or_added_word_is_marked_alone() -> None:
    assert word_diff("not good", "good") == [("removed", "not "), ("same", "good")]
    assert word_diff("good", "good !") == [("same", "good"), ("added", " !")]


def test_long_segments_are_shortened_in_the_middle() -> None:
    assert shorten([("same", "a" * 10), ("removed", "abcd")], longest=4) == [
        ("same", f"aa{CUT}aa"),
        ("removed", "abcd"),
    ]


@pytest.fixture
def made(evaluation: Path) -> Path:
    """Return an evaluation with two attacks on embeddings and two on texts, rows shuffled."""
    add_attacks(evaluation, embedding=(0.1, 0.5), recipes=("characters", "swaps"))
    for name in ("rows", "texts"):
        path = evaluation / f"{name}.parquet"
        table = pq.read_table(path)
        # 7 and these lengths have no common divisor: every row moves, none is lost.
        order = [index * 7 % len(table) for index in range(len(table))]
        assert len(set(order)) == len(table)
        pq.write_table(table.take(order), path)
    path = evaluation / "texts.parquet"
    table = pq.read_table(path)
    # One changed text and one unchanged are missing.
    lost = [("swaps", 5), ("clean", 11)]
    kept = [(one["condition"], one["index"]) not in lost for one in table.to_pylist()]
    pq.write_table(table.filter(pa.array(kept)), path)
    return evaluation


@pytest.mark.parametrize("most", [1, 8, 1000])
def test_examples_alternate_between_attacks_with_successful_ones_first(
    made: Path, most: int
) -> None:
    shown = gallery(read(made), most=most)
    assert shown is not None
    # Of forty rows one has no clean text, and of the swaps one no changed one.
    assert shown.total == 2 * 39 + 39 + 38
    assert len(shown.shown) == min(most, shown.total)
    attacks = [(one.group, one.attack) for one in shown.shown]
    if most == 8:
        # The two perspectives in turn, and of each its two attacks.
        assert attacks[:4] == attacks[4:]
        assert [group for group, _ in attacks[:2]] == ["Embedding attack", "Text attack"]
        assert len(set(attacks[:4])) == 4
        assert {one.outcome for one in shown.shown} == {"broken"}
    for attack in set(attacks):
        own = [one for one in shown.shown if (one.group, one.attack) == attack]
        indices = [(OUTCOMES.index(one.outcome), one.row) for one in own]
        assert indices == sorted(indices)
    for one in shown.shown:
        assert f"example {int(one.row, 16)} of dev" in "".join(words for _, words in one.text)


def test_the_requested_radius_is_named(evaluation: Path) -> None:
    add_attacks(evaluation, recipes=())
    shown = gallery(read(evaluation))
    assert shown is not None
    assert shown.attacks == [("Embedding attack", "PGD ℓ₂ radius 0.25 (5 steps)")]
    path = evaluation / "rows.parquet"
    rows = pq.read_table(path)
    asked = json.dumps({"norm": "l2", "steps": 5, "radius_relative": 0.125})
    rows = rows.set_column(
        rows.column_names.index("parameters"), "parameters", pa.array([asked] * len(rows))
    )
    pq.write_table(rows, path)
    shown = gallery(read(evaluation))
    assert shown is not None
    assert shown.attacks == [("Embedding attack", "PGD ℓ₂ radius 0.125 of the norm (5 steps)")]


def test_an_empty_table_of_texts_gives_no_examples(made: Path) -> None:
    path = made / "texts.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    assert gallery(read(made)) is None


@pytest.mark.parametrize(
    ("file", "said"),
    [("rows", "Cannot read the evaluated rows"), ("texts", "Cannot read the texts")],
)
def test_a_damaged_file_is_named(made: Path, file: str, said: str) -> None:
    (made / f"{file}.parquet").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=rf"{said} in .*{file}\.parquet.*Evaluate the model"):
        gallery(read(made))


def test_a_column_whose_name_is_no_utf_8_is_a_damaged_file(made: Path) -> None:
    path = made / "texts.parquet"
    path.write_bytes(path.read_bytes().replace(b"perspective", b"perspect\xf4ve"))
    with pytest.raises(CheckpointError, match=r"Cannot read the texts in .*texts\.parquet"):
        gallery(read(made))


def test_a_missing_column_is_named(made: Path) -> None:
    path = made / "rows.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["label"]), path)
    with pytest.raises(CheckpointError, match=r"rows\.parquet lacks the columns \['label'\]"):
        gallery(read(made))


SCRIPT = "<script>window.attacked = 1</script>"
END = "</script><img src=x onerror='window.attacked = 1'>"


def found(folder: Path, most: int = 1000) -> Gallery:
    shown = gallery(read(folder), most=most)
    assert shown is not None
    return shown


def test_outcomes_follow_from_the_predictions_before_and_under_attack(evaluation: Path) -> None:
    add_attacks(evaluation, embedding=(), rows=12)
    # Rows 0, 3, 6, 9 have label 0 and are wrong when clean; even rows become class 0.
    outcomes = {int(one.row, 16): one.outcome for one in found(evaluation).shown}
    assert {row for row, outcome in outcomes.items() if outcome == "wrong before"} == {0, 3, 6, 9}
    assert {row for row, outcome in outcomes.items() if outcome == "broken"} == {2, 4, 8, 10}
    assert {row for row, outcome in outcomes.items() if outcome == "held"} == {1, 5, 7, 11}


def test_an_example_has_predictions_confidences_words_and_queries(evaluation: Path) -> None:
    add_attacks(evaluation, rows=3)
    shown = {(one.attack, int(one.row, 16)): one for one in found(evaluation).shown}
    one = shown["character edits", 2]
    assert (one.label, one.before, one.after, one.changed, one.queries) == (1, 1, 0, 0.125, 9)
    assert one.confidence_before == pytest.approx(0.5 + 2 / 80)
    assert one.confidence_after == pytest.approx(0.75)
    assert "".join(words for kind, words in one.text if kind != "added") == text(2)
    assert "".join(words for kind, words in one.text if kind != "removed") == attacked_text(2)
    other = shown["PGD ℓ₂ radius 0.25 (5 steps)", 2]
    assert other.text == (("same", text(2)),)
    assert (other.changed, other.queries, other.group) == (None, None, "Embedding attack")


def test_without_texts_or_with_a_limit_of_0_there_is_no_table(evaluation: Path) -> None:
    assert gallery(read(evaluation)) is None
    add_attacks(evaluation)
    assert gallery(read(evaluation), most=0) is None


def test_a_study_shows_one_seed_of_each_column(study: Path) -> None:
    shown = found(attack_study(study, rows=6))
    assert shown.seeds == {"plain": 0, "uegr": 0}
    assert shown.total == len(shown.shown) == 2 * 2 * 6
    assert shown.columns == ["plain", "uegr"]


def test_pairs_show_both_texts(evaluation: Path) -> None:
    add_attacks(evaluation, embedding=(), rows=2)
    path = evaluation / "texts.parquet"
    table = pq.read_table(path)
    rows = table.to_pylist()
    for row in rows:
        row["text_pair"] = "a pair" if row["perspective"] is None else "a pear"
    pq.write_table(table.from_pylist(rows, schema=table.schema), path)
    one = found(evaluation).shown[0]
    assert one.text_pair == (("same", "a "), ("removed", "pair"), ("added", "pear"))


def test_the_page_states_how_many_examples_it_shows_and_is_small(study: Path) -> None:
    attack_study(study, say=lambda index: f"{index} " + "word " * 20_000, say_attacked=str)
    page = build(study, examples=5).read_text(encoding="utf-8")
    assert "5 of 160 examples" in page
    data = page.split('id="examples-data">')[1].split("</script>")[0]
    assert len(json.loads(data)["entries"]) == 5
    assert len(data) < 20_000


@pytest.fixture(scope="module")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(chromium, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = write_study(tmp_path_factory.mktemp("examples") / "study", Plan(seeds=[0]))
    return build(attack_study(study, rows=30))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "evaluation"
    plan = Plan(labels=[f'0"{SCRIPT}', f"1'{END}"])
    write_evaluation(folder, plan, "uegr", 0)
    add_attacks(
        folder,
        recipes=(f"typo{SCRIPT}",),
        say=lambda index: f"row {index} \" ' {SCRIPT} good <!--<script> {END}",
        say_attacked=lambda index: (
            f"row {index} \" ' {SCRIPT} bad <!--<script> {END}{{{{ 7 * 7 }}}}"
        ),
    )
    return build(folder)


LINES = "document.querySelectorAll('.examples tbody tr')"
STATUS = "document.getElementById('examples-status').textContent"


def choose(browser: Browser, field: str, value: str) -> None:
    browser.evaluate(
        f"(() => {{ const field = document.getElementById('examples-{field}'); "
        f"field.value = {json.dumps(value)}; "
        "field.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


@pytest.mark.browser
def test_examples_can_be_filtered_by_column_attack_label_and_outcome(
    page: Path, browser: Browser
) -> None:
    browser.open(page, width=1300)
    assert browser.evaluate(STATUS) == "Examples shown: 1–20 of 120; page 1 of 6"
    choose(browser, "column", "1")
    assert "of 60" in browser.evaluate(STATUS)
    choose(browser, "attack", "1")
    assert "of 30" in browser.evaluate(STATUS)
    # Of rows 0 to 29 those below 20 that three divides have label 0 and are wrong before.
    choose(browser, "label", "0")
    assert "1–7 of 7;" in browser.evaluate(STATUS)
    choose(browser, "outcome", "0")
    assert browser.evaluate(STATUS) == "Examples shown: none; page 1 of 1"
    choose(browser, "label", "")
    assert "of 11" in browser.evaluate(STATUS)
    shown = browser.evaluate(f"[...{LINES}].map(line => line.textContent)")
    assert all("uegr" in line and "broken" in line and "plain" not in line for line in shown)


@pytest.mark.browser
def test_the_search_finds_words_of_either_text(page: Path, browser: Browser) -> None:
    browser.open(page, width=1300)
    choose(browser, "search", "G00D film")
    assert "of 60" in browser.evaluate(STATUS)
    choose(browser, "search", "example 17 of dev")
    assert "1–4 of 4;" in browser.evaluate(STATUS)
    choose(browser, "search", "nowhere")
    assert "none" in browser.evaluate(STATUS)


@pytest.mark.browser
def test_examples_can_be_sorted_and_restored(page: Path, browser: Browser) -> None:
    browser.open(page, width=1300)
    read_queries = f"[...{LINES}].map(line => line.cells[8].textContent)"
    click = "document.querySelector('.examples [data-key=queries] button').click()"
    before = browser.evaluate(read_queries)
    browser.evaluate(click)
    assert browser.evaluate(read_queries)[:4] == ["36", "36", "35", "35"]
    browser.evaluate(click)
    assert browser.evaluate(read_queries)[:4] == ["7", "7", "8", "8"]
    browser.evaluate(click)
    assert browser.evaluate(read_queries) == before


@pytest.mark.browser
def test_the_examples_have_pages(page: Path, browser: Browser) -> None:
    browser.open(page, width=1300)
    buttons = "document.querySelectorAll('.pages button')"
    assert browser.evaluate(f"[...{buttons}].map(one => one.disabled)") == [True, False, False]
    for _ in range(5):
        browser.evaluate(f"{buttons}[1].focus(), {buttons}[1].click()")
    assert browser.evaluate(STATUS) == "Examples shown: 101–120 of 120; page 6 of 6"
    assert browser.evaluate(f"[...{buttons}].map(one => one.disabled)") == [False, True, False]
    assert browser.evaluate("document.activeElement.textContent") == "Previous"


@pytest.mark.browser
def test_filtered_examples_are_copied_as_json_lines(page: Path, browser: Browser) -> None:
    browser.open(page, width=1300)
    choose(browser, "search", "example 17 of dev")
    browser.evaluate(
        "window.addEventListener('copy', event => {"
        " window.copied = event.clipboardData.getData('text/plain'); }),"
        " document.querySelectorAll('.pages button')[2].focus()"
    )
    for kind in ("rawKeyDown", "char", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r",
                     windowsVirtualKeyCode=13)  # fmt: skip
    assert browser.evaluate(STATUS) == "4 examples copied, a JSON line each"
    lines = [json.loads(line) for line in browser.evaluate("window.copied").splitlines()]
    assert len(lines) == 4
    assert {line["column"] for line in lines} == {"plain", "uegr"}
    assert all("example 17 of dev" in line["text"][0] for line in lines)


@pytest.mark.browser
def test_every_control_has_a_label_and_is_reachable_by_keyboard(
    page: Path, browser: Browser
) -> None:
    browser.open(page, width=1300)
    browser.evaluate("document.getElementById('examples-column').focus()")
    reached = []
    for _ in range(12):
        at = "document.activeElement.id || document.activeElement.textContent"
        reached.append(browser.evaluate(at))
        for kind in ("keyDown", "keyUp"):
            browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab",
                         windowsVirtualKeyCode=9)  # fmt: skip
    names = ("column", "attack", "label", "outcome", "search")
    assert reached[:5] == [f"examples-{name}" for name in names]
    assert reached[6:12] == ["before", "under attack", "outcome", "words changed", "queries",
                             "Next"]  # fmt: skip
    controls = "[...document.querySelectorAll('#examples select, #examples input')]"
    assert browser.evaluate(f"{controls}.map(one => one.labels.length)") == [1] * 5


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1300, False)])
def test_hostile_examples_are_escaped(
    hostile: Path, browser: Browser, width: int, dark: bool
) -> None:
    browser.open(hostile, width=width, dark=dark)
    assert browser.faults() == []
    assert browser.requests() == [hostile.resolve().as_uri()]
    assert browser.evaluate("typeof window.attacked") == "undefined"
    assert (
        browser.evaluate("document.querySelectorAll('.examples img, .examples script').length") == 0
    )
    shown = browser.evaluate("document.querySelector('.examples tbody').textContent")
    for part in (SCRIPT, END, "\" ' <script>", "{{ 7 * 7 }}", f'0"{SCRIPT}', f"1'{END}"):
        assert part in shown
    options = browser.evaluate("document.getElementById('examples-attack').textContent")
    assert f"typo{SCRIPT}" in options
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_letters_that_look_alike_are_named(tmp_path: Path, browser: Browser) -> None:
    folder = tmp_path / "evaluation"
    write_evaluation(folder, Plan(), "uegr", 0)
    add_attacks(
        folder,
        embedding=(),
        rows=2,
        say=lambda index: f"row {index}: a na\u00efve good film",
        # A Cyrillic o, and a space of no width; the dotted i was there before.
        say_attacked=lambda index: f"row {index}: a na\u00efve g\u043e\u200bod film",
    )
    browser.open(build(folder), width=1300)
    notes = browser.evaluate(
        "[...document.querySelectorAll('.examples .note')].map(n => n.textContent)"
    )
    assert len(notes) == 2
    assert "U+043E" in notes[0]
    assert "U+200B" in notes[0]
    assert "U+00EF" not in notes[0]
