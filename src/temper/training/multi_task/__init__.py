"""Training one model on several tasks: mixed batches, settings and the run."""
