//! `dbtoll-agent uml`: becomes a program that has room for all registers of this processor.

use std::fs;
use std::process::{Command, Output};

fn become_program(argv: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dbtoll-agent")).arg("uml").args(argv).output().unwrap()
}

#[test]
fn wide_registers_are_there_where_the_processor_has_them() {
    let shown = become_program(&["cat", "/proc/self/maps"]);
    assert!(shown.status.success(), "{shown:?}");
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap();
    // Nothing else by now makes a state larger than 2696 bytes.
    let wide = processor.split_whitespace().any(|flag| flag == "amx_tile");
    assert_eq!(String::from_utf8(shown.stdout).unwrap().contains("memfd:wide_registers"), wide);
}

#[test]
fn what_cannot_be_executed_is_named() {
    let refused = become_program(&["/nowhere/linux.uml"]);
    assert!(!refused.status.success());
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(told.contains("/nowhere/linux.uml: No such file or directory"), "{told}");
}
