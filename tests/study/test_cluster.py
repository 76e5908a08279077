"""A cluster runs a study with the same results as this machine, or raises one error."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import temper
from dev.drills.cluster import two_machines
from temper.checkpoints.identity import model_identity
from temper.cluster.machines import Cluster, run_there
from temper.data.sources import load_splits
from temper.errors import ModelError, SettingError, TemperError
from temper.export.verify import verify
from temper.progress import Progress
from temper.study.cluster import Job, _do_run
from temper.study.plan import StudyConfig, columns_of
from temper.study.schedule import Study, run_study
from temper.study.work import StudyFolder
from temper.training.config import run_key
from tests.cli.tiny_project import sentences, study_tree, write_csv
from tests.study.test_workers import weights

pytest.importorskip("ray", reason="Ray is not installed (extra cluster)")


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, Callable[[str], None]]]:
    with two_machines() as result:
        yield result


def config_of(model: Path, data: Path) -> StudyConfig:
    return StudyConfig.of(
        study_tree(model, data / "reviews", train={"max_steps": 4, "save_steps": 1}),
        columns=columns_of(["plain"], ["short=uegr,train.max_steps=2"]),
        seeds=(0,),
    )


class Begun(Progress):
    """Keep the names of runs that begin."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def runs(self, number: int, total: int, name: str) -> None:
        self.begun.append(name)


@pytest.mark.slow
def test_a_cluster_has_the_results_of_one_machine(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, machines: tuple[str, Callable[[str], None]]
) -> None:
    config, begun = config_of(tiny_model, tiny_data), Begun()
    result = run_study(config, tmp_path / "there", cluster=Cluster(machines[0]), progress=begun)
    # A run there has one thread; sums of several are taken in another order.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    here = run_study(config, tmp_path / "here")
    torch.set_num_threads(threads)
    assert weights(result.folder) == weights(here.folder)
    assert result.comparison.to_json() == here.comparison.to_json()
    assert sorted(begun.begun) == ["plain, seed 0", "short, seed 0"]


def test_a_cluster_puts_a_study_into_a_store(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, machines: tuple[str, Callable[[str], None]]
) -> None:
    def compare(out: object, seeds: tuple[int, ...], cluster: str | None = machines[0]) -> Study:
        tree = study_tree(tiny_model, tiny_data / "reviews", train={"max_steps": 4})
        return temper.compare(out=out, methods="plain", seeds=seeds, cluster=cluster, config=tree)

    url = f"file://{tmp_path}/there"
    result = compare(url, (0,))
    assert not list(result.folder.glob("runs/*/*.safetensors"))
    result.load("plain", 0)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "there").glob("runs/*/*")}
    result = compare(url, (0, 1))
    assert before == {file: file.stat().st_mtime_ns for file in before}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    here = compare(tmp_path / "here", (0, 1), cluster=None)
    torch.set_num_threads(threads)
    assert weights(tmp_path / "there") == weights(here.folder)
    assert result.comparison.to_json() == here.comparison.to_json()
    assert all(not each.faults for each in verify(tmp_path / "there"))


def test_unsupported_requests_to_a_cluster_raise_an_error(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_model, tiny_data)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        unused = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(SettingError, match=f"No Ray cluster responds at {unused}"):
        Cluster.of({"address": unused})
    with pytest.raises(SettingError, match="--workers .* and --cluster exclude each other"):
        run_study(config, tmp_path / "out", workers=2, cluster=Cluster(unused))
    with pytest.raises(SettingError, match=f"No Ray cluster responds at {unused}"):
        run_study(config, tmp_path / "out", cluster=Cluster(unused))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install '?ray"):
        Cluster.of({"address": unused})
    assert not (tmp_path / "out").exists()


def test_the_error_of_a_run_is_the_error_of_the_study(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, machines: tuple[str, Callable[[str], None]]
) -> None:
    tree = study_tree(tiny_model, tiny_data / "reviews", train={"learning_rate": 1e30})
    with pytest.raises(ModelError, match="Logits must be finite"):
        temper.compare(out=tmp_path, methods="plain", seeds=(0,), cluster=machines[0], config=tree)
    config = config_of(tiny_model, tiny_data)
    with pytest.raises(SettingError, match="64 cores and 0 GPUs"):
        run_study(config, tmp_path / "much", cluster=Cluster(machines[0], cpus=64))


def test_a_machine_raises_an_error_for_other_versions_folders_and_rows(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    config = config_of(tiny_model, tiny_data)
    splits = load_splits(config.data)
    identity = model_identity(config.any_run.model)
    keys = {cell: run_key(run, splits, identity=identity) for cell, run in config.runs.items()}
    folder, cell = StudyFolder(tmp_path, config, keys), next(iter(keys))
    for given, version, message in (
        (folder, "0.0.1", "has Temper"),
        (replace(folder, path=tmp_path / "away"), temper.__version__, "does not see"),
        (replace(folder, keys=dict.fromkeys(keys, "0" * 64)), temper.__version__, "other rows"),
    ):
        with pytest.raises(TemperError, match=message):
            run_there(_do_run, version, (), torch.get_num_threads(), Job(given, cell), None)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_cluster_searches_recipes_in_a_store(
    tiny_model: Path, tmp_path: Path, machines: tuple[str, Callable[[str], None]]
) -> None:
    write_csv(tmp_path / "data" / "train.csv", sentences(60))
    write_csv(tmp_path / "data" / "dev.csv", sentences(12, thing="phone"))
    tuned = temper.tune(
        out=f"file://{tmp_path}/tune",
        model=str(tiny_model),
        data=str(tmp_path / "data"),
        train={"max_steps": 3, "device": "cpu"},
        perspectives=["task", "calibration"],
        recipes="ema",
        goal="calibrated",
        budget="9runs",
        seeds=(0,),
        cluster=machines[0],
    )
    assert tuned.record["status"] == "finished"
    assert list(tuned.record["recipes"]) == ["plain", "ema"]
    assert all(not result.faults for result in verify(tmp_path / "tune"))
