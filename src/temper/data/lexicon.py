"""Words of the generated corpus: product domains, opinion words, and the topics of the anomalies.

Each list of opinions has a part that training sentences use and a ``held_out`` part that occurs
only in the evaluation rows, so that a score there also measures what a model knows of words it was
not shown.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Aspect:
    """A part of a product, with what can be said of it alone.

    Args:
        noun: Its name, without an article.
        good: Verb phrases in the present tense that praise it.
        bad: Verb phrases that fault it.
        plural: Whether the noun takes plural verbs.
    """

    noun: str
    good: tuple[str, ...]
    bad: tuple[str, ...]
    plural: bool = False


@dataclass(frozen=True)
class Domain:
    """A kind of product.

    Args:
        product: Its name, without an article.
        aspects: Its parts.
        neutral: Sentences that say nothing good or bad, without a full stop.
    """

    product: str
    aspects: tuple[Aspect, ...]
    neutral: tuple[str, ...]


@dataclass(frozen=True)
class Words:
    """Opinion adjectives of one polarity.

    Args:
        shown: Used everywhere.
        held_out: Used in evaluation rows only.
    """

    shown: tuple[str, ...]
    held_out: tuple[str, ...]


GOOD = Words(
    (
        "excellent",
        "wonderful",
        "great",
        "impressive",
        "lovely",
        "superb",
        "delightful",
        "brilliant",
        "pleasant",
        "fantastic",
        "good",
        "outstanding",
        "remarkable",
        "satisfying",
        "amazing",
        "fine",
    ),
    (
        "magnificent",
        "exquisite",
        "stellar",
        "splendid",
        "terrific",
        "first-rate",
        "flawless",
        "marvellous",
        "exemplary",
        "sublime",
        "admirable",
        "commendable",
        "ingenious",
        "refreshing",
        "immaculate",
        "dependable",
        "top-notch",
        "praiseworthy",
    ),
)
BAD = Words(
    (
        "awful",
        "terrible",
        "bad",
        "disappointing",
        "dreadful",
        "horrible",
        "poor",
        "shoddy",
        "annoying",
        "mediocre",
        "unpleasant",
        "pathetic",
        "miserable",
        "lousy",
        "frustrating",
        "useless",
    ),
    (
        "abysmal",
        "atrocious",
        "appalling",
        "dismal",
        "woeful",
        "subpar",
        "wretched",
        "lamentable",
        "deplorable",
        "second-rate",
        "shambolic",
        "dire",
        "underwhelming",
        "infuriating",
        "slapdash",
        "forgettable",
        "substandard",
        "grotty",
    ),
)

DOMAINS = (
    Domain(
        "phone",
        (
            Aspect(
                "battery",
                ("lasts two full days", "charges in minutes"),
                ("dies before lunch", "drains overnight"),
            ),
            Aspect(
                "screen",
                ("stays readable in bright sun", "reacts to the lightest touch"),
                ("scratches at once", "flickers all evening"),
            ),
            Aspect(
                "camera",
                ("catches every detail at night", "focuses in an instant"),
                ("blurs every second picture", "washes out all colours"),
            ),
            Aspect(
                "speakers",
                ("fill the whole room", "carry every voice clearly"),
                ("crackle at half volume", "drown every voice"),
                plural=True,
            ),
            Aspect(
                "fingerprint reader",
                ("works even with wet hands", "never misses"),
                ("ignores my thumb", "locks me out twice a day"),
            ),
        ),
        (
            "I bought it in March",
            "the box contains a cable and a short manual",
            "mine is the dark blue one",
            "it comes in two sizes",
            "I use it mostly on the train",
        ),
    ),
    Domain(
        "restaurant",
        (
            Aspect(
                "soup",
                ("tastes of fresh herbs", "warms you to the bone"),
                ("tastes of dishwater", "arrives cold"),
            ),
            Aspect(
                "dessert",
                ("melts on the tongue", "alone is worth the trip"),
                ("sticks to the teeth", "comes straight from a packet"),
            ),
            Aspect(
                "waiters",
                ("remember every guest", "bring the food within minutes"),
                ("ignore every guest", "mix up the orders"),
                plural=True,
            ),
            Aspect(
                "wine list",
                ("offers something for everyone", "holds a few rare treasures"),
                ("charges triple for vinegar", "runs out by eight"),
            ),
            Aspect(
                "fish",
                ("falls off the fork", "comes fresh from the boat"),
                ("smells of last week", "swims in grease"),
            ),
        ),
        (
            "we sat near the window",
            "it is on the corner of the market square",
            "they open at six on weekdays",
            "we were a party of four",
            "the menu changes in autumn",
        ),
    ),
    Domain(
        "hotel",
        (
            Aspect(
                "bed",
                ("feels like a cloud", "lets you sleep until noon"),
                ("sags in the middle", "creaks at every turn"),
            ),
            Aspect(
                "breakfast",
                ("keeps you full until evening", "offers ten kinds of fruit"),
                ("runs out by eight", "consists of stale toast"),
            ),
            Aspect(
                "receptionists",
                ("solve every problem with a smile", "greet you by name"),
                ("keep you waiting for an hour", "lose every booking"),
                plural=True,
            ),
            Aspect(
                "shower",
                ("runs hot within seconds", "has plenty of pressure"),
                ("floods the floor", "turns cold without warning"),
            ),
            Aspect(
                "view",
                ("takes your breath away", "reaches as far as the islands"),
                ("ends at a brick wall", "shows nothing but bins"),
            ),
        ),
        (
            "we stayed for three nights",
            "our room was on the second floor",
            "it stands opposite the station",
            "check-in starts at two",
            "we came for a conference",
        ),
    ),
    Domain(
        "laptop",
        (
            Aspect(
                "keyboard",
                ("makes typing a joy", "stays quiet in meetings"),
                ("loses keys within weeks", "doubles every other letter"),
            ),
            Aspect(
                "fan",
                ("stays silent all day", "keeps it cool under load"),
                ("roars like a jet", "rattles after a month"),
            ),
            Aspect(
                "hinges",
                ("hold the lid at any angle", "feel made to last"),
                ("wobble on every desk", "snapped in a week"),
                plural=True,
            ),
            Aspect(
                "processor",
                ("handles everything with ease", "flies through heavy work"),
                ("chokes on two open tabs", "overheats on simple tasks"),
            ),
            Aspect(
                "trackpad",
                ("follows every move exactly", "feels smooth as glass"),
                ("jumps across the page", "misses half the clicks"),
            ),
        ),
        (
            "I ordered it for the office",
            "it has four ports on the left",
            "mine came with the larger drive",
            "it weighs about as much as a book",
            "the charger is grey",
        ),
    ),
)

SHIFTED_DOMAIN = Domain(
    "film",
    (
        Aspect(
            "plot",
            ("keeps you guessing to the end", "grips from the first scene"),
            ("falls apart halfway through", "puts you to sleep"),
        ),
        Aspect(
            "actors",
            ("bring every scene to life", "move you to tears"),
            ("mumble through their lines", "look bored throughout"),
            plural=True,
        ),
        Aspect(
            "soundtrack",
            ("stays with you for days", "lifts every scene"),
            ("grates on the nerves", "smothers every scene"),
        ),
        Aspect(
            "dialogue",
            ("sparkles with wit", "rings true in every line"),
            ("drags on and on", "sounds written by a machine"),
        ),
        Aspect(
            "ending",
            ("ties everything together", "lands with real force"),
            ("makes no sense at all", "cheats the audience"),
        ),
        Aspect(
            "director",
            ("trusts the audience", "finds beauty in small things"),
            ("wastes a promising idea", "repeats every cliche"),
        ),
    ),
    (
        "we saw it on a Sunday",
        "it runs for just under two hours",
        "it was shot in black and white",
        "the story is set in the seventies",
        "it is based on a short novel",
    ),
)

PEOPLE = (
    "my brother",
    "my aunt",
    "a colleague",
    "my neighbour",
    "the man in the shop",
    "a friend of mine",
    "my father",
    "our guide",
)
# Praise or blame of something that is not the product: it never decides.
ELSEWHERE = (
    "the weather that week",
    "the bus ride home",
    "my cousin's wedding",
    "the football match",
    "the traffic that day",
    "my old neighbour's garden",
    "the concert next door",
    "last year's holiday",
)

PLANETS = ("Mercury", "Venus", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune", "Pluto")
BODIES = ("a comet", "a moon", "a ring of dust", "a distant star", "an asteroid", "a spiral galaxy")
PLANTS = (
    "tomatoes",
    "roses",
    "tulips",
    "beans",
    "lavender",
    "carrots",
    "ferns",
    "raspberries",
    "onions",
    "pumpkins",
)
MONTHS = ("February", "March", "April", "May", "June", "September", "October", "November")
SOILS = ("sandy soil", "heavy clay", "chalky ground", "peat", "loose compost", "gravel")
LENGTHS = (
    "two days",
    "about ten hours",
    "eighty-eight days",
    "nearly twelve years",
    "a few centuries",
)
MATERIALS = ("copper", "limestone", "granite", "tin", "chalk", "basalt", "silver", "marble")
RIVERS = ("Danube", "Rhine", "Nile", "Volga", "Mekong", "Loire", "Ganges", "Tagus")
