"""Data: from text in files, folders or the Hub to batches for a network."""
