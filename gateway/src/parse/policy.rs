//! What engines have been attacked with, denied or clamped before a request is considered.
//!
//! The scan has noted every field that is looked at here, so a request that carries none of them costs a few comparisons.
//! Messages are walked again only where the scan saw a key that may name something to fetch or to load.
//!
//! Each rule has a switch in `[requests]`; its reason stands in the table of keys.

use super::scan::Scanner;
use super::{Dialect, Parsed, text};
use crate::config::resolved::{Media, Policy};
use crate::error::Fault;
use std::net::IpAddr;
use std::ops::Range;

/// Containers below `messages` in which media are looked for: list, message, content, part, `image_url`; engines look no
/// deeper.
const MAX_WALK: u32 = 8;

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

    fn check_media(&self, policy: &Policy) -> Result<(), Fault> {
        if policy.media == Media::Any && policy.allow_embeds {
            return Ok(());
        }
        // Anthropic's sources name theirs so.
        let bare = self.dialect == Dialect::Messages;
        let mut count = 0;
        let mut open = vec![(self.prompt.clone(), 0)];
        while let Some((span, depth)) = open.pop() {
            for (key, value) in self.members(&span) {
                if key.ends_with("_embeds") && self.body[value.start] != b'n' && !policy.allow_embeds {
                    return Err(embeds_denied("messages"));
                }
                if key.ends_with("_url") || bare && key == "url" {
                    count += 1;
                    self.check_url(policy, &value)?;
                }
                if depth < MAX_WALK && matches!(self.body[value.start], b'{' | b'[') {
                    open.push((value, depth + 1));
                }
            }
        }
        if count > policy.max_media {
            let message = format!("the messages name {count} media; at most {} are served", policy.max_media);
            return Err(denied("too_many_media", "messages", message, "requests.max_media"));
        }
        Ok(())
    }

    /// SGLang's media: base64, a URL or the name of a file, alone or in lists.
    fn check_data(&self, policy: &Policy, name: &'static str, span: &Range<usize>) -> Result<(), Fault> {
        let mut open = vec![(span.clone(), 0)];
        while let Some((span, depth)) = open.pop() {
            let value = &self.body[span.clone()];
            // What is neither text nor ends in base64's letters is fetched or opened.
            let foreign = value.first() == Some(&b'"') && memchr::memchr3(b'.', b':', b'\\', value).is_some();
            if foreign {
                self.check_url(policy, &span)?;
            } else if value.first() == Some(&b'"') && policy.media == Media::None {
                let message = format!("`{name}` holds media, and none are served");
                return Err(denied("media_denied", name, message, "requests.media"));
            }
            if depth < MAX_WALK {
                open.extend(self.members(&span).into_iter().map(|(_, value)| (value, depth + 1)));
            }
        }
        Ok(())
    }

    /// `value` is a URL, or an object whose `url` is one.
    fn check_url(&self, policy: &Policy, value: &Range<usize>) -> Result<(), Fault> {
        let spans = match self.body[value.start] {
            b'"' => vec![value.clone()],
            b'{' => self.members(value).into_iter().filter(|(key, _)| key == "url").map(|(_, span)| span).collect(),
            _ => Vec::new(),
        };
        for span in spans.into_iter().filter(|span| self.body[span.start] == b'"') {
            let inner = std::str::from_utf8(&self.body[span.start + 1..span.end - 1]).unwrap_or_default();
            // An inlined medium has megabytes: only its start says what it is.
            let start = &inner[..inner.floor_char_boundary(2_048)];
            let url = text::unescape(start.trim_end_matches('\\')).unwrap_or_default();
            let allowed = match policy.media {
                Media::Any => true,
                Media::None => false,
                Media::Inline => is_inline(&url),
                Media::Public => is_inline(&url) || is_public(&url),
            };
            if !allowed {
                let message = "the messages name a medium that this gateway lets no engine fetch";
                return Err(denied("media_denied", "messages", message.to_owned(), "requests.media"));
            }
        }
        Ok(())
    }

    /// Members of an object, or the elements of an array under an empty key.
    fn members(&self, span: &Range<usize>) -> Vec<(String, Range<usize>)> {
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

fn is_inline(url: &str) -> bool {
    url.trim_start().get(..5).is_some_and(|start| start.eq_ignore_ascii_case("data:"))
}

/// `http(s)://` to a name or to an address of the public network. A name that leads into a private network is not seen
/// here: only whoever fetches can tell.
fn is_public(url: &str) -> bool {
    let url = url.trim();
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") || rest.contains('\\') {
        return false;
    }
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit('@').next().unwrap_or_default();
    let host = match place.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => place.split(':').next().unwrap_or_default(),
    };
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if let Ok(address) = host.parse::<IpAddr>() {
        return is_public_address(address);
    }
    // `127.1`, `0x7f000001` and `2130706433` are addresses to some resolvers: a top-level name never starts with a digit.
    let top = host.rsplit('.').next().unwrap_or_default();
    let local = ["localhost", "local", "internal", "lan", "home", "corp", "svc"];
    host.contains('.') && !top.is_empty() && !top.starts_with(|c: char| c.is_ascii_digit()) && !local.contains(&top)
}

fn is_public_address(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_broadcast()
                || v4.is_documentation()
                || v4.is_multicast()
                || a == 0
                || a >= 240
                || shared)
        }
        IpAddr::V6(v6) => {
            let first = v6.segments()[0];
            let unique_local = first & 0xfe00 == 0xfc00;
            let link_local = first & 0xffc0 == 0xfe80;
            // NAT64 and 6to4 wrap any IPv4 address.
            let wraps = first == 0x0064 || first == 0x2002;
            !(v6.is_loopback() || v6.is_unspecified() || v6.is_multicast() || unique_local || link_local || wraps)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dialect, Parsed, parse};
    use super::*;
    use crate::config::Sources;

    fn policy() -> Policy {
        Sources::default().resolve(None).expect("defaults").config.requests
    }

    fn chat(rest: &str) -> String {
        format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]{rest}}}")
    }

    fn media(key: &str, value: &str) -> String {
        format!(
            "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":[{{\"type\":\"{key}\",\"{key}\":{value}}}]}}]}}"
        )
    }

    fn enforce(body: &str, policy: &Policy) -> Result<Parsed, Fault> {
        let dialect = if body.contains("\"prompt\"") || body.contains("\"prompt_embeds\"") {
            Dialect::Completions
        } else {
            Dialect::Chat
        };
        let mut parsed = parse(dialect, body.to_owned().into())?;
        parsed.enforce(policy)?;
        Ok(parsed)
    }

    fn code(body: &str, policy: &Policy) -> Option<&'static str> {
        enforce(body, policy).err().map(|fault| {
            assert_eq!(fault.status, 400, "{body}");
            fault.code
        })
    }

    /// (body, code, how to switch the rule off).
    #[test]
    fn each_rule_denies_by_default_names_its_switch_and_can_be_switched_off() {
        type Switch = fn(&mut Policy);
        let long = "a".repeat(300 << 10);
        let cases: Vec<(String, &str, Switch)> = vec![
            (chat(",\"n\":1000"), "too_many_completions", |p| p.max_completions = 1_000),
            (chat(",\"best_of\":1000"), "too_many_completions", |p| p.max_completions = 1_000),
            (chat(",\"top_logprobs\":21"), "too_many_logprobs", |p| p.max_logprobs = 21),
            (chat(",\"prompt_logprobs\":-1"), "too_many_logprobs", |_| {}),
            ("{\"model\":\"m\",\"prompt\":\"x\",\"logprobs\":50}".to_owned(), "too_many_logprobs", |p| {
                p.max_logprobs = 50
            }),
            (chat(",\"chat_template\":\"{{ 1 }}\""), "template_denied", |p| p.allow_chat_template = true),
            (chat(",\"chat_template_kwargs\":{\"chat_template\":\"x\"}"), "template_denied", |p| {
                p.allow_chat_template = true
            }),
            (chat(",\"chat_template_kwargs\":{\"\\u0074okenize\":true}"), "template_denied", |p| {
                p.allow_chat_template = true
            }),
            ("{\"model\":\"m\",\"prompt_embeds\":\"AA==\"}".to_owned(), "embeds_denied", |p| p.allow_embeds = true),
            (media("image_embeds", "\"AA==\""), "embeds_denied", |p| p.allow_embeds = true),
            (chat(",\"kv_transfer_params\":{}"), "transfer_denied", |p| p.allow_transfer_fields = true),
            (chat(",\"bootstrap_host\":\"10.0.0.1\""), "transfer_denied", |p| p.allow_transfer_fields = true),
            (chat(",\"custom_logit_processor\":\"x\""), "processor_denied", |p| p.allow_logit_processors = true),
            (chat(&format!(",\"guided_regex\":\"{long}\"")), "regex_too_large", |p| p.max_regex_bytes = 1 << 20),
            (chat(&format!(",\"structured_outputs\":{{\"regex\":\"{long}\"}}")), "regex_too_large", |p| {
                p.max_regex_bytes = 1 << 20
            }),
            (chat(&format!(",\"response_format\":{{\"x\":\"{long}\"}}")), "grammar_too_large", |p| {
                p.max_grammar_bytes = 1 << 20
            }),
            (chat(&format!(",\"structured_outputs\":{{\"grammar\":\"{long}\"}}")), "grammar_too_large", |p| {
                p.max_grammar_bytes = 1 << 20
            }),
            (media("image_url", "{\"url\":\"http://169.254.169.254/latest\"}"), "media_denied", |p| {
                p.media = Media::Any
            }),
        ];
        for (body, expected, switch) in cases {
            let shown = &body[..body.len().min(120)];
            let mut policy = policy();
            let fault = enforce(&body, &policy).map(|_| ()).expect_err(shown);
            assert_eq!(fault.code, expected, "{shown}");
            assert!(fault.message.contains("(requests.") && fault.param.is_some(), "{}", fault.message);
            switch(&mut policy);
            if expected != "too_many_logprobs" || !body.contains("-1") {
                assert_eq!(code(&body, &policy), None, "{shown}");
            }
        }
        let mut none = policy();
        none.allow_template_arguments = false;
        assert_eq!(
            code(&chat(",\"chat_template_kwargs\":{\"enable_thinking\":false}"), &none),
            Some("template_denied")
        );
        none.max_media = 1;
        let two = media("image_url", "\"https://a.com/x\"")
            .replace("}]}]", "},{\"type\":\"x\",\"video_url\":\"https://a.com\"}]}]");
        assert_eq!(code(&two, &none), Some("too_many_media"));
    }

    #[test]
    fn what_normal_clients_send_passes() {
        for rest in [
            "",
            ",\"n\":4,\"logprobs\":true,\"top_logprobs\":20",
            ",\"chat_template_kwargs\":{\"enable_thinking\":false}",
            ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"x\",\"schema\":{}}}",
            ",\"guided_regex\":\"[a-z]+\",\"structured_outputs\":null",
            ",\"tools\":[{\"type\":\"function\",\"function\":{\"parameters\":{\"image_url\":{\"type\":\"string\"}}}}]",
        ] {
            assert_eq!(code(&chat(rest), &policy()), None, "{rest}");
        }
        let text = chat("").replace("hi", "see \\\"image_url\\\": http://127.0.0.1");
        assert_eq!(code(&text, &policy()), None, "text is text");
    }

    #[test]
    fn urls_into_private_networks_are_seen_in_every_spelling() {
        let inline = "data:image/png;base64,".to_owned() + &"A".repeat(5_000);
        let open = [inline.as_str(), "https://example.com/a.png", "http://8.8.8.8/x", "HTTPS://Example.com:8443/x"];
        let closed = [
            "http://127.0.0.1/x",
            "http://localhost:8000",
            "http://[::1]/x",
            "http://[::ffff:10.0.0.1]/",
            "http://[fd00::1]/",
            "http://[64:ff9b::a00:1]/",
            "http://10.1.2.3/",
            "http://192.168.0.1/",
            "http://169.254.169.254/latest/meta-data",
            "http://2130706433/",
            "http://127.1/",
            "http://0x7f.0.0.1/",
            "http://engine/",
            "http://db.internal/",
            "http://user@127.0.0.1/",
            "http://example.com@127.0.0.1/",
            "http://example.com\\\\@127.0.0.1/",
            "file:///etc/passwd",
            "ftp://example.com/",
            "//example.com/",
            "http:\\/\\/127.0.0.1/",
            "\\u0068ttp://127.0.0.1/",
            "",
        ];
        let spellings = |url: &str| {
            [
                media("image_url", &format!("{{\"url\":\"{url}\"}}")),
                media("image_url", &format!("\"{url}\"")),
                media("video_url", &format!("{{\"detail\":\"low\",\"url\":\"{url}\"}}")),
                media("image_url", &format!("{{\"url\":\"{url}\"}}")).replace("image_url", "image\\u005furl"),
            ]
        };
        let by = |media| Policy { media, ..policy() };
        for url in open {
            for body in spellings(url) {
                assert_eq!(code(&body, &policy()), None, "{body}");
                assert_eq!(code(&body, &by(Media::Inline)).is_none(), url.starts_with("data:"), "{body}");
                assert_eq!(code(&body, &by(Media::None)), Some("media_denied"), "{body}");
            }
        }
        for url in closed {
            for body in spellings(url) {
                assert_eq!(code(&body, &policy()), Some("media_denied"), "{body}");
                assert_eq!(code(&body, &by(Media::Any)), None, "{body}");
            }
        }
    }

    #[test]
    fn a_limit_of_tokens_lowers_what_is_higher_and_is_given_to_who_has_none() {
        let policy = Policy { max_tokens: Some(100), ..policy() };
        let sent = |rest: &str| {
            let parsed = enforce(&chat(rest), &policy).expect("served");
            let body: Vec<u8> = parsed.upstream_body().concat();
            (parsed.max_tokens, String::from_utf8(body).expect("UTF-8"))
        };
        let same = chat(",\"max_tokens\":7,\"x\":1");
        assert_eq!(sent(",\"max_tokens\":7,\"x\":1"), (Some(7), same));
        assert_eq!(sent(",\"max_tokens\":5000,\"x\":1"), (Some(100), chat(",\"max_tokens\":100,\"x\":1")));
        assert_eq!(
            sent(",\"max_tokens\":5000,\"max_completion_tokens\":1e3"),
            (Some(100), chat(",\"max_tokens\":100,\"max_completion_tokens\":100"))
        );
        assert_eq!(sent(""), (Some(100), chat(",\"max_tokens\":100")));
        let both = ",\"stream_options\":{\"include_usage\":true}";
        assert_eq!(sent(",\"stream\":true"), (Some(100), chat(&format!(",\"stream\":true,\"max_tokens\":100{both}"))));
    }

    proptest::proptest! {
        #[test]
        fn no_messages_make_it_panic(parts in proptest::collection::vec("[\\[\\]{}:,\"a-z_\\\\0-9]{0,12}|\"image_url\"|\\{\"url\":|\\\\u005f", 0..12)) {
            let body = format!("{{\"model\":\"m\",\"messages\":[{}]}}", parts.concat());
            let _ = enforce(&body, &Policy { media: Media::Inline, ..policy() });
        }
    }
}
