//! The gateway as `serve` builds it, in front of mock engines: admin listener, reload, access log, drain.

use forebay::app::{App, StartError};
use forebay::cli::Exit;
use forebay::config::{Flags, Sources};
use forebay_engine::{EngineBuilder, EngineHandle};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Duration, sleep, timeout};

/// Longer than anything here takes on a busy machine.
const WAIT: Duration = Duration::from_secs(60);

struct Gateway {
    app: App,
    clients: SocketAddr,
    admin: SocketAddr,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect(&self.body)
    }
}

fn sources(workers: &[&EngineHandle], set: &[(&str, &str)]) -> Sources {
    let fixed = [("listen.address", "127.0.0.1:0"), ("admin.address", "127.0.0.1:0"), ("health.interval", "100ms")];
    let scalars =
        fixed.iter().chain(set).map(|(key, value)| ("--set".to_owned(), (*key).to_owned(), (*value).to_owned()));
    let workers = workers.iter().map(|engine| engine.url()).collect();
    Sources { flags: Flags { scalars: scalars.collect(), workers, tokenizers: Vec::new() }, ..Sources::default() }
}

async fn start(sources: Sources) -> Gateway {
    let loaded = sources.load().expect("a good configuration");
    let app = App::start(sources, loaded).await.expect("started");
    let (clients, admin) = app.addresses();
    Gateway { app, clients, admin }
}

async fn engine() -> EngineHandle {
    EngineBuilder::new().model("m").speedup(100.0).start().await.expect("an engine")
}

/// One request with its own connection; `extra` are whole header lines.
async fn ask(to: SocketAddr, method: &str, path: &str, extra: &str, body: &str) -> Answer {
    let host = if extra.to_ascii_lowercase().contains("host:") { String::new() } else { format!("Host: {to}\r\n") };
    let request = format!(
        "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\nContent-Length: {}\r\n{extra}\r\n{body}",
        body.len()
    );
    let exchange = async {
        let mut stream = TcpStream::connect(to).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("received");
        String::from_utf8(answer).expect("UTF-8")
    };
    let text = timeout(WAIT, exchange).await.expect("answered in time");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

impl Gateway {
    async fn get(&self, path: &str) -> Answer {
        ask(self.admin, "GET", path, "", "").await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        ask(self.admin, "POST", path, "Content-Type: application/json\r\n", &body.to_string()).await
    }

    async fn chat(&self, text: &str) -> Answer {
        let body = json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": text}]});
        ask(self.clients, "POST", "/v1/chat/completions", "Content-Type: application/json\r\n", &body.to_string()).await
    }

    /// Asks until `holds`; shows the last answer when it never does.
    async fn until(&self, path: &str, holds: impl Fn(&Answer) -> bool) -> Answer {
        let mut last = self.get(path).await;
        let waiting = async {
            while !holds(&last) {
                sleep(Duration::from_millis(20)).await;
                last = self.get(path).await;
            }
        };
        let in_time = timeout(WAIT, waiting).await.is_ok();
        assert!(in_time, "{path}: {} {}", last.status, last.body);
        last
    }

    async fn until_ready(&self, workers: usize) {
        self.until("/workers", |answer| {
            let list = answer.json();
            let states = list["workers"].as_array().expect("a list").iter().map(|worker| worker["state"].clone());
            states.filter(|state| state == "ready").count() == workers
        })
        .await;
    }
}

fn series<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    page.lines().filter(move |line| line.starts_with(name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flags_alone_make_a_gateway_that_serves_and_tells_what_it_did() {
    let (a, b) = (engine().await, engine().await);
    let gateway = start(sources(&[&a, &b], &[])).await;
    gateway.until_ready(2).await;
    assert_eq!(gateway.get("/readyz").await.status, 200);
    assert_eq!(gateway.get("/healthz").await.status, 200);

    let answer = gateway.chat("hello").await;
    assert_eq!(answer.status, 200, "{}", answer.body);

    let list = gateway.get("/workers").await.json();
    let first = &list["workers"][0];
    assert_eq!(first["model"], "m");
    assert_eq!(first["block_size"], 16);
    assert!([a.url(), b.url()].iter().any(|url| first["url"] == **url), "{list}");
    assert!(first["in_flight"]["requests"].is_u64() && first["id"].is_string(), "{list}");

    let status = gateway.until("/status", |answer| answer.json()["feeds"][1]["state"] == "live").await.json();
    assert_eq!(status["ready"], true);
    assert_eq!(status["models"][0]["name"], "m");
    assert_eq!(status["models"][0]["ready_workers"], 2);
    assert_eq!(status["models"][0]["policy"], "kv");
    assert_eq!(status["workers"]["states"]["ready"], 2);
    assert_eq!(status["config"]["error"], Value::Null);

    let page = gateway.get("/metrics").await;
    assert!(page.head.contains("text/plain; version=0.0.4"), "{}", page.head);
    let served = "forebay_requests_total{dialect=\"chat\",model=\"m\",outcome=\"ok\",status=\"2xx\"} 1";
    assert_eq!(series(&page.body, served).count(), 1, "{}", page.body);
    assert_eq!(series(&page.body, "forebay_decisions_total{policy=\"kv\"").count(), 1);
    // An answer that comes in one piece has no first token of its own; its whole time is known.
    assert_eq!(series(&page.body, "forebay_request_seconds_count{model=\"m\"} 1").count(), 1, "{}", page.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_family_of_every_module_has_help_and_a_unit() {
    let a = engine().await;
    let gateway = start(sources(&[&a], &[])).await;
    gateway.until_ready(1).await;
    gateway.chat("hello").await;
    let page = gateway.until("/metrics", |page| page.body.contains("forebay_index_blocks ")).await.body;
    let units = [
        "_total",
        "_seconds",
        "_bytes",
        "_tokens",
        "_ms",
        "_blocks",
        "_holders",
        "_connections",
        "_info",
        "_state",
        // What they count stands last: requests of an engine, the source of a model's ids, a share.
        "_running",
        "_waiting",
        "_requests",
        "_usage",
        "_source",
        "_jobs",
        "_threads",
        "_entries",
        "_workers",
        "_depth",
        "_alarm",
        "_generation",
        "_sequence",
    ];
    let mut families = 0;
    for name in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()) {
        assert!(name.starts_with("forebay_"), "{name}");
        assert!(page.contains(&format!("# HELP {name} ")), "{name} has no help");
        assert!(units.iter().any(|unit| name.ends_with(unit)), "{name} has no unit");
        families += 1;
    }
    assert!(families > 40, "all modules are on the page: {families}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_and_go_by_hand() {
    let (a, b) = (engine().await, engine().await);
    let gateway = start(sources(&[&a], &[])).await;
    gateway.until_ready(1).await;

    let added = gateway.post("/workers?wait=true", &json!({"url": b.url()})).await;
    assert_eq!((added.status, &added.json()["state"]), (200, &json!("ready")), "{}", added.body);
    let again = gateway.post("/workers", &json!({"url": b.url()})).await;
    assert_eq!((again.status, &again.json()["added"]), (202, &json!(false)));
    gateway.until_ready(2).await;

    let removed = ask(gateway.admin, "DELETE", "/workers", "", &json!({"url": a.url()}).to_string()).await;
    assert_eq!(removed.status, 202, "{}", removed.body);
    gateway.until_ready(1).await;
    let escaped = b.url().replace(':', "%3A").replace('/', "%2F");
    let removed = ask(gateway.admin, "DELETE", &format!("/workers?url={escaped}"), "", "").await;
    assert_eq!(removed.status, 202, "{}", removed.body);
    gateway.until("/readyz", |answer| answer.status == 503).await;
    let gone = ask(gateway.admin, "DELETE", "/workers", "", &json!({"url": a.url()}).to_string()).await;
    assert_eq!(gone.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_to_the_admin_listener_are_told_why() {
    let gateway = start(sources(&[], &[])).await;
    let cases = [
        ("GET", "/nothing", "", "", 404, "/workers"),
        ("POST", "/metrics", "", "", 405, "use GET"),
        ("POST", "/workers", "", "not json", 400, "is not a worker"),
        ("POST", "/workers", "", "{\"url\":\"http://a:1\",\"zone\":1}", 400, "unknown field"),
        ("POST", "/workers", "", "{\"url\":\"ftp://a:1\"}", 400, "write http"),
        ("POST", "/workers", "", "{\"url\":\"http://user:pw@a:1\"}", 400, "user names"),
        ("POST", "/workers", "", "{\"url\":\"http://a:1\",\"ranks\":0}", 400, "ranks"),
        ("DELETE", "/workers", "", "", 400, "url"),
        ("POST", "/explain", "", "{", 400, "JSON"),
        ("POST", "/explain?dialect=latin", "", "{}", 400, "chat, completions"),
        ("POST", "/explain", "", "{\"model\":\"x\",\"messages\":[]}", 404, "does not exist"),
        ("GET", "/status", "Origin: http://evil.example\r\n", "", 403, "web pages"),
        ("GET", "/status", "Sec-Fetch-Site: cross-site\r\n", "", 403, "web pages"),
        ("GET", "/status", "Host: evil.example:8081\r\n", "", 421, "localhost"),
        ("GET", "/status", "Host: localhost:8081\r\n", "", 200, "version"),
        ("GET", "/status", "Host: [::1]:8081\r\n", "", 200, "version"),
        ("GET", "/readyz", "", "", 503, "no worker"),
    ];
    for (method, path, extra, body, status, word) in cases {
        let answer = ask(gateway.admin, method, path, extra, body).await;
        assert_eq!(answer.status, status, "{method} {path} {extra}{body}: {}", answer.body);
        assert!(answer.body.contains(word), "{method} {path} {extra}{body}: {}", answer.body);
        answer.json();
    }
    let large = "x".repeat(65 << 10);
    let answer = ask(gateway.admin, "POST", "/workers", "", &large).await;
    assert_eq!(answer.status, 413, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explain_says_why_and_sends_nothing() {
    let (a, b) = (engine().await, engine().await);
    let gateway = start(sources(&[&a, &b], &[])).await;
    gateway.until_ready(2).await;
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "why"}]});
    let answer = gateway.post("/explain", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let explanation: forebay::admin::Explanation = serde_json::from_str(&answer.body).expect("an explanation");
    assert_eq!((explanation.policy.as_str(), explanation.candidates.len()), ("kv", 2));
    let chosen = explanation.chosen.expect("somebody");
    assert!(
        explanation.candidates.iter().any(|candidate| candidate.worker == chosen && candidate.standing == "eligible")
    );
    assert!(explanation.candidates.iter().all(|candidate| candidate.prefill_ms > 0.0 && candidate.cost_ms > 0.0));
    let page = gateway.get("/metrics").await.body;
    assert_eq!(series(&page, "forebay_requests_total{").count(), 0, "nothing was served");
}

fn file_sources(path: PathBuf) -> Sources {
    Sources { file: Some(path), ..Sources::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_applies_and_a_bad_one_keeps_the_old_state() {
    let (a, b) = (engine().await, engine().await);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("forebay.toml");
    let write = |policy: &str, urls: &[String]| {
        let workers: String = urls.iter().map(|url| format!("[[workers]]\nurl = \"{url}\"\n")).collect();
        let head = "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n";
        std::fs::write(&path, format!("{head}[routing]\npolicy = \"{policy}\"\n{workers}")).expect("written");
    };
    write("kv", &[a.url()]);
    let gateway = start(file_sources(path.clone())).await;
    gateway.until_ready(1).await;

    write("round-robin", &[a.url(), b.url()]);
    gateway.until_ready(2).await;
    gateway.until("/status", |answer| answer.json()["models"][0]["policy"] == "round-robin").await;
    gateway.chat("now in turn").await;
    assert!(gateway.get("/metrics").await.body.contains("forebay_decisions_total{policy=\"round-robin\""));

    write("astrology", &[a.url()]);
    let status = gateway.until("/status", |answer| answer.json()["config"]["refused"] == 1).await.json();
    let why = status["config"]["error"].as_str().expect("a reason");
    assert!(why.contains("forebay.toml:6:10: routing.policy: \"astrology\""), "{why}");
    assert_eq!(status["workers"]["states"]["ready"], 2, "the old state holds");
    assert!(gateway.get("/metrics").await.body.contains("forebay_config_reloads_total{result=\"refused\"} 1"));

    write("round-robin", &[b.url()]);
    gateway.until_ready(1).await;
    assert_eq!(gateway.get("/status").await.json()["config"]["error"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_log_nor_metrics_hold_prompt_or_credentials() {
    const PROMPT: &str = "the launch code is 7F-31-C0";
    const KEY: &str = "sk-very-secret";
    let a = engine().await;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.jsonl");
    let gateway = start(sources(&[&a], &[("observe.access_log", log.to_str().expect("UTF-8"))])).await;
    gateway.until_ready(1).await;
    let body = json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": PROMPT}]});
    let headers = format!("Authorization: Bearer {KEY}\r\nX-Request-Id: given-1\r\n");
    let answer = ask(gateway.clients, "POST", "/v1/chat/completions", &headers, &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let page = gateway.get("/metrics").await.body;
    let status = gateway.get("/status").await.body;
    assert!(timeout(WAIT, gateway.app.drain()).await.is_ok());
    let lines = std::fs::read_to_string(&log).expect("the log");
    let line: Value = serde_json::from_str(lines.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["id"], &line["model"], &line["status"]), (&json!("given-1"), &json!("m"), &json!(200)));
    assert_eq!(line["worker"], a.url());
    for text in [&lines, &page, &status] {
        assert!(!text.contains("launch code") && !text.contains(KEY), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_announced_and_waits_for_what_runs() {
    let slow = EngineBuilder::new().model("m").speedup(1.0).start().await.expect("an engine");
    let gateway = start(sources(&[&slow], &[])).await;
    gateway.until_ready(1).await;
    let (clients, admin) = (gateway.clients, gateway.admin);
    let body = json!({"model": "m", "max_tokens": 60, "messages": [{"role": "user", "content": "slowly"}]});
    let mut requests = tokio::task::JoinSet::new();
    requests.spawn(async move { ask(clients, "POST", "/v1/chat/completions", "", &body.to_string()).await });
    gateway.until("/workers", |answer| answer.json()["workers"][0]["in_flight"]["requests"] == 1).await;
    let draining = gateway.app.drain();
    tokio::pin!(draining);
    let ready = tokio::select! {
        _ = &mut draining => panic!("the drain did not wait for a request of about a second"),
        ready = ask(admin, "GET", "/readyz", "", "") => ready,
    };
    assert_eq!(ready.status, 503);
    assert!(ready.body.contains("draining"), "{}", ready.body);
    let drained = timeout(WAIT, draining).await.expect("the drain ended");
    assert_eq!(drained.cut, 0);
    let answer = requests.join_next().await.expect("one request").expect("not cancelled");
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_told_to_stop_says_so_before_it_turns_anybody_away() {
    let engine = engine().await;
    let gateway = start(sources(&[&engine], &[("listen.drain_delay", "10m")])).await;
    gateway.until_ready(1).await;
    let (clients, admin) = (gateway.clients, gateway.admin);
    let draining = gateway.app.drain();
    tokio::pin!(draining);
    let body = json!({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "late"}]}).to_string();
    let told = async {
        while ask(admin, "GET", "/readyz", "", "").await.status != 503 {
            sleep(Duration::from_millis(5)).await;
        }
        let health = ask(clients, "GET", "/health", "", "").await.status;
        (health, ask(clients, "POST", "/v1/chat/completions", "", &body).await.status)
    };
    let told = tokio::select! {
        _ = &mut draining => panic!("the delay was not kept"),
        told = timeout(WAIT, told) => told.expect("answered in time"),
    };
    assert_eq!(told, (503, 200), "balancers are told, and whoever comes all the same is served");
}

#[tokio::test]
async fn a_taken_port_ends_the_start_with_its_own_exit_code() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    for key in ["listen.address", "admin.address"] {
        let sources = sources(&[], &[(key, &address)]);
        let loaded = sources.load().expect("a good configuration");
        let error: StartError = match App::start(sources, loaded).await {
            Ok(_) => panic!("{key} was free"),
            Err(error) => error,
        };
        assert_eq!(error.exit(), Exit::Unavailable);
        assert!(error.to_string().starts_with(&format!("{key}: cannot listen on {address}")), "{error}");
    }
}

/// A file with an operator's and a user's key, and the keys.
fn keys_file(folder: &std::path::Path) -> (String, String, String) {
    use forebay::doors::keys::{KEY_BYTES, make};
    let (user, line) = make("acme", "use", [1; KEY_BYTES]).expect("made");
    let (operator, other) = make("ops", "operate", [2; KEY_BYTES]).expect("made");
    let path = folder.join("keys");
    std::fs::write(&path, format!("{line}\n{other}\n")).expect("written");
    (path.to_str().expect("UTF-8").to_owned(), user, operator)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_loopback_operators_need_a_key_and_on_loopback_explain_does() {
    let a = engine().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (file, user, operator) = keys_file(folder.path());
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "why"}]}).to_string();
    for (address, open) in [("0.0.0.0:0", false), ("127.0.0.1:0", true)] {
        let gateway = start(sources(&[&a], &[("keys.file", &file), ("admin.address", address)])).await;
        let port = gateway.admin.port();
        let admin = SocketAddr::from(([127, 0, 0, 1], port));
        let status = async |method: &str, path: &str, key: Option<&str>, body: &str| {
            let fields = key.map_or_else(String::new, |key| format!("Authorization: Bearer {key}\r\n"));
            ask(admin, method, path, &fields, body).await.status
        };
        let admin_gateway = Gateway { app: gateway.app, clients: gateway.clients, admin };
        if open {
            admin_gateway.until_ready(1).await;
        } else {
            let ready = async {
                while status("GET", "/readyz", None, "").await != 200 {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            timeout(WAIT, ready).await.expect("the probes need no key");
        }
        for path in ["/workers", "/status", "/metrics"] {
            assert_eq!(status("GET", path, None, "").await, if open { 200 } else { 401 }, "{address} {path}");
            assert_eq!(status("GET", path, Some(&user), "").await, if open { 200 } else { 403 }, "{address} {path}");
            assert_eq!(status("GET", path, Some(&operator), "").await, 200, "{address} {path}");
        }
        assert_eq!(status("POST", "/explain", None, &body).await, 401);
        assert_eq!(status("POST", "/explain", Some(&user), &body).await, 403);
        assert_eq!(status("POST", "/explain", Some(&operator), &body).await, 200);
        let status = ask(admin, "GET", "/status", &format!("x-api-key: {operator}\r\n"), "").await.json();
        assert_eq!((&status["doors"]["asks_for_keys"], &status["doors"]["keys"]), (&json!(true), &json!(2)));
        assert!(!status.to_string().contains(&operator));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_socket_is_its_owners_alone_and_survives_a_crash() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let (file, ..) = keys_file(folder.path());
    let path = folder.path().join("admin.sock");
    // A process that was killed leaves its socket behind.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let set = [("keys.file", file.as_str()), ("admin.socket", path.to_str().expect("UTF-8"))];
    let gateway = start(sources(&[], &set)).await;
    let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let exchange = async {
        let mut stream = tokio::net::UnixStream::connect(&path).await.expect("connected");
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("received");
        answer
    };
    let answer = timeout(WAIT, exchange).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    let second = sources(&[], &set);
    let loaded = second.load().expect("good");
    let error = App::start(second, loaded).await.err().expect("the socket is in use").to_string();
    assert!(error.starts_with("admin.socket: cannot listen on"), "{error}");
    drop(gateway);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_listed_hosts_become_workers() {
    let gateway = start(sources(&[], &[("admin.allow_workers", "127.0.0.0/8, *.gpu.lan")])).await;
    let cases = [
        (json!({"url": "http://127.0.0.1:9"}), 202),
        (json!({"url": "http://a.gpu.lan:9"}), 202),
        (json!({"url": "http://169.254.169.254:80"}), 403),
        (json!({"url": "http://[::ffff:169.254.169.254]:80"}), 403),
        (json!({"url": "http://metadata.internal:80"}), 403),
        (json!({"url": "http://gpu.lan.evil.example:80"}), 403),
        (json!({"url": "http://127.0.0.1:10", "kv_events": "tcp://*:5557"}), 202),
        (json!({"url": "http://127.0.0.1:11", "kv_events": "tcp://169.254.169.254:80"}), 403),
        (json!({"url": "http://127.0.0.1:11", "kv_events": "bind:tcp://*:5557"}), 403),
        (json!({"url": "http://127.0.0.1:11", "kv_events": "ipc:///run/other.sock"}), 403),
    ];
    for (worker, status) in cases {
        let answer = gateway.post("/workers", &worker).await;
        assert_eq!(answer.status, status, "{worker}: {}", answer.body);
        assert!(status != 403 || answer.body.contains("allow_workers") || answer.body.contains("configuration file"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_access_log_names_the_tenant_and_no_key() {
    let a = engine().await;
    let folder = tempfile::tempdir().expect("a folder");
    let (file, user, _) = keys_file(folder.path());
    let log = folder.path().join("access.jsonl");
    let set = [("keys.file", file.as_str()), ("observe.access_log", log.to_str().expect("UTF-8"))];
    let gateway = start(sources(&[&a], &set)).await;
    gateway.until_ready(1).await;
    let body = json!({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}).to_string();
    let path = "/v1/chat/completions";
    let served = ask(gateway.clients, "POST", path, &format!("x-api-key: {user}\r\n"), &body).await;
    assert_eq!(served.status, 200, "{}", served.body);
    assert_eq!(ask(gateway.clients, "POST", path, "x-api-key: fbk_wrong\r\n", &body).await.status, 401);
    assert!(timeout(WAIT, gateway.app.drain()).await.is_ok());
    let lines = std::fs::read_to_string(&log).expect("the log");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&lines[0]["tenant"], &lines[0]["status"]), (&json!("acme"), &json!(200)));
    assert_eq!((&lines[1]["tenant"], &lines[1]["error"]), (&Value::Null, &json!("invalid_api_key")));
    let all = format!("{lines:?}");
    assert!(!all.contains(&user) && !all.contains("fbk_wrong"));
}

/// One row of the README's table of metrics for each family of `page`.
fn metric_rows(page: &str) -> Vec<String> {
    let of = |kind: &str| {
        let lines = page.lines().filter_map(move |line| line.strip_prefix(kind)?.split_once(' '));
        lines.map(|(name, rest)| (name.to_owned(), rest.to_owned())).collect::<std::collections::BTreeMap<_, _>>()
    };
    let (helps, types) = (of("# HELP "), of("# TYPE "));
    let row = |(name, kind): (&String, &String)| {
        let sample = series(page, name).find(|line| !line[name.len()..].starts_with(|c: char| c.is_alphanumeric()));
        let inside = sample.and_then(|line| line.split_once('{')?.1.rsplit_once('}')).map_or("", |(labels, _)| labels);
        let names = inside.split("\",").filter_map(|label| label.split_once('=')).map(|(label, _)| label);
        let labels: Vec<String> = names.filter(|label| *label != "le").map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "–".to_owned() } else { labels.join(", ") };
        format!("| `{name}` | {kind} | {labels} | {} |", helps.get(name).map_or("", String::as_str))
    };
    types.iter().filter(|(name, _)| name.starts_with("forebay_")).map(row).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_readme_lists_the_metrics_of_a_live_page() {
    let readme = include_str!("../../README.md");
    let section = readme.split("<!-- metrics -->").nth(1).and_then(|rest| rest.split("<!-- /metrics -->").next());
    let rows = section.expect("marked").lines().filter(|line| line.starts_with("| `"));
    let listed: Vec<String> = rows.map(str::to_owned).collect();

    let engine = engine().await;
    let gateway = start(sources(&[&engine], &[])).await;
    gateway.until_ready(1).await;
    gateway.until("/status", |answer| answer.json()["feeds"][0]["state"] == "live").await;
    assert_eq!(gateway.chat("a prompt that is long enough to fill a block or two of the cache").await.status, 200);
    // Some families come with the first event or the first reading.
    for _ in 0..500 {
        if metric_rows(&gateway.get("/metrics").await.body) == listed {
            return;
        }
        sleep(Duration::from_millis(20)).await;
    }
    let present = metric_rows(&gateway.get("/metrics").await.body);
    let wanted: Vec<&String> = present.iter().filter(|row| !listed.contains(row)).collect();
    let stale: Vec<&String> = listed.iter().filter(|row| !present.contains(row)).collect();
    panic!(
        "README.md, between the metrics marks. Take out:\n{stale:#?}\nput in:\n{wanted:#?}\nthe whole table:\n{}",
        present.join("\n")
    );
}
