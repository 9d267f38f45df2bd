//! What the configuration accepts, what it says of what it does not, and that its reference is the truth.

use super::key::Fallback;
use super::reload::Reloader;
use super::source::{Environment, Flags, Sources};
use super::table::{self, KEYS};
use super::{AccessLog, Config, Loaded, POLICIES, reference};
use forebay_routing::Policy;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

fn sources() -> Sources {
    Sources { file: Some(PathBuf::from("f.toml")), ..Sources::default() }
}

fn load(text: &str) -> Loaded {
    sources().resolve(Some(text)).expect("the text is a good configuration")
}

fn complaints(sources: &Sources, text: &str) -> Vec<String> {
    match sources.resolve(Some(text)) {
        Ok(_) => Vec::new(),
        Err(problems) => problems.0.iter().map(ToString::to_string).collect(),
    }
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
}

#[test]
fn errors_say_where_what_and_what_to_do() {
    let mut cases = 0;
    let mut wrong = String::new();
    for case in include_str!("testdata/errors.txt").split("\n== ").skip(1) {
        let (title, rest) = case.split_once('\n').expect("a case has a body");
        let (expected, text): (Vec<&str>, Vec<&str>) = rest.lines().partition(|line| line.starts_with("> "));
        let expected: Vec<&str> = expected.into_iter().map(|line| &line[2..]).collect();
        assert!(!expected.is_empty(), "{title}: a case expects something");
        let said = complaints(&sources(), &text.join("\n"));
        if said != expected {
            wrong += &format!(
                "{title}\n  said     {}\n  expected {}\n",
                said.join("\n           "),
                expected.join("\n           ")
            );
        }
        cases += 1;
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(cases > 30, "the table was read: {cases}");
}

#[test]
fn a_whole_file_resolves() {
    let loaded = load(
        r#"
        [listen]
        address = "127.0.0.1:9000"
        max_body_bytes = "1MiB"
        drain_timeout = "0s"
        threads = 2
        [routing]
        policy = "round-robin"
        retry_budget = 1
        seed = 18446744073709551615
        [observe]
        access_log = "/tmp/access.log"
        [[models]]
        name = "m"
        policy = "session"
        [[workers]]
        url = "http://[::1]:8000/"
        ranks = 2
        kv_events = "tcp://[::1]:5557"
        [[dns]]
        name = "engines.local"
        "#,
    );
    let config = loaded.config;
    assert_eq!(config.listen.address.port(), 9000);
    assert_eq!(config.listen.max_body_bytes, 1 << 20);
    assert_eq!(config.listen.drain_timeout, Duration::ZERO);
    assert_eq!(config.listen.threads, Some(2));
    assert_eq!(config.routing.policy, Policy::RoundRobin);
    assert!((config.routing.retry_budget - 1.0).abs() < f64::EPSILON);
    assert_eq!(config.access_log, AccessLog::File(PathBuf::from("/tmp/access.log")));
    assert_eq!(config.models[0].policy, Some(Policy::Session));
    assert_eq!(config.workers[0].url, "http://[::1]:8000");
    assert_eq!(config.workers[0].ranks, Some(2));
    assert_eq!(config.dns[0].port, 8000);
    assert_eq!(config.dns[0].interval, Duration::from_secs(5));
}

#[test]
fn flags_win_over_environment_over_file_over_default() {
    let mut sources = sources();
    let text = "[routing]\npolicy = \"session\"\nmax_attempts = 2\n[listen]\nthreads = 5\n[[workers]]\nurl = \"http://file:1\"";
    sources.environment = environment(&[
        ("FOREBAY_ROUTING_POLICY", "least-loaded"),
        ("FOREBAY_ROUTING_MAX_ATTEMPTS", "4"),
        ("FOREBAY_WORKERS", "http://env:1, http://env:2"),
    ]);
    let config = sources.resolve(Some(text)).expect("good").config;
    assert_eq!(config.routing.policy, Policy::LeastLoaded);
    assert_eq!(config.workers.iter().map(|w| w.url.as_str()).collect::<Vec<_>>(), ["http://env:1", "http://env:2"]);

    sources.flags = Flags {
        scalars: vec![("--policy".to_owned(), "routing.policy".to_owned(), "power-of-two".to_owned())],
        workers: vec!["http://flag:1".to_owned()],
        tokenizers: vec!["m=/nowhere".to_owned()],
    };
    let loaded = sources.resolve(Some(text)).expect("good");
    assert_eq!(loaded.config.routing.policy, Policy::PowerOfTwo, "flag");
    assert_eq!(loaded.config.routing.max_attempts, 4, "environment");
    assert_eq!(loaded.config.listen.threads, Some(5), "file");
    assert_eq!(loaded.config.upstream.pool_size, 256, "default");
    assert_eq!(loaded.config.workers.len(), 1);
    assert_eq!(loaded.config.models[0].tokenizer, Some(PathBuf::from("/nowhere")));
    assert_eq!(loaded.notes, ["models: m: /nowhere is not a folder; the model will be routed by text"]);
}

#[test]
fn faults_outside_the_file_name_their_source() {
    let mut sources = sources();
    sources.environment = environment(&[("FOREBAY_HEALTH_TIMEOUT", "5"), ("FOREBAY_WORKERS", "engine:1")]);
    sources.flags.scalars = vec![("--set".to_owned(), "routing.polcy".to_owned(), "kv".to_owned())];
    sources.flags.tokenizers = vec!["no-equals-sign".to_owned()];
    assert_eq!(
        complaints(&sources, ""),
        [
            "environment FOREBAY_HEALTH_TIMEOUT: health.timeout: \"5\" has no unit; write a whole number and ms, s, m or h, such as \"5s\" or \"250ms\"",
            "environment FOREBAY_WORKERS: workers[0].url: \"engine:1\" is no worker's URL; write http://host:port",
            "flag --set: routing.polcy: unknown key; did you mean routing.policy?",
            "flag --tokenizer: models: \"no-equals-sign\" has no \"=\"; write MODEL=FOLDER",
        ]
    );
}

#[test]
fn an_unknown_variable_is_a_note_and_those_of_kubernetes_are_nothing() {
    let mut sources = sources();
    sources.environment = environment(&[
        ("FOREBAY_ROUTING_POLYCY", "kv"),
        ("FOREBAY_SERVICE_HOST", "10.0.0.1"),
        ("FOREBAY_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("FOREBAY_LOG", "debug"),
    ]);
    let loaded = sources.resolve(None).expect("good");
    assert_eq!(
        loaded.notes,
        ["environment FOREBAY_ROUTING_POLYCY sets nothing that is known; did you mean FOREBAY_ROUTING_POLICY?"]
    );
}

#[test]
fn a_missing_file_and_a_file_that_is_not_text_are_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("binary.toml");
    std::fs::write(&path, [b'#', 0xff]).expect("written");
    let load =
        |file: PathBuf| Sources { file: Some(file), ..Sources::default() }.load().expect_err("refused").to_string();
    let binary = load(path.clone());
    assert_eq!(binary, format!("flag --config: {} is not UTF-8 at byte 1; save it as UTF-8", path.display()));
    assert!(load(folder.path().join("absent.toml")).contains("cannot read"));
}

#[test]
fn every_key_is_read() {
    let loaded = load("");
    let read: BTreeSet<&str> = loaded.effective.keys().copied().collect();
    let scalars: BTreeSet<&str> = KEYS.iter().map(|key| key.path).filter(|path| !path.contains("[]")).collect();
    assert_eq!(read, scalars, "the resolver reads exactly the scalar keys of the table");
    for key in KEYS {
        assert_eq!(KEYS.iter().filter(|other| other.path == key.path).count(), 1, "{} stands once", key.path);
        if let Fallback::Is(text) = key.fallback {
            let read = key.kind.read(&super::key::Raw::Loose(text.to_owned()));
            assert!(read.is_ok(), "{}: its default is within its own bounds: {read:?}", key.path);
        }
    }
}

/// Sections of the file by the struct that holds them.
const SECTIONS: [(&str, &str); 14] = [
    ("Agents", "agents."),
    ("Policy", "requests."),
    ("Certificate", "certificates[]."),
    ("Admin", "admin."),
    ("Keys", "keys."),
    ("Listen", "listen."),
    ("Routing", "routing."),
    ("Upstream", "upstream."),
    ("Health", "health."),
    ("Tokenize", "tokenize."),
    ("Model", "models[]."),
    ("Worker", "workers[]."),
    ("DnsPool", "dns[]."),
    ("Config", ""),
];

#[test]
fn every_resolved_field_is_a_documented_key() {
    let mut documented = BTreeSet::from(["observe.access_log"]);
    let mut prefix = None;
    for line in include_str!("resolved.rs").lines() {
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.split(' ').next()) {
            prefix = SECTIONS.iter().find(|(section, _)| *section == name).map(|(_, prefix)| *prefix);
            assert!(prefix.is_some(), "{name} belongs to a section");
        }
        let field = line.strip_prefix("    pub ").and_then(|rest| rest.split_once(':')).map(|(name, _)| name);
        let (Some(field), Some(prefix)) = (field.filter(|name| !name.contains(' ')), prefix) else { continue };
        if !prefix.is_empty() {
            let path = format!("{prefix}{field}");
            let key = table::find(&path);
            assert!(key.is_some(), "{path} has no row in the table of keys");
            documented.extend(key.map(|key| key.path));
        }
    }
    let all: BTreeSet<&str> = KEYS.iter().map(|key| key.path).collect();
    assert_eq!(documented, all, "every row is a field");
}

#[test]
fn the_policies_have_one_name_each() {
    for (name, policy) in POLICIES {
        let config = load(&format!("[routing]\npolicy = \"{name}\"")).config;
        assert_eq!(config.routing.policy, policy);
    }
}

#[test]
fn the_reference_has_a_row_for_each_key() {
    let text = reference::markdown();
    assert_eq!(text.matches("\n| `").count(), KEYS.len());
    assert!(text.contains("| `max_body_bytes` | a size from 1KiB to 4GiB, such as \"64MiB\" | `64MiB` | restart |"));
}

type Reports = Arc<Mutex<Vec<Result<Vec<&'static str>, String>>>>;

fn reloader(sources: Sources, text: &str) -> (Reloader, Reports) {
    let loaded = sources.resolve(Some(text)).expect("good");
    let reports: Reports = Arc::default();
    let sink = reports.clone();
    let report = move |outcome: Result<&[&'static str], &str>| {
        sink.lock().push(outcome.map(<[_]>::to_vec).map_err(str::to_owned));
    };
    (Reloader::new(sources, loaded, Box::new(report)), reports)
}

const ONE_WORKER: &str = "[[workers]]\nurl = \"http://a:1\"\n";

#[test]
fn a_bad_file_keeps_the_old_state_and_says_why() {
    let (reloader, reports) = reloader(sources(), ONE_WORKER);
    let config = reloader.subscribe();
    let before: Arc<Config> = config.borrow().clone();

    reloader.apply(Ok(Some("[[workers]]\nurl = \"nonsense\"".to_owned())));
    assert_eq!(*config.borrow(), before);
    let why = "f.toml:2:7: workers[0].url: \"nonsense\" is no worker's URL; write http://host:port";
    assert_eq!(reloader.state().error.as_deref(), Some(why));
    assert_eq!((reloader.state().applied, reloader.state().refused), (0, 1));
    assert_eq!(reports.lock().as_slice(), [Err(why.to_owned())]);

    reloader.apply(Ok(Some(format!("{ONE_WORKER}[[workers]]\nurl = \"http://b:1\""))));
    assert_eq!(config.borrow().workers.len(), 2);
    assert_eq!(reloader.state().error, None, "a good file clears the complaint");
}

#[test]
fn what_needs_a_restart_is_named_and_does_not_apply() {
    let (reloader, reports) = reloader(sources(), ONE_WORKER);
    let new = "[listen]\nthreads = 7\nmax_body_bytes = \"2MiB\"\n[routing]\npolicy = \"round-robin\"\nseed = 3";
    reloader.apply(Ok(Some(new.to_owned())));
    let config = reloader.subscribe().borrow().clone();
    assert_eq!(config.routing.policy, Policy::RoundRobin);
    assert!(config.workers.is_empty());
    assert_eq!((config.listen.threads, config.routing.seed), (None, None));
    let waiting = ["listen.max_body_bytes", "listen.threads", "routing.seed"];
    assert_eq!(reloader.state().needs_restart, waiting);
    assert_eq!(reports.lock().as_slice(), [Ok(waiting.to_vec())]);
    let changes = [
        "listen.max_body_bytes: 67108864 → 2097152",
        "listen.threads: unset → 7",
        "routing.policy: kv → round-robin",
        "routing.seed: unset → 3",
        "workers: - http://a:1",
    ];
    assert_eq!(reloader.state().changes, changes);

    reloader.apply(Ok(Some(ONE_WORKER.to_owned())));
    assert!(reloader.state().needs_restart.is_empty(), "taken back");
}

#[tokio::test]
async fn a_changed_file_is_seen_and_a_vanished_one_changes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("forebay.toml");
    std::fs::write(&path, ONE_WORKER).expect("written");
    let sources = Sources { file: Some(path.clone()), ..Sources::default() };
    let (reloader, _) = reloader(sources, ONE_WORKER);
    let reloader = Arc::new(reloader);
    let mut config = reloader.subscribe();
    let tasks = crate::tasks::TaskGroup::new();
    tasks.spawn("reload", reloader.clone().watch());

    let changed = format!("{ONE_WORKER}[[workers]]\nurl = \"http://b:1\"\n");
    let wait = Duration::from_secs(60);
    // The watcher may take its first look after this write; then the change is nothing new to it. SIGHUP settles it.
    std::fs::write(&path, changed).expect("written");
    reloader.reload_now();
    let seen =
        tokio::time::timeout(wait, config.wait_for(|c| c.workers.len() == 2)).await.is_ok_and(|seen| seen.is_ok());
    assert!(seen, "the change was seen");

    std::fs::write(&path, "[[workers]]\nurl = \"http://c:1\"\n").expect("written");
    let seen =
        tokio::time::timeout(wait, config.wait_for(|c| c.workers.len() == 1)).await.is_ok_and(|seen| seen.is_ok());
    assert!(seen, "the change was seen without being told");

    std::fs::remove_file(&path).expect("removed");
    let refused = async {
        while reloader.state().error.is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(wait, refused).await.is_ok(), "the loss was seen");
    assert_eq!(config.borrow().workers[0].url, "http://c:1");
    assert!(tasks.drain(wait).await);
}
