"""Text attacks: words changed until a predictor errs, by recipes that share one search."""
