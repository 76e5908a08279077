"""Plant code in files and check that no command runs it: ``python -m dev.drills.trust``.

Models, data and runs get pickles (as files and inside other formats), modules that a configuration
names, YAML with constructors, and datasets with a script. A command may continue or refuse with one
message. The planted code creates a marker file if it runs.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dev.drills.commands import Ended, make_project, run
from dev.drills.drilling import Found, drilled

MARK = "executed"


class Payload:
    """Creates a marker file when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the call that unpickling makes."""
        return (os.mkdir, (self.mark,))


def _pickled(folder: Path) -> bytes:
    return pickle.dumps(Payload(folder.parent / MARK))


def _code(folder: Path) -> str:
    return f"open({str(folder.parent / MARK)!r}, 'w')\n"


def _torch_file(folder: Path) -> bytes:
    """Return a file of ``torch.save`` with the payload as its pickle."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("archive/data.pkl", _pickled(folder))
        archive.writestr("archive/version", "3\n")
    return content.getvalue()


def _object_array(folder: Path) -> bytes:
    content = io.BytesIO()
    array = np.empty(1, dtype=object)
    array[0] = Payload(folder.parent / MARK)
    np.save(content, array, allow_pickle=True)
    return content.getvalue()


def _arrow_type(folder: Path) -> pa.Table:
    """Return a table whose schema has an extension type with a pickle."""
    kind = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": _pickled(folder),
    }
    field = pa.field("text", pa.string(), metadata=kind)
    schema = pa.schema([field, ("label", pa.int64())])
    return pa.table([["a text", "another"] * 20, [0, 1] * 20], schema=schema)


WEIGHTS = ("pytorch_model.bin", "adapter_model.bin", "tf_model.h5", "model.ckpt.index")
BESIDE = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt")
NAMED = ("model.pkl", "vocab.pkl", "tokenizer.pickle", "state.joblib", "weights.npz", "head.npy")
YAML = "---\nlabels: !!python/object/apply:builtins.open ['{}', 'w']\n---\n"


@dataclass(frozen=True)
class Plant:
    """Planted code and the commands that read it.

    Args:
        name: Name of the place.
        put: Plants it in a project.
        commands: Commands that read it; ``{}`` is replaced by the project.
    """

    name: str
    put: Callable[[Path], None]
    commands: tuple[str, ...]


DATA = "--data {}/data.jsonl"
OF_MODEL = (
    f"evaluate {{}}/run {DATA} --perspectives task --out {{}}/out",
    f"predict {{}}/run {DATA} --out {{}}/out.jsonl",
    "calibrate {}/run --data {}/held_out.jsonl",
    f"train --model {{}}/run {DATA} --max-length 8 --epochs 1 --out {{}}/out",
    f"train --model {{}}/tiny {DATA} --max-length 8 --epochs 5 --learning-rate 0.01"
    " --method plain --seed 0 --out {}/run",
    "report {}/run",
    "verify {}/run",
)
TRAIN = "train --model {}/tiny --max-length 8 --epochs 1 --out {}/out --data "


def _file(file: str, content: Callable[[Path], bytes], *, alone: bool) -> Callable[[Path], None]:
    """Return a function that writes a file, instead of the weights or in addition to them."""

    def put(folder: Path) -> None:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(folder))
        if alone:
            for weights in path.parent.glob("*.safetensors"):
                weights.unlink()

    return put


def _config(fields: Mapping[str, Any], name: str) -> Callable[[Path], None]:
    """Return a function that adds fields to a configuration, and the module that they name."""

    def put(folder: Path) -> None:
        path = folder / "run" / name
        content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        path.write_text(json.dumps({**content, **fields}), encoding="utf-8")
        (folder / "run" / "mine.py").write_text(_code(folder), encoding="utf-8")

    return put


def _weights_index(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"classifier.weight": "pytorch_model-1.bin"}}
    (folder / "run/pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "run/pytorch_model-1.bin").write_bytes(_torch_file(folder))
    (folder / "run/model.safetensors").unlink()


def _checkpoint(folder: Path) -> None:
    """Plant pickles among the checkpoints of a run that was stopped."""
    checkpoint = folder / "run/checkpoints/checkpoint-5"
    checkpoint.mkdir(parents=True)
    for name in (*BESIDE, "pytorch_model.bin"):
        (checkpoint / name).write_bytes(_torch_file(folder))
    shutil.copy(folder / "run/config.json", checkpoint / "config.json")
    record = json.loads((folder / "run/run.json").read_text(encoding="utf-8"))
    record["status"] = "stopped"
    (folder / "run/run.json").write_text(json.dumps(record), encoding="utf-8")


def _sentence_modules(folder: Path) -> None:
    modules = [{"idx": 0, "name": "0", "path": "", "type": "mine.Module"}]
    (folder / "run/modules.json").write_text(json.dumps(modules), encoding="utf-8")
    (folder / "run/mine.py").write_text(_code(folder), encoding="utf-8")


def _table(folder: Path) -> None:
    (folder / "planted").mkdir()
    pq.write_table(_arrow_type(folder), folder / "planted/train.parquet")


def _rows(folder: Path) -> None:
    """Replace the rows of an evaluation by a table with such a type."""
    rows = folder / "run/evaluation/rows.parquet"
    table = pq.read_table(rows)
    field = _arrow_type(folder).schema.field("text")
    pq.write_table(table.append_column(field, [["a"] * len(table)]), rows)


def _script(folder: Path) -> None:
    (folder / "planted").mkdir()
    (folder / "planted/planted.py").write_text(_code(folder), encoding="utf-8")
    shutil.copy(folder / "data.jsonl", folder / "planted/train.jsonl")


def _skops(folder: Path) -> None:
    """Write an object array as skops does: one member is a pickle."""
    schema = {
        "__class__": "ndarray",
        "__module__": "numpy",
        "__loader__": "NdArrayNode",
        "type": "numpy",
        "file": "1.npy",
        "__id__": 1,
        "protocol": 2,
        "_skops_version": "0.13.0",
    }
    with zipfile.ZipFile(folder / "model.skops", "w") as archive:
        archive.writestr("schema.json", json.dumps(schema))
        archive.writestr("1.npy", _object_array(folder))


def _function_schema(folder: Path) -> None:
    """Write a skops file whose object is made by calling a given function."""
    mark = str(folder.parent / MARK)
    schema = {
        "__class__": "open",
        "__module__": "builtins",
        "__loader__": "ReduceNode",
        "__id__": 1,
        "args": {"__loader__": "JsonNode", "__class__": "str", "__module__": "builtins",
                 "content": json.dumps([mark, "w"]), "__id__": 2},
        "protocol": 2,
        "_skops_version": "0.13.0",
    }  # fmt: skip
    with zipfile.ZipFile(folder / "model.skops", "w") as archive:
        archive.writestr("schema.json", json.dumps(schema))


def _plants() -> tuple[Plant, ...]:
    result = []
    for name in WEIGHTS:
        put = _file(f"run/{name}", _torch_file, alone=True)
        result.append(Plant(f"{name} in place of weights", put, OF_MODEL))
    for name in (*BESIDE, *NAMED):
        content = _object_array if name.endswith(("npy", "npz")) else _torch_file
        put = _file(f"run/{name}", content, alone=False)
        result.append(Plant(f"{name} next to weights", put, OF_MODEL[:5]))
    auto = {
        "AutoConfig": "mine.Config",
        "AutoModelForSequenceClassification": "mine.Model",
        "AutoModel": "mine.Model",
        "AutoTokenizer": ["mine.Slow", "mine.Fast"],
    }
    configs: dict[str, tuple[str, dict[str, Any]]] = {
        "auto_map of the model": ("config.json", {"auto_map": auto}),
        "unknown architecture with auto_map": (
            "config.json",
            {"auto_map": auto, "model_type": "mine", "architectures": ["Mine"]},
        ),
        "auto_map of the tokenizer": ("tokenizer_config.json", {"auto_map": auto}),
        "tokenizer class of ours": ("tokenizer_config.json", {"tokenizer_class": "mine.Slow"}),
        "attention from the Hub": ("config.json", {"_attn_implementation": "mine/kernel"}),
        "attn_implementation": ("config.json", {"attn_implementation": "mine/kernel"}),
        "custom pipelines": (
            "config.json",
            {"custom_pipelines": {"text-classification": {"impl": "mine.Pipe", "pt": ["Mine"]}}},
        ),
        "quantization": ("config.json", {"quantization_config": {"quant_method": "mine"}}),
        "generation config": ("generation_config.json", {"custom_generate": "mine"}),
        "adapter": (
            "adapter_config.json",
            {
                "peft_type": "LORA",
                "auto_mapping": {"base_model_class": "Mine", "parent_library": "mine"},
            },
        ),
    }
    for name, (file, fields) in configs.items():
        result.append(Plant(name, _config(fields, file), OF_MODEL[:5]))
    result += [
        Plant("index of pickled weights", _weights_index, OF_MODEL),
        Plant("modules.json", _sentence_modules, OF_MODEL[:5]),
        Plant("checkpoint of pickles", _checkpoint, OF_MODEL[5:]),
        Plant(
            "front matter of the card",
            _file("run/README.md", lambda f: YAML.format(f.parent / MARK).encode(), alone=False),
            (*OF_MODEL[:2], "report {}/run"),
        ),
        Plant("rows of an evaluation", _rows, ("report {}/run", "verify {}/run")),
        Plant("type of a column", _table, (f"{TRAIN}{{}}/planted",)),
        Plant("script of a dataset", _script, (f"{TRAIN}{{}}/planted",)),
        Plant("object array in skops", _skops, (f"evaluate {{}}/model.skops {DATA} --out {{}}/o",)),
        Plant(
            "call in skops",
            _function_schema,
            (f"evaluate {{}}/model.skops {DATA} --out {{}}/o",),
        ),
    ]
    for name in ("train.pkl", "train.pickle", "train.npy", "train.joblib", "train.pt", "train.xml"):
        content = _object_array if name.endswith("npy") else _pickled
        put = _file(f"planted/{name}", content, alone=False)
        result.append(Plant(f"data {name}", put, (f"{TRAIN}{{}}/planted/{name}",)))
    return tuple(result)


PLANTS = _plants()


def drill(project: Path, plant: Plant, *, inputs: int, seed: int) -> Found:
    """Run each command that reads a planted file.

    Args:
        project: The folder of `make_project`.
        plant: The planted code.
        inputs: Maximum number of commands.
        seed: Not used.
    """
    result = Found()
    for number, command in enumerate(plant.commands[:inputs]):
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work) / "project"
            shutil.copytree(project, folder)
            plant.put(folder)
            ended = run(command.replace("{}", str(folder)).split(), folder)
            result.count("refused" if ended.code else "read on")
            if message := _wrong(ended, Path(work) / MARK):
                result.fault(number, command, message)
    return result


def _wrong(ended: Ended, mark: Path) -> str:
    """Return what is wrong with the end of a command; empty if nothing."""
    if mark.exists():
        return f"planted code was run:\n{ended.said}"
    if ended.code not in (0, 1, 2) or "Traceback" in ended.said:
        return f"ended with {ended.code}:\n{ended.said}"
    return ""


def main() -> int:
    """Run the drill on all places, or the given ones, and print the results."""
    return drilled(__doc__, PLANTS, make_project, drill, inputs=10)


if __name__ == "__main__":
    sys.exit(main())
