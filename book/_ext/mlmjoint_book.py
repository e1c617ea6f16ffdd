"""Mend what the theme and extensions get wrong: scripts from elsewhere, roles without sense."""

# (What is written, what it should be): a list may hold only list items, links only inside them;
# a name for machines must not hide the words that are shown.
ROLES = (
    ('role="list" class="citation-list"', 'class="citation-list"'),
    (' aria-label="Toggle hidden content"', ""),
    ('role="doc-biblioentry"', 'role="group" aria-label="Reference"'),
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


def setup(app):
    # After every extension has added its scripts.
    app.connect("html-page-context", mend_page, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
