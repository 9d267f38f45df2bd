//! See `forebay_fuzz::checks::chunked_body`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::chunked_body(data));
