"""Data: from text in files, folders or the Hub to batches that a network takes."""
