"""Suites: syntax of their files, available sets, and reading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from temper.data.suites.suite import (
    KINDS,
    FoundSuite,
    find_sets,
    load_set,
    read_suite,
    suite_names,
)
from temper.errors import DataError, SettingError

HEAD = 'summary = "Of tests"\nlabels = ["bad", "good"]\n'


def write(folder: Path, text: str, *, name: str = "own.toml") -> str:
    path = folder / name
    path.write_text(HEAD + text, encoding="utf-8")
    return str(path)


def rows(
    folder: Path, split: str, rows: list[dict[str, Any]], names: Any = ("bad", "good")
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    if names is not None:
        description = json.dumps({"label_names": list(names)})
        (folder / "dataset.json").write_text(description, encoding="utf-8")


def found(tmp_path: Path, text: str) -> FoundSuite:
    return find_sets(read_suite(write(tmp_path, text)), tmp_path)


def test_the_shipped_suites_are_found_by_name() -> None:
    assert suite_names() == ("entailment", "sentiment")
    for name in suite_names():
        suite = read_suite(name)
        assert suite.name == name
        assert all(suite.sets(kind) for kind in KINDS)


def test_an_unknown_suite_is_named_with_those_that_are_near() -> None:
    with pytest.raises(SettingError, match=r"suite 'sentimnet'.*sentiment.*FILE\.toml"):
        read_suite("sentimnet")
    with pytest.raises(SettingError, match=r"missing\.toml cannot be read"):
        read_suite("missing.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[shift.a]\npath = "a"\nrowz = 3\n', r"shift\.a: .*key 'rowz'.*rows"),
        ('[shfit.a]\npath = "a"\n', r"top: .*key 'shfit'.*shift"),
        ("[shift.a]\nrows = 3\n", r"shift\.a: .*either a path or parts"),
        ('[shift.a]\npath = "a"\nparts = {b = "b"}\n', "either a path or parts"),
        ('[shift.a]\npath = "../a"\n', "under the data root, got '../a'"),
        ('[shift.a]\npath = "/a"\n', "under the data root, got '/a'"),
        ('[shift.a]\npath = "a"\npairs = "across"\n', r"two parts or more for `pairs`"),
        ('[shift.a]\nparts = {b = "b", c = "c"}\npairs = "both"\n', r"'within' or 'across'"),
        ('[shift.a]\npath = "a"\nrows = 0\n', r"shift\.a\.rows: .*greater than or equal to 1"),
        ('[shift.a]\npath = "a"\n[anomaly.a]\npath = "b"\n', "got 'a' twice"),
        ('[shift.dev]\npath = "a"\n', "none 'dev'"),
        ('[shift."a b"]\npath = "a"\n', "got 'a b'"),
        ("", "at least one set"),
        ("labels = 3\n", "not valid TOML"),
        ('name = "other"\n[shift.a]\npath = "a"\n', "must not set `name`"),
    ],
)
def test_invalid_suites_raise_an_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        read_suite(write(tmp_path, text))


def test_all_faults_of_a_suite_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        read_suite(write(tmp_path, '[shift.a]\npath = "a"\nx = 1\n[anomaly.b]\nrows = 1\n'))
    assert len(str(caught.value).splitlines()) == 2


def test_sets_that_are_not_there_are_missing_with_the_reason(tmp_path: Path) -> None:
    rows(tmp_path / "near", "test", [{"text": "one", "label": 1}])
    suite = found(
        tmp_path,
        '[shift.near]\npath = "near@test"\n[shift.far]\npath = "far@test"\nhub = "who/far"\n'
        '[anomaly.odd]\npath = "near@dev"\n'
        '[adversarial.half]\nparts = { one = "near@test", two = "near@other" }\n',
    )
    assert list(suite.sets["shift"]) == ["near"]
    assert suite.sets["adversarial"] == suite.sets["anomaly"] == {}
    assert set(suite.missing) == {"far", "odd", "half"}
    assert "far@test is not under" in suite.missing["far"]
    assert suite.missing["far"].endswith("(on the Hub as who/far)")
    assert suite.missing["half"].startswith("near@other is not under")


def test_a_root_without_any_of_the_sets_raises_an_error(tmp_path: Path) -> None:
    suite = read_suite(write(tmp_path, '[shift.a]\npath = "a@test"\n'))
    with pytest.raises(SettingError, match=r"None of the 1 sets of suite 'own'.*data_root"):
        find_sets(suite, tmp_path)
    with pytest.raises(SettingError, match=r"must be a folder.*data_root"):
        find_sets(suite, tmp_path / "nowhere")


def test_parts_are_one_set_whose_groups_are_the_parts(tmp_path: Path) -> None:
    rows(tmp_path / "pairs", "old", [{"text": "one", "label": 0, "pair_id": 4}])
    rows(tmp_path / "pairs", "new", [{"text": "two", "label": 1, "pair_id": 4}])
    parts = '[adversarial.p]\nparts = { a = "pairs@old", b = "pairs@new" }\n'
    suite = found(tmp_path, parts + 'pairs = "across"\n')
    examples = load_set(suite.sets["adversarial"]["p"], suite.suite.labels)
    assert (examples.name, examples.text, examples.labels) == ("p", ["one", "two"], [0, 1])
    assert (examples.group, examples.pair) == (["a", "b"], ["4", "4"])
    assert len(set(examples.rows)) == 2
    assert suite.sets["adversarial"]["p"].source == (
        f"{tmp_path / 'pairs'}@old + {tmp_path / 'pairs'}@new"
    )


def test_equal_pair_numbers_in_two_parts_are_different_pairs(tmp_path: Path) -> None:
    for split, words in (("one", "abc"), ("two", "def")):
        lines = [{"text": word, "label": 0, "pair_id": 7} for word in words[:2]]
        lines.append({"text": words[2], "label": 1, "pair_id": -1})
        rows(tmp_path / "pairs", split, lines)
    rows(tmp_path / "pairs", "bare", [{"text": "g", "label": 1}])
    parts = 'parts = { x = "pairs@one", y = "pairs@two", z = "pairs@bare" }'
    suite = found(tmp_path, f"[adversarial.p]\n{parts}\n")
    examples = load_set(suite.sets["adversarial"]["p"], suite.suite.labels)
    assert examples.pair == ["x/7", "x/7", None, "y/7", "y/7", None, None]
    assert examples.text == list("abcdefg")
    # A set in one piece keeps its names.
    suite = found(tmp_path, '[adversarial.p]\npath = "pairs@one"\n')
    assert load_set(suite.sets["adversarial"]["p"], suite.suite.labels).pair == ["7", "7", None]


def test_pairs_across_parts_must_be_declared(tmp_path: Path) -> None:
    for split in ("old", "new"):
        lines = [{"text": f"{split} {at}", "label": 0, "pair_id": at} for at in range(2)]
        rows(tmp_path / "pairs", split, lines)
    text = '[adversarial.p]\nparts = { a = "pairs@old", b = "pairs@new" }\n'
    suite = found(tmp_path, text)
    with pytest.raises(DataError, match="parts of set 'p' .* `pairs = \"across\"` in the suite"):
        load_set(suite.sets["adversarial"]["p"], suite.suite.labels)
    # Each part alone may still have halves of pairs, where no two parts share a name.
    rows(tmp_path / "pairs", "new", [{"text": "new", "label": 0, "pair_id": 9}])
    found_set = found(tmp_path, text).sets["adversarial"]["p"]
    assert load_set(found_set, suite.suite.labels).pair == ["a/0", "a/1", "b/9"]


def test_parts_of_different_shape_are_no_set(tmp_path: Path) -> None:
    rows(tmp_path / "one", "test", [{"text": "one", "label": 0}])
    rows(tmp_path / "two", "test", [{"text": "a", "text_pair": "b", "label": 1}])
    suite = found(tmp_path, '[shift.p]\nparts = { a = "one@test", b = "two@test" }\n')
    with pytest.raises(DataError, match="parts of set 'p' must have the same labels"):
        load_set(suite.sets["shift"]["p"], suite.suite.labels)


def test_rows_with_a_label_that_the_task_lacks_are_skipped_and_reported(tmp_path: Path) -> None:
    lines = [{"text": str(index), "label": index % 3} for index in range(7)]
    rows(tmp_path / "three", "test", lines, names=("bad", "so", "good"))
    suite = found(tmp_path, '[shift.s]\npath = "three@test"\nwithout = ["so"]\n')
    examples = load_set(suite.sets["shift"]["s"], suite.suite.labels)
    assert examples.text == ["0", "2", "3", "5", "6"]
    assert examples.map_labels(suite.suite.labels).labels == [0, 1, 0, 1, 0]
    assert any("2 rows of set 's' are left out" in notice for notice in examples.notices)


def test_a_suite_renames_labels_to_those_of_its_task(tmp_path: Path) -> None:
    lines = [{"text": str(index), "label": index % 3} for index in range(6)]
    rows(tmp_path / "three", "test", lines, names=("good stuff", "so", "bad stuff"))
    text = (
        '[shift.s]\npath = "three@test"\nwithout = ["so"]\n'
        'rename = { "good stuff" = "good", "bad stuff" = "bad" }\n'
    )
    suite = found(tmp_path, text)
    examples = load_set(suite.sets["shift"]["s"], suite.suite.labels)
    assert examples.text == ["0", "2", "3", "5"]
    assert examples.map_labels(suite.suite.labels).labels == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ('{ neutral = "bad" }', "Set 's', `rename`: .*label 'neutral'"),
        ('{ good = "bad" }', "`rename` gives two labels the name 'bad'"),
    ],
)
def test_renaming_to_unknown_or_equal_labels_raises_an_error(
    tmp_path: Path, names: str, message: str
) -> None:
    rows(tmp_path / "two", "test", [{"text": "a", "label": 0}])
    suite = found(tmp_path, f'[shift.s]\npath = "two@test"\nrename = {names}\n')
    with pytest.raises(DataError, match=message):
        load_set(suite.sets["shift"]["s"], suite.suite.labels)


def test_an_unknown_label_to_skip_raises_an_error(tmp_path: Path) -> None:
    rows(tmp_path / "two", "test", [{"text": "a", "label": 0}])
    suite = found(tmp_path, '[shift.s]\npath = "two@test"\nwithout = ["neutral"]\n')
    with pytest.raises(DataError, match="Set 's', `without`: .*label 'neutral'"):
        load_set(suite.sets["shift"]["s"], suite.suite.labels)


def test_a_set_without_label_names_uses_those_of_the_suite(tmp_path: Path) -> None:
    rows(tmp_path / "bare", "test", [{"text": "a", "label": 1}], names=None)
    suite = found(tmp_path, '[shift.s]\npath = "bare@test"\n')
    examples = load_set(suite.sets["shift"]["s"], suite.suite.labels)
    assert examples.label_names == ("bad", "good")
    assert any("matched by index" in notice for notice in examples.notices)


def test_the_labels_of_an_anomaly_set_are_not_read(tmp_path: Path) -> None:
    rows(tmp_path / "odd", "test", [{"text": "a", "label": "a word"}, {"text": "b", "label": 3}])
    suite = found(tmp_path, '[anomaly.s]\npath = "odd@test"\n')
    assert load_set(suite.sets["anomaly"]["s"], None).kind == "unlabeled"


# What no public copy was found of (README of the data).
NOT_FOUND = {"entailment": {"anli_r1", "anli_r2", "anli_r3"}, "sentiment": set()}


OF_STUDIES = sorted(Path(__file__).parents[2].glob("reproduction/suites/*.toml"))


@pytest.mark.parametrize(
    "name",
    [
        "entailment",
        "sentiment",
        *(pytest.param(str(path), marks=pytest.mark.slow) for path in OF_STUDIES),
    ],
)
def test_every_set_of_a_suite_exists_and_matches_its_task(name: str, data_dir: Path) -> None:
    suite = find_sets(read_suite(name), data_dir)
    assert set(suite.missing) == NOT_FOUND.get(name, set())
    for kind in KINDS:
        for found_set in suite.sets[kind].values():
            labels = None if kind == "anomaly" else suite.suite.labels
            examples = load_set(found_set, labels)
            assert len(examples) >= 50, found_set.name
            assert not any("matched by index" in notice for notice in examples.notices)
            if labels is not None and len(examples.label_names or ()) == len(labels):
                assert set(examples.map_labels(labels).labels or []) == set(range(len(labels)))
