"""Load models with Transformers and PEFT, and wrap them for training methods."""
