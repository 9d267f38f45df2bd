//! As SGLang tells: arrays in place of maps, one page an event, hashes that are signed numbers, no rank; pairs of tokens where
//! it drafts with EAGLE.

use super::*;
use serde_json::{Value, json};

/// Half of them are negative.
fn signed(seed: u32, at: usize) -> i64 {
    name(seed, at).wrapping_mul(0x9e37_79b9_7f4a_7c15).cast_signed()
}

fn page(seed: u32, at: usize, is_bigram: bool) -> Value {
    let tokens = prompt(seed, at + 2);
    let key = |at: usize| if is_bigram { json!([tokens[at], tokens[at + 1]]) } else { json!(tokens[at]) };
    let keys: Vec<Value> = (at * BLOCK..(at + 1) * BLOCK).map(key).collect();
    let parent = at.checked_sub(1).map(|parent| signed(seed, parent));
    json!(["BlockStored", [signed(seed, at)], parent, keys, BLOCK, null])
}

fn told(events: &[Value]) -> Vec<u8> {
    rmp_serde::to_vec(&(crate::clock::unix_seconds(), events)).expect("encodes")
}

#[tokio::test]
async fn pages_are_followed_through_evictions_clears_and_a_restart() {
    for is_bigram in [false, true] {
        let rig = Rig::start();
        let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
        let handle = rig.listen(&publisher).await;
        let page = |seed: u32, at: usize| page(seed, at, is_bigram);
        publisher.send(told(&[page(1, 0), page(1, 1), page(1, 2), page(2, 0)]), false);
        publisher.send(told(&[json!(["BlockRemoved", [signed(1, 2)]]), page(1, 9)]), false);
        let report = rig.wait("heard", |report| report.last_seq == Some(1)).await;
        let held = |seed: u32| rig.held(handle.id(), seed, 4, None);
        assert_eq!((held(1), held(2), report.blocks), (2, 1, 3), "{report:?}");
        assert_eq!(report.ignored.get("orphan"), Some(&1), "its parent was never told: {report:?}");
        publisher.send(told(&[json!(["AllBlocksCleared"]), page(3, 0)]), false);
        let report = rig.wait("cleared", |report| report.last_seq == Some(2)).await;
        assert_eq!((held(1), held(2), held(3), report.cleared), (0, 0, 1, 1), "{report:?}");
        let before = handle.id();
        publisher.restart();
        publisher.send(told(&[page(4, 0)]), false);
        let report = rig.wait("restarted", |report| report.restarts == 1 && report.last_seq == Some(0)).await;
        assert_eq!((held(3), held(4), rig.held(before, 3, 4, None)), (0, 1, 0), "{report:?}");
        assert!(report.errors.is_empty(), "{report:?}");
    }
}
