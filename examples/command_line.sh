#!/bin/sh
# Train, evaluate, predict and compare from the command line, offline.
#
#     sh examples/command_line.sh
#     MODEL=FOLDER_OR_HUB_ID ROWS=64 EPOCHS=1 OUT=runs/mine sh examples/command_line.sh
set -eu

MODEL=${MODEL:-minilm}
DATA=${DATA:-demo}
ROWS=${ROWS:-2000}
EVAL_ROWS=${EVAL_ROWS:-500}
EPOCHS=${EPOCHS:-3.0}
OUT=${OUT:-runs/command-line}

temper list methods

# Train; the output is a Transformers checkpoint with metadata and metrics. A stopped run is resumed.
temper train --model "$MODEL" --data "$DATA" --rows "$ROWS" --eval-rows "$EVAL_ROWS" \
    --method uegr --set method.epsilon=0.025 --epochs "$EPOCHS" --seed 0 --out "$OUT/uegr"

# Evaluate accuracy and calibration, also under attack and noise.
temper evaluate "$OUT/uegr" --data "$DATA" --eval-rows "$EVAL_ROWS" --out "$OUT/uegr-evaluation"

# Predict a label and probabilities for each row of a file.
printf 'text\nthe soup was anything but dull\nthe battery could not be worse\n' > "$OUT/new.csv"
temper predict "$OUT/uegr" --data "$OUT/new.csv"

# Compare the method with plain fine-tuning over two seeds: a table and a report page.
temper compare --methods plain,uegr --seeds 0,1 --model "$MODEL" --data "$DATA" \
    --rows "$ROWS" --eval-rows "$EVAL_ROWS" --epochs "$EPOCHS" --out "$OUT/compare"
