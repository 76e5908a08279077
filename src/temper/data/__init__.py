"""Read texts and labels from files, folders, the Hub or Python, and encode them as batches."""
