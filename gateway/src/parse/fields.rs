//! One pass over a body: its known fields, and where their values go.

use super::known::Kind;
use super::scan::{Broken, Scanner};
use super::{Dialect, Parsed, text};
use crate::error::Fault;
use bytes::Bytes;
use std::borrow::Cow;
use std::ops::Range;

/// What one scan gathers.
struct Scan<'a> {
    body: &'a Bytes,
    text: &'a str,
    parsed: Parsed,
    /// Bit i: known field i was there.
    seen: u64,
    /// `max_completion_tokens`, which goes before `max_tokens`, as in the engines.
    newer_limit: Option<u32>,
}

/// Scans the whole body; [`Parsed::body`] is left for the caller to fill.
pub(super) fn scan(dialect: Dialect, body: &Bytes) -> Result<Parsed, Fault> {
    let text = std::str::from_utf8(body);
    let text = text.map_err(|error| not_json(Broken { at: error.valid_up_to(), what: "not UTF-8" }))?;
    let mut scan = Scan { body, text, parsed: Parsed::empty(dialect), seen: 0, newer_limit: None };
    let mut scanner = Scanner::new(body, 0, 1);
    scanner.skip_space();
    scanner.expect(b'{', "expected an object").map_err(not_json)?;
    scanner.skip_space();
    if !scanner.take(b'}') {
        loop {
            scan.member(&mut scanner)?;
            scanner.skip_space();
            if !scanner.take(b',') {
                scanner.expect(b'}', "expected ',' or '}'").map_err(not_json)?;
                break;
            }
            scanner.skip_space();
        }
    }
    scan.parsed.close = scanner.at() - 1;
    scanner.skip_space();
    if scanner.at() < body.len() {
        return Err(not_json(scanner.broken("nothing may follow the object")));
    }
    scan.finish()
}

impl Scan<'_> {
    /// One `"key": value` of the outermost object.
    fn member(&mut self, scanner: &mut Scanner<'_>) -> Result<(), Fault> {
        let key = scanner.key().map_err(not_json)?;
        let raw = &self.text[key.inner.clone()];
        let key = if key.escaped {
            text::unescape(raw).map_err(|lone| lone_surrogate(key.inner.start + lone.0))?
        } else {
            Cow::Borrowed(raw)
        };
        scanner.take_lone_surrogate();
        scanner.take_watched();
        let span = scanner.value().map_err(not_json)?;
        let lone = scanner.take_lone_surrogate();
        let watched = scanner.take_watched();
        let Some((index, name, kind)) = self.parsed.dialect.field(&key) else {
            return Ok(());
        };
        if let Some(at) = lone {
            return Err(lone_surrogate(at).with_param(name));
        }
        let mark = 1_u64 << index;
        if self.seen & mark != 0 {
            return Err(fault("duplicate_field", format!("`{name}` occurs twice; give it once")).with_param(name));
        }
        self.seen |= mark;
        let first = self.body[span.start];
        if first == b'n' {
            if name == "stream_options" {
                self.parsed.stream_options = Some(span);
            }
            return Ok(());
        }
        if !kind.accepts(first) {
            return Err(wrong_type(name, kind.name()));
        }
        if kind == Kind::Guarded {
            self.parsed.guarded.push((name, span));
            return Ok(());
        }
        self.parsed.has_media |=
            watched && matches!(name, "messages" | "input" | "query" | "queries" | "text_1" | "data_1");
        self.record(name, kind, span)
    }

    /// Stores the value of a known field, which has the right JSON type and is not null.
    fn record(&mut self, name: &'static str, kind: Kind, span: Range<usize>) -> Result<(), Fault> {
        match name {
            "model" => (self.parsed.model, self.parsed.model_span) = (self.string(&span)?, span),
            "stream" => self.parsed.stream = self.body[span.start] == b't',
            "stream_options" => self.stream_options(span)?,
            "max_tokens" => self.parsed.max_tokens = Some(self.token_limit(name, span)?),
            "max_completion_tokens" | "max_output_tokens" => self.newer_limit = Some(self.token_limit(name, span)?),
            "n" => {
                self.parsed.n = self.unsigned(name, &span)?;
                if self.parsed.n == 0 {
                    return Err(fault("invalid_field", "`n` must be at least 1".to_owned()).with_param(name));
                }
            }
            "priority" => self.parsed.priority = self.integer(name, &span)?,
            "cache_salt" => self.parsed.cache_salt = Some(self.string(&span)?),
            "user" => self.parsed.user = Some(self.string(&span)?),
            "session_id" => self.parsed.session_id = Some(self.string(&span)?),
            "prompt_cache_key" => self.parsed.session_hint = Some(self.string(&span)?),
            "metadata" => self.metadata(&span)?,
            "sampling_params" => self.sampling_params(&span)?,
            "messages" | "prompt" | "input" | "token_ids" | "query" => self.prompt(name, span),
            "text" | "input_ids" | "queries" | "text_1" | "data_1" => self.prompt(name, span),
            "tools" => self.parsed.tools = Some(span),
            _ => {
                if kind == Kind::Integer {
                    self.integer(name, &span)?;
                }
                self.parsed.template_fields.push((name, span));
            }
        }
        Ok(())
    }

    /// Notes where the prompt is; of several the first.
    fn prompt(&mut self, name: &'static str, span: Range<usize>) {
        if self.parsed.prompt.is_empty() {
            (self.parsed.prompt, self.parsed.prompt_field) = (span, name);
        } else {
            self.parsed.template_fields.push((name, span));
        }
    }

    /// Calls `each` with the members of the object `span`, which has been scanned before; `name` for complaints.
    fn members(
        &mut self,
        name: &'static str,
        span: &Range<usize>,
        mut each: impl FnMut(&mut Self, &str, Range<usize>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut scanner = Scanner::again(self.body, span.start + 1, 2);
        scanner.skip_space();
        while scanner.peek() != Some(b'}') {
            let key = scanner.key().map_err(not_json)?;
            let value = scanner.value().map_err(not_json)?;
            let key = text::unescape(&self.text[key.inner]).map_err(|_| wrong_type(name, "plain keys"))?;
            each(self, &key, value)?;
            scanner.skip_space();
            if scanner.take(b',') {
                scanner.skip_space();
            }
        }
        Ok(())
    }

    /// Looks for `include_usage` in the `stream_options` object.
    fn stream_options(&mut self, span: Range<usize>) -> Result<(), Fault> {
        const NAME: &str = "stream_options.include_usage";
        self.members("stream_options", &span, |scan, key, value| {
            if key != "include_usage" {
                return Ok(());
            }
            if scan.parsed.include_usage_value.is_some() {
                return Err(fault("duplicate_field", format!("`{NAME}` occurs twice; give it once")).with_param(NAME));
            }
            match scan.body[value.start] {
                b't' => scan.parsed.include_usage = true,
                b'f' | b'n' => {}
                _ => return Err(wrong_type(NAME, Kind::Flag.name())),
            }
            scan.parsed.include_usage_value = Some(value);
            Ok(())
        })?;
        self.parsed.stream_options = Some(span);
        Ok(())
    }

    /// Looks for how much is asked for. A list (one entry for each of several prompts) is left to the engine, and so is
    /// what has an odd type.
    fn sampling_params(&mut self, span: &Range<usize>) -> Result<(), Fault> {
        if self.body[span.start] != b'{' {
            return Ok(());
        }
        self.members("sampling_params", span, |scan, key, value| {
            let number = scan.text[value.clone()].parse().ok();
            match (key, number) {
                ("max_new_tokens" | "max_tokens", Some(limit)) => {
                    scan.parsed.max_tokens = Some(limit);
                    scan.parsed.token_limits.push((limit, value));
                }
                ("n", Some(n)) if n > 0 => scan.parsed.n = n,
                _ => {
                    let guarded = Dialect::guarded(key).filter(|_| scan.body[value.start] != b'n');
                    scan.parsed.guarded.extend(guarded.map(|name| (name, value)));
                }
            }
            Ok(())
        })
    }

    /// Claude Code names its session within `metadata.user_id`, which changes with the session and not before.
    fn metadata(&mut self, span: &Range<usize>) -> Result<(), Fault> {
        self.members("metadata", span, |scan, key, value| {
            let user = &scan.text[value.clone()];
            if key == "user_id" && user.starts_with('"') && user.contains("session") {
                scan.parsed.session_hint = scan.string(&value).ok();
            }
            Ok(())
        })
    }

    /// Text of a string value without half surrogates.
    fn string(&self, span: &Range<usize>) -> Result<String, Fault> {
        let inner = &self.text[span.start + 1..span.end - 1];
        let text = text::unescape(inner).map_err(|lone| lone_surrogate(span.start + 1 + lone.0))?;
        Ok(text.into_owned())
    }

    /// An integer, also where it is written as `16.0` or `1e3`, as the engines take it.
    fn integer(&self, name: &'static str, span: &Range<usize>) -> Result<i64, Fault> {
        let digits = &self.text[span.clone()];
        if let Ok(integer) = digits.parse() {
            return Ok(integer);
        }
        // 2^53: every integer up to here is exact in an f64.
        const EXACT: f64 = 9_007_199_254_740_992.0;
        match digits.parse::<f64>() {
            #[expect(clippy::cast_possible_truncation, reason = "whole and within ±2^53")]
            Ok(float) if float.fract() == 0.0 && float.abs() <= EXACT => Ok(float as i64),
            _ => Err(wrong_type(name, Kind::Integer.name())),
        }
    }

    fn unsigned(&self, name: &'static str, span: &Range<usize>) -> Result<u32, Fault> {
        u32::try_from(self.integer(name, span)?).map_err(|_| {
            fault("invalid_field", format!("`{name}` must be between 0 and {}", u32::MAX)).with_param(name)
        })
    }

    fn token_limit(&mut self, name: &'static str, span: Range<usize>) -> Result<u32, Fault> {
        let limit = self.unsigned(name, &span)?;
        self.parsed.token_limits.push((limit, span));
        Ok(limit)
    }

    /// Checks what only the whole body can tell.
    fn finish(self) -> Result<Parsed, Fault> {
        let mut parsed = self.parsed;
        parsed.max_tokens = self.newer_limit.or(parsed.max_tokens);
        if parsed.model.is_empty() && !parsed.dialect.may_omit_model() {
            return Err(missing("model", "name the model to use; GET /v1/models lists them"));
        }
        if let Some(field) = parsed.dialect.prompt_field()
            && parsed.prompt.is_empty()
            && parsed.template_span("prompt_embeds").is_none()
        {
            return Err(missing(field, "there is nothing to work on"));
        }
        Ok(parsed)
    }
}

fn fault(code: &'static str, message: String) -> Fault {
    Fault::client(400, code, message)
}

fn not_json(broken: Broken) -> Fault {
    fault("invalid_json", format!("the body is not valid JSON: {} at byte {}", broken.what, broken.at))
}

fn lone_surrogate(at: usize) -> Fault {
    fault("invalid_json", format!("the body is not valid UTF-8: the escape at byte {at} is half a surrogate pair"))
}

fn wrong_type(name: &'static str, expected: &'static str) -> Fault {
    fault("invalid_field", format!("`{name}` must be {expected}")).with_param(name)
}

fn missing(name: &'static str, advice: &'static str) -> Fault {
    fault("missing_field", format!("`{name}` is required: {advice}")).with_param(name)
}
