"""One address: the repository's URL and the release tag, read from pyproject.toml.

A fork changes the one line `Repository = …` there; `make pages` then rewrites the launch buttons
(_config.yml), the first cell of every chapter (Colab), the README's badges and CITATION.cff.
"""

import re
from pathlib import Path

import tomllib

from mlmjoint import files

COLAB = "https://colab.research.google.com"
BINDER = "https://mybinder.org"
BRANCH = "main"
FIRST = "notebooks/01_conditionals.ipynb"  # where the README's badges lead


def project() -> dict:
    path = files.REPOSITORY / "pyproject.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


def url() -> str:
    return project()["urls"]["Repository"].rstrip("/")


def owner_and_name() -> str:
    """The part of the URL that the launch services take: "owner/name"."""
    return "/".join(url().split("/")[-2:])


def tag() -> str:
    """The tag that Colab installs: the package's own version."""
    return f"v{project()['version']}"


def colab(path: str) -> str:
    return f"{COLAB}/github/{owner_and_name()}/blob/{BRANCH}/{path}"


def binder(path: str) -> str:
    return f"{BINDER}/v2/gh/{owner_and_name()}/{BRANCH}?urlpath=lab/tree/{path}"


def badges() -> list[str]:
    """The badges at the top of the README."""
    tests = f"{url()}/actions/workflows/test.yml"
    rows = (
        ("tests", f"{tests}/badge.svg", tests),
        ("Open in Colab", f"{COLAB}/assets/colab-badge.svg", colab(FIRST)),
        ("Open in Binder", f"{BINDER}/badge_logo.svg", binder(FIRST)),
    )
    return [*(f"[![{name}]({image})]({link})" for name, image, link in rows), ""]


def chapter(before: str) -> str:
    """A notebook, as text or as JSON, with the repository and the tag of its cells renewed."""
    text = re.sub(r'(repository = \\?")https:[^"\\]+', rf"\g<1>{url()}", before)
    text = re.sub(r"(git\+)https:[^@\s]+@", rf"\g<1>{url()}@", text)
    return re.sub(r"(git\+\S+@)v[0-9][\w.]*", rf"\g<1>{tag()}", text)


def config(before: str) -> str:
    """_config.yml with the repository of the launch buttons renewed."""
    return re.sub(r"^(repository:\n  url: ).*$", rf"\g<1>{url()}", before, flags=re.M)


def citation(before: str) -> str:
    """CITATION.cff with the repository and the version renewed."""
    text = re.sub(r"^(version: ).*$", rf"\g<1>{project()['version']}", before, flags=re.M)
    return re.sub(r"^(repository-code: ).*$", rf'\g<1>"{url()}"', text, flags=re.M)


def makers() -> dict:
    """For each file that names the address, the function that renews its text."""
    root = files.REPOSITORY
    paths = sorted(path for kind in ("md", "ipynb") for path in root.glob(f"notebooks/*.{kind}"))
    named = {str(Path(path).relative_to(root)): chapter for path in paths}
    return {"_config.yml": config, "CITATION.cff": citation, **named}
