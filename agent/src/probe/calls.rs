//! System calls, and a signal to oneself.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::{io, mem, ptr};

use rustix::fs::CWD;

use super::pages::Scratch;
use super::{Made, Repeated, Request};
use crate::failure::Failure;

/// The loop itself: what every other probe's cost has in it, a nanosecond or less.
pub fn nothing(_: &Request) -> Made {
    Ok(Box::new(Repeated(|| {
        std::hint::black_box(());
        Ok(())
    })))
}

/// `getppid`: into the kernel and out again (lmbench: `lat_syscall null`).
pub fn system_call(_: &Request) -> Made {
    Ok(Box::new(Repeated(|| {
        // SAFETY: a call without arguments that cannot fail. By its number, so that no library can answer from memory.
        unsafe { libc::syscall(libc::SYS_getppid) };
        Ok(())
    })))
}

/// One byte from `/dev/zero` (lmbench: `lat_syscall read`).
pub fn read(_: &Request) -> Made {
    let mut file = File::open("/dev/zero").map_err(|error| Failure::io("open /dev/zero", error))?;
    Ok(Box::new(Repeated(move || {
        let mut byte = [0];
        file.read_exact(&mut byte).map_err(|error| Failure::io("read", error))
    })))
}

/// One byte to `/dev/null` (lmbench: `lat_syscall write`).
pub fn write(_: &Request) -> Made {
    let file = File::options().write(true).open("/dev/null");
    let mut file = file.map_err(|error| Failure::io("open /dev/null", error))?;
    Ok(Box::new(Repeated(move || file.write_all(&[0]).map_err(|error| Failure::io("write", error)))))
}

/// Of the folder, by its path (lmbench: `lat_syscall stat`).
pub fn stat(request: &Request) -> Made {
    let folder = request.folder.clone();
    Ok(Box::new(Repeated(move || {
        rustix::fs::statat(CWD, &folder, rustix::fs::AtFlags::empty())
            .map(drop)
            .map_err(|error| Failure::io("stat", error))
    })))
}

/// The end of a file in the folder, as a database asks how long a table is: the size has to be known anew each time.
pub fn seek(request: &Request) -> Made {
    let mut scratch = Scratch::new(request, 0)?;
    scratch.file.write_all(&[1; 8192]).map_err(|error| Failure::io("write", error))?;
    Ok(Box::new(Repeated(move || {
        scratch.file.seek(SeekFrom::End(0)).map(drop).map_err(|error| Failure::io("lseek", error))
    })))
}

/// A file in the folder opened and closed again.
pub fn open(request: &Request) -> Made {
    let scratch = Scratch::new(request, 0)?;
    Ok(Box::new(Repeated(move || File::open(scratch.path()).map(drop).map_err(|error| Failure::io("open", error)))))
}

extern "C" fn heard(_: libc::c_int) {}

/// One sent to this process, its handler, and the way back (lmbench: `lat_sig catch`).
pub fn signal(_: &Request) -> Made {
    // SAFETY: an all-zero `sigaction` is valid, and the handler does nothing that a handler must not do.
    let installed = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = heard as extern "C" fn(libc::c_int) as libc::sighandler_t;
        libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut())
    };
    if installed != 0 {
        return Err(Failure::io("sigaction", io::Error::last_os_error()));
    }
    let own = rustix::process::getpid();
    Ok(Box::new(Repeated(move || {
        rustix::process::kill_process(own, rustix::process::Signal::USR1).map_err(|error| Failure::io("kill", error))
    })))
}
