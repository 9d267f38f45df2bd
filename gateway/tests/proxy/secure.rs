//! TLS and HTTP/2 on both sides.

use crate::client::{CHAT, STREAM};
use crate::engine::{Engine, Step, json, whole_stream, write};
use crate::rig::Rig;
use bytes::Bytes;
use forebay::config::resolved::Certificate;
use h2::client::SendRequest;
use http::{Method, Request, Response};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Longer than anything here takes on a busy machine.
const WAIT: Duration = Duration::from_secs(30);

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls").join(name)
}

fn certificate(name: &str) -> Certificate {
    Certificate { chain_file: fixture(&format!("{name}.pem")), key_file: fixture(&format!("{name}.key")) }
}

fn chain(name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_file_iter(fixture(&format!("{name}.pem"))).unwrap().map(Result::unwrap).collect();
    (chain, PrivateKeyDer::from_pem_file(fixture(&format!("{name}.key"))).unwrap())
}

fn roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(fixture("ca.pem")).unwrap()).unwrap();
    roots
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn trusting(protocols: &[&[u8]], own: Option<&str>) -> TlsConnector {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots());
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let (chain, key) = chain(name);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

type Tls = tokio_rustls::client::TlsStream<TcpStream>;

async fn shake(address: SocketAddr, name: &str, connector: TlsConnector) -> std::io::Result<Tls> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    timeout(WAIT, connector.connect(name, stream)).await.unwrap()
}

/// One request over HTTP/1.1, to the end of its connection.
async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, body: &str) -> String {
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(WAIT, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    answer
}

async fn quick() -> Engine {
    Engine::start(|_| vec![write(json(200, "{}"))]).await
}

#[tokio::test]
async fn clients_get_the_certificate_of_the_name_they_ask_for() {
    let engine = quick().await;
    let rig = Rig::with(&[&engine], |config| config.certificates = vec![certificate("a"), certificate("b")]).await;
    for (name, own) in [("a.test", "a"), ("b.test", "b"), ("127.0.0.1", "a")] {
        let stream = shake(rig.address, name, trusting(&[b"http/1.1"], None)).await.unwrap();
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
        assert_eq!(shown, chain(own).0[0], "{name}");
        assert!(ask(stream, CHAT).await.starts_with("HTTP/1.1 200"));
    }
    let other = shake(rig.address, "c.test", trusting(&[b"http/1.1"], None)).await;
    assert!(other.is_err(), "no certificate is for c.test");
    let mut plain = rig.client().await;
    plain.chat(CHAT).await;
    assert!(!String::from_utf8_lossy(plain.pending()).contains("200 OK"));
    assert_eq!(engine.seen().len(), 3, "nothing passes in the clear");
}

#[tokio::test]
async fn clients_without_a_certificate_are_refused_where_one_is_required() {
    let engine = quick().await;
    let rig = Rig::with(&[&engine], |config| {
        config.certificates = vec![certificate("a")];
        config.listen.client_ca_file = Some(fixture("ca.pem"));
    })
    .await;
    let stream = shake(rig.address, "a.test", trusting(&[], Some("client"))).await.unwrap();
    assert!(ask(stream, CHAT).await.starts_with("HTTP/1.1 200"));
    // In TLS 1.3 the client is done before the server has looked at its certificate.
    if let Ok(mut stream) = shake(rig.address, "a.test", trusting(&[], None)).await {
        let _ = stream.write_all(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let mut answer = Vec::new();
        let read = timeout(WAIT, stream.read_to_end(&mut answer)).await.unwrap();
        assert!(read.is_err() && answer.is_empty(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_renewed_certificate_is_served_without_a_restart_and_a_broken_one_is_not() {
    let engine = quick().await;
    let folder = tempfile::tempdir().unwrap();
    let (chain_file, key_file) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    let put = |name: &str| {
        std::fs::copy(fixture(&format!("{name}.pem")), &chain_file).unwrap();
        std::fs::copy(fixture(&format!("{name}.key")), &key_file).unwrap();
    };
    put("a");
    let pair = Certificate { chain_file: chain_file.clone(), key_file: key_file.clone() };
    let rig = Rig::with(&[&engine], |config| config.certificates = vec![pair]).await;
    let shown = async || {
        // Whatever name: only what is shown matters.
        let stream = shake(rig.address, "a.test", trusting(&[], None)).await;
        let other = shake(rig.address, "b.test", trusting(&[], None)).await;
        (stream.is_ok(), other.is_ok())
    };
    assert_eq!(shown().await, (true, false));
    put("b");
    let renewed = async {
        while shown().await != (false, true) {
            rig.gateway.doors.look_now();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, renewed).await.expect("the new one is served");
    std::fs::copy(fixture("a.key"), &key_file).unwrap();
    let refused = async {
        while rig.gateway.doors.problem().is_none() {
            rig.gateway.doors.look_now();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(WAIT, refused).await.expect("key and chain do not fit, which is noticed");
    assert_eq!(shown().await, (false, true), "what was served before is served on");
}

#[tokio::test]
async fn a_handshake_that_never_ends_is_ended() {
    let engine = quick().await;
    let rig = Rig::with(&[&engine], |config| {
        config.certificates = vec![certificate("a")];
        config.listen.handshake_timeout = Duration::from_millis(200);
    })
    .await;
    let mut client = rig.client().await;
    client.send([0x16, 3, 1]).await;
    assert!(client.is_closed().await);
}

/// An engine behind TLS: what it decrypts goes to `engine`. Gives its address and the certificates that callers showed.
#[expect(clippy::disallowed_methods, reason = "a proxy that lives as long as the test's runtime")]
async fn behind_tls(engine: &Engine, name: &str, ask_callers: bool) -> SocketAddr {
    let (chain, key) = chain(name);
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().unwrap();
    let builder = if ask_callers {
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots()), provider());
        builder.with_client_cert_verifier(verifier.build().unwrap())
    } else {
        builder.with_no_client_auth()
    };
    let acceptor = TlsAcceptor::from(Arc::new(builder.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, target) = (listener.local_addr().unwrap(), engine.address);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut outer) = acceptor.accept(stream).await else { return };
                let mut inner = TcpStream::connect(target).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut outer, &mut inner).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn engines_behind_tls_are_probed_and_served_with_an_own_certificate() {
    let engine = Engine::start(|_| vec![write(whole_stream(&["a", "b"]))]).await;
    let address = behind_tls(&engine, "a", true).await;
    let rig = Rig::with(&[], |config| {
        config.upstream.ca_file = Some(fixture("ca.pem"));
        config.upstream.certificate_file = Some(fixture("client.pem"));
        config.upstream.certificate_key_file = Some(fixture("client.key"));
    })
    .await;
    rig.add(&format!("https://localhost:{}", address.port()));
    rig.wait_ready(1).await;
    let large = STREAM.replace("hi", &"x".repeat(300_000));
    for body in [STREAM, &large, STREAM] {
        let mut client = rig.client().await;
        client.chat(body).await;
        let answer = client.answer().await;
        assert!(answer.complete && answer.text().ends_with("data: [DONE]\n\n"), "{}", answer.text());
    }
    let seen = engine.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1].body.len(), large.len() + r#","stream_options":{"include_usage":true}"#.len());
    assert_eq!(seen[0].connection, seen[2].connection, "TLS connections are kept and used again");
}

#[tokio::test]
async fn an_engine_with_another_names_certificate_never_serves() {
    let engine = quick().await;
    let address = behind_tls(&engine, "b", false).await;
    let rig = Rig::with(&[], |config| config.upstream.ca_file = Some(fixture("ca.pem"))).await;
    let url = format!("https://localhost:{}", address.port());
    rig.add(&url);
    let told = async {
        loop {
            let problem = rig.sites().into_iter().find_map(|site| site.problem);
            if let Some(problem) = problem.filter(|problem| problem.contains("TLS")) {
                return problem;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let problem = timeout(WAIT, told).await.expect("the problem is named");
    assert!(problem.contains("certificate"), "{problem}");
    assert!(engine.seen().is_empty());
}

/// An HTTP/2 connection, in the clear or over TLS.
#[expect(clippy::disallowed_methods, reason = "a connection that lives as long as the test's runtime")]
async fn http2(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> SendRequest<Bytes> {
    let (sender, connection) = timeout(WAIT, h2::client::handshake(stream)).await.unwrap().unwrap();
    tokio::spawn(async move {
        let _ = connection.await;
    });
    sender
}

async fn clear(rig: &Rig) -> SendRequest<Bytes> {
    http2(TcpStream::connect(rig.address).await.unwrap()).await
}

fn request(method: Method, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(format!("http://gateway{path}")).header("content-type", "application/json")
}

async fn post(sender: &SendRequest<Bytes>, body: &str) -> (Response<()>, Result<Vec<u8>, h2::Error>) {
    let mut sender = sender.clone().ready().await.unwrap();
    let request = request(Method::POST, "/v1/chat/completions").body(()).unwrap();
    let (answer, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true).unwrap();
    read(timeout(WAIT, answer).await.unwrap().unwrap()).await
}

async fn read(answer: Response<h2::RecvStream>) -> (Response<()>, Result<Vec<u8>, h2::Error>) {
    let (parts, mut body) = answer.into_parts();
    let mut all = Vec::new();
    let whole = loop {
        match timeout(WAIT, body.data()).await.unwrap() {
            Some(Ok(data)) => {
                body.flow_control().release_capacity(data.len()).unwrap();
                all.extend_from_slice(&data);
            }
            Some(Err(error)) => break Err(error),
            None => break Ok(all),
        }
    };
    (Response::from_parts(parts, ()), whole)
}

#[tokio::test]
async fn http2_is_agreed_upon_over_tls_and_known_in_advance_in_the_clear() {
    let engine = Engine::start(|_| vec![write(whole_stream(&["a"]))]).await;
    let rig = Rig::with(&[&engine], |config| config.certificates = vec![certificate("a")]).await;
    let stream = shake(rig.address, "a.test", trusting(&[b"h2", b"http/1.1"], None)).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let sender = http2(stream).await;
    let (answer, body) = post(&sender, STREAM).await;
    assert_eq!(answer.status(), 200);
    assert!(String::from_utf8(body.unwrap()).unwrap().ends_with("data: [DONE]\n\n"));

    let plain = Rig::start(&[&engine]).await;
    let sender = clear(&plain).await;
    let asked: Vec<_> = (0..20).map(|_| post(&sender, STREAM)).collect();
    for one in asked {
        let (answer, body) = one.await;
        assert_eq!(answer.status(), 200);
        assert!(answer.headers()["content-type"].as_bytes().starts_with(b"text/event-stream"));
        for gone in ["connection", "transfer-encoding"] {
            assert!(!answer.headers().contains_key(gone), "{gone}");
        }
        assert!(String::from_utf8(body.unwrap()).unwrap().ends_with("data: [DONE]\n\n"));
    }
    let seen = engine.seen().pop().unwrap();
    assert_eq!(seen.field("host"), Some(engine.address.to_string().as_str()));
    let asked = STREAM.replacen("]}", r#"],"stream_options":{"include_usage":true}}"#, 1);
    assert_eq!(String::from_utf8(seen.body).unwrap(), asked);
    plain.wait_idle().await;
}

#[tokio::test]
async fn bodies_and_answers_larger_than_every_window_pass_whole() {
    let large = "y".repeat(3 << 20);
    let body = format!("{{\"text\":\"{large}\"}}");
    let engine = Engine::start(move |_| vec![write(json(200, &body))]).await;
    let rig = Rig::start(&[&engine]).await;
    let sender = clear(&rig).await;
    let prompt = CHAT.replace("hi", &"x".repeat(2 << 20));
    let mut ready = sender.clone().ready().await.unwrap();
    let asked = request(Method::POST, "/v1/chat/completions").body(()).unwrap();
    let (answer, mut stream) = ready.send_request(asked, false).unwrap();
    let mut rest = Bytes::from(prompt.clone());
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let room = timeout(WAIT, std::future::poll_fn(|cx| stream.poll_capacity(cx))).await.unwrap().unwrap().unwrap();
        let part = rest.split_to(room.min(rest.len()));
        stream.send_data(part, rest.is_empty()).unwrap();
    }
    let (answer, body) = read(timeout(WAIT, answer).await.unwrap().unwrap()).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(body.unwrap().len(), large.len() + 11);
    assert_eq!(engine.seen()[0].body.len(), prompt.len());
}

#[tokio::test]
async fn a_stream_that_its_client_gives_up_is_given_up_towards_the_engine_and_others_run_on() {
    let engine = Engine::start(|seen| {
        if seen.body.windows(4).any(|part| part == b"long") {
            vec![
                write(crate::engine::EVENTS),
                write(crate::engine::frame(&crate::engine::token("a"))),
                Step::UntilClosed,
            ]
        } else {
            vec![write(whole_stream(&["b"]))]
        }
    })
    .await;
    let rig = Rig::start(&[&engine]).await;
    let sender = clear(&rig).await;
    let mut ready = sender.clone().ready().await.unwrap();
    let asked = request(Method::POST, "/v1/chat/completions").body(()).unwrap();
    let (answer, mut stream) = ready.send_request(asked, false).unwrap();
    stream.send_data(Bytes::from(STREAM.replace("hi", "long")), true).unwrap();
    let mut body = timeout(WAIT, answer).await.unwrap().unwrap().into_body();
    assert!(timeout(WAIT, body.data()).await.unwrap().is_some());
    stream.send_reset(h2::Reason::CANCEL);
    drop(body);
    timeout(WAIT, engine.wait_closed(1)).await.unwrap();
    rig.wait_idle().await;
    assert_eq!(post(&sender, STREAM).await.0.status(), 200, "the connection lives");
}

#[tokio::test]
async fn an_answer_that_the_engine_cuts_is_reset() {
    let engine = Engine::start(|_| {
        vec![
            write("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2000000\r\n\r\n{\"a\":"),
            Step::Close,
        ]
    })
    .await;
    let rig = Rig::start(&[&engine]).await;
    let sender = clear(&rig).await;
    let mut ready = sender.ready().await.unwrap();
    let asked = request(Method::POST, "/v1/chat/completions").body(()).unwrap();
    let (answer, mut stream) = ready.send_request(asked, false).unwrap();
    stream.send_data(Bytes::from_static(CHAT.as_bytes()), true).unwrap();
    // The reset may overtake the head.
    let whole = match timeout(WAIT, answer).await.unwrap() {
        Ok(answer) => read(answer).await.1,
        Err(error) => Err(error),
    };
    assert_eq!(whole.expect_err("not to be taken for whole").reason(), Some(h2::Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn limits_hold_for_http2_too() {
    let engine = quick().await;
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "").unwrap();
    let rig = Rig::with(&[&engine], |config| {
        config.listen.max_body_bytes = 1_000;
        config.keys.file = Some(keys);
    })
    .await;
    let sender = clear(&rig).await;
    assert_eq!(post(&sender, CHAT).await.0.status(), 401);
    let open = Rig::with(&[&engine], |config| config.listen.max_body_bytes = 1_000).await;
    let sender = clear(&open).await;
    let (answer, body) = post(&sender, &CHAT.replace("hi", &"x".repeat(5_000))).await;
    assert_eq!(answer.status(), 413);
    assert!(String::from_utf8(body.unwrap()).unwrap().contains("max_body_bytes"));
    let mut ready = sender.clone().ready().await.unwrap();
    let bad = request(Method::POST, "/v1/chat/completions").header("host", "another").body(()).unwrap();
    let (answer, _stream) = ready.send_request(bad, true).unwrap();
    let error = timeout(WAIT, answer).await.unwrap().expect_err("reset");
    assert_eq!(error.reason(), Some(h2::Reason::PROTOCOL_ERROR));
    assert_eq!(post(&sender, CHAT).await.0.status(), 200, "the connection lives");
    let off = Rig::with(&[&engine], |config| config.listen.http2 = false).await;
    let mut client = off.client().await;
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert_eq!(client.answer().await.status, 505);
}

#[tokio::test]
async fn no_more_streams_run_at_once_than_were_agreed_upon() {
    let bell = Arc::new(tokio::sync::Notify::new());
    let steps = vec![Step::Wait(bell.clone()), write(json(200, "{}"))];
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::with(&[&engine], |config| config.listen.max_streams = 2).await;
    let sender = clear(&rig).await;
    // What the gateway allows is known with its first answer.
    let known = post(&sender, CHAT);
    let ring = async {
        engine.wait_seen(1).await;
        bell.notify_one();
    };
    assert_eq!(tokio::join!(known, ring).0.0.status(), 200);
    let asked = async { tokio::join!(post(&sender, CHAT), post(&sender, CHAT), post(&sender, CHAT)) };
    let ring = async {
        engine.wait_seen(3).await;
        assert_eq!(rig.in_flight(), 2, "the third is not even sent");
        bell.notify_one();
        engine.wait_seen(4).await;
        while rig.in_flight() > 0 {
            bell.notify_one();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ((one, two, three), ()) = tokio::join!(asked, ring);
    assert!([one, two, three].iter().all(|(answer, _)| answer.status() == 200));
}

#[tokio::test]
async fn who_starts_streams_only_to_reset_them_is_sent_away() {
    let engine = Engine::start(|_| vec![Step::UntilClosed]).await;
    let rig = Rig::start(&[&engine]).await;
    let sender = clear(&rig).await;
    let flood = async {
        for _ in 0..2_000 {
            let Ok(mut ready) = sender.clone().ready().await else { return };
            let asked = request(Method::POST, "/v1/chat/completions").body(()).unwrap();
            let Ok((_answer, mut stream)) = ready.send_request(asked, false) else { return };
            let _ = stream.send_data(Bytes::from_static(STREAM.as_bytes()), true);
            tokio::task::yield_now().await;
            stream.send_reset(h2::Reason::CANCEL);
        }
        panic!("2,000 streams were started and thrown away");
    };
    timeout(WAIT, flood).await.expect("the connection was closed");
    assert!(engine.seen().len() < 1_000, "{}", engine.seen().len());
    rig.wait_idle().await;
}

#[tokio::test]
async fn a_drain_lets_streams_of_http2_finish() {
    let bell = Arc::new(tokio::sync::Notify::new());
    let steps = vec![Step::Wait(bell.clone()), write(whole_stream(&["a"]))];
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::start(&[&engine]).await;
    let sender = clear(&rig).await;
    let asking = post(&sender, STREAM);
    let draining = async {
        engine.wait_seen(1).await;
        let drain = rig.drain();
        bell.notify_one();
        drain.await
    };
    let ((answer, body), drained) = tokio::join!(asking, draining);
    assert_eq!((answer.status().as_u16(), drained.cut), (200, 0));
    assert!(String::from_utf8(body.unwrap()).unwrap().ends_with("data: [DONE]\n\n"));
}
