use super::*;
use crate::sample::ProcessUse;
use std::collections::BTreeMap;

/// A sample in which the router used so many µs per request and a tenth of it per chunk.
pub(crate) fn sample(test: &str, peer: &str, rep: u64, router_us: f64) -> Sample {
    let router = ProcessUse {
        cpu_us_per_request: router_us,
        cpu_us_per_chunk: Some(router_us / 10.0),
        cores: 0.5,
        rss_mb_start: 10,
        rss_mb: 12,
        threads: 1,
    };
    Sample {
        test: test.into(),
        peer: peer.into(),
        rep,
        load: None,
        connections: 1,
        requests: 1_000,
        seconds: 2.0,
        chunks: 10_000,
        errors: 0,
        first_error: None,
        latency_us: None,
        ttft_us: None,
        gap_us: None,
        oneway_us: None,
        processes: BTreeMap::from([("router".to_owned(), router)]),
    }
}

pub(crate) fn suite_of(runs: &[(&str, &str, u64, f64)]) -> Suite {
    let samples = runs.iter().map(|&(test, peer, rep, us)| sample(test, peer, rep, us)).collect();
    Suite { samples, ..Suite::default() }
}

#[test]
fn files_are_read_and_failed_runs_are_no_figures() {
    let mut failed = sample("small", "b", 2, 1.0);
    failed.errors = 11;
    failed.first_error = Some("status 503: busy".into());
    let mut barely = sample("small", "b", 1, 5.0);
    barely.errors = 10;
    let lines = [failed, barely].map(|sample| serde_json::to_string(&sample).unwrap()).join("\n");
    let suite = Suite::of(&lines, "c\t*\tdid not install: no wheel\nbroken\n", "cpu\tEPYC\ncores\t2\n", "").unwrap();
    assert_eq!(suite.samples.len(), 1);
    assert_eq!(suite.missing[0].reason, "rep 2: 11 of 1011 failed: status 503: busy");
    assert_eq!((suite.missing[1].peer.as_str(), suite.missing.len()), ("c", 2));
    assert_eq!(suite.peers(), ["b", "c"]);
    assert_eq!(suite.machine[1], ("cores".into(), "2".into()));
}

#[test]
fn broken_or_absent_samples_are_errors() {
    assert!(matches!(Suite::of("\n", "", "", ""), Err(SuiteError::Empty)));
    let error = Suite::of("\n{\"test\":1}", "", "", "").unwrap_err();
    assert!(error.to_string().starts_with("samples.jsonl line 2: "), "{error}");
}

#[test]
fn figures_are_medians_over_repetitions_of_one_router_in_one_test() {
    let suite = suite_of(&[
        ("t", "a", 1, 1.0),
        ("t", "a", 2, 9.0),
        ("t", "a", 3, 4.0),
        ("t", "b", 1, 70.0),
        ("u", "a", 1, 80.0),
    ]);
    let figure = suite.figure("t", "a", |sample| sample.router().map(|used| used.cpu_us_per_request)).unwrap();
    assert_eq!((figure.median, figure.min, figure.max), (4.0, 1.0, 9.0));
    assert_eq!(suite.figure("u", "b", |_| Some(1.0)), None);
    assert_eq!((suite.tests(), suite.reps()), (vec!["t".to_owned(), "u".to_owned()], 3));
}

#[test]
fn kv_runs_that_never_hit_the_index_are_dropped() {
    let mut suite = suite_of(&[("p32k_seen", "forebay_kv", 1, 1.0), ("p32k_seen", "nginx", 1, 1.0)]);
    suite.read_index(|_, _, _| Some("forebay_index_blocks 5\n".to_owned()));
    assert_eq!(suite.figure("p32k_seen", "forebay_kv", |_| Some(1.0)), None);
    assert!(suite.figure("p32k_seen", "nginx", |_| Some(1.0)).is_some());
    assert!(suite.missing[0].reason.contains("never hit"));
}
