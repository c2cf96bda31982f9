"""The text of a specification is data: no part of it comes to a shell."""

from __future__ import annotations

from pathlib import Path

from tests.support.program import dbtoll
from tests.system.test_bad_input import SPEC

SMALL = '[workload]\nname = "tpch"\nscale = 0.01\nqueries = ["Q6"]\n'


def test_a_specification_does_not_reach_a_shell(tmp_path: Path) -> None:
    """Text of a specification that would run a command if any part of it came to a shell."""
    mark = tmp_path / "reached"
    evil = f"$(touch {mark}); `touch {mark}`; ' ; touch {mark} ; '"
    for spec in (
        f'question = "{evil}"\n' + SPEC,
        SPEC + f'[[arm]]\nname = "b"\nstack = "docker:runtime={evil}"\n',
        SPEC.replace('"noop"', f'"{evil}"'),
        f'[image]\npath = "{evil}"\n' + SPEC,
        f'[engine]\nname = "postgres"\nsettings = {{ work_mem = "{evil}" }}\n[[arm]]\nstack = "native"\n{SMALL}',
    ):
        file = tmp_path / "spec.toml"
        file.write_text(spec)
        done = dbtoll("run", str(file), "--budget", "1s", "--runs-dir", str(tmp_path / "runs"))
        assert "Traceback" not in done.stderr
        assert "defect" not in done.stderr, done.stderr
        assert not mark.exists()
