"""What `temper export` copies beside a checkpoint: files that need no Temper and import none."""
