"""Tags of words, from a file to entities and scores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from temper import Classifier
from temper.data.encode import encode
from temper.data.examples import Examples
from temper.data.tags import of_words
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.prediction import Prediction
from temper.evaluation.rows import Block
from temper.evaluation.tag_calibration import tag_errors
from temper.functional.entities import COUNTS, entities_of, tag_counts, tag_score
from temper.models.hf import load_classifier
from tests.cli.calls import call, refused, succeed
from tests.cli.calls import json_output as printed

TYPES = {"good": "X", "bad": "Y"}
TEXTS = ["good film", "The bad, old film!", "film"]


def write_tagged(path: Path, *, indices: bool = False, held_out: bool = False) -> Path:
    """Write sentences in which good and bad words are entities; held-out ones differ from these."""
    names = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    rows = []
    for number in range(120 if held_out else 40):
        words = ["the", "film", "was", *(["very"] * (number % 3)), "good", "good", "and", "bad"]
        words += [str(number)] if held_out else []
        tags, last = [], None
        for word in words[number % 4 :]:
            kind = TYPES.get(word)
            tags.append("O" if kind is None else f"{'I' if kind == last else 'B'}-{kind}")
            last = kind
        labeled = [names.index(tag) for tag in tags] if indices else tags
        rows.append({"tokens": words[number % 4 :], "ner_tags": labeled})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


TRAIN = ("--method", "plain", "--learning-rate", "3e-3", "--device", "cpu")


@pytest.fixture(scope="module")
def run(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tags")
    data = write_tagged(folder / "rows.jsonl")
    succeed(
        "train", "--model", tiny_model, "--data", data, "--epochs", "4", *TRAIN,
        "--out", folder / "run",
    )  # fmt: skip
    return folder / "run"


def test_the_score_of_an_epoch_is_the_f1_of_entities(run: Path) -> None:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    assert record["task"]["kind"] == "tokens"
    assert record["task"]["metric"] == "entity_f1"
    assert record["task"]["labels"] == ["O", "B-X", "I-X", "B-Y"]
    assert 0 < record["epochs"]["kept"]["dev"] <= 1


def by_hand(run: Path, words: list[str]) -> list[list[float]]:
    """Return the probabilities of each word, from the model's logits at its first token."""
    model, tokenizer = load_classifier(str(run))
    batch = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**batch).logits[0].softmax(-1)
    ids = batch.word_ids()
    return [probabilities[ids.index(index)].tolist() for index in range(len(words))]


def test_entities_have_the_places_and_probabilities_of_their_words(run: Path) -> None:
    predictions = Classifier.load(run)(TEXTS)
    labels = ["O", "B-X", "I-X", "B-Y"]
    seen = 0
    for text, words, prediction in zip(
        TEXTS, (["good", "film"], ["The", "bad", ",", "old", "film", "!"], ["film"]), predictions,
        strict=True,
    ):  # fmt: skip
        rows = by_hand(run, words)
        tags = [labels[int(np.argmax(row))] for row in rows]
        assert prediction.label is None
        assert not prediction.probabilities
        for entity in prediction.entities or ():
            seen += 1
            assert text[entity.start : entity.end] == entity.text
            first = words.index(entity.text.split(" ")[0])
            assert tags[first].endswith(f"-{entity.label}")
            inside = [row for row, word in zip(rows, words, strict=True) if word in entity.text]
            assert entity.probability <= max(map(max, inside)) + 1e-5
    assert seen


def test_predictions_do_not_depend_on_the_batch(run: Path) -> None:
    model, tokenizer = load_classifier(str(run))
    examples = Examples("rows", ["good film", "the film was very good and bad", "bad"])
    alone = ClassifierPredictor(model, tokenizer, batch_size=1).predict(examples)
    together = ClassifierPredictor(model, tokenizer, batch_size=3).predict(examples)
    assert together.words is not None
    assert together.words.tolist() == [2, 7, 1]
    np.testing.assert_allclose(together.logits, alone.logits, atol=1e-5)
    tokenizer.padding_side = "left"
    for part in ClassifierPredictor(model, tokenizer, batch_size=3).parts(examples):
        ids = part.batch.inputs["input_ids"].double().numpy()
        placed = of_words(ids, part.batch.begins, [item["words"] for item in part.items], missing=0)
        for index, row in zip(part.indices, placed, strict=True):
            words = examples.text[index].split(" ")
            assert row.tolist() == tokenizer.convert_tokens_to_ids(words)


def test_words_behind_the_limit_are_reported_as_cut_and_have_no_tag(run: Path) -> None:
    model, tokenizer = load_classifier(str(run))
    predictor = ClassifierPredictor(model, tokenizer, max_length=5)
    result = predictor.predict(Examples("rows", ["good film was bad bad"]))
    assert result.truncated == 1
    assert result.words is not None
    assert result.words.tolist() == [3]


def test_predictions_are_written_for_files_of_words_and_of_texts(run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("text\n" + "\n".join(f'"{text}"' for text in TEXTS), encoding="utf-8")
    for data, rows in ((texts, 3), (run.parent / "rows.jsonl", 40)):
        out = tmp_path / "predictions.jsonl"
        succeed("predict", run, "--data", data, "--out", out)
        predictions = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        assert len(predictions) == rows
        for prediction in predictions:
            for entity in prediction["entities"]:
                assert prediction["text"][entity["start"] : entity["end"]] == entity["text"]
    shown = succeed("predict", run, "--text", "good", "--out", tmp_path / "predictions.csv")
    assert "1 predictions" in shown.stdout + shown.stderr
    assert "entities" in (tmp_path / "predictions.csv").read_text(encoding="utf-8").splitlines()[0]


def test_an_evaluation_scores_entities_by_text(run: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "eval", run.parent / "rows.jsonl"
    held_out = write_tagged(tmp_path / "held_out.jsonl", held_out=True)
    output = succeed(
        "evaluate", run, "--data", data, "--shift", f"far={data}", "--out", out,
        "--set", "sets.seen_rows=keep", "--set", "evaluate.perspectives=default",
        "--set", f"sets.held_out={held_out}",
        "--set", "evaluate.embedding_attack.pgd.steps=2",
    )  # fmt: skip
    assert "(not for tags of words)" in output.stderr
    scores = json.loads((out / "scores.json").read_text(encoding="utf-8"))
    assert scores["task"]["kind"] == "tokens"
    result = {(e["perspective"], e["name"]): e["value"] for e in scores["scores"]}
    assert result["shift", "entity_f1"] is not None
    found_at = {
        (e["condition"], e["set"], e["name"]): e["value"]
        for e in scores["scores"]
        if e["perspective"] == "calibration"
    }
    assert ("embedding_noise", "area") in result
    model, tokenizer = load_classifier(str(run))
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    names = scores["task"]["labels"]
    labels = [[names.index(tag) for tag in row["ner_tags"]] for row in rows]
    predictions = ClassifierPredictor(model, tokenizer).predict(
        Examples("rows", [" ".join(row["tokens"]) for row in rows])
    )
    labeled = [row.astype(int).tolist() for row in predictions.by_example(predictions.prediction)]
    sums = dict(zip(COUNTS, tag_counts(labels, labeled, names).sum(0), strict=True))
    assert result["shift", "entity_f1"] == pytest.approx(float(tag_score("entity_f1", sums)))
    assert result["shift", "word_accuracy"] == pytest.approx(sums["right_words"] / sums["words"])
    low = [e for e in scores["scores"] if e["perspective"] == "embedding_attack" and e["n"]]
    assert all(e["value"] <= result["task", e["name"]] + 1e-9 for e in low if e["name"] in result)
    # Calibration, from the words that are predicted to be part of an entity, and from entities.
    confidence = predictions.probabilities.max(axis=1)
    tags = [names[int(tag)] for tag in predictions.prediction]
    truth = [name for row in rows for name in row["ner_tags"]]
    tagged = [number for number, name in enumerate(tags) if name != "O"]
    of_words = [(tags[number] == truth[number], confidence[number]) for number in tagged]
    assert found_at["clean", "far", "ece_10"] == pytest.approx(ece(of_words))
    of_entities, start = [], 0
    for row in rows:
        end = start + len(row["tokens"])
        known = entities_of(row["ner_tags"])
        for kind, first, last in entities_of(tags[start:end], strict=False):
            sure = np.prod(confidence[start + first : start + last])
            of_entities.append(((kind, first, last) in known, sure))
        start = end
    assert found_at["clean", "far", "entity_ece"] == pytest.approx(ece(of_entities))
    # The temperature is that of the held-out rows, whose notice has its value.
    (notice,) = (each for each in scores["notices"] if "temperature of the calibration is" in each)
    temperature = float(notice.split("calibration is ")[1].split(" ")[0])
    assert predictions.logits is not None
    logits = torch.tensor(predictions.logits)[tagged] / temperature
    labels_of_words = torch.tensor([names.index(truth[number]) for number in tagged])
    loss = torch.nn.functional.cross_entropy(logits, labels_of_words)
    assert found_at["temperature", "far", "nll"] == pytest.approx(float(loss), rel=1e-3)
    succeed("report", out)


def ece(units: list[tuple[bool, float]]) -> float:
    """Return the expected calibration error in ten bins."""
    gaps = dict.fromkeys(range(10), 0.0)
    for right, confidence in units:
        gaps[min(int(confidence * 10), 9)] += right - confidence
    return sum(map(abs, gaps.values())) / len(units)


def test_an_adapter_is_trained_and_read_back(run: Path, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "adapter"
    succeed(
        "train", "--model", tiny_model, "--data", run.parent / "rows.jsonl", "--epochs", "1",
        *TRAIN, "--lora", "--out", out,
    )  # fmt: skip
    kept = json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))
    assert kept["task_type"] == "TOKEN_CLS"
    predictions = Classifier.load(out)(TEXTS)
    assert all(prediction.entities is not None for prediction in predictions)


def test_a_head_of_another_kind_is_not_reused(run: Path) -> None:
    """Both heads have weights of the same names and sizes."""
    names = ["O", "B-X", "I-X", "B-Y"]
    own = load_classifier(str(run))[0].classifier.weight
    other, _ = load_classifier(str(run), labels=names, kind="classification")
    again, _ = load_classifier(str(run), labels=names, kind="tokens")
    assert other.classifier.weight.shape == own.shape
    assert not torch.equal(other.classifier.weight, own)
    assert torch.equal(again.classifier.weight, own)


def test_parts_of_speech_are_scored_by_word(tiny_model: Path, tmp_path: Path) -> None:
    rows = [{"tokens": ["good", "film"], "pos_tags": ["ADJ", "NOUN"]}] * 8
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    out = tmp_path / "run"
    succeed(
        "train", "--model", tiny_model, "--data", data, "--epochs", "1", *TRAIN,
        "--set", "data.dev_fraction=0.25", "--out", out,
    )  # fmt: skip
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert record["task"]["metric"] == "word_accuracy"
    (prediction,) = Classifier.load(out)(["good film"])
    assert [span.text for span in prediction.entities or ()] == ["good", "film"]


def test_commands_for_one_label_reject_the_model(run: Path, tmp_path: Path) -> None:
    refused(call("export", run, "--out", tmp_path / "out"), "tags of words")
    data = write_tagged(tmp_path / "held_out.jsonl", held_out=True)
    refused(call("calibrate", run, "--data", data, "--coverage", "0.9"), "tags of words")


def test_a_calibration_scales_words_and_flags_texts(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    held_out = write_tagged(tmp_path / "held_out.jsonl", held_out=True)
    uncalibrated = Classifier.load(copy)(TEXTS)
    record = printed("calibrate", copy, "--data", held_out)
    assert record["entity_ece"].keys() == {"before", "after"}
    assert "sets" not in record
    temperature = record["temperature"]
    for before, after in zip(uncalibrated, Classifier.load(copy)(TEXTS), strict=True):
        assert after.anomaly is not None
        for old, new in zip(before.entities or (), after.entities or (), strict=True):
            assert (old.label, old.start, old.end) == (new.label, new.start, new.end)
    (given,) = Classifier.load(copy)(["film good film"])
    scaled = torch.tensor(by_hand(copy, ["film", "good", "film"])).log() / temperature
    sure = scaled.softmax(-1).max(-1).values.tolist()
    for span in given.entities or ():
        words = [n for n, start in enumerate((0, 5, 10)) if span.start <= start < span.end]
        assert span.probability == pytest.approx(np.prod([sure[n] for n in words]), abs=1e-5)
    (strange,) = Classifier.load(copy)(["film"], abstain="anomaly")
    assert strange.abstain is not None
    with pytest.raises(SettingError, match="tags of words"):
        Classifier.load(copy)(["film"], coverage=0.9)


def test_the_temperature_has_the_least_nll_of_the_words_in_predicted_entities(
    run: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    whole = write_tagged(tmp_path / "whole.jsonl", held_out=True)
    # So few rows fit a temperature alone, all of them.
    lines = whole.read_text(encoding="utf-8").splitlines()[:60]
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("\n".join(lines), encoding="utf-8")
    temperature = printed("calibrate", copy, "--data", held_out)["temperature"]
    model, tokenizer = load_classifier(str(copy))
    rows = [json.loads(line) for line in lines]
    texts = [" ".join(row["tokens"]) for row in rows]
    predictions = ClassifierPredictor(model, tokenizer).predict(Examples("rows", texts))
    assert predictions.logits is not None
    names = json.loads((copy / "run.json").read_text(encoding="utf-8"))["task"]["labels"]
    labels = torch.tensor([names.index(tag) for row in rows for tag in row["ner_tags"]])
    logits = torch.tensor(predictions.logits)
    tagged = logits.argmax(-1) != names.index("O")

    def nll(divisor: float) -> float:
        loss = torch.nn.functional.cross_entropy(logits[tagged] / divisor, labels[tagged])
        return float(loss)

    assert temperature != 1
    assert nll(temperature) < min(nll(temperature * 1.05), nll(temperature / 1.05))


def test_errors_of_tags_are_those_of_tagged_words_and_of_entities() -> None:
    names = ["O", "B-X", "I-X"]
    probabilities = np.array(
        [[[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.9, 0.05, 0.05]], [[0.3, 0.7, 0.0]] * 3]
    )
    with np.errstate(divide="ignore"):
        logits = np.log(np.maximum(probabilities, 1e-30))
    # The last text is cut: its last word has no prediction.
    predictions = Prediction.of_tags([logits[0], logits[1][:2]])
    rows = Examples(
        "rows", ["a b c", "a b c"], labels=[[1, 2, 0], [1, 0, 1]], label_names=names, kind="tokens"
    )
    result = tag_errors(rows, predictions)
    # Tagged words: 0.8 and 0.6 right, 0.7 right, 0.7 wrong. 15 bins: 0.8, 0.6 and 0.7 are in
    # bins of their own.
    assert result["nll"] == pytest.approx(-np.log([0.8, 0.6, 0.7, 0.3]).mean())
    assert result["ece_15"] == pytest.approx((0.2 + 0.4 + abs(1 - 1.4)) / 4)
    # Entities: "a b" of 0.48, right; two of one word, 0.7, one right and one wrong.
    assert result["entity_ece"] == pytest.approx((0.52 + abs(1 - 1.4)) / 3)


@pytest.mark.parametrize("method", ["jachess", "mixup"])
def test_methods_for_whole_texts_raise_an_error(
    tiny_model: Path, tmp_path: Path, method: str
) -> None:
    data = write_tagged(tmp_path / "rows.jsonl", indices=False)
    called = call(
        "train", "--model", tiny_model, "--data", data, "--method", method, "--out", tmp_path / "o"
    )
    refused(called, "tokens", method)


def test_a_block_of_tags_classifies_no_texts() -> None:
    block = Block(
        condition=None,  # type: ignore[arg-type]
        row=["a"],
        index=np.zeros(1, dtype=np.int64),
        label=np.zeros(1),
        prediction=np.zeros(1),
        probabilities=np.zeros((1, 0)),
        loss=np.zeros(1),
        measured={name: np.ones(1) for name in COUNTS},
    )
    assert block.kind == "tokens"


def test_encoding_tags_needs_a_fast_tokenizer() -> None:
    class Slow:
        model_max_length = 8
        is_fast = False

        def num_special_tokens_to_add(self, pair: bool = False) -> int:
            return 2

    examples = Examples("rows", ["a"], labels=[(0,)], label_names=("O",), kind="tokens")
    with pytest.raises(Exception, match="fast tokenizer"):
        encode(examples, Slow(), max_length=8)
