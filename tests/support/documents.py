"""What stands in the documents and in the site that is built of them: links, anchors, structure."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token

from dbtoll import errors
from tests.support.program import ROOT

MARKDOWN = MarkdownIt("commonmark").enable("table")
"""As GitHub reads it, as far as these documents go."""

STRUCTURE = ("h1", "h2", "h3", "h4", "ul", "ol", "li", "table", "tr", "pre", "blockquote", "img", "em", "strong")
LINKING = {"a": "href", "link": "href", "img": "src", "script": "src", "iframe": "src", "source": "src"}


def program(name: str) -> ModuleType:
    """One of docs/*.py, which make parts of the documents."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"docs/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def documents() -> list[Path]:
    """Every Markdown file of the repository, from its root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [Path(line) for line in listed.splitlines() if (ROOT / line).is_file()]


def command_lines(document: Path, names: Collection[str]) -> Iterator[list[str]]:
    """Words after ``dbtoll`` of each command that is shown as one: in code within a line, or in a block from a line's beginning.

    Also of those that are shown within a line without ``dbtoll`` before them: one of ``names`` and an option.
    """
    bare = rf"(?:{'|'.join(names)}) (?:.* )?-.*"
    for token in _flat(MARKDOWN.parse((ROOT / document).read_text(encoding="utf-8"))):
        if token.type in {"code_inline", "fence"}:
            text = token.content.replace("\\\n", " ")
            lines = re.findall(r"^(?:\$ )?(?:sudo )?(?:\./)?dbtoll (.*)$", text, re.MULTILINE)
            if token.type == "code_inline" and re.fullmatch(bare, text):
                lines.append(text)
            for line in lines:
                with suppress(ValueError):  # half a quotation: it is cut
                    yield [word.strip("[]") for word in shlex.split(line, comments=True)]


def said_in_code() -> Iterator[tuple[str, str, bool]]:
    """Of the Python program: where it stands, a text that is no docstring (what is put into it left out), and whether it is what an
    error says."""
    for file in sorted((ROOT / "src/dbtoll").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        errors = {
            id(text)
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and _names_an_error(node.func)
            for argument in (*node.args, *(word.value for word in node.keywords))
            for text in ast.walk(argument)
        }
        within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in within | documented:
                text = node.value
            else:
                continue
            yield f"{file.relative_to(ROOT)}:{node.lineno}", text, id(node) in errors


def _names_an_error(called: ast.expr) -> bool:
    """By name: one of ours, or what makes one (`spec`)."""
    name = getattr(called, "id", getattr(called, "attr", ""))
    return isinstance(getattr(errors, name, None), type) or name in ("error", "fault") or name.endswith("Error")


# --- as GitHub shows them ------------------------------------------------------------------------------------------------------


def links(document: Path) -> Iterator[str]:
    """Targets of its links and pictures."""
    for token in _flat(MARKDOWN.parse((ROOT / document).read_text(encoding="utf-8"))):
        target = token.attrs.get("href", token.attrs.get("src"))
        if target is not None:
            yield str(target)


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    tokens = MARKDOWN.parse((ROOT / document).read_text(encoding="utf-8"))
    for before, token in pairwise(tokens):
        if before.type == "heading_open":
            text = "".join(part.content for part in token.children or () if part.type in ("text", "code_inline"))
            name = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return found


def structure(document: Path) -> dict[str, int]:
    """How many there are of each of STRUCTURE."""
    page = Page()
    page.feed(MARKDOWN.render((ROOT / document).read_text(encoding="utf-8")))
    return page.structure()


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


# --- as the site shows them ----------------------------------------------------------------------------------------------------


@dataclass
class Page(HTMLParser):
    """One page of HTML: ``targets``: (element, target) of what it links to or fetches, ``ids``: where a link can lead to."""

    targets: list[tuple[str, str]] = field(default_factory=list)
    navigation: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    elements: Counter[str] = field(default_factory=Counter)
    code: list[str] = field(default_factory=list)
    within: list[str] = field(default_factory=list)
    """Elements that are open and of which something has to be known."""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See HTMLParser."""
        given = dict(attrs)
        self.elements[tag] += 1
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if target := given.get(LINKING.get(tag, "")):
            self.targets.append((tag, target))
            if "md-nav__link" in (given.get("class") or ""):
                self.navigation.append(target)
        if tag in ("pre", "code"):
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """See HTMLParser."""
        if tag in ("pre", "code"):
            self.within.remove(tag)

    def handle_data(self, data: str) -> None:
        """See HTMLParser."""
        if self.within == ["code"]:
            self.code.append(data)

    def structure(self) -> dict[str, int]:
        """How many there are of each of STRUCTURE."""
        return {tag: self.elements[tag] for tag in STRUCTURE}


class Site:
    """A folder of files; a page is parsed when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pages: dict[Path, Page] = {}

    def pages(self) -> list[Path]:
        """All of HTML."""
        return sorted(self.folder.rglob("*.html"))

    def page(self, path: Path) -> Page:
        """Parsed."""
        if path not in self._pages:
            self._pages[path] = Page()
            self._pages[path].feed(path.read_text(encoding="utf-8"))
        return self._pages[path]

    def article(self, document: Path) -> Page:
        """What the site makes of a document, without what is around it."""
        text = self.of(document).read_text(encoding="utf-8")
        page = Page()
        page.feed(text.partition("<article")[2].partition("</article>")[0])
        return page

    def of(self, document: Path) -> Path:
        """Where the page of a document lies."""
        stem = "index" if document.stem == "README" else document.stem
        return self.folder / document.parent / f"{stem}.html"

    def resolved(self, page: Path, target: str) -> tuple[Path, str]:
        """File and anchor that a link of a page leads to; one that begins with a stroke leads from the site's root."""
        parts = urlsplit(target)
        path = unquote(parts.path)
        base = self.folder if path.startswith("/") else page.parent
        file = (base / path.lstrip("/")).resolve() if path else page
        return (file / "index.html" if file.is_dir() and path.startswith("/") else file), unquote(parts.fragment)

    def broken(self, page: Path) -> Iterator[str]:
        """What is wrong with the links of a page, in words."""
        for element, target in self.page(page).targets:
            parts = urlsplit(target)
            if parts.scheme in ("http", "https"):
                if element != "a" or not parts.netloc or re.search(r"\s", target):
                    yield f"<{element}> {target}: fetched from elsewhere, or no address"
            elif parts.scheme == "data":
                continue
            elif parts.scheme:
                yield f"{target}: nobody follows that"
            else:
                file, anchor = self.resolved(page, target)
                if not file.is_file():
                    yield f"{target}: there is no such file"
                elif anchor and file.suffix == ".html" and anchor not in self.page(file).ids:
                    yield f"{target}: there is no such place"
