use super::{Client, Events, Grammar, Interrupt, Socket, Stages, Usage};
use proptest::prelude::*;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::time::Instant;

const ROLE: &str =
    r#"data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}"#;
const TOKEN: &str = r#"data: {"choices":[{"index":0,"delta":{"content":"a \"usage\":{ b"},"finish_reason":null}]}"#;
const LAST: &str = r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
const USAGE: &str = r#"data: {"choices":[],"usage":{"prompt_tokens":33,"total_tokens":37,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":32}}}"#;

fn stream(frames: &[&str]) -> String {
    frames.iter().map(|frame| format!("{frame}\n\n")).collect()
}

fn feed(events: &mut Events, text: &str) -> String {
    let mut out = Vec::new();
    events.feed(text.as_bytes(), &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn output_commits_and_what_comes_before_it_does_not() {
    let mut events = Events::new(Grammar::OpenAi, false);
    for quiet in [": comment\n\n", &stream(&[ROLE]), "\n", "event: ping\ndata: {}\n\n"] {
        assert_eq!(feed(&mut events, quiet), quiet);
        assert!(!events.is_committed(), "{quiet}");
    }
    feed(&mut events, &stream(&[TOKEN]));
    assert!(events.is_committed());
    assert_eq!(events.outputs, 1);
    assert!(events.usage.is_none(), "text of a model is not counts");
}

#[test]
fn every_kind_of_output_commits() {
    for output in [
        r#"{"choices":[{"delta":{"content": "x"}}]}"#,
        r#"{"choices":[{"delta":{"reasoning_content":"x"}}]}"#,
        r#"{"choices":[{"delta":{"reasoning":"x"}}]}"#,
        r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
        r#"{"choices":[{"delta":{"refusal":"x"}}]}"#,
        r#"{"choices":[{"text":"x"}]}"#,
        r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
        r#"{"error":{"message":"x"}}"#,
        "[DONE]",
    ] {
        let mut events = Events::new(Grammar::OpenAi, false);
        feed(&mut events, &format!("data: {output}\n\n"));
        assert!(events.is_committed(), "{output}");
    }
}

#[test]
fn exactly_the_usage_frame_is_taken_out() {
    let mut events = Events::new(Grammar::OpenAi, true);
    let continuous =
        r#"data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":33,"completion_tokens":1}}"#;
    let sent = stream(&[ROLE, TOKEN, continuous, LAST, USAGE, "data: [DONE]"]);
    assert_eq!(feed(&mut events, &sent), stream(&[ROLE, TOKEN, continuous, LAST, "data: [DONE]"]));
    assert!(events.done && events.finished);
    let expected = Usage { prompt_tokens: 33, cached_tokens: Some(32), completion_tokens: Some(4) };
    assert_eq!(events.usage, Some(expected));
    assert_eq!(feed(&mut Events::new(Grammar::OpenAi, false), &sent), sent, "kept for who asked");
}

#[test]
fn an_error_inside_a_stream_is_noted() {
    let mut events = Events::new(Grammar::OpenAi, false);
    feed(&mut events, "data: {\"error\": {\"message\": \"out of memory\"}}\n\ndata: [DONE]\n\n");
    assert!(events.failed && events.done);
    let mut talk = Events::new(Grammar::OpenAi, false);
    feed(&mut talk, "data: {\"choices\":[{\"delta\":{\"content\":\"an \\\"error\\\":{ in text\"}}]}\n\n");
    assert!(!talk.failed);
}

#[test]
fn a_frame_is_held_until_it_is_whole_and_an_endless_one_is_passed_on() {
    let mut events = Events::new(Grammar::OpenAi, false);
    assert_eq!(feed(&mut events, "data: {\"choi"), "");
    assert_eq!(feed(&mut events, "ces\":[]}\n"), "");
    assert_eq!(feed(&mut events, "\n"), "data: {\"choices\":[]}\n\n");
    let long = format!("data: {}", "x".repeat(300 * 1024));
    assert_eq!(feed(&mut events, &long), long);
    assert!(!events.is_between_frames());
    assert_eq!(feed(&mut events, "y\n\n"), "y\n\n");
    assert!(events.is_between_frames());
    assert_eq!(feed(&mut events, &stream(&[TOKEN])), stream(&[TOKEN]));
    assert_eq!(events.outputs, 1);
}

#[test]
fn counts_of_a_whole_answer() {
    let answer = r#"{"choices":[{"message":{"content":"\"usage\":{\"prompt_tokens\":1}"}}],"usage" : 1, "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": null}}"#;
    let expected = Usage { prompt_tokens: 7, cached_tokens: None, completion_tokens: Some(2) };
    assert_eq!(Usage::find_last(answer.as_bytes()), Some(expected));
    for none in ["", "{}", r#"{"usage":null}"#, r#"{"usage":{"prompt_tokens":"x"}}"#, r#"{"usage":{"prompt_tokens":7"#]
    {
        assert_eq!(Usage::find_last(none.as_bytes()), None, "{none}");
    }
}

fn named(events: &[(&str, &str)]) -> String {
    events.iter().map(|(name, data)| format!("event: {name}\ndata: {data}\n\n")).collect()
}

#[test]
fn anthropics_events_commit_with_a_delta_and_count_in_parts() {
    const START: &str = r#"{"type":"message_start","message":{"usage":{"input_tokens":4,"cache_read_input_tokens":32,"cache_creation_input_tokens":8,"output_tokens":1}}}"#;
    const DELTA: &str =
        r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"\"type\":\"message_stop\""}}"#;
    let mut events = Events::new(Grammar::Anthropic, false);
    feed(&mut events, &named(&[("message_start", START), ("ping", "{}"), ("content_block_start", "{}")]));
    assert!(!events.is_committed(), "counts alone are no output");
    feed(&mut events, &named(&[("content_block_delta", DELTA)]));
    assert!(events.is_committed() && !events.is_complete());
    assert_eq!(events.usage.and_then(|usage| usage.completion_tokens), None, "the first count is a placeholder");
    let last = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#;
    feed(&mut events, &named(&[("content_block_delta", DELTA), ("message_delta", last)]));
    assert!(!events.is_complete(), "the client waits for message_stop");
    feed(&mut events, &named(&[("message_stop", r#"{"type":"message_stop"}"#)]));
    assert!(events.is_complete());
    let expected = Usage { prompt_tokens: 44, cached_tokens: Some(32), completion_tokens: Some(9) };
    assert_eq!((events.usage, events.outputs), (Some(expected), 2));
    let mut failed = Events::new(Grammar::Anthropic, false);
    feed(&mut failed, "data: {\"type\": \"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n");
    assert!(failed.failed && failed.is_complete(), "named by its data alone");
}

#[test]
fn responses_events_end_with_their_last_and_count_there() {
    let mut events = Events::new(Grammar::Responses, false);
    let tools = r#""tools":[{"parameters":{"usage":{"type":"object"}}}]"#;
    let created = format!(r#"{{"type":"response.created","response":{{"usage":null,{tools}}}}}"#);
    feed(&mut events, &named(&[("response.created", &created), ("response.output_item.added", "{}")]));
    assert!(!events.is_committed());
    feed(&mut events, &named(&[("response.function_call_arguments.delta", r#"{"delta":"x"}"#)]));
    assert!(events.is_committed() && !events.is_complete());
    let usage = r#""usage":{"input_tokens":44,"input_tokens_details":{"cached_tokens":32},"output_tokens":9,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":53}"#;
    feed(&mut events, &named(&[("response.completed", &format!(r#"{{"response":{{{usage},{tools}}}}}"#))]));
    assert!(events.is_complete() && !events.failed);
    let expected = Usage { prompt_tokens: 44, cached_tokens: Some(32), completion_tokens: Some(9) };
    assert_eq!((events.usage, events.frames), (Some(expected), 4));
    for name in ["response.failed", "error"] {
        let mut events = Events::new(Grammar::Responses, false);
        feed(&mut events, &named(&[(name, "{}")]));
        assert!(events.failed && events.is_committed(), "{name}");
    }
}

#[test]
fn sglangs_chunks_count_in_meta_info_whatever_stopped_them() {
    let mut events = Events::new(Grammar::SgLang, false);
    let chunk = |text: &str, finish: &str, tokens: u32| {
        format!(
            r#"data: {{"text":"{text}","meta_info":{{"finish_reason":{finish},"prompt_tokens":44,"completion_tokens":{tokens},"cached_tokens":32}}}}"#
        ) + "\n\n"
    };
    feed(&mut events, &chunk("", "null", 0));
    assert!(!events.is_committed());
    feed(&mut events, &chunk("a", "null", 1));
    assert!(events.is_committed() && !events.is_complete());
    feed(&mut events, &chunk("a b", r#"{"type":"stop","matched":"}}\"{"}"#, 2));
    assert!(events.finished);
    let expected = Usage { prompt_tokens: 44, cached_tokens: Some(32), completion_tokens: Some(2) };
    assert_eq!(events.usage, Some(expected));
    let whole = r#"[{"text":"a","meta_info":{"prompt_tokens":1}},{"text":"\"meta_info\":{","meta_info":{"matched":"{","prompt_tokens":44,"cached_tokens":32,"completion_tokens":2}}]"#;
    assert_eq!(Usage::find_last(whole.as_bytes()), Some(expected));
}

#[test]
fn counts_of_a_whole_answer_in_every_dialects_words() {
    let expected = Usage { prompt_tokens: 44, cached_tokens: Some(32), completion_tokens: Some(9) };
    for answer in [
        r#"{"content":[],"usage":{"input_tokens":4,"output_tokens":9,"cache_read_input_tokens":32,"cache_creation_input_tokens":8}}"#,
        r#"{"usage":{"input_tokens":44,"input_tokens_details":{"cached_tokens":32},"output_tokens":9},"tools":[{"parameters":{"usage":{"type":"string"}}}]}"#,
    ] {
        assert_eq!(Usage::find_last(answer.as_bytes()), Some(expected), "{answer}");
    }
}

proptest! {
    #[test]
    fn no_grammar_panics_or_loses_bytes(text in r#"(event: |data: |message_delta|response\.completed|\{|\}|"usage":|"meta_info":|"input_tokens":|[0-9",: \n])*"#) {
        for grammar in [Grammar::OpenAi, Grammar::Anthropic, Grammar::Responses, Grammar::SgLang] {
            let (mut events, mut out) = (Events::new(grammar, false), Vec::new());
            events.feed(text.as_bytes(), &mut out);
            events.end(&mut out);
            prop_assert_eq!(out, text.as_bytes());
        }
    }

    /// Whatever the engine's line ends and wherever the network cuts, the same bytes come out and the same is seen.
    #[test]
    fn frames_survive_every_split(cuts in prop::collection::vec(0usize..900, 0..12), crlf: bool, strip: bool) {
        let text = stream(&[": hi", ROLE, TOKEN, TOKEN, LAST, USAGE, "data: [DONE]"]);
        let text = if crlf { text.replace('\n', "\r\n") } else { text };
        let kept = stream(&[": hi", ROLE, TOKEN, TOKEN, LAST, "data: [DONE]"]);
        let kept = if crlf { kept.replace('\n', "\r\n") } else { kept };
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
        cuts.sort_unstable();
        let (mut events, mut out) = (Events::new(Grammar::OpenAi, strip), Vec::new());
        for pair in cuts.windows(2) {
            events.feed(&text.as_bytes()[pair[0]..pair[1]], &mut out);
        }
        prop_assert_eq!(String::from_utf8(out).unwrap(), if strip { kept } else { text });
        prop_assert_eq!((events.outputs, events.finished, events.done, events.failed), (2, true, true, false));
        prop_assert_eq!(events.usage.map(|usage| usage.prompt_tokens), Some(33));
    }

    #[test]
    fn every_single_byte_split(strip: bool) {
        let text = stream(&[ROLE, TOKEN, LAST, USAGE, "data: [DONE]"]);
        let (mut events, mut out) = (Events::new(Grammar::OpenAi, strip), Vec::new());
        for byte in text.as_bytes() {
            events.feed(std::slice::from_ref(byte), &mut out);
        }
        prop_assert_eq!(out.len(), text.len() - if strip { USAGE.len() + 2 } else { 0 });
    }

    #[test]
    fn no_bytes_panic_and_none_are_lost(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..12)) {
        let (mut events, mut out) = (Events::new(Grammar::OpenAi, false), Vec::new());
        for piece in &pieces {
            events.feed(piece, &mut out);
        }
        events.end(&mut out);
        prop_assert_eq!(out, pieces.concat());
    }
}

/// Writes 64 KiB to a client that takes `bytes` each second; how it ended, and when.
async fn write_to_a_client_that_takes(bytes: usize) -> (Result<(), Interrupt>, Duration) {
    let (ours, mut theirs) = tokio::io::duplex(1024);
    let patience = Duration::from_secs(30);
    let mut client = Client::new(Socket::Plain(Box::new(ours)), Stages::default().watch(), patience, patience);
    let taking = async {
        let mut buf = vec![0; bytes];
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            theirs.read_exact(&mut buf).await.expect("open");
        }
    };
    let started = Instant::now();
    let data = vec![0; 64 * 1024];
    tokio::select! {
        written = client.write(&data, b"") => (written, started.elapsed()),
        () = taking => unreachable!("it takes for ever"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_trickles_is_late_and_a_slow_one_is_not() {
    let (ended, after) = write_to_a_client_that_takes(100).await;
    assert_eq!(ended, Err(Interrupt::Late));
    // 30 s, and 64 KiB at 4 KiB/s.
    assert!((Duration::from_secs(45)..Duration::from_secs(48)).contains(&after), "{after:?}");
    let (ended, after) = write_to_a_client_that_takes(2_000).await;
    assert_eq!(ended, Ok(()), "{after:?}");
    assert!(after > Duration::from_secs(30), "it was slow: {after:?}");
}
