"""Files that `temper export` copies next to a checkpoint; they do not import Temper."""
