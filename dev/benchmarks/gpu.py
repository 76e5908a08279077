"""All measurements that need a GPU, in one command: under ten minutes, without a network.

Run ``make gpu`` on a machine with a GPU, torch and Transformers; ``.gpu-kit/`` (`make gpu-kit`)
must be in the checkout. There are four stages. Each runs in separate processes, so that a crash
does not stop the others, and the result is written after each:

1. times of a step of every method, interleaved with plain steps, for BERT-base and BERT-large in
   bf16; the mask of the selective update separately; and the stock Trainer. They come first,
   because times need an idle GPU;
2. the tests marked ``gpu``;
3. plain fine-tuning and UEGR on all rows of SST-2 with MiniLM, three seeds, three runs in parallel;
4. the table, by ``python -m dev.benchmarks.gpu --from FILE --write docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dev.benchmarks.gpu_kit import KIT, ROOT, unpack

START, END = "<!-- gpu -->", "<!-- /gpu -->"
SHAPES: dict[str, dict[str, int]] = {
    "BERT-base": {"layers": 12, "width": 768, "heads": 12},
    "BERT-large": {"layers": 24, "width": 1024, "heads": 16},
    "tiny": {"layers": 2, "width": 32, "heads": 2},
}
TOKENS, BATCHES = 128, (16, 64)
WARM_UP, FEWEST, MOST, SECONDS = 2, 3, 10, 2.0
RUNS_AT_ONCE, METHODS_TRAINED, SEEDS = 3, ("plain", "uegr"), (0, 1, 2)
ROWS_A_STEP, LEARNING_RATE, EPOCHS, LONGEST = 64, 1e-4, 1.0, 64
# Files, not folders: other files of a folder import packages that the kit lacks. The value is an
# additional package that the file needs; without it the file is skipped and reported.
TESTS = {
    "tests/gpu": None,
    "tests/models/classical/test_networks.py": None,
    "tests/training/test_stepper_accelerate.py": None,
    "tests/evaluation/test_cost.py": "pyarrow",
}


# The tests


def run_tests(environment: Mapping[str, str], *, limit: float) -> dict[str, Any]:
    """Run the tests marked ``gpu`` and return the last line of pytest."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-W", "default"]
    missing = [path for path, need in TESTS.items() if need and find_spec(need) is None]
    command += ["-p", "no:cacheprovider", *(path for path in TESTS if path not in missing)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit
        )
    except subprocess.TimeoutExpired:
        return {"passed": False, "said": f"not finished within {limit:.0f} s", "output": []}
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    return {
        "passed": done.returncode == 0,
        "said": lines[-1],
        "not_run": missing,
        "output": lines[-60:],
    }


# Training


def sst2_run(method: str, seed: int, *, device: str, rows: int | None) -> dict[str, Any]:
    """Fine-tune MiniLM on SST-2 and return its dev accuracy and seconds.

    Args:
        method: The method.
        seed: Seed of the head, the order of rows and every draw.
        device: Where.
        rows: Training rows; None for all.
    """
    import gzip
    import tempfile

    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        TrainingArguments,
        set_seed,
    )

    from temper import RobustTrainer

    tokenizer = AutoTokenizer.from_pretrained(KIT / "minilm")
    with gzip.open(KIT / "sst2" / "train.jsonl.gz", "rt", encoding="utf-8") as stream:
        train = [json.loads(line) for line in stream][:rows]
    dev = [json.loads(line) for line in (KIT / "sst2" / "dev.jsonl").open(encoding="utf-8")]

    def encoded(examples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        texts = tokenizer([row["text"] for row in examples], truncation=True, max_length=LONGEST)
        return [
            {**{name: values[index] for name, values in texts.items()}, "labels": row["label"]}
            for index, row in enumerate(examples)
        ]

    set_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(KIT / "minilm", num_labels=2).float()
    collator = DataCollatorWithPadding(tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=ROWS_A_STEP,
            learning_rate=LEARNING_RATE,
            num_train_epochs=EPOCHS,
            warmup_steps=0.06,
            bf16=device != "cpu",
            use_cpu=device == "cpu",
            seed=seed,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        trainer = RobustTrainer(
            model,
            arguments,
            method=method,
            train_dataset=encoded(train),
            data_collator=collator,
            processing_class=tokenizer,
        )
        start = time.perf_counter()
        trainer.train()
        seconds = time.perf_counter() - start
    model.eval()
    right = 0
    with torch.no_grad():
        for first in range(0, len(dev), 256):
            batch = collator(encoded(dev[first : first + 256])).to(model.device)
            labels = batch.pop("labels")
            right += int((model(**batch).logits.argmax(-1) == labels).sum())
    return {
        "method": method,
        "seed": seed,
        "rows": len(train),
        "steps": trainer.state.global_step,
        "seconds": seconds,
        "dev_rows": len(dev),
        "accuracy": right / len(dev),
    }


def sst2_runs(
    environment: Mapping[str, str], folder: Path, *, device: str, rows: int | None, limit: float
) -> list[dict[str, Any]]:
    """Train every method and seed, some in parallel; return each result or error."""
    waiting = [(method, seed) for seed in SEEDS for method in METHODS_TRAINED]
    running: list[tuple[str, int, Path, subprocess.Popen[str]]] = []
    result: list[dict[str, Any]] = []
    end = time.monotonic() + limit
    while waiting or running:
        while waiting and len(running) < RUNS_AT_ONCE:
            method, seed = waiting.pop(0)
            file = folder / f"sst2-{method}-{seed}.json"
            command = [sys.executable, "-m", "dev.benchmarks.gpu", "--stage", "sst2"]
            command += ["--method", method, "--seed", str(seed), "--device", device]
            command += ["--file", str(file), *(["--rows", str(rows)] if rows else [])]
            message = (folder / f"sst2-{method}-{seed}.txt").open("w", encoding="utf-8")
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=message, stderr=message, text=True
            )
            running.append((method, seed, file, process))
        time.sleep(0.2)
        late = time.monotonic() > end
        for entry in list(running):
            method, seed, file, process = entry
            if process.poll() is None and not late:
                continue
            process.kill()
            process.wait()
            running.remove(entry)
            if file.exists():
                result.append(json.loads(file.read_text(encoding="utf-8")))
            else:
                words = file.with_suffix(".txt").read_text(encoding="utf-8").strip().splitlines()
                reason = "out of time" if late else (words or ["no output"])[-1]
                result.append({"method": method, "seed": seed, "failed": reason})
        if late:
            waiting = []
    return result


# Step times


def timed(workload: Any) -> tuple[float, float]:
    """Return the seconds of a step's passes and of its update, after the device has finished."""
    import torch

    def now() -> float:
        if workload.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    workload.optimizer.zero_grad(set_to_none=True)
    start = now()
    workload.passes()
    middle = now()
    workload.update()
    return middle - start, now() - middle


def step_times(
    labels: Sequence[str], *, shape: str, batch: int, device: str
) -> Iterator[dict[str, Any]]:
    """Time a step of each method, interleaved with plain steps, on models of one shape.

    Args:
        labels: Keys of ``dev.benchmarks.workload.METHODS``.
        shape: A key of ``SHAPES``.
        batch: Rows of a step.
        device: Where.

    Yields:
        For each label: median seconds of the step and of its update (clipping, mask, optimizer);
            the same of the plain steps in between; peak bytes.
    """
    import torch

    from dev.benchmarks.workload import LEARNING_RATE as RATE
    from dev.benchmarks.workload import Workload, bert
    from temper.errors import TemperError

    def made(label: str, model: Any, optimizer: Any) -> Workload:
        return Workload(
            label,
            batch=batch,
            tokens=TOKENS if shape != "tiny" else 8,
            model=model,
            optimizer=optimizer,
            bf16=True,
        )

    def model_of() -> tuple[Any, Any]:
        with torch.device(device):
            model = bert(**SHAPES[shape])
        return model, torch.optim.AdamW(model.parameters(), lr=RATE)

    plain, pair = made("plain", *model_of()), model_of()
    for label in labels:
        own: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []
        entry: dict[str, Any] = {"shape": shape, "batch": batch, "method": label}
        workload = None
        try:
            workload = made(label, *pair)
            if workload.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            for _ in range(WARM_UP):
                timed(workload)
            if workload.device.type == "cuda":
                entry["peak_bytes"] = torch.cuda.max_memory_allocated()
            timed(plain)
            start = time.monotonic()
            while len(own) < MOST:
                if len(own) >= FEWEST and time.monotonic() - start > SECONDS:
                    break
                own.append(timed(workload))
                beside.append(timed(plain))
        # A failure of one method must not stop the others.
        except (RuntimeError, ValueError, TemperError) as error:
            entry["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        else:
            entry |= {
                "rounds": len(own),
                "step": statistics.median(sum(pieces) for pieces in own),
                "update": statistics.median(update for _, update in own),
                "plain_step": statistics.median(sum(pieces) for pieces in beside),
                "plain_update": statistics.median(update for _, update in beside),
            }
        finally:
            if workload is not None:
                workload.stepper.remove_hooks()
            pair[1].zero_grad(set_to_none=True)
        yield entry


def trainer_times(*, shape: str, batch: int, device: str, steps: int = 12) -> list[dict[str, Any]]:
    """Time steps of the stock Trainer and of `RobustTrainer` with ``plain`` on the same rows."""
    import tempfile

    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from dev.benchmarks.workload import bert, synthetic
    from temper import RobustTrainer

    class Clock(TrainerCallback):
        """Record when each step ends."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available() and device != "cpu":
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    result = []
    for kind in (Trainer, RobustTrainer):
        torch.manual_seed(0)
        model = bert(**SHAPES[shape])
        tokens = TOKENS if shape != "tiny" else 8
        whole = synthetic(model.config.vocab_size, batch=batch * steps, tokens=tokens)
        rows = [
            {name: values[row] for name, values in whole.items()}
            for row in range(len(whole["labels"]))
        ]
        with tempfile.TemporaryDirectory() as folder:
            clock = Clock()
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=batch,
                max_steps=steps,
                bf16=device != "cpu",
                use_cpu=device == "cpu",
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            )
            kind(model, arguments, train_dataset=rows, callbacks=[clock]).train()
        gaps = [after - before for before, after in zip(clock.ends, clock.ends[1:], strict=False)]
        result.append(
            {
                "shape": shape,
                "batch": batch,
                "trainer": kind.__name__,
                "step": statistics.median(gaps[2:]),
            }
        )
    return result


def steps_stage(file: Path, *, device: str, shapes: Sequence[str], until: float) -> None:
    """Measure all shapes and batches until the time limit, and save after each entry."""
    from dev.benchmarks.workload import METHODS

    labels = list(METHODS)
    if shapes == ["tiny"]:
        labels = ["plain", "uegr", "roast"]
    result: dict[str, Any] = {"steps": [], "trainers": [], "left_out": []}
    for shape in shapes:
        for batch in BATCHES if shape != "tiny" else (4,):
            if time.time() < until:
                result["trainers"] += trainer_times(shape=shape, batch=batch, device=device)
            times = step_times(labels, shape=shape, batch=batch, device=device)
            for label in labels:
                if time.time() > until:
                    result["left_out"].append({"shape": shape, "batch": batch, "method": label})
                    continue
                result["steps"].append(next(times))
                file.write_text(json.dumps(result), encoding="utf-8")
            times.close()
    file.write_text(json.dumps(result), encoding="utf-8")


# The tables


def table_of(record: Mapping[str, Any]) -> str:
    """Return the tables of a record as Markdown."""
    machine = record["machine"]
    versions = machine["versions"]
    lines = [
        f"`make gpu` on {record['card']}, torch {versions['torch']}, Transformers "
        f"{versions['transformers']}, Python {machine['python']}, {machine['time'][:10]}. "
        f"Tests marked `gpu`: {record['tests']['said'].strip('= ')}.",
        "",
        *_training_lines(record["sst2"]),
        *_step_lines(record),
    ]
    return "\n".join(lines)


def _training_lines(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    done = [run for run in runs if "accuracy" in run]
    if not runs:
        return ["MiniLM on SST-2: not run.", ""]
    lines = [
        f"MiniLM on SST-2, {max((run['rows'] for run in done), default=0):,} rows, "
        f"{EPOCHS:g} epoch at {LEARNING_RATE:g}, {ROWS_A_STEP} rows a step, bf16; "
        f"{RUNS_AT_ONCE} runs in parallel, so the seconds do not compare methods:",
        "",
        "| method | seeds | mean accuracy on dev, % | of each seed | seconds |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS_TRAINED:
        own = [run for run in done if run["method"] == method]
        if not own:
            continue
        values = [100 * run["accuracy"] for run in own]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        seconds = statistics.median(run["seconds"] for run in own)
        each = ", ".join(f"{value:.2f}" for value in values)
        mean = f"{statistics.mean(values):.2f}{spread}"
        lines.append(f"| {method} | {len(own)} | {mean} | {each} | {seconds:.0f} |")
    lines += [
        f"\nFailed: {run['method']}, seed {run['seed']}: {run['failed']}"
        for run in runs
        if "failed" in run
    ]
    return [*lines, ""]


def _step_lines(record: Mapping[str, Any]) -> list[str]:
    cells = [(shape, batch) for shape in SHAPES for batch in (*BATCHES, 4)]
    steps = {(e["shape"], e["batch"], e["method"]): e for e in record["steps"]}
    cells = [cell for cell in cells if any(key[:2] == cell for key in steps)]
    methods = list(dict.fromkeys(key[2] for key in steps))
    lines = [
        f"Step time divided by that of a second plain model timed in alternation (`plain` is 1 up "
        f"to noise), in bf16 with {TOKENS} tokens, AdamW and clipping; in parentheses the peak "
        "memory in GB. *Update* is the part for clipping, mask and optimizer:",
        "",
        "| method | " + " | ".join(f"{s}, batch {b} | update" for s, b in cells) + " |",
        "|---|" + "---|---|" * len(cells),
    ]
    for method in methods:
        row = []
        for cell in cells:
            entry = steps.get((*cell, method))
            if entry is None or "failed" in entry:
                row += ["not measured" if entry is None else entry["failed"], ""]
                continue
            memory = f" ({entry['peak_bytes'] / 1e9:.1f})" if "peak_bytes" in entry else ""
            row.append(f"{entry['step'] / entry['plain_step']:.2f}{memory}")
            row.append(f"{entry['update'] / entry['plain_step']:.2f}")
        lines.append(f"| {method} | " + " | ".join(row) + " |")
    loops = {(e["shape"], e["batch"], e["trainer"]): e["step"] for e in record["trainers"]}
    for trainer in dict.fromkeys(trainer for *_, trainer in loops):
        row = []
        for cell in cells:
            loop, plain = loops.get((*cell, trainer)), steps.get((*cell, "plain"), {}).get("step")
            row += [f"{loop / plain:.2f}" if loop and plain else "", ""]
        lines.append(f"| `{trainer}`, whole loop | " + " | ".join(row) + " |")
    plain_times = [
        f"{1e3 * steps[(*cell, 'plain')]['step']:.1f} ms ({cell[0]}, {cell[1]})"
        for cell in cells
        if "step" in steps.get((*cell, "plain"), {})
    ]
    skipped = " *Not measured*: no time was left." if record["left_out"] else ""
    return [*lines, "", f"A plain step took {', '.join(plain_times)}.{skipped}"]


def write_document(record: Mapping[str, Any], path: Path) -> None:
    """Write the record's tables between the markers of a document."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    if not rest or START not in text or END not in text:
        raise SystemExit(f"{path} has no {START} ... {END}.")
    path.write_text(f"{before}{START}\n{table_of(record)}\n{END}{after}", encoding="utf-8")


def whole(out: Path, *, device: str, shapes: list[str], rows: int | None, minutes: float) -> None:
    """Run all stages and save ``gpu.json`` after each."""
    end = time.time() + 60 * minutes
    site = KIT / "site"
    taken = unpack(KIT, site)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), str(site)])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TEMPER_GPU": device,
        "PYTHONUNBUFFERED": "1",
    }
    described = subprocess.run(
        [sys.executable, "-m", "dev.benchmarks.gpu", "--stage", "machine", "--device", device],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if described.returncode:
        raise SystemExit(described.stderr.strip().splitlines()[-1])
    record: dict[str, Any] = {"schema": 1, "benchmark": "gpu", "taken_from_kit": taken}
    record |= json.loads(described.stdout.splitlines()[-1])
    record |= {
        "tests": {"said": "not run"},
        "sst2": [],
        "steps": [],
        "trainers": [],
        "left_out": [],
    }
    out.mkdir(parents=True, exist_ok=True)
    result = out / "gpu.json"

    def keep(what: str) -> None:
        result.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{what}; {(end - time.time()) / 60:.1f} minutes left", flush=True)

    keep(f"{record['card']}: started")
    left = end - time.time()
    work = out / "work"
    work.mkdir(exist_ok=True)
    file = work / "steps.json"
    until = time.time() + 0.4 * left
    command = [sys.executable, "-m", "dev.benchmarks.gpu", "--stage", "steps", "--device", device]
    command += ["--file", str(file), "--until", str(until - 15), "--shapes", *shapes]
    stage = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        stage.wait(timeout=max(until - time.time(), 1.0))
    except subprocess.TimeoutExpired:
        stage.kill()
    if file.exists():
        record |= json.loads(file.read_text(encoding="utf-8"))
    keep(f"Steps: {len(record['steps'])} cells, {len(record['left_out'])} not measured")
    record["tests"] = run_tests(environment, limit=0.2 * left)
    keep(f"Tests marked gpu: {record['tests']['said']}")
    limit = end - time.time()
    record["sst2"] = sst2_runs(environment, work, device=device, rows=rows, limit=limit)
    keep(f"SST-2: {sum('accuracy' in run for run in record['sst2'])} runs")
    shutil.rmtree(work)
    print(
        f"Written to {result}. For the table: python -m dev.benchmarks.gpu --from {result} "
        "--write docs/benchmarks.md"
    )


def describe(device: str) -> dict[str, Any]:
    """Return the names of the GPU and the machine; exit if there is no such device."""
    import torch

    from dev.benchmarks.record import machine

    if device == "cpu":
        return {"card": "no GPU (a trial run)", "machine": machine()}
    if not torch.cuda.is_available():
        raise SystemExit(
            "torch sees no CUDA device. Name an interpreter whose torch sees one: "
            "make gpu GPU_PYTHON=/path/to/python3"
        )
    return {"card": torch.cuda.get_device_name(), "machine": machine()}


def main() -> None:
    """Run all stages, or write the table of a saved result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dev" / "benchmarks" / "results")
    parser.add_argument("--device", default="cuda", help="cuda; cpu for a trial run")
    parser.add_argument("--minutes", type=float, default=9.0, help="time limit of all stages")
    parser.add_argument("--rows", type=int, help="training rows of SST-2 (default: all)")
    parser.add_argument("--shapes", nargs="+", default=["BERT-base", "BERT-large"], choices=SHAPES)
    parser.add_argument("--from", dest="source", type=Path, help="gpu.json to read instead")
    parser.add_argument("--write", type=Path, help="document that the table is written into")
    parser.add_argument("--stage", choices=("machine", "sst2", "steps"), help=argparse.SUPPRESS)
    parser.add_argument("--method", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write is not None:
        source = given.source or given.out / "gpu.json"
        record = json.loads(source.read_text(encoding="utf-8"))
        kept = ROOT / "dev" / "benchmarks" / "results" / "gpu.json"
        if source.resolve() != kept:
            shutil.copy(source, kept)
        write_document(record, given.write)
    elif given.stage == "machine":
        print(json.dumps(describe(given.device)))
    elif given.stage == "sst2":
        result = sst2_run(given.method, given.seed, device=given.device, rows=given.rows)
        given.file.write_text(json.dumps(result), encoding="utf-8")
    elif given.stage == "steps":
        steps_stage(given.file, device=given.device, shapes=given.shapes, until=given.until)
    else:
        if not (KIT / "minilm").is_dir():
            raise SystemExit(f"{KIT} is empty. Run `make gpu-kit` on a machine with a network.")
        whole(
            given.out,
            device=given.device,
            shapes=given.shapes,
            rows=given.rows,
            minutes=given.minutes,
        )


if __name__ == "__main__":
    main()
