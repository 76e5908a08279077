"""Plain fine-tuning of a language model, compared with TRL's `SFTTrainer`.

Run ``python -m dev.benchmarks.sft`` after ``pip install trl``. Both train the same rows (a prompt
and a completion) from the same weights, in the same order, with the same optimizer. Each round runs
in a separate process, and rounds alternate. The command prints the largest difference of the losses
over all steps, the number of rows with the same tokens, and the ratios of a step's time and of the
memory in use. Without ``--model``, it trains a Llama with two layers, MiniLM's vocabulary and
random weights.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

SIDES = ("trl", "temper")
WARM = 2
"""First steps of a process, which are not timed."""


def problems(rows: int) -> list[dict[str, str]]:
    """Return sums as prompts and their results as completions, with different lengths."""
    draws = random.Random(0)
    result = []
    for _ in range(rows):
        numbers = [draws.randrange(1000) for _ in range(draws.randint(2, 30))]
        asked = " + ".join(map(str, numbers))
        result.append({"prompt": f"What is {asked}?", "completion": f" It is {sum(numbers)}."})
    return result


def loaded(model: str | None) -> tuple[Any, Any]:
    """Return a language model in fp32 and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from temper.models.names import resolve

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(model or resolve("minilm"))
    if model is not None:
        return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), tokenizer
    tokenizer.eos_token = tokenizer.sep_token
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        pad_token_id=tokenizer.pad_token_id,
        **sizes,
    )
    return LlamaForCausalLM(config), tokenizer


def measure(side: str, data: Path, model: str | None, steps: int, batch: int) -> dict[str, Any]:
    """Train in this process and return losses, seconds per step and the peak MiB in use."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from dev.benchmarks.record import resident
    from temper import RobustTrainer
    from temper.data.completions import encoded_completions

    network, tokenizer = loaded(model)
    rows = json.loads(data.read_text(encoding="utf-8"))
    arguments = SFTConfig(
        output_dir=str(data.parent / side),
        max_steps=steps,
        per_device_train_batch_size=batch,
        learning_rate=1e-5,
        train_sampling_strategy="sequential",
        max_length=None,
        gradient_checkpointing=False,
        bf16=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer: Any = SFTTrainer(
        model=network,
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    theirs = [row["input_ids"] for row in trainer.train_dataset]
    prompts, completions = ([row[name] for row in rows] for name in ("prompt", "completion"))
    ours = encoded_completions(prompts, completions, tokenizer, chat=False, max_length=10**6)
    same = sum(ids == item["input_ids"] for ids, (item, _) in zip(theirs, ours, strict=True))
    if side == "temper":
        trainer = RobustTrainer(
            model=network,
            args=arguments,
            train_dataset=trainer.train_dataset,
            data_collator=trainer.data_collator,
            processing_class=tokenizer,
            method="plain",
        )
    losses, seconds, inner = list[float](), list[float](), trainer.training_step

    def step(*given: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        loss = inner(*given, **named)
        losses.append(float(loss))
        seconds.append(time.perf_counter() - begin)
        return loss

    trainer.training_step = step
    trainer.train()
    peak = resident("VmHWM") / 2**20
    return {"losses": losses, "seconds": median(seconds[WARM:]), "mebibytes": peak, "same": same}


def main() -> None:
    """Measure both sides alternately, print and save the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="folder of a causal language model")
    parser.add_argument("--data", type=Path, help="JSON lines with `prompt` and `completion`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        result = measure(given.side, given.data, given.model, given.steps, given.batch_size)
        sys.stdout.write(json.dumps(result) + "\n")
        return
    if given.data is None:
        rows = problems(given.steps * given.batch_size)
    else:
        lines = given.data.read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines[: given.steps * given.batch_size]]
    result: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.json"
        data.write_text(json.dumps(rows), encoding="utf-8")
        for _ in range(given.rounds):
            for side in SIDES:
                command = [sys.executable, "-m", "dev.benchmarks.sft", "--side", side]
                command += ["--data", str(data), "--steps", str(given.steps)]
                command += ["--batch-size", str(given.batch_size)]
                command += ["--model", given.model] if given.model else []
                process = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
                )
                result[side].append(json.loads(process.stdout.splitlines()[-1]))
    from dev.benchmarks.record import write

    pairs = list(zip(result["temper"], result["trl"], strict=True))
    gap = max(
        abs(one - other)
        for ours, theirs in pairs
        for one, other in zip(ours["losses"], theirs["losses"], strict=True)
    )
    ratios = {
        name: [ours[name] / theirs[name] for ours, theirs in pairs]
        for name in ("seconds", "mebibytes")
    }
    print(f"Largest difference of the losses over {given.steps} steps: {gap:.1e}")
    print(f"Rows with the same tokens: {pairs[0][0]['same']} of {len(rows)}")
    for name, title in (("seconds", "Time of a step"), ("mebibytes", "Memory")):
        low, high = min(ratios[name]), max(ratios[name])
        print(f"{title}, Temper / TRL: {median(ratios[name]):.2f} ({low:.2f} to {high:.2f})")
    record = {
        "model": given.model and Path(given.model).name,
        "steps": given.steps,
        "batch_size": given.batch_size,
        "largest_difference": gap,
        "same_tokens": [pairs[0][0]["same"], len(rows)],
        "ratios": ratios,
        "rounds": result,
    }
    print(f"Written to {write('sft', record)}")


if __name__ == "__main__":
    main()
