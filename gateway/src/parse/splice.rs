//! Edits of a body that leave every other byte where it was.

use super::Parsed;
use bytes::Bytes;
use std::fmt::Write as _;
use std::ops::Range;

const WHOLE_FIELD: &[u8] = br#","stream_options":{"include_usage":true}"#;
const WHOLE_OBJECT: &[u8] = br#"{"include_usage":true}"#;
const ONLY_MEMBER: &[u8] = br#""include_usage":true"#;
const FIRST_MEMBER: &[u8] = br#""include_usage":true,"#;
const TRUE: &[u8] = b"true";

/// Where an engine takes the ids of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdsPlace {
    /// In the place of the prompt's text.
    Prompt,
    /// In this field, the prompt's text gone.
    InsteadOfText(&'static str),
    /// In this field, beside the conversation.
    Beside(&'static str),
}

/// See [`Parsed::body_with_ids`].
pub(super) fn body_with_ids(parsed: &Parsed, place: IdsPlace, ids: &[u32]) -> Vec<Bytes> {
    let mut written = String::with_capacity(ids.len() * 7 + 16);
    let text = parsed.prompt.clone();
    let mut edits = Vec::new();
    let at = match place {
        IdsPlace::Prompt => text,
        IdsPlace::InsteadOfText(_) | IdsPlace::Beside(_) => parsed.close..parsed.close,
    };
    if let IdsPlace::InsteadOfText(field) | IdsPlace::Beside(field) = place {
        // The object is never empty: it has a prompt.
        written.extend([",\"", field, "\":"]);
    }
    if let IdsPlace::InsteadOfText(_) = place {
        edits.push((parsed.prompt.clone(), Bytes::from_static(b"null")));
    }
    written.push('[');
    for (position, id) in ids.iter().enumerate() {
        if position > 0 {
            written.push(',');
        }
        // Writing into memory cannot fail.
        let _ = write!(written, "{id}");
    }
    written.push(']');
    edits.push((at, written.into()));
    edited(parsed, edits)
}

/// See [`Parsed::upstream_body`].
pub(super) fn upstream_body(parsed: &Parsed) -> Vec<Bytes> {
    edited(parsed, Vec::new())
}

/// The body with its own edits and `more` of them.
fn edited(parsed: &Parsed, more: Vec<(Range<usize>, Bytes)>) -> Vec<Bytes> {
    let mut edits = parsed.edits.clone();
    edits.extend(more);
    if parsed.wants_usage_stripped() {
        let (replaced, new) = edit(parsed);
        edits.push((replaced, Bytes::from_static(new)));
    }
    // Stable: of two insertions at one place the first stays first.
    edits.sort_by_key(|(replaced, _)| replaced.start);
    let mut parts = Vec::with_capacity(2 * edits.len() + 1);
    let mut from = 0;
    for (replaced, new) in edits {
        // Within what an earlier edit has replaced there is nothing left to edit.
        if replaced.start < from {
            continue;
        }
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
