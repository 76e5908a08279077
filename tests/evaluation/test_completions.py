"""Completions and sequence to sequence: tiny random models by every perspective for them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

from temper.data.examples import Examples
from temper.display.records import Parameters
from temper.evaluation.generator import TextGenerator
from temper.evaluation.rows import TARGETS, Block, Condition, to_blocks
from temper.evaluation.run import Evaluation, EvaluationData, evaluate, score
from temper.evaluation.settings import EvaluationSettings
from temper.functional.detectors import Mahalanobis
from temper.seeding import derive_seed, generator
from temper.testing.tiny import MARKS, WORDS, tiny_tokenizer
from tests.evaluation.conftest import assert_same_scores


def make_rows(name: str = "dev", *, rows: int = 30, labeled: bool = True) -> Examples:
    """Return random prompts and completions of two to six words each."""
    draws = random.Random(name)

    def text() -> str:
        return " ".join(draws.choices(WORDS, k=draws.randint(2, 6)))

    prompts, completions = [text() for _ in range(rows)], [f" {text()}" for _ in range(rows)]
    return Examples(
        name,
        prompts,
        labels=completions if labeled else None,
        kind="completions" if labeled else "unlabeled",
    )


def decoder(vocabulary: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
        initializer_range=0.5,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def encoder_decoder(vocabulary: int) -> Any:
    config = T5Config(
        vocab_size=vocabulary, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
        pad_token_id=0, eos_token_id=3, decoder_start_token_id=0, initializer_factor=2.0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


@pytest.fixture(params=[decoder, encoder_decoder])
def predictor(request: pytest.FixtureRequest) -> TextGenerator:
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = tokenizer.sep_token
    torch.manual_seed(0)
    return TextGenerator(request.param(len(tokenizer)).eval(), tokenizer, max_length=32)


def measured(
    predictor: TextGenerator, *perspectives: str, data: EvaluationData, **sections: Any
) -> Evaluation:
    """Evaluate some perspectives without intervals."""
    settings = EvaluationSettings(perspectives=perspectives, bootstrap=0, **sections)
    return evaluate(predictor, data, settings)


def block(results: Evaluation, condition: Condition) -> Block:
    """Return the rows of a condition."""
    (result,) = [each for each in to_blocks(results.rows) if each.condition == condition]
    return result


def prompt_alone(predictor: TextGenerator, prompt: str) -> torch.Tensor:
    return predictor.tokenizer(prompt, return_tensors="pt")["input_ids"]


def target_alone(predictor: TextGenerator, prompt: str, completion: str) -> list[int]:
    """Return the ids of the target tokens."""
    tokenizer = predictor.tokenizer
    if predictor.reads_apart:
        return tokenizer(completion)["input_ids"]
    # A word-level tokenizer joins prompt and completion without changing a token.
    first, whole = (tokenizer(text)["input_ids"] for text in (prompt, prompt + completion))
    assert tokenizer.eos_token_id == tokenizer.sep_token_id == first[-1]
    alone = tokenizer(completion, add_special_tokens=False)["input_ids"]
    assert whole == [*first[:-1], *alone, first[-1]]
    return [*alone, tokenizer.eos_token_id]


def states_alone(predictor: TextGenerator, rows: Examples) -> np.ndarray[Any, Any]:
    """Return the mean over each prompt's tokens of every layer, prompt by prompt, [n, L, D]."""
    result = []
    for prompt in rows.text:
        ids = prompt_alone(predictor, prompt)
        reader = predictor.model.encoder if predictor.reads_apart else predictor.model.model
        with torch.no_grad():
            layers = reader(input_ids=ids, output_hidden_states=True).hidden_states
        result.append(torch.stack([layer[0].mean(0) for layer in layers]))
    return torch.stack(result).numpy()


def test_ood_texts_are_scored_by_the_mean_states_of_the_prompt(predictor: TextGenerator) -> None:
    dev, odd, fit = make_rows(), make_rows("odd", labeled=False), make_rows("fit", rows=60)
    data = EvaluationData(dev, anomaly={"odd": odd}, fit=fit, metric="completion_loss")
    result = measured(predictor, "task", "anomaly", data=data)
    judge = Mahalanobis.of(states_alone(predictor, fit))
    for name, rows in (("dev", dev), ("odd", odd)):
        values = block(result, Condition("anomaly", name, "mahalanobis")).value
        wanted = judge.score(states_alone(predictor, rows))
        assert values == pytest.approx(wanted, rel=1e-3, abs=1e-3)
    reported = {(e["condition"], e["name"]) for e in result.scores if e["perspective"] == "anomaly"}
    assert reported == {("mahalanobis", name) for name in ("auroc", "aupr", "fpr95")}


def test_a_pass_for_states_has_the_same_losses(predictor: TextGenerator) -> None:
    rows = make_rows()
    plain, (predictions, _) = (
        predictor.predict(rows),
        predictor.predict_with_states(rows, batch_size=4),
    )
    assert plain.targets is not None
    assert predictions.targets is not None
    assert predictions.targets == pytest.approx(plain.targets, rel=1e-4, abs=1e-4)
    bare, _ = predictor.predict_with_states(make_rows(labeled=False))
    assert bare.targets is not None
    assert not bare.targets.any()


def logits_alone(predictor: TextGenerator, prompt: str, completion: str) -> torch.Tensor:
    """Return the logits before each target token, [t, V] fp64."""
    ids = prompt_alone(predictor, prompt)
    target = torch.tensor([target_alone(predictor, prompt, completion)])
    with torch.no_grad():
        if predictor.reads_apart:
            start = torch.full((1, 1), predictor.model.config.decoder_start_token_id)
            before = torch.cat([start, target[:, :-1]], 1)
            logits = predictor.model(input_ids=ids, decoder_input_ids=before).logits[0]
        else:
            whole = torch.cat([ids, target], 1)
            logits = predictor.model(input_ids=whole).logits[0, ids.shape[1] - 1 : -1]
    return logits.double()


def likely_rows(predictor: TextGenerator) -> Examples:
    """Return rows in which half of the completions begin with the most likely words."""
    rows = make_rows()
    texts = []
    for number, (prompt, completion) in enumerate(zip(rows.text, rows.labels or (), strict=True)):
        words = completion.split()
        for index in range(0 if number % 2 else 2):
            text = "".join(f" {word}" for word in words)
            logits = logits_alone(predictor, prompt, text)
            # The end token is last; T5's targets also begin with a special token.
            likeliest = logits[index + len(logits) - 1 - len(words), len(MARKS) :].argmax()
            words[index] = WORDS[int(likeliest)]
        completion = "".join(f" {word}" for word in words)
        texts.append(completion)
    return replace(rows, labels=texts)


def test_calibration_compares_token_confidence_with_the_targets(
    predictor: TextGenerator,
) -> None:
    dev = likely_rows(predictor)
    data = EvaluationData(dev, {"far": make_rows("far")}, metric="completion_loss")
    result = measured(predictor, "task", "shift", "calibration", data=data)
    gaps, losses, hits = [0.0] * 10, [], 0
    for prompt, completion in zip(dev.text, dev.labels or (), strict=True):
        target = target_alone(predictor, prompt, completion)
        scores = logits_alone(predictor, prompt, completion).log_softmax(-1)
        for index, token in enumerate(target):
            sure, best = scores[index].exp().max(0)
            hits += int(best) == token
            gaps[min(int(sure * 10), 9)] += (int(best) == token) - float(sure)
            losses.append(-float(scores[index, token]))
    assert 5 < hits < len(losses)
    reported = {(e["perspective"], e["name"]): e for e in result.scores if e["set"] == "dev"}
    error = reported["calibration", "ece_10"]
    assert error["value"] == pytest.approx(sum(map(abs, gaps)) / len(losses), abs=1e-5)
    assert error["n"] == len(dev)
    assert reported["task", "completion_loss"]["value"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert {e["name"] for e in result.scores if e["perspective"] == "calibration"} == {"ece_10"}
    settings = EvaluationSettings(perspectives=("task", "shift", "calibration"), bootstrap=0)
    assert_same_scores(score(result.rows, "completion_loss", settings=settings), result.scores)


def moved_loss(
    predictor: TextGenerator, prompt: str, completion: str, delta: torch.Tensor
) -> torch.Tensor:
    """Return the sum of the losses of the target tokens with a delta on the prompt's, fp64."""
    model, ids = predictor.model, prompt_alone(predictor, prompt)
    target = torch.tensor(target_alone(predictor, prompt, completion))
    vectors = model.get_input_embeddings()(ids).detach() + delta
    if predictor.reads_apart:
        start = torch.tensor([model.config.decoder_start_token_id])
        before = torch.cat([start, target[:-1]])[None]
        logits = model(inputs_embeds=vectors, decoder_input_ids=before).logits[0]
    else:
        after = model.get_input_embeddings()(target[None]).detach()
        whole = torch.cat([vectors, after], 1)
        logits = model(inputs_embeds=whole).logits[0, ids.shape[1] - 1 : -1]
    return torch.nn.functional.cross_entropy(logits.double(), target, reduction="sum")


def vectors_of(predictor: TextGenerator, prompt: str) -> torch.Tensor:
    return predictor.model.get_input_embeddings()(prompt_alone(predictor, prompt)).detach()


def test_noise_is_added_to_the_prompts_only(predictor: TextGenerator) -> None:
    dev = make_rows()
    result = measured(
        predictor, "task", "embedding_noise",
        data=EvaluationData(dev, metric="completion_loss"), embedding_noise={"sigmas": (0.2, 1.0)},
    )  # fmt: skip
    scores = {(e["name"], e["parameters"].get("sigma_relative")): e["value"] for e in result.scores}
    points = [scores["completion_loss", None]]
    for number, sigma in enumerate((0.2, 1.0)):
        parameters = Parameters({"sigma_relative": sigma})
        rows = block(result, Condition("embedding_noise", "dev", "noise", parameters))
        wanted = []
        for index, (prompt, completion) in enumerate(zip(dev.text, dev.labels or (), strict=True)):
            clean = vectors_of(predictor, prompt)
            draws = generator(derive_seed(0, "noise", dev.rows[index], number))
            noise = torch.randn(*clean.shape[1:], generator=draws)
            delta = noise * sigma * clean.pow(2).mean().sqrt()
            with torch.no_grad():
                wanted.append(float(moved_loss(predictor, prompt, completion, delta)))
        assert rows.measured["target_loss"] == pytest.approx(np.array(wanted), rel=1e-4)
        tokens = [
            len(target_alone(predictor, *row))
            for row in zip(dev.text, dev.labels or (), strict=True)
        ]
        assert rows.measured["target_tokens"].tolist() == tokens
        mean = sum(wanted) / sum(tokens)
        assert scores["completion_loss", sigma] == pytest.approx(mean, rel=1e-4)
        points.append(mean)
    area = (0.2 * (points[0] + points[1]) / 2 + 0.8 * (points[1] + points[2]) / 2) / 1.0
    assert scores["area", None] == pytest.approx(area, rel=1e-4)


def test_an_attack_climbs_the_loss_of_the_completion(predictor: TextGenerator) -> None:
    dev = make_rows()
    before = {name: value.clone() for name, value in predictor.model.state_dict().items()}
    result = measured(
        predictor, "task", "embedding_attack",
        data=EvaluationData(dev, metric="completion_loss"),
        embedding_attack={"radii": 0.5, "pgd": {"steps": 3, "restarts": 2}},
    )  # fmt: skip
    wanted = []
    for prompt, completion in zip(dev.text, dev.labels or (), strict=True):
        delta = torch.zeros_like(vectors_of(predictor, prompt), requires_grad=True)
        (gradient,) = torch.autograd.grad(moved_loss(predictor, prompt, completion, delta), delta)
        with torch.no_grad():
            step = 0.5 * gradient / gradient.norm()
            wanted.append(float(moved_loss(predictor, prompt, completion, step)))
    fgm, pgd = (each for each in to_blocks(result.rows) if each.condition.name in ("fgm", "pgd"))
    assert fgm.measured["target_loss"] == pytest.approx(np.array(wanted), rel=1e-4)
    assert (pgd.measured["target_loss"] >= fgm.measured["target_loss"] - 1e-9).all()
    assert pgd.measured["target_loss"].sum() > fgm.measured["target_loss"].sum() + 1e-3
    reported = {(e["condition"], e["name"]): e["value"] for e in result.scores}
    drop = reported["fgm", "completion_loss"] - reported["clean", "completion_loss"]
    assert reported["fgm", "drop"] == pytest.approx(drop)
    assert drop > 0
    # Only clean rows have bins of confidence.
    clean = block(result, Condition("task", "dev")).measured
    assert set(clean) - set(fgm.measured) == set(TARGETS[2:])
    plain = predictor.predict(dev).targets
    assert plain is not None
    assert clean["target_loss"] == pytest.approx(plain[:, 0], rel=1e-4)
    after = predictor.model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert all(weight.requires_grad for weight in predictor.model.parameters())
