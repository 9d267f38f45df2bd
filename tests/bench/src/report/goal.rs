//! The figures that decide, the bounds set for them before the first run, and the `RESULT` line.

use super::suite::Suite;
use super::table::{Table, number, ratio};
use crate::sample::Sample;
use crate::stats::Repeated;

/// One deciding figure.
#[derive(Clone, Debug)]
pub struct Goal {
    /// Its name in the `RESULT` line.
    pub key: &'static str,
    /// What it is.
    pub what: &'static str,
    /// The bound, where there is one.
    pub bound: Option<f64>,
    /// What was measured.
    pub reached: Option<f64>,
}

/// Every deciding figure, in the order of the `RESULT` line.
pub fn goals(suite: &Suite) -> Vec<Goal> {
    let request = |test, peer| suite.figure(test, peer, request_us);
    let chunk = |peer| suite.figure("stream", peer, chunk_us);
    let median = |value: Option<Repeated>| value.map(|value| value.median);
    let vllm_small = median(request("small", "vllm_rr"));
    let kv = |key, what, bound, test| Goal { key, what, bound, reached: median(request(test, "forebay_kv")) };
    vec![
        Goal {
            key: "rr_x_nginx",
            what: "small chat, round robin, × nginx",
            bound: Some(2.5),
            reached: ratio(request("small", "forebay_rr"), request("small", "nginx")),
        },
        kv("kv_small_us", "small chat, kv, µs (bound: vllm-router's round robin)", vllm_small, "small"),
        Goal {
            key: "vllm_rr_small_us",
            what: "small chat, vllm-router round robin, µs",
            bound: None,
            reached: vllm_small,
        },
        kv("kv_32k_cold_us", "32 KB never seen, kv, µs", Some(500.0), "p32k_cold"),
        kv("kv_32k_seen_us", "32 KB of which 24,000 B seen, kv, µs", Some(200.0), "p32k_seen"),
        kv("kv_400k_cold_us", "400 KB never seen, kv, µs", Some(3_000.0), "p400k_cold"),
        kv("kv_400k_seen_us", "400 KB of which 300,000 B seen, kv, µs", Some(800.0), "p400k_seen"),
        Goal {
            key: "chunk_x_nginx",
            what: "a paced chunk, kv, × nginx",
            bound: Some(1.5),
            reached: ratio(chunk("forebay_kv"), chunk("nginx")),
        },
    ]
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
            (Some(reached), Some(bound)) if reached <= bound => "met",
            (Some(_), Some(_)) => "**missed**",
            (None, _) => "na",
            (Some(_), None) => "",
        };
        let shown = |value: Option<f64>| value.map_or_else(|| "na".to_owned(), number);
        let bound = goal.bound.map_or_else(String::new, |bound| format!("≤ {}", number(bound)));
        table.push(vec![goal.what.into(), bound, shown(goal.reached), verdict.into()]);
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
    use crate::report::suite::tests::suite_of;

    #[test]
    fn result_line_has_every_key_and_na_for_what_is_missing() {
        let suite =
            suite_of(&[("small", "nginx", 1, 20.0), ("small", "forebay_rr", 1, 40.0), ("small", "vllm_rr", 1, 70.0)]);
        assert_eq!(
            result_line(&goals(&suite)),
            "RESULT rr_x_nginx=2.00 kv_small_us=na vllm_rr_small_us=70.00 kv_32k_cold_us=na kv_32k_seen_us=na \
             kv_400k_cold_us=na kv_400k_seen_us=na chunk_x_nginx=na"
        );
    }

    #[test]
    fn bounds_are_judged() {
        let suite = suite_of(&[
            ("small", "nginx", 1, 20.0),
            ("small", "forebay_rr", 1, 60.0),
            ("small", "vllm_rr", 1, 70.0),
            ("small", "forebay_kv", 1, 69.0),
        ]);
        let text = render(&goals(&suite));
        let line = |what: &str| text.lines().find(|line| line.contains(what)).unwrap().to_owned();
        assert!(line("round robin, × nginx").ends_with("| ≤ 2.50 | 3.00 | **missed** |"));
        assert!(line("small chat, kv").ends_with("| ≤ 70.0 | 69.0 | met |"));
        assert!(line("400 KB never seen").ends_with("| na | na |"));
    }
}
