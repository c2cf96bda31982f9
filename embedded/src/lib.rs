//! A server process around an embedded database engine: it loads the engine's own C library and speaks the PostgreSQL wire,
//! so that such an engine can be measured like any other server.
//!
//! One thread per connection reads a statement, executes it in the engine and writes the answer.

pub mod engine;
pub mod engines;
pub mod library;
pub mod server;
pub mod session;
pub mod sql;
pub mod text;
pub mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`; a thread that panicked with it left nothing half done, as all critical sections here are a few assignments.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
