//! The fields that the gateway knows, their types, and where their values go.

use super::scan::{Broken, Scanner};
use super::{Dialect, Parsed, text};
use crate::error::Fault;
use bytes::Bytes;
use std::borrow::Cow;
use std::ops::Range;

/// A known field's type, as far as the gateway checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Flag,
    Integer,
    Array,
    Object,
    TextOrArray,
    TextOrObject,
    /// Whatever the engine makes of it.
    Any,
}

impl Kind {
    fn accepts(self, first: u8) -> bool {
        match self {
            Self::Text => first == b'"',
            Self::Flag => matches!(first, b't' | b'f'),
            Self::Integer => matches!(first, b'-' | b'0'..=b'9'),
            Self::Array => first == b'[',
            Self::Object => first == b'{',
            Self::TextOrArray => matches!(first, b'"' | b'['),
            Self::TextOrObject => matches!(first, b'"' | b'{'),
            Self::Any => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Flag => "true or false",
            Self::Integer => "an integer",
            Self::Array => "an array",
            Self::Object => "an object",
            Self::TextOrArray => "a string or an array",
            Self::TextOrObject => "a string or an object",
            Self::Any => "a value",
        }
    }
}

/// Known in both APIs.
const COMMON: &[(&str, Kind)] = &[
    ("model", Kind::Text),
    ("stream", Kind::Flag),
    ("stream_options", Kind::Object),
    ("max_tokens", Kind::Integer),
    ("n", Kind::Integer),
    ("cache_salt", Kind::Text),
    ("user", Kind::Text),
    ("session_id", Kind::Text),
    ("priority", Kind::Integer),
    ("add_special_tokens", Kind::Flag),
    ("truncate_prompt_tokens", Kind::Integer),
    ("kv_transfer_params", Kind::Object),
    ("best_of", Kind::Any),
    ("logprobs", Kind::Any),
    ("top_logprobs", Kind::Any),
    ("prompt_logprobs", Kind::Any),
    ("response_format", Kind::Any),
    ("structured_outputs", Kind::Any),
    ("guided_regex", Kind::Any),
    ("guided_grammar", Kind::Any),
    ("guided_json", Kind::Any),
    ("guided_choice", Kind::Any),
    ("structural_tag", Kind::Any),
    ("regex", Kind::Any),
    ("ebnf", Kind::Any),
    ("json_schema", Kind::Any),
    ("custom_logit_processor", Kind::Any),
    ("logits_processors", Kind::Any),
    ("input_embeds", Kind::Any),
    ("ec_transfer_params", Kind::Any),
    ("bootstrap_host", Kind::Any),
    ("bootstrap_port", Kind::Any),
    ("bootstrap_room", Kind::Any),
];

/// Known in chat only.
const CHAT: &[(&str, Kind)] = &[
    ("messages", Kind::Array),
    ("max_completion_tokens", Kind::Integer),
    ("tools", Kind::Array),
    ("tool_choice", Kind::TextOrObject),
    ("chat_template", Kind::Text),
    ("chat_template_kwargs", Kind::Object),
    ("add_generation_prompt", Kind::Flag),
    ("continue_final_message", Kind::Flag),
    ("reasoning_effort", Kind::Text),
    ("documents", Kind::Array),
];

/// Known in completions only.
const COMPLETIONS: &[(&str, Kind)] = &[("prompt", Kind::TextOrArray), ("prompt_embeds", Kind::TextOrArray)];

impl Dialect {
    /// Position (for the mark of what was seen), name and type of a known field.
    fn field(self, key: &str) -> Option<(usize, &'static str, Kind)> {
        let own = match self {
            Self::Chat => CHAT,
            Self::Completions => COMPLETIONS,
        };
        let all = COMMON.iter().chain(own);
        all.enumerate().find(|(_, (name, _))| *name == key).map(|(i, (name, kind))| (i, *name, *kind))
    }

    fn prompt_field(self) -> &'static str {
        match self {
            Self::Chat => "messages",
            Self::Completions => "prompt",
        }
    }
}

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
        if kind == Kind::Any {
            self.parsed.guarded.push((name, span));
            return Ok(());
        }
        self.parsed.has_media |= watched && name == "messages";
        self.record(name, kind, span)
    }

    /// Stores the value of a known field, which has the right JSON type and is not null.
    fn record(&mut self, name: &'static str, kind: Kind, span: Range<usize>) -> Result<(), Fault> {
        match name {
            "model" => self.parsed.model = self.string(&span)?,
            "stream" => self.parsed.stream = self.body[span.start] == b't',
            "stream_options" => self.stream_options(span)?,
            "max_tokens" => self.parsed.max_tokens = Some(self.token_limit(name, span)?),
            "max_completion_tokens" => self.newer_limit = Some(self.token_limit(name, span)?),
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
            "messages" | "prompt" => self.parsed.prompt = span,
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

    /// Looks for `include_usage` in the `stream_options` object.
    fn stream_options(&mut self, span: Range<usize>) -> Result<(), Fault> {
        const NAME: &str = "stream_options.include_usage";
        let mut scanner = Scanner::again(self.body, span.start + 1, 2);
        scanner.skip_space();
        while scanner.peek() != Some(b'}') {
            let key = scanner.key().map_err(not_json)?;
            let value = scanner.value().map_err(not_json)?;
            let key = text::unescape(&self.text[key.inner]).map_err(|_| wrong_type("stream_options", "plain keys"))?;
            if key == "include_usage" {
                if self.parsed.include_usage_value.is_some() {
                    return Err(
                        fault("duplicate_field", format!("`{NAME}` occurs twice; give it once")).with_param(NAME)
                    );
                }
                match self.body[value.start] {
                    b't' => self.parsed.include_usage = true,
                    b'f' | b'n' => {}
                    _ => return Err(wrong_type(NAME, Kind::Flag.name())),
                }
                self.parsed.include_usage_value = Some(value);
            }
            scanner.skip_space();
            if scanner.take(b',') {
                scanner.skip_space();
            }
        }
        self.parsed.stream_options = Some(span);
        Ok(())
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
        if parsed.model.is_empty() {
            return Err(missing("model", "name the model to use; GET /v1/models lists them"));
        }
        if parsed.prompt.is_empty() && parsed.template_span("prompt_embeds").is_none() {
            return Err(missing(parsed.dialect.prompt_field(), "there is nothing to complete"));
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
