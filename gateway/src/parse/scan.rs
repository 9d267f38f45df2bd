//! Strict JSON, checked in one forward pass without building anything.
//!
//! Containers are tracked in a bit mask, not on the call stack, so that no nesting can overflow it. Strings are skipped
//! from quote to escape to quote by vector search; control characters, which only badly written JSON has within
//! strings, are looked for once in the whole body and then only where there are any.

use std::ops::Range;

/// Deepest nesting accepted, the body's own braces included. Tool schemas stay below 30; engines stop near 1,000.
pub(crate) const MAX_DEPTH: u32 = 128;

/// Where and why a body is not the JSON that we accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Byte offset.
    pub(crate) at: usize,
    /// What was expected, or what is wrong there.
    pub(crate) what: &'static str,
}

/// A string as it stands in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawString {
    /// Bytes between the quotes.
    pub(crate) inner: Range<usize>,
    /// Whether it holds escapes and must be unescaped before use.
    pub(crate) escaped: bool,
}

/// A position in a body.
#[derive(Clone, Debug)]
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
    lone_surrogate: Option<usize>,
    /// A nested key was met that may name something to fetch or to load, or that is written in escapes.
    watched: bool,
    /// Whether strings may hold control characters: there are some, and nobody has looked yet.
    has_controls: bool,
}

impl<'a> Scanner<'a> {
    /// Starts at `at`, `depth` containers deep.
    pub(crate) fn new(bytes: &'a [u8], at: usize, depth: u32) -> Self {
        Self { has_controls: any_control(bytes), ..Self::again(bytes, at, depth) }
    }

    /// Starts within what a scanner has found valid before.
    pub(crate) fn again(bytes: &'a [u8], at: usize, depth: u32) -> Self {
        Self { bytes, at, depth, lone_surrogate: None, watched: false, has_controls: false }
    }

    /// Where it stands.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The first `\ud800`-like escape without its other half since the last call, which no UTF-8 text can hold.
    pub(crate) fn take_lone_surrogate(&mut self) -> Option<usize> {
        self.lone_surrogate.take()
    }

    /// Whether a nested key was `url` or ended in `_url` or `_embeds`, or might, since the last call.
    pub(crate) fn take_watched(&mut self) -> bool {
        std::mem::take(&mut self.watched)
    }

    /// The next byte, not consumed.
    pub(crate) fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Consumes `byte` or says that `what` was expected.
    pub(crate) fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Broken> {
        if self.peek() == Some(byte) {
            self.at += 1;
            return Ok(());
        }
        Err(self.broken(what))
    }

    /// Consumes `byte` where it is next.
    pub(crate) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// An error at this position.
    pub(crate) fn broken(&self, what: &'static str) -> Broken {
        Broken { at: self.at, what }
    }

    /// Skips JSON white space.
    pub(crate) fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    /// Consumes a whole value (white space before it included) and returns its span.
    pub(crate) fn value(&mut self) -> Result<Range<usize>, Broken> {
        self.skip_space();
        let start = self.at;
        // Bit i says whether container i below this value is an object.
        let mut objects = 0_u128;
        let mut open = 0_u32;
        loop {
            match self.open_or_scalar()? {
                Some(object) => {
                    if self.depth + open >= MAX_DEPTH {
                        return Err(Broken { at: self.at - 1, what: "nesting deeper than 128" });
                    }
                    objects = objects << 1 | u128::from(object);
                    open += 1;
                    self.skip_space();
                    if !self.take(if object { b'}' } else { b']' }) {
                        if object {
                            self.nested_key()?;
                        }
                        continue;
                    }
                    objects >>= 1;
                    open -= 1;
                }
                None if open == 0 => return Ok(start..self.at),
                None => {}
            }
            self.after_value(&mut objects, &mut open)?;
            if open == 0 {
                return Ok(start..self.at);
            }
        }
    }

    /// Closes every container that ends here, then stands at the next value of the innermost open one.
    fn after_value(&mut self, objects: &mut u128, open: &mut u32) -> Result<(), Broken> {
        while *open > 0 {
            self.skip_space();
            let object = *objects & 1 == 1;
            if self.take(b',') {
                self.skip_space();
                if object {
                    self.nested_key()?;
                }
                return Ok(());
            }
            self.expect(
                if object { b'}' } else { b']' },
                if object { "expected ',' or '}'" } else { "expected ',' or ']'" },
            )?;
            *objects >>= 1;
            *open -= 1;
        }
        Ok(())
    }

    /// Consumes an opening bracket (`Some(is_object)`) or a whole scalar.
    fn open_or_scalar(&mut self) -> Result<Option<bool>, Broken> {
        self.skip_space();
        match self.peek() {
            Some(b'{') => {
                self.at += 1;
                return Ok(Some(true));
            }
            Some(b'[') => {
                self.at += 1;
                return Ok(Some(false));
            }
            Some(b'"') => self.string().map(|_| ())?,
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b't') => self.literal(b"true")?,
            Some(b'f') => self.literal(b"false")?,
            Some(b'n') => self.literal(b"null")?,
            _ => return Err(self.broken("expected a value")),
        }
        Ok(None)
    }

    /// Consumes a key, its colon and the white space after it.
    pub(crate) fn key(&mut self) -> Result<RawString, Broken> {
        if self.peek() != Some(b'"') {
            return Err(self.broken("expected a key in double quotes"));
        }
        let key = self.string()?;
        self.skip_space();
        self.expect(b':', "expected ':'")?;
        self.skip_space();
        Ok(key)
    }

    fn nested_key(&mut self) -> Result<(), Broken> {
        let key = self.key()?;
        let name = &self.bytes[key.inner];
        self.watched |= key.escaped || name.ends_with(b"_url") || name.ends_with(b"_embeds") || name == b"url";
        Ok(())
    }

    fn literal(&mut self, word: &'static [u8]) -> Result<(), Broken> {
        if !self.bytes[self.at..].starts_with(word) {
            return Err(self.broken("expected true, false or null"));
        }
        self.at += word.len();
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Broken> {
        if !self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return Err(self.broken("expected a digit"));
        }
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), Broken> {
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            self.digits()?;
        }
        Ok(())
    }

    /// Consumes a string; stands on its opening quote.
    pub(crate) fn string(&mut self) -> Result<RawString, Broken> {
        self.expect(b'"', "expected a string")?;
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = &self.bytes[self.at..];
            let run = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
            if self.has_controls && any_control(&rest[..run]) {
                self.at += rest.iter().position(|byte| *byte < 0x20).unwrap_or(run);
                return Err(self.broken("control character in a string: escape it"));
            }
            self.at += run;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(RawString { inner: start..self.at - 1, escaped });
                }
                Some(_) => {
                    escaped = true;
                    self.escape()?;
                }
                None => return Err(self.broken("string is not closed")),
            }
        }
    }

    fn escape(&mut self) -> Result<(), Broken> {
        let start = self.at;
        self.at += 1;
        match self.peek() {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 1,
            Some(b'u') => {
                self.at += 1;
                let unit = self.hex4()?;
                let paired = match unit {
                    0xd800..=0xdbff if self.bytes[self.at..].starts_with(b"\\u") => {
                        let mut ahead = self.clone();
                        ahead.at += 2;
                        let low = ahead.hex4()?;
                        if matches!(low, 0xdc00..=0xdfff) {
                            self.at = ahead.at;
                            true
                        } else {
                            false
                        }
                    }
                    0xd800..=0xdfff => false,
                    _ => true,
                };
                if !paired && self.lone_surrogate.is_none() {
                    self.lone_surrogate = Some(start);
                }
            }
            _ => return Err(self.broken("unknown escape")),
        }
        Ok(())
    }

    fn hex4(&mut self) -> Result<u16, Broken> {
        let mut unit = 0_u16;
        for _ in 0..4 {
            let digit = self.peek().and_then(|b| char::from(b).to_digit(16));
            let Some(digit) = digit.and_then(|d| u16::try_from(d).ok()) else {
                return Err(self.broken("expected four hex digits"));
            };
            unit = unit << 4 | digit;
            self.at += 1;
        }
        Ok(unit)
    }
}

/// Whether any byte is a control character. No early exit: the compiler then compares whole vectors.
fn any_control(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |any, byte| any | u8::from(*byte < 0x20)) != 0
}
