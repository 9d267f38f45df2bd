//! Token counts, read out of an answer without parsing it.
//!
//! A key followed by a colon cannot stand inside a JSON string, whose quotes would be escaped: searching bytes for
//! `"usage":` therefore finds keys only, whatever a model writes.

use crate::parse::Scanner;
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

/// Counts as far as a document gives them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) prompt: Option<u32>,
    pub(super) cached: Option<u32>,
    pub(super) completion: Option<u32>,
}

/// Objects called `usage` that are looked at from the end of a document: an answer may repeat its tools, which may have
/// a field of that name.
const MAX_TRIES: usize = 8;

impl Usage {
    /// The last `"usage": {…}` of a document that counts prompt tokens, else its last `"meta_info": {…}`.
    pub fn find_last(document: &[u8]) -> Option<Self> {
        const USAGE: &[u8] = b"\"usage\":";
        const META_INFO: &[u8] = b"\"meta_info\":";
        let found = memchr::memmem::rfind_iter(document, USAGE).take(MAX_TRIES);
        let mut usages = found.filter_map(|at| Self::read(&document[at + USAGE.len()..]));
        usages.next().or_else(|| {
            let at = memchr::memmem::rfind(document, META_INFO)?;
            read_meta_info(&document[at + META_INFO.len()..])
        })
    }

    /// Reads the object that `value` starts with.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        Counts::read(value)?.usage()
    }
}

impl Counts {
    /// Reads the object that `value` starts with, in OpenAI's names or in Anthropic's, whose `input_tokens` are those that
    /// were not in the cache.
    pub(super) fn read(value: &[u8]) -> Option<Self> {
        let object = &value[object(value)?];
        if let Some(prompt) = number(object, b"\"prompt_tokens\":") {
            return Some(Self::new(object, Some(prompt), b"\"completion_tokens\":"));
        }
        let read = number(object, b"\"cache_read_input_tokens\":");
        let created = number(object, b"\"cache_creation_input_tokens\":");
        let fresh = number(object, b"\"input_tokens\":");
        let prompt = fresh.map(|fresh| fresh.saturating_add(read.unwrap_or(0)).saturating_add(created.unwrap_or(0)));
        let counts = Self::new(object, prompt, b"\"output_tokens\":");
        Some(Self { cached: read.or(counts.cached), ..counts })
    }

    fn new(object: &[u8], prompt: Option<u32>, completion: &[u8]) -> Self {
        Self { prompt, cached: number(object, b"\"cached_tokens\":"), completion: number(object, completion) }
    }

    /// These counts, completed by `earlier` ones.
    pub(super) fn or(self, earlier: Self) -> Self {
        Self {
            prompt: self.prompt.or(earlier.prompt),
            cached: self.cached.or(earlier.cached),
            completion: self.completion.or(earlier.completion),
        }
    }

    /// `None` without prompt tokens.
    pub(super) fn usage(self) -> Option<Usage> {
        let Self { prompt, cached, completion } = self;
        Some(Usage { prompt_tokens: prompt?, cached_tokens: cached, completion_tokens: completion })
    }
}

/// SGLang's counts, in an object that also holds text (the stop string that matched).
pub(super) fn read_meta_info(value: &[u8]) -> Option<Usage> {
    let mut scanner = Scanner::again(value, 0, 0);
    scanner.skip_space();
    let object = &value[scanner.value().ok()?];
    let prompt = number(object, b"\"prompt_tokens\":");
    Counts::new(object, prompt, b"\"completion_tokens\":").usage()
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
