//! What is denied, and how to switch it off.

use crate::config::Sources;
use crate::config::resolved::{Media, Policy};
use crate::error::Fault;
use crate::parse::{Dialect, Parsed, parse};

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
        ("{\"model\":\"m\",\"prompt\":\"x\",\"logprobs\":50}".to_owned(), "too_many_logprobs", |p| p.max_logprobs = 50),
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
        (media("image_url", "{\"url\":\"http://169.254.169.254/latest\"}"), "media_denied", |p| p.media = Media::Any),
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
    assert_eq!(code(&chat(",\"chat_template_kwargs\":{\"enable_thinking\":false}"), &none), Some("template_denied"));
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

#[test]
fn the_line_that_changes_with_every_request_is_cut_where_that_is_wanted() {
    let strip = Policy { strip_preamble: true, ..policy() };
    let sent = |dialect, body: &str, policy: &Policy| {
        let mut parsed = parse(dialect, body.to_owned().into()).expect("a body");
        parsed.enforce(policy).expect("served");
        String::from_utf8(parsed.upstream_body().concat()).expect("UTF-8")
    };
    let line = "x-anthropic-billing-header: cc=1; \\\"q\\\"";
    let messages = |system: &str| {
        format!(
            r#"{{"model":"m","max_tokens":1,"system":{system},"messages":[{{"role":"user","content":"x-anthropic-billing-header: mine"}}]}}"#
        )
    };
    for (given, cut) in [
        (
            format!(r#"[{{"type":"text","text":"{line}\nrest"}},{{"type":"text","text":"You"}}]"#),
            r#"[{"type":"text","text":""},{"type":"text","text":"You"}]"#,
        ),
        (format!(r#""{line}\nYou""#), r#""You""#),
        (format!(r#""{line}""#), r#""""#),
        (r#""You x-anthropic-billing-header: 1""#.to_owned(), r#""You x-anthropic-billing-header: 1""#),
    ] {
        let body = messages(&given);
        assert_eq!(sent(Dialect::Messages, &body, &policy()), body, "untouched unless asked for");
        let got = sent(Dialect::Messages, &body, &strip);
        assert!(got.contains(&format!(r#""system":{cut},"#)), "{got}");
    }
    let chat = format!(r#"{{"model":"m","messages":[{{"role":"system","content":"{line}\nYou"}}]}}"#);
    assert_eq!(sent(Dialect::Chat, &chat, &strip), r#"{"model":"m","messages":[{"role":"system","content":"You"}]}"#);
    let responses = format!(r#"{{"model":"m","instructions":"{line}\nYou","input":"hi"}}"#);
    assert_eq!(sent(Dialect::Responses, &responses, &strip), r#"{"model":"m","instructions":"You","input":"hi"}"#);
}
