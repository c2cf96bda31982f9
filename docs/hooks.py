"""The site's tree is the repository's, so that a link between two documents is the same on the site and beside the code.

MkDocs reads one folder, docs/, and takes it for the root. Here its files get their place in the repository back, and the
documents outside of it that the navigation names (README.md, ARCHITECTURE.md …) join them. A folder in the navigation
(`docs/adr/`) stands for its pages, so that a page that is added there needs no line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation with the pages of its folders."""
    config.nav = expanded(config.nav, Path(config.config_file_path).parent)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """All files of docs/ and all pages of the navigation, by their paths in the repository; the theme's stay as they are."""
    root, docs = Path(config.config_file_path).parent, Path(config.docs_dir)
    ours = {(docs / file.src_uri).relative_to(root).as_posix() for file in files if file.src_dir == config.docs_dir}
    named = {path for path in pages(config.nav) if (root / path).is_file()}  # MkDocs warns of the others
    theirs = [file for file in files if file.src_dir != config.docs_dir]
    placed = [File.generated(config, path, abs_src_path=str(root / path)) for path in sorted(ours | named)]
    return Files([*theirs, *placed])


def expanded(navigation: Any, root: Path) -> Any:
    """A navigation in which each folder is replaced by its pages, its index first."""
    match navigation:
        case list():
            parts = [expanded(part, root) for part in navigation]
            return [page for part in parts for page in (part if isinstance(part, list) else [part])]
        case dict():
            return {title: expanded(part, root) for title, part in navigation.items()}
        case str() if navigation.endswith("/"):
            found = sorted((root / navigation).glob("*.md"), key=lambda page: (page.name != "index.md", page.name))
            return [page.relative_to(root).as_posix() for page in found]
    return navigation


def pages(navigation: Any) -> Iterator[str]:
    """The paths in a navigation, at any depth."""
    if isinstance(navigation, str):
        yield navigation
    else:
        for part in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from pages(part)
