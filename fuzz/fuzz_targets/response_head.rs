//! See `forebay_fuzz::checks::response_head`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::response_head(data));
