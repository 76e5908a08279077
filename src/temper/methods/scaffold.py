"""Start a method: one file, its reference test and its card, complete and ready to be changed."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path
from string import Template

from temper.errors import SettingError
from temper.methods.declared import known_names

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
IN_A_CLONE = {
    "method": "src/temper/methods/{name}.py",
    "test": "tests/methods/test_{name}.py",
    "card": "docs/methods/{name}.md",
}
SIDE_BY_SIDE = {"method": "{name}.py", "test": "test_{name}.py", "card": "{name}.md"}
# A class of that name would hide what the file itself imports, a module what a folder keeps.
SPOKEN_FOR = {"clean", "field", "iterator", "joint", "method", "method_config", "part", "self"}
SPOKEN_FOR |= {"loss_terms", "stage", "stepper", "setting_error", "reader", "tensor", "term"}
# Keys of the table of settings that a method's own table would hide.
SPOKEN_FOR |= {"name", "preset"}


def new_method(name: str, folder: Path | str = ".") -> list[Path]:
    """Write a method's file, its reference test and its card.

    What is written is a complete method: the clean loss plus a small penalty on the logits. It
    passes its test and the contract tests as it is. Plain sentences mark what to replace.

    Args:
        name: Name on the command line: lower case, words joined by ``_``.
        folder: Root of a clone of Temper, where the files go to their three places; any other
            folder gets them side by side.

    Returns:
        Paths of the method, the test and the card.

    Raises:
        SettingError: If the name is taken or has another form, the folder is not there, or a file
            would be overwritten.
    """
    root = Path(folder)
    if not root.is_dir():
        raise SettingError(f"The folder {root} does not exist. Make it first.")
    clone = (root / "src" / "temper" / "methods" / "registry.py").is_file()
    fault = name_fault(name, alone=not clone)
    if fault:
        raise SettingError(fault)
    places = {
        kind: root / place.format(name=name)
        for kind, place in (IN_A_CLONE if clone else SIDE_BY_SIDE).items()
    }
    there = [str(path) for path in places.values() if path.exists()]
    if there:
        raise SettingError(
            f"{', '.join(there)} exists already and is left as it is. Give another name or folder."
        )
    words = {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "class_name": class_name(name),
    }
    imports = ["from temper.testing import check_method"]
    if clone:
        imports.insert(0, f"from temper.methods.{name} import {class_name(name)}")
    else:
        # Imports of another package stand apart.
        imports += ["", f"from {name} import {class_name(name)}"]
    words["imports"] = "\n".join(imports)
    for kind, path in places.items():
        template = files("temper.methods").joinpath("assets", f"{kind}.txt")
        with path.open("x", encoding="utf-8") as file:
            file.write(Template(template.read_text(encoding="utf-8")).substitute(words))
    return list(places.values())


def class_name(name: str) -> str:
    """Return the name of a method's settings class.

    Example:
        >>> class_name("my_method")
        'MyMethod'
    """
    return "".join(word.capitalize() for word in name.split("_"))


def name_fault(name: str, *, alone: bool) -> str | None:
    """Say what is wrong with the name of a new method.

    Args:
        name: The name.
        alone: Whether its file is a module of its own, outside Temper's package.

    Returns:
        One line, or None where nothing is wrong.

    Example:
        >>> name_fault("MyMethod", alone=True)
        "A method's name is lower case with '_' between words, got 'MyMethod'. Try 'my_method'."
        >>> name_fault("my_method", alone=True)
    """
    if not NAME.fullmatch(name):
        spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name)
        near = re.sub(r"_+", "_", spaced).strip("_").lower()
        guess = f" Try {near!r}." if NAME.fullmatch(near) else ""
        return f"A method's name is lower case with '_' between words, got {name!r}.{guess}"
    alike = [known for known in known_names() if known.replace("_", "") == name.replace("_", "")]
    if alike:
        return f"There is a method {alike[0]!r} already. Give yours a name that sets it apart."
    hides = keyword.iskeyword(name) or name in SPOKEN_FOR
    if alone and not hides:
        hides = name in sys.stdlib_module_names or _importable(name)
    if hides:
        return (
            f"The name {name!r} would hide something that Python or Temper calls so already. Give "
            "the method a name that says what it does."
        )
    return None


def _importable(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None
