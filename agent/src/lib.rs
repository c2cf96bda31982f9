//! `dbtoll-agent`: runs, relays and times inside every machine that dbtoll measures. docs/PROTOCOL.md is its contract.

pub mod address;
pub mod children;
pub mod clock;
pub mod collect;
pub mod connection;
pub mod device;
pub mod driver;
pub mod failure;
pub mod guest;
pub mod launch;
pub mod method;
pub mod oltp;
pub mod probe;
pub mod proto;
pub mod random;
mod relay;
pub mod stream;
pub mod talk;
pub mod tpch;
pub mod uml;
mod users;
pub mod wire;
mod workers;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks also after another holder panicked: what our mutexes guard is whole between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
