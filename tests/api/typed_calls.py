"""Calls of the four functions as mypy sees them: each ignored line must be an error."""

from __future__ import annotations

import pandas

import temper


def calls(frame: pandas.DataFrame) -> None:
    """Right calls, then wrong ones; never run."""
    run = temper.train(
        "reviews.csv",
        model="minilm",
        method=temper.UEGR() + temper.AT(),
        epochs=1,
        num_train_epochs=1,
        augment="typos,lowercase",
        label_map={"POSITIVE": "pos"},
        train={"weight_decay": 0.1},
        out="runs/reviews",
    )
    temper.train(tasks={"rte": None, "reviews": frame}, model="minilm", lora=True)
    temper.evaluate(run, frame, shift={"far": frame}, perspectives=["task"], eval_rows=10)
    temper.compare("demo", model="minilm", methods=["plain", temper.AT()], keep="best")
    temper.tune("demo", budget="2h", recipes="ema", cluster={"address": "auto", "cpus": 2})

    temper.train("demo", model="minilm", epoch=1)  # type: ignore[call-arg]
    temper.train("demo", model="minilm", epochs="1")  # type: ignore[arg-type]
    temper.train("demo", "runs/out", model="minilm")  # type: ignore[misc]
    temper.train("demo", model="minilm", keep="first")  # type: ignore[arg-type]
    temper.train("demo", model="minilm", shift={"far": "far.csv"})  # type: ignore[call-arg]
    temper.evaluate(run, rows=10)  # type: ignore[call-arg]
    temper.compare("demo", model="minilm", gives="logits")  # type: ignore[call-arg]
    temper.tune("demo", budget=30)  # type: ignore[arg-type]
