"""Files of the Hugging Face hub: downloaded or from its cache, verified, errors in one line."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import re
import sys
from pathlib import Path

from .. import files
from ..errors import InputError
from .checkpoints import first_line

WANTED = ("*.json", "*.txt", "*.model", "*bpe.codes")  # never *.py: no code of a model is run
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # in order of preference


def model_folder(name: str, revision: str | None) -> tuple[Path, str]:
    """The local folder of a hub model and its commit; from the cache if the hub is out of reach."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    def snapshot(weights: str, offline: bool) -> tuple[Path, str]:
        folder = Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=[*WANTED, weights],
                ignore_patterns=["*/*"],  # subfolders hold exports to other runtimes
                local_files_only=offline,
            )
        )
        for file in folder.iterdir():
            _verify(file, name)
        return folder, folder.name  # the cache names a snapshot after its commit

    with _quiet():
        try:
            info = HfApi().model_info(name, revision=revision, timeout=15)
            listed = [file.rfilename for file in info.siblings or ()]
            safe = fnmatch.filter(listed, WEIGHTS[0])
            return snapshot(WEIGHTS[0] if safe else WEIGHTS[1], offline=False)
        except InputError:
            raise
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:  # or gated
            raise _explain(error, name, revision) from None
        except Exception as error:
            for weights in WEIGHTS:
                with contextlib.suppress(Exception):
                    folder, commit = snapshot(weights, offline=True)
                    if fnmatch.filter(map(str, folder.iterdir()), f"*/{weights}"):
                        return folder, commit
            raise _explain(error, name, revision) from None


def dataset_file(name: str, revision: str, path: str) -> Path:
    """One file of a dataset at a commit; in the cache already, it needs no network."""
    from huggingface_hub import hf_hub_download

    with _quiet():
        try:
            file = Path(hf_hub_download(name, path, repo_type="dataset", revision=revision))
        except Exception as error:
            raise _explain(error, name, revision) from None
        _verify(file, name)
    return file


def _verify(file: Path, name: str) -> None:
    """Compare a file with its hash; the cache names its blobs after what the hub says it is."""
    blob = file.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        digest = files.sha256(blob)
    elif re.fullmatch(r"[0-9a-f]{40}", blob.name):  # a small file: git's hash of it
        content = blob.read_bytes()
        digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    else:
        return  # a system without symbolic links keeps no blobs
    if digest != blob.name:
        blob.unlink()
        file.unlink(missing_ok=True)
        raise InputError(
            f"{file.name} of {name} has hash {digest[:16]}… and the hub lists {blob.name[:16]}…; "
            "it was damaged on its way and has been deleted, try again"
        )


def _explain(error: BaseException, name: str, revision: str | None) -> InputError:
    """What went wrong, in one line: the problem, then the remedy."""
    from huggingface_hub import errors

    while getattr(error, "response", None) is None and error.__cause__ is not None:
        error = error.__cause__
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return InputError(
            f"{name} is gated; accept its terms on the hub and log in with `hf auth login`"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{name} has no revision {revision!r} on the hub; check the spelling")
    if isinstance(error, errors.RepositoryNotFoundError):
        return InputError(f"the hub has no public {name!r}; check the spelling, or log in")
    if status == 429:
        return InputError(f"the hub refuses {name} for now (429, too many requests); try later")
    if status is not None:
        return InputError(f"the hub answers {status} for {name} ({first_line(error)}); try later")
    return InputError(
        f"cannot get {name!r} from the hub, and it is not in the cache ({first_line(error)}); "
        "check the network, or give a folder"
    )


@contextlib.contextmanager
def _quiet():
    """Keep retries and progress bars of huggingface_hub off a stderr that is not a terminal."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    verbosity, bars = logging.get_verbosity(), not are_progress_bars_disabled()
    logging.set_verbosity_error()
    if bars and not sys.stderr.isatty():
        disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            enable_progress_bars()
