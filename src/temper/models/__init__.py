"""Networks as the forward stage sees them, and the models that Transformers and PEFT load."""
