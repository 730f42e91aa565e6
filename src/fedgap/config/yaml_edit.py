"""Change values in a YAML text that a person wrote, and keep its comments and its layout."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from fedgap.config.yaml_files import flow_text, is_listing, parse, to_yaml, yaml_lines
from fedgap.errors import InputError


def edit_yaml(text: str, document: Mapping[str, Any]) -> str:
    """Return ``text`` changed so that it means ``document``. Comments and lines that need no change stay as they are.

    Top-level keys and the keys of sections one level below are changed, added or removed one by one. If the text is
    written in a way that cannot be changed like this (one flow mapping, merge keys), the result is newly written YAML
    without comments.
    """
    tree = yaml.compose(text, Loader=yaml.SafeLoader)
    if isinstance(tree, yaml.MappingNode) and not tree.flow_style:
        edits = _edits(text, tree, parse(text, "text"), document)
        result = text.rstrip("\n") + "\n"
        for start, end, replacement in sorted(edits, reverse=True):
            result = result[:start] + replacement + result[end:]
        with suppress(InputError):
            if parse(result, "text") == document:
                return result
    return to_yaml(document)


def _edits(
    text: str, tree: yaml.MappingNode, written: Mapping[str, Any], wanted: Mapping[str, Any]
) -> list[tuple[int, int, str]]:
    """Return the replacements ``(start, end, text)`` in ``text`` that turn the mapping ``written`` into ``wanted``.

    :param tree: the node of that mapping.
    """
    edits: list[tuple[int, int, str]] = []
    first, last = tree.value[0][0], _end(tree)
    for key_node, node in tree.value:
        key, line_end = key_node.value, _line_end(text, key_node.end_mark.index)
        if key not in wanted:
            edits.append((_line_start(text, key_node.start_mark.index), _line_end(text, _end(node)) + 1, ""))
            continue
        value = wanted[key]
        if value == written.get(key):
            continue
        if isinstance(value, Mapping) and isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
            edits += _edits(text, node, written[key], value)
        elif is_listing(value):
            start = node.start_mark.index
            if not text[_line_start(text, start) : start].strip():
                start = _line_start(text, start) - 1  # the value begins on a line of its own
            lines = "".join(f"\n  - {flow_text(item)}" for item in value)
            if start >= line_end:
                edits.append((start, _end(node), lines))
            else:
                edits += [(start, min(_end(node), line_end), ""), (line_end, max(_end(node), line_end), lines)]
        else:
            edits.append((node.start_mark.index, _end(node), flow_text(value)))
    indent = " " * first.start_mark.column
    added = [line for key, value in wanted.items() if key not in written for line in yaml_lines({key: value}, indent)]
    if added:
        at = _line_end(text, last)
        edits.append((at, at, "".join(f"\n{line}" for line in added)))
    return edits


def _end(node: yaml.Node) -> int:
    """Return the position after a node's last character. PyYAML's ``end_mark`` of a block also covers comments after
    it.
    """
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return int(node.end_mark.index)


def _line_start(text: str, index: int) -> int:
    return text.rfind("\n", 0, index) + 1


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text.rstrip("\n")) if end < 0 else end


def comment_above(text: str, key: str, comments: Sequence[str]) -> str:
    """Return ``text`` with ``comments`` above a top-level ``key``, in place of comments there that begin alike."""
    lines = text.split("\n")
    at = next(number for number, line in enumerate(lines) if re.match(rf"[\"']?{key}[\"']?\s*:", line))
    start = " ".join(comments[0].split()[:4])
    above = at
    while above and lines[above - 1].startswith("#"):
        above -= 1
        if lines[above].startswith(f"# {start}"):
            del lines[above:at]
            at = above
            break
    return "\n".join([*lines[:at], *(f"# {comment}" for comment in comments), *lines[at:]])
