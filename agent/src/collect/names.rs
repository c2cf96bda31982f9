//! Names of system calls.

/// As the kernel's headers have it; `call_N` for one that a database server is not known to make.
pub fn name_of(number: u64) -> String {
    let known = COMMON.iter().chain(OLD).find(|(known, _)| u64::try_from(*known) == Ok(number));
    known.map_or_else(|| format!("call_{number}"), |(_, name)| (*name).to_owned())
}

/// Number and name of each that has one.
pub fn known() -> impl Iterator<Item = (libc::c_long, &'static str)> {
    COMMON.iter().chain(OLD).copied()
}

macro_rules! names {
    ($($number:ident $name:literal),* $(,)?) => {
        &[$((libc::$number, $name)),*]
    };
}

/// Those that every architecture has.
const COMMON: &[(libc::c_long, &str)] = names![
    SYS_read "read", SYS_write "write", SYS_close "close", SYS_fstat "fstat", SYS_lseek "lseek", SYS_mmap "mmap",
    SYS_mprotect "mprotect", SYS_munmap "munmap", SYS_brk "brk", SYS_rt_sigaction "rt_sigaction",
    SYS_rt_sigprocmask "rt_sigprocmask", SYS_rt_sigreturn "rt_sigreturn", SYS_ioctl "ioctl", SYS_pread64 "pread64",
    SYS_pwrite64 "pwrite64", SYS_readv "readv", SYS_writev "writev", SYS_sched_yield "sched_yield", SYS_mremap "mremap",
    SYS_msync "msync", SYS_madvise "madvise", SYS_shmget "shmget", SYS_shmat "shmat", SYS_shmctl "shmctl", SYS_dup "dup",
    SYS_nanosleep "nanosleep", SYS_getitimer "getitimer", SYS_setitimer "setitimer", SYS_getpid "getpid",
    SYS_sendfile "sendfile", SYS_socket "socket", SYS_connect "connect", SYS_accept "accept", SYS_sendto "sendto",
    SYS_recvfrom "recvfrom", SYS_sendmsg "sendmsg", SYS_recvmsg "recvmsg", SYS_shutdown "shutdown", SYS_bind "bind",
    SYS_listen "listen", SYS_getsockname "getsockname", SYS_getpeername "getpeername", SYS_socketpair "socketpair",
    SYS_setsockopt "setsockopt", SYS_getsockopt "getsockopt", SYS_clone "clone", SYS_clone3 "clone3", SYS_execve "execve",
    SYS_exit "exit", SYS_wait4 "wait4", SYS_kill "kill", SYS_semget "semget", SYS_semop "semop", SYS_semctl "semctl",
    SYS_semtimedop "semtimedop", SYS_fcntl "fcntl", SYS_flock "flock", SYS_fsync "fsync", SYS_fdatasync "fdatasync",
    SYS_truncate "truncate", SYS_ftruncate "ftruncate", SYS_getcwd "getcwd", SYS_chdir "chdir", SYS_fchmod "fchmod",
    SYS_umask "umask", SYS_gettimeofday "gettimeofday", SYS_getrlimit "getrlimit", SYS_getrusage "getrusage",
    SYS_times "times", SYS_getuid "getuid", SYS_getgid "getgid", SYS_geteuid "geteuid", SYS_getegid "getegid",
    SYS_getppid "getppid", SYS_setsid "setsid", SYS_statfs "statfs", SYS_prctl "prctl", SYS_gettid "gettid",
    SYS_tkill "tkill", SYS_futex "futex", SYS_getdents64 "getdents64", SYS_fadvise64 "fadvise64",
    SYS_clock_gettime "clock_gettime", SYS_clock_nanosleep "clock_nanosleep", SYS_exit_group "exit_group",
    SYS_tgkill "tgkill", SYS_waitid "waitid", SYS_openat "openat", SYS_mkdirat "mkdirat", SYS_newfstatat "newfstatat",
    SYS_unlinkat "unlinkat", SYS_renameat "renameat", SYS_faccessat "faccessat", SYS_faccessat2 "faccessat2",
    SYS_ppoll "ppoll", SYS_set_robust_list "set_robust_list", SYS_sync_file_range "sync_file_range",
    SYS_fallocate "fallocate", SYS_accept4 "accept4", SYS_epoll_create1 "epoll_create1", SYS_epoll_ctl "epoll_ctl",
    SYS_epoll_pwait "epoll_pwait", SYS_epoll_pwait2 "epoll_pwait2", SYS_signalfd4 "signalfd4", SYS_eventfd2 "eventfd2",
    SYS_timerfd_create "timerfd_create", SYS_timerfd_settime "timerfd_settime", SYS_dup3 "dup3", SYS_pipe2 "pipe2",
    SYS_preadv "preadv", SYS_pwritev "pwritev", SYS_preadv2 "preadv2", SYS_pwritev2 "pwritev2", SYS_prlimit64 "prlimit64",
    SYS_getcpu "getcpu", SYS_renameat2 "renameat2", SYS_getrandom "getrandom", SYS_membarrier "membarrier",
    SYS_statx "statx", SYS_rseq "rseq", SYS_io_setup "io_setup", SYS_io_submit "io_submit",
    SYS_io_getevents "io_getevents", SYS_io_destroy "io_destroy", SYS_io_uring_setup "io_uring_setup",
    SYS_io_uring_enter "io_uring_enter", SYS_set_tid_address "set_tid_address", SYS_sigaltstack "sigaltstack",
    SYS_restart_syscall "restart_syscall", SYS_sched_getaffinity "sched_getaffinity", SYS_uname "uname",
];

/// Those that newer architectures have no more.
#[cfg(target_arch = "x86_64")]
const OLD: &[(libc::c_long, &str)] = names![
    SYS_open "open", SYS_stat "stat", SYS_lstat "lstat", SYS_poll "poll", SYS_access "access", SYS_pipe "pipe",
    SYS_select "select", SYS_dup2 "dup2", SYS_fork "fork", SYS_vfork "vfork", SYS_rename "rename", SYS_mkdir "mkdir",
    SYS_rmdir "rmdir", SYS_creat "creat", SYS_link "link", SYS_unlink "unlink", SYS_symlink "symlink",
    SYS_readlink "readlink", SYS_chmod "chmod", SYS_time "time", SYS_arch_prctl "arch_prctl", SYS_epoll_wait "epoll_wait",
    SYS_getpgrp "getpgrp", SYS_alarm "alarm", SYS_utimes "utimes",
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[(libc::c_long, &str)] = &[];
