"""Questions about a context, from a file to a predicted span and scores."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from temper import Classifier
from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.functional.answers import answer_scores
from temper.models.hf import load_headed
from tests.cli.calls import call, refused, succeed

TRAIN = ("--method", "plain", "--learning-rate", "1e-2", "--device", "cpu")
WORDS = ("good", "bad", "great", "poor")


def write_spans(path: Path) -> Path:
    """Write questions whose answer is the word before "film" in the context."""
    rows = []
    for number in range(40):
        word = WORDS[number % 4]
        context = f"the phone {'is very ' * (number // 4)}a {word} film"
        start = context.index(f"{word} film")
        answers = {"text": [word, f"a {word}"], "answer_start": [start, start - 2]}
        rows.append({"question": "how was it", "context": context, "answers": answers})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spans")
    data = write_spans(folder / "rows.jsonl")
    succeed(
        "train", "--model", tiny_model, "--data", data, "--epochs", "2", *TRAIN,
        "--out", folder / "run",
    )  # fmt: skip
    return folder / "run"


def by_hand(run: Path, question: str, context: str) -> tuple[int, int, float]:
    """Return the characters of the most probable answer among all pairs of context tokens."""
    model, tokenizer = load_headed(str(run), "spans")
    row = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
    offsets, sides = row.pop("offset_mapping")[0].tolist(), row.sequence_ids(0)
    with torch.no_grad():
        output = model(**row)
    inside = [index for index, side in enumerate(sides) if side == 1]
    first, last = (
        logits[0, inside].double().softmax(-1).tolist()
        for logits in (output.start_logits, output.end_logits)
    )
    pairs = [
        (first[i] * last[j], offsets[inside[i]][0], offsets[inside[j]][1])
        for i in range(len(inside))
        for j in range(i, min(len(inside), i + 30))
    ]
    chance, start, end = max(pairs, key=lambda pair: pair[0])
    return start, end, chance


def test_the_score_of_an_epoch_is_the_f1_of_answers(run: Path) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["task"] == {"kind": "spans", "metric": "span_f1", "labels": []}
    assert 0 < record["epochs"]["kept"]["dev"] <= 1


def test_an_answer_has_a_position_and_a_probability(run: Path) -> None:
    contexts = ["The film,  was great", "a bad phone", "it " * 40 + "was good"]
    predictions = Classifier.load(run)(["how was it", "it", "how"], contexts)
    for question, context, prediction in zip(
        ("how was it", "it", "how"), contexts, predictions, strict=True
    ):
        start, end, chance = by_hand(run, question, context)
        assert prediction.span is not None
        assert (prediction.span.start, prediction.span.end) == (start, end)
        assert prediction.span.text == context[start:end]
        assert prediction.span.probability == pytest.approx(chance, abs=1e-5)
        assert prediction.label is None


def test_predictions_do_not_depend_on_the_batch(run: Path) -> None:
    model, tokenizer = load_headed(str(run), "spans")
    questions = ["how was it", "was it very very good", "it"]
    examples = Examples("rows", questions, ["a good film", "the film was bad", "poor phone it is"])
    alone = ClassifierPredictor(model, tokenizer, batch_size=1).predict(examples)
    together = ClassifierPredictor(model, tokenizer, batch_size=3).predict(examples)
    assert together.spans is not None
    assert alone.spans is not None
    assert together.spans.tolist() == alone.spans.tolist()
    np.testing.assert_allclose(together.probabilities, alone.probabilities, atol=1e-5)


def test_predictions_are_written(run: Path, tmp_path: Path) -> None:
    data = run.parent / "rows.jsonl"
    for name in ("predictions.jsonl", "predictions.csv"):
        succeed("predict", run, "--data", data, "--out", tmp_path / name)
    predictions = [
        json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()
    ]
    assert len(predictions) == 40
    for prediction in predictions:
        span = prediction["span"]
        assert prediction["text_pair"][span["start"] : span["end"]] == span["text"]
    head = (tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"span:text", "span:start", "span:probability"} <= set(head)
    shown = succeed("predict", run, "--text", "how was it", "--text-pair", "a good film")
    assert "answer" in shown.stdout


def test_an_evaluation_scores_answer_spans(run: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "eval", run.parent / "rows.jsonl"
    output = succeed(
        "evaluate", run, "--data", data, "--shift", f"far={data}", "--out", out,
        "--set", "sets.seen_rows=keep", "--perspectives", "default,selective",
        "--set", "evaluate.embedding_attack.pgd.steps=2",
    )  # fmt: skip
    assert "(not for answers" in output.stderr
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert scores["task"]["kind"] == "spans"
    result = {(e["perspective"], e["name"]): e["value"] for e in scores["scores"]}
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    predictions = Classifier.load(run)(
        [row["question"] for row in rows], [row["context"] for row in rows]
    )
    predicted = [each.span.text for each in predictions if each.span is not None]
    f1, exact = answer_scores(predicted, [row["answers"]["text"] for row in rows]).mean(0)
    assert result["shift", "span_f1"] == pytest.approx(f1)
    assert result["shift", "span_exact_match"] == pytest.approx(exact)
    measured = {"task", "shift", "calibration", "selective", "embedding_attack", "embedding_noise"}
    assert {perspective for perspective, _ in result} == measured
    succeed("report", out)


def test_methods_are_compared(tiny_model: Path, run: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "study", ("--set", "train.max_steps=2", "--set", "train.device=cpu")
    succeed(
        "compare", "--model", tiny_model, "--data", run.parent / "rows.jsonl", *steps,
        "--methods", "plain,uegr", "--seeds", "2", "--no-equal-compute", "--out", out,
    )  # fmt: skip
    assert "span_f1" in (out / "scores.csv").read_text(encoding="utf-8")


def test_an_adapter_is_trained_and_read_back(tiny_model: Path, run: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "adapter", run.parent / "rows.jsonl"
    succeed(
        "train", "--model", tiny_model, "--data", data, "--epochs", "1", *TRAIN, "--lora",
        "--out", out,
    )  # fmt: skip
    kept = json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))
    assert kept["task_type"] == "QUESTION_ANS"
    assert Classifier.load(out)(["how"], ["a good film"])[0].span is not None


@pytest.mark.parametrize("command", ["calibrate", "export"])
def test_commands_for_one_label_reject_the_model(run: Path, tmp_path: Path, command: str) -> None:
    data = ("--data", run.parent / "rows.jsonl") if command == "calibrate" else ()
    out = () if command == "calibrate" else ("--out", tmp_path / "out")
    refused(call(command, run, *data, *out), "context")


def test_unsupported_options_raise_an_error_for_spans(
    run: Path, tiny_model: Path, tmp_path: Path
) -> None:
    rows, out = ("--data", run.parent / "rows.jsonl"), ("--out", tmp_path / "out")
    refused(call("train", "--model", "text_cnn", *rows, *out), "pre-trained")
    refused(call("predict", run, "--text", "which"), "second")
    weights = ("--set", "train.class_weights=balanced")
    refused(call("train", "--model", tiny_model, *rows, *weights, *out), "class_weights")
    method = ("--method", "mixup")
    refused(call("train", "--model", tiny_model, *rows, *method, *out), "spans", "mixup")
