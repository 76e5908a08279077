"""Pure functions from tensors (or arrays) to tensors: no models, no files, no state."""
