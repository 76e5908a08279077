"""How griffe, which reads the package for the site, is told what Temper's docstrings mean."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

BASE = "pydantic.BaseModel"


class Docstrings(griffe.Extension):
    """Show examples as code, and pydantic's models with the fields that make them up."""

    def on_package(self, *, pkg: griffe.Module, **rest: Any) -> None:
        """Go through a package once all of it is read."""
        self.read(pkg)

    def read(self, parent: griffe.Module | griffe.Class) -> None:
        """Go through a module or a class."""
        for member in [parent, *parent.members.values()]:
            if not member.is_alias and member.docstring is not None:
                text = re.sub(
                    r"^Example:$", "Examples:", member.docstring.value, flags=re.MULTILINE
                )
                # A colon doubled is a block of code to Sphinx, and nothing to Markdown.
                member.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
        for member in list(parent.members.values()):
            if isinstance(member, griffe.Module | griffe.Class):
                self.read(member)
        if isinstance(parent, griffe.Class):
            lineage = [*reversed(parent.mro()), parent]
            bases = [base for cls in lineage for base in cls.bases]
            if BASE in [getattr(base, "canonical_path", "") for base in bases]:
                parent.set_member("__init__", made_from(lineage))
                if parent.docstring is not None:
                    parent.docstring.value += described(lineage)


def made_from(lineage: list[griffe.Class]) -> griffe.Function:
    """Return the ``__init__`` of the last class: the fields of all, by keyword."""
    fields: dict[str, griffe.Parameter] = {}
    for cls in lineage:
        for name, member in cls.members.items():
            if not isinstance(member, griffe.Attribute) or name.startswith("_"):
                continue
            if member.annotation is not None and "instance-attribute" in member.labels:
                fields[name] = griffe.Parameter(
                    name,
                    annotation=member.annotation,
                    kind=griffe.ParameterKind.keyword_only,
                    default=default(member.value),
                )
    first = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
    parameters = griffe.Parameters(first, *fields.values())
    return griffe.Function("__init__", parent=lineage[-1], parameters=parameters)


def described(lineage: list[griffe.Class]) -> str:
    """Return the section ``Args`` of a model: ``Field(description=...)`` of its fields."""
    texts: dict[str, str] = {}
    for cls in lineage:
        for name, member in cls.members.items():
            value = member.value if isinstance(member, griffe.Attribute) else None
            if isinstance(value, griffe.ExprCall) and str(value.function) == "Field":
                for argument in value.arguments:
                    if isinstance(argument, griffe.ExprKeyword) and argument.name == "description":
                        texts[name] = ast.literal_eval(str(argument.value))
    lines = [f"    {name}: {text}" for name, text in texts.items()]
    return "\n".join(["\n\nArgs:", *lines]) if lines else ""


def default(value: Any) -> Any:
    """Return what a field is where nothing is given: ``Field(default=2, ge=2)`` is 2."""
    if not isinstance(value, griffe.ExprCall) or str(value.function) != "Field":
        return value
    for argument in value.arguments:
        if not isinstance(argument, griffe.ExprKeyword):
            return argument
        if argument.name == "default":
            return argument.value
        if argument.name == "default_factory":
            return griffe.ExprCall(function=argument.value, arguments=[])
    return None
