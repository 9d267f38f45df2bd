use super::chunked::{self, Decoder};
use super::fields::Kind;
use super::request::{self, Origin, Progress, RequestHead, Upstream};
use super::response::{self, Downstream};
use super::{Framing, MAX_FIELDS, Malformed};
use bytes::BytesMut;
use proptest::prelude::*;

const MAX: usize = 16 * 1024;

fn take(text: &str) -> Result<Option<RequestHead>, Malformed> {
    request::take(&mut BytesMut::from(text), &mut Progress::default(), MAX)
}

fn head(fields: &str) -> Result<RequestHead, Malformed> {
    take(&format!("POST /v1/x HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).map(|head| head.expect("complete"))
}

fn status(fields: &str) -> u16 {
    head(fields).expect_err("refused").status
}

fn upstream(head: &RequestHead, trusted: bool) -> String {
    let to = Upstream {
        authority: "10.0.0.1:8000",
        length: Some(5),
        request_id: "id-1",
        rank: Some(3),
        plain_answer: true,
        keep_key: false,
        origin: Origin { address: Some([192, 0, 2, 7].into()), secure: true, trusted },
    };
    let mut out = Vec::new();
    head.write_upstream(&to, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn reads_a_head_and_leaves_what_follows() {
    let mut buf = BytesMut::from("POST /v1/x?y=1 HTTP/1.1\r\nHost: a\r\ncontent-length: 3\r\n\r\nabcGET");
    let head = request::take(&mut buf, &mut Progress::default(), MAX).unwrap().unwrap();
    assert_eq!((head.method(), head.target(), head.path()), ("POST", "/v1/x?y=1", "/v1/x"));
    assert_eq!(head.framing, Framing::Length(3));
    assert!(head.keep_alive && !head.old);
    assert_eq!(&buf[..], b"abcGET");
}

#[test]
fn framing_that_two_readers_could_read_differently_is_refused() {
    assert_eq!(status("content-length: 3\r\ntransfer-encoding: chunked\r\n"), 400);
    assert_eq!(status("transfer-encoding: chunked\r\ncontent-length: 3\r\n"), 400);
    assert_eq!(status("content-length: 3\r\ncontent-length: 3\r\n"), 400);
    for bad in ["+3", "-3", "3,3", "3 3", "0x3", "", "99999999999999999999"] {
        assert_eq!(status(&format!("content-length: {bad}\r\n")), 400, "{bad}");
    }
    for bad in ["gzip", "gzip, chunked", "chunked, chunked", "xchunked", ""] {
        assert_eq!(status(&format!("transfer-encoding: {bad}\r\n")), 501, "{bad}");
    }
    assert_eq!(status("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"), 501);
    assert_eq!(status("transfer-encoding : chunked\r\n"), 400);
    assert_eq!(status("x: a\r\n folded\r\n"), 400);
    let old = take("POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(old.expect_err("refused").status, 400);
}

#[test]
fn bare_line_feeds_do_not_end_a_head() {
    assert_eq!(take("GET / HTTP/1.1\nhost: a\n\nx: y\r\n\r\n").expect_err("refused").status, 400);
}

#[test]
fn hosts_methods_and_targets_are_checked() {
    assert_eq!(take("GET / HTTP/1.1\r\n\r\n").expect_err("no host").status, 400);
    assert_eq!(status("host: b\r\n"), 400);
    assert_eq!(take("CONNECT a:1 HTTP/1.1\r\nhost: a\r\n\r\n").expect_err("no proxy").status, 405);
    assert_eq!(take("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n").expect_err("no path").status, 400);
    let absolute = take("GET http://b:1/x?q HTTP/1.1\r\nhost: a\r\n\r\n").unwrap().unwrap();
    assert_eq!(absolute.target(), "/x?q");
    assert!(take("GET / HTTP/1.0\r\n\r\n").unwrap().is_some(), "HTTP/1.0 has no host");
    assert_eq!(status("expect: 200-maybe\r\n"), 417);
    assert!(head("expect: 100-Continue\r\n").unwrap().expect_continue);
}

#[test]
fn garbage_is_refused_before_the_head_is_complete() {
    let tls_hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    let refused = request::take(&mut BytesMut::from(&tls_hello[..]), &mut Progress::default(), MAX);
    assert_eq!(refused.expect_err("refused").status, 400);
    assert_eq!(take("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").expect_err("refused").status, 505);
}

#[test]
fn heads_are_bounded_in_bytes_and_fields() {
    let long = format!("GET /{} HTTP/1.1\r\nhost: a\r\n", "x".repeat(MAX));
    assert_eq!(take(&long).expect_err("unfinished").status, 431);
    assert_eq!(take(&format!("{long}\r\n")).expect_err("finished").status, 431);
    let many = "x: y\r\n".repeat(MAX_FIELDS);
    assert_eq!(status(&many), 431);
}

#[test]
fn keep_alive_follows_version_and_connection() {
    assert!(!head("connection: close\r\n").unwrap().keep_alive);
    assert!(!head("connection: x, Close\r\n").unwrap().keep_alive);
    let old = |fields: &str| take(&format!("GET / HTTP/1.0\r\n{fields}\r\n")).unwrap().unwrap().keep_alive;
    assert!(!old(""));
    assert!(old("connection: keep-alive\r\n"));
}

#[test]
fn what_belongs_to_one_connection_or_to_the_gateway_stays_here() {
    let head = head(
        "Connection: keep-alive, X-Private\r\nKeep-Alive: timeout=5\r\nX-Private: secret\r\nTE: trailers\r\n\
         Trailer: x\r\nUpgrade: h2c\r\nProxy-Authorization: Basic x\r\nProxy-Connection: close\r\nExpect: 100-continue\r\n\
         X-Forebay-Class: gold\r\nx-forebay-session: s\r\nX-Data-Parallel-Rank: 7\r\nX-Request-Id: theirs\r\n\
         Accept-Encoding: gzip\r\nContent-Length: 9\r\nAuthorization: Bearer k\r\nX-Twice: 1\r\nx-twice: 2\r\n",
    )
    .unwrap();
    assert_eq!(
        upstream(&head, false),
        "POST /v1/x HTTP/1.1\r\nhost: 10.0.0.1:8000\r\nAuthorization: Bearer k\r\nX-Twice: 1\r\nx-twice: 2\r\n\
         content-length: 5\r\nx-forwarded-for: 192.0.2.7\r\nx-forwarded-proto: https\r\nx-request-id: id-1\r\n\
         x-data-parallel-rank: 3\r\n\r\n"
    );
    assert_eq!(head.value(Kind::Session), Some(&b"s"[..]));
}

#[test]
fn only_a_believed_proxy_says_where_a_request_came_from() {
    let head = head(
        "X-Forwarded-For: 203.0.113.9\r\nx-forwarded-for: 10.0.0.1\r\nX-Forwarded-Proto: http\r\nForwarded: for=x\r\n\
         X-Real-IP: 203.0.113.9\r\nX-Forwarded-Host: evil\r\n",
    )
    .unwrap();
    let fields = |trusted| {
        let text = upstream(&head, trusted);
        text.lines()
            .filter(|line| line.to_ascii_lowercase().contains("forward") || line.contains("Real"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(fields(false), ["x-forwarded-for: 192.0.2.7", "x-forwarded-proto: https"]);
    assert_eq!(
        fields(true),
        [
            "X-Forwarded-Proto: http",
            "Forwarded: for=x",
            "X-Real-IP: 203.0.113.9",
            "X-Forwarded-Host: evil",
            "x-forwarded-for: 203.0.113.9, 10.0.0.1, 192.0.2.7"
        ]
    );
}

#[test]
fn fields_that_steer_clusters_from_inside_never_come_from_a_client() {
    let all = [
        "x-gateway-destination-endpoint",
        "X-Gateway-Inference-Objective",
        "x-llm-d-slo-ttft-ms",
        "x-slo-ttft-ms",
        "x-slo-tpot-ms",
        "x-prefiller-host-port",
        "x-encoder-hosts-ports",
        "x-data-parallel-host-port",
        "x-kv-cache-source-host-port",
        "x-dynamo-instance",
        "x-worker-instance-id",
        "x-prefill-instance-id",
        "x-smg-target-worker",
        "x-smg-routing-key",
        "x-data-parallel-rank",
        "x-forebay-class",
    ];
    for name in all {
        let text = upstream(&head(&format!("{name}: 10.9.9.9:1\r\nx-gate: stays\r\n")).unwrap(), true);
        assert!(!text.contains("10.9.9.9"), "{text}");
        assert!(text.contains("x-gate: stays"), "{text}");
    }
}

#[test]
fn upgrades_are_refused_but_for_the_one_that_may_be_ignored() {
    assert_eq!(status("upgrade: websocket\r\nconnection: upgrade\r\n"), 501);
    assert!(head("upgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AA\r\n").is_ok());
}

fn answer(text: &str) -> Result<Option<response::ResponseHead>, Malformed> {
    response::take(&mut BytesMut::from(text), false)
}

#[test]
fn response_framing() {
    let framing = |text: &str| answer(text).unwrap().unwrap().framing;
    assert_eq!(framing("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n"), Framing::Length(7));
    assert_eq!(framing("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"), Framing::Chunked);
    assert_eq!(framing("HTTP/1.1 200 OK\r\n\r\n"), Framing::UntilClose);
    assert_eq!(framing("HTTP/1.1 204 No Content\r\n\r\n"), Framing::Empty);
    assert_eq!(framing("HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n"), Framing::Empty);
    assert!(answer("HTTP/1.1 200 OK\r\ncontent-length: 7\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
    assert!(answer("HTTP/1.1 200 OK\r\ncontent-length: 7\r\ncontent-length: 8\r\n\r\n").is_err());
    assert!(answer("SSH-2.0-OpenSSH_9.2\r\n").is_err(), "garbage is seen before its head is complete");
    assert!(answer("HTTP/1.1 200 OK\r\nx: ").unwrap().is_none());
    let until_close = answer("HTTP/1.1 200 OK\r\n\r\n").unwrap().unwrap();
    assert!(!until_close.keep_alive, "a connection that frames a body is not used again");
}

#[test]
fn repeated_response_fields_keep_their_order_and_the_engine_stays_unnamed() {
    let head = answer(
        "HTTP/1.1 418 I'm a Teapot\r\nset-cookie: a\r\nX-Request-Id: engines\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\n\
         set-cookie: b\r\ncontent-length: 3\r\nx-forebay-error: forged\r\nretry-after: 2\r\n\r\n",
    )
    .unwrap()
    .unwrap();
    let to = Downstream {
        framing: Framing::Chunked,
        announced: None,
        request_id: "id-1",
        close: true,
        old_keep_alive: false,
        diagnostics: true,
    };
    let mut out = Vec::new();
    head.write_client(&to, &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "HTTP/1.1 418 I'm a Teapot\r\nset-cookie: a\r\nset-cookie: b\r\nretry-after: 2\r\ntransfer-encoding: chunked\r\n\
         x-request-id: id-1\r\nconnection: close\r\n\r\n"
    );
}

fn decode(pieces: &[&[u8]]) -> Result<(Vec<u8>, Vec<u8>), Malformed> {
    let (mut decoder, mut body, mut rest) = (Decoder::default(), Vec::new(), Vec::new());
    for piece in pieces {
        let used = decoder.decode(piece, |payload| body.extend_from_slice(payload))?;
        rest.extend_from_slice(&piece[used..]);
    }
    if decoder.is_done() { Ok((body, rest)) } else { Err(Malformed::bad("incomplete")) }
}

#[test]
fn chunked_bodies() {
    let (body, rest) = decode(&[b"5\r\nhello\r\n6;ext=\"v\"\r\n world\r\n0\r\nTrailer: x\r\n\r\nGET /"]).unwrap();
    assert_eq!((&body[..], &rest[..]), (&b"hello world"[..], &b"GET /"[..]));
    for bad in [
        &b"5\nhello\r\n0\r\n\r\n"[..],
        b"5\r\nhelloX\r\n0\r\n\r\n",
        b"\r\n",
        b"g\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5;a\nb\r\nhello\r\n",
        b"fffffffffffffffff\r\n",
        b"0\r\nTrailer: x\n\r\n",
    ] {
        let mut decoder = Decoder::default();
        assert!(decoder.decode(bad, |_| ()).is_err(), "{:?}", String::from_utf8_lossy(bad));
    }
    let endless = [b"5;".to_vec(), vec![b'x'; 10_000]].concat();
    assert!(Decoder::default().decode(&endless, |_| ()).is_err());
    let trailers = [b"0\r\n".to_vec(), b"a: b\r\n".repeat(10_000)].concat();
    assert!(Decoder::default().decode(&trailers, |_| ()).is_err());
}

#[test]
fn an_empty_chunk_is_not_written() {
    let mut out = b"head".to_vec();
    let at = chunked::open(&mut out);
    chunked::close(&mut out, at);
    assert_eq!(out, b"head");
}

proptest! {
    #[test]
    fn chunks_survive_every_split(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 0..8), cuts in prop::collection::vec(0usize..400, 0..6)) {
        let mut wire = Vec::new();
        for part in &parts {
            let at = chunked::open(&mut wire);
            wire.extend_from_slice(part);
            chunked::close(&mut wire, at);
        }
        wire.extend_from_slice(chunked::LAST);
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(wire.len())).chain([0, wire.len()]).collect();
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &wire[pair[0]..pair[1]]).collect();
        let (body, rest) = decode(&pieces).unwrap();
        prop_assert_eq!(body, parts.concat());
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn no_input_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), ascii in "[ -~\r\n]{0,300}") {
        for input in [&bytes[..], ascii.as_bytes(), &[ascii.as_bytes(), b"\r\n\r\n"].concat()] {
            let _ = request::take(&mut BytesMut::from(input), &mut Progress::default(), MAX);
            let _ = response::take(&mut BytesMut::from(input), false);
            let _ = Decoder::default().decode(input, |_| ());
        }
    }

    #[test]
    fn a_head_is_the_same_whatever_way_it_arrives(cut in 1usize..80) {
        let text = "POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nX-Long: abcdefghijklmnopqrstuv\r\n\r\n";
        let cut = cut.min(text.len() - 1);
        let (mut buf, mut progress) = (BytesMut::from(&text[..cut]), Progress::default());
        prop_assert!(request::take(&mut buf, &mut progress, MAX).unwrap().is_none());
        buf.extend_from_slice(&text.as_bytes()[cut..]);
        let head = request::take(&mut buf, &mut progress, MAX).unwrap().unwrap();
        prop_assert_eq!(head.framing, Framing::Length(3));
        prop_assert_eq!(head.fields().count(), 3);
    }
}
