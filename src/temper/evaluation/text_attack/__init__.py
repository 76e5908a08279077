"""Text attacks: a search changes words until the predictor errs; recipes propose the words."""
