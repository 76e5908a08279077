"""Fine-tune with UEGR through RobustTrainer, on synthetic reviews.

python examples/trainer.py                     MiniLM, 2,000 rows
python examples/trainer.py FOLDER_OR_HUB_ID --rows 64 --epochs 1 --out runs/mine
"""

from __future__ import annotations

import argparse
from typing import Any

from transformers import TrainingArguments

from temper import UEGR, RobustTrainer
from temper.data.collator import Collator
from temper.data.corpus import review_corpus
from temper.data.encode import encode
from temper.models.hf import load_classifier


def accuracy(prediction: Any) -> dict[str, float]:
    """Return the accuracy."""
    right = prediction.predictions.argmax(-1) == prediction.label_ids
    return {"accuracy": float(right.mean())}


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default="minilm")
parser.add_argument("--rows", type=int, default=2000)
parser.add_argument("--epochs", type=float, default=3.0)
parser.add_argument("--out", default="runs/example")
options = parser.parse_args()

corpus = review_corpus(rows=options.rows, eval_rows=max(2, options.rows // 4))
model, tokenizer = load_classifier(options.model, labels=corpus.train.label_names)
train, dev = (encode(rows, tokenizer, max_length=64) for rows in (corpus.train, corpus.dev))

trainer = RobustTrainer(
    model,
    TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        learning_rate=5e-5,
        save_strategy="epoch",
        logging_steps=10,
        report_to="none",
    ),
    method=UEGR(mask={"alpha": 0.6, "beta": 1.0}),
    train_dataset=train,
    eval_dataset=dev,
    data_collator=Collator(tokenizer),
    processing_class=tokenizer,
    compute_metrics=accuracy,
)
trainer.train()  # train(resume_from_checkpoint=True) resumes a stopped run, to the same weights
trainer.save_model(options.out)
print(f"accuracy {trainer.evaluate()['eval_accuracy']:.3f}, saved to {options.out}")
