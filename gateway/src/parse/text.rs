//! JSON strings → text.

use std::borrow::Cow;

/// A string that no UTF-8 text can hold (half a surrogate pair); byte offset within the string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoneSurrogate(pub(crate) usize);

/// Text of a string whose quotes are off and whose escapes are known to be well formed.
pub(crate) fn unescape(inner: &str) -> Result<Cow<'_, str>, LoneSurrogate> {
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Ok(Cow::Borrowed(inner));
    }
    let mut out = String::with_capacity(inner.len());
    unescape_into(inner, &mut out)?;
    Ok(Cow::Owned(out))
}

/// Appends the text of `inner` to `out`; see [`unescape`].
pub(crate) fn unescape_into(inner: &str, out: &mut String) -> Result<(), LoneSurrogate> {
    out.reserve(inner.len());
    let mut rest = inner;
    while let Some(run) = memchr::memchr(b'\\', rest.as_bytes()) {
        out.push_str(&rest[..run]);
        let at = inner.len() - rest.len() + run;
        let code = rest.as_bytes().get(run + 1).copied().unwrap_or(b'\\');
        rest = rest.get(run + 2..).unwrap_or("");
        match code {
            b'n' => out.push('\n'),
            b't' => out.push('\t'),
            b'r' => out.push('\r'),
            b'b' => out.push('\u{8}'),
            b'f' => out.push('\u{c}'),
            b'u' => {
                let (char, after) = unicode(rest).ok_or(LoneSurrogate(at))?;
                out.push(char);
                rest = after;
            }
            quoted => out.push(char::from(quoted)),
        }
    }
    out.push_str(rest);
    Ok(())
}

/// The character of `XXXX` or `XXXX\uYYYY`, and what follows it.
fn unicode(digits: &str) -> Option<(char, &str)> {
    let (unit, rest) = hex4(digits)?;
    if !(0xd800..0xe000).contains(&unit) {
        return Some((char::from_u32(unit)?, rest));
    }
    let (low, rest) = hex4(rest.strip_prefix("\\u")?)?;
    if unit >= 0xdc00 || !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    Some((char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00))?, rest))
}

fn hex4(digits: &str) -> Option<(u32, &str)> {
    let (digits, rest) = digits.split_at_checked(4)?;
    Some((u32::from_str_radix(digits, 16).ok()?, rest))
}
