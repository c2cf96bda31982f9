//! A shared library that the agent preloads into User Mode Linux where the processor has more registers than it makes room for.
//!
//! UML keeps a task's floating-point registers in 2696 bytes (`struct _xstate` at the time it was built, Linux up to 6.12) and gives
//! them back with PTRACE_SETREGSET, which demands all that the processor has (`xstateregs_set`, arch/x86/kernel/fpu/regset.c):
//! 11 008 bytes where it has AMX, so no program starts there. Whatever is missing is given as zeros: a state whose header does not
//! have it is its initial one. `build.rs` compiles this file by itself: it is no part of the agent's program.

#![no_std]

use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

const SYS_PTRACE: c_long = 101;
const PEEK_TEXT: c_long = 1;
const PEEK_USER: c_long = 3;
const GET_REGISTERS: c_long = 0x4204;
const SET_REGISTERS: c_long = 0x4205;
const EXTENDED_STATE: c_long = 0x202;

/// Room for every state that is defined by now; kernel stacks of 16 KiB have none for it.
const ROOM_BYTES: usize = 16 << 10;

#[repr(C)]
struct Piece {
    begin: *mut c_void,
    bytes: usize,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
}

static mut WHOLE: [u8; ROOM_BYTES] = [0; ROOM_BYTES];
static WHOLE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// In place of the C library's. It is declared with `...`, whose four words are passed as these are.
///
/// # Safety
/// As ptrace(2), and not from two threads at once: this kernel has one processor and is not preempted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ptrace(request: c_long, pid: c_long, address: c_long, data: *mut c_void) -> c_long {
    // SAFETY: the caller's arguments as they are, but for pieces of memory that live on.
    unsafe {
        if (PEEK_TEXT..=PEEK_USER).contains(&request) {
            let mut word: c_long = 0;
            let result = syscall(SYS_PTRACE, request, pid, address, &raw mut word);
            if result < 0 {
                return result;
            }
            *__errno_location() = 0;
            return word;
        }
        if request != SET_REGISTERS || address != EXTENDED_STATE {
            return syscall(SYS_PTRACE, request, pid, address, data);
        }
        let whole = &raw mut WHOLE;
        if WHOLE_BYTES.load(Ordering::Relaxed) == 0 {
            let mut asked = Piece { begin: whole.cast(), bytes: ROOM_BYTES };
            if syscall(SYS_PTRACE, GET_REGISTERS, pid, address, &raw mut asked) < 0 {
                return -1;
            }
            whole.write([0; ROOM_BYTES]);
            WHOLE_BYTES.store(asked.bytes, Ordering::Relaxed);
        }
        let given = data.cast::<Piece>().read();
        let bytes = WHOLE_BYTES.load(Ordering::Relaxed);
        if given.bytes >= bytes {
            return syscall(SYS_PTRACE, request, pid, address, data);
        }
        whole.cast::<u8>().copy_from_nonoverlapping(given.begin.cast(), given.bytes);
        let mut widened = Piece { begin: whole.cast(), bytes };
        syscall(SYS_PTRACE, request, pid, address, &raw mut widened)
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
