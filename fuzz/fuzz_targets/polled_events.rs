//! See `forebay_fuzz::checks::polled_events`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::polled_events(data));
