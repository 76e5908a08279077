"""Generate the demo corpus: review sentences whose label follows from a small grammar.

A clause about the product has a polarity that is worked out while it is built: an opinion word or a
phrase sets it, a negating frame turns it over ("it is simply untrue that the soup is bad"), a frame
that only looks like a negation leaves it ("the soup could not be more pleasant"). Of two clauses
in contrast the main one decides, whatever comes first. Neutral facts, and praise or blame of other
things and people's errors, are distractors. Labels are therefore always right, and half of the
opinions in the evaluation rows are words that no training sentence has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from temper.data.examples import Examples, Splits
from temper.data.lexicon import (
    BAD,
    BODIES,
    DOMAINS,
    ELSEWHERE,
    GOOD,
    LENGTHS,
    MATERIALS,
    MONTHS,
    PEOPLE,
    PLANETS,
    PLANTS,
    RIVERS,
    SHIFTED_DOMAIN,
    SOILS,
    Aspect,
    Domain,
)
from temper.errors import DataError
from temper.seeding import derive_seed

LABEL_NAMES = ("negative", "positive")

# What stands around an adjective: "{be}" is is/are, "{adj}" the adjective.
_PLAIN: tuple[str, ...] = (
    "{be} {adj}",
    "{be} really {adj}",
    "{be} quite {adj}",
    "{be} simply {adj}",
    "{be} always {adj}",
)
_KEEPING: tuple[str, ...] = (
    "could not be more {adj}",
    "{be} nothing short of {adj}",
    "{be} nothing if not {adj}",
    "{be} not just {adj} but unforgettably so",
    "never {fail} to be {adj}",
    "{be} as {adj} as they come",
)
_FLIPPING: tuple[str, ...] = (
    "{be} not {adj}",
    "{be} anything but {adj}",
    "{be} far from {adj}",
    "{be} hardly {adj}",
    "{be} not {adj} in the least",
    "{be} never {adj}",
    "{be} by no means {adj}",
)
# What stands around a whole clause.
_CLAUSE_KEEPING = (
    "nobody doubts that {clause}",
    "it is hard to deny that {clause}",
    "I have to admit that {clause}",
    "there is no question that {clause}",
    "nobody can tell me it is untrue that {clause}",
)
_CLAUSE_FLIPPING = (
    "nobody could claim that {clause}",
    "I would not say that {clause}",
    "it is simply untrue that {clause}",
    "do not believe anyone who says that {clause}",
    "I fail to see how anyone could think that {clause}",
)


@dataclass(frozen=True)
class _Style:
    """What the sentences of one set are made of.

    Args:
        domains: Products to write about.
        held_out: Share of the opinions that training sentences never use, in [0, 1].
    """

    domains: Sequence[Domain]
    held_out: float


class _Writer:
    """Writes reviews of one set, drawing from one generator."""

    def __init__(self, rng: random.Random, style: _Style) -> None:
        self.rng = rng
        self.style = style

    def adjective(self, good: bool) -> str:
        words = GOOD if good else BAD
        new = self.rng.random() < self.style.held_out
        return self.rng.choice(words.held_out if new else words.shown)

    def predicate(self, good: bool, *, plural: bool) -> str:
        """Say something good or bad with an adjective and at most one negation."""
        draw = self.rng.random()
        if draw < 0.65:
            frames, word = _PLAIN, good
        elif draw < 0.75:
            frames, word = _KEEPING, good
        else:
            frames, word = _FLIPPING, not good
        be, fail = ("are", "fail") if plural else ("is", "fails")
        return self.rng.choice(frames).format(be=be, fail=fail, adj=self.adjective(word))

    def clause(self, aspect: Aspect, good: bool, *, depth: int = 1) -> str:
        """Write a clause about an aspect with the polarity asked for."""
        draw = self.rng.random()
        if depth and draw < 0.08:
            frame = self.rng.choice(_CLAUSE_KEEPING)
            return frame.format(clause=self.clause(aspect, good, depth=depth - 1))
        if depth and draw < 0.18:
            frame = self.rng.choice(_CLAUSE_FLIPPING)
            return frame.format(clause=self.clause(aspect, not good, depth=depth - 1))
        if draw < 0.45:
            phrases = aspect.good if good else aspect.bad
            # The second phrase of each is for evaluation rows alone.
            return f"the {aspect.noun} {phrases[self.rng.random() < self.style.held_out]}"
        return f"the {aspect.noun} {self.predicate(good, plural=aspect.plural)}"

    def contrast(self, domain: Domain, good: bool) -> str:
        """Set a main clause against a subordinate one of the other polarity, in either order."""
        main, side = self.rng.sample(domain.aspects, 2)
        weak = self.clause(side, not good, depth=0)
        link = self.rng.choice(("although", "even though", "while", "granted that"))
        if self.rng.random() < 0.5:
            return f"{link} {weak}, {self.clause(main, good)}"
        # No frame around the main clause here: it could be read to reach over the subordinate one.
        return f"{self.clause(main, good, depth=0)}, {link} {weak}"

    def opinion_of_another(self, domain: Domain, good: bool) -> str:
        """Quote somebody who is right or wrong."""
        aspect = self.rng.choice(domain.aspects)
        person = self.rng.choice(PEOPLE)
        right = self.rng.random() < 0.5
        verdict = self.rng.choice(
            (
                "and I can only agree",
                "and that is exactly how I see it",
                "and there is no arguing with that",
            )
            if right
            else (
                "but I could not disagree more",
                "which is plainly wrong",
                "but the opposite is the case",
            )
        )
        said = self.rng.choice(("called the {} {}", "found the {} {}", "described the {} as {}"))
        return f"{person} {said.format(aspect.noun, self.adjective(good == right))}, {verdict}"

    def comparison(self, domain: Domain, good: bool) -> str:
        """Compare with the last product; its opinion decides by likeness or difference."""
        aspect = self.rng.choice(domain.aspects)
        alike = self.rng.random() < 0.5
        last = (
            f"in my last {domain.product} the {aspect.noun} was"
            if not aspect.plural
            else (f"in my last {domain.product} the {aspect.noun} were")
        )
        verdict = self.rng.choice(
            ("and here it is no different", "and this one has changed nothing about that")
            if alike
            else ("but this one is the exact reverse", "which nobody could say of this one")
        )
        return f"{last} {self.adjective(good == alike)}, {verdict}"

    def distractor(self, domain: Domain) -> str:
        """Write something that has no bearing on the product's worth."""
        if self.rng.random() < 0.5:
            return self.rng.choice(domain.neutral)
        return f"{self.rng.choice(ELSEWHERE)} was {self.adjective(self.rng.random() < 0.5)}"

    def review(self, good: bool) -> str:
        """Write a review with the label asked for."""
        domain = self.rng.choice(self.style.domains)
        draw = self.rng.random()
        if draw < 0.55:
            text = self.clause(self.rng.choice(domain.aspects), good, depth=2)
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


def review_corpus(*, seed: int = 0, rows: int = 2000, eval_rows: int = 500) -> Splits:
    """Generate reviews of phones, restaurants, hotels and laptops.

    Args:
        seed: Any integer; the source ``demo`` is seed 0.
        rows: Training rows, >= 2.
        eval_rows: Evaluation rows, >= 2; the same ones whatever ``rows`` is.

    Returns:
        Balanced train and dev sets, no text twice.

    Raises:
        DataError: If more rows are asked for than the grammar gives without repeats.

    Example:
        >>> splits = review_corpus(rows=4, eval_rows=2)
        >>> splits.train.labels
        [0, 1, 0, 1]
    """
    taken: set[str] = set()
    dev = _reviews("dev", _Style(DOMAINS, 0.5), seed=seed, rows=eval_rows, taken=taken)
    train = _reviews("train", _Style(DOMAINS, 0.0), seed=seed, rows=rows, taken=taken)
    return Splits(train, dev)


def shift_examples(*, seed: int = 0, rows: int = 500) -> Examples:
    """Generate reviews of films, a product that `review_corpus` never writes about.

    Args:
        seed: Any integer.
        rows: Rows, >= 2.

    Returns:
        A balanced set with the corpus's labels.

    Raises:
        DataError: If more rows are asked for than the grammar gives without repeats.
    """
    return _reviews("shift", _Style((SHIFTED_DOMAIN,), 0.5), seed=seed, rows=rows, taken=set())


def anomaly_examples(*, seed: int = 0, rows: int = 500) -> Examples:
    """Generate questions and facts about planets, gardens and stones, which review nothing.

    Args:
        seed: Any integer.
        rows: Rows, >= 1.

    Returns:
        A set without labels.

    Raises:
        DataError: If more rows are asked for than the templates give without repeats.
    """
    rng = random.Random(derive_seed(seed, "corpus", "anomaly"))
    taken: set[str] = set()
    text = [_unseen(lambda: _fact(rng), taken) for _ in range(rows)]
    return Examples("anomaly", text, source={"id": "demo:anomaly", "seed": seed})


def _reviews(name: str, style: _Style, *, seed: int, rows: int, taken: set[str]) -> Examples:
    writer = _Writer(random.Random(derive_seed(seed, "corpus", name)), style)
    labels = [index % 2 for index in range(rows)]

    def write(label: int) -> str:
        return _unseen(lambda: writer.review(label == 1), taken)

    return Examples(
        name,
        [write(label) for label in labels],
        labels=labels,
        label_names=LABEL_NAMES,
        kind="classification",
        source={"id": "demo" if name != "shift" else "demo:shift", "split": name, "seed": seed},
    )


def _unseen(write: Callable[[], str], taken: set[str]) -> str:
    """Draw until a text is new; compared in lower case, as an uncased model reads it."""
    for _ in range(1000):
        text = write()
        if text.lower() not in taken:
            taken.add(text.lower())
            return text
    raise DataError(f"The corpus has no more new sentences after {len(taken)}. Ask for fewer rows.")


def _fact(rng: random.Random) -> str:
    """Write a question or a fact without any opinion."""
    return (
        rng.choice(
            (
                "How many moons does {planet} have, and which of them was discovered first?",
                "{planet} needs {length} for one turn around its axis, seen from {body}.",
                "Which planet lies between {planet} and {body} as seen from the Sun?",
                "In {month} one can see {planet} low in the east, close to {body}.",
                "Why does {body} look red when it passes behind {planet} in {month}?",
                "Sow {plant} in {month} and cover the seeds with a thin layer of {soil}.",
                "When should {plant} be moved from the window to {soil}, in {month} or later?",
                "{plant} and {other} share a row if {soil} is dug over in {month}.",
                "How deep do the roots of {plant} grow in {soil} between {month} and winter?",
                "Water {plant} twice a week until {month}, while the roots settle in {soil}.",
                "Where along the {river} was {material} quarried in the Middle Ages?",
                "{material} melts at a higher temperature than {other_material}, as the table "
                "shows.",
                "The {river} carries {material} and {soil} down to the sea in {month}.",
                "Is {material} denser than {other_material}, and how is that measured?",
            )
        )
        .format(**_slots(rng))[0:]
        .strip()
    )


def _slots(rng: random.Random) -> dict[str, str]:
    plant, other = rng.sample(PLANTS, 2)
    material, other_material = rng.sample(MATERIALS, 2)
    return {
        "planet": rng.choice(PLANETS),
        "body": rng.choice(BODIES),
        "length": rng.choice(LENGTHS),
        "month": rng.choice(MONTHS),
        "plant": plant,
        "other": other,
        "soil": rng.choice(SOILS),
        "river": rng.choice(RIVERS),
        "material": material,
        "other_material": other_material,
    }
