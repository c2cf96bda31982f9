//! A PostgreSQL server for tests, where one is installed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use dbtoll_agent::driver::session::{ServerSession, Session};
use dbtoll_agent::wire::blocking::{Address, Interrupter};
use dbtoll_agent::wire::postgres::Login;

pub const PASSWORD: &str = "päss word";

/// One server for all tests that run at the same time; stopped and removed when the last of them lets it go.
pub struct Server {
    directory: PathBuf,
    port: u16,
    process: Mutex<Child>,
}

static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());

impl Server {
    /// None, with the reason printed, where PostgreSQL is not installed.
    pub fn shared() -> Option<Arc<Self>> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return Some(server);
        }
        let server = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&server);
        Some(server)
    }

    /// A server of the caller's own, to do harm to.
    pub fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            println!("skipped: no PostgreSQL server is installed on this machine");
            return None;
        };
        // initdb and postgres refuse to run as root.
        let owner = rustix::process::getuid().is_root().then(|| account_of("postgres")).flatten();
        if rustix::process::getuid().is_root() && owner.is_none() {
            println!("skipped: running as root, and there is no user postgres to run the server");
            return None;
        }
        let directory = temporary_directory();
        if let Some((user, group)) = owner {
            chown(&directory, Some(user), Some(group)).unwrap();
        }
        let data = directory.join("data");
        let password_file = directory.join("password");
        fs::write(&password_file, PASSWORD).unwrap();
        fs::set_permissions(&password_file, fs::Permissions::from_mode(0o644)).unwrap();
        let as_owner = |program: &str| {
            let mut command = Command::new(programs.join(program));
            command.current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            if let Some((user, group)) = owner {
                command.uid(user).gid(group);
            }
            command
        };
        let made = as_owner("initdb")
            .args(["-D", data.to_str().unwrap(), "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8"])
            .args(["--locale=C", "--pwfile", password_file.to_str().unwrap()])
            .status();
        assert!(made.unwrap().success(), "initdb failed");
        // scram is what initdb's password is stored as; the user md5 gets its own below.
        let rules = "local all md5 md5\nlocal all plain password\nlocal all scram scram-sha-256\nlocal all all trust\n\
            host all all 127.0.0.1/32 trust\n";
        fs::write(data.join("pg_hba.conf"), rules).unwrap();
        // Free now; nobody else asks for one that was just given out.
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let settings =
            "listen_addresses='127.0.0.1'\nfsync=off\nwal_level=minimal\nmax_wal_senders=0\nshared_buffers=64MB\n";
        let socket = format!("unix_socket_directories='{}'\nport={port}\n", directory.display());
        fs::write(data.join("postgresql.auto.conf"), format!("{settings}{socket}")).unwrap();
        let process = as_owner("postgres").args(["-D", data.to_str().unwrap()]).spawn().unwrap();
        let server = Self { directory, port, process: Mutex::new(process) };
        server.wait_until_ready();
        Some(server)
    }

    fn wait_until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.session().connect().unwrap().is_err() {
            assert!(Instant::now() < deadline, "the server does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn address(&self) -> Address {
        Address::Unix(self.directory.join(format!(".s.PGSQL.{}", self.port)).to_str().unwrap().to_owned())
    }

    pub fn tcp_address(&self) -> Address {
        Address::Tcp("localhost".to_owned(), self.port)
    }

    pub fn session(&self) -> Session {
        self.session_of(login("tester", None), Interrupter::default())
    }

    pub fn session_of(&self, login: Login, interrupter: Interrupter) -> Session {
        Session::new(self.address(), login, interrupter)
    }

    pub fn pid(&self) -> u32 {
        self.process.lock().unwrap().id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = rustix::process::Pid::from_raw(i32::try_from(process.id()).unwrap()) {
            // Immediate shutdown: takes all its children with it.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        }
        let _ = process.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

pub fn login(user: &str, password: Option<&str>) -> Login {
    Login {
        user: user.to_owned(),
        password: password.map(str::to_owned),
        database: "postgres".to_owned(),
        options: vec![("application_name".to_owned(), "dbtoll test".to_owned())],
    }
}

/// Short enough for the path of a Unix socket.
pub fn temporary_directory() -> PathBuf {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("dbtoll-test-{}-{count}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    directory
}

fn programs() -> Option<PathBuf> {
    let on_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    let mut places: Vec<PathBuf> = on_path;
    // Where Debian keeps the server's programs.
    if let Ok(versions) = fs::read_dir("/usr/lib/postgresql") {
        places.extend(versions.flatten().map(|version| version.path().join("bin")));
    }
    places.into_iter().find(|place| place.join("initdb").exists() && place.join("postgres").exists())
}

fn account_of(user: &str) -> Option<(u32, u32)> {
    let accounts = fs::read_to_string(Path::new("/etc/passwd")).ok()?;
    let fields: Vec<&str> =
        accounts.lines().map(|line| line.split(':').collect()).find(|f: &Vec<&str>| f[0] == user)?;
    Some((fields[2].parse().ok()?, fields[3].parse().ok()?))
}
