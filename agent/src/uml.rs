//! Becomes a guest of User Mode Linux, which is given room for all registers of this processor.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Replaces this program by `argv`. Returns only if that fails.
pub fn execute(argv: &[&str]) -> Result<(), String> {
    let Some((program, arguments)) = argv.split_first() else {
        return Err("uml: which program?".to_owned());
    };
    let mut command = Command::new(program);
    command.args(arguments);
    #[cfg(target_arch = "x86_64")]
    widen(&mut command).map_err(|error| format!("uml: the library with wide registers: {error}"))?;
    Err(format!("{program}: {}", command.exec()))
}

/// Where UML makes room for fewer bytes of registers than the kernel demands back, a library adds them (`preload/wide_registers.rs`). It
/// lies in memory alone and is inherited, for UML executes itself once more.
#[cfg(target_arch = "x86_64")]
fn widen(command: &mut Command) -> std::io::Result<()> {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::{AsRawFd, IntoRawFd};

    /// Of `struct _xstate`, which Linux was built with up to 6.12.
    const ROOM_BYTES: u32 = 2696;
    const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wide_registers.so"));

    if registers_bytes() <= ROOM_BYTES {
        return Ok(());
    }
    let mut file = File::from(rustix::fs::memfd_create("wide_registers", rustix::fs::MemfdFlags::empty())?);
    file.write_all(LIBRARY)?;
    command.env("LD_PRELOAD", format!("/proc/self/fd/{}", file.as_raw_fd()));
    let _ = file.into_raw_fd();
    Ok(())
}

/// Of all that the system has enabled, as XSAVE stores it (Intel SDM volume 1, 13.2: leaf 0DH).
#[cfg(target_arch = "x86_64")]
#[allow(unused_unsafe, reason = "older compilers call it unsafe")]
fn registers_bytes() -> u32 {
    use std::arch::x86_64::__cpuid_count;

    // SAFETY: every processor of 64 bits has the instruction; one without the leaf answers with another's figures, or zeros.
    unsafe { if __cpuid_count(0, 0).eax < 0xd { 0 } else { __cpuid_count(0xd, 0).ebx } }
}
