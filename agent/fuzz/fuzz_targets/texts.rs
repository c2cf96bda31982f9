#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| dbtoll_agent_fuzz::texts(data));
