# `just --list`; every recipe is one line that you can type yourself.

# formatting, lints, types, import contracts, clippy: what CI checks first
check *words:
    ./dbtoll test tests/tidy.py {{words}}

# all tests, with a real Docker daemon, PostgreSQL and browser in them
test *words:
    ./dbtoll test {{words}}

# put the formatting right
format:
    .dbtoll/venv/bin/ruff format src tests docs
    .dbtoll/venv/bin/ruff check --fix src tests docs
    cd agent && cargo fmt

# attacks the agent for so many seconds (target: serve, postgres, mysql, texts); what it learns is kept in agent/fuzz/grown
fuzz target="serve" seconds="60":
    cd agent/fuzz && mkdir -p artifacts grown/{{target}} && nice cargo run --release --locked --target "$(rustc -vV | sed -n 's/^host: //p')" --bin {{target}} -- -max_total_time={{seconds}} -timeout=15 -rss_limit_mb=3000 -malloc_limit_mb=900 -artifact_prefix=artifacts/{{target}}- grown/{{target}} corpus/{{target}}

# the one wheel for every machine, in dist/; the agent of the other architecture needs a cross compiler (it says which packages)
wheel:
    DBTOLL_WHEEL_ARCHITECTURES="x86_64 aarch64" .dbtoll/venv/bin/python -m build --wheel --no-isolation

# the help that the launcher shows where nothing is set up: docs/help/, from the command line program
help:
    .dbtoll/venv/bin/python docs/make_help.py

# the locked Python packages anew, with the hashes of all their files (`just lock --upgrade`: of newer versions); needs uv
lock *words:
    uv pip compile -q --universal --generate-hashes --no-annotate --custom-compile-command "just lock" {{words}} --group build --group test --group docs --group check --group pictures -o requirements/test.txt pyproject.toml
    uv pip compile -q --universal --generate-hashes --no-annotate --custom-compile-command "just lock" {{words}} --group build -c requirements/test.txt -o requirements/main.txt pyproject.toml

# the documents as a site, in site/: open site/index.html
site:
    NO_MKDOCS_2_WARNING=1 .dbtoll/venv/bin/mkdocs build --strict

# the tables in the documents that repeat the code, made again from it
reference:
    .dbtoll/venv/bin/python docs/make_reference.py
