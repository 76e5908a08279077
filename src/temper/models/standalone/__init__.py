"""What `temper export` copies next to a checkpoint: files that need no Temper and import none."""
