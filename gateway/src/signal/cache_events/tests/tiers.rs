//! Memories and attention groups.

use super::*;
use forebay_routing::index::HitDetail;

fn with(mut event: serde_json::Value, fields: &[(&str, serde_json::Value)]) -> serde_json::Value {
    for (key, value) in fields {
        event[*key] = value.clone();
    }
    event
}

impl Rig {
    fn detail(&self, worker: WorkerId, seed: u32, blocks: usize) -> HitDetail {
        let domain = self.fleet.block_domain("m", BLOCK as u32, None, None);
        let (mut chain, mut hits) = (Vec::new(), Hits::default());
        block::chain(self.fleet.hash_key(), domain, BLOCK as u32, &prompt(seed, blocks), &mut chain);
        self.fleet.index().lookup(&chain, self.clock.now_ms(), false, &mut hits);
        let plain = HitDetail { device: hits.of(worker), ..HitDetail::default() };
        hits.detail(worker).copied().unwrap_or(plain)
    }
}

/// A block that moves to host memory is told by hash alone, as vLLM's offloading does.
#[tokio::test]
async fn blocks_below_the_device_are_known_but_not_credited_as_if_they_were_there() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let worker = rig.listen(&publisher).await.id();
    let copied = with(
        stored(1, 2, 4),
        &[("medium", "CPU".into()), ("token_ids", serde_json::json!([])), ("block_size", 64.into())],
    );
    publisher.send(batch(&[stored(1, 0, 4), copied, removed(1, 3), removed(1, 2)]), false);
    let tape = with(stored(2, 0, 2), &[("medium", "TAPE".into())]);
    let far = with(stored(3, 0, 2), &[("medium", "EXTERNAL".into())]);
    publisher.send(batch(&[tape, far]), false);
    let report = rig.wait("both", |report| report.last_seq == Some(1)).await;
    let detail = rig.detail(worker, 1, 4);
    assert_eq!((detail.device, detail.host), (2, 4), "{detail:?}");
    let detail = rig.detail(worker, 3, 2);
    assert_eq!((detail.device, detail.remote), (0, 2), "{detail:?}");
    assert_eq!(report.ignored.get("unknown_tier"), Some(&2), "{report:?}");
    assert_eq!(report.alarms.len(), 0, "an offloaded block may have a size of its own");
    // A removal that names no memory is of all of them.
    let gone = serde_json::json!({"type": "BlockRemoved", "block_hashes": [name(1, 2)]});
    publisher.send(batch(&[gone]), false);
    rig.wait("gone", |report| report.last_seq == Some(2)).await;
    assert_eq!(rig.detail(worker, 1, 4).host, 2);
}

/// A model of full and sliding attention goes on where both have what they need.
#[tokio::test]
async fn a_hit_is_cut_where_every_group_can_go_on() {
    let rig = Rig::start();
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    let worker = rig.listen(&publisher).await.id();
    let full = |event| with(event, &[("group_idx", 0.into()), ("kv_cache_spec_kind", "full_attention".into())]);
    let window = |event| {
        with(
            event,
            &[
                ("group_idx", 1.into()),
                ("kv_cache_spec_kind", "sliding_window".into()),
                ("kv_cache_spec_sliding_window", 8.into()),
            ],
        )
    };
    publisher.send(batch(&[full(stored(1, 0, 6)), window(stored(1, 0, 6))]), false);
    rig.wait("stored", |report| report.last_seq == Some(0)).await;
    assert_eq!(rig.held(worker, 1, 6, None), 6);
    // Seven tokens before the end lie in two blocks: older ones may go.
    let gone = |at: usize| with(removed(1, at), &[("group_idx", 1.into())]);
    publisher.send(batch(&[gone(0), gone(1), gone(2), gone(3)]), false);
    rig.wait("slid", |report| report.last_seq == Some(1)).await;
    assert_eq!(rig.held(worker, 1, 6, None), 6);
    publisher.send(batch(&[gone(5)]), false);
    rig.wait("cut", |report| report.last_seq == Some(2)).await;
    assert_eq!(rig.held(worker, 1, 6, None), 0, "no two blocks of the window are left before any end");
}
