"""Kill a machine of a cluster during a study: ``python -m dev.drills.cluster``.

The cluster is a Ray cluster of two machines on 127.0.0.1 with one core each. The second is killed
(SIGKILL to its raylet, which ends its workers) at a random time after a run has begun, and is
replaced for the next input. The study must succeed without intervention and leave the same files as
without a cluster: no run lost or repeated, all scores equal. The times are a function of (seed,
number), as far as the scheduling of processes allows.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from dev.drills.commands import Child, Command, Stage, make_project
from dev.drills.drilling import Found, drilled

STUDY = Command(
    "cluster",
    "compare --model {0}/tiny --data {0}/data.jsonl --methods plain,r_drop --seeds 0,1"
    " --epochs 5 --max-length 8 --set train.save_steps=2 --perspectives task --out {0}/out",
)


def drill(project: Path, study: Command, *, inputs: int, seed: int) -> Found:
    """Kill one of two machines during a study, many times.

    Args:
        project: The folder of `make_project`.
        study: Command of the study.
        inputs: Number of repetitions.
        seed: Seed of the times.
    """
    result = Found()
    with tempfile.TemporaryDirectory() as made, two_machines() as (address, ask):
        stage = Stage(project, study, Path(made))
        command = [*study.of(stage.folder), "--cluster", address]
        seconds = 10.0
        for number in range(inputs):
            draws = random.Random(f"{seed} cluster {number}")
            stage.reset()
            child = Child(command, stage.folder)
            while not any(stage.folder.glob("out/runs/*")) and child.is_running():
                time.sleep(0.01)
            begun = time.monotonic()
            time.sleep(draws.uniform(0, seconds))
            early = child.is_running()
            ask("kill")
            ended = child.wait()
            seconds = max(1.0, time.monotonic() - begun) / 2
            result.count("killed" if early else "ended first")
            if ended.code:
                result.fault(
                    number, "a machine is killed", f"ended with {ended.code}:\n{ended.said}"
                )
            elif differing := stage.differing():
                result.fault(number, "a machine is killed", f"{differing}\n{ended.said}")
            ask("add")
    return result


@contextmanager
def two_machines() -> Iterator[tuple[str, Callable[[str], None]]]:
    """Run a cluster of two machines in a separate process, so that no fork inherits its threads."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_hold, args=(there,), daemon=False)
    process.start()

    def ask(what: str) -> None:
        here.send(what)
        here.recv()

    try:
        yield here.recv(), ask
    finally:
        here.send("end")
        process.join()


def _hold(pipe: Connection) -> None:
    """Run the cluster, and add or kill a machine on request."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    second = cluster.add_node(num_cpus=1)
    pipe.send(cluster.address)
    while (asked := pipe.recv()) != "end":
        if asked == "kill":
            cluster.remove_node(second, allow_graceful=False)
        else:
            second = cluster.add_node(num_cpus=1)
        pipe.send("done")
    cluster.shutdown()


def main() -> int:
    """Run the drill and print the results."""
    return drilled(__doc__, (STUDY,), make_project, drill, inputs=5)


if __name__ == "__main__":
    sys.exit(main())
