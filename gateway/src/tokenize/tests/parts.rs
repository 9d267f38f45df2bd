//! The parts, each on its own.

use super::*;
use crate::tokenize::content::{ContentFormat, detect};
use crate::tokenize::cuts::Cuts;
use crate::tokenize::memo::{Key, Memo, SECRET_BYTES};
use crate::tokenize::metrics::Metrics;
use crate::tokenize::parity::{self, Difference, Drift};
use crate::tokenize::pool::{Pool, Refused};
use crate::tokenize::python::write_float;
use crate::tokenize::template::strftime;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

#[test]
fn floats_read_as_in_python() {
    for (float, text) in [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1e22, "1e+22"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1.5e300, "1.5e+300"),
        (5e-324, "5e-324"),
        (0.1 + 0.2, "0.30000000000000004"),
        (f64::NAN, "NaN"),
        (f64::NEG_INFINITY, "-Infinity"),
    ] {
        let mut out = String::new();
        write_float(&mut out, float);
        assert_eq!(out, text);
    }
}

#[test]
fn dates_are_formatted_as_in_python() {
    // 2026-11-30 12:34:56 UTC, a Monday; 2000-02-29; 1969-12-31.
    assert_eq!(strftime("%Y-%m-%d %H:%M:%S %a %A", 1_796_042_096).as_deref(), Some("2026-11-30 12:34:56 Mon Monday"));
    assert_eq!(
        strftime("%d %b %Y, %e %B %y %I %p %%", 951_782_400).as_deref(),
        Some("29 Feb 2000, 29 February 00 12 AM %")
    );
    assert_eq!(strftime("%F %T", -1).as_deref(), Some("1969-12-31 23:59:59"));
    assert_eq!(strftime("%Q", 0), None);
}

#[test]
fn content_format_is_read_off_the_template() {
    use ContentFormat::{Parts, Text};
    for (template, format) in [
        (CHATML, Text),
        ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", Parts),
        ("{% for m in messages %}{% for c in m['content'] | list %}{{ c }}{% endfor %}{% endfor %}", Parts),
        (
            "{% set ms = messages[1:] %}{% for m in ms %}{%- for c in m[\"content\"][:2] %}{% endfor %}{% endfor %}",
            Parts,
        ),
        ("{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}", Parts),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", Text),
        ("{% for m in messages if m.role != 'x' %}{% for c in m.content if c %}{% endfor %}{% endfor %}", Parts),
        ("{# {% for m in messages %}{% for c in m.content %} #}{{ '{% for c in m.content %}' }}", Text),
        (
            "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}",
            Parts,
        ),
        (
            "{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.role) }}{% endfor %}",
            Text,
        ),
        (
            "{% macro f(y, x=1) %}{% for c in x %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(1, x=m.content) }}{% endfor %}",
            Parts,
        ),
        ("{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ f(system) }}", Text),
    ] {
        assert_eq!(detect(template), format, "{template}");
    }
}

fn secret(byte: u8) -> [u8; SECRET_BYTES] {
    let mut secret = [byte; SECRET_BYTES];
    for (at, slot) in secret.iter_mut().enumerate() {
        *slot = slot.wrapping_mul(31).wrapping_add(u8::try_from(at).unwrap());
    }
    secret
}

#[test]
fn the_memo_stays_within_its_bytes_and_keeps_what_is_used() {
    let budget = 256 * 1024;
    let memo = Memo::new(budget);
    let secret = secret(3);
    let favourite = Key::new("favourite", &secret);
    memo.insert(favourite, &[1, 2, 3]);
    let mut out = Vec::new();
    for i in 0..20_000_u32 {
        memo.insert(Key::new(&i.to_string(), &secret), &[i; 20]);
        assert!(memo.bytes() <= i64::try_from(budget).unwrap());
        out.clear();
        assert!(memo.append(favourite, &mut out), "used every time, dropped after {i} others");
        assert_eq!(out, [1, 2, 3]);
    }
    assert!(memo.bytes() > i64::try_from(budget / 4).unwrap(), "the budget is used");
    assert!(!memo.append(Key::new("0", &secret), &mut out), "the oldest is gone");
    assert!(memo.append(Key::new("19999", &secret), &mut out));
}

#[test]
fn the_memo_tells_models_and_lengths_apart() {
    let memo = Memo::new(1 << 20);
    memo.insert(Key::new("text", &secret(1)), &[7]);
    let mut out = Vec::new();
    assert!(!memo.append(Key::new("text", &secret(2)), &mut out));
    assert!(!memo.append(Key::new("text ", &secret(1)), &mut out));
    assert!(out.is_empty());
}

fn cuts(pre_tokenizer: serde_json::Value, added: &[(&str, bool)]) -> Cuts {
    let added: Vec<_> = added
        .iter()
        .map(|(content, lstrip)| serde_json::json!({"content": content, "lstrip": lstrip, "normalized": false}))
        .collect();
    Cuts::derive(&serde_json::json!({"added_tokens": added, "normalizer": null, "pre_tokenizer": pre_tokenizer,
        "model": {"type": "BPE"}}))
}

fn byte_level(prefix_space: bool) -> serde_json::Value {
    serde_json::json!({"type": "ByteLevel", "add_prefix_space": prefix_space, "use_regex": true})
}

#[test]
fn only_provable_cuts_are_used() {
    assert!(cuts(byte_level(false), &[("<|x|>", false)]).any());
    assert!(!cuts(byte_level(true), &[("<|x|>", false)]).any(), "a prefix space depends on the place");
    let metaspace = serde_json::json!({"type": "Metaspace", "prepend_scheme": "first"});
    assert!(!cuts(metaspace, &[("<|x|>", false)]).any());
    let unknown = serde_json::json!({"type": "Split", "pattern": {"Regex": "x"}, "behavior": "Isolated"});
    assert!(!cuts(unknown.clone(), &[]).any(), "an unknown pattern gives no cuts inside text");
    assert!(cuts(unknown.clone(), &[("<|x|>", false)]).any());
    assert!(!cuts(unknown.clone(), &[("<|x|>", true)]).any(), "a token that strips the text before it");
    assert!(!cuts(unknown, &[("<|x<|>", false)]).any(), "a token that could begin inside another");
    let with_space = cuts(byte_level(false), &[("a b", false)]);
    let mut pieces = 0;
    with_space.pieces(&"word ".repeat(2_000), |_| pieces += 1);
    assert_eq!(pieces, 1, "an added token with a space between letters forbids cuts there");
}

proptest! {
    #[test]
    fn pieces_cover_the_text_and_depend_on_what_precedes_them(
        head in "([a-z]{1,9} |<\\|x\\|>|[^a-z]{1,3}|你好，世界。){0,600}",
        tails in ("[a-z ]{0,40}", "[a-z ]{0,40}"),
    ) {
        let cuts = cuts(byte_level(false), &[("<|x|>", false)]);
        let pieces = |text: &str| {
            let mut pieces = Vec::new();
            cuts.pieces(text, |piece| pieces.push(piece));
            pieces
        };
        let texts = [format!("{head}{}", tails.0), format!("{head}{}", tails.1)];
        let [a, b] = texts.each_ref().map(|text| pieces(text));
        let mut end = 0;
        for piece in &a {
            prop_assert_eq!(piece.start, end);
            prop_assert!(piece.end > piece.start && texts[0].is_char_boundary(piece.end));
            end = piece.end;
        }
        prop_assert_eq!(end, texts[0].len());
        // Pieces that end well inside the common head are the same.
        let inside = |piece: &&std::ops::Range<usize>| piece.end + 8 < head.len();
        let common = a.iter().filter(inside).count();
        prop_assert_eq!(&a[..common], &b[..common.min(b.len())]);
    }
}

fn pool(threads: usize, max_queue: usize) -> (Pool, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::register(&prometheus::Registry::new()).unwrap());
    (Pool::start(threads, max_queue, Arc::clone(&metrics)).unwrap(), metrics)
}

/// A job that says when it runs and ends when told.
fn gate() -> (impl FnOnce() + Send + 'static, std::sync::mpsc::Receiver<()>, std::sync::mpsc::SyncSender<()>) {
    let (running, is_running) = sync_channel(1);
    let (end, ended) = sync_channel::<()>(1);
    let job = move || {
        running.send(()).unwrap();
        let _ = ended.recv();
    };
    (job, is_running, end)
}

#[tokio::test]
async fn the_pool_refuses_when_full_and_skips_jobs_nobody_waits_for() {
    let (pool, metrics) = pool(1, 1);
    let pool = Arc::new(pool);
    let (job, is_running, end) = gate();
    let busy = Arc::clone(&pool);
    let first = tokio::spawn(async move { busy.run(soon(), job).await });
    tokio::task::spawn_blocking(move || is_running.recv().unwrap()).await.unwrap();

    // One waits and is cancelled; while it lies there the queue is full.
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let mut waiting = Box::pin(pool.run(soon(), move || counter.fetch_add(1, Ordering::SeqCst)));
    assert!(futures_poll(&mut waiting).await, "it waits");
    assert_eq!(pool.run(soon(), || ()).await, Err(Refused::Full));
    drop(waiting);

    end.send(()).unwrap();
    assert_eq!(first.await.unwrap(), Ok(()));
    // The cancelled job keeps its place until the thread comes to it.
    while metrics.jobs_skipped.get() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(pool.run(soon(), || 7).await, Ok(7), "goes on");
    assert_eq!(ran.load(Ordering::SeqCst), 0, "a cancelled job is skipped");
    assert_eq!((metrics.jobs_skipped.get(), metrics.jobs_refused.get(), metrics.jobs_run.get()), (1, 1, 2));
}

/// Polls once; `true` when it is pending.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| std::task::Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_pending()))
        .await
}

#[tokio::test]
async fn a_late_job_is_refused_and_a_panicking_one_harms_nobody() {
    let (pool, metrics) = pool(1, 4);
    let pool = Arc::new(pool);
    let (job, is_running, end) = gate();
    let busy = Arc::clone(&pool);
    let first = tokio::spawn(async move { busy.run(soon(), job).await });
    tokio::task::spawn_blocking(move || is_running.recv().unwrap()).await.unwrap();
    let late = pool.run(Instant::now() + Duration::from_millis(20), || 1).await;
    assert_eq!(late, Err(Refused::Late));
    end.send(()).unwrap();
    assert_eq!(first.await.unwrap(), Ok(()));
    assert_eq!(pool.run::<()>(soon(), || panic!("a bug")).await, Err(Refused::Lost));
    assert_eq!(pool.run(soon(), || 2).await, Ok(2));
    assert_eq!((metrics.jobs_late.get(), metrics.jobs_skipped.get()), (1, 1));
}

#[test]
fn differences_are_named_by_position() {
    assert_eq!(parity::difference(3, &[1, 2], &[1, 2]), None);
    let expected = Difference { case: 3, position: 1, ours: Some(2), theirs: Some(9) };
    assert_eq!(parity::difference(3, &[1, 2, 3], &[1, 9, 3]), Some(expected));
    let expected = Difference { case: 0, position: 2, ours: None, theirs: Some(3) };
    assert_eq!(parity::difference(0, &[1, 2], &[1, 2, 3]), Some(expected));
}

#[test]
fn drift_needs_more_than_a_stray_difference() {
    let drift = Drift::default();
    for _ in 0..50 {
        assert!(!drift.observe(false), "one in twenty");
        for _ in 0..20 {
            assert!(!drift.observe(true));
        }
    }
    assert_eq!([drift.observe(false), drift.observe(false), drift.observe(false)], [false, false, true]);
    assert!(!drift.observe(false), "established once");
    drift.reset();
    assert!(!drift.observe(false));
}

#[test]
fn probe_chats_are_valid_requests() {
    let probes: Vec<_> = parity::probes("some \"model\"").collect();
    assert_eq!(probes.len(), 13);
    assert!(probes.iter().all(|probe| probe.model == "some \"model\""));
}
