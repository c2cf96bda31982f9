//! Small files and directories: `put`, `get`, `remove`, `list`, `mkdir`.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatxAttributes, StatxFlags};
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
    for attempt in 0..100 {
        let temporary = path.with_file_name(format!(".dbtoll-{}-{attempt}", crate::clock::now_ns()));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary) {
            Ok(file) => return Ok((file, temporary)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Failure::io(format!("open {}", temporary.display()), error)),
        }
    }
    Err(Failure::new(Code::Io, format!("no free name beside {}", path.display())))
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

pub fn remove(params: Value, stream: StreamHandle) -> Result<Value, Failure> {
    let remove: Remove = parse(params)?;
    let path = absolute(&remove.path)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Err(Failure::bad_request(format!("{:?} does not name a file or directory", remove.path)));
    };
    let folder = open_folder(rustix::fs::CWD, folder.to_string_lossy().as_ref(), OFlags::empty())?;
    if remove.recursive {
        remove_tree(&folder, name, &stream)?;
    } else {
        remove_one(folder.as_fd(), name)?;
    }
    Ok(json!({}))
}

fn open_folder(at: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Failure> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(at, path, flags, Mode::empty()).map_err(|error| Failure::io(format!("open {path}"), error))
}

/// A file, a link or an empty directory.
fn remove_one(folder: impl AsFd, name: &str) -> Result<(), Failure> {
    let folder = folder.as_fd();
    let what = |call: &str| format!("{call} {name}");
    let status =
        rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| Failure::io(what("stat"), e))?;
    if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
        rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR).map_err(|error| Failure::io(what("rmdir"), error))
    } else {
        rustix::fs::unlinkat(folder, name, AtFlags::empty()).map_err(|error| Failure::io(what("unlink"), error))
    }
}

/// Depth first, each directory opened relative to the one above and without following links: nothing that is moved or
/// replaced meanwhile can lead elsewhere. A mount point ends it with an error. One descriptor is held, however deep the tree is.
fn remove_tree(folder: &OwnedFd, name: &str, stream: &StreamHandle) -> Result<(), Failure> {
    struct Level {
        name: String,
        entries: Vec<(String, bool)>,
        /// The directory that it lies in.
        above: (u64, u64),
    }
    let enter = |above: &OwnedFd, name: String| -> Result<(OwnedFd, Level), Failure> {
        let directory = open_folder(above, &name, OFlags::NOFOLLOW)?;
        refuse_mount_point(&directory, &name)?;
        let entries = read_folder(&directory, &name)?;
        Ok((directory, Level { name, entries, above: identity(above)? }))
    };
    if !is_folder(folder, name)? {
        return remove_one(folder, name);
    }
    let (mut here, level) = enter(folder, name.to_owned())?;
    let mut levels = vec![level];
    while let Some(level) = levels.last_mut() {
        if stream.is_cancelled() {
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
                here = open_folder(&here, "..", OFlags::empty())?;
                if identity(&here)? != level.above {
                    return Err(Failure::new(Code::Io, format!("{} was moved while it was removed", level.name)));
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

fn is_folder(folder: &OwnedFd, name: &str) -> Result<bool, Failure> {
    let status = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    let status = status.map_err(|error| Failure::io(format!("stat {name}"), error))?;
    Ok(FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

/// `name`: of the directory, for the message.
fn refuse_mount_point(directory: &OwnedFd, name: &str) -> Result<(), Failure> {
    let status = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    let status = status.map_err(|error| Failure::io(format!("statx {name}"), error))?;
    if status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return Err(Failure::bad_request(format!("{name} is a mount point: unmount it first")));
    }
    Ok(())
}

/// Names, and whether they are directories. Names that are not UTF-8 are refused: JSON could not have named them.
fn read_folder(directory: &OwnedFd, name: &str) -> Result<Vec<(String, bool)>, Failure> {
    let what = || format!("readdir {name}");
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory).map_err(|error| Failure::io(what(), error))? {
        let entry = entry.map_err(|error| Failure::io(what(), error))?;
        let Ok(entry_name) = entry.file_name().to_str() else {
            return Err(Failure::new(Code::Io, format!("a name in {name} is not UTF-8")));
        };
        if matches!(entry_name, "." | "..") {
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
    let folder = open_folder(rustix::fs::CWD, &mkdir.path, OFlags::NOFOLLOW)?;
    if let Some(ids) = ids {
        fchown(&folder, Some(ids.uid), Some(ids.gid)).map_err(|error| Failure::io(what("chown"), error))?;
    }
    rustix::fs::fchmod(&folder, Mode::from_raw_mode(mode)).map_err(|error| Failure::io(what("chmod"), error))?;
    Ok(json!({}))
}
