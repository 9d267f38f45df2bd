//! LIMITS.md is the truth: every limit of the gateway with its default, its reason, the metric that tells when it was hit and a
//! test that hits it. Names, metrics and tests stand here; defaults and reasons are read from the sources.
//!
//! `make limits` writes the page anew.

use forebay::config::key::{Fallback, Kind};
use forebay::config::table::KEYS;
use forebay::limits::FAULTS;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Where a limit has no counter of its own, because what it bounds is not refused but cut, kept waiting or dropped unseen.
const NONE: &str = "–";

/// Configured limits: key, what tells that it was hit, a test that hits it. `limit` in the second place means
/// `forebay_limit_hits_total{limit="<key>"}`.
const CONFIGURED: &[(&str, &str, &str)] = &[
    ("listen.max_connections", "limit", "connections_beyond_the_limit_are_told_so"),
    ("listen.max_header_bytes", "limit", "a_head_over_the_limit_is_431"),
    ("listen.max_body_bytes", "limit", "a_body_over_the_limit_is_refused_without_reading_on"),
    ("listen.max_buffered_bytes", "limit", "all_bodies_together_are_bounded"),
    ("listen.header_timeout", "limit", "heads_and_bodies_have_one_deadline_each_however_they_trickle"),
    ("listen.body_timeout", "limit", "heads_and_bodies_have_one_deadline_each_however_they_trickle"),
    ("listen.keepalive_timeout", NONE, "an_idle_connection_ends_quietly"),
    ("listen.write_timeout", "limit", "a_client_that_reads_nothing_is_cut_off_and_holds_little"),
    ("listen.drain_delay", NONE, "who_is_told_to_stop_says_so_before_it_turns_anybody_away"),
    ("listen.drain_timeout", NONE, "a_drain_out_of_time_ends_streams_in_an_error_event"),
    ("listen.handshake_timeout", "limit", "a_handshake_that_never_ends_is_ended"),
    ("listen.max_streams", NONE, "no_more_streams_run_at_once_than_were_agreed_upon"),
    ("requests.max_completions", "limit", "each_rule_denies_by_default_names_its_switch_and_can_be_switched_off"),
    ("requests.max_logprobs", "limit", "each_rule_denies_by_default_names_its_switch_and_can_be_switched_off"),
    ("requests.max_tokens", NONE, "a_limit_of_tokens_lowers_what_is_higher_and_is_given_to_who_has_none"),
    ("requests.max_media", "limit", "each_rule_denies_by_default_names_its_switch_and_can_be_switched_off"),
    ("requests.max_regex_bytes", "limit", "each_rule_denies_by_default_names_its_switch_and_can_be_switched_off"),
    ("requests.max_grammar_bytes", "limit", "each_rule_denies_by_default_names_its_switch_and_can_be_switched_off"),
    ("routing.retry_budget", NONE, "errors_are_retried_within_the_budget_and_then_passed_on"),
    ("routing.max_attempts", "forebay_retries_total", "attempts_are_bounded"),
    (
        "upstream.connect_timeout",
        "forebay_worker_failures_total",
        "an_engine_that_takes_no_connection_in_time_is_replaced",
    ),
    ("upstream.first_byte_timeout", "limit", "a_first_byte_that_the_queue_explains_is_not_sought_elsewhere"),
    ("upstream.idle_timeout", "forebay_faults_total", "an_engine_that_falls_silent_ends_in_an_error"),
    ("upstream.total_timeout", "forebay_faults_total", "the_whole_exchange_has_a_deadline"),
    ("upstream.pool_size", NONE, "no_more_idle_connections_are_kept_than_may_be"),
    ("upstream.max_concurrency", "limit", "what_finds_no_place_waits_its_turn_and_no_worker_gets_more_than_it_may"),
    ("upstream.max_queue", "limit", "what_finds_no_place_waits_its_turn_and_no_worker_gets_more_than_it_may"),
    ("upstream.queue_timeout", "limit", "who_waits_too_long_for_a_place_is_told_and_who_leaves_gives_the_queue_back"),
    (
        "upstream.outage_timeout",
        "forebay_faults_total",
        "a_model_that_loses_its_only_engine_for_a_moment_loses_no_request",
    ),
    (
        "health.timeout",
        "forebay_worker_failed_checks_total",
        "an_engine_that_hangs_gives_back_what_waits_for_it_once_it_fails_its_checks",
    ),
    (
        "health.failures",
        "forebay_worker_state",
        "an_engine_that_hangs_gives_back_what_waits_for_it_once_it_fails_its_checks",
    ),
    ("health.eject_after", "forebay_worker_ejections_total", "failures_in_a_row_eject_and_a_success_between_does_not"),
    ("health.eject_for", "forebay_worker_state", "one_probe_then_back_then_one_failure_ejects_for_longer"),
    ("health.eject_share", "forebay_worker_ejections_total", "a_share_of_failures_ejects_though_none_come_in_a_row"),
    ("health.eject_ttft_factor", "forebay_worker_ejections_total", "a_worker_far_slower_than_its_peers_is_taken_out"),
    ("health.max_ejected", "forebay_worker_pardons_total", "failures_everywhere_take_out_no_more_than_half"),
    ("health.slow_start", NONE, "a_worker_that_comes_back_takes_less_than_its_share_at_first"),
    ("tokenize.max_queue", "forebay_tokenize_jobs_total", "the_pool_refuses_when_full_and_skips_jobs_nobody_waits_for"),
    ("tokenize.deadline", "limit", "long_prompts_go_through_the_pool_and_past_deadlines_by_text"),
    ("tokenize.memo_bytes", "forebay_tokenize_memo_bytes", "the_memo_stays_within_its_bytes_and_keeps_what_is_used"),
];

/// Keys with a bound that are no limits: intervals, sizes of pools of threads, what describes an engine.
const NO_LIMITS: &[&str] = &[
    "listen.threads",
    "routing.seed",
    "health.interval",
    "health.metrics_interval",
    "tokenize.threads",
    "workers[].ranks",
    "workers[].block_size",
    "dns[].port",
    "dns[].interval",
];

/// Built-in limits with a metric or a test: file and name, metric, test. Every other constant called `MAX_…` is listed without.
const BUILT_IN: &[(&str, &str, &str)] = &[
    (
        "accept/http2.rs MAX_RESETS",
        "forebay_limit_hits_total{limit=\"http2.resets\"}",
        "who_starts_streams_only_to_reset_them_is_sent_away",
    ),
    ("accept/http2.rs MAX_PENDING_RESETS", NONE, "who_starts_streams_only_to_reset_them_is_sent_away"),
    ("accept/http2.rs STREAM_WINDOW", NONE, "bodies_and_answers_larger_than_every_window_pass_whole"),
    ("accept/http2.rs CONNECTION_WINDOW", NONE, "bodies_and_answers_larger_than_every_window_pass_whole"),
    ("accept/identity.rs MAX_ID", NONE, "a_request_without_a_fit_id_gets_one"),
    ("admin/server.rs MAX_CONNECTIONS", "forebay_limit_hits_total{limit=\"admin.connections\"}", NONE),
    ("admin/routes.rs MAX_WORKER_BODY", NONE, "bad_requests_to_the_admin_listener_are_told_why"),
    ("config/networks.rs MAX_ENTRIES", NONE, "nonsense_is_refused_and_nothing_means_nobody"),
    ("dispatch/attempt.rs MAX_INFORMATIONAL", NONE, "informational_answers_are_skipped"),
    (
        "fleet/mod.rs MAX_QUEUED_EVENTS",
        "forebay_fleet_dropped_reports_total",
        "a_full_channel_drops_reports_and_counts_them",
    ),
    (
        "http1/mod.rs MAX_FIELDS",
        "forebay_limit_hits_total{limit=\"listen.max_header_bytes\"}",
        "heads_are_bounded_in_bytes_and_fields",
    ),
    (
        "observe/labels.rs MAX_MODELS",
        "forebay_limit_hits_total{limit=\"observe.models\"}",
        "models_beyond_the_cap_share_a_label_and_are_counted",
    ),
    (
        "observe/access.rs MAX_QUEUED",
        "forebay_access_log_lost_lines_total",
        "a_stuck_log_loses_lines_counts_them_and_holds_up_nobody",
    ),
    ("observe/access.rs MAX_FIELD", NONE, "a_line_is_json_with_known_fields_only"),
    ("parse/scan.rs MAX_DEPTH", NONE, "depth_is_counted_and_bounded"),
    ("dispatch/outage.rs MAX_OUTAGES", NONE, "outages_are_bounded"),
    ("fleet/ejection.rs MAX_FACTOR", NONE, "ejections_stop_growing"),
    ("fleet/ejection.rs MAX_SEEN", NONE, "a_share_of_failures_ejects_though_none_come_in_a_row"),
    ("http1/chunked.rs MAX_SIZE_LINE", NONE, "chunked_bodies"),
    ("http1/chunked.rs MAX_TRAILER", NONE, "chunked_bodies"),
    ("serve/session.rs MAX_BYTES", NONE, "what_is_no_name_is_none"),
    ("stream/events.rs MAX_FRAME", NONE, "a_frame_is_held_until_it_is_whole_and_an_endless_one_is_passed_on"),
    ("signal/cache_events/batch.rs MAX_TOKENS_PER_EVENT", NONE, "a_token_list_that_cannot_be_used_costs_only_itself"),
    ("signal/cache_events/mod.rs MAX_MESSAGE_BYTES", NONE, "an_oversized_message_is_counted_and_the_feed_goes_on"),
    (
        "signal/cache_events/sequence.rs MAX_PARKED_BATCHES",
        NONE,
        "parking_is_bounded_and_what_did_not_fit_is_asked_for",
    ),
    ("signal/cache_events/sequence.rs MAX_PARKED_BYTES", NONE, "parking_is_bounded_and_what_did_not_fit_is_asked_for"),
    ("tokenize/engine.rs MAX_IN_FLIGHT", NONE, NONE),
    (
        "stream/client.rs MIN_RATE",
        "forebay_limit_hits_total{limit=\"listen.write_timeout\"}",
        "a_client_that_trickles_is_late_and_a_slow_one_is_not",
    ),
    ("stream/client.rs MAX_PIPELINED", NONE, "requests_sent_ahead_are_answered_in_order"),
    ("stream/http2.rs MAX_WRITE", NONE, "bodies_and_answers_larger_than_every_window_pass_whole"),
];

/// A constant of the gateway: file below `gateway/src`, name, value as written, comment.
struct Constant {
    place: String,
    value: String,
    reason: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository root").to_path_buf()
}

fn sources(folder: &str) -> Vec<(String, String)> {
    let (root, mut files) = (root(), Vec::new());
    let mut pending = vec![root.join(folder)];
    while let Some(folder) = pending.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = path.strip_prefix(&root).expect("below the root").to_string_lossy().into_owned();
            if path.is_dir() && !name.ends_with("/target") && !name.ends_with("/.cache") {
                pending.push(path);
            } else if name.ends_with(".rs") {
                files.push((name, std::fs::read_to_string(&path).expect("UTF-8")));
            }
        }
    }
    files.sort();
    files
}

/// Constants that bound something, by their names.
fn constants() -> Vec<Constant> {
    let mut found = Vec::new();
    for (path, text) in sources("gateway/src") {
        let file = path.trim_start_matches("gateway/src/").to_owned();
        if file.contains("/tests") || file.ends_with("tests.rs") {
            continue;
        }
        let mut reason = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(comment) = line.strip_prefix("///") {
                reason += if reason.is_empty() { "" } else { " " };
                reason += comment.trim();
                continue;
            }
            let declared =
                line.split_once("const ").filter(|(before, _)| before.is_empty() || before.starts_with("pub"));
            if let Some((_, rest)) = declared
                && let Some((name, rest)) = rest.split_once(": ")
                && let Some((_, value)) = rest.split_once(" = ")
            {
                let place = format!("{file} {name}");
                if name.starts_with("MAX_") || BUILT_IN.iter().any(|(known, ..)| *known == place) {
                    let value = value.trim_end_matches(';').to_owned();
                    found.push(Constant { place, value, reason: reason.clone() });
                }
            }
            reason.clear();
        }
    }
    found
}

fn metric(key: &str, metric: &str) -> String {
    match metric {
        "limit" => format!("`forebay_limit_hits_total{{limit=\"{key}\"}}`"),
        NONE => NONE.to_owned(),
        other => format!("`{other}`"),
    }
}

fn code(text: &str) -> String {
    if text == NONE { NONE.to_owned() } else { format!("`{text}`") }
}

fn page() -> String {
    let mut page = "# Limits\n\nEvery bound of the gateway. `make limits` writes this page from `tests/tests/limits.rs` and the sources; a test holds them \
against each other.\nA dash means that there is no counter or no test of its own.\n\n## Configured\n\n\
| Key | Default | Reason | Metric | Test |\n|---|---|---|---|---|\n"
        .to_owned();
    for (name, counted, test) in CONFIGURED {
        let Some(key) = KEYS.iter().find(|key| key.path == *name) else {
            let _ = writeln!(page, "| `{name}` is no key |");
            continue;
        };
        let default = match key.fallback {
            Fallback::Is(text) => code(text),
            Fallback::Absent(text) => text.to_owned(),
            Fallback::Required => "required".to_owned(),
        };
        let _ =
            writeln!(page, "| `{name}` | {default} | {} | {} | {} |", key.meaning, metric(name, counted), code(test));
    }
    page += "\n## Built in\n\n| Place | Value | Reason | Metric | Test |\n|---|---|---|---|---|\n";
    for Constant { place, value, reason } in constants() {
        let known = BUILT_IN.iter().find(|(known, ..)| *known == place);
        let (counted, test) = known.map_or((NONE, NONE), |(_, counted, test)| (*counted, *test));
        let reason = reason.replace('|', "\\|").replace(['[', ']'], "");
        let _ = writeln!(page, "| `{place}` | `{value}` | {reason} | {} | {} |", code(counted), code(test));
    }
    page
}

#[test]
#[expect(clippy::disallowed_methods, reason = "FOREBAY_WRITE is a switch of this suite, not of the gateway")]
fn the_list_of_limits_is_up_to_date() {
    let (path, page) = (root().join("LIMITS.md"), page());
    if std::env::var("FOREBAY_WRITE").is_ok() {
        std::fs::write(&path, &page).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (is, should)) in written.lines().zip(page.lines()).enumerate() {
        assert_eq!(is, should, "LIMITS.md:{}: run `make limits`", number + 1);
    }
    assert_eq!(written.lines().count(), page.lines().count(), "run `make limits`");
}

#[test]
fn every_bounded_key_is_listed_or_is_no_limit() {
    let bounded = |kind: Kind| matches!(kind, Kind::Count(..) | Kind::Size(..) | Kind::Time(..));
    let listed: BTreeSet<&str> = CONFIGURED.iter().map(|(name, ..)| *name).chain(NO_LIMITS.iter().copied()).collect();
    for key in KEYS.iter().filter(|key| bounded(key.kind)) {
        assert!(
            listed.contains(key.path),
            "{}: list it in CONFIGURED with its metric and test, or in NO_LIMITS",
            key.path
        );
    }
    assert_eq!(listed.len(), CONFIGURED.len() + NO_LIMITS.len(), "each stands once");
}

#[test]
fn every_counted_limit_is_listed_and_every_named_test_and_constant_exists() {
    for (code, limit) in FAULTS {
        let is_rule = limit.starts_with("requests.");
        assert!(
            is_rule || CONFIGURED.iter().any(|(key, counted, _)| *key == limit && *counted == "limit"),
            "{code}: {limit}"
        );
    }
    let all: String = sources("gateway").into_iter().chain(sources("tests")).map(|(_, text)| text).collect();
    for (name, _, test) in CONFIGURED.iter().chain(BUILT_IN) {
        assert!(*test == NONE || all.contains(&format!("fn {test}(")), "{name}: there is no test {test}");
    }
    let there: BTreeSet<String> = constants().into_iter().map(|constant| constant.place).collect();
    for (place, ..) in BUILT_IN {
        assert!(there.contains(*place), "{place} is not in the sources");
    }
    for constant in constants() {
        assert!(!constant.reason.is_empty(), "{} has no reason", constant.place);
    }
}
