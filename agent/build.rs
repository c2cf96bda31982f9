//! Compiles `preload/wide_registers.rs`, a shared library, for the agent to carry.

use std::env;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=preload/wide_registers.rs");
    let told = |name: &str| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    if told("CARGO_CFG_TARGET_ARCH") != "x86_64" {
        return;
    }
    let library = Path::new(&told("OUT_DIR")).join("wide_registers.so");
    let compiled = Command::new(told("RUSTC"))
        .args(["--edition", "2024", "--crate-type", "cdylib", "--target", &told("TARGET")])
        .args(["-C", "panic=abort", "-C", "opt-level=2", "-C", "link-arg=-nostdlib", "-o"])
        .arg(library)
        .arg("preload/wide_registers.rs")
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "preload/wide_registers.rs does not compile");
}
