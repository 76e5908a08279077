"""Proxies of slow libraries, which are imported when one of their names is first used.

Files with settings write ``from temper.lazy import torch`` instead of ``import torch``. So a wrong
setting is reported before torch is loaded. ``Tensor`` is for annotations only; import other names
for annotations under ``TYPE_CHECKING``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pandas
    import pyarrow as pyarrow
    import scipy as scipy
    import scipy.linalg
    import scipy.optimize
    import scipy.spatial.distance
    import scipy.special
    import scipy.stats
    import torch as torch
    import torch.distributed
    from pyarrow import parquet as parquet
    from torch import Tensor as Tensor
else:

    class _Lazy(ModuleType):
        def __getattr__(self, name: str) -> Any:
            value = getattr(importlib.import_module(self.__name__), name)
            # Kept, because a lookup through the import system takes 100 times as long.
            setattr(self, name, value)
            return value

    pandas, pyarrow, scipy, torch = map(_Lazy, ("pandas", "pyarrow", "scipy", "torch"))
    parquet = _Lazy("pyarrow.parquet")
    # Annotations are not evaluated, so any name would do.
    Tensor = Any
