//! See `forebay_fuzz::checks::event_batch`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| forebay_fuzz::checks::event_batch(data));
