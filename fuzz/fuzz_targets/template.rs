//! See `forebay_fuzz::checks::template`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::template(data));
