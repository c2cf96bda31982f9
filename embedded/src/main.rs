//! `dbtoll-embedded`: see the library's documentation.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use dbtoll_embedded::engine::{Engine, Kind, Options};
use dbtoll_embedded::engines::{self, ENGINES};
use dbtoll_embedded::server::{self, Socket};

const USAGE: &str = "usage: dbtoll-embedded --engine NAME --library PATH [--preload PATH]… \
                     (--version | --database PATH --unix SOCKET [--set NAME=VALUE]…)";

/// What is to be done.
enum Order {
    TellVersion,
    Serve { database: String, socket: PathBuf },
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("dbtoll-embedded: {}", one_line(&text));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let (kind, options, order) = arguments(std::env::args().skip(1))?;
    match order {
        Order::TellVersion => {
            println!("{}", one_line(&(kind.version)(&options)?));
            Ok(())
        }
        Order::Serve { database, socket } => serve(kind, &options, &database, &socket),
    }
}

fn serve(kind: &Kind, options: &Options, database: &str, socket: &Path) -> Result<(), String> {
    // Before the engine's threads begin, which inherit it.
    let signals = server::termination_signals().map_err(|error| format!("no signals: {error}"))?;
    // Some engines write to the standard output, which is not theirs.
    rustix::stdio::dup2_stdout(std::io::stderr()).map_err(|error| format!("no standard error: {error}"))?;
    let engine: Arc<dyn Engine> = Arc::from((kind.open)(options, database)?);
    let served = Socket::bind(socket).and_then(|socket| {
        eprintln!("dbtoll-embedded: {} serves {database}", engine.title());
        server::serve(&engine, &socket, &signals).map_err(|error| format!("cannot serve: {error}"))
    });
    let closed = engine.close().map_err(|error| format!("cannot close {database}: {}", error.message));
    served?;
    closed?;
    eprintln!("dbtoll-embedded: stopped");
    Ok(())
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<(&'static Kind, Options, Order), String> {
    let (mut name, mut library, mut database, mut socket) = (None, None, None, None);
    let mut options = Options::default();
    let mut tells_version = false;
    while let Some(word) = words.next() {
        if word == "--version" {
            tells_version = true;
            continue;
        }
        let is_known = ["--engine", "--library", "--preload", "--database", "--unix", "--set"].contains(&&*word);
        let value = words.next().filter(|_| is_known).ok_or_else(|| format!("{word}: {USAGE}"))?;
        match &*word {
            "--engine" => name = Some(value),
            "--library" => library = Some(value),
            "--preload" => options.preload.push(value.into()),
            "--database" => database = Some(value),
            "--unix" => socket = Some(PathBuf::from(value)),
            _ => {
                let (name, value) = value.split_once('=').ok_or_else(|| format!("--set {value}: not NAME=VALUE"))?;
                options.settings.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    let missing = |option: &str| format!("{option} is missing; {USAGE}");
    let name = name.ok_or_else(|| missing("--engine"))?;
    let kind = engines::named(&name).ok_or_else(|| {
        let known: Vec<&str> = ENGINES.iter().map(|kind| kind.name).collect();
        format!("there is no engine {name:?}; there are {}", known.join(", "))
    })?;
    options.library = library.ok_or_else(|| missing("--library"))?.into();
    let order = if tells_version {
        Order::TellVersion
    } else {
        let database = database.ok_or_else(|| missing("--database"))?;
        Order::Serve { database, socket: socket.ok_or_else(|| missing("--unix"))? }
    };
    Ok((kind, options, order))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
