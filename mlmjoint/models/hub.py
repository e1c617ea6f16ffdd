"""Files of the Hugging Face hub: downloaded or from its cache, verified, errors in one line."""

import contextlib
import hashlib
import re
import sys
from pathlib import Path

from .. import checks, files
from ..errors import InputError
from .checkpoints import quiet

WANTED = ("*.json", "*.txt", "*.model", "*bpe.codes")  # never *.py: no code of a model is run
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # in order of preference


def model_folder(name: str, revision: str | None) -> tuple[Path, str]:
    """The local folder of a hub model and its commit; from the cache if the hub is out of reach."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    with quiet(bars=sys.stderr.isatty()):
        try:
            info = HfApi().model_info(name, revision=revision, timeout=15)
            safe = any(Path(file.rfilename).match(WEIGHTS[0]) for file in info.siblings or ())
            return _snapshot(name, revision, WEIGHTS[0] if safe else WEIGHTS[1])
        except InputError:
            raise
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:  # or gated
            raise _explain(error, name, revision) from None
        except Exception as error:
            for weights in WEIGHTS:
                with contextlib.suppress(Exception):
                    folder, commit = _snapshot(name, revision, weights, local_files_only=True)
                    if any(folder.glob(weights)):
                        return folder, commit
            raise _explain(error, name, revision) from None


def dataset_file(name: str, revision: str, path: str) -> Path:
    """One file of a dataset at a commit; in the cache already, it needs no network."""
    from huggingface_hub import hf_hub_download

    with quiet(bars=sys.stderr.isatty()):
        try:
            file = Path(hf_hub_download(name, path, repo_type="dataset", revision=revision))
        except Exception as error:
            raise _explain(error, name, revision) from None
    _verify(file, name)
    return file


def _snapshot(name: str, revision: str | None, weights: str, **options) -> tuple[Path, str]:
    """The files of a model that matter, those of ``weights`` included, and their commit."""
    from huggingface_hub import snapshot_download

    patterns = [*WANTED, weights]
    # Subfolders hold exports to other runtimes.
    options |= {"allow_patterns": patterns, "ignore_patterns": ["*/*"]}
    folder = Path(snapshot_download(name, revision=revision, **options))
    for file in folder.iterdir():
        _verify(file, name)
    return folder, folder.name  # the cache names a snapshot after its commit


def _verify(file: Path, name: str) -> None:
    """Compare a file with its hash; the cache names its blobs after what the hub says it is."""
    blob = file.resolve()
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.name):
        return  # a system without symbolic links keeps no blobs
    if len(blob.name) == 64:
        digest = files.sha256(blob)
    else:  # a small file: git's hash of it
        content = blob.read_bytes()
        digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
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
        line = f"{name} is gated; accept its terms on the hub and log in with `hf auth login`"
    elif isinstance(error, errors.RevisionNotFoundError):
        line = f"{name} has no revision {revision!r} on the hub; check the spelling"
    elif isinstance(error, errors.RepositoryNotFoundError):
        line = f"the hub has no public {name!r}; check the spelling, or log in"
    elif status is not None:
        why = "too many requests" if status == 429 else checks.reason(error)
        line = f"the hub answers {status} for {name} ({why}); try later"
    else:
        line = f"cannot get {name!r} from the hub, and it is not in the cache "
        line += f"({checks.reason(error)}); check the network, or give a folder"
    return InputError(line)
