//! FAULTS.md: what happens in each phase of a request when somebody leaves, dies, stalls, babbles or floods. Written from here
//! (`make limits`), and held against the tests that it names.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Phases of a request, and what is going on in each.
const PHASES: [(&str, &str); 10] = [
    ("head", "the client sends its request line and fields"),
    ("body", "the client sends the body"),
    ("tokenise", "the prompt is tokenised here, or by the engine where there is no tokenizer"),
    ("queue", "no worker has a place, or the model has lost its last one"),
    ("connect", "a connection to the engine is opened"),
    ("send", "the request is written to the engine"),
    ("first byte", "the engine computes; nothing has come"),
    ("held", "head, role or comment frames have come, no output yet: nothing was passed on"),
    ("stream", "output has come and was passed on"),
    ("whole answer", "a JSON document is read"),
];

/// What can go wrong.
const EVENTS: [&str; 5] = ["client gone", "worker gone", "stall", "garbage", "flood"];

/// By phase: what the client gets for each event, and the test. `""`: it cannot happen there.
const CELLS: [[(&str, &str); 5]; 10] = [
    [
        ("nothing is left", HOSTILE_CLIENTS),
        ("", ""),
        ("408 after `listen.header_timeout`", DEADLINES),
        ("400, closed", "requests_that_two_readers_could_read_differently_are_refused"),
        ("431, closed", "a_head_over_the_limit_is_431"),
    ],
    [
        ("nothing reaches an engine", "while_the_body_is_read"),
        ("", ""),
        ("408 after `listen.body_timeout`", DEADLINES),
        ("400", "bodies_that_are_no_chat_are_refused_in_openais_shape_and_the_connection_is_kept"),
        ("413, not read on", "a_body_over_the_limit_is_refused_without_reading_on"),
    ],
    [
        ("the question is given up", "while_the_prompt_is_tokenised"),
        ("routed by text", "without_a_tokenizer_the_engine_is_asked"),
        ("routed by text after `tokenize.deadline`", "a_silent_engine_is_late"),
        ("routed by text", "without_a_tokenizer_the_engine_is_asked"),
        ("routed by text beyond `tokenize.max_queue`", "the_pool_refuses_when_full_and_skips_jobs_nobody_waits_for"),
    ],
    [
        (
            "the place in the queue is free",
            "who_waits_too_long_for_a_place_is_told_and_who_leaves_gives_the_queue_back",
        ),
        (
            "waits `upstream.outage_timeout` for one to come back, then 503",
            "a_model_that_loses_its_only_engine_for_a_moment_loses_no_request",
        ),
        (
            "503 after `upstream.queue_timeout`",
            "who_waits_too_long_for_a_place_is_told_and_who_leaves_gives_the_queue_back",
        ),
        ("", ""),
        ("503 beyond `upstream.max_queue`", "what_finds_no_place_waits_its_turn_and_no_worker_gets_more_than_it_may"),
    ],
    [
        ("given up", "while_a_connection_to_the_engine_is_opened"),
        ("another worker, free of charge", "an_engine_that_is_gone_is_replaced"),
        ("another worker after `upstream.connect_timeout`", "an_engine_that_takes_no_connection_in_time_is_replaced"),
        ("never serves (a TLS certificate for another name)", "an_engine_with_another_names_certificate_never_serves"),
        ("", ""),
    ],
    [
        ("the engine's connection closes", "while_the_request_is_sent"),
        ("another worker", "an_engine_that_resets_closes_or_babbles_is_replaced"),
        ("504 after `upstream.first_byte_timeout`", HOSTILE_ENGINES),
        ("its early answer, or 502", "an_engine_may_answer_before_it_has_read_the_body"),
        ("", ""),
    ],
    [
        ("the engine's connection closes within 100 ms", "while_the_first_byte_is_awaited"),
        ("another worker, free of charge; 502 without one", HOSTILE_ENGINES),
        (
            "another worker once it fails its checks or is late, unless others' requests explain the wait; 504",
            "an_engine_that_hangs_gives_back_what_waits_for_it_once_it_fails_its_checks",
        ),
        ("another worker, by the budget; 502", HOSTILE_ENGINES),
        ("502: a head ends at 64 KiB", HOSTILE_ENGINES),
    ],
    [
        ("the engine's connection closes within 100 ms", "while_frames_without_output_are_held"),
        ("another worker, by the budget; 502", "a_stream_cut_before_output_goes_to_another_engine"),
        ("as above; 504", HOSTILE_ENGINES),
        ("another worker, by the budget; 502", HOSTILE_ENGINES),
        ("502, or passed on beyond 4 KiB", HOSTILE_ENGINES),
    ],
    [
        ("the engine's connection closes within 100 ms", "while_a_stream_runs"),
        (
            "what came, then the dialect's error event and its end",
            "a_stream_cut_after_output_ends_in_an_error_event_and_is_not_retried",
        ),
        ("error event after `upstream.idle_timeout`", "an_engine_that_falls_silent_ends_in_an_error"),
        ("error event", HOSTILE_ENGINES),
        (
            "as fast as the client takes it; a client that takes nothing is cut off",
            "a_client_that_reads_nothing_is_cut_off_and_holds_little",
        ),
    ],
    [
        ("the engine's connection closes within 100 ms", "while_a_whole_answer_is_read"),
        ("another worker up to 1 MiB; beyond, seen to be cut", "a_large_answer_that_is_cut_is_seen_to_be_cut"),
        ("504", HOSTILE_ENGINES),
        ("502", HOSTILE_ENGINES),
        ("ends where its length said", "more_than_announced_is_not_the_next_answer"),
    ],
];

const HOSTILE_CLIENTS: &str = "clients_that_reset_garble_or_flood_in_any_phase_leave_nothing_behind";
const HOSTILE_ENGINES: &str = "engines_that_reset_close_stall_garble_or_flood_in_any_phase_end_in_the_right_answer";
const DEADLINES: &str = "heads_and_bodies_have_one_deadline_each_however_they_trickle";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository root").to_path_buf()
}

fn page() -> String {
    let mut page = "# When things go wrong\n\nWhat a client gets when somebody fails in the middle of its request. `make limits` writes this page from \
`tests/tests/phases.rs`, which also\nchecks that every test named here exists. In every cell the reservation is released once, the engine's connection is \
closed or kept whole, and\nbuffers are given back: the tests wait for that. A retry elsewhere happens before output alone.\n"
        .to_owned();
    for ((phase, going_on), cells) in PHASES.iter().zip(CELLS) {
        let _ = write!(page, "\n## {phase}\n\n{going_on}.\n\n| When | Then | Test |\n|---|---|---|\n");
        for (event, (then, test)) in EVENTS.iter().zip(cells) {
            if !test.is_empty() {
                let _ = writeln!(page, "| {event} | {then} | `{test}` |");
            }
        }
    }
    page.push_str("\n## At a glance\n\n| |");
    for event in EVENTS {
        let _ = write!(page, " {event} |");
    }
    page.push_str("\n|---|---|---|---|---|---|\n");
    for ((phase, _), cells) in PHASES.iter().zip(CELLS) {
        let _ = write!(page, "| {phase} |");
        for (then, _) in cells {
            let _ = write!(page, " {} |", if then.is_empty() { "–" } else { then });
        }
        page.push('\n');
    }
    page
}

fn sources(folder: &Path, all: &mut String) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target" && name != ".peers") {
                sources(&path, all);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *all += &std::fs::read_to_string(&path).expect("UTF-8");
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "FOREBAY_WRITE is a switch of this suite, not of the gateway")]
fn the_page_of_faults_is_up_to_date() {
    let (path, page) = (root().join("FAULTS.md"), page());
    if std::env::var("FOREBAY_WRITE").is_ok() {
        std::fs::write(&path, &page).expect("written");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), page, "run `make limits`");
}

#[test]
fn every_named_test_exists() {
    let mut all = String::new();
    sources(&root().join("gateway"), &mut all);
    for (then, test) in CELLS.iter().flatten() {
        assert!(test.is_empty() == then.is_empty(), "{then}: {test}");
        assert!(test.is_empty() || all.contains(&format!("fn {test}(")), "{then}: there is no test {test}");
    }
}
