"""Data in memory are read like files, under a name that follows their content and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

from temper.data import in_memory
from temper.data.in_memory import hold
from temper.data.settings import DataSettings
from temper.data.sources import load_examples, load_splits
from temper.errors import DataError, SettingError, TemperError
from temper.settings import section

TEXTS = ["good film", "bad film", "fine film", "poor film"] * 3
LABELS = ["pos", "neg"] * 6
COLUMNS: dict[str, Any] = {"text": TEXTS, "label": LABELS}


def forms() -> list[Any]:
    frame = pd.DataFrame(COLUMNS)
    return [
        COLUMNS,
        {"text": np.array(TEXTS), "label": tuple(LABELS)},
        {"text": frame["text"], "label": LABELS},
        frame,
        frame.astype({"label": "category"}),
        datasets.Dataset.from_dict(COLUMNS),
        datasets.Dataset.from_dict(COLUMNS).with_format("numpy"),
    ]


@pytest.mark.parametrize("given", forms())
def test_every_form_of_the_same_rows_is_one_source(given: Any) -> None:
    settings = DataSettings(source=given)
    assert settings.source == hold(COLUMNS)
    splits = load_splits(settings)
    assert splits.train.label_names == ("neg", "pos")
    rows = {*zip(splits.train.text, splits.train.labels or [], strict=True)}
    rows |= {*zip(splits.dev.text, splits.dev.labels or [], strict=True)}
    assert rows == {("good film", 1), ("bad film", 0), ("fine film", 1), ("poor film", 0)}
    assert load_examples(settings.source).text == TEXTS


def test_splits_are_read_by_name() -> None:
    frame = pd.DataFrame(COLUMNS)
    whole = datasets.Dataset.from_dict(COLUMNS)
    for given in (
        {"train": frame, "validation": frame[:4]},
        datasets.DatasetDict(train=whole, validation=whole.select(range(4))),
    ):
        splits = load_splits(DataSettings(source=given))
        assert (len(splits.train), len(splits.dev)) == (12, 4)
    assert len(load_examples(f"{hold({'train': frame, 'dev': frame[:2]})}@train")) == 12


@pytest.mark.parametrize(
    "other",
    [
        {"text": TEXTS[::-1], "label": LABELS},
        {"text": TEXTS, "label": LABELS[::-1]},
        {"text": TEXTS, "label": [1, 0] * 6},
        {"text": TEXTS, "class": LABELS},
        {"train": COLUMNS},
        {**COLUMNS, "id": list(range(12))},
    ],
)
def test_different_data_in_memory_have_different_source_names(other: Any) -> None:
    assert hold(other) != hold(COLUMNS)


def test_class_names_belong_to_the_content() -> None:
    codes = datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1] * 6})
    named = codes.cast_column("label", datasets.ClassLabel(names=["pos", "neg"]))
    turned = codes.cast_column("label", datasets.ClassLabel(names=["neg", "pos"]))
    assert len({hold(codes), hold(named), hold(turned)}) == 3
    assert load_examples(hold(named)).label_names == ("pos", "neg")


def test_later_changes_of_data_in_memory_have_no_effect() -> None:
    frame = pd.DataFrame(COLUMNS)
    name = hold(frame)
    frame.loc[0, "text"] = "changed"
    assert load_examples(name).text == TEXTS


def test_missing_values_of_a_frame_are_missing() -> None:
    texts = pd.DataFrame({"text": ["a", None, "c"], "label": [1, 0, 1]})
    with pytest.raises(DataError, match="row 2: 'text' must be a string, got nothing"):
        load_examples(hold(texts))
    labels = pd.DataFrame({"text": ["a", "b", "c"], "label": [1.0, 0.0, np.nan]})
    with pytest.raises(DataError, match="row 3: 'label' must be a label, got nothing"):
        load_examples(hold(labels))


def test_a_list_of_texts_is_a_set_without_labels() -> None:
    assert load_examples(hold(["odd", "strange"]), labeled=False).text == ["odd", "strange"]


SECRET = "a secret " * 500


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "int"),
        ((TEXTS, LABELS), "tuple"),
        ([1, 2], "list"),
        ({}, "dict"),
        ({"text": SECRET, "label": [1]}, "dict"),
        ({"text": [SECRET], "label": [1, 2]}, "equal lengths, got {'text': 1, 'label': 2}"),
        ({"text": [SECRET], "x": [{1, 2}]}, "row 1 of split 'train', column 'x'"),
        ({"text": [SECRET], "x": [[object()]]}, "column 'x'"),
        (pd.DataFrame([[SECRET, 1]], columns=["text", "text"]), "duplicate columns: 'text'"),
        (datasets.Dataset.from_dict(COLUMNS).to_iterable_dataset(), "streaming"),
    ],
)
def test_errors_of_data_in_memory_do_not_print_the_data(given: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        DataSettings(source=given)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400
    assert str(caught.value).count("secret") < 10


@pytest.mark.parametrize("name", ["source", "text_column", "rows", "seed"])
def test_an_error_about_a_setting_does_not_print_the_data(name: str) -> None:
    given = {"source": "demo", name: [SECRET] * 100}
    if name == "source":
        given["rows"] = pd.DataFrame({"text": [SECRET] * 100})
    with pytest.raises(TemperError) as caught:
        section(DataSettings, "data", given)
    assert len(str(caught.value)) < 300
    if name != "source":
        assert isinstance(caught.value, SettingError)
        assert f"data.{name}" in str(caught.value)


def test_a_process_without_the_data_in_memory_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"data in memory.*[Pp]ass the same data again"):
        load_examples("in-memory-0123456789abcdef")


def test_another_process_gives_the_same_data_the_same_name() -> None:
    code = (
        "import sys; from temper.data import in_memory as m\n"
        f"print(m.hold({COLUMNS!r})); print('pandas' in sys.modules, 'datasets' in sys.modules)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    # Neither library is imported for those who do not use it.
    assert printed == [hold(COLUMNS), "False", "False"]
    kept = in_memory.all_held()
    assert kept[hold(COLUMNS)].splits["train"] == COLUMNS
