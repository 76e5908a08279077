"""State files: values are restored bit for bit with their types, and other values are refused."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from temper.errors import CheckpointError
from temper.training.checkpoint_files import read_state, write_state

STORABLE = [
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64", "complex64"),
    )
]
SHAPES = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Draw tensors of every dtype from random bytes, so NaN and infinity are among them."""
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from(STORABLE))
    count = int(np.prod(shape, dtype=int))
    if dtype == torch.bool:
        return (
            torch.tensor(draw(st.lists(st.booleans(), min_size=count, max_size=count)))
            .reshape(shape)
            .to(torch.bool)
        )
    size = count * dtype.itemsize
    raw = draw(st.binary(min_size=size, max_size=size))
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape)


numbers = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), st.text(max_size=5)
)
ndarrays = arrays.arrays(
    dtype=st.sampled_from(["i1", "i8", "u4", "u8", "f2", "f4", "f8", "?", "c8"]),
    shape=arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
states = st.recursive(
    st.one_of(numbers, tensors(), ndarrays),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.integers(), st.text(max_size=3)), inner, max_size=3),
    ),
    max_leaves=8,
)


def identical(first: Any, second: Any) -> bool:
    """Compare types, structure and bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return list(first) == list(second) and all(
            type(a) is type(b) and identical(first[a], second[b])
            for a, b in zip(first, second, strict=True)
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(identical, first, second))
    if isinstance(first, torch.Tensor):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and bits(first) == bits(second)
    if isinstance(first, np.ndarray):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return alike and first.tobytes() == second.tobytes()
    if isinstance(first, float):
        return first == second or (first != first and second != second)
    return bool(first == second)


def bits(tensor: torch.Tensor) -> list[int]:
    if not tensor.numel():
        return []
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@given(states)
def test_any_nested_state_round_trips(state: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_state(state, folder, name="state")
        assert identical(read_state(folder, name="state"), state)


@pytest.mark.parametrize(
    "state",
    [
        {},
        [],
        (),
        None,
        {"empty": {}, "also": [(), []]},
        {0: {"exp_avg": torch.ones(2)}, "0": "a string key beside an integer one"},
        {"nan": float("nan"), "inf": [float("inf"), -float("inf")], "zero": -0.0},
        {"tensor": "the word is not a tensor"},
        {"dict": [["a", 1]]},
        {"half": np.array([0.5, -2.5]), "large": np.array([2**64 - 1], dtype=np.uint64)},
        torch.tensor(3.5),
    ],
    ids=repr,
)
def test_ambiguous_state_structures_round_trip(tmp_path: Path, state: Any) -> None:
    write_state(state, tmp_path, name="state")
    assert identical(read_state(tmp_path, name="state"), state)


def test_minus_zero_keeps_its_sign(tmp_path: Path) -> None:
    write_state(-0.0, tmp_path, name="state")
    assert struct.pack("d", read_state(tmp_path, name="state")) == struct.pack("d", -0.0)


def test_views_and_shared_tensors_round_trip_separately(tmp_path: Path) -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    write_state([whole, whole, whole.T, whole[:, 1]], tmp_path, name="state")
    first, second, turned, column = read_state(tmp_path, name="state")
    assert torch.equal(first, whole)
    assert torch.equal(second, whole)
    assert torch.equal(turned, whole.T)
    assert torch.equal(column, whole[:, 1])


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (object(), "object"),
        ({1, 2}, "set"),
        (b"bytes", "bytes"),
        (1j, "complex"),
        (len, "builtin_function_or_method"),
        (torch.nn.Linear(1, 1), "Linear"),
        (torch.ones(2).to_sparse(), "Tensor"),
        (np.array([None]), "ndarray"),
        (np.zeros(1, dtype=[("a", "i4")]), "ndarray"),
        (np.datetime64("2020-01-01"), "date"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unsupported_state_values_raise_an_error_with_their_position(
    tmp_path: Path, value: Any, name: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"state\.groups\[1\]\.lr is of type .*{name}"):
        write_state({"groups": [0, {"lr": value}]}, tmp_path, name="state")
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_safetensors_cannot_hold_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="state has a tensor .*complex128"):
        write_state([torch.ones(2, dtype=torch.complex128)], tmp_path, name="state")
    assert list(tmp_path.iterdir()) == []


def test_keys_that_json_would_change_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state has a key \(1, 2\)"):
        write_state({(1, 2): 0}, tmp_path, name="state")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def remove(path: Path) -> None:
    path.unlink()


def scramble(path: Path) -> None:
    path.write_bytes(b"\xff\x00" * 20)


@pytest.mark.parametrize("harm", [cut, remove, scramble], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_missing_and_damaged_files_give_one_error(
    tmp_path: Path, suffix: str, harm: Callable[[Path], None]
) -> None:
    write_state({"a": torch.ones(4), "b": [1]}, tmp_path, name="state")
    harm(tmp_path / f"state{suffix}")
    with pytest.raises(CheckpointError, match=r"state\.json is (missing|damaged).*another"):
        read_state(tmp_path, name="state")


@pytest.mark.parametrize("content", [{}, {"tensor": "t9"}, {"dict": 3}, {"array": 1}, {"odd": [1]}])
def test_json_of_another_shape_gives_one_error(tmp_path: Path, content: Any) -> None:
    (tmp_path / "state.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"state\.json is damaged"):
        read_state(tmp_path, name="state")
