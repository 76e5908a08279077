"""Processor time and memory from the start of training to its first step, by number of rows.

Run ``python -m dev.benchmarks.first_step --rows 1000000``. It does the work of ``temper train
--data FILE`` up to the first step, in a separate process for each file, imports included. The files
have generated texts of fifteen words in two classes; MiniLM is trained in batches of 16 by plain
fine-tuning, without an evaluation split. A second process with 1,000 rows measures the part that
does not depend on the rows. It needs Linux's ``/proc``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console

FORMATS = ("csv", "jsonl", "parquet")
FEW, THREADS = 1000, 1


def generated(path: Path, rows: int) -> None:
    """Write texts and labels in the format of the file's suffix."""
    import pyarrow.csv
    import pyarrow.parquet

    from dev.benchmarks.evaluation_time import generated as write_csv

    source = path.with_suffix(".csv")
    write_csv(source, rows)
    if path.suffix == ".csv":
        return
    table = pyarrow.csv.read_csv(source)
    source.unlink()
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
        return
    with path.open("w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=10_000):
            file.writelines(f"{json.dumps(row)}\n" for row in batch.to_pylist())


def measure(source: Path, out: Path) -> dict[str, float]:
    """Train for one step in this process and return its time and memory.

    Returns:
        ``seconds`` of processor time and the peak memory in ``mebibytes`` when the training begins
        (``before``) and after its first step (``after``), and the memory in use when the libraries
        are ``imported``.
    """
    import torch

    from dev.benchmarks.record import resident
    from temper.progress import Progress
    from temper.training.config import RunConfig
    from temper.training.run import train

    torch.set_num_threads(THREADS)
    result = {"mebibytes imported": resident("VmRSS") / 2**20}

    class Watch(Progress):
        def steps(self, done: int, total: int, *, loss: float | None) -> None:
            when = "after" if done else "before"
            result[f"seconds {when}"] = time.process_time()
            result[f"mebibytes {when}"] = resident("VmHWM") / 2**20
            if done:
                raise KeyboardInterrupt

    tree = {"model": "minilm", "data": {"source": str(source)}, "method": {"name": "plain"}}
    with suppress(KeyboardInterrupt):
        train(RunConfig.of(tree), out, progress=Watch())
    return result


def main() -> None:
    """Measure many and few rows of each format, print and save both."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        result = measure(arguments.measure, arguments.measure.with_suffix(".run"))
        sys.stdout.write(json.dumps(result))
        return
    # Imported late: it imports torch, which must be measured in the processes.
    from dev.benchmarks.record import write

    console, figures = Console(), []
    with tempfile.TemporaryDirectory() as folder:
        for form in arguments.formats:
            for rows in (FEW, arguments.rows):
                source = Path(folder) / f"rows-{rows}.{form}"
                generated(source, rows)
                command = [sys.executable, "-m", "dev.benchmarks.first_step", "--measure"]
                command.append(str(source))
                process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                result = json.loads(process.stdout.splitlines()[-1])
                source.unlink()
                figures.append({"format": form, "rows": rows, **result})
                text = ", ".join(f"{name} {value:.1f}" for name, value in result.items())
                console.print(f"{form}, {rows:,} rows: {text}")
    console.print(f"Written to {write('first_step', {'figures': figures})}")


if __name__ == "__main__":
    main()
