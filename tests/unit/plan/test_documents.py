"""Documents in files: what is wrong with one is said with its name, in one line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from undertow.decoding import Decoder, Format
from undertow.errors import PlanError
from undertow.plan.documents import FORMAT, read_document, write_document


class Recipe(msgspec.Struct, frozen=True):
    words: str
    format: int = FORMAT


DECODER: Decoder[Recipe] = Decoder(Recipe, format=Format.JSON)


def accept(recipe: Recipe) -> None: ...


def refuse(recipe: Recipe) -> None:
    raise PlanError("it has no salt")


def write(folder: Path, recipe: Recipe) -> Path:
    write_document(folder / "a.json", "recipe", msgspec.json.encode(recipe))
    return folder / "a.json"


def test_a_written_document_can_be_read_and_ends_with_a_newline(tmp_path: Path) -> None:
    path = write(tmp_path, Recipe("stir"))
    assert path.read_bytes().endswith(b"}\n")
    assert read_document(path, "recipe", DECODER, accept) == Recipe("stir")


def test_a_failed_check_is_reported_with_the_name_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"a\.json is not a recipe of undertow: it has no salt$"):
        read_document(write(tmp_path, Recipe("stir")), "recipe", DECODER, refuse)


def test_a_document_of_another_format_is_not_checked(tmp_path: Path) -> None:
    path = write(tmp_path, Recipe("stir", format=FORMAT + 1))
    with pytest.raises(PlanError, match=f"the recipe .*a.json has format {FORMAT + 1}, not {FORMAT}: make it again"):
        read_document(path, "recipe", DECODER, refuse)


def test_a_folder_is_not_read_and_not_written(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot read the recipe .*: Is a directory$"):
        read_document(tmp_path, "recipe", DECODER, accept)
    with pytest.raises(PlanError, match=r"cannot write the recipe .*: "):
        write_document(tmp_path, "recipe", b"{}")
