"""Prompts and completions, from a file to generated text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from temper import Classifier
from temper.data.encode import encode
from temper.data.settings import DataSettings
from temper.data.sources import load_examples, load_splits
from temper.models.hf import load_headed
from temper.testing.tiny import tiny_tokenizer
from tests.cli.calls import call, refused, succeed

ROWS = [
    {"prompt": f"the film was {word} {'and ' * (n % 3)}", "completion": answer}
    for n in range(8)
    for word, answer in (("good", "very good"), ("bad", "not good"))
]
TRAIN = ("--epochs", "1", "--learning-rate", "1e-2", "--device", "cpu", "--max-length", "24")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = tokenizer.sep_token
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(base: Path) -> Path:
    succeed("train", "--model", base, "--data", base / "rows.jsonl", *TRAIN, "--out", base / "run")
    return base / "run"


def test_the_score_of_an_epoch_is_the_loss_per_target(base: Path, run: Path) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["task"] == {"kind": "completions", "metric": "completion_loss", "labels": []}
    model, tokenizer = load_headed(str(run), "completions")
    dev = record["data"]["dev"]["rows"]
    assert dev >= 1
    total = tokens = 0.0
    rows = load_splits(DataSettings.model_validate(record["settings"]["data"])).dev
    for item in encode(rows, tokenizer, max_length=24).items:
        ids, labels = torch.tensor([item["input_ids"]]), torch.tensor(item["labels"])
        with torch.no_grad():
            chances = model(input_ids=ids).logits[0].double().log_softmax(-1)
        for index in range(1, len(labels)):
            if labels[index] >= 0:
                total -= float(chances[index - 1, labels[index]])
                tokens += 1
    assert record["epochs"]["kept"]["dev"] == pytest.approx(total / tokens, rel=1e-4)


def test_prompts_are_continued_as_each_alone(run: Path) -> None:
    prompts = ["the film was good", "the", "the film was bad and and"]
    predictions = Classifier.load(run, max_length=24)(prompts)
    model, tokenizer = load_headed(str(run), "completions")
    for prompt, prediction in zip(prompts, predictions, strict=True):
        batch = tokenizer(prompt, return_tensors="pt")
        ids = batch["input_ids"]
        for _ in range(5):
            with torch.no_grad():
                best = model(input_ids=ids).logits[0, -1].argmax()
            ids = torch.cat([ids, best.view(1, 1)], dim=1)
        made = tokenizer.decode(ids[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        assert prediction.completion is not None
        assert prediction.completion.split()[:3] == made.split()[:3]
        assert prediction.label is None


def test_predictions_are_written_for_a_file_of_prompts(run: Path, tmp_path: Path) -> None:
    data, out = tmp_path / "prompts.jsonl", tmp_path / "predictions.jsonl"
    data.write_text('{"prompt": "the film was"}\n{"prompt": "a"}', encoding="utf-8")
    limit = ("--set", "predictor.max_new_tokens=3")
    succeed("predict", run, "--data", data, "--out", out, *limit)
    predictions = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [prediction["text"] for prediction in predictions] == ["the film was", "a"]
    assert all(len(prediction["completion"].split()) <= 3 for prediction in predictions)
    shown = succeed("predict", run, "--text", "the film was", *limit).stdout
    assert "completion" in shown


def test_an_evaluation_scores_the_loss_of_completions(
    base: Path, run: Path, tmp_path: Path
) -> None:
    out, data, odd = tmp_path / "eval", base / "rows.jsonl", tmp_path / "odd.jsonl"
    odd.write_text("".join(f'{{"text": "a {"very " * n}"}}\n' for n in range(1, 9)), "utf-8")
    fit = tmp_path / "fit.jsonl"
    rows = [{**row, "prompt": f"word1 {row['prompt']}"} for row in ROWS]
    fit.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    output = succeed(
        "evaluate", run, "--data", data, "--shift", f"far={data}", "--anomaly", f"odd={odd}",
        "--out", out, "--set", "sets.seen_rows=keep", "--set", f"sets.fit={fit}",
        "--set", "evaluate.embedding_attack.pgd.steps=2",
    )  # fmt: skip
    assert "(not for completions of prompts)" in output.stderr
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert scores["task"]["kind"] == "completions"
    result = {e["perspective"]: e["value"] for e in scores["scores"]}
    measured = {"task", "shift", "calibration", "anomaly", "embedding_attack", "embedding_noise"}
    assert set(result) == measured
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert result["task"] == pytest.approx(record["epochs"]["kept"]["dev"], rel=1e-5)
    model, tokenizer = load_headed(str(run), "completions")
    losses = []
    for item in encode(load_examples(str(data)), tokenizer, max_length=24).items:
        batch = {name: torch.tensor([item[name]]) for name in ("input_ids", "labels")}
        with torch.no_grad():
            loss = float(model(**batch).loss)
        losses += [loss] * sum(label >= 0 for label in item["labels"])
    # A mean over tokens and not over rows.
    assert result["shift"] == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    succeed("report", out)


def test_an_adapter_does_not_change_the_output_layer(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    succeed(
        "train", "--model", base, "--data", base / "rows.jsonl", "--lora", *TRAIN,
        "--method", "embedding_noise", "--out", out,
    )  # fmt: skip
    kept = json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))
    assert kept["task_type"] == "CAUSAL_LM"
    assert not kept["modules_to_save"]
    (prediction,) = Classifier.load(out)(["the film was"])
    assert isinstance(prediction.completion, str)


def test_a_stopped_run_resumes_to_the_same_weights(base: Path, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ("--set", "train.save_steps=1")
    succeed("train", "--model", base, "--data", base / "rows.jsonl", *TRAIN, *more, "--out", out)
    weights = "model.safetensors"
    assert (out / weights).read_bytes() == (run / weights).read_bytes()


@pytest.mark.parametrize("command", ["calibrate", "export"])
def test_commands_for_labels_reject_the_model(
    base: Path, run: Path, tmp_path: Path, command: str
) -> None:
    data = ("--data", base / "rows.jsonl") if command == "calibrate" else ()
    out = () if command == "calibrate" else ("--out", tmp_path / "out")
    refused(call(command, run, *data, *out), "prompts")


def test_unsupported_options_raise_an_error_for_completions(
    base: Path, tiny_model: Path, tmp_path: Path
) -> None:
    rows, out = ("--data", base / "rows.jsonl"), ("--out", tmp_path / "out")
    refused(call("train", "--model", tiny_model, *rows, *out), "no causal language model")
    refused(call("train", "--model", "text_cnn", *rows, *out), "language model")
    weights = ("--set", "train.class_weights=balanced")
    refused(call("train", "--model", base, *rows, *weights, *out), "class_weights")
    names = ("--set", "train.label_names=a,b")
    refused(call("train", "--model", base, *rows, *names, *out), "label_names")
    limit = ("--text", "a", "--set", "predictor.max_new_tokens=3")
    refused(call("predict", tiny_model, *limit), "max_new_tokens")
