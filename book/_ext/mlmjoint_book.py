"""Fixes for the theme and its extensions: scripts from other servers, wrong ARIA roles.

Docstrings name an equation by its label, (eq-ag); on the page this becomes a link to it. Figures
get a twin for dark pages, figures and tables of chapters links to their cells and records, and
equations the definitions of their symbols.
"""

import functools
import os
import re
import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for book.make

from book.make import dark, live, notebooks, provenance, symbols

EQUATION = re.compile(r"\((?:book: )?(eq-[a-z]+(?:-[a-z]+)*)\)|\b(eq-[a-z]+(?:-[a-z]+)*)")

GALLERY = "book/results"  # whose figures are loaded as the reader comes to them

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
        scripts = context["script_files"]
        scripts[:] = [script for script in scripts if not _is(script, "thebe")]
        if app.builder.name == "html" and any(_is(script, "tex-mml-chtml") for script in scripts):
            for name in ("symbols-data.js", "symbols.js"):  # before MathJax starts
                app.builder.add_js_file(name, priority=450, defer="defer")
    body = context.get("body")
    if body:
        for wrong, right in ROLES:
            body = body.replace(wrong, right)
        context["body"] = body


def _is(script, name: str) -> bool:
    attributes = getattr(script, "attributes", {})
    return name in f"{getattr(script, 'filename', script)} {attributes.get('body', '')}".lower()


def add_filter(app):
    # Web fonts draw the theme's icons; the script that draws them as SVG instead weighs 1.5 MB.
    script = re.compile(r"<script [^>]*fontawesome[^>]*></script>")
    filters = app.builder.templates.environment.filters if app.builder.format == "html" else {}
    filters["without_icon_script"] = lambda text: script.sub("", text)


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


def add_dark_figures(app, doctree):
    """Two pictures for each drawn figure, of which the style sheet shows the page's."""
    if app.builder.format != "html":
        return
    folder = Path(app.outdir).parent / "dark"
    folder.mkdir(parents=True, exist_ok=True)
    for image in list(doctree.findall(nodes.image)):
        _, path = app.env.relfn2path(image["uri"], app.env.docname)
        if not path.endswith(".svg") or not Path(path).is_file():
            continue
        twin = folder / Path(path).name
        twin.write_text(dark.recoloured(Path(path).read_text(encoding="utf-8")), encoding="utf-8")
        other = image.copy()
        other["uri"] = "/" + Path(os.path.relpath(twin, app.srcdir)).as_posix()
        other["loading"] = "lazy"  # not loaded while the page is light
        if app.env.docname == GALLERY:
            image["loading"] = "lazy"
        image["classes"] += ["dark-light", "on-light"]
        other["classes"] += ["dark-light", "on-dark"]
        image.parent.insert(image.parent.index(image) + 1, other)


def link_sources(app, doctree, docname):
    """Below every figure and table of a chapter, links to its cell and to its records."""
    chapter = _chapters().get(docname)
    found = provenance.sources(chapter) if chapter and app.builder.format == "html" else {}
    for cell in list(doctree.findall(nodes.container)):
        if source := found.get(cell.get("cell_index")):
            line = nodes.paragraph(classes=["made-by"])
            for text, title, address in source.links(app.config.built_commit):
                line += nodes.reference("", text, refuri=address, reftitle=title, internal=False)
                line += nodes.Text(" ")
            (*_, output) = cell.children
            output += line


@functools.cache
def _chapters() -> dict:
    return {f"notebooks/{one.path.stem}": one for one in notebooks.all_chapters()}


def name_commit(app, config):
    config.built_commit = provenance.commit()


def write_data(app, error):
    """Put the models of the live pages and the definitions of symbols next to their scripts."""
    if error is None and app.builder.name == "html":
        static = Path(app.outdir) / "_static"
        live.write(static / "live")
        (static / "symbols-data.js").write_text(symbols.script(), encoding="utf-8")


def setup(app):
    app.add_config_value("built_commit", "", "html")  # another commit, other links on every page
    app.connect("config-inited", name_commit)
    app.connect("builder-inited", add_filter)
    app.connect("doctree-read", add_dark_figures, priority=400)  # before images are collected
    app.connect("doctree-resolved", link_sources)
    app.connect("autodoc-process-signature", hide_constructors)
    app.connect("autodoc-process-docstring", link_equations)
    # After every extension has added its scripts.
    app.connect("html-page-context", fix_page, priority=900)
    app.connect("build-finished", write_data)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
