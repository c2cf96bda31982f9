# `just --list`; every recipe is one line that you can type yourself.

# formatting, lints, types, import contracts, clippy: what CI checks first
check *words:
    ./dbtoll test tests/tidy.py {{words}}

# all tests, with a real Docker daemon, PostgreSQL and browser in them
test *words:
    ./dbtoll test {{words}}

# put the formatting right
format:
    .dbtoll/venv/bin/ruff format src tests
    .dbtoll/venv/bin/ruff check --fix src tests
    cd agent && cargo fmt

# the wheel, with the agent in it
wheel:
    .dbtoll/venv/bin/python -m build --wheel
