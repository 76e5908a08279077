"""The processes of a run: their detection, and the settings that they refuse."""

from __future__ import annotations

import pytest
import torch

from temper.errors import SettingError
from temper.training.config import RunConfig
from temper.training.processes import Processes, check_run, joined

TREE = {"model": "tiny", "method": {"name": "plain"}, "data": {"source": "rows.csv"}}


def test_a_single_process_is_the_main_process() -> None:
    alone = Processes()
    assert alone.is_first
    assert alone.gather({"seed": 1}) == [{"seed": 1}]
    with pytest.raises(SettingError, match="mine"), alone.together():
        raise SettingError("mine")


def test_several_processes_without_a_launcher_raise_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    joined.cache_clear()
    try:
        with pytest.raises(SettingError, match="RANK, LOCAL_RANK, MASTER_ADDR.*by torchrun"):
            joined()
    finally:
        joined.cache_clear()


@pytest.mark.parametrize(("place", "gpus"), [(0, 1), (1, 2), (3, 0)])
def test_a_process_with_its_own_gpu_or_without_any_is_accepted(
    monkeypatch: pytest.MonkeyPatch, place: int, gpus: int
) -> None:
    monkeypatch.setenv("LOCAL_RANK", str(place))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    check_run(RunConfig.of(TREE), Processes(place, 4))


def test_more_processes_than_gpus_raise_an_error_except_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(SettingError, match="has 1 GPU, and 2 processes or more. Start one"):
        check_run(RunConfig.of(TREE), Processes(1, 2))
    check_run(RunConfig.of({**TREE, "train": {"device": "cpu"}}), Processes(1, 2))
