//! Predicted hits against the engine's own count, one request at a time, on the head of the demo's workload.

use forebay_tests::demo::exact::run_quiet;
use forebay_tests::demo::stage::{Choice, Cut, Stage};
use forebay_tests::process::Failure;
use forebay_tests::scene::folder;

#[tokio::test]
async fn every_predicted_hit_is_true_after_evictions_too() -> Result<(), Failure> {
    let folder = folder()?;
    let choice = Choice { sessions: 24, cut: Cut::NONE, speedup: 200.0, port: 0, folder: folder.path().to_path_buf() };
    let stage = Stage::set(choice).await?;
    assert!(stage.cache_share() <= 0.4, "caches must be too small for everything: {}", stage.cache_share());
    let quiet = run_quiet(&stage).await?;
    assert_eq!((quiet.truth.compared, quiet.truth.exact), (stage.requests, stage.requests));
    assert!(quiet.with_hit * 2 > stage.requests, "hits must be the rule: {} of {}", quiet.with_hit, stage.requests);
    assert!(quiet.evicted_blocks > 0, "something must have been evicted");
    Ok(())
}
