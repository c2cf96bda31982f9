//! Process 1 of a guest: the agent is the first program of the initial memory file system, makes a machine of the disks
//! that it finds, and serves on the guest's line. No service manager, no console in between, and no network but for others'
//! to reach a server in here.
//!
//! From the initial memory file system it makes what [`Guest`] says and executes itself in the image (`serve-and-leave`);
//! there it serves until the line ends, and powers the guest off.

use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount, mount_bind, mount_move};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::{RebootCommand, reboot};
use serde::Deserialize;

use crate::failure::{Code, Failure};

/// Written into the initial memory file system by `machines/guest/initramfs.py`.
pub const DESCRIPTION: &str = "/guest.json";
/// The name by which the kernel starts the first program of an initial memory file system.
pub const INIT: &str = "/init";
const ROOT: &str = "/image";
/// Where every image has an empty file for it.
const AGENT: &str = "/dbtoll/agent";
/// Devices come up while the kernel boots on; one that is not there by then will not come.
const DEVICE_DEADLINE: Duration = Duration::from_secs(30);

/// What the machine shall be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Guest {
    /// Kernel modules, in the order in which they are loaded.
    modules: Vec<String>,
    /// A device's path, or `port:NAME` of a virtio port.
    line: String,
    /// The system image; without one the guest stays in the initial memory file system, which is enough to say hello.
    image: Option<Disk>,
    disks: Vec<Disk>,
    memories: Vec<Memory>,
    shm_bytes: u64,
    open_files: u64,
    /// How it is reached from outside; without one there is only its loopback.
    network: Option<Network>,
}

/// An interface, and the address that it gets: it reaches whoever is on the same network, nobody beyond.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Network {
    interface: String,
    address: Ipv4Addr,
    mask: Ipv4Addr,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Disk {
    /// A device's path, or `serial:TEXT` of a virtio disk.
    device: String,
    /// Where it is mounted in the image; `/` for the image itself.
    at: String,
    writable: bool,
}

/// A file system in the guest's memory, empty.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    /// Where it is mounted in the image.
    at: String,
    size_bytes: u64,
}

/// Makes the machine and executes this program in it. Returns only when something is missing; the guest is then of no
/// use and is powered off.
pub fn init() {
    let Err(failure) = become_machine();
    eprintln!("dbtoll-agent: this guest cannot start: {}", failure.message);
    leave();
}

fn become_machine() -> Result<Infallible, Failure> {
    file_system("devtmpfs", "/dev", MountFlags::NOSUID, "")?;
    file_system("sysfs", "/sys", MountFlags::empty(), "")?;
    let text = fs::read(DESCRIPTION).map_err(|error| Failure::io(format!("open {DESCRIPTION}"), error))?;
    let guest: Guest = serde_json::from_slice(&text)
        .map_err(|error| Failure::new(Code::BadRequest, format!("{DESCRIPTION}: {error}")))?;
    guest.modules.iter().try_for_each(|path| load_module(path))?;
    let line = find(&guest.line)?;

    let limit = Some(guest.open_files);
    setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })
        .map_err(|error| Failure::io("setrlimit", error))?;
    raise_loopback()?;
    guest.network.iter().try_for_each(join_network)?;
    let agent = if let Some(image) = &guest.image {
        enter_image(&guest, image)?;
        AGENT
    } else {
        file_system("proc", "/proc", MountFlags::empty(), "")?;
        INIT
    };
    let error = Command::new(agent).arg0(AGENT).args(["serve-and-leave", "--device"]).arg(line).exec();
    Err(Failure::io(format!("exec {agent}"), error))
}

/// Puts the machine together below [`ROOT`] and makes that its root, as `switch_root`(8) does.
fn enter_image(guest: &Guest, image: &Disk) -> Result<(), Failure> {
    mount_disk(image, ROOT)?;
    furnish(guest)?;
    for disk in &guest.disks {
        mount_disk(disk, &format!("{ROOT}{}", disk.at))?;
    }
    for memory in &guest.memories {
        let at = format!("{ROOT}{}", memory.at);
        fs::create_dir_all(&at).map_err(|error| Failure::io(format!("mkdir {at}"), error))?;
        let safe = MountFlags::NOSUID | MountFlags::NODEV;
        file_system("tmpfs", &at, safe, &format!("size={},mode=700", memory.size_bytes))?;
    }
    let agent = format!("{ROOT}{AGENT}");
    mount_bind(INIT, &agent).map_err(|error| Failure::io(format!("mount {INIT} on {agent}"), error))?;
    let moved = |error| Failure::io(format!("moving {ROOT} to /"), error);
    rustix::process::chdir(ROOT).map_err(moved)?;
    mount_move(".", "/").map_err(moved)?;
    rustix::process::chroot(".").map_err(moved)?;
    rustix::process::chdir("/").map_err(moved)
}

/// The kernel's file systems and the fresh ones in memory, as every arm on an image has them (machines/chroot.py).
fn furnish(guest: &Guest) -> Result<(), Failure> {
    let nothing = MountFlags::empty();
    let safe = MountFlags::NOSUID | MountFlags::NODEV;
    let at = |path: &str| format!("{ROOT}{path}");
    file_system("proc", &at("/proc"), safe | MountFlags::NOEXEC, "")?;
    file_system("sysfs", &at("/sys"), nothing, "")?;
    if Path::new(&at("/sys/fs/cgroup")).is_dir() {
        file_system("cgroup2", &at("/sys/fs/cgroup"), safe | MountFlags::NOEXEC, "")?;
    }
    file_system("devtmpfs", &at("/dev"), MountFlags::NOSUID, "")?;
    for directory in ["/dev/shm", "/dev/pts"] {
        fs::create_dir_all(at(directory)).map_err(|error| Failure::io(format!("mkdir {directory}"), error))?;
    }
    file_system("devpts", &at("/dev/pts"), MountFlags::NOSUID | MountFlags::NOEXEC, "ptmxmode=0666,mode=0620")?;
    file_system("tmpfs", &at("/dev/shm"), safe, &format!("size={},mode=1777", guest.shm_bytes))?;
    for (directory, mode) in [("/tmp", "1777"), ("/run", "755"), ("/dbtoll/run", "1777")] {
        file_system("tmpfs", &at(directory), safe, &format!("mode={mode}"))?;
    }
    Ok(())
}

fn file_system(kind: &str, at: &str, flags: MountFlags, data: &str) -> Result<(), Failure> {
    let _ = fs::create_dir(at);
    let data = std::ffi::CString::new(data).map_err(|error| Failure::bad_request(error.to_string()))?;
    mount(kind, at, kind, flags, &*data).map_err(|error| Failure::io(format!("mount {kind} on {at}"), error))
}

fn mount_disk(disk: &Disk, at: &str) -> Result<(), Failure> {
    let device = find(&disk.device)?;
    let flags = if disk.writable { MountFlags::empty() } else { MountFlags::RDONLY };
    let _ = fs::create_dir_all(at);
    mount(&device, at, "ext4", flags, c"")
        .map_err(|error| Failure::io(format!("mount {} on {at}", device.display()), error))
}

fn load_module(path: &str) -> Result<(), Failure> {
    let failed = |error| Failure::io(format!("loading the kernel module {path}"), error);
    let file = File::open(path).map_err(failed)?;
    // SAFETY: a descriptor that lives on, and an empty C string.
    let result = unsafe { libc::syscall(libc::SYS_finit_module, file.as_fd().as_raw_fd(), c"".as_ptr(), 0) };
    let error = io::Error::last_os_error();
    // Loaded by the kernel itself meanwhile; or for a processor that this is not (crc32c_intel, kvm_amd).
    let harmless = [libc::EEXIST, libc::ENODEV, libc::EOPNOTSUPP];
    if result < 0 && !error.raw_os_error().is_some_and(|number| harmless.contains(&number)) {
        return Err(failed(error));
    }
    Ok(())
}

/// The path of a device once it is there.
fn find(device: &str) -> Result<PathBuf, Failure> {
    let deadline = Instant::now() + DEVICE_DEADLINE;
    loop {
        let found = match device.split_once(':') {
            Some(("serial", serial)) => labelled("/sys/block", "serial", serial),
            Some(("port", name)) => labelled("/sys/class/virtio-ports", "name", name),
            Some(("interface", name)) => Some(Path::new("/sys/class/net").join(name)),
            _ => Some(PathBuf::from(device)),
        };
        if let Some(path) = found.filter(|path| path.exists()) {
            return Ok(path);
        }
        if Instant::now() > deadline {
            return Err(Failure::new(Code::NotFound, format!("no device {device}")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The device below `class` whose attribute `file` says `wanted`.
fn labelled(class: &str, file: &str, wanted: &str) -> Option<PathBuf> {
    let says =
        |entry: &fs::DirEntry| fs::read_to_string(entry.path().join(file)).is_ok_and(|text| text.trim() == wanted);
    let mut entries = fs::read_dir(class).ok()?.filter_map(Result::ok);
    entries.find(says).map(|entry| Path::new("/dev").join(entry.file_name()))
}

/// Programs here may talk over 127.0.0.1. A kernel without IPv4 has no loopback either.
fn raise_loopback() -> Result<(), Failure> {
    let Ok(socket) = UdpSocket::bind("0.0.0.0:0") else { return Ok(()) };
    raise(&socket, "lo")
}

/// Gives the interface its address and raises it (netdevice(7)).
fn join_network(network: &Network) -> Result<(), Failure> {
    let interface = network.interface.as_str();
    find(&format!("interface:{interface}"))?;
    let socket = UdpSocket::bind("0.0.0.0:0").map_err(|error| Failure::io("a kernel without IPv4", error))?;
    for (call, address) in [(libc::SIOCSIFADDR, network.address), (libc::SIOCSIFNETMASK, network.mask)] {
        let what = format!("giving the interface {interface} the address {address}");
        control(&socket, interface, call, &what, |request| {
            request.ifr_ifru.ifru_addr.sa_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap_or_default();
            // A sockaddr_in: family, port, then the address in network order.
            // SAFETY: every field of the union is plain bytes.
            let data = unsafe { &mut request.ifr_ifru.ifru_addr.sa_data };
            for (to, from) in data[2..].iter_mut().zip(address.octets()) {
                *to = libc::c_char::from_ne_bytes([from]);
            }
        })?;
    }
    raise(&socket, interface)
}

fn raise(socket: &UdpSocket, interface: &str) -> Result<(), Failure> {
    control(socket, interface, libc::SIOCSIFFLAGS, &format!("raising the interface {interface}"), |request| {
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP).unwrap_or_default();
    })
}

/// One request about an interface, which `fill` completes.
fn control(
    socket: &UdpSocket,
    interface: &str,
    call: libc::Ioctl,
    what: &str,
    fill: impl FnOnce(&mut libc::ifreq),
) -> Result<(), Failure> {
    if interface.len() >= libc::IFNAMSIZ {
        return Err(Failure::bad_request(format!("{interface}: the name of an interface has at most 15 bytes")));
    }
    // SAFETY: all zero is a valid request; its name fits and ends with NUL; the kernel only reads it.
    let result = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        fill(&mut request);
        libc::ioctl(socket.as_raw_fd(), call, &raw const request)
    };
    if result < 0 { Err(Failure::io(what, io::Error::last_os_error())) } else { Ok(()) }
}

/// Serves; then the guest has nothing more to do.
pub fn leave_after(serve: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    let served = serve();
    if let Err(message) = &served {
        eprintln!("dbtoll-agent: {message}");
    }
    leave();
    served
}

/// Writes back what is dirty and powers the guest off. Does nothing for any process but the first of a machine.
fn leave() {
    if rustix::process::getpid().is_init() {
        rustix::fs::sync();
        // Where it is refused this process ends, and the kernel with it.
        let _ = reboot(RebootCommand::PowerOff);
    }
}
