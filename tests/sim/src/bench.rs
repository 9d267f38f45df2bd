//! `make bench-routing`: all policies, all figures of the goals, one RESULT line.
//!
//! Cells are workload × load. Ratios of goodput are over the loads 0.9 and 1.1; "the best" is the rival with the highest
//! geometric mean there, in its published or tuned form, and "the best in a cell" whoever is best in that cell. The oracle is
//! no rival.

use crate::cli::{say, with_progress, write};
use crate::compare::{Plan, Row, Run, geometric_mean, rows};
use crate::hardware::Hardware;
use crate::measure::Summary;
use crate::policy::{self, Spec};
use crate::report::{html::html, json::json, table::table};
use crate::scenario::Scenario;
use crate::speed::decision_us;
use crate::workload::{self, Definition};
use clap::Args;
use std::path::PathBuf;

const OURS: &str = "kv";
const ORACLE: &str = "oracle";
const DYNAMO: &str = "dynamo";
const LOADS: [f64; 3] = [0.6, 0.9, 1.1];
/// What a short run looks at.
const QUICK_WORKLOADS: [&str; 3] = ["conversation", "rag", "bursts"];
const QUICK_POLICIES: [&str; 7] = [OURS, ORACLE, DYNAMO, "lmetric", "sglang", "llm-d", "least-requests"];
/// Gateways that know nothing of each other, and how late they hear of caches.
const GATEWAYS: usize = 16;
const STALE_EVENTS_US: u64 = 50_000;

/// What `forebay-sim bench` takes.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A few cells, two seeds: shows that all runs, its intervals are wide
    #[arg(long)]
    quick: bool,
    /// Threads
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Write a page with plots
    #[arg(long)]
    html: Option<PathBuf>,
    /// Write all figures
    #[arg(long)]
    json: Option<PathBuf>,
}

impl Arguments {
    pub(crate) fn execute(&self) -> Result<(), String> {
        let known: Vec<&str> = workload::names().collect();
        let names = |held_out: bool| -> Result<Vec<&str>, String> {
            let mut picked = Vec::new();
            for &name in known.iter().filter(|name| !self.quick || held_out || QUICK_WORKLOADS.contains(name)) {
                if Definition::committed(name)?.held_out == held_out {
                    picked.push(name);
                }
            }
            Ok(picked)
        };
        let policies: Vec<&str> =
            if self.quick { QUICK_POLICIES.to_vec() } else { policy::named().map(|(name, _)| name).collect() };
        let eight = self.runs(&names(false)?, "standard", Scenario::healthy(8, standard()?), &policies)?;
        let figures = Figures::of(&eight);
        let few = [OURS, DYNAMO, &figures.best];
        let many = if self.quick {
            Vec::new()
        } else {
            self.runs(&names(false)?, "standard", Scenario::healthy(64, standard()?), &few)?
        };
        let mut held = self.runs(&names(true)?, "standard", Scenario::healthy(8, standard()?), &policies)?;
        let large = Scenario::healthy(8, Hardware::committed("large")?);
        held.extend(self.runs(&names(false)?, "large", large, &policies)?);
        let mut stale = Scenario::healthy(8, standard()?);
        (stale.gateways, stale.signals.event_delay_us) = (GATEWAYS, STALE_EVENTS_US);
        let spread = self.runs(&["hot-prompt", "no-reuse"], "standard", stale, &[OURS])?;
        let all: Vec<Run> = [&eight, &many, &held].into_iter().flatten().cloned().collect();
        say(&table(&all));
        if let Some(path) = &self.html {
            write(path, &html(&all))?;
        }
        if let Some(path) = &self.json {
            write(path, &json(&all)?)?;
        }
        figures.tell(&eight, &many, &held, &spread);
        Ok(())
    }

    fn runs(
        &self,
        workloads: &[&str],
        engine: &str,
        scenario: Scenario,
        policies: &[&str],
    ) -> Result<Vec<Run>, String> {
        let mut definitions = Vec::new();
        for &name in workloads {
            definitions.push((name.to_owned(), Definition::committed(name)?));
        }
        let many = scenario.workers > 8;
        with_progress(&Plan {
            workloads: definitions,
            engine: engine.to_owned(),
            scenario,
            loads: LOADS.to_vec(),
            seeds: if self.quick {
                2
            } else if many {
                3
            } else {
                6
            },
            policies: policies.iter().map(|name| Spec::parse(name)).collect::<Result<_, _>>()?,
            share: 1.0,
            threads: self.threads,
        })
    }
}

fn standard() -> Result<Hardware, String> {
    Hardware::committed("standard")
}

fn mean(row: &Row<'_>, figure: fn(&Summary) -> f64) -> f64 {
    row.estimate(figure).mean
}

fn goodput(row: &Row<'_>) -> f64 {
    mean(row, |summary| summary.goodput)
}

fn is_rival(row: &Row<'_>) -> bool {
    row.policy != OURS && row.policy != ORACLE
}

fn is_loaded(row: &Row<'_>) -> bool {
    row.cell.3 > 0.8
}

/// Ours in every cell, each with the others of that cell.
fn cells<'a>(rows: &'a [Row<'a>]) -> impl Iterator<Item = (&'a Row<'a>, Vec<&'a Row<'a>>)> {
    rows.iter().filter(|row| row.policy == OURS).map(|ours| {
        let others = rows.iter().filter(|row| row.cell == ours.cell && row.policy != OURS).collect();
        (ours, others)
    })
}

/// Geometric mean over loaded cells of ours ÷ `policy`.
fn against(rows: &[Row<'_>], policy: &str) -> Option<f64> {
    geometric_mean(cells(rows).filter(|(ours, _)| is_loaded(ours)).filter_map(|(ours, others)| {
        let other = others.into_iter().find(|row| row.policy == policy)?;
        Some(goodput(ours) / goodput(other).max(1e-9))
    }))
}

fn best_in_cell<'a>(others: &[&'a Row<'a>]) -> Option<&'a Row<'a>> {
    others.iter().copied().filter(|row| is_rival(row)).max_by(|a, b| goodput(a).total_cmp(&goodput(b)))
}

struct Figures {
    best: String,
}

impl Figures {
    fn of(runs: &[Run]) -> Self {
        let rows = rows(runs);
        let mut names: Vec<&str> = rows.iter().filter(|row| is_rival(row)).map(|row| row.policy).collect();
        names.dedup();
        let best = names.into_iter().min_by(|a, b| {
            let ours = |name: &str| against(&rows, name).unwrap_or(f64::INFINITY);
            ours(a).total_cmp(&ours(b))
        });
        Self { best: best.unwrap_or(DYNAMO).to_owned() }
    }

    fn tell(&self, eight: &[Run], many: &[Run], held: &[Run], spread: &[Run]) {
        let (eight, many, held, spread) = (rows(eight), rows(many), rows(held), rows(spread));
        let shown = |value: Option<f64>| value.map_or("na".to_owned(), |value| format!("{value:.3}"));
        let loaded = || cells(&eight).filter(|(ours, _)| is_loaded(ours));
        let worst =
            loaded().filter_map(|(ours, others)| Some((goodput(ours) / goodput(best_in_cell(&others)?), ours.cell)));
        let worst = worst.min_by(|a, b| a.0.total_cmp(&b.0));
        let light = cells(&eight).filter(|(ours, _)| !is_loaded(ours));
        let light = light.filter_map(|(ours, others)| Some(goodput(ours) / goodput(best_in_cell(&others)?)));
        let itl = loaded().filter_map(|(ours, others)| {
            let best = best_in_cell(&others)?;
            Some(mean(ours, |summary| summary.itl_p99_ms) / mean(best, |summary| summary.itl_p99_ms))
        });
        let hot = p99_against_oracle(&eight);
        let widest = |name: &str, rows: &[Row<'_>]| {
            let of = rows.iter().filter(|row| row.policy == OURS && row.cell.0 == name);
            of.map(|row| mean(row, |summary| summary.imbalance)).reduce(f64::max)
        };
        say(&format!("best rival over the loads 0.9 and 1.1: {}", self.best));
        if let Some((ratio, (workload, _, _, load))) = worst {
            say(&format!("worst cell against its best rival: {workload} at {load}, {ratio:.3}"));
        }
        let room = geometric_mean(loaded().filter_map(|(_, others)| {
            others.into_iter().find(|row| row.policy == DYNAMO).map(|row| 1.0 / goodput(row))
        }));
        say(&format!("most that any policy could have over Dynamo's default: {}", shown(room)));
        self.lost_cells(&eight);
        say(&format!(
            "RESULT goodput_geomean_x_dynamo={} goodput_geomean_x_best={} worst_cell_x_best={} light_worst_x_best={} \
             itl_p99_x_best={} recompute_x_oracle={} decision_us_256={} heldout_geomean_x_dynamo={} heldout_geomean_x_best={} \
             many_geomean_x_dynamo={} many_geomean_x_best={} hot_prefix_p99_x_oracle={} spread_no_reuse={} spread_16_gateways={}",
            shown(against(&eight, DYNAMO)),
            shown(against(&eight, &self.best)),
            shown(worst.map(|(ratio, _)| ratio)),
            shown(light.reduce(f64::min)),
            shown(geometric_mean(itl)),
            shown(recompute_against_oracle(&eight)),
            shown(Some(decision_us())),
            shown(against(&held, DYNAMO)),
            shown(against(&held, &self.best)),
            shown(against(&many, DYNAMO)),
            shown(against(&many, &self.best)),
            shown(hot),
            shown(widest("no-reuse", &eight)),
            shown(widest("hot-prompt", &spread)),
        ));
    }

    /// Cells in which a rival is better beyond chance, by more than 2 %.
    fn lost_cells(&self, rows: &[Row<'_>]) {
        for (ours, others) in cells(rows) {
            let high = |row: &Row<'_>| row.estimate(|summary| summary.goodput);
            let Some(best) = best_in_cell(&others) else { continue };
            let (mine, theirs) = (high(ours), high(best));
            if theirs.mean - theirs.half > (mine.mean + mine.half) * 1.02 {
                say(&format!("lost beyond chance: {} at {} to {}", ours.cell.0, ours.cell.3, best.policy));
            }
        }
    }
}

/// Time spent computing again what had been computed, at the lightest load, over all workloads, ours ÷ the oracle's.
fn recompute_against_oracle(rows: &[Row<'_>]) -> Option<f64> {
    let sum = |policy: &str| {
        let light = rows.iter().filter(|row| row.policy == policy && !is_loaded(row));
        light.map(|row| mean(row, |summary| summary.recompute_ms)).sum::<f64>()
    };
    let oracle = sum(ORACLE);
    if oracle > 0.0 { Some(sum(OURS) / oracle) } else { None }
}

/// 99th percentile of times to first token with hot prompts at load 0.9, ours ÷ the oracle's.
fn p99_against_oracle(rows: &[Row<'_>]) -> Option<f64> {
    let of = |policy: &str| {
        let row = rows.iter().find(|row| row.policy == policy && row.cell.0 == "hot-prompt" && row.cell.3 == 0.9)?;
        Some(mean(row, |summary| summary.ttft_p99_ms))
    };
    Some(of(OURS)? / of(ORACLE)?)
}
