//! The command line.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use dbtoll_agent::address::Address;
use dbtoll_agent::connection::{Ended, WINDOW_BYTES, serve};
use dbtoll_agent::wire::{bare, null};
use dbtoll_agent::{
    children, collect, device, disk, elsewhere, guest, hypervisor, launch, neighbour, probe, tpch, uml,
};

const USAGE: &str = "usage: dbtoll-agent [serve [--unix PATH [--keep] | --device PATH | --own FOLDER SILENCE_S]] | null-server --unix PATH \
    | echo-server ADDRESS [WORK_US] | exchange ADDRESS CONNECTIONS SECONDS (ADDRESS: --unix PATH or --tcp HOST:PORT) \
    | probe REQUEST | neighbour REQUEST | disk REQUEST | disk-exercise REQUEST | calls PID | events PID | tracepoints PID | faults PID | blocks | tpch --table TABLE --scale SCALE [--format tbl|copy] [--part N --parts N] [--output FILE] | uml PROGRAM [ARGUMENT...] | hypervisor | version";

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(|panic| eprintln!("dbtoll-agent: defect: {}", panic.to_string().replace('\n', " "))));
    // The first program of a guest; the kernel passes on words of its command line that it does not know.
    if std::env::args_os().next().is_some_and(|name| name == guest::INIT) {
        guest::init();
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|text| text.to_string_lossy().into_owned()).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["exec-child", socket, agent] => match (socket.parse(), agent.parse()) {
            (Ok(socket), Ok(agent)) => launch::exec_child(socket, agent),
            _ => Err(USAGE.to_owned()),
        },
        [] | ["serve"] => serve_standard_streams(),
        ["serve", "--unix", path] => serve_socket(path, false),
        ["serve", "--unix", path, "--keep"] | ["serve", "--keep", "--unix", path] => serve_socket(path, true),
        ["serve", "--device", path] => serve_device(path),
        ["serve", "--own", folder, silence_s] => serve_elsewhere(folder, silence_s),
        ["serve-and-leave", "--device", path] => guest::leave_after(|| serve_device(path)),
        ["null-server", "--unix", path] => null_server(path),
        ["echo-server", kind, place] => {
            address(kind, place).and_then(|at| bare::answer(&at).map_err(|failure| failure.message))
        }
        ["echo-server", kind, place, work_us] => address(kind, place).and_then(|at| {
            let work = Duration::from_micros(work_us.parse().map_err(|_| USAGE.to_owned())?);
            bare::answer_after(work, &at).map_err(|failure| failure.message)
        }),
        ["exchange", kind, place, connections, seconds] => exchange(kind, place, connections, seconds),
        ["probe", request] => probe::run(request),
        ["neighbour", request] => neighbour::run(request),
        ["calls", pid] => collect::calls::run(pid),
        ["events", pid] => collect::events::run(pid),
        ["tracepoints", pid] => collect::tracepoints::run(pid),
        ["faults", pid] => collect::faults::run(pid),
        ["disk", request] => disk::run(request),
        ["disk-exercise", request] => disk::exercise::run(request),
        ["samples", pid] => collect::samples::run(pid),
        ["blocks"] => collect::blocks::run(),
        // What `probe` executes to see what that costs.
        ["exit"] => Ok(()),
        ["tpch", ref options @ ..] => tpch::command::run(options),
        ["uml", ref argv @ ..] => uml::execute(argv),
        ["hypervisor"] => {
            println!("{}", hypervisor::signature());
            Ok(())
        }
        ["version" | "--version"] => {
            let (build, protocol) = (env!("CARGO_PKG_VERSION"), dbtoll_agent::proto::VERSION);
            // What is shipped must say `static`.
            let linking = if cfg!(target_feature = "crt-static") { "static" } else { "dynamic" };
            println!("dbtoll-agent {build} protocol {protocol} {} {linking}", std::env::consts::ARCH);
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("dbtoll-agent: {message}");
            ExitCode::FAILURE
        }
    }
}

fn serve_standard_streams() -> Result<(), String> {
    let (input, output) = standard_streams()?;
    serve_once(input, output, None)
}

fn standard_streams() -> Result<(fs::File, OwnedFd), String> {
    let clone = |file: io::Result<OwnedFd>| file.map_err(|error| format!("standard streams: {error}"));
    let input = clone(io::stdin().as_fd().try_clone_to_owned())?;
    let output = clone(io::stdout().as_fd().try_clone_to_owned())?;
    Ok((fs::File::from(input), output))
}

/// On a host that the controller reaches over a network.
fn serve_elsewhere(folder: &str, silence_s: &str) -> Result<(), String> {
    let silence = Duration::from_secs(silence_s.parse().map_err(|_| USAGE.to_owned())?);
    let (input, output) = standard_streams()?;
    elsewhere::own(folder);
    serve_once(elsewhere::Heard::new(input, silence), output, None)
}

fn null_server(path: &str) -> Result<(), String> {
    null::run(Path::new(path), || listen(path)).map_err(|error| format!("{path}: {error}"))
}

fn address(kind: &str, place: &str) -> Result<Address, String> {
    match (kind, place.rsplit_once(':')) {
        ("--unix", _) => Ok(Address::Unix(place.to_owned())),
        ("--tcp", Some((host, port))) => {
            port.parse().map(|port| Address::Tcp(host.to_owned(), port)).map_err(|_| USAGE.to_owned())
        }
        _ => Err(USAGE.to_owned()),
    }
}

/// Prints what was exchanged, as JSON.
fn exchange(kind: &str, place: &str, connections: &str, seconds: &str) -> Result<(), String> {
    let duration = seconds.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let (Ok(connections), Some(duration)) = (connections.parse(), duration) else {
        return Err(USAGE.to_owned());
    };
    let exchanged = bare::ask(&address(kind, place)?, connections, duration).map_err(|failure| failure.message)?;
    println!("{}", serde_json::to_string(&exchanged).map_err(|error| error.to_string())?);
    Ok(())
}

fn serve_device(path: &str) -> Result<(), String> {
    let mut device = fs::File::from(device::open(path).map_err(|failure| failure.message)?);
    // What came before this would not have been taken as it is. A controller that waits for a sign gets it; to others it
    // is noise before the first frame.
    device.write_all(b"dbtoll-agent is ready\n").map_err(|error| format!("{path}: {error}"))?;
    let output = device.try_clone().map_err(|error| format!("{path}: {error}"))?;
    let line_bytes = device::line_bytes(&device);
    serve_once(device::PatientReader::new(device), output.into(), line_bytes)
}

/// Serves until the connection ends, then ends what was started.
fn serve_once(input: impl Read, output: OwnedFd, line_bytes: Option<u32>) -> Result<(), String> {
    supervise()?;
    let ended = serve(input, output, WINDOW_BYTES, line_bytes);
    children::end_all();
    elsewhere::leave();
    report(ended)
}

fn serve_socket(path: &str, keep: bool) -> Result<(), String> {
    supervise()?;
    let listener = listen(path).map_err(|error| format!("{path}: {error}"))?;
    loop {
        let (stream, _) = listener.accept().map_err(|error| format!("{path}: {error}"))?;
        if keep {
            let serving = move || {
                if let Err(message) = serve_stream(&stream) {
                    eprintln!("dbtoll-agent: {message}");
                }
            };
            std::thread::Builder::new().spawn(serving).map_err(|error| error.to_string())?;
            continue;
        }
        let _ = fs::remove_file(path);
        let result = serve_stream(&stream);
        children::end_all();
        return result;
    }
}

/// A socket that nobody listens on any more is a leftover and is replaced.
fn listen(path: &str) -> io::Result<UnixListener> {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && UnixStream::connect(path).is_err() {
        fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

fn serve_stream(stream: &UnixStream) -> Result<(), String> {
    let output = stream.try_clone().map_err(|error| error.to_string())?;
    let ended = serve(stream, output.into(), WINDOW_BYTES, None);
    // Also wakes a handler that is stuck in writing to a controller that does not read.
    let _ = stream.shutdown(std::net::Shutdown::Both);
    report(ended)
}

fn supervise() -> Result<(), String> {
    children::supervise().map_err(|error| format!("signals: {error}"))
}

fn report(ended: Ended) -> Result<(), String> {
    match ended {
        Ended::EndOfFile => Ok(()),
        Ended::Violation(violation) => Err(format!("protocol error: {violation}")),
        Ended::Refused(failure) => Err(format!("the controller ended the connection: {failure}")),
        Ended::Io(error) => Err(format!("the connection broke: {error}")),
    }
}
