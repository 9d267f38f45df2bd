//! The figures that decide, the bounds set for them before the first run, and the `RESULT` line.

use super::suite::Suite;
use super::table::{Table, number, ratio};
use crate::sample::Sample;
use crate::stats::Repeated;

/// One deciding figure.
#[derive(Clone, Debug)]
pub struct Goal {
    /// Its name in the `RESULT` line.
    pub key: String,
    /// What it is.
    pub what: String,
    /// The bound, where there is one.
    pub bound: Option<Bound>,
    /// What was measured.
    pub reached: Option<f64>,
}

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Bound {
    fn is_met(self, reached: f64) -> bool {
        match self {
            Self::AtMost(bound) => reached <= bound,
            Self::AtLeast(bound) => reached >= bound,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::AtMost(bound) => format!("≤ {}", number(bound)),
            Self::AtLeast(bound) => format!("≥ {}", number(bound)),
        }
    }
}

/// Every deciding figure, in the order of the `RESULT` line: the suite's own, then what `scale.sh` found.
pub fn goals(suite: &Suite) -> Vec<Goal> {
    let request = |test, peer| suite.figure(test, peer, request_us);
    let chunk = |test, peer| suite.figure(test, peer, chunk_us);
    let median = |value: Option<Repeated>| value.map(|value| value.median);
    let goal =
        |key: &str, what: &str, bound, reached| Goal { key: key.to_owned(), what: what.to_owned(), bound, reached };
    let at_most = |bound| Some(Bound::AtMost(bound));
    let kv = |key, what, bound, test| goal(key, what, at_most(bound), median(request(test, "forebay_kv")));
    let times = |test| ratio(request(test, "forebay_rr"), request(test, "nginx"));
    let chunk_times = |test| ratio(chunk(test, "forebay_kv"), chunk(test, "nginx"));
    let bursts = median(chunk("burst", "forebay_kv")).map(|chunk_us| 1e6 / chunk_us);
    let mut goals = vec![
        goal("rr_x_nginx", "small chat, round robin, × nginx", at_most(2.3), times("small")),
        kv("kv_small_us", "small chat, kv, µs", 60.0, "small"),
        goal("vllm_rr_small_us", "small chat, vllm-router round robin, µs", None, median(request("small", "vllm_rr"))),
        kv("kv_32k_cold_us", "32 KB never seen, kv, µs", 400.0, "p32k_cold"),
        kv("kv_32k_seen_us", "32 KB of which 24,000 B seen, kv, µs", 150.0, "p32k_seen"),
        kv("kv_400k_cold_us", "400 KB never seen, kv, µs", 2_500.0, "p400k_cold"),
        kv("kv_400k_seen_us", "400 KB of which 300,000 B seen, kv, µs", 600.0, "p400k_seen"),
        goal("chunk_x_nginx", "a paced chunk, kv, × nginx", at_most(1.45), chunk_times("stream")),
        goal(
            "burst_chunks_per_core",
            "chunks a second and core in bursts, kv",
            Some(Bound::AtLeast(200_000.0)),
            bursts,
        ),
        goal("tls_rr_x_nginx", "small chat over TLS, round robin, × nginx", None, times("small_tls")),
        goal("h2_rr_x_nginx", "small chat over TLS and HTTP/2, round robin, × nginx", None, times("small_h2")),
        goal("h2c_rr_x_nginx", "small chat over HTTP/2 in the clear, round robin, × nginx", None, times("small_h2c")),
        goal("tls_chunk_x_nginx", "a paced chunk over TLS, kv, × nginx", None, chunk_times("stream_tls")),
        goal("h2_chunk_x_nginx", "a paced chunk over TLS and HTTP/2, kv, × nginx", None, chunk_times("stream_h2")),
    ];
    goals.extend(suite.scale.iter().map(|scaled| goal(&scaled.key, &scaled.what, scaled.bound, scaled.value)));
    goals
}

/// CPU µs of the router per request.
pub fn request_us(sample: &Sample) -> Option<f64> {
    sample.router().map(|used| used.cpu_us_per_request)
}

/// CPU µs of the router per streamed chunk.
pub fn chunk_us(sample: &Sample) -> Option<f64> {
    sample.router().and_then(|used| used.cpu_us_per_chunk)
}

/// Goals against what was reached.
pub fn render(goals: &[Goal]) -> String {
    let mut table = Table::new(["figure", "goal", "reached", ""]);
    for goal in goals {
        let verdict = match (goal.reached, goal.bound) {
            (Some(reached), Some(bound)) if bound.is_met(reached) => "met",
            (Some(_), Some(_)) => "**missed**",
            (None, _) => "na",
            (Some(_), None) => "",
        };
        let shown = |value: Option<f64>| value.map_or_else(|| "na".to_owned(), number);
        let bound = goal.bound.map_or_else(String::new, Bound::shown);
        table.push(vec![goal.what.clone(), bound, shown(goal.reached), verdict.into()]);
    }
    table.render()
}

/// The last line of a report.
pub fn result_line(goals: &[Goal]) -> String {
    let shown = |value: Option<f64>| value.map_or_else(|| "na".to_owned(), |value| format!("{value:.2}"));
    let pairs: Vec<String> = goals.iter().map(|goal| format!("{}={}", goal.key, shown(goal.reached))).collect();
    format!("RESULT {}", pairs.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::scale::scaled;
    use crate::report::suite::tests::suite_of;

    #[test]
    fn result_line_has_every_key_and_na_for_what_is_missing() {
        let mut suite = suite_of(&[
            ("small", "nginx", 1, 20.0),
            ("small", "forebay_rr", 1, 40.0),
            ("small", "vllm_rr", 1, 70.0),
            ("burst", "forebay_kv", 1, 40.0),
        ]);
        suite.scale = scaled("stream_kib\t7.5\tmost\t10\topen streams\thow\n");
        assert_eq!(
            result_line(&goals(&suite)),
            "RESULT rr_x_nginx=2.00 kv_small_us=na vllm_rr_small_us=70.00 kv_32k_cold_us=na kv_32k_seen_us=na \
             kv_400k_cold_us=na kv_400k_seen_us=na chunk_x_nginx=na burst_chunks_per_core=250000.00 tls_rr_x_nginx=na \
             h2_rr_x_nginx=na h2c_rr_x_nginx=na tls_chunk_x_nginx=na h2_chunk_x_nginx=na stream_kib=7.50"
        );
    }

    #[test]
    fn bounds_are_judged() {
        let suite = suite_of(&[
            ("small", "nginx", 1, 20.0),
            ("small", "forebay_rr", 1, 60.0),
            ("small", "forebay_kv", 1, 59.0),
            ("burst", "forebay_kv", 1, 40.0),
        ]);
        let text = render(&goals(&suite));
        let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap().to_owned();
        assert!(line("round robin, × nginx").ends_with("| ≤ 2.30 | 3.00 | **missed** |"));
        assert!(line("small chat, kv").ends_with("| ≤ 60.0 | 59.0 | met |"));
        assert!(line("400 KB never seen").ends_with("| na | na |"));
        assert!(line("in bursts").ends_with("| ≥ 200,000 | 250,000 | met |"));
    }
}
