//! The wait for somebody to come back, where a model has nobody left.
//!
//! An engine that restarts is away for seconds. Its model's requests would all fail meanwhile, though nothing of them was computed
//! or sent to anybody; so for `upstream.outage_timeout` after the first of them found nobody they wait, in the queue that requests
//! without a place wait in. A model that has been gone for longer is not waited for: who asks then is told at once, since something
//! in front of the gateway may know another.

use super::admission::Admitted;
use super::{Dispatcher, Outbound};
use crate::dispatch::Chooser;
use crate::error::Halt;
use crate::stream::{Client, Interrupt, stopping};
use hashbrown::HashMap;
use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// Between two looks for somebody.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Models that are out at once of which the beginning is known; of more nobody waits.
const MAX_OUTAGES: usize = 256;

/// Since when which models have had nobody.
#[derive(Debug, Default)]
pub(super) struct Outages(Mutex<HashMap<u32, Outage>>);

#[derive(Clone, Copy, Debug)]
struct Outage {
    began: Instant,
    /// When a request last found nobody.
    noticed: Instant,
}

impl Outages {
    /// Until when a request that has just found nobody may wait.
    fn due(&self, model: u32, patience: Duration, now: Instant) -> Instant {
        let mut outages = self.0.lock();
        // One that nobody has noticed for so long may have ended since.
        outages.retain(|_, outage| now.duration_since(outage.noticed) <= patience);
        if outages.len() >= MAX_OUTAGES && !outages.contains_key(&model) {
            return now;
        }
        let outage = outages.entry(model).or_insert(Outage { began: now, noticed: now });
        outage.noticed = now;
        outage.began + patience
    }

    /// Somebody has answered.
    pub(super) fn end(&self, model: u32) {
        self.0.lock().remove(&model);
    }
}

impl Dispatcher {
    /// Waits for somebody who takes the request; `None` when nobody came in time, or too many wait already.
    pub(super) async fn outlast(
        &self,
        client: &mut Client,
        outbound: &Outbound<'_>,
        chooser: &mut impl Chooser,
    ) -> Result<Option<Admitted>, Halt> {
        let (model, patience) = (chooser.model(), self.upstream.outage_timeout);
        if patience.is_zero() {
            return Ok(None);
        }
        let due = self.outages.due(model, patience, Instant::now());
        let Some(_waiting) = self.join_queue() else { return Ok(None) };
        loop {
            let now = Instant::now();
            if now >= due {
                return Ok(None);
            }
            client.deadline.set(due.min(now + LOOK_EVERY));
            match client.race(std::future::pending::<()>()).await {
                Err(Interrupt::Gone) => return Err(Halt::Gone),
                Err(Interrupt::Stopped) => return Err(stopping().into()),
                Ok(()) | Err(Interrupt::Late) => {}
            }
            // Whoever failed is asked again: it may be another process by now. Only its answer will end the outage.
            chooser.renew();
            if let Ok(admitted) = self.try_admit(outbound, chooser, &[]) {
                return Ok(Some(admitted));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_waited_out_once_and_a_new_one_anew() {
        let (outages, patience) = (Outages::default(), Duration::from_secs(10));
        let began = Instant::now();
        assert_eq!(outages.due(1, patience, began), began + patience);
        let later = began + Duration::from_secs(6);
        assert_eq!(outages.due(1, patience, later), began + patience, "the same outage");
        assert_eq!(outages.due(2, patience, later), later + patience, "another model's");
        let long_after = began + Duration::from_secs(15);
        assert!(outages.due(1, patience, long_after) < long_after, "it has lasted for too long");
        outages.end(1);
        assert_eq!(outages.due(1, patience, long_after), long_after + patience, "it had ended");
        let much_later = long_after + Duration::from_secs(60);
        assert_eq!(outages.due(2, patience, much_later), much_later + patience, "nobody had noticed it since");
    }

    #[tokio::test(start_paused = true)]
    async fn outages_are_bounded() {
        let (outages, patience, now) = (Outages::default(), Duration::from_secs(10), Instant::now());
        for model in 0..MAX_OUTAGES as u32 {
            assert!(outages.due(model, patience, now) > now);
        }
        assert_eq!(outages.due(9_999, patience, now), now);
        assert!(outages.due(0, patience, now) > now);
    }
}
