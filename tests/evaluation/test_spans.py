"""Answers in contexts: a tiny random BERT by every perspective that measures them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from transformers import BertConfig, BertForQuestionAnswering

from temper.data.examples import Examples
from temper.display.folders import read
from temper.display.records import Parameters
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.folder import write
from temper.evaluation.perspectives.calibration import fold_numbers
from temper.evaluation.rows import ANSWER, Block, Condition, to_blocks
from temper.evaluation.run import Evaluation, EvaluationData, evaluate, score
from temper.evaluation.settings import EvaluationSettings
from temper.functional.detectors import Mahalanobis, auroc
from temper.report.figures import figures
from temper.report.table import comparison
from temper.seeding import derive_seed, generator
from temper.testing.tiny import MARKS, WORDS
from tests.evaluation.conftest import assert_same_scores


def make_rows(name: str = "dev", *, rows: int = 30, labeled: bool = True) -> Examples:
    """Return random questions and contexts, each with an answer of one or two words."""
    draws = random.Random(name)
    questions, contexts, answers = [], [], []
    for _ in range(rows):
        words = draws.choices(WORDS, k=draws.randint(5, 12))
        first = draws.randrange(len(words) - 1)
        answer = " ".join(words[first : first + draws.randint(1, 2)])
        start = len(" ".join([*words[:first], ""]))
        questions.append(" ".join(draws.choices(WORDS, k=draws.randint(2, 4))))
        contexts.append(" ".join(words))
        answers.append(((start, answer),))
    return Examples(
        name,
        questions,
        contexts,
        labels=answers if labeled else None,
        kind="spans" if labeled else "unlabeled",
    )


@pytest.fixture
def predictor(tokenizer: Any) -> ClassifierPredictor:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(MARKS) + len(WORDS), hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=64,
    )  # fmt: skip
    model = BertForQuestionAnswering(config)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.normal_(0, 0.5)
        model.qa_outputs.weight.normal_(0, 2.0)
    return ClassifierPredictor(model, tokenizer, max_length=64)


def measured(
    predictor: ClassifierPredictor, *perspectives: str, data: EvaluationData, **sections: Any
) -> Evaluation:
    """Evaluate some perspectives without intervals."""
    settings = EvaluationSettings(perspectives=perspectives, bootstrap=0, **sections)
    return evaluate(predictor, data, settings)


def block(results: Evaluation, condition: Condition) -> Block:
    """Return the rows of a condition."""
    (result,) = [each for each in to_blocks(results.rows) if each.condition == condition]
    return result


def states_alone(predictor: ClassifierPredictor, rows: Examples) -> np.ndarray[Any, Any]:
    """Return the mean over each row's tokens of every layer, row by row, [n, L, D]."""
    result = []
    for question, context in zip(rows.text, rows.text_pair or (), strict=True):
        batch = predictor.tokenizer(question, context, return_tensors="pt")
        with torch.no_grad():
            output = predictor.model.eval()(**batch, output_hidden_states=True)
        result.append(torch.stack([layer[0].mean(0) for layer in output.hidden_states]))
    return torch.stack(result).numpy()


def test_ood_texts_are_scored_by_the_mean_states_of_all_tokens(
    predictor: ClassifierPredictor,
) -> None:
    dev, odd, fit = make_rows(), make_rows("odd", labeled=False), make_rows("fit", rows=60)
    data = EvaluationData(dev, anomaly={"odd": odd}, fit=fit, metric="span_f1")
    result = measured(predictor, "anomaly", data=data)
    judge = Mahalanobis.of(states_alone(predictor, fit))
    scores = [judge.score(states_alone(predictor, rows)) for rows in (dev, odd)]
    for name, wanted in zip(("dev", "odd"), scores, strict=True):
        values = block(result, Condition("anomaly", name, "mahalanobis")).value
        assert values == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    flags = np.repeat([0.0, 1.0], [len(dev), len(odd)])
    entries = {entry["name"]: entry for entry in result.scores if entry["perspective"] == "anomaly"}
    wanted = auroc(flags, np.concatenate(scores), counts=np.ones((1, len(flags))))
    assert entries["auroc"]["value"] == pytest.approx(float(wanted[0]), abs=5e-3)
    # The detectors of class probabilities do not apply.
    assert {entry["condition"] for entry in result.scores} == {"mahalanobis"}


def test_the_pass_that_reads_states_returns_the_same_predictions(
    predictor: ClassifierPredictor,
) -> None:
    rows = make_rows()
    plain, (predictions, _) = (
        predictor.predict(rows),
        predictor.predict_with_states(rows, batch_size=4),
    )
    assert plain.spans is not None
    assert predictions.spans is not None
    assert predictions.spans.tolist() == plain.spans.tolist()
    assert predictions.probabilities == pytest.approx(plain.probabilities, abs=1e-6)
    assert predictions.truncated == plain.truncated


def test_ood_rows_without_contexts_raise_an_error_before_any_work(
    predictor: ClassifierPredictor,
) -> None:
    odd = Examples("odd", ["word1 word2"], kind="unlabeled")
    data = EvaluationData(make_rows(), anomaly={"odd": odd}, metric="span_f1")
    with pytest.raises(SettingError, match="'odd' must have questions and contexts"):
        measured(predictor, "anomaly", data=data)


def sharp_rows(predictor: ClassifierPredictor) -> Examples:
    """Return rows whose answers are the predicted ones in two of three rows, for some hits."""
    rows = make_rows(rows=45)
    spans = predictor.predict(rows).spans
    assert spans is not None
    assert rows.labels is not None
    labels = [
        own if number % 3 == 0 else ((start, context[start:end]),)
        for number, (own, context, (start, end)) in enumerate(
            zip(rows.labels, rows.text_pair or (), spans.tolist(), strict=True)
        )
    ]
    return replace(rows, labels=labels)


def test_the_confidence_of_an_answer_is_compared_with_its_exact_match(
    predictor: ClassifierPredictor, tmp_path: Path
) -> None:
    dev = sharp_rows(predictor)
    data = EvaluationData(dev, {"far": make_rows("far")}, metric="span_f1")
    result = measured(predictor, "task", "shift", "calibration", "selective", data=data)
    predictions = predictor.predict(dev)
    assert predictions.spans is not None
    assert dev.labels is not None
    reported = [
        context[start:end]
        for context, (start, end) in zip(
            dev.text_pair or (), predictions.spans.tolist(), strict=True
        )
    ]
    right = [text == own[0][1] for text, own in zip(reported, dev.labels, strict=True)]
    sure = predictions.probabilities[:, 0].tolist()
    assert 0 < sum(right) < len(right)
    scores = {
        (entry["perspective"], entry["name"]): entry["value"]
        for entry in result.scores
        if entry["set"] == "dev" and entry["condition"] == "clean"
    }
    for bins in (10, 15):
        gaps = [0.0] * bins
        for hit, chance in zip(right, sure, strict=True):
            gaps[min(int(chance * bins), bins - 1)] += (hit - chance) / len(right)
        assert scores["calibration", f"ece_{bins}"] == pytest.approx(sum(map(abs, gaps)))
    order = sorted(range(len(right)), key=lambda index: -sure[index])
    wrong = np.cumsum([not right[index] for index in order])
    risks = wrong / np.arange(1, len(right) + 1)
    assert scores["selective", "aurc"] == pytest.approx(risks.mean())
    assert scores["selective", "risk_80"] == pytest.approx(risks[35])
    # The scores follow from the written rows.
    settings = EvaluationSettings(
        perspectives=("task", "shift", "calibration", "selective"), bootstrap=0
    )
    assert_same_scores(score(result.rows, "span_f1", settings=settings), result.scores)
    folder = write(result, tmp_path / "evaluation")
    titles = {each.title for each in figures(read(folder), comparison(folder))}
    assert {"Reliability, dev", "Reliability, far", "Risk over coverage, dev"} <= titles
    assert "Reliability, far, after temperature scaling" in titles


@dataclass(frozen=True)
class Alone:
    """One question with its context, as the model reads it alone."""

    predictor: ClassifierPredictor
    ids: torch.Tensor
    inside: list[int]
    offsets: list[tuple[int, int]]

    @classmethod
    def of(cls, predictor: ClassifierPredictor, rows: Examples, index: int) -> Alone:
        pair = (rows.text[index], (rows.text_pair or ())[index])
        batch = predictor.tokenizer(*pair, return_tensors="pt", return_offsets_mapping=True)
        sides = batch.sequence_ids(0)
        inside = [position for position, side in enumerate(sides) if side == 1]
        offsets = [tuple(pair) for pair in batch["offset_mapping"][0].tolist()]
        return cls(predictor, batch["input_ids"], inside, offsets)

    def embeddings(self) -> torch.Tensor:
        table = self.predictor.model.bert.embeddings.word_embeddings
        return table(self.ids).detach()

    def logits(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the logits of start and end at the context's tokens, [2, t]."""
        output = self.predictor.model.eval()(inputs_embeds=embeddings)
        return torch.stack([output.start_logits[0], output.end_logits[0]])[:, self.inside].double()

    def tokens(self, embeddings: torch.Tensor) -> tuple[int, int]:
        """Return the first and the last token of the most probable answer."""
        with torch.no_grad():
            first, last = self.logits(embeddings).log_softmax(-1).tolist()
        count = len(first)
        pairs = [(first[i] + last[j], i, j) for i in range(count) for j in range(i, count)]
        return max(pairs)[1:]

    def answer(self, embeddings: torch.Tensor) -> tuple[int, int]:
        """Return the characters of the most probable answer."""
        i, j = self.tokens(embeddings)
        return self.offsets[self.inside[i]][0], self.offsets[self.inside[j]][1]


def f1(predicted: str, right: str) -> float:
    one, two = predicted.split(), right.split()
    return 2 * sum((Counter(one) & Counter(two)).values()) / (len(one) + len(two))


def test_an_attack_climbs_the_mean_loss_of_start_and_end(predictor: ClassifierPredictor) -> None:
    dev = sharp_rows(predictor)
    result = measured(
        predictor, "task", "embedding_attack", data=EvaluationData(dev, metric="span_f1"),
        embedding_attack={"radii": (0.5, 2.0), "pgd": None},
    )  # fmt: skip
    assert dev.labels is not None
    for radius in (0.5, 2.0):
        parameters = Parameters({"radius": radius}, norm="l2", steps=1, restarts=1)
        rows = block(result, Condition("embedding_attack", "dev", "fgm", parameters))
        wanted = []
        for index, context in enumerate(dev.text_pair or ()):
            row = Alone.of(predictor, dev, index)
            ((start, text),) = dev.labels[index]
            labels = labels_alone(row, start, text)
            clean = row.embeddings().requires_grad_()
            loss = torch.nn.functional.cross_entropy(row.logits(clean), labels)
            (gradient,) = torch.autograd.grad(loss, clean)
            first, last = row.answer(clean.detach() + radius * gradient / gradient.norm())
            wanted.append(f1(context[first:last], text))
        assert rows.measured["span_f1"] == pytest.approx(np.array(wanted))
    scores = {
        (entry["parameters"].get("radius"), entry["name"]): entry["value"]
        for entry in result.scores
        if entry["perspective"] in ("task", "embedding_attack")
    }
    assert scores[2.0, "span_f1"] < scores[None, "span_f1"]
    assert scores[2.0, "span_exact_match"] < scores[None, "span_exact_match"]
    drop = scores[None, "span_f1"] - scores[2.0, "span_f1"]
    assert scores[2.0, "drop"] == pytest.approx(drop)
    assert (2.0, "mse") not in scores


def test_a_row_with_a_truncated_answer_is_not_attacked(predictor: ClassifierPredictor) -> None:
    dev = make_rows()
    assert dev.labels is not None
    predictor.max_length = 12
    ends = [
        len(predictor.tokenizer(question, context[: start + len(text)])["input_ids"]) - 1
        for question, context, ((start, text),) in zip(
            dev.text, dev.text_pair or (), dev.labels, strict=True
        )
    ]
    # [SEP] follows the last token of the context.
    cut = np.array([end > 11 for end in ends])
    assert 0 < cut.sum() < len(cut)
    data = EvaluationData(dev, metric="span_f1")
    result = measured(
        predictor, "task", "embedding_attack", data=data,
        embedding_attack={"radii": 5.0, "pgd": {"steps": 3}},
    )  # fmt: skip
    clean, *attacked = to_blocks(result.rows)
    moved = [np.abs(each.measured[ANSWER] - clean.measured[ANSWER]) > 1e-6 for each in attacked]
    assert not np.any(moved, axis=0)[cut].any()
    assert np.any(moved, axis=0)[~cut].all()


def test_noise_is_added_to_questions_and_contexts(predictor: ClassifierPredictor) -> None:
    dev = sharp_rows(predictor)
    result = measured(
        predictor, "task", "embedding_noise", data=EvaluationData(dev, metric="span_f1"),
        embedding_noise={"sigmas": (0.1, 0.5)},
    )  # fmt: skip
    assert dev.labels is not None
    for number, sigma in enumerate((0.1, 0.5)):
        parameters = Parameters({"sigma_relative": sigma})
        rows = block(result, Condition("embedding_noise", "dev", "noise", parameters))
        wanted = []
        for index, context in enumerate(dev.text_pair or ()):
            row = Alone.of(predictor, dev, index)
            clean = row.embeddings()
            draws = generator(derive_seed(0, "noise", dev.rows[index], number))
            noise = torch.randn(*clean.shape[1:], generator=draws)
            first, last = row.answer(clean + noise * sigma * clean.pow(2).mean().sqrt())
            wanted.append(f1(context[first:last], dev.labels[index][0][1]))
        assert rows.measured["span_f1"] == pytest.approx(np.array(wanted))
    assert any(entry["name"] == "area" for entry in result.scores)


def labels_alone(row: Alone, start: int, text: str) -> torch.Tensor:
    """Return the positions of an answer's first and last token in the context."""
    offsets = [row.offsets[index] for index in row.inside]
    first = next(at for at, (begin, _) in enumerate(offsets) if begin == start)
    last = next(at for at, (_, end) in enumerate(offsets) if end == start + len(text))
    return torch.tensor([first, last])


def test_the_temperature_has_the_least_loss_of_starts_and_ends(
    predictor: ClassifierPredictor,
) -> None:
    rows = sharp_rows(predictor)
    dev = rows.select(range(0, 45, 2))
    held_out = replace(rows.select(range(1, 45, 2)), name="held")
    data = EvaluationData(dev, metric="span_f1", held_out=held_out)
    result = measured(predictor, "task", "calibration", data=data)
    assert held_out.labels is not None
    alone = [Alone.of(predictor, held_out, index) for index in range(len(held_out))]
    logits = [row.logits(row.embeddings()).detach() for row in alone]
    labels = [labels_alone(row, *own[0]) for row, own in zip(alone, held_out.labels, strict=True)]

    def loss(temperature: float) -> float:
        losses = [
            torch.nn.functional.cross_entropy(each / temperature, own, reduction="sum")
            for each, own in zip(logits, labels, strict=True)
        ]
        return float(sum(losses))

    best = minimize_scalar(loss, bounds=(0.01, 50.0), method="bounded", options={"xatol": 1e-6}).x
    (notice,) = (each for each in result.notices if "temperature of the calibration is" in each)
    reported = float(notice.split("calibration is ")[1].split(" ")[0])
    assert reported == pytest.approx(best, rel=1e-3)
    assert reported != pytest.approx(1.0, rel=0.05)
    before, after = (
        block(result, Condition(*names))
        for names in (("task", "dev"), ("calibration", "dev", "temperature"))
    )
    assert after.measured["span_f1"].tolist() == before.measured["span_f1"].tolist()
    wanted = []
    for index in range(len(dev)):
        row = Alone.of(predictor, dev, index)
        scores = row.logits(row.embeddings()).detach()
        start, end = row.tokens(row.embeddings())
        chances = (scores / best).softmax(-1)
        wanted.append(float(chances[0, start] * chances[1, end]))
    assert after.measured[ANSWER] == pytest.approx(np.array(wanted), abs=1e-4)
    entries = {
        (entry["condition"], entry["name"]): entry["value"]
        for entry in result.scores
        if entry["perspective"] == "calibration"
    }
    gaps = [0.0] * 10
    for hit, chance in zip(after.measured["span_exact_match"], wanted, strict=True):
        gaps[min(int(chance * 10), 9)] += (hit - chance) / len(dev)
    assert entries["temperature", "ece_10"] == pytest.approx(sum(map(abs, gaps)), abs=1e-4)
    assert {name for _, name in entries} == {"ece_10", "ece_15", "adaptive_ece"}


def test_without_held_out_rows_a_row_is_scaled_by_the_other_fold(
    predictor: ClassifierPredictor,
) -> None:
    dev = sharp_rows(predictor)
    data = EvaluationData(dev, {"far": make_rows("far")}, metric="span_f1")
    result = measured(predictor, "task", "shift", "calibration", data=data)
    folds = fold_numbers(dev.rows, seed=0)
    parts = []
    for fold in (0, 1):
        others = dev.select(np.flatnonzero(folds != fold).tolist())
        own = dev.select(np.flatnonzero(folds == fold).tolist())
        again = measured(
            predictor, "task", "calibration",
            data=EvaluationData(own, metric="span_f1", held_out=replace(others, name="held")),
        )  # fmt: skip
        parts.append(block(again, Condition("calibration", "dev", "temperature")))
    after = block(result, Condition("calibration", "dev", "temperature"))
    for fold, part in enumerate(parts):
        chances = after.measured[ANSWER][folds == fold]
        assert chances == pytest.approx(part.measured[ANSWER], abs=1e-5)
