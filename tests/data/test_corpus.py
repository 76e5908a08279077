"""The generated corpus: balanced, without repeats, every label derivable, half of the words new."""

from __future__ import annotations

import re

import pytest

from temper.data.corpus import _unseen, anomaly_examples, lexicon, review_corpus, shift_examples
from temper.data.examples import Examples
from temper.errors import DataError

GOOD, BAD = (lexicon()["adjectives"][polarity] for polarity in ("good", "bad"))
DOMAINS, SHIFTED_DOMAIN = lexicon()["domains"], lexicon()["shifted_domain"]
CORPUS = review_corpus()
SHIFT = shift_examples()
ANOMALY = anomaly_examples()

# Written down from English, not taken from the generator: what turns a statement over.
TURNING = (
    "nobody could claim that",
    "i would not say that",
    "it is simply untrue that",
    "do not believe anyone who says that",
    "i fail to see how anyone could think that",
    "anything but",
    "far from",
    "hardly",
    "by no means",
)
NOT_TURNING = ("could not be more", "not just", "never fails to be", "never fail to be")
LEAVING = (
    "nobody doubts that",
    "it is hard to deny that",
    "nobody can tell me it is untrue that",
    "nothing short of",
    "nothing if not",
)
OTHERS = (
    "i can only agree",
    "that is exactly how i see it",
    "no arguing with that",
    "here it is no different",
    "changed nothing about that",
)
AGAINST = (
    "could not disagree more",
    "plainly wrong",
    "the opposite is the case",
    "exact reverse",
    "nobody could say of this one",
)


def opinions() -> dict[str, bool]:
    """Return every word or phrase that praises or faults, and which of both it does."""
    result = dict.fromkeys(GOOD["shown"] + GOOD["held_out"], True)
    result |= dict.fromkeys(BAD["shown"] + BAD["held_out"], False)
    for domain in (*DOMAINS, SHIFTED_DOMAIN):
        for aspect in domain["aspects"]:
            result |= {f"the {aspect['noun']} {phrase}": True for phrase in aspect["good"]}
            result |= {f"the {aspect['noun']} {phrase}": False for phrase in aspect["bad"]}
    return result


OPINIONS = opinions()
NEUTRAL = {text for domain in (*DOMAINS, SHIFTED_DOMAIN) for text in domain["neutral"]}


def read_label(review: str) -> int:
    """Work a review's label out again from its words alone."""
    sentences = review.lower().rstrip(".").split(". ")
    about = [
        part
        for part in sentences
        if not part.startswith(tuple(lexicon()["elsewhere"]))
        and part not in {text.lower() for text in NEUTRAL}
    ]
    assert len(about) == 1, review
    main = about[0]
    if re.match("(although|even though|while|granted that) ", main):
        main = main.split(", ", 1)[1]
    else:
        main = re.split(", (?:although|even though|while|granted that) ", main)[0]
    good = None
    for phrase, praise in OPINIONS.items():
        if re.search(rf"(^|\W){re.escape(phrase)}(\W|$)", main):
            assert good is None, review
            good = praise
    assert good is not None, review
    turns = sum(main.count(phrase) for phrase in (*AGAINST, *TURNING))
    rest = main
    for phrase in (*OTHERS, *AGAINST, *TURNING, *LEAVING, *NOT_TURNING):
        rest = rest.replace(phrase, " ")
    for phrase in OPINIONS:
        rest = rest.replace(phrase, " ") if phrase.startswith("the ") else rest
    turns += len(re.findall(r"\b(not|never)\b", rest))
    return int(good) ^ (turns % 2)


@pytest.mark.parametrize("examples", [CORPUS.train, CORPUS.dev, SHIFT], ids=lambda e: e.name)
def test_every_label_follows_from_the_words(examples: Examples) -> None:
    labels = examples.labels or []
    assert labels[:400] == [read_label(text) for text in examples.text[:400]]


def test_sets_have_their_size_balanced_classes_and_no_repeated_text() -> None:
    for examples, rows in ((CORPUS.train, 2000), (CORPUS.dev, 500), (SHIFT, 500)):
        assert len(examples) == rows
        assert sum(examples.labels or []) == rows / 2
        assert examples.label_names == ("negative", "positive")
    texts = [t.lower() for e in (CORPUS.train, CORPUS.dev, SHIFT, ANOMALY) for t in e.text]
    assert len(set(texts)) == len(texts) == 3500


def test_the_corpus_has_the_same_rows_each_time() -> None:
    assert review_corpus().train.hash == CORPUS.train.hash
    # Dev rows do not depend on how many train rows there are.
    assert review_corpus(rows=20).dev.hash == CORPUS.dev.hash
    # Recorded: a change of these rows changes every number of the demo.
    assert (CORPUS.train.hash, CORPUS.dev.hash) == ("cc6d0a32f0713585", "8fedb1910dc8c7d4")
    assert (SHIFT.hash, ANOMALY.hash) == ("b2439124d5a8ff90", "7821c5968f4f0252")


def words_of(examples: Examples) -> set[str]:
    return set(re.findall(r"[a-z-]+", " ".join(examples.text).lower()))


def test_training_sentences_contain_no_held_out_word() -> None:
    held_out = set(GOOD["held_out"] + BAD["held_out"])
    assert not words_of(CORPUS.train) & held_out
    assert words_of(CORPUS.dev) >= held_out
    assert words_of(SHIFT) & held_out
    everything = GOOD["shown"] + GOOD["held_out"] + BAD["shown"] + BAD["held_out"]
    assert len(set(everything)) == len(everything)


def test_the_product_of_the_shift_is_never_reviewed_in_training() -> None:
    nouns = {f"the {aspect['noun']} " for aspect in SHIFTED_DOMAIN["aspects"]}
    assert not any(noun in text.lower() for noun in nouns for text in CORPUS.train.text)
    assert all(any(noun[4:] in text.lower() + " " for noun in nouns) for text in SHIFT.text)


def test_anomalies_carry_no_opinion_and_no_label() -> None:
    assert (len(ANOMALY), ANOMALY.kind) == (500, "unlabeled")
    assert not words_of(ANOMALY) & set(
        GOOD["shown"] + GOOD["held_out"] + BAD["shown"] + BAD["held_out"]
    )


def test_asking_for_more_sentences_than_there_are_is_an_error() -> None:
    with pytest.raises(DataError, match="no more new sentences after 1"):
        _unseen(lambda: "the only sentence", {"the only sentence"})
