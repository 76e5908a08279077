"""Give a model to others: export it, push it to the Hub, verify its files."""
