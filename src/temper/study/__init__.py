"""A study: a grid of methods and seeds, trained and judged alike, resumed where it stopped."""
