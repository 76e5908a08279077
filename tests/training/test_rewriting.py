"""Words replaced by draws from a masked language model, and runs that train on them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from temper.data.examples import Examples
from temper.data.sources import load_splits
from temper.data.words import STOP_WORDS, Words
from temper.errors import ModelError
from temper.models.masked import Blank, MaskedModel, Proposal
from temper.training.config import RunConfig, run_key
from temper.training.rewriting import MASKED_SHARE, MaskedReplacement, draw_word
from temper.training.run import train
from tests.models.tiny_text import WORDS, masked_bert, wordpiece
from tests.training.listeners import StopAt
from tests.training.tiny_training import (
    settings_of_run,
)


@pytest.fixture(scope="module")
def masked_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked")
    masked_bert(wordpiece()).save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return folder


def replacement(batch_size: int = 32) -> MaskedReplacement:
    tokenizer = wordpiece()
    return MaskedReplacement(MaskedModel(masked_bert(tokenizer), tokenizer, batch_size=batch_size))


TEXTS = [
    "The film was good, but the plot felt rather dull.",
    "GREAT cast",
    "the and but",
    "",
    "a poor movie (truly bad) and the story seemed fine",
]


def test_a_share_of_the_words_is_replaced_and_nothing_else() -> None:
    source = Examples("train", TEXTS)
    found = replacement().rewritten(source, seed=0)
    for old, new in zip(map(Words.of, source.text), map(Words.of, found.text), strict=True):
        assert new.gaps == old.gaps
        moved = [at for at, word in enumerate(old.words) if new.words[at] != word]
        free = sum(word.lower() not in STOP_WORDS for word in old.words)
        # The word itself and stop words are never proposed, so every drawn place changes.
        assert len(moved) == min(free, math.ceil(MASKED_SHARE * len(old)))
        for at in moved:
            assert new.words[at].lower() in {*WORDS, "un"} - STOP_WORDS
            assert new.words[at].isupper() == old.words[at].isupper()
    assert list(source.text) == TEXTS


def test_draws_belong_to_seed_and_row_and_not_to_batch_or_order() -> None:
    source = Examples("train", TEXTS)
    whole = list(replacement().rewritten(source, seed=0).text)
    turned = source.select([4, 2, 0])
    assert list(replacement(batch_size=1).rewritten(turned, seed=0).text) == [
        whole[4],
        whole[2],
        whole[0],
    ]
    others = {tuple(replacement().rewritten(source, seed=seed).text) for seed in range(1, 6)}
    assert len({*others, tuple(whole)}) == 6


def test_both_texts_of_a_pair_are_changed_by_draws_of_their_own() -> None:
    text = TEXTS[0]
    found = replacement().rewritten(Examples("train", [text], [text]), seed=1)
    assert found.text_pair is not None
    assert text not in (found.text[0], found.text_pair[0])
    assert found.text[0] != found.text_pair[0]


def test_rows_beyond_what_is_asked_at_a_time_are_changed_alike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Examples("train", TEXTS, TEXTS[::-1])
    whole = replacement().rewritten(source, seed=0)
    monkeypatch.setattr("temper.training.rewriting._AT_A_TIME", 2)
    found = replacement().rewritten(source, seed=0)
    assert (list(found.text), found.text_pair) == (list(whole.text), whole.text_pair)


def test_a_word_without_a_proposal_stays() -> None:
    class Silent:
        def propose(self, blanks: Sequence[Blank], *, count: int) -> list[list[Proposal]]:
            return [[Proposal("the", 0.9)] for _ in blanks]

    model: Any = Silent()
    source = Examples("train", TEXTS)
    assert list(MaskedReplacement(model).rewritten(source, seed=0).text) == TEXTS


def test_words_are_drawn_as_likely_as_the_model_finds_them() -> None:
    proposals = [Proposal("the", 0.5), Proposal("good", 0.3), Proposal("bad", 0.1)]
    # Of the two that are no stop words the first has three quarters.
    top = 2**63
    assert draw_word(proposals, 0) == draw_word(proposals, int(0.74 * top)) == "good"
    assert draw_word(proposals, int(0.76 * top)) == draw_word(proposals, top - 1) == "bad"
    assert draw_word(proposals[:1], 5) is None
    assert draw_word([], 5) is None
    many = [Proposal(f"word{at}", 0.01) for at in range(30)]
    drawn = Counter(draw_word(many, top * at // 2000) for at in range(2000))
    # Only the likeliest are drawn from; sums of tenths and hundredths round.
    assert set(drawn) == {f"word{at}" for at in range(20)}
    assert all(99 <= count <= 101 for count in drawn.values())


# Runs


def config(project: Path, **data: Any) -> RunConfig:
    # 40 rows in tens: four steps an epoch.
    loop = {"epochs": 2, "batch_size": 10, "save_steps": 3}
    return RunConfig.of(settings_of_run(project, data=data, **loop))


def test_a_run_on_masked_replacements_is_recorded_and_resumes_to_the_same_weights(
    project: Path, masked_folder: Path
) -> None:
    settings = config(project, augment="masked", augment_masked_model=str(masked_folder))
    whole = train(settings, project / "whole")
    told = json.loads((whole / "run.json").read_text())["settings"]["data"]
    assert (told["augment"], told["augment_masked_model"]) == (["masked"], str(masked_folder))
    weights = (whole / "model.safetensors").read_bytes()
    # In the second epoch, whose rows are drawn anew from their seeds.
    with pytest.raises(KeyboardInterrupt):
        train(settings, project / "stopped", progress=StopAt(7))
    train(settings, project / "stopped")
    assert (project / "stopped" / "model.safetensors").read_bytes() == weights
    plain = train(config(project), project / "plain")
    assert (plain / "model.safetensors").read_bytes() != weights


def test_the_key_knows_the_weights_of_the_language_model(
    project: Path, masked_folder: Path, tmp_path: Path
) -> None:
    masked_bert(wordpiece(), seed=1).save_pretrained(tmp_path)
    wordpiece().save_pretrained(tmp_path)
    splits = load_splits(config(project).data)
    keys = {
        run_key(config(project, augment="masked", augment_masked_model=str(folder)), splits)
        for folder in (masked_folder, tmp_path)
    }
    assert len({*keys, run_key(config(project, augment="typos"), splits)}) == 3


def test_what_is_no_masked_model_is_refused_before_any_work(project: Path) -> None:
    settings = config(project, augment="masked", augment_masked_model=str(project / "model"))
    with pytest.raises(ModelError, match="model"):
        train(settings, project / "refused")
    assert not (project / "refused").exists()
