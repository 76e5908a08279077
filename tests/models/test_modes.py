"""A model is in train or eval mode temporarily, and each module gets its own mode back."""

from __future__ import annotations

import pytest
from torch import nn

from temper.models.modes import in_mode


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("before", [(True, True, True), (False, False, False), (True, False, True)])
def test_every_module_is_in_the_mode_and_is_restored_afterwards(
    before: tuple[bool, ...], training: bool
) -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2))
    for module, mode in zip(model.modules(), before, strict=True):
        module.training = mode

    def work() -> None:
        with in_mode(model, training=training):
            assert [module.training for module in model.modules()] == [training] * 3
            # Whatever is done to it meanwhile.
            model.train(not training)
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        work()
    assert tuple(module.training for module in model.modules()) == before
