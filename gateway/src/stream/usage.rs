//! Token counts, read out of an answer without parsing it.
//!
//! A key followed by a colon cannot stand inside a JSON string, whose quotes would be escaped: searching bytes for
//! `"usage":` therefore finds keys only, whatever a model writes.

use std::ops::Range;

/// Token counts of one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens.
    pub prompt_tokens: u32,
    /// Of which served from cache, where the engine says so.
    pub cached_tokens: Option<u32>,
    /// Generated tokens.
    pub completion_tokens: Option<u32>,
}

impl Usage {
    /// The last `"usage": {…}` of a document; `None` without one or without prompt tokens.
    pub fn find_last(document: &[u8]) -> Option<Self> {
        let at = memchr::memmem::rfind(document, b"\"usage\":")?;
        Self::read(&document[at + b"\"usage\":".len()..])
    }

    /// Reads the object that `value` starts with.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let object = object(value)?;
        let object = &value[object];
        Some(Self {
            prompt_tokens: number(object, b"\"prompt_tokens\":")?,
            cached_tokens: number(object, b"\"cached_tokens\":"),
            completion_tokens: number(object, b"\"completion_tokens\":"),
        })
    }
}

/// The object at the start of `value`: counts and objects of counts, so braces are never quoted.
fn object(value: &[u8]) -> Option<Range<usize>> {
    let start = value.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let mut depth = 0_u32;
    for (at, byte) in value.iter().enumerate().skip(start) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return (at > start).then_some(start..at + 1);
        }
    }
    None
}

fn number(object: &[u8], key: &[u8]) -> Option<u32> {
    let at = memchr::memmem::find(object, key)? + key.len();
    let digits = object[at..].trim_ascii_start();
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&digits[..length]).ok()?.parse().ok()
}
