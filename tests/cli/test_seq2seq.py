"""Sequence to sequence, from a file to generated text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

from temper import Classifier
from temper.data.encode import encode
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.models.hf import load_headed
from temper.testing.tiny import tiny_tokenizer
from tests.cli.calls import call, refused, succeed

ROWS = [
    {"source": f"word1 word{n} word{n + 1}", "target": f"word{n + 1} {'word2 ' * (n % 3)}"}
    for n in range(3, 19)
]
TRAIN = ("--epochs", "1", "--learning-rate", "1e-2", "--device", "cpu", "--max-length", "24")


def make_t5(vocabulary: int) -> Any:
    """Return a random T5 of two layers."""
    config = T5Config(
        vocab_size=vocabulary, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        pad_token_id=0, eos_token_id=3, decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def make_bart(vocabulary: int) -> Any:
    """Return a random BART of two layers."""
    config = BartConfig(
        vocab_size=vocabulary, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, max_position_embeddings=64, pad_token_id=0, bos_token_id=2,
        eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=None,
    )  # fmt: skip
    return BartForConditionalGeneration(config)


def save(folder: Path, make: Any) -> Path:
    """Save a model with its tokenizer, and rows next to them."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = tokenizer.sep_token
    torch.manual_seed(0)
    make(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module", params=[make_t5, make_bart])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("seq2seq"), request.param)


@pytest.fixture(scope="module")
def run(base: Path) -> Path:
    succeed("train", "--model", base, "--data", base / "rows.jsonl", *TRAIN, "--out", base / "run")
    return base / "run"


def test_the_score_of_an_epoch_is_the_loss_per_target(run: Path) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["task"] == {"kind": "seq2seq", "metric": "completion_loss", "labels": []}
    model, tokenizer = load_headed(str(run), "seq2seq")
    total = tokens = 0.0
    rows = load_splits(DataSettings.model_validate(record["settings"]["data"])).dev
    for item in encode(rows, tokenizer, max_length=24, kind="seq2seq").items:
        ids, labels = torch.tensor([item["input_ids"]]), item["labels"]
        before = [model.config.decoder_start_token_id, *labels[:-1]]
        with torch.no_grad():
            output = model(input_ids=ids, decoder_input_ids=torch.tensor([before]))
        chances = output.logits[0].double().log_softmax(-1)
        total -= float(sum(chances[index, label] for index, label in enumerate(labels)))
        tokens += len(labels)
    assert record["epochs"]["kept"]["dev"] == pytest.approx(total / tokens, rel=1e-4)


def test_texts_are_written_as_each_alone(run: Path) -> None:
    prompts = ["word1 word3", "word9", "word1 word5 word6 word7 word7"]
    predictions = Classifier.load(run, max_length=24)(prompts)
    model, tokenizer = load_headed(str(run), "seq2seq")
    for prompt, prediction in zip(prompts, predictions, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        made = torch.tensor([[model.config.decoder_start_token_id]])
        for _ in range(5):
            with torch.no_grad():
                best = model(input_ids=ids, decoder_input_ids=made).logits[0, -1].argmax()
            made = torch.cat([made, best.view(1, 1)], dim=1)
            if int(best) == tokenizer.eos_token_id:
                break
        written = tokenizer.decode(made[0], skip_special_tokens=True).split()
        assert prediction.completion is not None
        assert prediction.completion.split()[: len(written)] == written


def test_predictions_are_written_for_a_file(run: Path, tmp_path: Path) -> None:
    data, out = run.parent / "rows.jsonl", tmp_path / "predictions.jsonl"
    limit = ("--set", "predictor.max_new_tokens=3")
    succeed("predict", run, "--data", data, "--out", out, *limit)
    predictions = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [prediction["text"] for prediction in predictions] == [row["source"] for row in ROWS]
    assert all(len(prediction["completion"].split()) <= 3 for prediction in predictions)


def test_methods_are_compared_by_the_loss(base: Path, run: Path, tmp_path: Path) -> None:
    evaluated, study, data = tmp_path / "eval", tmp_path / "study", base / "rows.jsonl"
    succeed("evaluate", run, "--out", evaluated)
    scores = json.loads((evaluated / "scores.json").read_text(encoding="utf-8"))
    (score,) = [each for each in scores["scores"] if each["perspective"] == "task"]
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert score["name"] == "completion_loss"
    assert score["value"] == pytest.approx(record["epochs"]["kept"]["dev"], rel=1e-5)
    succeed(
        "compare", "--model", base, "--data", data, "--methods", "plain,uegr", "--seeds", "2",
        "--no-equal-compute", "--max-length", "24", "--set", "train.max_steps=1", "--out", study,
    )  # fmt: skip
    assert "completion_loss" in (study / "scores.csv").read_text(encoding="utf-8")


def test_an_adapter_does_not_change_the_output_layer(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    succeed(
        "train", "--model", base, "--data", base / "rows.jsonl", "--lora", *TRAIN,
        "--method", "embedding_noise", "--out", out,
    )  # fmt: skip
    kept = json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))
    assert kept["task_type"] == "SEQ_2_SEQ_LM"
    assert not kept["modules_to_save"]
    (prediction,) = Classifier.load(out)(["word1"])
    assert isinstance(prediction.completion, str)


def test_a_stopped_run_resumes_to_the_same_weights(base: Path, run: Path, tmp_path: Path) -> None:
    out, more = tmp_path / "run", ("--set", "train.save_steps=1")
    succeed("train", "--model", base, "--data", base / "rows.jsonl", *TRAIN, *more, "--out", out)
    weights = "model.safetensors"
    assert (out / weights).read_bytes() == (run / weights).read_bytes()


@pytest.mark.parametrize("command", ["calibrate", "export"])
def test_commands_for_labels_reject_the_model(run: Path, tmp_path: Path, command: str) -> None:
    data = ("--data", run.parent / "rows.jsonl") if command == "calibrate" else ()
    out = () if command == "calibrate" else ("--out", tmp_path / "out")
    refused(call(command, run, *data, *out), "prompts")


def test_unsupported_options_raise_an_error_for_seq2seq(
    base: Path, tiny_model: Path, tmp_path: Path
) -> None:
    rows, out = ("--data", base / "rows.jsonl"), ("--out", tmp_path / "out")
    refused(call("train", "--model", tiny_model, *rows, *out), "no causal language model")
    chat = tmp_path / "chat.jsonl"
    message = {"role": "assistant", "content": "word1"}
    turns = [[{"role": "user", "content": f"word{n}"}, message] for n in range(20)]
    chat.write_text("".join(json.dumps({"messages": each}) + "\n" for each in turns), "utf-8")
    refused(call("train", "--model", base, "--data", chat, *TRAIN, *out), "conversations")
    method = ("--method", "jachess_unlabeled", "--set", f"data.unlabeled={rows[1]}")
    refused(call("train", "--model", base, *rows, *method, *out), "jachess_unlabeled")
