//! The role's metrics, `forebay_agent_*`.

use super::{Node, Watched, shown};
use crate::load::seed::Standing;
use crate::page::Page;
use forebay_common::kernel::account::Counter;
use forebay_common::wire::WorkerLoad;
use std::sync::Arc;

impl Node {
    /// The metrics page.
    pub fn page(&self, gateways: u32) -> Arc<str> {
        let mut page = Page::default();
        let label = |name: &str| format!("signal=\"{name}\"");
        let levels: Vec<_> = self.signals.iter().map(|s| (label(s.name), f64::from(s.level))).collect();
        page.family(
            "forebay_agent_kernel_signal_level",
            "gauge",
            "Level that a signal has reached; 0 is off.",
            &levels,
        );
        let errors = self.failures.counts().iter();
        let errors: Vec<_> =
            errors.map(|(stage, errno, n)| (format!("stage=\"{stage}\",errno=\"{errno}\""), *n as f64)).collect();
        page.family(
            "forebay_agent_kernel_signal_errors_total",
            "counter",
            "Failures by stage and error number.",
            &errors,
        );
        page.single("forebay_agent_gateways", "gauge", "Gateways that listen.", f64::from(gateways));
        let help = "Engines beyond what can be counted at once.";
        page.single("forebay_agent_unwatchable_total", "counter", help, self.unwatchable as f64);
        self.worker_families(&mut page);
        if let Some(programs) = &self.programs {
            let counts: Vec<_> = Counter::ALL
                .iter()
                .filter_map(|counter| {
                    Some((format!("event=\"{}\"", counter.name()), programs.counter(*counter).ok()? as f64))
                })
                .collect();
            page.family("forebay_agent_program_events_total", "counter", "What the programs themselves met.", &counts);
        }
        page.finish()
    }

    fn worker_families(&self, page: &mut Page) {
        type Read = fn(&WorkerLoad, &Watched) -> Option<f64>;
        let families: [(&str, &str, &str, Read); 9] = [
            ("connections", "gauge", "Connections that are open.", |told, _| told.open.map(f64::from)),
            ("opened_total", "counter", "Connections established.", |told, _| told.opened.map(|n| n as f64)),
            ("closed_total", "counter", "Connections ended.", |told, _| told.closed.map(|n| n as f64)),
            ("awaiting", "gauge", "Connections that await an answer.", |told, _| told.awaiting.map(f64::from)),
            ("streaming", "gauge", "Connections on which an answer is sent.", |told, _| told.streaming.map(f64::from)),
            ("backlog", "gauge", "Connections that wait to be accepted.", |told, _| told.backlog.map(f64::from)),
            ("unread_bytes", "gauge", "Bytes that the engine has not read.", |told, _| {
                told.unread_bytes.map(|n| n as f64)
            }),
            ("drift_total", "counter", "Connections that checks found too many or too few.", |_, watched| {
                watched.slot.map(|_| watched.seed.drift() as f64)
            }),
            ("suspect", "gauge", "Whether the count contradicts the list of sockets.", |_, watched| {
                watched.slot.map(|_| f64::from(u8::from(watched.seed.standing() == Standing::Suspect)))
            }),
        ];
        for (name, kind, help, read) in families {
            let samples: Vec<_> = self
                .watched
                .iter()
                .filter_map(|(key, watched)| {
                    Some((format!("worker=\"{}\"", shown(key)), read(&watched.told(key, None), watched)?))
                })
                .collect();
            page.family(&format!("forebay_agent_worker_{name}"), kind, help, &samples);
        }
    }
}
