"""Files that `temper export` copies into a checkpoint; they do not import Temper."""
