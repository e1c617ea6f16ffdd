"""Fixes for the theme and its extensions: scripts from other servers, wrong ARIA roles.

Docstrings name an equation by its label, (eq-ag); on the page this becomes a link to it.
"""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for book.make

EQUATION = re.compile(r"\((?:book: )?(eq-[a-z]+(?:-[a-z]+)*)\)|\b(eq-[a-z]+(?:-[a-z]+)*)")

CONSTRUCTED = ("MLM", "Joint", "ArnoldGokhale")  # without a constructor on the API page

# (wrong, right): a list may contain only list items, and links only inside them; an accessible
# name must not hide the visible text.
ROLES = (
    ('role="list" class="citation-list"', 'class="citation-list"'),
    (' aria-label="Toggle hidden content"', ""),
    ('role="doc-biblioentry"', 'role="group" aria-label="Reference"'),
    # A box that scrolls must be reachable by keyboard.
    (
        'class="pst-scrollable-table-container"',
        'class="pst-scrollable-table-container" tabindex="0"',
    ),
)


def fix_page(app, pagename, templatename, context, doctree):
    # Thebe needs an external server and declares its constants twice, an error on every page.
    if "script_files" in context:
        context["script_files"][:] = [s for s in context["script_files"] if not _is_thebe(s)]
    body = context.get("body")
    if body:
        for wrong, right in ROLES:
            body = body.replace(wrong, right)
        context["body"] = body


def _is_thebe(script) -> bool:
    attributes = getattr(script, "attributes", {})
    return "thebe" in f"{getattr(script, 'filename', script)} {attributes.get('body', '')}".lower()


def link_equations(app, what, name, obj, options, lines):
    for k, line in enumerate(lines):
        # A bar after a dot, KL(p(·|b) ‖ μ(·|b)), is not a substitution.
        line = line.replace("·|", "·\\|")
        # One page has many docstrings, each with its own reference [1]: make it a list in each.
        line = re.sub(r"^\.\. \[(\d+)\] ", r"\1. ", line)
        # The role prints its own parentheses.
        lines[k] = EQUATION.sub(lambda m: f":eq:`{m[1] or m[2]}`", line)


def hide_constructors(app, what, name, obj, options, signature, returns):
    # Instances come from load() and joint(): nobody calls these classes directly.
    return ("", None) if what == "class" and obj.__qualname__ in CONSTRUCTED else None


def write_models(app, error):
    """Put the models of the live pages next to their scripts."""
    if error is None and app.builder.name == "html":
        from book.make import live

        live.write(Path(app.outdir) / "_static" / "live")


def setup(app):
    app.connect("autodoc-process-signature", hide_constructors)
    app.connect("autodoc-process-docstring", link_equations)
    # After every extension has added its scripts.
    app.connect("html-page-context", fix_page, priority=900)
    app.connect("build-finished", write_models)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
