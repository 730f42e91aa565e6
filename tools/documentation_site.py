"""Hooks of MkDocs, which turn the pages that GitHub renders into pages of the site (``make docs``).

Both use the same files. The differences are handled here: pages and pictures outside ``docs/`` that others link to (the
changelog, the READMEs of results) are added to the site under ``repository/``; the marks around measured numbers, which
are comments, are removed; tables and lists may follow a paragraph without an empty line; headings get GitHub's anchors;
long names may break within a line, as they do on GitHub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = "repository"
"""Folder of the site for files that lie outside ``docs/``."""

CODE = re.compile(r"^(```|~~~).*?^\1|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
LONG_NAME = re.compile(r"<code>([\w./:-]{25,})</code>")
BREAK_AFTER = re.compile(r"(::|(?<=\w)[/_.](?=\w))")
BEFORE_BLOCK = re.compile(r"^(?!\s*(?:[-*|>#]|\d+\.|<|$))(?! {2})(.+)\n(?=\||(?:[-*]|\d+\.) )", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that GitHub gives them."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slug
    return config


def slug(heading: str, separator: str = "-") -> str:
    """A heading's anchor: lower case, without punctuation, words joined by hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside ``docs/`` that pages of the site link to, and those that these pages link to in turn."""
    waiting = [ROOT / "docs" / file.src_uri for file in files.documentation_pages()]
    seen = set(waiting)
    while waiting:
        page = waiting.pop()
        for target in linked_files(page):
            if target in seen or not target.is_file() or target.is_relative_to(ROOT / "docs"):
                continue
            seen.add(target)
            files.append(File.generated(config, site_path(target), abs_src_path=str(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def linked_files(page: Path) -> Iterator[Path]:
    """The files of the repository that a page links to."""
    for match in LINK.finditer(CODE.sub("", page.read_text(encoding="utf-8"))):
        if (path := match[2].partition("#")[0]) and not re.match(r"[a-z]+:", path):
            yield Path(os.path.normpath(page.parent / path))


def site_path(path: Path) -> str:
    """The path in the site of a file of the repository."""
    inside = path.is_relative_to(ROOT / "docs")
    return path.relative_to(ROOT / "docs").as_posix() if inside else f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The text of a page in the form that Python-Markdown needs."""
    source = Path(page.file.abs_src_path or "")
    return outside_code(markdown, lambda text: adapt(text, source))


def adapt(text: str, source: Path) -> str:
    """Adapt text that contains no code: remove marks, add empty lines before tables and lists, and change links to the
    site's paths."""
    text = COMMENT.sub("", text)
    text = BEFORE_BLOCK.sub(r"\1\n\n", text)
    here = PurePosixPath(site_path(source)).parent

    def link(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match[2].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        target = Path(os.path.normpath(source.parent / path))
        if not target.is_relative_to(ROOT):
            return match[0]
        return f"{match[1]}{os.path.relpath(site_path(target), here)}{hash_sign}{anchor}{match[3]}"

    return LINK.sub(link, text)


def on_page_content(html: str, **_: Any) -> str:
    """Let long names break after a slash, colon, dot or underscore, so that tables of them fit the page."""
    return LONG_NAME.sub(lambda match: BREAK_AFTER.sub(r"\1<wbr>", match[0]), html)


def outside_code(markdown: str, change: Any) -> str:
    """Apply ``change`` to the text while every piece of code is replaced by a placeholder of one line."""
    pieces: list[str] = []

    def keep(match: re.Match[str]) -> str:
        pieces.append(match[0])
        return f"\x00{len(pieces) - 1}\x00"

    changed: str = change(CODE.sub(keep, markdown))
    return re.sub("\x00(\\d+)\x00", lambda match: pieces[int(match[1])], changed)
