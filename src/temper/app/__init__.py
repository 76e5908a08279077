"""What a command and a Python call share: predictors, sets, evaluating, calibrating."""
