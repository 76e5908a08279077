"""Training: a method's step for any loop, the Trainer, settings, and runs in their folders."""
