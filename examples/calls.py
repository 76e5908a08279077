"""Train, evaluate and compare with three calls, on synthetic reviews.

python examples/calls.py                       MiniLM, 2,000 rows
python examples/calls.py FOLDER_OR_HUB_ID --rows 64 --epochs 1 --out runs/mine
"""

from __future__ import annotations

import argparse

import temper

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default="minilm")
parser.add_argument("--rows", type=int, default=2000)
parser.add_argument("--epochs", type=float, default=3.0)
parser.add_argument("--out", default="runs/calls")
options = parser.parse_args()
settings = {
    "model": options.model,
    "rows": options.rows,
    "eval_rows": max(2, options.rows // 4),
    "epochs": options.epochs,
    "learning_rate": 1e-4,
}

run = temper.train("demo", method=temper.UEGR(epsilon=0.025), out=f"{options.out}/uegr", **settings)
print(run.scores)

# An evaluation has one row per score: value, 95% interval, n.
found = temper.evaluate(run, shift={"films": "demo:shift"}, perspectives=["task", "shift"])
print(found.scores[["set", "name", "value", "low", "high", "n"]])

study = temper.compare(
    "demo", methods=["plain", "r_drop"], seeds=[0], out=f"{options.out}/study", **settings
)
print(f"{len(study.scores)} scores: {study.page}")
