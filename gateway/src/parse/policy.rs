//! What engines have been attacked with, denied or clamped before a request is considered.
//!
//! The scan has noted every field that is looked at here, so a request that carries none of them costs a few comparisons.
//! Messages are walked again only where the scan saw a key that may name something to fetch or to load.
//!
//! Each rule has a switch in `[requests]`; its reason stands in the table of keys.

mod media;
#[cfg(test)]
mod tests;

use super::scan::Scanner;
use super::{PREAMBLE, PREAMBLE_WITHIN, Parsed, text};
use crate::config::resolved::Policy;
use crate::error::Fault;
use std::ops::Range;

/// Keys of `chat_template_kwargs` that would replace the template or how it is applied.
const TEMPLATE_KEYS: [&str; 3] = ["chat_template", "tokenize", "conversation"];

impl Parsed {
    /// Denies what `policy` denies and clamps what it clamps.
    ///
    /// # Errors
    /// 400 that names the field and the key of the configuration.
    pub fn enforce(&mut self, policy: &Policy) -> Result<(), Fault> {
        if self.n > policy.max_completions {
            let message = format!("`n` is {}; at most {} are served", self.n, policy.max_completions);
            return Err(denied("too_many_completions", "n", message, "requests.max_completions"));
        }
        for at in 0..self.guarded.len() {
            let (name, span) = self.guarded[at].clone();
            self.guard(policy, name, &span)?;
        }
        if !policy.allow_chat_template && self.template_span("chat_template").is_some() {
            let message = "`chat_template` is the engine's to choose: a template is a program";
            return Err(denied("template_denied", "chat_template", message.to_owned(), "requests.allow_chat_template"));
        }
        if !policy.allow_transfer_fields && self.template_span("kv_transfer_params").is_some() {
            return Err(transfer_denied("kv_transfer_params"));
        }
        if !policy.allow_embeds && self.template_span("prompt_embeds").is_some() {
            return Err(embeds_denied("prompt_embeds"));
        }
        self.check_template_arguments(policy)?;
        if self.has_media {
            self.check_media(policy)?;
        }
        for name in ["image_data", "audio_data", "video_data"] {
            if let Some(span) = self.template_span(name) {
                self.check_data(policy, name, &span)?;
            }
        }
        self.clamp(policy);
        if policy.strip_preamble && self.dialect.has_system_prompt() {
            self.strip_preamble();
        }
        Ok(())
    }

    fn guard(&self, policy: &Policy, name: &'static str, span: &Range<usize>) -> Result<(), Fault> {
        let value = &self.body[span.clone()];
        match name {
            "best_of" => {
                let count = number(value).ok_or_else(|| not_a_number(name))?;
                if count > i64::from(policy.max_completions) {
                    let message = format!("`{name}` is {count}; at most {} are served", policy.max_completions);
                    return Err(denied("too_many_completions", name, message, "requests.max_completions"));
                }
            }
            "logprobs" | "top_logprobs" | "prompt_logprobs" if value != b"true" && value != b"false" => {
                let count = number(value).ok_or_else(|| not_a_number(name))?;
                // -1 asks for the whole vocabulary.
                if !(0..=i64::from(policy.max_logprobs)).contains(&count) {
                    let message = format!("`{name}` is {count}; 0 to {} are served", policy.max_logprobs);
                    return Err(denied("too_many_logprobs", name, message, "requests.max_logprobs"));
                }
            }
            "guided_regex" | "regex" => check_size(name, span, policy.max_regex_bytes, "requests.max_regex_bytes")?,
            "guided_grammar" | "ebnf" | "guided_json" | "guided_choice" | "json_schema" | "structural_tag"
            | "response_format" => check_size(name, span, policy.max_grammar_bytes, "requests.max_grammar_bytes")?,
            "structured_outputs" => self.check_structured(policy, span)?,
            "custom_logit_processor" | "logits_processors" if !policy.allow_logit_processors => {
                let message = format!("`{name}` is code for the engine to load");
                return Err(denied("processor_denied", name, message, "requests.allow_logit_processors"));
            }
            "input_embeds" if !policy.allow_embeds => return Err(embeds_denied(name)),
            "bootstrap_host" | "bootstrap_port" | "bootstrap_room" | "ec_transfer_params"
                if !policy.allow_transfer_fields =>
            {
                return Err(transfer_denied(name));
            }
            _ => {}
        }
        Ok(())
    }

    /// vLLM's newer spelling: one object with `regex`, `grammar`, `json`, `choice`.
    fn check_structured(&self, policy: &Policy, span: &Range<usize>) -> Result<(), Fault> {
        if self.body[span.start] != b'{' {
            return Ok(());
        }
        for (key, value) in self.members(span) {
            let (limit, switch) = if key == "regex" {
                (policy.max_regex_bytes, "requests.max_regex_bytes")
            } else {
                (policy.max_grammar_bytes, "requests.max_grammar_bytes")
            };
            check_size("structured_outputs", &value, limit, switch)?;
        }
        Ok(())
    }

    fn check_template_arguments(&self, policy: &Policy) -> Result<(), Fault> {
        const NAME: &str = "chat_template_kwargs";
        let Some(span) = self.template_span(NAME) else { return Ok(()) };
        if !policy.allow_template_arguments {
            let message = format!("`{NAME}` is not served here");
            return Err(denied("template_denied", NAME, message, "requests.allow_template_arguments"));
        }
        if policy.allow_chat_template {
            return Ok(());
        }
        match self.members(&span).into_iter().find(|(key, _)| TEMPLATE_KEYS.contains(&key.as_str())) {
            None => Ok(()),
            Some((key, _)) => {
                let message = format!("`{NAME}` may not set `{key}`: it would replace the engine's template");
                Err(denied("template_denied", NAME, message, "requests.allow_chat_template"))
            }
        }
    }

    /// Members of an object, or the elements of an array under an empty key.
    pub(super) fn members(&self, span: &Range<usize>) -> Vec<(String, Range<usize>)> {
        let mut found = Vec::new();
        let object = self.body[span.start] == b'{';
        if !object && self.body[span.start] != b'[' {
            return found;
        }
        let mut scanner = Scanner::again(&self.body, span.start + 1, 2);
        scanner.skip_space();
        while scanner.at() + 1 < span.end {
            let key = if object {
                let Ok(key) = scanner.key() else { return found };
                let raw = std::str::from_utf8(&self.body[key.inner]).unwrap_or_default();
                text::unescape(raw).unwrap_or_default().into_owned()
            } else {
                String::new()
            };
            let Ok(value) = scanner.value() else { return found };
            found.push((key, value));
            scanner.skip_space();
            scanner.take(b',');
            scanner.skip_space();
        }
        found
    }

    /// Cuts the line out that Claude Code puts before its system prompt and that changes with every request, as vLLM does on
    /// its own: of a block of `system` the whole text, else up to the end of the line.
    fn strip_preamble(&mut self) {
        let places = [self.template_span("system"), self.template_span("instructions"), Some(self.prompt.clone())];
        for place in places.into_iter().flatten() {
            let head = &self.body[place.start..place.end.min(place.start + PREAMBLE_WITHIN)];
            let Some(at) = memchr::memmem::find(head, PREAMBLE.as_bytes()) else { continue };
            let start = place.start + at;
            if start == 0 || self.body[start - 1] != b'"' {
                continue;
            }
            let whole = self.body[place.start] == b'[' && place != self.prompt;
            let end = text_end(&self.body, start, !whole);
            self.edits.push((start..end, bytes::Bytes::new()));
        }
    }

    /// Lowers a higher `max_tokens`, and gives one to a request that has none.
    fn clamp(&mut self, policy: &Policy) {
        let Some(most) = policy.max_tokens else { return };
        let written = most.to_string();
        if let Some(field) = self.dialect.limit_field()
            && self.token_limits.is_empty()
        {
            self.edits.push((self.close..self.close, format!(",\"{field}\":{written}").into()));
        }
        for (limit, span) in &self.token_limits {
            if *limit > most {
                self.edits.push((span.clone(), written.clone().into()));
            }
        }
        self.max_tokens = Some(self.max_tokens.map_or(most, |asked| asked.min(most)));
    }
}

/// Where the string that `start` is in ends, or its first line with the line feed.
fn text_end(body: &[u8], start: usize, first_line: bool) -> usize {
    let mut at = start;
    while let Some(step) = memchr::memchr2(b'\\', b'"', &body[at..]) {
        at += step;
        match body.get(at + 1) {
            _ if body[at] == b'"' => return at,
            Some(b'n') if first_line => return at + 2,
            _ => at += 2,
        }
    }
    body.len()
}

fn check_size(name: &'static str, span: &Range<usize>, limit: usize, switch: &'static str) -> Result<(), Fault> {
    if span.len() <= limit {
        return Ok(());
    }
    let code = if switch == "requests.max_regex_bytes" { "regex_too_large" } else { "grammar_too_large" };
    Err(denied(code, name, format!("`{name}` has {} bytes; at most {limit} are served", span.len()), switch))
}

fn denied(code: &'static str, param: &'static str, message: String, switch: &'static str) -> Fault {
    Fault::client(400, code, format!("{message} ({switch})")).with_param(param)
}

fn embeds_denied(name: &'static str) -> Fault {
    let message = format!("`{name}` holds embeddings, which an engine would load as tensors");
    denied("embeds_denied", name, message, "requests.allow_embeds")
}

fn transfer_denied(name: &'static str) -> Fault {
    let message = format!("`{name}` tells an engine where to take KV blocks from; clients may not");
    denied("transfer_denied", name, message, "requests.allow_transfer_fields")
}

fn not_a_number(name: &'static str) -> Fault {
    Fault::client(400, "invalid_field", format!("`{name}` must be an integer")).with_param(name)
}

/// A whole number, also as `5.0`, which engines take for one.
fn number(value: &[u8]) -> Option<i64> {
    let digits = std::str::from_utf8(value).ok()?;
    if let Ok(whole) = digits.parse() {
        return Some(whole);
    }
    let float: f64 = digits.parse().ok()?;
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and every value that large is denied")]
    (float.fract() == 0.0).then_some(float as i64)
}
