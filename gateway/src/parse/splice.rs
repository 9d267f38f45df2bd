//! Edits of a body that leave every other byte where it was.

use super::Parsed;
use bytes::Bytes;
use std::ops::Range;

const WHOLE_FIELD: &[u8] = br#","stream_options":{"include_usage":true}"#;
const WHOLE_OBJECT: &[u8] = br#"{"include_usage":true}"#;
const ONLY_MEMBER: &[u8] = br#""include_usage":true"#;
const FIRST_MEMBER: &[u8] = br#""include_usage":true,"#;
const TRUE: &[u8] = b"true";

/// See [`Parsed::upstream_body`].
pub(super) fn upstream_body(parsed: &Parsed) -> Vec<Bytes> {
    let mut edits = parsed.edits.clone();
    if parsed.wants_usage_stripped() {
        let (replaced, new) = edit(parsed);
        edits.push((replaced, Bytes::from_static(new)));
    }
    // Stable: of two insertions at one place the first stays first.
    edits.sort_by_key(|(replaced, _)| replaced.start);
    let mut parts = Vec::with_capacity(2 * edits.len() + 1);
    let mut from = 0;
    for (replaced, new) in edits {
        parts.extend([parsed.body.slice(from..replaced.start), new]);
        from = replaced.end;
    }
    parts.push(parsed.body.slice(from..));
    parts
}

/// The bytes to replace (none: insert) and what stands there instead.
fn edit(parsed: &Parsed) -> (Range<usize>, &'static [u8]) {
    if let Some(value) = &parsed.include_usage_value {
        return (value.clone(), TRUE);
    }
    let Some(options) = &parsed.stream_options else {
        // The object is never empty: it has a `model`.
        return (parsed.close..parsed.close, WHOLE_FIELD);
    };
    let bytes = &parsed.body[options.clone()];
    if bytes.first() != Some(&b'{') {
        return (options.clone(), WHOLE_OBJECT);
    }
    let inside = options.start + 1;
    let empty = bytes[1..].trim_ascii_start() == b"}";
    (inside..inside, if empty { ONLY_MEMBER } else { FIRST_MEMBER })
}
