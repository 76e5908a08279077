"""Publish a run on the Hub (`temper.push` and ``temper push``).

Only these files are uploaded: the finished checkpoint, a model card with the scores as metadata,
and the report. Texts of rows are uploaded only on request.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from temper.calibration.files import calibration_files
from temper.checkpoints.checkpoint import Checkpoint
from temper.display.folders import evaluation_fault, evaluation_of
from temper.errors import CheckpointError, HubError, SettingError, one_line
from temper.evaluation.folder import ROWS, TEXTS
from temper.files import disagreements
from temper.report.card import CARD, MARK, CardSources, card
from temper.report.examples import MOST
from temper.report.page import build

PICKLES = (".bin", ".ckpt", ".dill", ".joblib", ".msgpack", ".pickle", ".pkl", ".pt", ".pth")
"""Endings of files that can run code when they are loaded, or have optimizer states."""
TEXTUAL = (".parquet", ".jsonl")
"""Endings of files of a run that are not uploaded as part of it: texts and logs."""
PAGE = "report.html"


@dataclass(frozen=True)
class Pushed:
    """The result of an upload: URLs of the repository and the commit, and the uploaded files.

    ``kept`` are the files of the folder that were not uploaded.
    """

    url: str
    commit: str
    files: tuple[str, ...]
    kept: tuple[str, ...]


def push(
    run: str | Path,
    repo: str,
    *,
    private: bool = False,
    evaluation: str | Path | None = None,
    texts: bool = False,
) -> Pushed:
    """Upload a run to a repository of the Hub, in one commit.

    The token is read only from the environment variable HF_TOKEN, and the Hub's address from
    HF_ENDPOINT if it is set.

    Args:
        run: Folder of a finished run.
        repo: ``OWNER/NAME``, or a name in your account; it is created if it does not exist.
        private: Whether the repository must be private; an existing public one is then an error.
        evaluation: Folder of the evaluation for card and report; None uses the one in the run's
            folder or next to it, if any.
        texts: Whether to upload the evaluated rows with their texts too, and to show examples in
            the report.

    Returns:
        The repository after the upload.

    Raises:
        SettingError: If the repository's name or the token is missing or wrong.
        CheckpointError: If the folder is not a finished run, its files have changed, or one is a
            pickle.
        HubError: If the Hub cannot be reached, or refuses the upload.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    _check_repo(repo)
    token = _token()
    folder = Path(run)
    files = _checkpoint(folder)
    named = None if evaluation is None else Path(evaluation)
    result = _evaluation(folder, named)
    with tempfile.TemporaryDirectory() as made:
        files[CARD] = _card(CardSources(folder, result, name=repo), Path(made))
        files[PAGE] = build(named or folder, Path(made) / PAGE, examples=MOST if texts else 0)
        if texts and result is not None:
            present = [result / name for name in (ROWS, TEXTS) if (result / name).exists()]
            files |= {f"evaluation/{file.name}": file for file in present}
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
        try:
            url = api.create_repo(repo, private=private, exist_ok=True)
            if private and not api.repo_info(url.repo_id).private:
                raise HubError(
                    f"{url} already exists and is public; nothing was uploaded. Leave --private "
                    "out, make it private on its page, or name another repository."
                )
            with warnings.catch_warnings():
                # Warnings about Parquet in a model's repository, and of the Hub's own libraries.
                warnings.simplefilter("ignore")
                commit = api.create_commit(
                    url.repo_id,
                    [CommitOperationAdd(name, str(file)) for name, file in sorted(files.items())],
                    commit_message=f"Upload {folder.resolve().name} with Temper",
                )
        except HubError:
            raise
        except Exception as error:
            message = one_line(str(error).replace(token, "..."))
            raise HubError(
                f"Nothing was uploaded to {repo}: {message or type(error).__name__}"
            ) from error
    kept = {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}
    return Pushed(
        str(url), str(commit.commit_url), tuple(sorted(files)), tuple(sorted(kept - set(files)))
    )


def _check_repo(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise SettingError(
            f"{repo!r} is not a repository name: {error} Pass OWNER/NAME."
        ) from error


def _token() -> str:
    if token := os.environ.get("HF_TOKEN", "").strip():
        return token
    raise SettingError(
        "The environment variable HF_TOKEN is not set, and Temper reads no other token. Create one "
        "with write access on the Hub (Settings, Access Tokens), then: export HF_TOKEN=..."
    )


def _checkpoint(folder: Path) -> dict[str, Path]:
    """Return path in the repository -> file, for the files of a finished checkpoint."""
    record = Checkpoint.of(folder).run
    if record is None:
        raise CheckpointError(
            f"{folder} is not the folder of a run. Pass the --out folder of `temper train`, or a "
            "folder runs/NAME of a comparison."
        )
    if record.get("status", "finished") != "finished":
        raise CheckpointError(
            f"The run in {folder} is not finished (status {record['status']!r}), so it has no "
            "final model to upload. Finish it with the command that started it."
        )
    if "tasks" in record:
        names = ", ".join(str(folder / task["folder"]) for task in record["tasks"].values())
        raise CheckpointError(f"{folder} has a classifier for each task. Push one: {names}.")
    files = (file for file in folder.rglob("*") if file.suffix in PICKLES and file.is_file())
    if pickles := sorted(file.relative_to(folder).as_posix() for file in files):
        raise CheckpointError(
            f"{folder} has {', '.join(pickles)}: a pickle runs code when it is loaded, and "
            "Temper writes none. Move it elsewhere; nothing was uploaded."
        )
    recorded: Mapping[str, str] = record["files"]
    if faults := disagreements(folder, recorded):
        raise CheckpointError(f"Nothing was uploaded. {' '.join(faults)}")
    published = {file for file in recorded if not file.endswith(TEXTUAL)} - {CARD}
    published.update(calibration_files(folder))
    return {file: folder / file for file in published}


def _evaluation(folder: Path, named: Path | None) -> Path | None:
    model = Checkpoint.of(folder)
    if named is None:
        result, fault = evaluation_of(model)
    else:
        result, fault = named, evaluation_fault(named, model)
    if fault:
        raise CheckpointError(fault)
    return result


def _card(sources: CardSources, out: Path) -> Path:
    card_file, made = sources.model / CARD, out / CARD
    if card_file.exists() and MARK not in card_file.read_text(encoding="utf-8"):
        return card_file
    made.write_text(card(sources), encoding="utf-8", newline="\n")
    return made
