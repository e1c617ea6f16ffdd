"""book/commands.md: the help of every command, as the program prints it."""

import os

from mlmjoint.cli.main import GROUPS, build_parser

from .markdown import header, join

INTRO = """\
# The command line

This is the output of `mlmjoint COMMAND --help`. Everything the commands do is also available in
Python: see the [API](api.md).
"""
WIDTH = "78"  # columns that fit on a page


def page(_: str) -> str:
    """The whole page."""
    lines = [*header("commands"), INTRO]
    for group, commands in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in commands:
            text = help_of(name)
            lines += [f"(command-{name})=", f"### mlmjoint {name}", "", "```text", text, "```", ""]
    return join(lines)


def help_of(name: str) -> str:
    """The help of one command, at the same width on every terminal."""
    before = {key: os.environ.get(key) for key in ("COLUMNS", "NO_COLOR")}
    os.environ |= {"COLUMNS": WIDTH, "NO_COLOR": "1"}
    try:
        (commands,) = build_parser(name)._subparsers._group_actions
        return commands.choices[name].format_help().strip()
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value
