//! See `forebay_fuzz::checks::request_body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::request_body(data));
