//! See `forebay_fuzz::checks::agent_frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::agent_frame(data));
