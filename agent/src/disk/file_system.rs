//! A file system of one file, for the kernel to make a loop device of. It is mounted nowhere: it lives as long as who made it and what
//! uses it, and no kill leaves a mount behind.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::consts::{FOPEN_DIRECT_IO, FUSE_ASYNC_DIO};
use fuser::{
    FileAttr, FileType, Filesystem, KernelConfig, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request,
};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};

use super::model::Access;
use super::server::{Answer, Server};
use crate::failure::Failure;

const FUSE: &str = "/dev/fuse";
const FOLDER: u64 = fuser::FUSE_ROOT_ID;
const FILE: u64 = 2;
/// Nothing here ever changes.
const FOR_LONG: Duration = Duration::from_secs(1 << 30);
/// Of one message. A loop device's requests have as much at most, or come in several that follow one another.
const MESSAGE_BYTES: u32 = 1 << 20;
/// As many as a loop device has under way (drivers/block/loop.c: `LOOP_DEFAULT_HW_Q_DEPTH`): they wait where they are counted.
const UNDER_WAY: u16 = 128;

pub enum Transfer {
    Read(ReplyData),
    Write(ReplyWrite, u32),
}

impl Answer for Transfer {
    fn done(self, read: &[u8]) {
        match self {
            Self::Read(reply) => reply.data(read),
            Self::Write(reply, bytes) => reply.written(bytes),
        }
    }

    fn failed(self, error: &io::Error) {
        match self {
            Self::Read(reply) => reply.error(number(error)),
            Self::Write(reply, _) => reply.error(number(error)),
        }
    }
}

pub struct Flush(ReplyEmpty);

impl Answer for Flush {
    fn done(self, _: &[u8]) {
        self.0.ok();
    }

    fn failed(self, error: &io::Error) {
        self.0.error(number(error));
    }
}

fn number(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The kernel's end, which nobody else may hold, and the mount, which lives with its descriptor.
pub fn mounted() -> Result<(OwnedFd, OwnedFd), Failure> {
    let device = OpenOptions::new().read(true).write(true).open(FUSE);
    let device = OwnedFd::from(device.map_err(|error| Failure::io(format!("open {FUSE}"), error))?);
    let made = || -> rustix::io::Result<OwnedFd> {
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let options = [("source", "dbtoll"), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")];
        fsconfig_set_string(&context, "fd", device.as_raw_fd().to_string())?;
        for (key, value) in options {
            fsconfig_set_string(&context, key, value)?;
        }
        fsconfig_create(&context)?;
        fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
    };
    let mount = made().map_err(|error| Failure::io("mount fuse", error))?;
    Ok((device, mount))
}

pub struct OneFile {
    pub name: String,
    pub size_bytes: u64,
    pub server: Arc<Server<Transfer, Flush>>,
}

impl OneFile {
    fn attributes(&self, of: u64) -> FileAttr {
        let (kind, size) =
            if of == FOLDER { (FileType::Directory, 0) } else { (FileType::RegularFile, self.size_bytes) };
        let epoch = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino: of,
            size,
            blocks: size / 512,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            crtime: epoch,
            kind,
            perm: 0o700,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// What of it lies on the disk.
    fn wanted(&self, offset: i64, bytes: usize, writes: bool) -> Option<Access> {
        let offset = u64::try_from(offset).ok().filter(|offset| *offset <= self.size_bytes)?;
        Some(Access { offset, bytes: (bytes as u64).min(self.size_bytes - offset), writes })
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _: &Request<'_>, config: &mut KernelConfig) -> Result<(), i32> {
        // Without it one request would be under way at a time, and the rest would wait where nobody counts them.
        config.add_capabilities(FUSE_ASYNC_DIO).map_err(|_| libc::EPROTO)?;
        config.set_max_write(MESSAGE_BYTES).map_err(|_| libc::EPROTO)?;
        config.set_max_background(UNDER_WAY).map_err(|_| libc::EPROTO)?;
        config.set_congestion_threshold(UNDER_WAY).map_err(|_| libc::EPROTO)?;
        Ok(())
    }

    fn lookup(&mut self, _: &Request<'_>, parent: u64, name: &OsStr, reply: ReplyEntry) {
        if parent == FOLDER && name == OsStr::new(&self.name) {
            reply.entry(&FOR_LONG, &self.attributes(FILE), 0);
        } else {
            reply.error(libc::ENOENT);
        }
    }

    fn getattr(&mut self, _: &Request<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        reply.attr(&FOR_LONG, &self.attributes(ino));
    }

    fn open(&mut self, _: &Request<'_>, _: u64, _: i32, reply: ReplyOpen) {
        reply.opened(0, FOPEN_DIRECT_IO);
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        _: u64,
        _: u64,
        offset: i64,
        size: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyData,
    ) {
        match self.wanted(offset, size as usize, false) {
            Some(access) if access.bytes > 0 => self.server.request(access, &[], Transfer::Read(reply)),
            _ => reply.data(&[]),
        }
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        _: u64,
        _: u64,
        offset: i64,
        data: &[u8],
        _: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyWrite,
    ) {
        match self.wanted(offset, data.len(), true) {
            // A disk does not grow.
            Some(access) if access.bytes == data.len() as u64 => {
                let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
                self.server.request(access, data, Transfer::Write(reply, bytes));
            }
            _ => reply.error(libc::ENOSPC),
        }
    }

    fn fsync(&mut self, _: &Request<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        self.server.flush(Flush(reply));
    }
}
