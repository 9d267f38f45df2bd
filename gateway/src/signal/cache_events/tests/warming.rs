//! A gateway that restarts goes on from what the last one saved.

use super::*;

impl Rig {
    /// A gateway with a snapshot file.
    async fn with_file(path: &std::path::Path) -> Self {
        let rig = Self::start();
        rig.feeds.remember(path.to_owned()).await;
        rig
    }

    async fn listen_as(&self, publisher: &Publisher, process: Option<&str>) -> Arc<Handle> {
        let handle = self.join("http://warm:1").await;
        let spec = FeedSpec { process: process.map(str::to_owned), ..spec(&handle, publisher) };
        self.feeds.add(spec).await;
        handle
    }
}

/// What the second gateway knows after a life in which the engine's replay no longer reaches back to the beginning.
async fn restart_gateway(
    saved_by: Option<&str>,
    found_as: Option<&str>,
    damage: impl Fn(&mut Vec<u8>),
) -> (u32, FeedReport, Option<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("feeds");
    let mut publisher = Publisher::start("tcp://127.0.0.1:*", Replay::WithTopic);
    publisher.keeps = 3;
    {
        let rig = Rig::with_file(&path).await;
        rig.listen_as(&publisher, saved_by).await;
        rig.wait("connected", |report| report.state == FeedState::Live).await;
        publisher.send(batch(&[stored(1, 0, 4)]), false);
        for seed in 2..6 {
            publisher.send(batch(&[stored(seed, 0, 1)]), false);
        }
        rig.wait("known", |report| report.last_seq == Some(4) && report.state == FeedState::Live).await;
        rig.feeds.save().await;
        let report = rig.feeds.snapshot().expect("configured");
        assert_eq!((report.problem, report.saved_feeds), (None, usize::from(saved_by.is_some())));
    }
    publisher.send(batch(&[removed(1, 3), stored(6, 0, 1)]), true);
    let mut bytes = std::fs::read(&path).expect("saved");
    damage(&mut bytes);
    std::fs::write(&path, bytes).expect("written");
    let rig = Rig::with_file(&path).await;
    let problem = rig.feeds.snapshot().expect("configured").problem;
    let handle = rig.listen_as(&publisher, found_as).await;
    let report = rig.wait("caught up", |report| report.last_seq == Some(5) && report.state == FeedState::Live).await;
    (rig.held(handle.id(), 1, 4, None), report, problem)
}

#[tokio::test]
async fn the_same_process_is_taken_up_where_it_was_left() {
    let (held, report, problem) = restart_gateway(Some("p"), Some("p"), |_| {}).await;
    assert_eq!((held, report.blocks, problem), (3, 8, None), "the removal in between counts: {report:?}");
    assert_eq!((report.cold_starts, report.lost, report.unconfirmed), (0, 0, 0), "{report:?}");
    assert_eq!(report.batches, 1, "only what came since was replayed");
}

#[tokio::test]
async fn another_process_or_one_without_a_name_starts_cold() {
    for (saved_by, found_as) in [(Some("p"), Some("q")), (Some("p"), None), (None, Some("p"))] {
        let (held, report, problem) = restart_gateway(saved_by, found_as, |_| {}).await;
        assert_eq!((held, report.cold_starts, problem), (0, 1, None), "{saved_by:?} {found_as:?}: {report:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_not_whole_is_refused_with_its_reason() {
    type Damage = fn(&mut Vec<u8>);
    let cases: [(Damage, &str); 4] = [
        (|bytes| bytes.truncate(bytes.len() - 3), "cut short"),
        (|bytes| bytes[60] ^= 1, "damaged"),
        (|bytes| bytes[8..16].copy_from_slice(b"NOTOURS!"), "not a snapshot"),
        (|bytes| bytes.truncate(5), "cut short"),
    ];
    for (damage, why) in cases {
        let (held, report, problem) = restart_gateway(Some("p"), Some("p"), damage).await;
        assert!(problem.as_ref().is_some_and(|problem| problem.contains(why)), "{why}: {problem:?}");
        assert_eq!((held, report.cold_starts), (0, 1), "{why}: {report:?}");
    }
}
