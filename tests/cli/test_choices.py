"""Questions with choices, from a file to a predicted choice and scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from temper import Classifier
from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.models.hf import load_headed
from tests.cli.calls import call, refused, succeed
from tests.cli.calls import json_output as printed

WORDS = ("good", "bad", "old")
TRAIN = ("--method", "plain", "--learning-rate", "3e-3", "--device", "cpu")


def write_choices(path: Path) -> Path:
    """Write questions whose right choice is the word that the question names."""
    rows = []
    for number in range(36):
        word, shift = WORDS[number % 3], number // 3 % 3
        choices = [f"the {each} film" for each in (*WORDS[shift:], *WORDS[:shift])]
        asked = f"what film was {'very ' * (number // 9)}{word}"
        rows.append(
            {"question": asked, "choices": choices, "answer": choices.index(f"the {word} film")}
        )
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("choices")
    data = write_choices(folder / "rows.jsonl")
    succeed(
        "train", "--model", tiny_model, "--data", data, "--epochs", "1", *TRAIN,
        "--out", folder / "run",
    )  # fmt: skip
    return folder / "run"


def by_hand(run: Path, question: str, choices: list[str]) -> list[float]:
    """Return the probabilities of the choices, each encoded as a pair with the question."""
    model, tokenizer = load_headed(str(run), "choices")
    rows = tokenizer([question] * len(choices), choices, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(**{name: value.unsqueeze(0) for name, value in rows.items()}).logits[0]
    chances: list[float] = logits.double().softmax(-1).tolist()
    return chances


def test_the_score_of_an_epoch_is_the_accuracy(run: Path) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["task"] == {"kind": "choices", "metric": "accuracy", "labels": []}
    assert 0 <= record["epochs"]["kept"]["dev"] <= 1


def test_a_choice_is_picked_by_its_own_logit(run: Path) -> None:
    questions = ["what film was good", "what film was very very bad"]
    choices = [["the bad film", "good"], ["a film", "the old and bad film was bad"]]
    predictions = Classifier.load(run)(questions, choices)
    for question, texts, prediction in zip(questions, choices, predictions, strict=True):
        expected = by_hand(run, question, texts)
        assert prediction.choice == int(np.argmax(expected))
        assert prediction.label == texts[prediction.choice]
        assert list(prediction.probabilities) == ["0", "1"]
        assert list(prediction.probabilities.values()) == pytest.approx(expected, abs=1e-5)


def test_predictions_are_written_with_their_choices(run: Path, tmp_path: Path) -> None:
    data = run.parent / "rows.jsonl"
    for name in ("predictions.jsonl", "predictions.csv"):
        succeed("predict", run, "--data", data, "--out", tmp_path / name)
    predictions = [
        json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()
    ]
    assert len(predictions) == 36
    for prediction in predictions:
        assert prediction["label"] == prediction["choices"][prediction["choice"]]
        assert sum(prediction["probabilities"].values()) == pytest.approx(1)
    head = (tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"choice", "choices", "probability:2"} <= set(head)
    shown = succeed("predict", run, "--text", "which", "--text-pair", '["good film", "bad film"]')
    assert "film" in shown.stdout


def test_an_evaluation_scores_as_classes_are(run: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "eval", run.parent / "rows.jsonl"
    output = succeed(
        "evaluate", run, "--data", data, "--shift", f"far={data}", "--out", out,
        "--set", "sets.seen_rows=keep", "--set", "evaluate.perspectives=default,selective",
        "--set", "evaluate.embedding_attack.pgd.steps=2",
    )  # fmt: skip
    assert "(not for answers among choices)" in output.stderr
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert scores["task"]["kind"] == "choices"
    clean = [e for e in scores["scores"] if e["condition"] == "clean"]
    result = {(e["perspective"], e["set"], e["name"]): e["value"] for e in clean}
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    predictions = Classifier.load(run)(
        [row["question"] for row in rows], [row["choices"] for row in rows]
    )
    right = [each.choice == row["answer"] for row, each in zip(rows, predictions, strict=True)]
    assert result["shift", "far", "accuracy"] == pytest.approx(np.mean(right))
    nll = [
        -np.log(each.probabilities[str(row["answer"])])
        for row, each in zip(rows, predictions, strict=True)
    ]
    assert result["calibration", "far", "nll"] == pytest.approx(np.mean(nll), abs=1e-4)
    assert ("selective", "dev", "aurc") in result
    attacked = [e for e in scores["scores"] if e["perspective"] == "embedding_attack" and e["n"]]
    assert attacked
    best = result["task", "dev", "accuracy"] + 1e-9
    assert all(e["value"] <= best for e in attacked if e["name"] == "accuracy")
    succeed("report", out)


def test_methods_are_compared(tiny_model: Path, run: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "study", ("--set", "train.max_steps=2", "--set", "train.device=cpu")
    succeed(
        "compare", "--model", tiny_model, "--data", run.parent / "rows.jsonl", *steps,
        "--methods", "plain,uegr", "--seeds", "2", "--no-equal-compute", "--out", out,
    )  # fmt: skip
    assert "accuracy" in (out / "scores.csv").read_text(encoding="utf-8")


def test_an_adapter_is_trained_and_read_back(tiny_model: Path, run: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "adapter", run.parent / "rows.jsonl"
    succeed(
        "train", "--model", tiny_model, "--data", data, "--epochs", "1", *TRAIN, "--lora",
        "--out", out,
    )  # fmt: skip
    assert Classifier.load(out)(["which"], [["good", "bad"]])[0].choice in (0, 1)


def test_a_stopped_run_resumes_to_the_same_weights(
    tiny_model: Path, run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    succeed(
        "train", "--model", tiny_model, "--data", run.parent / "rows.jsonl", "--epochs", "1",
        *TRAIN, "--set", "train.save_steps=1", "--out", out,
    )  # fmt: skip
    weights = "model.safetensors"
    assert (out / weights).read_bytes() == (run / weights).read_bytes()


def test_export_raises_an_error_for_multiple_choice(run: Path, tmp_path: Path) -> None:
    refused(call("export", run, "--out", tmp_path / "out"), "choices")


def test_a_calibration_scales_choices_and_makes_sets_of_them(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    held_out = tmp_path / "held_out.jsonl"
    rows = [
        {"question": f"what film {number} was {word}", "choices": ["bad", "good"], "answer": answer}
        for number in range(70)
        for word, answer in (("good", 1), ("bad", int(number % 3 == 0)))
    ]
    held_out.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    temperature = printed("calibrate", copy, "--data", held_out, "--coverage", "0.8")["temperature"]
    classifier = Classifier.load(copy)
    predictions = classifier([row["question"] for row in rows], [row["choices"] for row in rows])
    logits = torch.tensor(by_hand(copy, rows[0]["question"], ["bad", "good"])).log()
    expected = (logits / temperature).softmax(-1).tolist()
    assert temperature != 1
    assert list(predictions[0].probabilities.values()) == pytest.approx(expected, abs=1e-3)
    in_sets = [
        str(row["answer"]) in (each.set or ()) for row, each in zip(rows, predictions, strict=True)
    ]
    # The threshold is a quantile of 70 of these rows; four standard errors of their coverage.
    covered = np.mean(in_sets)
    assert covered > 0.8 - 4 * np.sqrt(0.8 * 0.2 / 70)
    assert all(each.anomaly is not None for each in predictions)
    # The detector reads the mean state over all tokens of all choices of a question.
    model, tokenizer = load_headed(str(copy), "choices")
    inputs = tokenizer(
        [rows[0]["question"]] * 2, ["bad", "good"], padding=True, return_tensors="pt"
    )
    inputs = {name: value.unsqueeze(0) for name, value in inputs.items()}
    with torch.no_grad():
        layers = model(**inputs, output_hidden_states=True).hidden_states
    kept = inputs["attention_mask"][0].bool()
    wanted = torch.stack([layer[kept].mean(0) for layer in layers]).double()
    one = Examples("rows", [rows[0]["question"]], ['["bad", "good"]'])
    _, states = ClassifierPredictor(model, tokenizer).predict_with_states(one)
    np.testing.assert_allclose(states[0], wanted.numpy(), atol=1e-5)


def test_unsupported_options_raise_an_error_for_multiple_choice(
    run: Path, tiny_model: Path, tmp_path: Path
) -> None:
    rows, out = ("--data", run.parent / "rows.jsonl"), ("--out", tmp_path / "out")
    refused(call("train", "--model", "text_cnn", *rows, *out), "pre-trained")
    augment = ("--set", "data.augment=typos")
    refused(call("train", "--model", tiny_model, *rows, *augment, *out), "data.augment")
    refused(call("predict", run, "--text", "which"), "second")
    refused(call("predict", run, "--text", "which", "--text-pair", "good"), "JSON list")
