"""Resuming at any step equals training without a stop, bit for bit (on CPU)."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import IA3Config, LoraConfig, get_peft_model
from transformers import TrainerCallback

from temper import AT, RAT, RATSU, UEGR
from temper.errors import CheckpointError, SettingError
from temper.methods import Method, configure
from temper.training.trainer import RobustTrainer
from tests.methods.tiny import of_each_kind
from tests.training.test_trainer_data import Stream, as_table
from tests.training.tiny_training import make_trainer, tiny_model, unequal, weights

STEPS = 8
EPOCH = 4
METHODS: dict[str, Method] = {
    **{name: configure(name) for name in of_each_kind()},
    "uegr-uniform": UEGR(adaptive="uniform"),
    "uegr-fixed": UEGR(adaptive={"kind": "fixed", "rates": (0.1, 0.3)}),
    "uegr-last": UEGR(sites="last", divergence="sym_kl", reduction="mean", passes=3),
    "uegr-epoch": UEGR(mask={"refresh": "epoch", "scope": "all"}),
    "uegr-range": UEGR(mask={"normalize": "range", "alpha": 0.2}),
    "r_at_su-printed": RATSU(mask={"orientation": "printed", "scale": False}),
    "at-pgd": AT(norm="linf_scaled", attack_scope="token", ascent={"steps": 2}),
    "r_at-released": RAT.preset("released"),
}


MADE: list[Path] = []


class StopAfter(TrainerCallback):
    """End the training after a step, with a checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            control.should_save = control.should_training_stop = True


def train(folder: Path, method: Any, *, checkpoint: Path | None = None, **changes: Any) -> Any:
    """Train over two epochs of four steps; the last batch of each is short.

    Logs fall between checkpoints, so that a log's mean spans a stop.
    """
    more = {"method": method, **changes.pop("more", {})}
    defaults = {"rows": 14, "num_train_epochs": 2, "logging_steps": 3, "max_grad_norm": 0.5}
    trainer = make_trainer(folder, more=more, **{**defaults, **changes})
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return trainer


def saving(folder: Path, method: Any, **changes: Any) -> RobustTrainer:
    """Train without a stop, with a checkpoint after every step."""
    return train(folder, method, save_strategy="steps", save_steps=1, **changes)


def differing(first: Path, second: Path) -> list[str]:
    """Return the names of the files of two checkpoints that are not byte for byte the same."""
    one, two = ({file.name: file for file in folder.iterdir()} for folder in (first, second))
    assert one.keys() == two.keys()
    # The arguments hold the folder's name, and the checksums the arguments' hash.
    return [
        name
        for name in sorted(one.keys() - {"training_args.json", "checksums.json"})
        if one[name].read_bytes() != two[name].read_bytes()
    ]


@functools.cache
def uninterrupted(name: str) -> Path:
    """Return the folder of a run with a checkpoint after every second step, made once."""
    folder = Path(tempfile.mkdtemp(prefix=f"temper-{name}-"))
    MADE.append(folder)
    train(folder, METHODS[name], save_strategy="steps", save_steps=2)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _remove_runs() -> Iterator[None]:
    """Remove the runs that this worker made, and no run for the sake of its removal."""
    yield
    for folder in MADE:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "stop"),
    [
        *((name, 6) for name in METHODS),
        *((name, EPOCH) for name in ("uegr", "uegr-epoch", "roast")),
    ],
)
def test_a_method_resumes_to_the_same_bytes(tmp_path: Path, name: str, stop: int) -> None:
    whole = uninterrupted(name)
    train(
        tmp_path,
        METHODS[name],
        checkpoint=whole / f"checkpoint-{stop}",
        save_strategy="steps",
        save_steps=STEPS,
    )
    assert differing(whole / f"checkpoint-{STEPS}", tmp_path / f"checkpoint-{STEPS}") == []


def adapted() -> Any:
    """Return the tiny model with an adapter."""
    lora = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
    return get_peft_model(tiny_model(), lora)


# Between them they use every mechanism that keeps a state.
WITH_A_STATE = ("plain", "uegr", "roast", "child_tuning_d", "mixout", "jachess")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("method", "is_adapter"),
    [
        *((f"{name} + ema", False) for name in WITH_A_STATE),
        *((name, True) for name in WITH_A_STATE if name != "mixout"),
    ],
)
def test_a_method_resumes_with_an_average_and_on_an_adapter(
    tmp_path: Path, method: str, is_adapter: bool
) -> None:
    def go(folder: Path, checkpoint: Path | None = None) -> Path:
        model = adapted() if is_adapter else None
        saving(folder, configure(method), model=model, max_steps=3, checkpoint=checkpoint)
        return folder / "checkpoint-3"

    whole = go(tmp_path / "whole")
    resumed = go(tmp_path / "resumed", tmp_path / "whole" / "checkpoint-2")
    assert differing(whole, resumed) == []


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(
    ("config", "mark"),
    [
        (LoraConfig(r=2, target_modules=["query"], use_dora=True), "lora_magnitude"),
        (IA3Config(target_modules=["query"], feedforward_modules=[]), "ia3_l"),
    ],
    ids=["dora", "ia3"],
)
def test_other_adapters_of_peft_train_with_the_head_and_resume(
    tmp_path: Path, config: Any, mark: str
) -> None:
    config.modules_to_save = ["classifier"]

    def go(folder: Path, checkpoint: Path | None = None) -> Any:
        model = get_peft_model(tiny_model(), config)
        saving(folder, configure("uegr"), model=model, max_steps=3, checkpoint=checkpoint)
        return model

    model = get_peft_model(tiny_model(), config)
    before = weights(model)
    moved = unequal(before, weights(go(tmp_path / "whole")))
    assert any(mark in name for name in moved)
    assert any("classifier" in name for name in moved)
    assert all(mark in name or "lora_" in name or "modules_to_save" in name for name in moved)
    go(tmp_path / "resumed", tmp_path / "whole" / "checkpoint-2")
    folders = [tmp_path / name / "checkpoint-3" for name in ("whole", "resumed")]
    assert differing(*folders) == []


def test_saving_checkpoints_does_not_change_training(tmp_path: Path) -> None:
    plain = train(tmp_path, METHODS["uegr"])
    fresh = tiny_model()
    before = weights(fresh)
    make_trainer(tmp_path, model=fresh)._load_from_checkpoint(
        str(uninterrupted("uegr") / f"checkpoint-{STEPS}")
    )
    assert unequal(before, weights(fresh))
    assert not unequal(weights(plain.model), weights(fresh))


@settings(max_examples=4)
@given(
    stop=st.integers(1, 5),
    accumulation=st.sampled_from([2, 3]),
    bucket=st.booleans(),
    method=st.sampled_from(["uegr", "uegr-epoch"]),
)
def test_any_stop_with_any_accumulation_resumes_to_the_same_weights(
    stop: int, accumulation: int, bucket: bool, method: str
) -> None:
    # 14 rows in batches of 2: 7 micro-batches, 4 or 3 steps an epoch, the last one short.
    changes: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": accumulation,
        "save_strategy": "steps",
        "save_steps": 100,
        "logging_steps": 2,
    }
    more: dict[str, Any] = {"bucket_by_length": bucket}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = train(folder / "whole", METHODS[method], more=more, **changes)
        stopper = {**more, "callbacks": [StopAfter(stop)]}
        train(folder / "stopped", METHODS[method], more=stopper, **changes)
        checkpoint = folder / "stopped" / f"checkpoint-{stop}"
        train(folder / "resumed", METHODS[method], more=more, checkpoint=checkpoint, **changes)
        last = f"checkpoint-{whole.state.global_step}"
        assert differing(folder / "whole" / last, folder / "resumed" / last) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"train_sampling_strategy": "group_by_length"},
        {"train_sampling_strategy": "sequential"},
        {"dataloader_num_workers": 1},
        {"rows": as_table(14)},
        {"lr_scheduler_type": "cosine", "warmup_steps": 3, "optim": "adafactor"},
        {"bf16": True},
        {"max_steps": STEPS, "rows": Stream(40)},
        {"max_steps": STEPS, "rows": as_table(40).to_iterable_dataset()},
    ],
    ids=lambda changes: "-".join(map(str, changes.values()))[:40],
)
def test_other_training_options_resume_to_the_same_weights(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    saving(whole, "uegr", **changes)
    saving(resumed, "uegr", checkpoint=whole / "checkpoint-6", **changes)
    assert differing(whole / f"checkpoint-{STEPS}", resumed / f"checkpoint-{STEPS}") == []


def test_a_loss_scaler_resumes_with_its_scale(tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    for folder, checkpoint in ((whole, None), (resumed, whole / "checkpoint-5")):
        trainer = make_trainer(
            folder, rows=14, num_train_epochs=2, save_strategy="steps", save_steps=1
        )
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", growth_interval=3)
        trainer.train(resume_from_checkpoint=checkpoint)
    assert differing(whole / f"checkpoint-{STEPS}", resumed / f"checkpoint-{STEPS}") == []
    scaler = json.loads((resumed / f"checkpoint-{STEPS}" / "scaler.json").read_text())
    assert dict(scaler["dict"])["scale"] == 4 * 2.0**16


def test_a_restarted_stream_cannot_be_resumed(tmp_path: Path) -> None:
    saving(tmp_path, "plain", rows=Stream(8), max_steps=5)
    with pytest.raises(SettingError, match=r"a stream \(Stream\) .* from pass 2"):
        saving(
            tmp_path,
            "plain",
            rows=Stream(8),
            max_steps=5,
            checkpoint=tmp_path / "checkpoint-3",
        )


def test_checkpoints_are_safetensors_and_json_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("torch.save was called")

    monkeypatch.setattr(torch, "save", forbidden)
    saving(tmp_path, METHODS["uegr-epoch"], max_steps=1)
    files = [file for file in (tmp_path / "checkpoint-1").rglob("*") if file.is_file()]
    assert len(files) >= 10
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".json":
            json.loads(content)
        else:
            assert file.suffix == ".safetensors", file
            length = int.from_bytes(content[:8], "little")
            assert all("data_offsets" in each for each in header(content, length).values())
        # What torch.save and pickle write begin with.
        assert not content.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x04", b"\x80\x05"))


def header(content: bytes, length: int) -> dict[str, Any]:
    """Return the tensors that a safetensors file describes."""
    described = json.loads(content[8 : 8 + length])
    described.pop("__metadata__", None)
    return dict(described)


def remove(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-4])


NEEDED = [
    "trainer_state.json",
    "model.safetensors",
    "optimizer.json",
    "optimizer.safetensors",
    "scheduler.json",
    "method.json",
    "method.safetensors",
    "progress_0.json",
    "progress_0.safetensors",
    "rng_state_0.json",
    "rng_state_0.safetensors",
]


@pytest.mark.parametrize("harm", [remove, cut], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_or_damaged_file_gives_one_error_and_loads_nothing(
    tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    checkpoint = tmp_path / "checkpoint-2"
    shutil.copytree(uninterrupted("uegr") / "checkpoint-2", checkpoint)
    harm(checkpoint / name)
    trainer = make_trainer(tmp_path, rows=14, more={"method": "uegr"})
    before = weights(trainer.model)
    with pytest.raises(CheckpointError, match=r"checkpoint-2.*(Resume from another|start over)"):
        trainer.train(resume_from_checkpoint=True)
    assert not unequal(before, weights(trainer.model))


def test_a_checkpoint_that_is_not_there_gives_one_error(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    with pytest.raises(CheckpointError, match=r"checkpoint-9 is not a folder"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-9"))
    with pytest.raises(CheckpointError, match=r"has no checkpoint-N"):
        trainer.train(resume_from_checkpoint=True)


def test_a_checkpoint_of_another_optimizer_raises_an_error(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, model=tiny_model(num_hidden_layers=1), rows=14, more={"method": "uegr"}
    )
    with pytest.raises(CheckpointError, match="The optimizer state in .* does not fit this run"):
        trainer.train(resume_from_checkpoint=str(uninterrupted("uegr") / "checkpoint-2"))
