"""Networks of the time before transformers, trained from scratch, as models of Transformers.

``registration`` makes them known to the auto classes; importing ``temper`` sees to that as soon as
those are there.
"""

from temper.models.classical.registry import ARCHITECTURES

__all__ = ["ARCHITECTURES"]
