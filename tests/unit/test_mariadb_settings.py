"""MariaDB's settings as data: its users' option files, and the one that a server is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dbtoll.engines.mariadb import Engine, configuration
from dbtoll.errors import SpecError
from dbtoll.model.experiment import Resources

FILE = r"""
# a comment
[client]
password = of nobody's concern
[mariadb-10.11]
[mysqld]
innodb_buffer_pool_size = 2G          # with one behind it
Sort-Buffer_Size=4M
  slow_query_log
sql_mode =
; another comment
init_connect = "SET @a = '#1;'"       # quoted
ft_stopword_file='a\tb\\c\sd'
[ server ]
sort_buffer_size = 8M
skip-name-resolve
[mariadb]
datadir = /var/lib/mysql
port = 3307
"""


def values(path: Path, text: str) -> dict[str, str]:
    path.write_text(text)
    return {name: given.value for name, given in configuration.read(path).items()}


def test_a_file_is_read_as_the_server_reads_it(tmp_path: Path) -> None:
    assert values(tmp_path / "my.cnf", FILE) == {
        "innodb-buffer-pool-size": "2G",
        "sort-buffer-size": "8M",
        "slow-query-log": "",
        "sql-mode": configuration.EMPTY,
        "init-connect": "SET @a = '#1;'",
        "ft-stopword-file": "a\tb\\c d",
        "skip-name-resolve": "",
        "datadir": "/var/lib/mysql",
        "port": "3307",
    }


@pytest.mark.parametrize(
    "line",
    ["= 3", "a b", "[open", "a = 'open", '"', "!include", "!includedir nowhere", "!other x", "[mysqld-10.5]\na = 1"],
)
def test_what_it_would_refuse_names_file_and_line(line: str, tmp_path: Path) -> None:
    file = tmp_path / "my.cnf"
    file.write_text(f"[mysqld]\na = 1\n{line}\n")
    with pytest.raises(SpecError, match=rf"^{file}:{3 + line.count(chr(10))}: ") as caught:
        configuration.read(file)
    assert caught.value.hint


def test_a_setting_of_no_group_is_none(tmp_path: Path) -> None:
    (tmp_path / "my.cnf").write_text("a = 1\n")
    with pytest.raises(SpecError, match=r"my\.cnf:1: no group stands before it"):
        configuration.read(tmp_path / "my.cnf")


def test_files_that_it_includes_are_read_in_their_place(tmp_path: Path) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "my.cnf").write_text("[server]\na = 1\nb = 1\n!includedir conf.d\n!include last.cnf\nb = 3\n")
    (tmp_path / "conf.d/2.cnf").write_text("[mysqld]\na = 3\n")
    (tmp_path / "conf.d/1.cnf").write_text("[mysqld]\na = 2\nb = 2\n[mysqldump]\na = 9\n")
    (tmp_path / "conf.d/3.cnf~").write_text("nonsense")
    (tmp_path / "last.cnf").write_text("\n[mariadbd]\nc = 4\n")
    read = configuration.read(tmp_path / "my.cnf")
    assert {name: each.value for name, each in read.items()} == {"a": "3", "b": "3", "c": "4"}
    assert read["c"].where == f"{tmp_path}/last.cnf:3"
    (tmp_path / "last.cnf").write_text("!include my.cnf\n")
    with pytest.raises(SpecError, match="more than 10") as caught:
        configuration.read(tmp_path / "my.cnf")
    assert "circle" in caught.value.hint


def test_a_file_that_is_none(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(SpecError):
            Engine({"settings_file": str(path)})


NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,20}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=60)


@given(st.dictionaries(NAMES, VALUES | st.just(""), max_size=8))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, settings: dict[str, str]) -> None:
    file = tmp_path_factory.getbasetemp() / "written.cnf"
    assert values(file, configuration.write(settings).decode()) == settings


@pytest.mark.parametrize(
    "settings", [{"!include": "1"}, {"a b": "1"}, {"a\nb": "1"}, {"": "1"}, {"a": "\0"}, {"a=b": "1"}]
)
def test_a_setting_cannot_smuggle_another(settings: dict[str, str]) -> None:
    with pytest.raises(SpecError):
        Engine({"settings": settings})


def test_an_arm_waits_for_none_of_its_users_other_servers(tmp_path: Path) -> None:
    cluster = "wsrep_on = ON\nloose-wsrep_cluster_address = gcomm://prod1,prod2\nrpl_semi_sync_master_enabled = ON\n"
    (tmp_path / "my.cnf").write_text(f"[galera]\n{cluster}[mysqld]\n{cluster}sort_buffer_size = 4M\n")
    engine = Engine({"settings_file": str(tmp_path / "my.cnf")})
    assert not [name for name in engine.settings(Resources()) if "wsrep" in name or "rpl" in name]
    assert engine.ignored_settings.keys() == {"wsrep-on", "loose-wsrep-cluster-address", "rpl-semi-sync-master-enabled"}


def test_what_wins(tmp_path: Path) -> None:
    (tmp_path / "my.cnf").write_text(FILE)
    engine = Engine(
        {
            "profile": "modern",
            "settings_file": str(tmp_path / "my.cnf"),
            "settings": {"SORT_BUFFER_SIZE": "16M", "tmpdir": "/x", "collation_server": ""},
        }
    )
    settings = engine.settings(Resources())
    assert settings["innodb-buffer-pool-size"] == "2G"
    assert settings["sort-buffer-size"] == "16M"
    assert settings["collation-server"] == configuration.EMPTY
    assert "innodb-log-file-size" in settings, "of the profile"
    assert not {"datadir", "port", "tmpdir"} & settings.keys()
    assert engine.ignored_settings == {"datadir": "/var/lib/mysql", "port": "3307", "tmpdir": "/x"}
