"""A secret is planted in everything that a run is made from, and looked for in everything that comes of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dbtoll import spec
from dbtoll.errors import SpecError
from dbtoll.secretive import HIDDEN, without_secrets
from dbtoll.store.schema import EXPERIMENT_FILE, FACTS_FILE, HISTORY_FILE, REPORT_FILE, RESULT_FILE
from tests.support.program import ROOT, dbtoll, is_root, only_run

SPEC = """
question = "What stays in the run folder?"
parameter_sets = 1
[engine]
name = "postgres"
settings_file = "{place}/postgresql.conf"
[workload]
name = "sql"
directory = "{place}/sql"
[precision]
budget = "20s"
rounds_min = 2
rounds_max = 2
[visit]
lead_in = "1ms"
measurement_time = "5ms"
[resources]
memory = "512 MiB"
[[arm]]
name = "native"
stack = "native"
"""
SECRETS = {
    where: f"hunter2-{where}"
    for where in ("setting", "aside", "command", "statement", "comment", "data", "environment")
}
CONF = f"""
primary_conninfo = 'host=db password={SECRETS["setting"]}'
ssl_key_file = '/etc/{SECRETS["aside"]}/key'
archive_command = 'upload --key {SECRETS["command"]} %p'
work_mem = 8MB
"""


@pytest.mark.skipif(not is_root(), reason="native arms need root")
@pytest.mark.timeout(300)
def test_no_secret_of_any_input_is_in_any_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGPASSWORD", "POSTGRES_PASSWORD", "DBTOLL_TEST_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRETS["environment"])
    (tmp_path / "postgresql.conf").write_text(CONF)
    sql = shutil.copytree(ROOT / "examples" / "sql", tmp_path / "sql")
    with (sql / "load.sql").open("a") as load:  # of this test alone: what is in the cache already was loaded by others
        load.write(
            f"insert into customer values (99999, 'DE', '{SECRETS['data']}', date '2020-01-01');\n-- {tmp_path}\n"
        )
    (sql / "statements" / "secret.sql").write_text(
        f"-- {SECRETS['comment']}\nselect count(*) from customer where name <> '{SECRETS['statement']}';\n"
    )
    (tmp_path / "spec.toml").write_text(SPEC.format(place=tmp_path))
    runs = tmp_path / "runs"
    done = dbtoll("run", str(tmp_path / "spec.toml"), "--runs-dir", str(runs))
    assert done.returncode == 0, done.stderr
    folder = only_run(runs)
    analysed = dbtoll("analyze", str(folder), "--json")

    kept = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {EXPERIMENT_FILE, FACTS_FILE, HISTORY_FILE, RESULT_FILE, REPORT_FILE, "tables/samples.csv"} <= kept.keys()
    assert any(name.startswith("logs/") for name in kept)
    kept["printed"] = "".join((done.stdout, done.stderr, analysed.stdout, analysed.stderr)).encode()
    for where, secret in SECRETS.items():
        assert [name for name, content in kept.items() if secret.encode() in content] == [], where
    assert b"primary_conninfo" in kept[FACTS_FILE]  # by its name it is known
    assert b'"work_mem": "8MB"' in kept[FACTS_FILE]


@pytest.mark.parametrize(
    ("engine", "setting", "hint"),
    [("postgres", "primary_conninfo", "settings_file"), ("postgres", "ssl_passphrase_command", "settings_file"),
     ("mariadb", "ssl_passphrase", "leave it out")],
)  # fmt: skip
def test_a_secret_does_not_belong_into_a_specification(engine: str, setting: str, hint: str) -> None:
    """The run folder and the page hold it as it was given."""
    text = f'[engine]\nname = "{engine}"\n[engine.settings]\n{setting} = "hunter2"\n[[arm]]\nname = "native"\nstack = "native"\n'
    with pytest.raises(SpecError, match=f"the setting {setting} may hold a secret") as error:
        spec.parse(text, "spec.toml")
    assert hint in error.value.hint
    assert "hunter2" not in str(error.value)


def test_what_is_hidden_is_told_by_its_name() -> None:
    facts = {"settings": {"work_mem": "8MB", "primary_conninfo": "x", "ssl_passphrase_command": ""}, "cpus": 2}
    shown = {"settings": {"work_mem": "8MB", "primary_conninfo": HIDDEN, "ssl_passphrase_command": ""}, "cpus": 2}
    assert without_secrets(facts) == shown


@pytest.mark.parametrize(
    "name",
    [
        "myapp.api_key", "anon.salt", "app.jwt", "pg_net.auth", "smtp.pwd", "app.db_url", "wsrep-sst-auth", "init-connect",
        "azure.storage_key", "ldap_bindpw", "some-cloud-key",
    ],
)  # fmt: skip
def test_settings_of_extensions_may_be_secrets_too(name: str) -> None:
    assert without_secrets({"settings": {name: "hunter2", "list": {name: ["hunter2"]}}}) == {
        "settings": {name: HIDDEN, "list": {name: HIDDEN}}
    }


def test_a_password_in_an_address_is_not_shown_whatever_its_name() -> None:
    facts = {"settings": {"app.target": "postgresql://u:hunter2@db/x"}, "seen": ["host=db password=hunter2", "host=db"]}
    assert without_secrets(facts) == {"settings": {"app.target": HIDDEN}, "seen": [HIDDEN, "host=db"]}


def test_what_every_server_has_is_shown() -> None:
    shown = {"authentication_timeout": "1min", "ssl_key_file": "/k", "wal_sync_method": "fsync", "foreign_keys": "yes"}
    assert without_secrets(shown) == shown
