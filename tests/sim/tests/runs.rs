//! Whole runs: one seed has one result, and faults, joins, leaves and bad signals do what they should and no more.
#![expect(clippy::unwrap_used, reason = "a run that cannot begin is a failed test")]

use forebay_sim::compare::{Offer, Plan, execute, offer};
use forebay_sim::hardware::Hardware;
use forebay_sim::measure::{Outcome, Summary};
use forebay_sim::policy::{Spec, named};
use forebay_sim::report::json::json;
use forebay_sim::scenario::{Happening, Scenario};
use forebay_sim::workload::{Definition, Offered};
use forebay_sim::world;

/// Requests of one run: enough to see an effect, few enough for an unoptimised build.
const REQUESTS: usize = 320;
const SECOND_US: u64 = 1_000_000;

fn healthy(workers: usize) -> Scenario {
    Scenario::healthy(workers, Hardware::committed("standard").unwrap())
}

fn chat(rate: f64, seed: u64) -> Offered {
    Definition::committed("chat").unwrap().draw(rate, REQUESTS, seed)
}

fn outcomes(scenario: &Scenario, offered: &Offered, policy: &str) -> Vec<Outcome> {
    let prompts = world::prepare(offered);
    world::run(scenario, offered, &prompts, &Spec::parse(policy).unwrap(), 1).unwrap()
}

fn summary(scenario: &Scenario, workload: &str, policy: &str, rate: f64) -> Summary {
    let definition = Definition::committed(workload).unwrap();
    let asked = Offer { rate, count: REQUESTS, seed: 1 };
    offer(&definition, scenario, &[Spec::parse(policy).unwrap()], asked, || {}).unwrap().remove(0)
}

/// Who served requests that arrived within a span.
fn served_by(offered: &Offered, outcomes: &[Outcome], from_us: u64, to_us: u64) -> Vec<usize> {
    let within = offered.requests.iter().zip(outcomes).filter(|(request, _)| (from_us..to_us).contains(&request.at_us));
    within.filter_map(|(_, outcome)| outcome.worker).collect()
}

#[test]
fn one_seed_has_one_result_to_the_byte_whatever_the_threads() {
    let plan = |threads: usize, seeds: u64| Plan {
        workloads: vec![
            ("rag".to_owned(), Definition::committed("rag").unwrap()),
            ("bursts".to_owned(), Definition::committed("bursts").unwrap()),
        ],
        engine: "standard".to_owned(),
        scenario: Scenario { gateways: 3, ..healthy(4) },
        loads: vec![0.9],
        seeds,
        policies: named().map(|(name, _)| Spec::parse(name).unwrap()).collect(),
        share: 0.06,
        threads,
    };
    let run = |threads, seeds| json(&execute(&plan(threads, seeds), |_| {}).unwrap()).unwrap();
    let first = run(1, 1);
    assert_eq!(first, run(2, 1));
    assert_ne!(first, run(1, 2));
}

#[test]
fn everybody_is_served_by_every_policy_and_nothing_is_left_in_flight() {
    let offered = chat(12.0, 3);
    for (name, _) in named() {
        // That nothing stays in flight is asserted where the run ends.
        let outcomes = outcomes(&healthy(4), &offered, name);
        for (request, outcome) in offered.requests.iter().zip(&outcomes) {
            assert!(outcome.is_served && outcome.tokens == request.output_tokens, "{name}: {outcome:?}");
            assert!(outcome.cached_tokens.unwrap() < request.prompt_tokens, "{name}");
        }
    }
}

#[test]
fn what_waits_at_a_worker_that_dies_is_served_elsewhere_and_streams_are_cut() {
    let offered = chat(40.0, 5);
    let mut scenario = healthy(4);
    scenario.script = vec![(2 * SECOND_US, Happening::Crash(1)), (4 * SECOND_US, Happening::Restart(1))];
    let outcomes = outcomes(&scenario, &offered, "kv");
    let cut = outcomes.iter().filter(|outcome| !outcome.is_served).collect::<Vec<_>>();
    assert!(!cut.is_empty() && cut.len() < REQUESTS / 4, "{} cut", cut.len());
    assert!(cut.iter().all(|outcome| outcome.tokens > 0), "without a token it would have gone elsewhere");
    let dead = served_by(&offered, &outcomes, 2 * SECOND_US + 100_000, 4 * SECOND_US);
    assert!(!dead.is_empty() && !dead.contains(&1), "down until its check says otherwise");
    assert!(served_by(&offered, &outcomes, 5 * SECOND_US + 10_000, u64::MAX).contains(&1), "back at work");
}

#[test]
fn who_leaves_gets_nothing_new_and_who_joins_gets_its_part() {
    let offered = chat(40.0, 6);
    let mut scenario = healthy(3);
    scenario.script = vec![(2 * SECOND_US, Happening::Leave(0)), (2 * SECOND_US, Happening::Join)];
    let outcomes = outcomes(&scenario, &offered, "kv");
    assert!(outcomes.iter().all(|outcome| outcome.is_served), "nothing is lost");
    assert!(served_by(&offered, &outcomes, 0, 2 * SECOND_US).contains(&0));
    let after = served_by(&offered, &outcomes, 2 * SECOND_US, u64::MAX);
    let of = |worker: usize| after.iter().filter(|&&at| at == worker).count();
    assert_eq!(of(0), 0);
    assert!(of(3) * 8 > after.len(), "{} of {}", of(3), after.len());
}

#[test]
fn a_worker_that_becomes_slow_gets_less() {
    let offered = chat(24.0, 7);
    let mut scenario = healthy(4);
    scenario.script = vec![(SECOND_US, Happening::Slow(2, 4.0))];
    let outcomes = outcomes(&scenario, &offered, "kv");
    let after = served_by(&offered, &outcomes, 4 * SECOND_US, u64::MAX);
    let slow = after.iter().filter(|&&at| at == 2).count();
    assert!(slow * 6 < after.len(), "{slow} of {}", after.len());
}

#[test]
fn absent_late_lost_and_lying_signals_cost_a_bounded_part() {
    let good = summary(&healthy(4), "chat", "kv", 20.0);
    assert!(good.goodput > 0.9, "{good:?}");
    let with = |change: fn(&mut Scenario)| {
        let mut scenario = healthy(4);
        change(&mut scenario);
        summary(&scenario, "chat", "kv", 20.0)
    };
    let bad = [
        ("no readings", with(|scenario| scenario.signals.load_interval_us = 0)),
        ("readings lost", with(|scenario| scenario.signals.load_loss = 0.7)),
        ("events late", with(|scenario| scenario.signals.event_delay_us = SECOND_US)),
        ("events lost", with(|scenario| scenario.signals.event_loss = 0.2)),
        ("one engine says it is idle", with(|scenario| scenario.signals.idle_liars = 1)),
        ("answers do not count cached tokens", with(|scenario| scenario.signals.cached_tokens_told = false)),
        ("eight gateways", with(|scenario| scenario.gateways = 8)),
    ];
    for (what, figures) in bad {
        assert!(figures.served == 1.0 && figures.goodput > good.goodput - 0.1, "{what}: {figures:?}");
        assert!(figures.imbalance < 2.0, "{what}: {}", figures.imbalance);
    }
}

#[test]
fn lost_events_leave_most_hits() {
    let whole = summary(&healthy(4), "chat", "kv", 12.0);
    let mut scenario = healthy(4);
    scenario.signals.event_loss = 0.02;
    let lossy = summary(&scenario, "chat", "kv", 12.0);
    assert!(whole.hit > 0.5 && lossy.hit > 0.7 * whole.hit, "{} then {}", whole.hit, lossy.hit);
}
