"""Evaluation sets: names, loading, and separation from training rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.errors import DataError, SettingError
from temper.evaluation.sets import EvaluationSets, Trained, load_sets, trained_rows
from temper.evaluation.settings import EvaluationSettings, SetSources

HEAD = 'summary = "Of tests"\nlabels = ["bad", "good"]\n'
ALL = EvaluationSettings()


def examples(texts: list[str], **more: Any) -> Examples:
    labels = [index % 2 for index in range(len(texts))]
    return Examples("dev", texts, labels=labels, kind="classification", **more)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def labeled(texts: list[str], **more: Any) -> list[dict[str, Any]]:
    return [{"text": text, "label": index % 2, **more} for index, text in enumerate(texts)]


def load(sources: SetSources, *, dev: Examples | None = None, **more: Any) -> EvaluationSets:
    settings = more.pop("settings", DataSettings(source="mine"))
    more.setdefault("evaluate", ALL)
    dev = examples(["one", "two"]) if dev is None else dev
    return load_sets(sources, settings=settings, dev=dev, **more)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Return a suite of tests and the folder with its sets."""
    path = tmp_path / "own.toml"
    path.write_text(
        HEAD + 'merge = "argmax"\n[shift.near]\npath = "near@test"\nrows = 4\n'
        '[adversarial.gone]\npath = "gone@test"\n[anomaly.odd]\npath = "odd@test"\n',
        encoding="utf-8",
    )
    write(tmp_path / "near" / "test.jsonl", labeled([f"near {n}" for n in range(9)], group="a"))
    write(tmp_path / "odd" / "test.jsonl", [{"text": f"odd {n}"} for n in range(5)])
    return path


def test_a_suite_and_named_sets_are_loaded_together(suite: Path, tmp_path: Path) -> None:
    far = write(tmp_path / "far.jsonl", labeled(["three", "four"]))
    sources = SetSources.of(
        shift=[f"far={far}"], adversarial=[f"made={far}"], suite=str(suite), data_root=tmp_path
    )
    result = load(sources)
    assert {kind: list(getattr(result.data, kind)) for kind in ("shift", "adversarial")} == {
        "shift": ["far", "near"],
        "adversarial": ["made"],
    }
    assert (len(result.data.shift["near"]), result.data.shift["near"].name) == (4, "near")
    assert result.data.anomaly["odd"].kind == "unlabeled"
    assert list(result.missing) == ["gone"]
    assert any("'gone' of suite 'own' is missing" in notice for notice in result.notices)
    assert sources.named("shift") == {"far": far, "near": f"{tmp_path / 'near'}@test"}


def test_the_limit_of_the_evaluation_holds_for_the_suite_too(suite: Path, tmp_path: Path) -> None:
    sources = SetSources.of(suite=str(suite), data_root=tmp_path)
    result = load(sources, settings=DataSettings(source="mine", eval_rows=3))
    assert [len(each) for each in (*result.data.shift.values(), *result.data.anomaly.values())] == [
        3,
        3,
    ]


def test_the_suite_merges_labels_unless_the_user_does(suite: Path, tmp_path: Path) -> None:
    sources = SetSources.of(suite=str(suite), data_root=tmp_path)
    assert sources.completed({"data": {}}) == {"data": {}, "evaluate": {"merge": "argmax"}}
    own = {"evaluate": {"merge": "sum", "seed": 3}}
    assert sources.completed(own) == own
    assert SetSources().completed(own) == own


def test_the_data_root_is_read_from_the_environment(
    suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPER_DATA", str(tmp_path))
    assert list(SetSources.of(suite=str(suite)).named("shift")) == ["near"]
    assert SetSources.of() == SetSources()
    monkeypatch.delenv("TEMPER_DATA")
    with pytest.raises(SettingError, match=r"TEMPER_DATA, or pass --set data_root=DIR"):
        SetSources.of(suite=str(suite))


def test_options_that_contradict_each_other_raise_an_error(suite: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="there is no suite"):
        SetSources.of(data_root=tmp_path)
    with pytest.raises(SettingError, match="set name 'near' is given twice"):
        SetSources.of(shift=["near=a.csv"], suite=str(suite), data_root=tmp_path)
    # A set that is missing keeps its name: it may be there tomorrow.
    with pytest.raises(SettingError, match="set name 'gone' is given twice"):
        SetSources.of(shift=["gone=a.csv"], suite=str(suite), data_root=tmp_path)
    with pytest.raises(SettingError, match="set name 'a' is given twice"):
        SetSources.of(shift=["a=a.csv"], adversarial=["a=b.csv"])
    with pytest.raises(SettingError, match="--adversarial NAME=PATH"):
        SetSources.of(adversarial=["a.csv"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["yelp.csv"], "--shift NAME=PATH"),
        (["=yelp.csv"], "NAME=PATH"),
        (["yelp="], "NAME=PATH"),
        (["a/b=yelp.csv"], "NAME=PATH"),
        (["a=1", "a=2"], "names 'a' twice"),
    ],
)
def test_a_source_without_its_own_name_raises_an_error(texts: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        SetSources.of(shift=texts)


def test_rows_that_no_perspective_reads_raise_an_error() -> None:
    assert SetSources.of(anomaly=["a=a.csv"], fit="fit.csv", held_out="h.csv").faults(ALL) == []
    (fault,) = SetSources.of(fit="fit.csv").faults(ALL)
    assert "no OOD texts are measured" in fault
    plain = EvaluationSettings(perspectives=("task",))
    faults = SetSources.of(anomaly=["a=a.csv"], fit="fit.csv", held_out="h.csv").faults(plain)
    assert ["sets.fit" in faults[0], "sets.held_out" in faults[1]] == [True, True]


def test_a_suite_for_other_labels_raises_an_error(suite: Path, tmp_path: Path) -> None:
    sources = SetSources.of(suite=str(suite), data_root=tmp_path)
    other = examples(["one", "two"], label_names=("no", "yes"))
    with pytest.raises(SettingError, match=r"'own' is for the labels \['bad', 'good'\].*'yes'"):
        load(sources, dev=other)
    values = Examples("dev", ["one"], labels=[0.5], kind="regression")
    with pytest.raises(SettingError, match="has targets of a regression"):
        load(sources, dev=values)
    same = examples(["one", "two"], label_names=("Good", "BAD"))
    assert list(load(sources, dev=same).data.shift) == ["near"]


def test_rows_to_fit_on_are_drawn_and_none_of_them_is_evaluated(tmp_path: Path) -> None:
    odd = write(tmp_path / "odd.jsonl", [{"text": "strange"}])
    sources = SetSources.of(anomaly=[f"odd={odd}"])
    train = replace(examples(["one", "strange", *(f"train {n}" for n in range(40))]), name="train")
    few = EvaluationSettings(anomaly={"rows": 10})
    result = load(sources, train=train, evaluate=few)
    fit = result.data.fit
    assert fit is not None
    assert (len(fit), fit.name) == (10, "fit")
    assert not {"one", "strange"} & set(fit.text)
    assert any(notice.startswith("2 of 42 rows that detectors") for notice in result.notices)
    # The draw is keyed by text: another order of the file gives the same rows.
    turned = load(sources, train=train.select(reversed(range(42))), evaluate=few).data.fit
    assert turned is not None
    assert set(turned.text) == set(fit.text)
    other = load(
        sources, train=train, evaluate=EvaluationSettings(anomaly={"rows": 10}, seed=5)
    ).data.fit
    assert other is not None
    assert set(other.text) != set(fit.text)


def test_named_rows_to_fit_on_come_before_the_runs_own_and_need_no_labels(tmp_path: Path) -> None:
    odd = write(tmp_path / "odd.jsonl", [{"text": "strange"}])
    fit = write(tmp_path / "fit.jsonl", [{"text": "plain"}, {"text": "simple"}])
    result = load(SetSources.of(anomaly=[f"odd={odd}"], fit=fit), train=examples(["a", "b"]))
    assert result.data.fit is not None
    assert (result.data.fit.text, result.data.fit.kind) == (["plain", "simple"], "unlabeled")


def test_held_out_rows_that_are_evaluated_or_were_trained_on_are_left_out(tmp_path: Path) -> None:
    file = write(tmp_path / "held.jsonl", labeled(["two", "three", "four"]))
    sources = SetSources.of(held_out=file)
    result = load(sources, train=examples(["four", "five"]))
    assert result.data.held_out is not None
    assert result.data.held_out.text == ["three"]
    message = "2 of 3 rows held out for"
    assert any(notice.startswith(message) for notice in result.notices)
    with pytest.raises(
        DataError, match=r"All 3 rows of `sets.held_out`.* are evaluated too or were"
    ):
        load(sources, train=examples(["three", "four"]))


def seen(*texts: str) -> Trained:
    """Return what finds the rows that were trained on."""
    hashes = set(examples(list(texts)).rows)
    return lambda _: (hashes, ())


def test_training_rows_are_excluded_and_reported_first(tmp_path: Path) -> None:
    path = write(tmp_path / "far.jsonl", labeled(["seen", "new", "newer"]))
    sources = SetSources.of(shift=[f"far={path}"], held_out=path)
    trained = seen("one", "seen", "else")
    limited = DataSettings(source="mine", eval_rows=2)
    result = load(sources, trained=trained, settings=limited)
    # The limit is drawn from what is left.
    assert sorted(result.data.shift["far"].text) == ["new", "newer"]
    assert list(result.data.dev.text) == ["two"]
    assert result.seen == result.notices[:2]
    assert result.seen[0].startswith("1 of 2 rows of set 'dev' were trained on")
    assert result.seen[1].startswith("1 of 3 rows of set 'far' were trained on")
    assert "sets.seen_rows=keep" in result.seen[0]


def test_training_rows_are_scored_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "far.jsonl", labeled(["seen", "new", "newer"]))
    sources = SetSources.of(shift=[f"far={path}"], seen_rows="keep")
    result = load(sources, trained=seen("one", "two", "seen"))
    assert len(result.data.shift["far"]) == 3
    assert len(result.data.dev) == 2
    assert [message.partition(" were")[0] for message in result.seen] == [
        "2 of 2 rows of set 'dev'",
        "1 of 3 rows of set 'far'",
    ]
    assert all("overstate" in message for message in result.seen)


def test_a_set_of_only_training_rows_raises_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "far.jsonl", labeled(["seen", "new"]))
    with pytest.raises(DataError, match=r"All 2 rows of set 'far' .*sets.seen_rows=keep"):
        load(SetSources.of(shift=[f"far={path}"]), trained=seen("seen", "new"))
    with pytest.raises(DataError, match="All 2 rows of set 'dev'"):
        load(SetSources(), trained=seen("one", "two"))


def test_a_contrast_pair_is_excluded_if_one_half_was_trained_on(tmp_path: Path) -> None:
    rows = [
        {"text": text, "label": index % 2, "pair_id": pair}
        for index, (text, pair) in enumerate([("a", "p"), ("b", "p"), ("c", "q"), ("d", "q")])
    ]
    sources = SetSources.of(adversarial=[f"near={write(tmp_path / 'near.jsonl', rows)}"])
    result = load(sources, trained=seen("b", "else"))
    assert list(result.data.adversarial["near"].text) == ["c", "d"]


def test_a_limit_keeps_contrast_pairs_whole(tmp_path: Path) -> None:
    rows = [{"text": f"{pair} {side}", "label": side, "pair_id": pair} for pair in range(20)
            for side in (0, 1)]  # fmt: skip
    file = write(tmp_path / "pairs.jsonl", rows)
    settings = DataSettings(source="mine", eval_rows=9)
    result = load(SetSources.of(adversarial=[f"p={file}"]), settings=settings).data.adversarial["p"]
    assert len(result) == 8
    assert all(result.pair is not None and result.pair.count(name) == 2 for name in result.pair)
    again = write(tmp_path / "turned.jsonl", rows[::-1])
    turned = load(SetSources.of(adversarial=[f"p={again}"]), settings=settings)
    assert set(turned.data.adversarial["p"].rows) == set(result.rows)


def test_everything_that_affects_scores_changes_the_fingerprint(
    suite: Path, tmp_path: Path
) -> None:
    odd = write(tmp_path / "odd.jsonl", [{"text": "strange"}])
    held = write(tmp_path / "held.jsonl", labeled(["three", "four"]))
    dev = examples(["one", "two"])
    plain = SetSources.of(anomaly=[f"odd={odd}"])
    result = [
        load(plain, dev=dev),
        load(plain, dev=replace(dev, group=["a", "b"])),
        load(plain, dev=replace(dev, pair=["a", "a"])),
        load(plain, dev=dev, train=examples(["five", "six"])),
        load(SetSources.of(anomaly=[f"odd={odd}"], held_out=held), dev=dev),
        load(SetSources.of(anomaly=[f"odd={odd}"], adversarial=[f"a={held}"]), dev=dev),
        load(SetSources.of(anomaly=[f"odd={odd}"], shift=[f"a={held}"]), dev=dev),
    ]
    marks = [json.dumps(sets.fingerprint(), sort_keys=True) for sets in result]
    assert len(set(marks)) == len(marks)
    assert load(plain, dev=dev).fingerprint() == result[0].fingerprint()


def run_record(folder: Path, source: str, *, train: str) -> str:
    folder.mkdir()
    record = {"settings": {"data": {"source": source}}, "data": {"train": {"hash": train}}}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return str(folder)


def test_a_run_returns_its_training_rows(tmp_path: Path) -> None:
    source = tmp_path / "reviews"
    write(source / "train.jsonl", labeled([f"text {n}" for n in range(6)]))
    write(source / "dev.jsonl", labeled(["a", "b"]))
    expected = examples([f"text {n}" for n in range(6)])
    run = run_record(tmp_path / "run", str(source), train=expected.hash)
    rows, notices = trained_rows(Checkpoint(run))
    assert rows is not None
    assert (rows.rows, notices) == (expected.rows, ())


def test_missing_or_changed_training_rows_are_reported(tmp_path: Path) -> None:
    source = tmp_path / "reviews"
    write(source / "train.jsonl", labeled([f"text {n}" for n in range(6)]))
    write(source / "dev.jsonl", labeled(["a", "b"]))
    changed, (notice,) = trained_rows(
        Checkpoint(run_record(tmp_path / "run", str(source), train="other"))
    )
    assert changed is None
    assert "has changed since" in notice
    gone, (notice,) = trained_rows(
        Checkpoint(run_record(tmp_path / "old", str(tmp_path / "nowhere"), train=""))
    )
    assert gone is None
    assert "cannot be read (No such file or folder" in notice
    assert "sets.fit=PATH" in notice
    assert trained_rows(Checkpoint.of(tmp_path)) == (None, ())


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("sentiment", ("NEGATIVE", "POSITIVE")),
        ("entailment", ("contradiction", "entailment", "neutral")),
    ],
)
def test_the_shipped_suites_fit_a_model_with_labels_in_any_order_and_case(
    name: str, labels: tuple[str, ...], data_dir: Path
) -> None:
    from temper.evaluation.alignment import align

    dev = examples(["one", "two"], label_names=labels)
    sources = SetSources.of(suite=name, data_root=data_dir)
    result = load(sources, dev=dev, settings=DataSettings(source="mine", eval_rows=60)).data
    for set_name, each in {**result.shift, **result.adversarial}.items():
        aligned, entailment = align(each, labels)
        two = each.label_names is not None and len(each.label_names) < len(labels)
        assert (entailment is not None) == two, set_name
        assert not any("matched by index" in note for note in aligned.notices), set_name
