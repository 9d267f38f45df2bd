//! One function for each place where bytes of strangers come in: it feeds them in and asserts what must hold whatever they
//! are. None may panic, hang or take memory beyond what came.

use bytes::{Bytes, BytesMut};
use forebay::config::{Origin as Place, Sources, resolved};
use forebay::http1::request::{self, Origin, Upstream};
use forebay::http1::response::{self, Downstream};
use forebay::http1::{MAX_FIELDS, chunked};
use forebay::parse::{self, Dialect};
use forebay::signal::cache_events::{Summary, summarize, summarize_polled};
use forebay::stream::{Events, Grammar};
use forebay_common::kernel::packet::Packet;
use forebay_common::wire;
use forebay_routing::WorkerId;
use forebay_routing::block::HashKey;
use forebay_routing::index::PrefixIndex;
use forebay_routing::index::snapshot::Reader;

/// A check.
pub type Check = fn(&[u8]);

/// Every check by the name of its target and its folder in `corpus/`.
pub const ALL: [(&str, Check); 12] = [
    ("event_batch", event_batch),
    ("polled_events", polled_events),
    ("snapshot", snapshot),
    ("request_body", request_body),
    ("request_head", request_head),
    ("chunked_body", chunked_body),
    ("event_stream", event_stream),
    ("configuration", configuration),
    ("packet", packet),
    ("agent_frame", agent_frame),
    ("response_head", response_head),
    ("template", template),
];

/// A received Ethernet frame, as the guard in the kernel reads it.
pub fn packet(data: &[u8]) {
    let whole = forebay_common::kernel::packet::parse(data);
    assert_eq!(forebay_common::kernel::packet::parse(data), whole, "one input, one reading");
    // What lies behind a header changes nothing, and what is cut off is never made up.
    let longer: Vec<u8> = data.iter().copied().chain([0xff; 32]).collect();
    if matches!(whole, Packet::Segment(_)) {
        assert_eq!(forebay_common::kernel::packet::parse(&longer[..]), whole);
        assert!(data.len() >= 54, "no segment is shorter than its headers");
    }
}

/// A frame of a node agent or gateway, without its length.
pub fn agent_frame(data: &[u8]) {
    let Ok((kind, body)) = wire::split(data) else { return };
    match wire::Kind::of(kind) {
        Some(wire::Kind::Load) => {
            let Ok(load) = wire::decode::<wire::Load>(body) else { return };
            let frame = wire::encode(wire::Kind::Load, &load).expect("what was read can be written");
            assert_eq!(wire::decode(&frame[6..]), Ok(load), "written and read again");
        }
        Some(wire::Kind::Hello) => drop(wire::decode::<wire::Hello>(body)),
        Some(wire::Kind::Welcome) => drop(wire::decode::<wire::Welcome>(body)),
        Some(wire::Kind::Refused) => drop(wire::decode::<wire::Refused>(body)),
        None => {}
    }
}

/// A batch of KV events as an engine publishes it.
pub fn event_batch(data: &[u8]) {
    let Ok(summary) = summarize(data) else { return };
    assert_eq!(summarize(data), Ok(summary), "one input, one reading");
    let Summary { events, hashes, tokens, malformed } = summary;
    // Each takes a byte at least: whatever is more was made up from a length that lied.
    assert!(events <= data.len() && hashes <= data.len() && tokens <= data.len() && malformed <= events);
}

/// An answer of TensorRT-LLM's `/kv_cache_events`.
pub fn polled_events(data: &[u8]) {
    let Ok(summary) = summarize_polled(data) else { return };
    assert_eq!(summarize_polled(data), Ok(summary), "one input, one reading");
    assert!(
        summary.events.max(summary.hashes).max(summary.tokens) <= data.len() && summary.malformed <= summary.events
    );
}

/// A snapshot of the index: as it is, then as the part behind the header of one whose header and checksum are right.
pub fn snapshot(data: &[u8]) {
    let key = HashKey::derive(&[7; 32]);
    let read = |bytes: &[u8]| {
        let Ok(reader) = Reader::open(bytes, &key) else { return };
        let index = PrefixIndex::with_budget(1 << 20);
        for (slot, section) in (0..4).zip(reader.sections()) {
            let mut ledger = section.restore(WorkerId::new(slot, 0), &index);
            assert!(ledger.names() <= section.names(), "no more than was written");
            ledger.unconfirm(&index);
            ledger.cleared(&index);
            assert!(ledger.is_empty());
        }
    };
    read(data);
    let mut bytes = b"FOREBAYX".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend(key.id().to_le_bytes());
    bytes.extend(data);
    let checksum = key.text(&bytes);
    bytes.extend(checksum.to_le_bytes());
    read(&bytes);
}

/// The body of a request; its first byte chooses the dialect.
pub fn request_body(data: &[u8]) {
    let Some((&first, body)) = data.split_first() else { return };
    let dialect = Dialect::ALL[usize::from(first) % Dialect::ALL.len()];
    let Ok(parsed) = parse::parse(dialect, Bytes::copy_from_slice(body)) else { return };
    let text = std::str::from_utf8(&parsed.body).expect("what was taken is UTF-8");
    assert_eq!(text.as_bytes(), body, "the client's bytes are kept");
    let is_json = |text: &str| serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok();
    assert!(is_json(text), "what was taken is JSON to others too");
    let spans = parsed.template_fields.iter().map(|(_, span)| span);
    for span in spans.chain([&parsed.prompt]).chain(&parsed.tools).chain(&parsed.stream_options) {
        assert!(span.is_empty() || is_json(&text[span.clone()]), "a span is one value: {span:?}");
    }
    let clamped = resolved::Policy {
        max_tokens: Some(100),
        strip_preamble: true,
        ..Sources::default().resolve(None).expect("defaults").config.requests
    };
    let mut parsed = parsed;
    if parsed.enforce(&clamped).is_ok() {
        let sent = parsed.upstream_body().concat();
        assert!(is_json(std::str::from_utf8(&sent).expect("UTF-8")), "what is sent is JSON");
    }
}

/// Chooses one of two ways to look at an input.
fn first_is_odd(data: &[u8]) -> bool {
    data.first().is_some_and(|byte| byte & 1 == 1)
}

/// The head of a request, as a client sends it, and what an engine then gets.
pub fn request_head(data: &[u8]) {
    let take = |bytes: &[u8]| request::take(&mut BytesMut::from(bytes), &mut request::Progress::default(), 16 * 1024);
    let Ok(Some(head)) = take(data) else { return };
    // A few of our own come to the client's; with those it may be more than clients may send.
    if head.fields().count() + 8 > MAX_FIELDS {
        return;
    }
    let to = Upstream {
        authority: "engine:1",
        length: Some(3),
        request_id: "id-1",
        rank: Some(2),
        plain_answer: true,
        keep_key: true,
        origin: Origin { address: Some([192, 0, 2, 1].into()), secure: false, trusted: first_is_odd(data) },
    };
    let mut out = Vec::new();
    head.write_upstream(&to, &mut out);
    let sent = take(&out).expect("what is sent is well formed").expect("and complete");
    assert_eq!((sent.method(), sent.target()), (head.method(), head.target()));
    let count = |name: &str| sent.fields().filter(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes())).count();
    for once in ["host", "content-length", "x-request-id", "x-data-parallel-rank"] {
        assert_eq!(count(once), 1, "{once}");
    }
    for never in [
        "connection",
        "keep-alive",
        "transfer-encoding",
        "te",
        "upgrade",
        "expect",
        "proxy-authorization",
        "authorization",
        "x-api-key",
    ] {
        assert_eq!(count(never), 0, "{never}");
    }
}

/// The head of an engine's answer, and what the client then gets.
pub fn response_head(data: &[u8]) {
    let take = |bytes: &[u8]| response::take(&mut BytesMut::from(bytes), false);
    let Ok(Some(head)) = take(data) else { return };
    if head.fields().count() + 4 > MAX_FIELDS {
        return;
    }
    let to = Downstream {
        framing: head.framing,
        announced: None,
        request_id: "id-1",
        close: false,
        old_keep_alive: false,
        diagnostics: first_is_odd(data),
    };
    let mut out = Vec::new();
    head.write_client(&to, &mut out);
    let sent = take(&out).expect("what is passed on is well formed").expect("and complete");
    assert_eq!(sent.status, head.status);
    let count = |name: &str| sent.fields().filter(|(field, _)| field.eq_ignore_ascii_case(name.as_bytes())).count();
    assert_eq!(count("x-request-id"), 1);
    assert!(count("content-length") + count("transfer-encoding") <= 1, "one framing");
    for never in ["connection", "keep-alive", "upgrade", "te", "x-forebay-error"] {
        assert_eq!(count(never), 0, "{never}");
    }
}

/// A chat template and, behind a zero byte, the body of a chat that it renders.
pub fn template(data: &[u8]) {
    let Some(at) = data.iter().position(|byte| *byte == 0) else { return };
    let (template, body) = (&data[..at], &data[at + 1..]);
    // What depends on the time of day may differ between two looks.
    let Some(template) = std::str::from_utf8(template).ok().filter(|text| !text.contains("now")) else { return };
    let rendered = forebay::tokenize::render_both_ways(template, Bytes::copy_from_slice(body));
    if let Some([quick, whole]) = rendered {
        assert_eq!(quick, whole, "what was learned of a template is what it does");
    }
}

/// A chunked body, in one piece and in pieces of every small size.
pub fn chunked_body(data: &[u8]) {
    let read = |piece: usize| {
        let (mut decoder, mut payload) = (chunked::Decoder::default(), Vec::new());
        for piece in data.chunks(piece.max(1)) {
            match decoder.decode(piece, |run| payload.extend_from_slice(run)) {
                Ok(_) => {}
                Err(_) => return None,
            }
        }
        Some((payload, decoder.is_done()))
    };
    let whole = read(data.len());
    for piece in [1, 2, 7] {
        assert_eq!(read(piece), whole, "in pieces of {piece}");
    }
}

/// A stream of server-sent events, in one piece and in pieces; the first byte chooses the grammar and says whether usage
/// frames go.
pub fn event_stream(data: &[u8]) {
    let Some((&first, stream)) = data.split_first() else { return };
    let strip = first & 1 == 1;
    let grammar = Grammar::of(Dialect::ALL[usize::from(first >> 1) % Dialect::ALL.len()]);
    let read = |piece: usize| {
        let (mut events, mut out) = (Events::new(grammar, strip), Vec::new());
        stream.chunks(piece.max(1)).for_each(|piece| events.feed(piece, &mut out));
        events.end(&mut out);
        (out, events.outputs, events.finished, events.done, events.failed, events.usage)
    };
    let whole = read(stream.len());
    assert!(strip || whole.0 == stream, "what is not stripped is passed on");
    for piece in [1, 3, 64] {
        assert_eq!(read(piece), whole, "in pieces of {piece}");
    }
}

/// A configuration file.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let sources = Sources { file: Some("forebay.toml".into()), ..Sources::default() };
    match sources.resolve(Some(text)) {
        Ok(loaded) => {
            let config = loaded.config;
            assert!(config.admin.address.ip().is_loopback() || config.keys.file.is_some(), "nobody is let in unasked");
        }
        Err(problems) => {
            assert!(!problems.0.is_empty());
            for problem in &problems.0 {
                assert!(!problem.what.is_empty(), "a refusal says what is wrong");
                if let Place::File { line, .. } = &problem.origin {
                    assert!(*line <= text.lines().count() + 1, "and where: {problem:?}");
                }
            }
        }
    }
}
