"""Fine-tune with any method in your own training loop, on synthetic reviews.

python examples/stepper.py                     MiniLM, uegr, 2,000 rows
python examples/stepper.py FOLDER_OR_HUB_ID --method r_drop --rows 64 --epochs 1
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader

from temper import Stepper
from temper.data.collator import Collator
from temper.data.corpus import review_corpus
from temper.data.encode import encode
from temper.models.hf import load_classifier

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default="minilm")
parser.add_argument("--method", default="uegr")
parser.add_argument("--rows", type=int, default=2000)
parser.add_argument("--epochs", type=int, default=3)
options = parser.parse_args()

corpus = review_corpus(rows=options.rows, eval_rows=max(2, options.rows // 4))
model, tokenizer = load_classifier(options.model, labels=corpus.train.label_names)
train, dev = (encode(rows, tokenizer, max_length=64) for rows in (corpus.train, corpus.dev))
loader = DataLoader(train, batch_size=16, shuffle=True, collate_fn=Collator(tokenizer))
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

stepper = Stepper(model, options.method, special_ids=tokenizer.all_special_ids)
for epoch in range(options.epochs):
    model.train()
    for batch in loader:
        optimizer.zero_grad()
        logs = stepper.backward(batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step(optimizer)
    print(f"epoch {epoch + 1}: " + ", ".join(f"{name} {logs[name]:.3f}" for name in sorted(logs)))
stepper.remove_hooks()

model.eval()
right = 0
with torch.no_grad():
    for batch in DataLoader(dev, batch_size=32, collate_fn=Collator(tokenizer)):
        labels = batch.pop("labels")
        right += int((model(**batch).logits.argmax(-1) == labels).sum())
print(f"accuracy {right / len(dev):.3f}")
