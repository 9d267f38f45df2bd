//! The report itself: where it ran, goals, one table over all tests and one for each, what the index did, what is missing.

use super::goal::{chunk_us, goals, render, request_us};
use super::suite::Suite;
use super::table::{Table, median, number, ranged, times};
use crate::sample::Sample;
use crate::stats::{Distribution, Repeated};
use std::fmt::Write as _;

/// The router that others are compared with.
const BASE_PEER: &str = "nginx";
/// The engine with no router before it.
const DIRECT_PEER: &str = "direct";
/// Tests whose answers are streams.
const STREAM_TESTS: [&str; 6] = ["c1s", "c1sq", "burst", "stream", "stream_tls", "stream_h2"];
/// Tests in which a chunk, and not a request, is what is measured.
const CHUNK_TESTS: [&str; 4] = ["burst", "stream", "stream_tls", "stream_h2"];

/// The whole report as markdown.
pub fn render_page(suite: &Suite) -> String {
    let decided = goals(suite);
    let mut out = String::new();
    out.push_str("### Where and how\n\n");
    out.push_str(&machine_table(suite));
    _ = write!(
        out,
        "\nMedians of {} interleaved repetitions, the range in brackets. CPU time is the router's own, all its processes and \
         threads.\n\n### Goals\n\n{}\n### All tests\n\n{}",
        suite.reps(),
        render(&decided),
        summary_table(suite),
    );
    for test in suite.tests() {
        let table = if STREAM_TESTS.contains(&test.as_str()) {
            stream_table(suite, &test)
        } else {
            request_table(suite, &test)
        };
        _ = write!(out, "\n### {test}: {}\n\n{table}", describe(&test));
    }
    if !suite.scale.is_empty() {
        _ = write!(out, "\n### At scale\n\n{}", scale_table(suite));
    }
    if !suite.index.is_empty() {
        _ = write!(out, "\n### Prefix index during `forebay_kv`\n\n{}", index_table(suite));
    }
    if !suite.missing.is_empty() {
        _ = write!(out, "\n### Not measured\n\n{}", missing_table(suite));
    }
    out
}

/// What a test sends.
fn describe(test: &str) -> &'static str {
    match test {
        "small" => "200 B prompts never seen, 64 connections",
        "c1" => "200 B prompts never seen, 1 connection",
        "c1s" => "16 chunks streamed at once, 1 connection",
        "c1sq" => "the same, the client acknowledging every segment at once",
        "burst" => "200 chunks streamed at once, 32 connections",
        "stream" => "200 chunks, 10 ms apart, 64 connections",
        "small_tls" => "as small, clients on TLS, HTTP/1.1",
        "small_h2" => "as small, clients on TLS, HTTP/2, 16 requests in flight on a connection",
        "small_h2c" => "as small, clients on HTTP/2 in the clear, 16 requests in flight on a connection",
        "stream_tls" => "as stream, clients on TLS, HTTP/1.1",
        "stream_h2" => "as stream, clients on TLS, HTTP/2, 16 streams on a connection",
        "p32k_cold" => "32,768 B prompts never seen, 8 connections",
        "p32k_seen" => "32,768 B prompts of which 24,000 B were seen (50 groups), 8 connections",
        "p400k_cold" => "409,600 B prompts never seen, 4 connections",
        "p400k_seen" => "409,600 B prompts of which 300,000 B were seen (20 groups), 4 connections",
        _ => "",
    }
}

/// The name of a router as people know it.
fn display_name(peer: &str) -> &str {
    match peer {
        "direct" => "no router",
        "sglang_rr" => "sglang-router round_robin",
        "sglang_ca" => "sglang-router cache_aware",
        "vllm_rr" => "vllm-router round_robin",
        "vllm_ca" => "vllm-router cache_aware",
        "dynamo_rr" => "Dynamo round-robin",
        "dynamo_kv" => "Dynamo kv",
        "dynamo_kv_fast" => "Dynamo kv, fastokens",
        "forebay_rr" => "**forebay** round-robin",
        "forebay_kv" => "**forebay** kv",
        other => other,
    }
}

fn machine_table(suite: &Suite) -> String {
    let mut table = Table::new(["", ""]);
    for (key, value) in &suite.machine {
        table.push(vec![key.clone(), value.clone()]);
    }
    table.render()
}

/// CPU µs of each router in each test: per request, and per chunk where chunks are what the test is about.
fn summary_table(suite: &Suite) -> String {
    let tests = suite.tests();
    let is_chunks = |test: &String| CHUNK_TESTS.contains(&test.as_str());
    let heads =
        tests.iter().map(|test| if is_chunks(test) { format!("{test} µs/chunk") } else { format!("{test} µs") });
    let mut table = Table::new(std::iter::once("router".to_owned()).chain(heads));
    for peer in suite.peers().iter().filter(|peer| *peer != DIRECT_PEER) {
        let cells = tests.iter().map(|test| {
            let of = if is_chunks(test) { chunk_us } else { request_us };
            let (value, base) = (suite.figure(test, peer, of), suite.figure(test, BASE_PEER, of));
            if value.is_some() && base.is_some() {
                format!("{} ({})", median(value), times(value, base))
            } else {
                median(value)
            }
        });
        table.push(std::iter::once(display_name(peer).to_owned()).chain(cells).collect());
    }
    table.render()
}

fn request_table(suite: &Suite, test: &str) -> String {
    let mut table = Table::new([
        "router",
        "CPU µs/request",
        "× nginx",
        "p50 µs",
        "added p50 µs",
        "p99 µs",
        "requests/s",
        "router cores",
        "RSS MB",
        "failed",
    ]);
    let direct = suite.figure(test, DIRECT_PEER, |sample| percentile(sample.latency_us, |d| d.p50));
    for peer in suite.peers() {
        let figure = |of: fn(&Sample) -> Option<f64>| suite.figure(test, &peer, of);
        let Some(p50) = figure(|sample| percentile(sample.latency_us, |d| d.p50)) else { continue };
        let mut row = cpu_cells(suite, test, &peer);
        row.extend([
            number(p50.median),
            added(&peer, Some(p50), direct),
            median(figure(|sample| percentile(sample.latency_us, |d| d.p99))),
        ]);
        row.extend(common_cells(suite, test, &peer));
        table.push(row);
    }
    table.render()
}

fn stream_table(suite: &Suite, test: &str) -> String {
    let mut table = Table::new([
        "router",
        "CPU µs/request",
        "× nginx",
        "CPU µs/chunk",
        "TTFT p50 µs",
        "added p50 µs",
        "TTFT p99 µs",
        "one-way p50 / p99 µs",
        "gap p99 µs",
        "requests/s",
        "router cores",
        "RSS MB",
        "failed",
    ]);
    let direct = suite.figure(test, DIRECT_PEER, |sample| percentile(sample.ttft_us, |d| d.p50));
    for peer in suite.peers() {
        let figure = |of: fn(&Sample) -> Option<f64>| suite.figure(test, &peer, of);
        let Some(p50) = figure(|sample| percentile(sample.ttft_us, |d| d.p50)) else { continue };
        let mut row = cpu_cells(suite, test, &peer);
        row.extend([
            ranged(figure(chunk_us)),
            number(p50.median),
            added(&peer, Some(p50), direct),
            median(figure(|sample| percentile(sample.ttft_us, |d| d.p99))),
            format!(
                "{} / {}",
                median(figure(|sample| percentile(sample.oneway_us, |d| d.p50))),
                median(figure(|sample| percentile(sample.oneway_us, |d| d.p99)))
            ),
            median(figure(|sample| percentile(sample.gap_us, |d| d.p99))),
        ]);
        row.extend(common_cells(suite, test, &peer));
        table.push(row);
    }
    table.render()
}

/// Name, CPU per request, times nginx.
fn cpu_cells(suite: &Suite, test: &str, peer: &str) -> Vec<String> {
    let value = suite.figure(test, peer, request_us);
    let base = suite.figure(test, BASE_PEER, request_us);
    vec![display_name(peer).into(), ranged(value), times(value, base)]
}

/// Requests per second, cores, memory, failures.
fn common_cells(suite: &Suite, test: &str, peer: &str) -> Vec<String> {
    let figure = |of: fn(&Sample) -> Option<f64>| suite.figure(test, peer, of);
    let failed: u64 = suite.samples.iter().filter(|s| s.test == test && s.peer == peer).map(|s| s.errors).sum();
    vec![
        median(figure(|sample| Some(sample.requests_per_s()))),
        median(figure(|sample| sample.router().map(|used| used.cores))),
        median(figure(|sample| sample.router().map(|used| used.rss_mb as f64))),
        failed.to_string(),
    ]
}

/// What a router adds to the direct median.
fn added(peer: &str, value: Option<Repeated>, direct: Option<Repeated>) -> String {
    match (value, direct) {
        (Some(value), Some(direct)) if peer != DIRECT_PEER => number(value.median - direct.median),
        _ => String::new(),
    }
}

fn percentile(distribution: Option<Distribution>, of: fn(&Distribution) -> f64) -> Option<f64> {
    distribution.as_ref().map(of)
}

fn index_table(suite: &Suite) -> String {
    let mut table = Table::new([
        "test",
        "runs",
        "requests",
        "of which sent to a holder of their beginning",
        "share",
        "blocks after",
    ]);
    for used in &suite.index {
        let share = used.prefix_hits / used.decisions.max(1.0);
        table.push(vec![
            used.test.clone(),
            used.runs.to_string(),
            number(used.decisions),
            number(used.prefix_hits),
            format!("{:.1} %", share * 100.0),
            number(used.blocks),
        ]);
    }
    table.render()
}

/// What `scale.sh` found, with what stands behind each figure.
fn scale_table(suite: &Suite) -> String {
    let mut table = Table::new(["figure", "reached", "how"]);
    for scaled in &suite.scale {
        let value = scaled.value.map_or_else(|| "na".to_owned(), number);
        table.push(vec![scaled.what.clone(), value, scaled.how.replace('|', "/")]);
    }
    table.render()
}

fn missing_table(suite: &Suite) -> String {
    let mut table = Table::new(["router", "test", "why"]);
    for missing in &suite.missing {
        let test = if missing.test == "*" { "all" } else { &missing.test };
        table.push(vec![display_name(&missing.peer).into(), test.into(), missing.reason.replace('|', "/")]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::suite::Missing;
    use crate::report::suite::tests::{sample, suite_of};

    fn distribution(p50: f64) -> Distribution {
        Distribution { count: 9, mean: p50, p50, p90: p50, p99: p50 * 2.0, max: p50 * 3.0 }
    }

    #[test]
    fn a_page_compares_with_nginx_and_names_what_is_missing() {
        let mut suite = suite_of(&[("small", "nginx", 1, 20.0), ("small", "forebay_rr", 1, 40.0)]);
        suite.missing.push(Missing { peer: "dynamo_kv".into(), test: "*".into(), reason: "no | wheel".into() });
        suite.machine.push(("cpu".into(), "EPYC".into()));
        let page = render_page(&suite);
        assert!(page.contains("| Dynamo kv | all | no / wheel |"), "{page}");
        assert!(page.contains("| **forebay** round-robin | 40.0 (2.00×) |"), "{page}");
        assert!(page.contains("| cpu | EPYC |"), "{page}");
    }

    #[test]
    fn added_latency_is_over_the_direct_run() {
        let timed = |test: &str, peer: &str, p50: f64| Sample {
            latency_us: Some(distribution(p50)),
            ttft_us: Some(distribution(p50 + 5.0)),
            ..sample(test, peer, 1, 20.0)
        };
        let runs = ["c1", "stream"].map(|test| [timed(test, "direct", 30.0), timed(test, "nginx", 130.0)]);
        let suite = Suite { samples: runs.into_iter().flatten().collect(), ..Suite::default() };
        let page = render_page(&suite);
        assert!(page.contains("| nginx | 20.0 (20.0–20.0) | 1.00× | 130 | 100 | 260 | 500 |"), "{page}");
        assert!(
            page.contains("| nginx | 20.0 (20.0–20.0) | 1.00× | 2.00 (2.00–2.00) | 135 | 100 | 270 | na / na |"),
            "{page}"
        );
    }
}
