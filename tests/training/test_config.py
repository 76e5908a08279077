"""Settings of a run: accepted and refused values, and the key."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper import UEGR
from temper.errors import SettingError
from temper.methods import DEFAULT
from temper.training.config import RunConfig, without_unread
from temper.training.settings import TrainSettings
from tests.training.alternating import alternating_registered

HASHES = {"model": "m", "train_hash": "t", "dev_hash": "d"}


def tree(**changes: Any) -> dict[str, Any]:
    return {
        "model": "minilm",
        "data": {"source": "demo"},
        "method": {"name": "plain"},
        **changes,
    }


def test_the_smallest_run_gets_every_default() -> None:
    config = RunConfig.of(tree())
    assert (config.seed, config.train, config.data.max_length) == (
        0,
        TrainSettings(learning_rate=1e-4),
        128,
    )
    assert config.method_name == "plain"


def test_a_run_configuration_round_trips_through_its_record() -> None:
    config = RunConfig.of(tree(method={"name": "uegr", "epsilon": 0.25}, seed=7))
    again = RunConfig.of({"model": config.model, "seed": config.seed, **config.settings()})
    assert again == config
    assert again.method["epsilon"] == 0.25
    assert again.method_config() == config.method_config()


def test_a_run_without_a_method_uses_the_default() -> None:
    config = RunConfig.of({"model": "minilm", "data": {"source": "demo"}, "method": {}})
    assert config == RunConfig.of(tree(method={"name": DEFAULT}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "`model`"),
        ({"seed": -1}, "`seed`.*-1"),
        ({"seed": 2**32}, "`seed`"),
        ({"data": {}}, "`data.source` is missing.*: pass --data SOURCE, or --task NAME"),
        ({"data": "demo"}, "`data` must be a table"),
        ({"data": {"source": "demo", "row": 5}}, "Unknown setting 'data.row'.*'data.rows'"),
        ({"method": {"name": 3}}, "`method.name` must be a method's name, got 3"),
        ({"method": "uegr"}, "`method` must be a table"),
        ({"method": {"name": "uerg"}}, "Unknown method 'uerg'.*'uegr'"),
        ({"train": {"report_to": "tensorbord"}}, "Did you mean 'tensorboard'"),
        ({"train": {"epochs": 0}}, "`train.epochs` must be > 0, got 0"),
        ({"train": {"learning_rate": math.nan}}, "`train.learning_rate`"),
        ({"train": {"device": "tpu"}}, "`train.device`.*'tpu'"),
        ({"train": {"class_weights": "even"}}, "`train.class_weights`"),
        ({"optimizer": {}}, "Unknown setting 'optimizer'"),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        RunConfig.of(tree(**changes))


def test_a_missing_model_raises_an_error_with_its_option() -> None:
    without = {name: value for name, value in tree().items() if name != "model"}
    with pytest.raises(SettingError, match="`model` is missing .*pass --model"):
        RunConfig.of(without)


def test_one_tracker_is_a_tuple_of_one() -> None:
    assert TrainSettings(report_to="none").report_to == ("none",)
    assert RunConfig.of(tree(train={"report_to": "none"})).train.report_to == ("none",)


def test_the_error_of_a_wrong_method_setting_can_be_pickled() -> None:
    with pytest.raises(SettingError, match=r"`method\.mask\.alpha`") as result:
        RunConfig.of(tree(method={"name": "uegr", "mask": {"alpha": 2}}))
    with pytest.raises(SettingError, match=r"`UEGR\.mask\.alpha`") as own:
        UEGR(mask={"alpha": 2})
    for error in (result.value, own.value):
        made, arguments = error.__reduce__()[:2]
        assert str(made(*arguments)) == str(error)


def test_a_composition_reads_its_own_record_and_has_one_key_however_it_is_spaced() -> None:
    method = {"name": "r_drop+ema", "r_drop": {"weight": 2}, "ema": {"decay": 0.9}}
    config = RunConfig.of(tree(method=method))
    assert config.method_name == "r_drop + ema"
    assert config.method["r_drop"] == {"weight": 2.0, "divergence": "sym_kl", "reduction": "mean"}
    again = RunConfig.of({"model": config.model, **config.settings()})
    assert again == config
    assert again.key(**HASHES) == config.key(**HASHES)
    other = RunConfig.of(tree(method={**method, "name": "r_drop + ema"}))
    assert other.key(**HASHES) == config.key(**HASHES)
    assert RunConfig.of(tree(method={"name": "r_drop"})).key(**HASHES) != config.key(**HASHES)


def test_a_conflict_is_reported_with_the_other_errors() -> None:
    wrong = tree(method={"name": "at + uegr"}, train={"epochs": 0})
    with pytest.raises(SettingError, match=r"(?s)both use the perturbation.*`train\.epochs`"):
        RunConfig.of(wrong)


def test_all_faults_are_reported_at_once() -> None:
    wrong = tree(
        seed=-1,
        data={"row": 3},
        method={"name": "uerg"},
        train={"epochs": 0, "batchsize": 4},
        extra=1,
    )
    with pytest.raises(SettingError, match="extra") as caught:
        RunConfig.of(wrong)
    message = str(caught.value)
    for name in ("seed", "data.source", "data.row", "uerg", "train.epochs", "train.batchsize"):
        assert name in message
    assert len(message.splitlines()) == 7


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"model": "other"},
        {"method": {"name": "uegr"}},
        {"train": {"epochs": 1.0}},
        {"train": {"precision": "bf16"}},
        {"train": {"keep": "best"}},
        {"train": {"lora": {}}},
        {"data": {"source": "demo", "max_length": 64}},
    ],
)
def test_the_key_changes_with_every_setting_that_affects_the_outcome(
    change: dict[str, Any],
) -> None:
    plain, other = RunConfig.of(tree()), RunConfig.of(tree(**change))
    keys = [
        config.key(model=config.model, train_hash="t", dev_hash="d") for config in (plain, other)
    ]
    assert keys[0] != keys[1]


def test_the_key_changes_with_the_rows() -> None:
    config = RunConfig.of(tree())
    keys = {
        config.key(**HASHES),
        config.key(**{**HASHES, "train_hash": "u"}),
        config.key(**{**HASHES, "dev_hash": "e"}),
        config.key(**{**HASHES, "model": "n"}),
    }
    assert len(keys) == 4


def test_a_run_without_unlabeled_text_keeps_its_key_of_earlier_releases() -> None:
    # Recorded before `data.unlabeled` came, when the rate of every model was 2e-5.
    run = tree(
        method={"name": "r_drop", "weight": 2.0},
        seed=7,
        train={"epochs": 1.5, "learning_rate": 2e-5},
    )
    assert RunConfig.of(run).key(**HASHES) == "bb3c80c25357"


def test_the_key_changes_with_the_unlabeled_rows_alone_and_not_with_their_place() -> None:
    with alternating_registered() as name:
        runs = [
            RunConfig.of(tree(data={"source": "demo", "unlabeled": pool}, method={"name": name}))
            for pool in ("here.csv", "there.csv")
        ]
    keys = {run.key(**HASHES, unlabeled_hash=result) for run in runs for result in ("u", "v")}
    assert len(keys) == 2
    assert runs[0].key(**HASHES) not in keys


def test_unlabeled_text_and_a_method_for_it_require_each_other() -> None:
    given_, pool = {"source": "demo"}, {"source": "demo", "unlabeled": "pool.csv"}
    with pytest.raises(SettingError, match=r"'plain' does not train on it.*`data\.unlabeled`"):
        RunConfig.of(tree(data=pool))
    with alternating_registered() as name:
        method = {"name": name}
        with pytest.raises(
            SettingError, match=r"'alternating' also trains on unlabeled text.*data.unlabeled=PATH"
        ):
            RunConfig.of(tree(data=given_, method=method))
        assert RunConfig.of(tree(data=pool, method=method)).data.unlabeled == "pool.csv"
        # With the other faults, and not instead of them.
        with pytest.raises(
            SettingError, match=r"(?s)`train\.epochs`.*'alternating' also trains on"
        ):
            RunConfig.of(tree(data=given_, method=method, train={"epochs": 0}))
    with pytest.raises(SettingError, match=r"unlabeled_rows is 5, but there is no unlabeled"):
        RunConfig.of(tree(data={"source": "demo", "unlabeled_rows": 5}))


def test_only_unlabeled_text_that_a_method_does_not_read_is_removed() -> None:
    data = {"source": "demo", "rows": 5, "unlabeled": "pool.csv", "unlabeled_rows": 3}
    spared = tree(data={"source": "demo", "rows": 5})
    assert without_unread(tree(data=data)) == spared
    assert without_unread(spared) == spared
    with alternating_registered() as name:
        wanted = tree(data=data, method={"name": name})
        assert without_unread(wanted) == wanted
    # What is wrong is left for the check to refuse.
    for wrong in (tree(data=data, method={"name": "uerg"}), tree(data="demo"), {"data": data}):
        assert without_unread(wrong) == wrong


@pytest.mark.parametrize(
    "change",
    [
        {"train": {"device": "cpu"}},
        {"train": {"save_steps": 7}},
        {"train": {"logging_steps": 1}},
        {"train": {"evaluate": "off"}},
        {"train": {"lora": None}},
        {"data": {"source": "elsewhere.csv"}},
    ],
)
def test_the_key_does_not_depend_on_paths_or_the_device(change: dict[str, Any]) -> None:
    assert RunConfig.of(tree()).key(**HASHES) == RunConfig.of(tree(**change)).key(**HASHES)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(["model", "seed", "data", "method", "train", "x"]), JSON_LIKE, max_size=6
    )
)
def test_any_nested_settings_pass_or_raise_a_setting_error(content: dict[str, Any]) -> None:
    config = None
    with contextlib.suppress(SettingError):
        config = RunConfig.of(content)
    assert config is None or set(content) <= {"model", "seed", "data", "method", "train"}


@given(
    st.fixed_dictionaries(
        {},
        optional=dict.fromkeys(
            ("epochs", "batch_size", "class_weights", "device", "report_to"), JSON_LIKE
        ),
    )
)
def test_valid_train_settings_round_trip_through_their_record(table: dict[str, Any]) -> None:
    try:
        config = RunConfig.of(tree(train=table))
    except SettingError:
        return
    again = RunConfig.of(tree(train=config.settings()["train"]))
    assert again == config


def test_short_model_names_set_the_default_learning_rate() -> None:
    def rate(model: str, **train: Any) -> Any:
        data = {"source": "demo"}
        return RunConfig.of({"model": model, "data": data, "train": train}).train.learning_rate

    assert rate("minilm") == 1e-4
    assert rate("bert-base-uncased") == rate("some/model") == 2e-5
    assert rate("minilm", learning_rate=3e-5) == 3e-5
    assert rate("text_cnn") == 2e-3
