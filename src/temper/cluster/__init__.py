"""Work on the machines of a Ray cluster, and results in an object store."""
