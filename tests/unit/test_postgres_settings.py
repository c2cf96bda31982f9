"""PostgreSQL's settings as data, and the shape of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbtoll.engines.postgres import Engine, configuration, shape
from dbtoll.errors import SpecError
from dbtoll.model.experiment import Resources
from dbtoll.servers.given import Given

FILE = """
# a comment
shared_buffers = 2GB            # with one behind it
Work_Mem 64MB
log_line_prefix = '%m [%p] ''quoted'' # no comment \\'here\\' '
random_page_cost=1.1
effective_io_concurrency = -1
auto_explain.log_min_duration = '250ms'
search_path = '"$user", public'
shared_buffers = '4GB'
	escaped = 'tab\\there \\101'
nothing = ''
path = /var/lib/x_y-z:a.b
"""


def values(settings: dict[str, Given]) -> dict[str, str]:
    return {name: given.value for name, given in settings.items()}


def test_a_file_is_read_as_the_server_reads_it() -> None:
    assert values(configuration.parse(FILE, "f")) == {
        "shared_buffers": "4GB",
        "work_mem": "64MB",
        "log_line_prefix": "%m [%p] 'quoted' # no comment 'here' ",
        "random_page_cost": "1.1",
        "effective_io_concurrency": "-1",
        "auto_explain.log_min_duration": "250ms",
        "search_path": '"$user", public',
        "escaped": "tab\there A",
        "nothing": "",
        "path": "/var/lib/x_y-z:a.b",
    }


@pytest.mark.parametrize(
    "line",
    [
        "= 3",
        "a = 'open",
        "a = b c",
        "a",
        "a == 3",
        "1a = 3",
        "include 'other.conf'",
        "include_dir = 'd'",
        "include",
        "a = $(id)",
    ],
)
def test_what_it_would_refuse_names_file_and_line(line: str) -> None:
    with pytest.raises(SpecError, match=r"^my\.conf:3: ") as caught:
        configuration.parse(f"a = 1\n\n{line}\n", "my.conf")
    assert caught.value.hint


def test_files_that_it_includes_are_read_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "conf.d/inner").mkdir(parents=True)
    (tmp_path / "main.conf").write_text(
        "work_mem = 1MB\njit = on\ninclude 'conf.d/inner/a.conf'\nINCLUDE_DIR = 'conf.d'\n"
        "include_if_exists = 'nowhere.conf'\nport = 7\n"
    )
    (tmp_path / "conf.d/inner/a.conf").write_text("work_mem = 2MB\ninclude = '../../b.conf'\nseq_page_cost = 2\n")
    (tmp_path / "b.conf").write_text("seq_page_cost = 1\nrandom_page_cost = 3\n")
    (tmp_path / "conf.d/2.conf").write_text("jit = off\n")
    (tmp_path / "conf.d/10.conf").write_text("\njit = on\ngeqo = off\n")
    (tmp_path / "conf.d/.hidden.conf").write_text("nonsense")
    (tmp_path / "conf.d/2.conf~").write_text("nonsense")
    read = configuration.read(tmp_path / "main.conf")
    wanted = {
        "work_mem": "2MB",
        "seq_page_cost": "2",
        "random_page_cost": "3",
        "jit": "off",
        "geqo": "off",
        "port": "7",
    }
    assert values(read) == wanted
    assert read["random_page_cost"].where == f"{tmp_path}/conf.d/inner/../../b.conf:2"
    assert read["geqo"].where == f"{tmp_path}/conf.d/10.conf:3"


def test_a_wrong_include_names_the_file_that_includes(tmp_path: Path) -> None:
    (tmp_path / "main.conf").write_text("\ninclude 'next.conf'\n")
    with pytest.raises(SpecError, match=r"main\.conf:2: .*next\.conf"):
        configuration.read(tmp_path / "main.conf")
    (tmp_path / "next.conf").write_text("a b c")
    with pytest.raises(SpecError, match=r"next\.conf:1: "):
        configuration.read(tmp_path / "main.conf")
    (tmp_path / "next.conf").write_text("include 'main.conf'")
    with pytest.raises(SpecError, match="more than 10") as caught:
        configuration.read(tmp_path / "main.conf")
    assert "circle" in caught.value.hint


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SpecError):
            Engine({"settings_file": str(path)})


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,20}(\.[a-z_][a-z0-9_]{0,10})?", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=("Cs",)), max_size=60)


@given(st.dictionaries(NAMES.filter(lambda name: not name.startswith("include")), VALUES, max_size=8))
def test_what_is_written_is_read_again(settings: dict[str, str]) -> None:
    assert values(configuration.parse(configuration.write(settings).decode(), "f")) == settings


@pytest.mark.parametrize(
    "settings", [{"include": "1"}, {"a b": "1"}, {"a": "1\nb = 2"}, {"a\nb": "1"}, {"": "1"}, {"a": "\0"}]
)
def test_a_setting_cannot_smuggle_another(settings: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        Engine({"settings": settings})


@pytest.mark.parametrize("value", [["a"], {"b": 1}, None])
def test_a_value_is_text_or_number(value: Any) -> None:
    with pytest.raises(SpecError, match="work_mem"):
        Engine({"settings": {"work_mem": value}})


def test_what_wins(tmp_path: Path) -> None:
    file = tmp_path / "postgresql.conf"
    file.write_text("shared_buffers = 3GB\nwork_mem = 5MB\ndata_directory = '/var/lib/x'\nautovacuum = on\n")
    options = {"profile": "modern", "settings_file": str(file), "settings": {"WORK_MEM": "7MB", "jit": False}}
    settings = Engine(options).settings(Resources())
    assert settings["shared_buffers"] == "3GB"
    assert settings["work_mem"] == "7MB"
    assert settings["jit"] == "off"
    assert settings["random_page_cost"] == "1.1"
    assert settings["autovacuum"] == "off", "arms sleep"
    assert "data_directory" not in settings
    assert Engine(options).ignored_settings == {"data_directory": "/var/lib/x", "autovacuum": "on"}
    as_set = Engine({**options, "background": "as set"})
    assert as_set.settings(Resources())["autovacuum"] == "on"
    assert as_set.ignored_settings == {"data_directory": "/var/lib/x"}


def test_an_arm_waits_for_none_of_its_users_other_servers(tmp_path: Path) -> None:
    ties = "synchronous_standby_names = '*'\narchive_mode = on\narchive_command = 'cp %p /archive/%f'\n"
    (tmp_path / "postgresql.conf").write_text(f"{ties}wal_level = logical\n")
    engine = Engine({"settings_file": str(tmp_path / "postgresql.conf")})
    assert engine.ignored_settings.keys() == {"synchronous_standby_names", "archive_mode", "archive_command"}
    settings = engine.settings(Resources())
    assert not engine.ignored_settings.keys() & settings.keys()
    assert settings["wal_level"] == "logical", "what it costs is the user's to know"


def test_profiles_follow_the_resources() -> None:
    small, large = Resources(memory_bytes=1 << 30), Resources(memory_bytes=16 << 30, cpus=4)
    for name in configuration.PROFILES:
        engine = Engine({"profile": name})
        assert engine.settings(small)["checkpoint_timeout"] == "1d"
    assert Engine({}).settings(small) == Engine({}).settings(large)
    assert Engine({"profile": "serial"}).settings(small)["shared_buffers"] == "512MB"
    assert Engine({"profile": "modern"}).settings(large)["shared_buffers"] == "4096MB"
    assert Engine({"profile": "modern"}).settings(large)["max_parallel_workers"] == "4"


PLAN = """Limit
  ->  Gather Merge
        Workers Planned: {workers}
        ->  Sort
              Sort Key: (sum(l.price)) DESC, t1.c2
              ->  Index Scan using part_4711_idx on part p_1
                    Index Cond: ((size = {number}) AND (kind = ANY ('{{{many}}}'::text[])) AND (name ~~ '%{text}'))
                    Filter: ((price > '-12.5'::numeric) AND (rate < {rate}) AND (a[2] = $1))"""


def test_literals_do_not_count_in_the_shape_of_a_plan() -> None:
    first = {"workers": 2, "number": 15, "text": "BRASS", "many": "a,b", "rate": "1e-05"}
    other = {"workers": 2, "number": -7, "text": "it''s", "many": "a,b,c", "rate": "0.25"}
    assert shape(PLAN.format(**first)) == shape(PLAN.format(**other))
    assert shape(PLAN.format(**first)) != shape(PLAN.format(**{**first, "workers": 1}))
    assert shape(PLAN.format(**first)) != shape(PLAN.format(**first).replace("part_4711_idx", "part_4712_idx"))
    assert shape(PLAN.format(**first)) != shape(PLAN.format(**first).replace("t1.c2", "t1.c3"))
    assert shape(PLAN.format(**first)) != shape(PLAN.format(**first).replace("$1", "$2"))
