//! What requests read of the fleet beside the view: loads, readiness, and who is lost.

use super::handle::find;
use super::{Fleet, Readiness};
use forebay_routing::view::WorkerState;
use forebay_routing::{FleetView, LocalLoad, WorkerId};
use std::sync::atomic::Ordering;

/// Workers with which one that warms up is compared.
const MAX_COMPARED: usize = 256;

impl Fleet {
    /// Own loads parallel to `view.workers`.
    pub fn local_loads(&self, view: &FleetView, out: &mut Vec<LocalLoad>) {
        let handles = self.shared.handles.load();
        out.clear();
        out.extend(
            view.workers.iter().map(|worker| {
                find(&handles, worker.id).map_or_else(LocalLoad::default, |handle| handle.counters.load())
            }),
        );
    }

    /// Own loads parallel to `positions` in `view.workers`.
    pub fn local_loads_of(&self, view: &FleetView, positions: &[u32], out: &mut Vec<LocalLoad>) {
        let handles = self.shared.handles.load();
        let load = |&position: &u32| {
            let handle = view.workers.get(position as usize).and_then(|worker| find(&handles, worker.id));
            handle.map_or_else(LocalLoad::default, |handle| handle.counters.load())
        };
        out.clear();
        out.extend(positions.iter().map(load));
    }

    /// Own load of one worker; nothing once it was removed.
    pub fn load_of(&self, worker: WorkerId) -> LocalLoad {
        find(&self.shared.handles.load(), worker).map_or_else(LocalLoad::default, |handle| handle.counters.load())
    }

    /// Whether nothing more is to be expected of `worker`: another process is in its place, or it fails its health checks while
    /// another worker of its model passes them. Where all fail, they may be busy, and whoever waits goes on waiting.
    pub fn is_lost(&self, worker: WorkerId) -> bool {
        let view = self.shared.view.load();
        match view.worker(worker) {
            None => return true,
            Some(known) if known.state != WorkerState::Down => return false,
            Some(_) => {}
        }
        let handles = self.shared.handles.load();
        let Some(handle) = find(&handles, worker) else { return true };
        let mut others =
            handles.iter().flatten().filter(|other| other.slot != worker.slot && other.model == handle.model);
        others.any(|other| view.worker(other.id()).is_some_and(|other| other.state == WorkerState::Ready))
    }

    /// Whether `worker` would rather not have one more request now.
    pub fn readiness(&self, worker: WorkerId) -> Readiness {
        let handles = self.shared.handles.load();
        let Some(handle) = find(&handles, worker) else { return Readiness::Willing };
        let now_ms = self.shared.clock.now_ms();
        if handle.held_until_ms.load(Ordering::Relaxed) > now_ms {
            return Readiness::Reluctant;
        }
        let warm_at_ms = handle.warm_at_ms.load(Ordering::Relaxed);
        if warm_at_ms <= now_ms {
            return Readiness::Willing;
        }
        // Its share of what the others have grows with the time that it is back.
        let left = (warm_at_ms - now_ms) as f64 / (self.shared.slow_start_ms.max(1)) as f64;
        // In a large fleet some of them say enough.
        let some = handles.iter().step_by(handles.len().div_ceil(MAX_COMPARED)).flatten();
        let others = some.filter(|other| other.slot != handle.slot && other.model == handle.model);
        let warm = others.filter(|other| other.warm_at_ms.load(Ordering::Relaxed) <= now_ms);
        let (count, sum) =
            warm.fold((0_u32, 0_u32), |(count, sum), other| (count + 1, sum + other.counters.load().requests));
        if count == 0 {
            return Readiness::Willing; // All came at once: nobody is there to compare with.
        }
        let fair = f64::from(sum) / f64::from(count) * (1.0 - left);
        if f64::from(handle.counters.load().requests) < fair.max(1.0) {
            Readiness::Willing
        } else {
            Readiness::Reluctant
        }
    }
}
