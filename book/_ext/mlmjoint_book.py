"""Mend what the theme and extensions get wrong: scripts from elsewhere, roles without sense.

Docstrings name an equation by its label, (eq-ag); on the page that becomes a link to it.
"""

import re

EQUATION = re.compile(r"\((?:book: )?(eq-[a-z]+(?:-[a-z]+)*)\)|\b(eq-[a-z]+(?:-[a-z]+)*)")

# (What is written, what it should be): a list may hold only list items, links only inside them;
# a name for machines must not hide the words that are shown.
ROLES = (
    ('role="list" class="citation-list"', 'class="citation-list"'),
    (' aria-label="Toggle hidden content"', ""),
    ('role="doc-biblioentry"', 'role="group" aria-label="Reference"'),
    # A box that scrolls must be reached by the keyboard.
    (
        'class="pst-scrollable-table-container"',
        'class="pst-scrollable-table-container" tabindex="0"',
    ),
)


def mend_page(app, pagename, templatename, context, doctree):
    # Thebe needs a server elsewhere and declares its constants twice, an error on every page.
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
        # A bar behind a dot, KL(p(·|b) ‖ μ(·|b)), is no substitution.
        line = line.replace("·|", "·\\|")
        # One page holds many docstrings, each with a reference [1] of its own: a list in each.
        line = re.sub(r"^\.\. \[(\d+)\] ", r"\1. ", line)
        # The role prints its own parentheses.
        lines[k] = EQUATION.sub(lambda m: f":eq:`{m[1] or m[2]}`", line)


def hide_constructors(app, what, name, obj, options, signature, returns):
    # What load() and joint() return: nobody calls these classes by hand.
    if name in ("mlmjoint.MLM", "mlmjoint.Joint", "mlmjoint.core.joints.ArnoldGokhale"):
        return "", None
    return None


def setup(app):
    app.connect("autodoc-process-signature", hide_constructors)
    app.connect("autodoc-process-docstring", link_equations)
    # After every extension has added its scripts.
    app.connect("html-page-context", mend_page, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
