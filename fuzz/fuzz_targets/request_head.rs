//! See `forebay_fuzz::checks::request_head`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::request_head(data));
