//! A worker that claims to publish events and does not, in virtual time: the alarm, the fall back to guessing, alone.

use super::*;
use crate::fleet::{Facts, Feedback};
use crate::signal::cache_events::batch::Scratch;
use crate::signal::cache_events::feed::Feed;
use crate::signal::cache_events::vigil::PATIENCE_MS;
use forebay_routing::LocalLoad;
use tokio::time::advance;

/// One feed, driven by hand.
struct Driven {
    feed: Feed,
    publisher: Publisher,
    handle: Arc<Handle>,
    report: Arc<parking_lot::Mutex<FeedReport>>,
}

impl Driven {
    async fn open(fleet: &Fleet, clock: Clock, replay: Option<&str>) -> Self {
        let publisher = Publisher::start("tcp://127.0.0.1:*", Replay::None);
        let handle = join(fleet, &publisher.address.replace("tcp", "http")).await;
        fleet.learn(&handle, Facts { block_size: Some(BLOCK as u32), ..Facts::default() }).await;
        let report =
            Arc::new(parking_lot::Mutex::new(FeedReport { worker: handle.label.clone(), ..Default::default() }));
        let replay = replay.map(|address| Attach::Connect(address.to_owned()));
        let spec = FeedSpec { replay, ..spec(&handle, &publisher) };
        let mut feed = Feed::open(&spec, &zmq::Context::new(), fleet.clone(), clock, report.clone()).expect("opens");
        feed.start(&mut Scratch::default(), clock.now_ms());
        Self { feed, publisher, handle, report }
    }

    /// Publishes until a batch is heard: a subscription takes its time to arrive.
    fn speak(&mut self, now_ms: u64) {
        let before = self.report.lock().batches;
        for _ in 0..3_000 {
            self.publisher.send(batch(&[stored(1, 0, 2)]), false);
            std::thread::sleep(Duration::from_millis(5));
            self.feed.take_events(&mut Scratch::default(), now_ms);
            if self.report.lock().batches > before {
                return;
            }
        }
        panic!("nothing was heard");
    }

    fn tick(&mut self, now_ms: u64) {
        self.feed.tick(&mut Scratch::default(), true, now_ms);
    }

    /// An answer came for which the engine must have stored blocks.
    fn serve(&self, fleet: &Fleet, sent_ms: u64) {
        let served = Feedback::Served {
            prompt_tokens: 100,
            cached_tokens: Some(0),
            predicted_tokens: 0,
            sent_ms,
            ttft_ms: 1.0,
            itl_ms: None,
            load: LocalLoad::default(),
        };
        fleet.feedback(self.handle.id(), served);
    }
}

/// Runs what may block (a feed waits for the fleet) off the runtime, without time passing.
async fn off<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("joins")
}

async fn caches(fleet: &Fleet, feeds: [&Driven; 2]) -> [CacheKnowledge; 2] {
    fleet.describe().await;
    let view = fleet.view();
    feeds.map(|driven| view.worker(driven.handle.id()).expect("there").cache)
}

#[tokio::test(start_paused = true)]
async fn who_owes_events_and_sends_none_is_guessed_alone() {
    let (registry, tasks, clock) = (prometheus::Registry::new(), TaskGroup::new(), Clock::start());
    let fleet = fleet(clock, &registry, &tasks);
    let (mut mute, mut talking) = (Driven::open(&fleet, clock, None).await, Driven::open(&fleet, clock, None).await);
    let now_ms = clock.now_ms();
    (mute, talking) = off(move || {
        mute.speak(now_ms);
        talking.speak(now_ms);
        (mute, talking)
    })
    .await;
    assert_eq!(caches(&fleet, [&mute, &talking]).await, [CacheKnowledge::Events; 2]);
    // An idle hour proves nothing.
    advance(Duration::from_secs(3_600)).await;
    let sent_ms = clock.now_ms();
    mute.serve(&fleet, sent_ms);
    talking.serve(&fleet, sent_ms);
    (mute, talking) = off(move || {
        talking.speak(sent_ms + 1);
        for driven in [&mut mute, &mut talking] {
            driven.tick(sent_ms + 1);
            driven.tick(sent_ms + PATIENCE_MS);
        }
        (mute, talking)
    })
    .await;
    assert_eq!(caches(&fleet, [&mute, &talking]).await, [CacheKnowledge::Events; 2], "not yet");
    (mute, talking) = off(move || {
        for driven in [&mut mute, &mut talking] {
            driven.tick(sent_ms + 1 + PATIENCE_MS);
        }
        (mute, talking)
    })
    .await;
    assert_eq!(
        caches(&fleet, [&mute, &talking]).await,
        [CacheKnowledge::Approximate, CacheKnowledge::Events],
        "the one that is silent, alone"
    );
    assert_eq!(mute.report.lock().state, FeedState::Silent);
    assert!(mute.report.lock().alarms.contains(&Alarm::Silent) && talking.report.lock().alarms.is_empty());
    (mute, talking) = off(move || {
        mute.speak(sent_ms + 2 * PATIENCE_MS);
        mute.tick(sent_ms + 4 * PATIENCE_MS);
        (mute, talking)
    })
    .await;
    assert_eq!(caches(&fleet, [&mute, &talking]).await, [CacheKnowledge::Events; 2], "believed again");
    let report = mute.report.lock().clone();
    assert_eq!((report.state, report.alarms.len()), (FeedState::Live, 0));
    assert_eq!(report.alarms_raised.get(&Alarm::Silent), Some(&1));
    off(move || drop((mute, talking))).await;
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_was_cached_whole_owes_nothing() {
    let (registry, tasks, clock) = (prometheus::Registry::new(), TaskGroup::new(), Clock::start());
    let fleet = fleet(clock, &registry, &tasks);
    let driven = Driven::open(&fleet, clock, None).await;
    advance(Duration::from_secs(1)).await;
    let served = |cached_tokens, predicted_tokens| Feedback::Served {
        prompt_tokens: 10,
        cached_tokens,
        predicted_tokens,
        sent_ms: clock.now_ms(),
        ttft_ms: 1.0,
        itl_ms: None,
        load: LocalLoad::default(),
    };
    for (feedback, owes) in [(served(Some(8), 0), false), (served(None, 8), false), (served(None, 4), true)] {
        fleet.feedback(driven.handle.id(), feedback.clone());
        assert_eq!(driven.handle.owes_events(), owes, "{feedback:?}");
    }
    driven.handle.hear_events(clock.now_ms());
    assert!(!driven.handle.owes_events());
    assert_eq!(driven.handle.hit_tokens(), (0, 8), "only what the engine told is counted");
}

#[tokio::test(start_paused = true)]
async fn a_replay_socket_that_nobody_answers_on_is_silence_too() {
    let (registry, tasks, clock) = (prometheus::Registry::new(), TaskGroup::new(), Clock::start());
    let fleet = fleet(clock, &registry, &tasks);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("bound");
    let mut driven = Driven::open(&fleet, clock, Some(&format!("tcp://{closed}"))).await;
    let now_ms = clock.now_ms();
    driven = off(move || {
        driven.tick(now_ms);
        driven.tick(now_ms + PATIENCE_MS - 1);
        assert!(driven.report.lock().alarms.is_empty());
        driven.tick(now_ms + PATIENCE_MS);
        driven
    })
    .await;
    assert_eq!(driven.report.lock().state, FeedState::Silent);
    off(move || drop(driven)).await;
}
