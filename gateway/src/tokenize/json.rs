//! JSON text → template values, with the number rules of the engines' JSON library.
//!
//! The engines read JSON in Python: integers have no limit, floats are doubles, the last of two equal keys wins and
//! keeps the first one's place. What a value here cannot hold is refused, never rounded.

use crate::parse::{RawString, Scanner, text};
use minijinja::Value;
use std::borrow::Cow;
use std::ops::Range;

/// Deeper values are left to the engine.
const MAX_DEPTH: u32 = 128;

/// Why a text could not become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It is not JSON.
    NotJson,
    /// It is, but holds what we cannot represent exactly.
    Unsupported(&'static str),
}

/// A JSON string within a text, unescaped only when it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawText<'a> {
    inner: &'a str,
    escaped: bool,
}

impl<'a> RawText<'a> {
    /// The string that `raw` spans in `json`.
    pub(crate) fn new(json: &'a str, raw: RawString) -> Self {
        Self { inner: &json[raw.inner], escaped: raw.escaped }
    }

    /// Text of this string; `None` for half a surrogate pair.
    pub(crate) fn text(&self) -> Option<Cow<'a, str>> {
        if self.escaped { text::unescape(self.inner).ok() } else { Some(Cow::Borrowed(self.inner)) }
    }

    /// Appends the text to `out`; `None` for half a surrogate pair.
    pub(crate) fn push_to(&self, out: &mut String) -> Option<()> {
        if !self.escaped {
            out.push_str(self.inner);
            return Some(());
        }
        text::unescape_into(self.inner, out).ok()
    }

    /// Bytes between the quotes.
    pub(crate) fn raw(&self) -> &'a str {
        self.inner
    }
}

/// Reads a whole text that must be one JSON value.
pub(crate) fn read(json: &str) -> Result<Value, Unreadable> {
    let mut scanner = Scanner::new(json.as_bytes(), 0, 0);
    let value = read_value(json, &mut scanner, 0)?;
    scanner.skip_space();
    if scanner.at() < json.len() {
        return Err(Unreadable::NotJson);
    }
    Ok(value)
}

/// Reads the value at the scanner's position; `json` is the text that it scans.
pub(crate) fn read_value(json: &str, scanner: &mut Scanner<'_>, depth: u32) -> Result<Value, Unreadable> {
    scanner.skip_space();
    match scanner.peek() {
        Some(b'{' | b'[') if depth >= MAX_DEPTH => Err(Unreadable::Unsupported("nesting")),
        Some(b'{') => {
            let mut pairs = Vec::new();
            members(json, scanner, |key, scanner| {
                pairs.push((key, read_value(json, scanner, depth + 1)?));
                Ok(())
            })?;
            Ok(Value::from_pairs(pairs))
        }
        Some(b'[') => {
            let mut list = Vec::new();
            elements(scanner, |scanner| {
                list.push(read_value(json, scanner, depth + 1)?);
                Ok(())
            })?;
            Ok(Value::from(list))
        }
        Some(b'"') => Ok(Value::from(string(json, scanner)?)),
        _ => scalar(json, scanner),
    }
}

/// Reads a string into text.
pub(crate) fn string<'a>(json: &'a str, scanner: &mut Scanner<'_>) -> Result<Cow<'a, str>, Unreadable> {
    let raw = scanner.string().map_err(|_| Unreadable::NotJson)?;
    RawText::new(json, raw).text().ok_or(Unreadable::Unsupported("half a surrogate pair"))
}

/// Calls `each` with every key of the object at the scanner's position, the scanner standing on the value.
pub(crate) fn members<'a>(
    json: &'a str,
    scanner: &mut Scanner<'_>,
    mut each: impl FnMut(Cow<'a, str>, &mut Scanner<'_>) -> Result<(), Unreadable>,
) -> Result<(), Unreadable> {
    scanner.expect(b'{', "").map_err(|_| Unreadable::NotJson)?;
    scanner.skip_space();
    if scanner.take(b'}') {
        return Ok(());
    }
    loop {
        let raw = scanner.key().map_err(|_| Unreadable::NotJson)?;
        let key = RawText::new(json, raw).text().ok_or(Unreadable::Unsupported("half a surrogate pair"))?;
        each(key, scanner)?;
        scanner.skip_space();
        if scanner.take(b'}') {
            return Ok(());
        }
        scanner.expect(b',', "").map_err(|_| Unreadable::NotJson)?;
        scanner.skip_space();
    }
}

/// Calls `each` on every element of the array at the scanner's position.
pub(crate) fn elements(
    scanner: &mut Scanner<'_>,
    mut each: impl FnMut(&mut Scanner<'_>) -> Result<(), Unreadable>,
) -> Result<(), Unreadable> {
    scanner.expect(b'[', "").map_err(|_| Unreadable::NotJson)?;
    scanner.skip_space();
    if scanner.take(b']') {
        return Ok(());
    }
    loop {
        scanner.skip_space();
        each(scanner)?;
        scanner.skip_space();
        if scanner.take(b']') {
            return Ok(());
        }
        scanner.expect(b',', "").map_err(|_| Unreadable::NotJson)?;
    }
}

/// Places of the members `names` of the object at the scanner's position, the last of equal ones; null counts as absent.
pub(crate) fn spans<const N: usize>(
    json: &str,
    scanner: &mut Scanner<'_>,
    names: [&str; N],
) -> Result<[Option<Range<usize>>; N], Unreadable> {
    if scanner.peek() != Some(b'{') {
        return Err(Unreadable::Unsupported("an element that is no object"));
    }
    let mut places = [const { None }; N];
    members(json, scanner, |key, scanner| {
        let span = scanner.value().map_err(|_| Unreadable::NotJson)?;
        if let Some(at) = names.iter().position(|name| *name == key) {
            places[at] = (&json[span.clone()] != "null").then_some(span);
        }
        Ok(())
    })?;
    Ok(places)
}

/// The text of the string at `span`, which must be there.
pub(crate) fn text_at(json: &str, span: Option<Range<usize>>) -> Result<Cow<'_, str>, Unreadable> {
    let value = span.map(|span| &json[span]).filter(|value| value.starts_with('"'));
    let value = value.ok_or(Unreadable::Unsupported("field type"))?;
    string(value, &mut Scanner::again(value.as_bytes(), 0, 0))
}

fn scalar(json: &str, scanner: &mut Scanner<'_>) -> Result<Value, Unreadable> {
    let span = scanner.value().map_err(|_| Unreadable::NotJson)?;
    let word = &json[span];
    match word {
        "null" => return Ok(Value::from(())),
        "true" => return Ok(Value::from(true)),
        "false" => return Ok(Value::from(false)),
        _ => {}
    }
    if word.bytes().any(|b| matches!(b, b'.' | b'e' | b'E')) {
        let float = word.parse::<f64>().ok().filter(|f| f.is_finite());
        return float.map(Value::from).ok_or(Unreadable::Unsupported("number out of range"));
    }
    if let Ok(integer) = word.parse::<i64>() {
        return Ok(Value::from(integer));
    }
    word.parse::<i128>().map(Value::from).map_err(|_| Unreadable::Unsupported("integer beyond 128 bits"))
}
