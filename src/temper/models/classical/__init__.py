"""Networks of the time before transformers, trained from scratch, as models of Transformers.

Importing this package registers them with the auto classes; importing ``temper`` sees to that as
soon as those are there.
"""

from temper.models.classical.registry import ARCHITECTURES, register_with_transformers

__all__ = ["ARCHITECTURES"]

register_with_transformers()
