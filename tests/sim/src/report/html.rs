//! One page that needs nothing else: for each cell bars of goodput, distributions of both latencies, and all figures.

use crate::compare::{Row, Run, rows};
use crate::measure::Summary;
use std::fmt::Write as _;

const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 220.0;
const MARGIN: f64 = 34.0;
/// One for each policy, again from the start when there are more.
const COLOURS: [&str; 10] =
    ["#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6c4f9c", "#2e4057", "#8d96a3", "#a44a3f", "#00798c", "#b56576"];

const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Forebay: routing policies</title><style>\
body{font:14px system-ui,sans-serif;margin:2em;max-width:1400px;color:#222}h2{margin:2em 0 .3em}table{border-collapse:collapse}\
td,th{padding:.15em .7em;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left}\
figure{display:inline-block;margin:.5em 1em .5em 0}figcaption{font-size:12px;color:#555}svg{background:#fafafa}\
.dot{display:inline-block;width:.8em;height:.8em;margin-right:.4em}</style><h1>Routing policies, simulated</h1>\
<p>Every policy was offered the same requests, seed by seed. Load 1 is the rate at which least-loaded still serves 90 % within \
the objective: first token within 3 × its idle time + 500 ms, tokens at most twice as slow as alone. Intervals are 95 % over seeds.</p>";

/// The page.
pub fn html(runs: &[Run]) -> String {
    let rows = rows(runs);
    let mut cells: Vec<_> = Vec::new();
    let mut policies: Vec<&str> = Vec::new();
    for row in &rows {
        if !cells.contains(&row.cell) {
            cells.push(row.cell);
        }
        if !policies.contains(&row.policy) {
            policies.push(row.policy);
        }
    }
    let mut page = HEAD.to_owned();
    for cell in cells {
        let (workload, engine, workers, load) = cell;
        let _ = write!(page, "<h2>{} · load {load} · {workers} × {}</h2>", escape(workload), escape(engine));
        let mut here: Vec<&Row<'_>> = rows.iter().filter(|row| row.cell == cell).collect();
        here.sort_by(|a, b| goodput(b).total_cmp(&goodput(a)));
        let colour =
            |policy: &str| COLOURS[policies.iter().position(|other| *other == policy).unwrap_or(0) % COLOURS.len()];
        bars(&mut page, &here, "goodput", |summary| summary.goodput, colour);
        bars(&mut page, &here, "prefill computed again, ms a request", |summary| summary.recompute_ms, colour);
        bars(&mut page, &here, "requests of the busiest worker ÷ mean", |summary| summary.imbalance, colour);
        curves(&mut page, &here, "time to first token, ms (log)", |summary| &summary.ttft_curve, colour);
        curves(&mut page, &here, "mean time between tokens, ms (log)", |summary| &summary.itl_curve, colour);
        figures(&mut page, &here, colour);
    }
    page
}

fn goodput(row: &Row<'_>) -> f64 {
    row.estimate(|summary| summary.goodput).mean
}

fn bars(
    page: &mut String,
    rows: &[&Row<'_>],
    title: &str,
    figure: fn(&Summary) -> f64,
    colour: impl Fn(&str) -> &'static str,
) {
    let estimates: Vec<_> = rows.iter().map(|row| row.estimate(figure)).collect();
    let most = estimates.iter().map(|estimate| estimate.mean + estimate.half).fold(1e-9, f64::max);
    let height = 16.0 * rows.len() as f64 + 6.0;
    let _ = write!(page, "<figure><svg width=\"{WIDTH}\" height=\"{height}\" role=\"img\">");
    for (at, (row, estimate)) in rows.iter().zip(&estimates).enumerate() {
        let (y, room) = (16.0 * at as f64 + 4.0, WIDTH - 190.0);
        let x = |value: f64| 130.0 + room * value.max(0.0) / most;
        let _ = write!(
            page,
            "<text x=\"0\" y=\"{:.1}\" font-size=\"11\">{}</text><rect x=\"130\" y=\"{y:.1}\" width=\"{:.1}\" height=\"10\" fill=\"{}\"/>\
             <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{m:.1}\" y2=\"{m:.1}\" stroke=\"#000\"/><text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\">{:.3}</text>",
            y + 9.0,
            escape(row.policy),
            x(estimate.mean) - 130.0,
            colour(row.policy),
            x(estimate.mean - estimate.half),
            x(estimate.mean + estimate.half),
            x(estimate.mean + estimate.half) + 4.0,
            y + 9.0,
            estimate.mean,
            m = y + 5.0,
        );
    }
    let _ = write!(page, "</svg><figcaption>{title}</figcaption></figure>");
}

fn curves(
    page: &mut String,
    rows: &[&Row<'_>],
    title: &str,
    curve: fn(&Summary) -> &Vec<f64>,
    colour: impl Fn(&str) -> &'static str,
) {
    let all = || rows.iter().flat_map(|row| row.runs.iter().flat_map(move |run| curve(&run.summary).iter().copied()));
    let low = all().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min).max(0.1).ln();
    let high = all().fold(1.0, f64::max).ln().max(low + 0.1);
    let x = |value: f64| MARGIN + (WIDTH - 2.0 * MARGIN) * ((value.max(0.1).ln() - low) / (high - low)).clamp(0.0, 1.0);
    let y = |share: f64| HEIGHT - MARGIN - (HEIGHT - 1.5 * MARGIN) * share;
    let _ = write!(page, "<figure><svg width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">");
    for share in [0.0, 0.5, 0.9, 1.0] {
        let _ = write!(
            page,
            "<line x1=\"{MARGIN}\" x2=\"{:.0}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/><text x=\"2\" y=\"{:.1}\" font-size=\"10\">{share}</text>",
            WIDTH - MARGIN,
            y(share) + 3.0,
            y = y(share),
        );
    }
    for at in 0..=4 {
        let value = (low + (high - low) * f64::from(at) / 4.0).exp();
        let _ = write!(
            page,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"10\">{value:.0}</text>",
            x(value) - 8.0,
            HEIGHT - 12.0
        );
    }
    for row in rows {
        let runs = row.runs.len() as f64;
        let mean = |at: usize| row.runs.iter().filter_map(|run| curve(&run.summary).get(at)).sum::<f64>() / runs;
        let points: String = (0..=100).fold(String::new(), |mut points, at| {
            let _ = write!(points, "{:.1},{:.1} ", x(mean(at)), y(at as f64 / 100.0));
            points
        });
        let _ = write!(
            page,
            "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.3\" points=\"{points}\"/>",
            colour(row.policy)
        );
    }
    let _ = write!(page, "</svg><figcaption>share of requests by {title}</figcaption></figure>");
}

fn figures(page: &mut String, rows: &[&Row<'_>], colour: impl Fn(&str) -> &'static str) {
    page.push_str(
        "<table><tr><th>policy<th>goodput<th>TTFT p50<th>TTFT p99<th>ITL p50<th>ITL p99<th>hit<th>recomputed ms<th>max/mean</tr>",
    );
    for row in rows {
        let goodput = row.estimate(|summary| summary.goodput);
        let mean = |figure: fn(&Summary) -> f64| row.estimate(figure).mean;
        let _ = write!(
            page,
            "<tr><td><span class=\"dot\" style=\"background:{}\"></span>{}<td>{:.4} ± {:.4}<td>{:.0}<td>{:.0}<td>{:.2}<td>{:.2}<td>{:.3}<td>{:.2}<td>{:.2}</tr>",
            colour(row.policy),
            escape(row.policy),
            goodput.mean,
            goodput.half,
            mean(|summary| summary.ttft_p50_ms),
            mean(|summary| summary.ttft_p99_ms),
            mean(|summary| summary.itl_p50_ms),
            mean(|summary| summary.itl_p99_ms),
            mean(|summary| summary.hit),
            mean(|summary| summary.recompute_ms),
            mean(|summary| summary.imbalance),
        );
    }
    page.push_str("</table>");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
