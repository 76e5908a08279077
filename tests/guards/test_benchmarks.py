"""What the benchmarks report is what they say, and `make gpu` takes only what is missing."""

from __future__ import annotations

import json
import socket
import threading
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from dev.benchmarks import account, gpu, gpu_kit, predict, serve
from dev.benchmarks.ledger import Ledger
from dev.benchmarks.record import write
from dev.benchmarks.step_cost import summary
from temper.methods.description import between
from temper.models.network import Network

KILOBYTE = 256  # fp32 numbers
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"


def test_the_ledger_counts_a_storage_once_and_notices_its_end() -> None:
    known = torch.ones(KILOBYTE)
    with Ledger([known]) as ledger:
        first = known * 2
        view = first.view(2, -1)[1]
        second = first + 1
        del first
        held = view  # the view keeps the first storage alive
        third = second * 3
        del held, view, second
        fourth = third * 4
        del third, fourth
    # Most live at once: first (through its view), second, third.
    assert ledger.peak() == 3 * 1024
    assert sum(size for _, size in ledger.events) == 0


def test_the_ledger_sees_what_backward_allocates_and_leaves_gradients_out() -> None:
    weight = torch.ones(KILOBYTE, requires_grad=True)
    with Ledger([weight]) as ledger:
        # exp keeps its result for backward (1 kB); the sum's gradient is expanded, not copied; the
        # product of both is the gradient itself (1 kB); the two scalars are 4 bytes each.
        weight.exp().sum().backward()
    whole = ledger.peak()
    assert 2 * 1024 <= whole <= 2 * 1024 + 64
    assert whole - ledger.peak(without=[weight.grad]) == 1024


def test_an_operation_in_place_allocates_nothing() -> None:
    values = torch.ones(KILOBYTE)
    with Ledger([values]) as ledger:
        values.mul_(2).add_(1)
    assert ledger.events == []


def test_a_ratio_is_between_medians_and_its_middle_half_between_rounds() -> None:
    samples = {"vanilla": [1.0, 2.0, 3.0, 4.0], "uegr": [3.0, 4.0, 9.0, 20.0]}
    found = summary(samples)["uegr"]
    # Medians 2.5 and 6.5; rounds 3, 2, 3, 5, whose quartiles (exclusive) are 2.25 and 4.5.
    assert found["over_vanilla"] == pytest.approx(2.6)
    assert found["middle_half"] == pytest.approx([2.25, 4.5])
    assert summary(samples)["vanilla"]["over_vanilla"] == 1.0


def test_the_limit_adds_the_methods_passes_and_what_its_rule_moves_to_a_plain_update() -> None:
    # Worked by hand: passes of 60 ms take 9/3 as long, 10 ms of update, 1e7 numbers at 2 ns each.
    times = {"vanilla_passes": 0.06, "vanilla_update": 0.01, "seconds_a_number": 2e-9}
    assert account.limit(9.0, 1e7, **times) == pytest.approx(0.21 / 0.07)
    assert account.limit(3.0, 0, **times) == 1.0


def test_rules_move_what_they_declare_of_the_weights_that_they_cover() -> None:
    model = account.counted_model()
    params = Network(model).parameters()
    whole = sum(parameter.numel() for parameter in model.parameters())
    blocks = sum(parameter.numel() for parameter in model.bert.encoder.parameters())
    assert account.moved("uegr", params) == {"selective": (3.0, blocks)}
    assert account.moved("ema", params) == {"final_average": (3.0, whole)}
    assert account.moved("adv_weight", params) == {"ascent": (7.0, whole)}
    assert account.moved("at", params) == {}


def test_the_page_holds_the_account_that_the_methods_declare() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert between(text, account.OPENING, account.CLOSING, account.markdown) == text


def test_the_detectors_share_is_of_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([1.0, 1.5, 7.0, 7.25])
    monkeypatch.setattr(predict.time, "process_time", lambda: next(clock))
    monkeypatch.setattr(predict.Detector, "score", lambda *given: given[1:])
    plain = predict.Detector.score
    share = predict.Share()
    with share.counted():
        assert predict.Detector("energy").score(1, 2, 3) == (1, 2, 3)
        assert predict.Detector("energy").score() == ()
    assert share.seconds == 0.75
    assert predict.Detector.score is plain


def test_texts_of_one_length_have_it_and_others_are_spread_evenly_in_their_logarithm() -> None:
    assert {len(text.split()) for text in predict.texts_of("one length", 50, seed=0)} == {24}
    sizes = sorted(len(text.split()) for text in predict.texts_of("mixed lengths", 4001, seed=0))
    assert (sizes[0], sizes[-1]) == (3, 110)
    # The geometric middle of 3 and 110 is 18.2.
    assert 16 <= sizes[2000] <= 21
    assert predict.texts_of("one length", 2, seed=0) != predict.texts_of("one length", 2, seed=1)


def test_the_table_of_throughputs_has_a_line_for_each_arm() -> None:
    row = {
        "texts": "one length",
        "arm": predict.WHOLE,
        "texts_per_second": 120.4,
        "over_pipeline": 0.954,
        "processor_over_pipeline": 0.95,
        "detector_share": 0.0123,
    }
    *_, plain, whole = predict.table_of([{**row, "arm": predict.PLAIN}, row]).splitlines()
    assert plain == "| one length | temper.Classifier | 120 | 0.95 | 0.95 |  |"
    assert whole == "| one length | the same, calibrated | 120 | 0.95 | 0.95 | 1.2% |"


@pytest.mark.parametrize(
    "broken", [b"", WHOLE[:-1], b"HTTP/1.1 500 Error\r\ncontent-length: 0\r\n\r\n"]
)
def test_a_request_without_a_whole_answer_is_lost(
    broken: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "WARM", 0.0)

    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            # Whole, in two pieces, and then what is no answer.
            for replies in ((WHOLE[:9], WHOLE[9:]), (broken,)):
                assert connection.recv(65536).endswith(b'{"texts": ["a"]}')
                for reply in replies:
                    connection.sendall(reply)

    with socket.create_server((serve.HOST, 0)) as server:
        thread = threading.Thread(target=answer, args=(server,))
        thread.start()
        load = serve.Load(server.getsockname()[1], 1, ["a"])
        assert len(load.run(60.0)) == 1
        thread.join()
    assert (load.asked, load.answered) == (2, 1)


def test_a_result_names_the_machine_and_the_versions(tmp_path: Path) -> None:
    path = write("trial", {"methods": {}}, folder=tmp_path / "results")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["benchmark"] == "trial"
    assert record["machine"]["versions"]["torch"] == version("torch")
    assert record["machine"]["cores"] >= 1


ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"


def test_only_what_cannot_be_imported_is_taken_and_its_group_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    for name in ("absent_one-1.0", "absent_two-2.0", "pytest-9.0"):
        file = tmp_path / "wheels" / f"{name}-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{name.partition('-')[0]}.py", "")
    groups = ({"absent_one": "absent-one", "json": "absent_two"}, {"pytest": "pytest"})
    monkeypatch.setattr(gpu_kit, "WHEELS", groups)
    site = tmp_path / "site"
    assert gpu_kit.unpack(tmp_path, site) == ["absent-one", "absent_two"]
    assert sorted(file.name for file in site.iterdir()) == ["absent_one.py", "absent_two.py"]


def test_a_wheel_that_the_kit_lacks_says_how_to_fill_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kit, "WHEELS", ({"absent_one": "absent-one"},))
    with pytest.raises(SystemExit, match=r"has no absent-one: fill the kit by `make gpu-kit`"):
        gpu_kit.unpack(tmp_path, tmp_path / "site")


def a_record() -> dict[str, Any]:
    times = {"shape": "BERT-base", "batch": 16, "rounds": 5, "plain_step": 0.02}
    return {
        "card": "NVIDIA Example",
        "machine": {
            "python": "3.12.3",
            "time": "2026-11-22T00:00:00+00:00",
            "versions": {"torch": "2.11.0", "transformers": "5.17.0"},
        },
        "tests": {"said": "70 passed in 20.00s"},
        "sst2": [
            {"method": "vanilla", "seed": 0, "rows": 67349, "seconds": 20.0, "accuracy": 0.91},
            {"method": "vanilla", "seed": 1, "rows": 67349, "seconds": 22.0, "accuracy": 0.92},
            {"method": "uegr", "seed": 0, "failed": "time was up"},
        ],
        "steps": [
            {**times, "method": "vanilla", "step": 0.02, "update": 0.004, "peak_bytes": 2e9},
            {**times, "method": "uegr", "step": 0.05, "update": 0.006, "peak_bytes": 3e9},
            {**times, "method": "jachess", "failed": "OutOfMemoryError: CUDA out of memory."},
        ],
        "trainers": [
            {"shape": "BERT-base", "batch": 16, "trainer": "Trainer", "step": 0.024},
        ],
        "left_out": [{"shape": "BERT-large", "batch": 64, "method": "uegr"}],
    }


def test_the_table_names_the_card_and_gives_ratios_memory_and_what_is_missing() -> None:
    table = gpu.table_of(a_record())
    assert "on NVIDIA Example, torch 2.11.0, Transformers 5.17.0" in table
    assert "| vanilla | 2 | 91.50 ± 0.71 | 91.00, 92.00 | 21 |" in table
    assert "Failed: uegr, seed 0: time was up" in table
    assert "| uegr | 2.50 (3.0) | 0.30 |" in table
    assert "| jachess | OutOfMemoryError: CUDA out of memory. |  |" in table
    assert "| `Trainer`, whole loop | 1.20 |  |" in table
    assert "A plain step took 20.0 ms (BERT-base, 16). Cells left out, for time was up: 1." in table


def test_the_document_holds_the_table_of_the_kept_result(tmp_path: Path) -> None:
    kept = ROOT / "dev" / "benchmarks" / "results" / "gpu.json"
    copy = tmp_path / "benchmarks.md"
    copy.write_text(DOCUMENT.read_text(encoding="utf-8"), encoding="utf-8")
    record = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else a_record()
    gpu.write_document(record, copy)
    text = copy.read_text(encoding="utf-8")
    assert text.count(gpu.START) == text.count(gpu.END) == 1
    assert (text == DOCUMENT.read_text(encoding="utf-8")) == kept.exists()
