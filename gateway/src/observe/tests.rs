//! What the scrape page promises: every family documented, units in names, a bounded number of series.

use super::labels::MAX_MODELS;
use super::*;
use crate::error::Blame;
use forebay_routing::decision::Reason;
use forebay_routing::{Policy, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

fn observer() -> Observer {
    Observer::new(None).expect("registered")
}

fn page(observer: &Observer) -> String {
    String::from_utf8(observer.scrape().expect("encoded")).expect("UTF-8")
}

fn served(model: &str) -> Record {
    Record {
        id: "r".to_owned(),
        model: model.into(),
        dialect: "chat",
        status: 200,
        outcome: Outcome::Ok,
        worker: Some((WorkerId::new(0, 0), "http://a:1".into())),
        policy: Some(Policy::Kv),
        reason: Some(Reason::PrefixHit),
        retries: 1,
        prompt_tokens: 100,
        predicted_cached: 48,
        cached_tokens: Some(64),
        output_tokens: 10,
        overhead_ms: 0.2,
        tokenize_ms: 0.1,
        queue_ms: Some(0.3),
        ttft_ms: Some(30.0),
        itl_ms: Some(20.0),
        total_ms: 230.0,
        ..Record::default()
    }
}

/// Series of a page by name with labels; fails on a line that is none.
fn series(page: &str) -> BTreeMap<String, f64> {
    page.lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("name and value");
            (name.to_owned(), value.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn a_record_becomes_these_numbers() {
    let observer = observer();
    observer.finish(served("m"));
    let series = series(&page(&observer));
    let value = |name: &str| *series.get(name).unwrap_or_else(|| panic!("{name} is on the page: {series:#?}"));
    let near = |name: &str, expected: f64| assert!((value(name) - expected).abs() < 1e-9, "{name}: {}", value(name));
    near("forebay_requests_total{dialect=\"chat\",model=\"m\",outcome=\"ok\",status=\"2xx\"}", 1.0);
    near("forebay_time_to_first_token_seconds_sum{model=\"m\"}", 0.03);
    near("forebay_time_to_first_token_seconds_bucket{model=\"m\",le=\"0.02\"}", 0.0);
    near("forebay_time_to_first_token_seconds_bucket{model=\"m\",le=\"0.04\"}", 1.0);
    near("forebay_inter_token_latency_seconds_sum{model=\"m\"}", 0.02);
    near("forebay_request_seconds_sum{model=\"m\"}", 0.23);
    near("forebay_queue_seconds_sum{model=\"m\"}", 0.0003);
    near("forebay_overhead_seconds_sum{model=\"m\"}", 0.0002);
    near("forebay_tokenize_seconds_sum{model=\"m\"}", 0.0001);
    near("forebay_tokens_total{kind=\"prompt\",model=\"m\"}", 100.0);
    near("forebay_tokens_total{kind=\"cached\",model=\"m\"}", 64.0);
    near("forebay_tokens_total{kind=\"generated\",model=\"m\"}", 10.0);
    near("forebay_hit_tokens_total{kind=\"predicted\",model=\"m\"}", 48.0);
    near("forebay_hit_tokens_total{kind=\"realised\",model=\"m\"}", 64.0);
    near("forebay_predictions_total{model=\"m\",result=\"under\"}", 1.0);
    near("forebay_predictions_total{model=\"m\",result=\"exact\"}", 0.0);
    near("forebay_prediction_error_tokens_sum{model=\"m\"}", 16.0);
    near("forebay_retries_total{model=\"m\"}", 1.0);
    near("forebay_decisions_total{policy=\"kv\",reason=\"prefix_hit\"}", 1.0);
}

#[test]
fn faults_are_counted_by_code_and_blame_and_limits_by_name() {
    let observer = observer();
    let refused = Record {
        status: 413,
        outcome: Outcome::Rejected,
        fault: Some("body_too_large"),
        blame: Some(Blame::Client),
        ..Record::default()
    };
    observer.finish(refused.clone());
    observer.finish(refused);
    observer.limit_hit("listen.max_connections");
    let text = Record { text_reason: Some("late"), ..served("m") };
    observer.finish(text);
    let series = series(&page(&observer));
    assert_eq!(series["forebay_faults_total{blame=\"client\",code=\"body_too_large\"}"], 2.0);
    assert_eq!(
        series["forebay_requests_total{dialect=\"other\",model=\"none\",outcome=\"rejected\",status=\"4xx\"}"],
        2.0
    );
    assert_eq!(series["forebay_text_routed_total{reason=\"late\"}"], 1.0);
    let mut hit = observer.limits_hit();
    hit.sort();
    let expected = [("listen.max_connections", 1), ("tokenize.deadline", 1)];
    assert_eq!(hit, expected.map(|(limit, count)| (limit.to_owned(), count)));
}

#[test]
fn every_family_has_help_a_type_and_a_unit() {
    const UNITS: [&str; 8] =
        ["_seconds", "_tokens", "_bytes", "_total", "_connections", "_requests", "_workers", "_lines_total"];
    let observer = observer();
    observer.sample("open", "Open client connections", Unit::Connections, || 3.0).expect("registered");
    let refused = Record { fault: Some("x"), text_reason: Some("late"), ..served("m") };
    observer.finish(refused);
    observer.reloaded(true);
    let page = page(&observer);
    let mut help = BTreeSet::new();
    for line in page.lines() {
        if let Some((name, text)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            assert!(name.starts_with("forebay_"), "{name}");
            assert!(UNITS.iter().any(|unit| name.ends_with(unit)), "{name} has no unit");
            assert!(text.len() > 10, "{name} explains itself: {text}");
            help.insert(name);
        } else if let Some((name, _)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert!(help.contains(name), "{name} has HELP");
        } else {
            let name = line.split(['{', ' ']).next().unwrap_or_default();
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            assert!(help.contains(name) || family.is_some_and(|family| help.contains(family)), "{name} has HELP");
        }
    }
    assert!(help.len() >= 18, "all families were seen: {help:?}");
    assert_eq!(series(&page)["forebay_open_connections"], 3.0);
}

#[test]
fn models_beyond_the_cap_share_a_label_and_are_counted() {
    let observer = observer();
    for i in 0..MAX_MODELS + 5 {
        observer.finish(served(&format!("m{i}")));
    }
    observer.finish(served("m0"));
    let page = page(&observer);
    let models = series(&page).into_iter().filter(|(name, _)| name.starts_with("forebay_requests_total{"));
    let models: BTreeMap<String, f64> = models.collect();
    assert_eq!(models.len(), MAX_MODELS + 1);
    let of = |model: &str| {
        models[&format!("forebay_requests_total{{dialect=\"chat\",model=\"{model}\",outcome=\"ok\",status=\"2xx\"}}")]
    };
    assert_eq!((of("m0"), of("other")), (2.0, 5.0), "a model that has its label keeps it");
    assert_eq!(observer.limits_hit(), [("observe.models".to_owned(), 5)]);
}

#[test]
fn names_that_clients_make_up_become_no_labels() {
    let observer = observer();
    for i in 0..1000 {
        let unknown = Record { worker: None, status: 404, outcome: Outcome::Rejected, ..served(&format!("junk{i}")) };
        observer.finish(unknown);
    }
    observer.finish(served("m"));
    let page = page(&observer);
    assert!(!page.contains("junk"));
    let requests = series(&page).into_keys().filter(|name| name.starts_with("forebay_requests_total{")).count();
    assert_eq!(requests, 2);
}

#[test]
fn edges_are_those_of_vllm() {
    let page = include_str!("../../tests/fixtures/vllm/metrics_a.prom");
    let edges = |family: &str| -> Vec<f64> {
        let start = format!("vllm:{family}_bucket{{");
        let of_family = page.lines().filter(|line| line.starts_with(&start));
        let edge = |line: &str| line.split_once("le=\"")?.1.split_once('"')?.0.parse::<f64>().ok();
        of_family.filter_map(edge).filter(|edge| edge.is_finite()).collect()
    };
    assert_eq!(edges("time_to_first_token_seconds"), TTFT_EDGES);
    assert_eq!(edges("inter_token_latency_seconds"), ITL_EDGES);
}
