"""Griffe extension: docstrings as Markdown, for the API reference (``make docs``).

Docstrings here are plain text with a few marks of reStructuredText. References such as ``:class:`fedgap.Run``` become
code, examples (``>>>``) become code blocks, and the colon pair before an indented block becomes one colon.
"""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([^`]+)`")
EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?!\s*$|:param|>>> ).*\n)*\n?)+", re.MULTILINE)


class DocstringMarkdown(griffe.Extension):
    """Griffe extension that rewrites every docstring as Markdown when it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the object's docstring in place."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """The docstring as Markdown.

    >>> as_markdown("See :class:`fedgap.Run`, for example::")
    'See `fedgap.Run`, for example:'
    """
    text = ROLE.sub(r"`\1`", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    text = re.sub(r"([.;,]) +(?=:param )", r"\1\n", text)  # a parameter's description may begin amid a line
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0].strip()}\n```\n\n", text + "\n").strip()
