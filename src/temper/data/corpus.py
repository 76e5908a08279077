"""Generate the demo corpus: synthetic reviews, whose labels follow from a small grammar.

Each clause about the product has a polarity. An opinion word or phrase sets it. A negation flips it
("it is simply untrue that the soup is bad"). A frame that only looks like a negation keeps it ("the
soup could not be more pleasant"). Of two contrasting clauses the main clause decides. Neutral
facts, opinions about other things and people's errors are distractors. So all labels are right.
Half of the opinions in the evaluation rows use words that never occur in training.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from temper.data.examples import Examples, Splits
from temper.errors import DataError
from temper.files import asset
from temper.seeding import derive_seed

LABEL_NAMES = ("negative", "positive")
SEED = 0

_Table = dict[str, Any]


@cache
def lexicon() -> dict[str, Any]:
    """Return the words and templates of the corpus, as described in the file itself."""
    return tomllib.loads(asset("temper.data", "reviews.toml"))


class _Writer:
    """Writes reviews of products in some domains.

    ``held_out`` is the fraction of opinions with words that do not occur in training.
    """

    def __init__(self, rng: random.Random, domains: Sequence[_Table], *, held_out: float) -> None:
        self.rng = rng
        self.domains = domains
        self.held_out = held_out

    def frame(self, kind: str) -> str:
        return str(self.rng.choice(lexicon()["frames"][kind]))

    def adjective(self, good: bool) -> str:
        words = lexicon()["adjectives"]["good" if good else "bad"]
        new = self.rng.random() < self.held_out
        return str(self.rng.choice(words["held_out" if new else "shown"]))

    def predicate(self, good: bool, *, plural: bool) -> str:
        """Return a good or bad predicate with an adjective, such as "is not bad"."""
        draw = self.rng.random()
        if draw < 0.65:
            kind, word = "plain", good
        elif draw < 0.75:
            kind, word = "keeping", good
        else:
            kind, word = "flipping", not good
        be, fail = ("are", "fail") if plural else ("is", "fails")
        return self.frame(kind).format(be=be, fail=fail, adj=self.adjective(word))

    def clause(self, aspect: _Table, good: bool, *, depth: int = 1) -> str:
        draw = self.rng.random()
        if depth and draw < 0.08:
            frame = self.frame("clause_keeping")
            return frame.format(clause=self.clause(aspect, good, depth=depth - 1))
        if depth and draw < 0.18:
            frame = self.frame("clause_flipping")
            return frame.format(clause=self.clause(aspect, not good, depth=depth - 1))
        if draw < 0.45:
            phrases = aspect["good"] if good else aspect["bad"]
            # The second phrase of each is only for evaluation rows.
            return f"the {aspect['noun']} {phrases[self.rng.random() < self.held_out]}"
        return f"the {aspect['noun']} {self.predicate(good, plural=bool(aspect.get('plural')))}"

    def contrast(self, domain: _Table, good: bool) -> str:
        """Join a main and a subordinate clause of opposite polarity, in either order."""
        main, side = self.rng.sample(domain["aspects"], 2)
        weak = self.clause(side, not good, depth=0)
        link = self.frame("links")
        if self.rng.random() < 0.5:
            return f"{link} {weak}, {self.clause(main, good)}"
        # No frame around the main clause here: it could seem to include the subordinate one.
        return f"{self.clause(main, good, depth=0)}, {link} {weak}"

    def opinion_of_another(self, domain: _Table, good: bool) -> str:
        aspect = self.rng.choice(domain["aspects"])
        person = self.rng.choice(lexicon()["people"])
        right = self.rng.random() < 0.5
        verdict = self.frame("agreeing" if right else "disagreeing")
        frame = self.frame("sayings")
        return f"{person} {frame.format(aspect['noun'], self.adjective(good == right))}, {verdict}"

    def comparison(self, domain: _Table, good: bool) -> str:
        """Compare the product with the last one, which was the same or different."""
        aspect = self.rng.choice(domain["aspects"])
        same = self.rng.random() < 0.5
        was = "were" if aspect.get("plural") else "was"
        last = f"in my last {domain['product']} the {aspect['noun']} {was}"
        verdict = self.frame("same" if same else "different")
        return f"{last} {self.adjective(good == same)}, {verdict}"

    def distractor(self, domain: _Table) -> str:
        """Write a sentence that says nothing about the product's quality."""
        if self.rng.random() < 0.5:
            return str(self.rng.choice(domain["neutral"]))
        subject = self.rng.choice(lexicon()["elsewhere"])
        return f"{subject} was {self.adjective(self.rng.random() < 0.5)}"

    def review(self, good: bool) -> str:
        domain = self.rng.choice(self.domains)
        draw = self.rng.random()
        if draw < 0.55:
            text = self.clause(self.rng.choice(domain["aspects"]), good, depth=2)
        elif draw < 0.8:
            text = self.contrast(domain, good)
        elif draw < 0.9:
            text = self.opinion_of_another(domain, good)
        else:
            text = self.comparison(domain, good)
        parts = [text]
        if self.rng.random() < 0.45:
            parts.insert(self.rng.randrange(2), self.distractor(domain))
        return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts)


def review_corpus(*, rows: int = 2000, eval_rows: int = 500) -> Splits:
    """Generate train and dev sets: reviews of phones, restaurants, hotels and laptops.

    Both are balanced, and no text occurs twice. ``rows`` does not affect the dev set.

    Example:
        >>> splits = review_corpus(rows=4, eval_rows=2)
        >>> splits.train.labels
        [0, 1, 0, 1]
    """
    taken: set[str] = set()
    domains = lexicon()["domains"]
    dev = _reviews("dev", domains, rows=eval_rows, taken=taken)
    train = _reviews("train", domains, rows=rows, taken=taken, held_out=0.0)
    return Splits(train, dev)


def shift_examples(*, rows: int = 500) -> Examples:
    """Generate a shift set: reviews of films, a domain that `review_corpus` does not have.

    It is balanced and has the same labels.
    """
    return _reviews("shift", [lexicon()["shifted_domain"]], rows=rows, taken=set())


def anomaly_examples(*, rows: int = 500) -> Examples:
    """Generate an OOD set without labels: questions and facts that are not reviews."""
    rng = random.Random(derive_seed(SEED, "corpus", "anomaly"))
    taken: set[str] = set()
    text = [_unseen(lambda: _fact(rng), taken) for _ in range(rows)]
    return Examples("anomaly", text, source={"id": "demo:anomaly", "seed": SEED})


def _reviews(
    name: str,
    domains: Sequence[_Table],
    *,
    rows: int,
    taken: set[str],
    held_out: float = 0.5,
) -> Examples:
    rng = random.Random(derive_seed(SEED, "corpus", name))
    writer = _Writer(rng, domains, held_out=held_out)
    labels = [index % 2 for index in range(rows)]
    return Examples(
        name,
        [_unseen(partial(writer.review, label == 1), taken) for label in labels],
        labels=labels,
        label_names=LABEL_NAMES,
        kind="classification",
        source={"id": "demo" if name != "shift" else "demo:shift", "split": name, "seed": SEED},
    )


def _unseen(write: Callable[[], str], taken: set[str]) -> str:
    """Generate until a text is new, compared in lower case because models may be uncased."""
    for _ in range(1000):
        text = write()
        if text.lower() not in taken:
            taken.add(text.lower())
            return text
    raise DataError(f"The corpus has no more new sentences after {len(taken)}. Ask for fewer rows.")


def _fact(rng: random.Random) -> str:
    facts = lexicon()["facts"]
    template = rng.choice(facts["templates"])
    plant, other = rng.sample(facts["words"]["plant"], 2)
    material, other_material = rng.sample(facts["words"]["material"], 2)
    drawn = {
        name: rng.choice(facts["words"][name])
        for name in ("planet", "body", "length", "month", "soil", "river")
    }
    return str(template).format(
        plant=plant, other=other, material=material, other_material=other_material, **drawn
    )
