//! What a node's agent says of a worker.

use super::super::KernelReport;
use super::super::ejection::Verdict;
use super::{Need, Owner};
use forebay_routing::WorkerId;
use forebay_routing::event::FleetEvent;
use forebay_routing::foreign::KernelLoad;

/// An engine whose accept queue was full in so many reports in a row accepts nothing: it is stuck, not busy for a moment.
const STUCK_REPORTS: u32 = 4;

impl Owner {
    pub(super) fn hear_agent(&mut self, worker: WorkerId, report: &KernelReport) -> Need {
        let now_ms = self.shared.clock.now_ms();
        let Some(member) = self.member(worker) else { return Need::Nothing };
        let (label, own) = (member.handle.label.clone(), member.handle.counters.load());
        member.full_queues = if report.queue_is_full { member.full_queues + 1 } else { 0 };
        let stuck = member.full_queues >= STUCK_REPORTS && member.breaker.eject(now_ms) == Verdict::Eject;
        if stuck {
            member.full_queues = 0;
            self.ejected(worker, "stuck", true);
        }
        let mut need = if stuck { self.show_state(worker) } else { Need::Nothing };
        if let Some((awaiting, streaming)) = report.at_work {
            let mut load = KernelLoad::new(awaiting, streaming, &own, report.at_ms, report.good_for_ms);
            load.unread_bytes = report.unread_bytes;
            let event = FleetEvent::KernelReported { worker, load, fabric: report.fabric };
            need = need.max(self.reduce(event, Need::Soon));
            self.shared.metrics.foreign(&label, &load);
        }
        need
    }
}
