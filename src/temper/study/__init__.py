"""A study: a grid of methods and seeds, trained and evaluated alike, resumed where it was stopped."""
