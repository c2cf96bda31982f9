//! Small files and directories: `put`, `get`, `remove`, `list`, `mkdir`.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::parse;
use crate::failure::{Code, Failure};
use crate::proto::MAIN;
use crate::stream::StreamHandle;
use crate::users;

const MAX_FILE_BYTES: u64 = 64 << 20;
const PIECE_BYTES: usize = 256 * 1024;

fn absolute(path: &str) -> Result<&Path, Failure> {
    if !path.starts_with('/') || path.contains('\0') {
        return Err(Failure::bad_request(format!("{path:?} is not an absolute path")));
    }
    Ok(Path::new(path))
}

fn mode_bits(mode: u32) -> Result<u32, Failure> {
    if mode > 0o7777 {
        return Err(Failure::bad_request(format!("mode {mode} is beyond 4095 (octal 7777)")));
    }
    Ok(mode)
}

fn too_large(path: &str, max_bytes: u64) -> Failure {
    Failure::new(Code::TooLarge, format!("{path} has more than {max_bytes} bytes"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Put {
    path: String,
    size_bytes: u64,
    #[serde(default = "default_file_mode")]
    mode: u32,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    in_place: bool,
    #[serde(default)]
    parents: bool,
}

fn default_file_mode() -> u32 {
    0o644
}

pub fn put(params: Value, mut stream: StreamHandle) -> Result<Value, Failure> {
    let put: Put = parse(params)?;
    let path = absolute(&put.path)?;
    let mode = mode_bits(put.mode)?;
    if put.size_bytes > MAX_FILE_BYTES {
        return Err(too_large(&put.path, MAX_FILE_BYTES));
    }
    if put.in_place {
        write_in_place(path, put.size_bytes, &mut stream)?;
        return Ok(json!({"size_bytes": put.size_bytes}));
    }
    let ids = put.user.as_deref().map(users::look_up).transpose()?;
    let folder = path.parent().filter(|_| path.file_name().is_some());
    let folder = folder.ok_or_else(|| Failure::bad_request(format!("{:?} does not name a file", put.path)))?;
    if put.parents {
        fs::create_dir_all(folder).map_err(|error| Failure::io(format!("mkdir {}", folder.display()), error))?;
    }
    let (mut file, temporary) = temporary_beside(path)?;
    let written = receive(&mut stream, put.size_bytes, |bytes| {
        file.write_all(bytes).map_err(|error| Failure::io(format!("write {}", put.path), error))
    });
    let finished = written.and_then(|()| {
        if let Some(ids) = ids {
            fchown(&file, Some(ids.uid), Some(ids.gid)).map_err(|error| Failure::io("chown", error))?;
        }
        // After the owner: a change of owner drops the set-user bits.
        file.set_permissions(fs::Permissions::from_mode(mode)).map_err(|error| Failure::io("chmod", error))?;
        fs::rename(&temporary, path).map_err(|error| Failure::io(format!("rename {}", put.path), error))
    });
    if finished.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    finished?;
    Ok(json!({"size_bytes": put.size_bytes}))
}

/// A new empty file in the same folder, so that the rename stays within one file system.
fn temporary_beside(path: &Path) -> Result<(File, PathBuf), Failure> {
    let temporary = path.with_file_name(format!(".dbtoll-{}", crate::clock::unique()));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary);
    made.map(|file| (file, temporary.clone()))
        .map_err(|error| Failure::io(format!("open {}", temporary.display()), error))
}

/// Control files of the kernel take one value in one write.
fn write_in_place(path: &Path, size_bytes: u64, stream: &mut StreamHandle) -> Result<(), Failure> {
    let what = |call: &str| format!("{call} {}", path.display());
    // NONBLOCK: a pipe that nobody reads must not hold us.
    let mut options = OpenOptions::new();
    options.write(true).truncate(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let mut file = options.open(path).map_err(|error| Failure::io(what("open"), error))?;
    let mut content = Vec::new();
    receive(stream, size_bytes, |bytes| {
        content.extend_from_slice(bytes);
        Ok(())
    })?;
    let count = file.write(&content).map_err(|error| Failure::io(what("write"), error))?;
    if count < content.len() {
        let message = format!("{}: only {count} of {} bytes were taken", path.display(), content.len());
        return Err(Failure::new(Code::Io, message));
    }
    Ok(())
}

/// Exactly `size_bytes` of input, then END.
fn receive(
    stream: &mut StreamHandle,
    size_bytes: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut received = 0;
    while let Some(bytes) = stream.read()? {
        received += bytes.len() as u64;
        if received > size_bytes {
            break;
        }
        take(&bytes)?;
    }
    if received != size_bytes {
        return Err(Failure::bad_request(format!("size_bytes is {size_bytes}, but {received} bytes came")));
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Get {
    path: String,
    #[serde(default = "default_max_bytes")]
    max_bytes: u64,
}

fn default_max_bytes() -> u64 {
    1 << 20
}

pub fn get(params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let get: Get = parse(params)?;
    let path = absolute(&get.path)?;
    if get.max_bytes > MAX_FILE_BYTES {
        return Err(Failure::bad_request(format!("max_bytes is at most {MAX_FILE_BYTES}")));
    }
    let what = |call: &str| format!("{call} {}", get.path);
    // NONBLOCK: the opening of a pipe must not hold us.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let mut file = options.open(path).map_err(|error| Failure::io(what("open"), error))?;
    let metadata = file.metadata().map_err(|error| Failure::io(what("stat"), error))?;
    if !metadata.is_file() {
        return Err(Failure::bad_request(format!("{} is not a file", get.path)));
    }
    if metadata.len() > get.max_bytes {
        return Err(too_large(&get.path, get.max_bytes));
    }
    let mut buffer = vec![0; PIECE_BYTES];
    let mut size_bytes = 0;
    loop {
        let count = match file.read(&mut buffer) {
            Ok(0) => return Ok(json!({"size_bytes": size_bytes})),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Failure::io(what("read"), error)),
        };
        size_bytes += count as u64;
        if size_bytes > get.max_bytes {
            return Err(too_large(&get.path, get.max_bytes));
        }
        stream.write(MAIN, &buffer[..count])?;
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Remove {
    path: String,
    #[serde(default)]
    recursive: bool,
}

/// Of the agent itself, at its end (`elsewhere`): the tree goes as with `remove`, whatever a part of it says.
pub fn remove_own(path: &str) -> Result<(), Failure> {
    let path = absolute(path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    remove_tree(open_folder(rustix::fs::CWD, folder.as_os_str(), OFlags::empty())?, name, || false)
}

pub fn remove(params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let remove: Remove = parse(params)?;
    let path = absolute(&remove.path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::bad_request(format!("{:?} does not name a file or directory", remove.path)));
    };
    let folder = open_folder(rustix::fs::CWD, folder.as_os_str(), OFlags::empty())?;
    if remove.recursive {
        remove_tree(folder, name, || stream.is_cancelled())?;
    } else {
        remove_one(&folder, name)?;
    }
    Ok(json!({}))
}

fn open_folder(at: impl AsFd, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Failure> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(at, path, flags, Mode::empty());
    opened.map_err(|error| Failure::io(format!("open {}", shown(path)), error))
}

fn shown(name: &OsStr) -> impl std::fmt::Display {
    Path::new(name).display()
}

/// A file, a link or an empty directory.
fn remove_one(folder: impl AsFd, name: &OsStr) -> Result<(), Failure> {
    let flags = if is_folder(&folder, name)? { AtFlags::REMOVEDIR } else { AtFlags::empty() };
    let removed = rustix::fs::unlinkat(folder, name, flags);
    removed.map_err(|error| Failure::io(format!("unlink {}", shown(name)), error))
}

/// Depth first, each directory opened relative to the one above and without following links: nothing that is moved or
/// replaced meanwhile can lead elsewhere. What is mounted in it ends it with an error. One descriptor is held, however deep the
/// tree is.
fn remove_tree(around: OwnedFd, name: &OsStr, is_cancelled: impl Fn() -> bool) -> Result<(), Failure> {
    struct Level {
        name: OsString,
        entries: Vec<(OsString, bool)>,
        /// The directory that it lies in.
        above: (u64, u64),
    }
    if !is_folder(&around, name)? {
        return remove_one(&around, name);
    }
    let mounted = Mounted::of(&around)?;
    let enter = |above: &OwnedFd, name: OsString| -> Result<(OwnedFd, Level), Failure> {
        let directory = open_folder(above, &name, OFlags::NOFOLLOW)?;
        if Mounted::of(&directory)? != mounted {
            return Err(Failure::bad_request(format!("{} is a mount point: unmount it first", shown(&name))));
        }
        let entries = read_folder(&directory, &name)?;
        Ok((directory, Level { name, entries, above: identity(above)? }))
    };
    let (mut here, level) = enter(&around, name.to_owned())?;
    let mut levels = vec![level];
    while let Some(level) = levels.last_mut() {
        if is_cancelled() {
            return Err(Failure::cancelled());
        }
        match level.entries.pop() {
            Some((name, true)) => {
                let (inner, next) = enter(&here, name)?;
                here = inner;
                levels.push(next);
            }
            Some((name, false)) => remove_one(&here, &name)?,
            None => {
                here = open_folder(&here, OsStr::new(".."), OFlags::empty())?;
                if identity(&here)? != level.above {
                    let message = format!("{} was moved while it was removed", shown(&level.name));
                    return Err(Failure::new(Code::Io, message));
                }
                remove_one(&here, &level.name)?;
                levels.pop();
            }
        }
    }
    Ok(())
}

/// Device and number of a directory.
fn identity(directory: &OwnedFd) -> Result<(u64, u64), Failure> {
    let status = rustix::fs::fstat(directory).map_err(|error| Failure::io("fstat", error))?;
    Ok((status.st_dev, status.st_ino))
}

/// Which mount a descriptor was opened through. A directory that is bound elsewhere has the same device as what is around
/// it, but another mount: proc(5), `fdinfo`. Where there is no /proc, devices alone tell.
#[derive(PartialEq)]
struct Mounted {
    mount: Option<String>,
    device: u64,
}

impl Mounted {
    fn of(directory: &OwnedFd) -> Result<Self, Failure> {
        let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", directory.as_raw_fd())).unwrap_or_default();
        let mount = about.lines().find_map(|line| line.strip_prefix("mnt_id:")).map(|id| id.trim().to_owned());
        Ok(Self { mount, device: identity(directory)?.0 })
    }
}

fn is_folder(folder: impl AsFd, name: &OsStr) -> Result<bool, Failure> {
    let status = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let status = status.map_err(|error| Failure::io(format!("stat {}", shown(name)), error))?;
    Ok(FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

/// Names, of any bytes, and whether they are directories.
fn read_folder(directory: &OwnedFd, name: &OsStr) -> Result<Vec<(OsString, bool)>, Failure> {
    let what = || format!("readdir {}", shown(name));
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory).map_err(|error| Failure::io(what(), error))? {
        let entry = entry.map_err(|error| Failure::io(what(), error))?;
        let entry_name = OsStr::from_bytes(entry.file_name().to_bytes());
        if entry_name == "." || entry_name == ".." {
            continue;
        }
        let is_folder = match entry.file_type() {
            FileType::Unknown => is_folder(directory, entry_name)?,
            kind => kind == FileType::Directory,
        };
        entries.push((entry_name.to_owned(), is_folder));
    }
    Ok(entries)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    path: String,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    kind: &'static str,
    size_bytes: u64,
}

pub fn list(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    let list: List = parse(params)?;
    let what = |call: &str| format!("{call} {}", list.path);
    let listing = fs::read_dir(absolute(&list.path)?).map_err(|error| Failure::io(what("open"), error))?;
    let mut entries = Vec::new();
    for entry in listing {
        let entry = entry.map_err(|error| Failure::io(what("readdir"), error))?;
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // Removed since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::io(what("stat"), error)),
        };
        let kind =
            match FileType::from_raw_mode(rustix::fs::RawMode::from(std::os::unix::fs::MetadataExt::mode(&metadata))) {
                FileType::RegularFile => "file",
                FileType::Directory => "directory",
                FileType::Symlink => "link",
                FileType::Socket => "socket",
                _ => "other",
            };
        let name = entry.file_name().to_string_lossy().into_owned();
        entries.push(Entry { name, kind, size_bytes: metadata.len() });
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(json!({"entries": entries}))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mkdir {
    path: String,
    #[serde(default = "default_folder_mode")]
    mode: u32,
    #[serde(default)]
    user: Option<String>,
    #[serde(default = "yes")]
    parents: bool,
}

fn default_folder_mode() -> u32 {
    0o755
}

fn yes() -> bool {
    true
}

/// With `parents` a directory that is there already is left as it is.
pub fn mkdir(params: Value, _: StreamHandle) -> Result<Value, Failure> {
    let mkdir: Mkdir = parse(params)?;
    let path = absolute(&mkdir.path)?;
    let mode = mode_bits(mkdir.mode)?;
    let ids = mkdir.user.as_deref().map(users::look_up).transpose()?;
    let what = |call: &str| format!("{call} {}", mkdir.path);
    if let (true, Some(folder)) = (mkdir.parents, path.parent()) {
        fs::create_dir_all(folder).map_err(|error| Failure::io(what("mkdir"), error))?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && mkdir.parents && path.is_dir() => {
            return Ok(json!({}));
        }
        Err(error) => return Err(Failure::io(what("mkdir"), error)),
    }
    // Through a descriptor that does not follow links: the name may have been replaced since.
    let folder = open_folder(rustix::fs::CWD, path.as_os_str(), OFlags::NOFOLLOW)?;
    if let Some(ids) = ids {
        fchown(&folder, Some(ids.uid), Some(ids.gid)).map_err(|error| Failure::io(what("chown"), error))?;
    }
    rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)).map_err(|error| Failure::io(what("chmod"), error))?;
    Ok(json!({}))
}
