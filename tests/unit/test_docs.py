"""The documents: the site is built of them without a warning, their links lead somewhere, what repeats the code is made from it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
import typer

from dbtoll import cli, errors, selfbench, spec
from dbtoll.analysis.checks.catalog import CATALOG
from dbtoll.errors import DbtollError
from tests.support.documents import (
    MARKDOWN,
    Site,
    anchors,
    command_lines,
    documents,
    links,
    program,
    said_in_code,
    structure,
)
from tests.support.program import ROOT

MAKE = "run .dbtoll/venv/bin/python docs/make_reference.py (just reference)"
DOCUMENTS = documents()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """All of it, with every warning an error."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return Site(folder)


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """docs/make_reference.py."""
    return program("make_reference")


# --- links -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere_beside_the_code(document: Path) -> None:
    """As GitHub shows them."""
    for link in links(document):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            assert re.fullmatch(r"https?://[^\s/]+\.[^\s/]+(/\S*)?", link), f"{document} links to {link}"
            continue
        target = Path(os.path.normpath(document.parent / path)) if path else document
        assert (ROOT / target).is_file(), f"{document} links to {link}: there is no such file"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{document} links to {link}: there is no such heading"


def test_links_lead_somewhere_on_the_site(site: Site) -> None:
    broken = [f"{page.relative_to(site.folder)}: {each}" for page in site.pages() for each in site.broken(page)]
    assert not broken, "\n".join(broken)


def test_every_document_is_in_the_navigation(site: Site) -> None:
    start = site.of(Path("README.md"))
    named = {site.resolved(start, target)[0] for target in site.page(start).navigation}
    missing = [str(document) for document in DOCUMENTS if site.of(document) not in named]
    assert not missing, f"mkdocs.yml does not name {', '.join(missing)}"


def test_every_decision_is_listed_in_its_order() -> None:
    folder = ROOT / "docs" / "adr"
    listed = re.findall(r"^\| \[\d{4}\]\((.*?)\)", (folder / "index.md").read_text(), re.MULTILINE)
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


def test_every_picture_and_page_is_shown_or_linked(site: Site) -> None:
    linked = {site.resolved(page, target)[0] for page in site.pages() for _, target in site.page(page).targets}
    kinds = {".png", ".svg", ".jpg", ".webp", ".html"}
    files = [file for file in site.folder.rglob("*") if file.suffix in kinds and "assets" not in file.parts]
    orphans = {str(file.relative_to(site.folder)) for file in files if file not in linked} - {"404.html"}
    assert not orphans


def test_every_picture_of_the_repository_is_on_the_site(site: Site) -> None:
    for picture in (ROOT / "docs/pictures").iterdir():
        assert (site.folder / picture.relative_to(ROOT)).is_file()


# --- commands ------------------------------------------------------------------------------------------------------------------


COMMANDS = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


def options_of(command: str) -> set[str]:
    """All spellings of its options."""
    return {"--help"} | {
        each for parameter in COMMANDS[command].params for each in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_commands_have_options_that_there_are(document: Path) -> None:
    """But for those that CHANGELOG names without `dbtoll`: it tells of options that there were."""
    names = () if document == Path("CHANGELOG.md") else COMMANDS
    for name, *words in command_lines(document, names):
        if name not in COMMANDS or name == "test":  # its words are pytest's
            continue
        given = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
        assert given <= options_of(name), f"{document}: dbtoll {name} {' '.join(words)}"
        if name == "selfbench" and words and words[0] in selfbench.names():
            of_property = {after.partition("=")[0] for word, after in pairwise(words) if word == "-o"}
            assert of_property <= set(selfbench.options(words[0])), f"{document}: selfbench {' '.join(words)}"


def test_commands_are_found_in_documents() -> None:
    """Else the test above would look at nothing."""
    assert sum(1 for document in DOCUMENTS for _ in command_lines(document, ())) > 100
    assert ["reproduce", "--reuse", "RUN"] in list(command_lines(Path("docs/adding/paper.md"), COMMANDS))


def test_what_the_program_says_names_options_that_there_are() -> None:
    """Errors and hints name options, and any text may name a command with them."""
    every = set().union(*map(options_of, COMMANDS))
    wrong, seen = [], 0
    for where, text, is_error in said_in_code():
        for name, words in re.findall(r"\bdbtoll ([a-z]+)((?: [^\s`;,]+)*)", text):
            if name in COMMANDS and name != "test":
                given = set(re.findall(r"(?<!\S)--[a-z][a-z-]+", words))
                seen += len(given)
                wrong += [f"{where}: dbtoll {name} {option}" for option in given - options_of(name)]
        if is_error:
            given = set(re.findall(r"(?<![\w=-])--[a-z][a-z-]+", re.sub(r"\b(?:skopeo|uv) [^;]*", "", text)))
            seen += len(given)
            wrong += [f"{where}: {option}" for option in given - every]
    assert not wrong, "\n".join(wrong)
    assert seen > 50


# --- one reading ---------------------------------------------------------------------------------------------------------------


def test_the_site_reads_a_document_as_it_is_read_beside_the_code(site: Site) -> None:
    """A list that begins without an empty line is one for GitHub alone; a bar in code is escaped for one of them alone."""
    for document in DOCUMENTS:
        article = site.article(document)
        assert article.structure() == structure(document), document
        assert not [text for text in article.code if "\\|" in text], document


# --- what repeats the code -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each.parts[0] == "docs"], ids=str)
def test_generated_parts_are_what_the_code_says(document: Path, maker: ModuleType) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert maker.made_again(text) == text, f"{document} has parts that are made from the code: {MAKE}"


def test_all_that_can_be_generated_is_shown(maker: ModuleType) -> None:
    shown = "".join((ROOT / document).read_text(encoding="utf-8") for document in DOCUMENTS)
    for name in maker.MAKERS:
        assert re.search(rf"^<!-- generated: {name}\b", shown, re.MULTILINE), name


def test_a_generated_table_survives_any_text(maker: ModuleType) -> None:
    odd = "a | b, <c>, *d*, [e](f) and `*g* | <h>`"
    shown = maker.table(("text",), [(maker.prose(odd),)])
    assert "a | b, &lt;c&gt;, *d*, [e](f) and <code>*g* / &lt;h&gt;</code>" in MARKDOWN.render(shown)


def test_the_example_of_a_specification_is_one_and_has_every_key(tmp_path: Path) -> None:
    text, *_ = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/SPEC.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "postgresql.conf").touch()
    (tmp_path / "spec.toml").write_text(text)
    spec.read(tmp_path / "spec.toml", exclusive=True)
    document = tomllib.loads(re.sub(r"(?m)^# (?=\w+ = )", "", text))  # those without a default are there as remarks
    tables = {"": document, "[[arm]]": {key: value for arm in document["arm"] for key, value in arm.items()}}
    of_their_own = ("engine", "workload", "factors", "image", "devices")  # their keys hang on what is chosen
    tables |= {
        f"[{name}]": each for name, each in document.items() if isinstance(each, dict) and name not in of_their_own
    }
    for head, table in tables.items():
        with pytest.raises(DbtollError) as refused:
            spec.parse(f'{head}\nnonsense = 1\n{"" if head == "[[arm]]" else "[[arm]]"}\nstack = "native"\n', "x.toml")
        known = re.search(r"known keys are: (.*)", str(refused.value))
        assert known, refused.value
        missing = set(known[1].split(", ")) - table.keys()
        assert not missing, f"docs/SPEC.md's example lacks {missing} of {head or 'the top'}"


def test_every_exit_code_is_described() -> None:
    kinds = [DbtollError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    used = {kind.exit_code for kind in kinds}
    assert used <= errors.EXIT_CODES.keys()


def test_every_selfbench_with_bounds_is_in_the_overview() -> None:
    text = (ROOT / "docs/CALIBRATION.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text.partition("\n## Overview\n")[2].partition("\n## ")[0], re.MULTILINE)
    listed = [name for row in rows for name in re.findall("`(.*?)`", row)]
    assert len(listed) == len(set(listed))
    assert {name for name in selfbench.names() if selfbench.bounds(name)} <= set(listed) <= set(selfbench.names())


def test_every_check_is_described() -> None:
    makers = {"Gate", "GateRecord", "Check", "CheckRecord", "label", "worst_share", "void_visits"}
    found = set()
    for folder in ("analysis/checks", "runner"):
        for file in (ROOT / "src/dbtoll" / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NAME":
                    found.add(ast.literal_eval(node.value))
                if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in makers:
                    given = [*node.args, *(word.value for word in node.keywords)]
                    texts = [each.value for each in given if isinstance(each, ast.Constant)]
                    found |= {text for text in texts if isinstance(text, str) and re.fullmatch("[a-z_]+", text)}
    assert found == CATALOG.keys()
