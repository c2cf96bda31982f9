"""Other drivers of TPC-C that a machine may have: how each is told to load and to run, and how its output is read.

None of them is part of dbtoll. Each keeps to its own schema and its own statements; all get the same server, as many warehouses and
connections, no think time, read committed and no foreign keys, as far as they can be told so.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dbtoll.errors import DbtollError
from dbtoll.model.machine import Address


@dataclass(frozen=True, slots=True)
class Job:
    """What a peer works on: a server on loopback TCP, a size, and a folder for its files."""

    address: Address
    warehouses: int
    connections: int
    seconds: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Command:
    """A program of a peer."""

    argv: Sequence[str]
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Count:
    """What a peer says of its run: transactions in all, for its CPU time; and those in a second by its own measure."""

    transactions: int
    per_s: float


class Peer(ABC):
    """``orders``: a query that counts all orders there have ever been; None where the workload has none."""

    name: str
    orders: str | None = "SELECT sum(d_next_o_id) FROM district"

    @abstractmethod
    def missing(self) -> str | None:
        """Why it cannot be run here; None if it can."""

    @abstractmethod
    def load(self, job: Job) -> Command:
        """Schema, rows, indexes."""

    @abstractmethod
    def run(self, job: Job) -> Command: ...

    @abstractmethod
    def read(self, output: str) -> Count:
        """Raises DbtollError if it did not end as it should."""


class BenchBase(Peer):
    """A folder with benchbase.jar, and a Java that is new enough for it."""

    name = "benchbase"

    def __init__(self, folder: str, java: str) -> None:
        self._folder, self._java = folder, java

    def missing(self) -> str | None:
        if not self._folder:
            return "no folder is given (-o benchbase=DIR)"
        if not (Path(self._folder) / "benchbase.jar").is_file():
            return f"{self._folder} has no benchbase.jar"
        return None if shutil.which(self._java) else f"there is no {self._java}"

    def load(self, job: Job) -> Command:
        return self._command(job, "--create=true", "--load=true", "--execute=false")

    def run(self, job: Job) -> Command:
        return self._command(job, "--create=false", "--load=false", "--execute=true")

    def _command(self, job: Job, *what: str) -> Command:
        config = job.folder / "benchbase.xml"
        config.write_text(self._config(job), encoding="utf-8")
        argv = [self._java, "-jar", "benchbase.jar", "-b", "tpcc", "-c", str(config), "-d", str(job.folder / "results")]
        return Command([*argv, *what], cwd=self._folder)

    def _config(self, job: Job) -> str:
        host, port = job.address.tcp or ("", 0)
        url = f"jdbc:postgresql://{host}:{port}/{job.address.database}?sslmode=disable&amp;reWriteBatchedInserts=true"
        kinds = ("NewOrder", "Payment", "OrderStatus", "Delivery", "StockLevel")
        types = "".join(f"<transactiontype><name>{kind}</name></transactiontype>" for kind in kinds)
        return (
            "<parameters><type>POSTGRES</type><driver>org.postgresql.Driver</driver>"
            f"<url>{url}</url><username>{job.address.user}</username><password>{job.address.password}</password>"
            "<isolation>TRANSACTION_READ_COMMITTED</isolation><batchsize>128</batchsize>"
            f"<scalefactor>{job.warehouses}</scalefactor><terminals>{job.connections}</terminals>"
            f"<works><work><time>{job.seconds}</time><rate>unlimited</rate><weights>45,43,4,4,4</weights></work></works>"
            f"<transactiontypes>{types}</transactiontypes></parameters>"
        )

    def read(self, output: str) -> Count:
        # Orders that are rolled back as specified are its aborted transactions.
        count = sum(sum(map(int, re.findall(r"\[ *(\d+)\] ", part))) for part in _parts(output, "Completed", "Aborted"))
        return _count(self.name, output, count, r"= ([\d.]+) requests/sec \(throughput\)")


def _parts(output: str, *words: str) -> list[str]:
    found = [re.search(rf"{word} Transactions:(.*?)(?:\n\s*\n|\Z)", output, re.DOTALL) for word in words]
    return [match[1] for match in found if match]


class GoTpc(Peer):
    """The program go-tpc."""

    name = "go-tpc"

    def __init__(self, program: str) -> None:
        self._program = program

    def missing(self) -> str | None:
        return None if shutil.which(self._program) else f"there is no {self._program} (-o go_tpc=PATH)"

    def load(self, job: Job) -> Command:
        return self._command(job, "prepare", "--no-check")

    def run(self, job: Job) -> Command:
        return self._command(job, "run", "--time", f"{job.seconds}s")

    def _command(self, job: Job, *what: str) -> Command:
        address = job.address
        host, port = address.tcp or ("", 0)
        argv = [self._program, "tpcc", *what, "-d", "postgres", "-H", host, "-P", str(port), "-D", address.database]
        argv += ["-U", address.user, "-p", str(address.password), "--conn-params", "sslmode=disable"]
        argv += ["--warehouses", str(job.warehouses), "-T", str(job.connections)]
        return Command(argv, cwd=str(job.folder))

    def read(self, output: str) -> Count:
        # NEW_ORDER_ERR and its like are what failed.
        summaries = re.findall(r"\[Summary\] [A-Z_]+(?<!_ERR) - Takes\(s\): ([\d.]+), Count: (\d+)", output)
        count = sum(int(number) for _, number in summaries)
        seconds = max((float(took) for took, _ in summaries), default=0.0)
        if not count or not seconds:
            raise DbtollError(f"{self.name} did not say what it did: {output[-300:]}")
        return Count(count, count / seconds)


class SysbenchTpcc(Peer):
    """The program sysbench with the scripts of sysbench-tpcc."""

    name = "sysbench-tpcc"
    orders = "SELECT sum(d_next_o_id) FROM district1"

    def __init__(self, program: str, folder: str) -> None:
        self._program, self._folder = program, folder

    def missing(self) -> str | None:
        if not self._folder:
            return "no folder is given (-o sysbench_tpcc=DIR)"
        if not (Path(self._folder) / "tpcc.lua").is_file():
            return f"{self._folder} has no tpcc.lua"
        return None if shutil.which(self._program) else f"there is no {self._program} (-o sysbench=PATH)"

    def load(self, job: Job) -> Command:
        return self._command(job, "prepare")

    def run(self, job: Job) -> Command:
        return self._command(job, "run")

    def _command(self, job: Job, what: str) -> Command:
        address = job.address
        host, port = address.tcp or ("", 0)
        argv = [self._program, "./tpcc.lua", "--db-driver=pgsql", f"--pgsql-host={host}", f"--pgsql-port={port}"]
        argv += [
            f"--pgsql-user={address.user}",
            f"--pgsql-password={address.password}",
            f"--pgsql-db={address.database}",
        ]
        argv += ["--tables=1", f"--scale={job.warehouses}", f"--threads={job.connections}", f"--time={job.seconds}"]
        return Command([*argv, "--use_fk=0", "--trx_level=RC", what], cwd=self._folder)

    def read(self, output: str) -> Count:
        count = re.search(r"transactions:\s+(\d+)", output)
        return _count(self.name, output, int(count[1]) if count else 0, r"transactions:\s+\d+\s+\(([\d.]+) per sec\.\)")


class Pgbench(Peer):
    """Its own workload, derived from TPC-B, with prepared statements: seven to a transaction. For scale only."""

    name = "pgbench"
    orders = None

    def __init__(self, program: str) -> None:
        self._program = program

    def missing(self) -> str | None:
        return None if shutil.which(self._program) else f"there is no {self._program} (-o pgbench=PATH)"

    def load(self, job: Job) -> Command:
        return self._command(job, "-i", "-s", str(job.warehouses))

    def run(self, job: Job) -> Command:
        return self._command(job, "-n", "-M", "prepared", "-c", str(job.connections), "-T", str(job.seconds))

    def _command(self, job: Job, *what: str) -> Command:
        address = job.address
        host, port = address.tcp or ("", 0)
        argv = [self._program, "-h", host, "-p", str(port), "-U", address.user, *what, address.database]
        return Command(argv, env={"PGPASSWORD": str(address.password)})

    def read(self, output: str) -> Count:
        count = re.search(r"transactions actually processed: (\d+)", output)
        return _count(self.name, output, int(count[1]) if count else 0, r"tps = ([\d.]+)")


def _count(name: str, output: str, transactions: int, rate: str) -> Count:
    per_s = re.search(rate, output)
    if not transactions or per_s is None:
        raise DbtollError(f"{name} did not say what it did: {output[-300:]}")
    return Count(transactions, float(per_s[1]))
