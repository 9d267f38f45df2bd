//! Replays `terms.txt`: what each term of the score is worth in named situations, in numbers that a reader can check.
#![expect(clippy::panic, clippy::unwrap_used, reason = "a row that cannot be read is a failed test")]

use forebay_routing::block::ChainHash;
use forebay_routing::facts::BlockChain;
use forebay_routing::index::Hits;
use forebay_routing::rates::PRIOR;
use forebay_routing::score::{Score, score};
use forebay_routing::view::{CacheKnowledge, EngineLoad, WorkerState};
use forebay_routing::{LocalLoad, RequestFacts, WorkerId, WorkerView};
use std::fmt::Write as _;

const BLOCK: u32 = 16;
/// Context of a request past its first token.
const CONTEXT: u32 = 2_000;
const NOW_MS: u64 = 60_000;

#[test]
fn terms_are_worth_what_the_table_says() {
    let table = include_str!("terms.txt");
    let (mut rows, mut wrong) = (0, String::new());
    for (number, line) in (1..).zip(table.lines()).filter(|(_, line)| !line.starts_with('#')) {
        let (given, wanted) = line.split_once('|').unwrap_or_else(|| panic!("line {number}: no `|`"));
        let found = show(&row(given));
        let wanted = wanted.split_whitespace().collect::<Vec<_>>().join(" ");
        if found != wanted {
            let _ = writeln!(wrong, "line {number}: {} | {found}", given.trim_end());
        }
        rows += 1;
    }
    assert!(wrong.is_empty(), "these rows are worth something else:\n{wrong}");
    assert!(rows >= 24, "{rows} rows");
}

fn row(given: &str) -> Score {
    let [prompt, hit, queue, active, engine] = given.split_whitespace().collect::<Vec<_>>()[..] else {
        panic!("five columns: {given}")
    };
    let number = |text: &str| text.parse::<u32>().unwrap_or_else(|_| panic!("`{text}` in {given}"));
    let (queued, tokens) = queue.split_once('x').map(|(queued, tokens)| (number(queued), number(tokens))).unwrap();
    let local = LocalLoad {
        requests: queued + number(active),
        prefill_requests: queued,
        prefill_tokens: queued * tokens,
        prefill_squares: u64::from(queued) * LocalLoad::squares(tokens, tokens),
        decode_tokens: number(active) * CONTEXT,
    };
    let worker = WorkerView {
        id: WorkerId::new(3, 1),
        affinity: 0,
        rank: None,
        state: WorkerState::Ready,
        block_size: Some(BLOCK),
        capacity_blocks: Some(16_384),
        cache: CacheKnowledge::Events,
        engine: reading(engine),
        kernel: None,
        fabric: None,
        rates: PRIOR,
        typical_tokens: 512,
    };
    let prompt_tokens = number(prompt);
    let chain = BlockChain { block_size: BLOCK, hashes: vec![ChainHash(0); (prompt_tokens / BLOCK) as usize] };
    let facts = RequestFacts {
        model: 0,
        prompt_tokens,
        exact: true,
        chains: &[chain],
        text_hash: 0,
        session: None,
        output_tokens: 200,
        completions: 1,
    };
    let hits = [Hits::from(vec![(worker.id, number(hit))])];
    score(&facts, &hits, &worker, &local, NOW_MS)
}

fn reading(text: &str) -> Option<EngineLoad> {
    if text == "-" {
        return None;
    }
    let (load, age_ms) = text.split_once('@').unwrap_or((text, "0"));
    let (load, own) = load.split_once('-').unwrap_or((load, "0/0"));
    let (own_requests, own_waiting) = own.split_once('/').unwrap();
    let [running, waiting, kv_usage] = load.split('/').collect::<Vec<_>>()[..] else { panic!("`{text}`") };
    Some(EngineLoad {
        running: running.parse().unwrap(),
        waiting: waiting.parse().unwrap(),
        kv_usage: kv_usage.parse().unwrap(),
        at_ms: NOW_MS - age_ms.parse::<u64>().unwrap(),
        own_requests: own_requests.parse().unwrap(),
        own_waiting: own_waiting.parse().unwrap(),
    })
}

fn show(score: &Score) -> String {
    let terms = score.terms;
    format!(
        "{} {:.1} {:.1} {:.1} {:.1} {:.1} {:.1} {:.1} {:.1} {:.1}",
        score.cached_tokens,
        terms.queue_ms,
        terms.waiting_ms,
        terms.prefill_ms,
        terms.room_ms,
        terms.harm_ms,
        terms.waiting_harm_ms,
        terms.decode_ms,
        terms.crowd_ms,
        terms.evict_ms
    )
}
