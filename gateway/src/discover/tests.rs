//! Discovery against small HTTP engines on loopback.

use super::*;
use crate::fleet::{self, WorkerStatus};
use forebay_routing::block::HashKey;
use forebay_routing::view::WorkerState;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::sleep;

/// An engine made of canned answers, changed while it runs.
#[derive(Clone)]
struct Canned {
    port: u16,
    answers: Arc<Mutex<BTreeMap<&'static str, (u16, String)>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    async fn start(tasks: &TaskGroup, model: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let port = listener.local_addr().expect("bound").port();
        let canned = Self { port, answers: Arc::default(), asked: Arc::default() };
        canned.set("/health", 200, "");
        canned.set("/v1/models", 200, &format!(r#"{{"data":[{{"id":"{model}"}}]}}"#));
        canned.set("/version", 200, r#"{"version":"0.32.0"}"#);
        canned.set("/metrics", 200, &metrics(1.0, 3));
        let engine = canned.clone();
        let connections = tasks.clone();
        tasks.spawn("canned engine", async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let engine = engine.clone();
                connections.spawn("canned connection", async move {
                    let mut head = vec![0; 4096];
                    let length = stream.read(&mut head).await.unwrap_or(0);
                    let head = String::from_utf8_lossy(&head[..length]).into_owned();
                    let path = head.split(' ').nth(1).unwrap_or("").to_owned();
                    let (status, body) =
                        engine.answers.lock().get(path.as_str()).cloned().unwrap_or((404, String::new()));
                    engine.asked.lock().push(path);
                    let answer = format!(
                        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                        body.len()
                    );
                    let _ = stream.write_all(answer.as_bytes()).await;
                });
            }
        });
        canned
    }

    fn set(&self, path: &'static str, status: u16, body: &str) {
        self.answers.lock().insert(path, (status, body.to_owned()));
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

fn metrics(start: f64, running: u32) -> String {
    format!(
        "process_start_time_seconds {start}\nvllm:num_requests_running{{engine=\"0\"}} {running}\n\
         vllm:num_requests_waiting{{engine=\"0\"}} 1\nvllm:kv_cache_usage_perc{{engine=\"0\"}} 0.25\n\
         vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"1024\"}} 1\n"
    )
}

struct Rig {
    fleet: Fleet,
    discovery: Discovery,
    tasks: TaskGroup,
    introductions: mpsc::Receiver<Introduction>,
}

fn rig() -> Rig {
    let (registry, tasks, clock) = (prometheus::Registry::new(), TaskGroup::new(), Clock::start());
    let health = Health {
        interval: Duration::from_millis(20),
        timeout: Duration::from_secs(5),
        failures: 2,
        eject_after: 3,
        eject_for: Duration::from_millis(50),
        eject_share: 0.0,
        eject_ttft_factor: 0.0,
        max_ejected: 1.0,
        slow_start: Duration::ZERO,
        metrics_interval: Duration::from_millis(20),
    };
    let options = fleet::Options {
        health: health.clone(),
        key: HashKey::derive(&[1; 32]),
        tokenizer_digests: hashbrown::HashMap::new(),
        clock,
    };
    let fleet = Fleet::start(options, &registry, &tasks).expect("first registration");
    let feeds = Feeds::start(fleet.clone(), clock, &registry, &tasks).expect("starts");
    let (sender, introductions) = mpsc::channel(16);
    let options = Options {
        fleet: fleet.clone(),
        feeds,
        health,
        clock,
        introductions: Some(sender),
        doors: Arc::new(Doors::open()),
        agents: None,
    };
    let discovery = Discovery::start(options, &registry, &tasks).expect("first registration");
    Rig { fleet, discovery, tasks, introductions }
}

fn worker(url: &str) -> Worker {
    Worker {
        url: url.to_owned(),
        server_name: None,
        model: None,
        ranks: None,
        kv_events: None,
        kv_replay: None,
        block_size: None,
        agent: None,
    }
}

impl Rig {
    /// Waits until the fleet looks as `holds` says; a generous limit, for the machine may be busy.
    async fn wait(&self, what: &str, holds: impl Fn(&[WorkerStatus]) -> bool) -> Vec<WorkerStatus> {
        for _ in 0..3_000 {
            let status = self.fleet.describe().await;
            if holds(&status) {
                return status;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("{what} did not come about: {:?}, sites {:?}", self.fleet.describe().await, self.discovery.sites());
    }
}

fn all_ready(status: &[WorkerStatus], count: usize) -> bool {
    status.len() == count && status.iter().all(|worker| worker.view.state == WorkerState::Ready)
}

#[tokio::test]
async fn an_engine_introduces_itself_and_is_watched() {
    let mut rig = rig();
    let engine = Canned::start(&rig.tasks, "m").await;
    rig.discovery.reconcile(vec![worker(&engine.url())]).expect("valid URLs");
    let status = rig.wait("ready with load", |all| all_ready(all, 1) && all[0].view.engine.is_some()).await;
    let view = &status[0].view;
    assert_eq!((view.block_size, view.capacity_blocks), (Some(16), Some(1024)));
    assert_eq!(status[0].facts.version.as_deref(), Some("0.32.0"));
    assert_eq!(view.engine.map(|load| (load.running, load.waiting, load.kv_usage)), Some((3, 1, 0.25)));
    assert_eq!(rig.introductions.recv().await.map(|met| met.model.to_string()).as_deref(), Some("m"));

    engine.set("/health", 500, "");
    let status = rig.wait("down", |all| all[0].view.state == WorkerState::Down).await;
    assert_eq!(status[0].view.engine, None, "an old load is no load");
    engine.set("/health", 200, "");
    rig.wait("back", |all| all_ready(all, 1)).await;

    let before = rig.fleet.view().workers[0].id;
    engine.set("/metrics", 200, &metrics(1_000.0, 7));
    let status = rig.wait("another generation", |all| all_ready(all, 1) && all[0].id != before).await;
    assert_eq!((status[0].id.slot, status[0].id.generation), (before.slot, before.generation + 1));
}

#[tokio::test]
async fn an_engine_without_a_health_route_or_metrics_still_serves() {
    let rig = rig();
    let engine = Canned::start(&rig.tasks, "m").await;
    for path in ["/health", "/version", "/metrics"] {
        engine.answers.lock().remove(path);
    }
    rig.discovery.reconcile(vec![worker(&engine.url())]).expect("valid URLs");
    let status = rig.wait("ready", |all| all_ready(all, 1)).await;
    assert_eq!(status[0].view.engine, None);
    assert!(status[0].facts.degraded[0].contains("/metrics answered 404"));
}

#[tokio::test]
async fn an_unreachable_engine_is_asked_again_and_says_why() {
    let rig = rig();
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("loopback").local_addr().expect("bound");
    let known = Worker { model: Some("m".into()), ..worker(&format!("http://{closed}")) };
    rig.discovery.reconcile(vec![known]).expect("valid URLs");
    let status = rig.wait("a problem", |all| all.len() == 1 && all[0].problem.is_some()).await;
    assert_eq!(status[0].view.state, WorkerState::Starting);
    assert_eq!(rig.fleet.view().model("m"), Some(0), "its model is known by configuration");
    let site = &rig.discovery.sites()[0];
    assert!(
        !site.introduced && site.problem.as_ref().is_some_and(|problem| problem.contains("cannot connect")),
        "{site:?}"
    );
}

#[tokio::test]
async fn a_wrong_model_is_kept_out() {
    let rig = rig();
    let engine = Canned::start(&rig.tasks, "other").await;
    rig.discovery.reconcile(vec![Worker { model: Some("m".into()), ..worker(&engine.url()) }]).expect("valid URLs");
    let status = rig.wait("a problem", |all| all.len() == 1 && all[0].problem.is_some()).await;
    assert_eq!(status[0].view.state, WorkerState::Starting);
    assert!(status[0].problem.as_ref().is_some_and(|problem| problem.contains("serves other, not m")), "{status:?}");
}

#[tokio::test]
async fn ranks_become_workers() {
    let rig = rig();
    let (two, one) = (Canned::start(&rig.tasks, "m").await, Canned::start(&rig.tasks, "m").await);
    two.set("/kv_event_sources", 200, r#"{"0":{"endpoint":"tcp://127.0.0.1:1"},"3":{"endpoint":"tcp://127.0.0.1:1"}}"#);
    rig.discovery.reconcile(vec![worker(&two.url()), worker(&format!("{}@5", one.url()))]).expect("valid URLs");
    let status = rig.wait("three workers", |all| all_ready(all, 3)).await;
    let mut ranks: Vec<_> = status.iter().map(|worker| (worker.url.to_string(), worker.view.rank)).collect();
    ranks.sort();
    let mut want = vec![(two.url(), Some(0)), (two.url(), Some(3)), (one.url(), Some(5))];
    want.sort();
    assert_eq!(ranks, want);
}

#[tokio::test]
async fn lists_are_reconciled_by_difference() {
    let rig = rig();
    let engines = [
        Canned::start(&rig.tasks, "m").await,
        Canned::start(&rig.tasks, "m").await,
        Canned::start(&rig.tasks, "m").await,
    ];
    let urls = engines.each_ref().map(Canned::url);
    rig.discovery.reconcile(vec![worker(&urls[0]), worker(&urls[1])]).expect("valid URLs");
    let before = rig.wait("two", |all| all_ready(all, 2)).await;
    let kept = before.iter().find(|worker| *worker.url == *urls[0]).expect("there").id;

    assert!(rig.discovery.reconcile(vec![worker("ftp://x")]).is_err(), "a bad list changes nothing");
    assert!(rig.discovery.add(worker(&urls[2])).expect("valid URL"));
    assert!(!rig.discovery.add(worker(&format!("{}/", urls[0]))).expect("valid URL"), "the same place twice");
    rig.wait("three", |all| all_ready(all, 3)).await;

    let mut changed = worker(&urls[1]);
    changed.block_size = Some(64);
    rig.discovery.reconcile(vec![worker(&urls[0]), changed]).expect("valid URLs");
    rig.wait("changed one anew", |all| {
        all_ready(all, 3) && all.iter().any(|worker| worker.view.block_size == Some(64))
    })
    .await;

    assert!(rig.discovery.remove(&urls[1]));
    assert!(rig.discovery.remove(&urls[2]));
    assert!(!rig.discovery.remove("http://nobody:1"));
    let left = rig.wait("one left", |all| all_ready(all, 1)).await;
    assert_eq!(left[0].id, kept, "what did not change was left alone");
    rig.discovery.reconcile(vec![worker(&urls[0]), worker(&urls[1])]).expect("valid URLs");
    rig.wait("the file brings it back", |all| all_ready(all, 2)).await;
}

#[tokio::test]
async fn a_name_resolves_to_workers_and_a_failing_one_keeps_them() {
    let rig = rig();
    let engine = Canned::start(&rig.tasks, "m").await;
    let pool = |name: &str| DnsPool {
        tls: false,
        name: name.into(),
        port: engine.port,
        model: None,
        interval: Duration::from_millis(100),
    };
    rig.discovery.reconcile_names(vec![pool("localhost")]);
    rig.wait("found by name", |all| all.iter().any(|worker| worker.view.state == WorkerState::Ready)).await;
    rig.discovery.reconcile_names(vec![pool("localhost"), pool("no-such-name.invalid")]);
    for _ in 0..3_000 {
        if rig.discovery.shared.dns_failures.with_label_values(&["no-such-name.invalid"]).get() > 0 {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert!(rig.discovery.shared.dns_failures.with_label_values(&["no-such-name.invalid"]).get() > 0);
    assert!(rig.fleet.describe().await.iter().any(|worker| worker.view.state == WorkerState::Ready));
    rig.discovery.reconcile_names(vec![pool("no-such-name.invalid")]);
    rig.wait("a name that is taken out takes its workers along", <[WorkerStatus]>::is_empty).await;
}

#[tokio::test]
async fn garbage_answers_are_problems_not_panics() {
    let rig = rig();
    let engine = Canned::start(&rig.tasks, "m").await;
    engine.set("/v1/models", 200, "<html>");
    engine.set("/kv_event_sources", 200, "[]");
    engine.set("/metrics", 200, "}{\u{0}");
    rig.discovery.reconcile(vec![worker(&engine.url())]).expect("valid URLs");
    for _ in 0..3_000 {
        if rig.discovery.sites()[0].problem.is_some() {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    assert!(rig.discovery.sites()[0].problem.as_ref().is_some_and(|problem| problem.contains("not a list of models")));
    engine.set("/v1/models", 200, r#"{"data":[{"id":"m"}]}"#);
    let status = rig.wait("ready", |all| all_ready(all, 1)).await;
    assert!(status[0].facts.degraded.iter().any(|problem| problem.contains("event sources unknown")), "{status:?}");
}

/// SGLang tells its pages, its ranks' event sockets and its process at `/server_info`.
#[tokio::test]
async fn an_engine_with_server_info_is_known_by_it_and_its_instance_proves_a_restart() {
    let rig = rig();
    let engine = Canned::start(&rig.tasks, "m").await;
    engine.set("/metrics", 404, "");
    let info = |instance: &str| {
        format!(
            r#"{{"page_size":16,"max_total_num_tokens":1600,"instance_id":"{instance}","kv_events":{{"publisher":"zmq",
                "endpoint_host":"*","endpoint_port_base":1,"dp_size":2,"block_size":16}}}}"#
        )
    };
    engine.set("/server_info", 200, &info("a"));
    rig.discovery.reconcile(vec![worker(&engine.url())]).expect("valid URLs");
    let before = rig.wait("both ranks ready", |all| all_ready(all, 2)).await;
    assert_eq!((before[1].view.block_size, before[1].view.capacity_blocks), (Some(16), Some(100)));
    assert_eq!(before.iter().map(|worker| worker.view.rank).collect::<Vec<_>>(), [Some(0), Some(1)]);
    engine.set("/health", 500, "");
    rig.wait("down", |all| all[0].view.state == WorkerState::Down).await;
    engine.set("/health", 200, "");
    let same = rig.wait("back", |all| all_ready(all, 2)).await;
    assert_eq!(same[0].id, before[0].id, "the same process");
    engine.set("/health", 500, "");
    rig.wait("down", |all| all[0].view.state == WorkerState::Down).await;
    engine.set("/server_info", 200, &info("b"));
    engine.set("/health", 200, "");
    let after = rig.wait("back", |all| all_ready(all, 2)).await;
    assert!(after.iter().zip(&before).all(|(after, before)| after.id != before.id), "another process");
}
