"""What the benchmarks report is what they say, and `make gpu` takes only what is missing."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from dev.benchmarks import account, gpu, serve
from dev.benchmarks.ledger import Ledger
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


@pytest.mark.slow
def test_the_page_holds_the_account_that_the_methods_declare() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert between(text, account.OPENING, account.CLOSING, account.markdown) == text


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


ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"


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
