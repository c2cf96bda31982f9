//! Collectors that are programs of their own, run beside a server in a counting pass (docs/METHOD.md, "Passes").

pub mod calls;
mod names;
