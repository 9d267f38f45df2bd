//! Numbers that somebody else keeps, read at each scrape.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Gauge, Opts};

/// Unit suffix of a sampled gauge's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `_bytes`.
    Bytes,
    /// `_seconds`.
    Seconds,
    /// `_connections`.
    Connections,
    /// `_requests`.
    Requests,
    /// `_workers`.
    Workers,
}

impl Unit {
    fn suffix(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
            Self::Connections => "connections",
            Self::Requests => "requests",
            Self::Workers => "workers",
        }
    }
}

pub(super) type Read = Box<dyn Fn() -> f64 + Send + Sync>;

pub(super) struct Sampled {
    gauge: Gauge,
    read: Read,
}

impl Sampled {
    pub(super) fn new(name: &str, help: &str, unit: Unit, read: Read) -> Result<Self, prometheus::Error> {
        let name = format!("forebay_{name}_{}", unit.suffix());
        Ok(Self { gauge: Gauge::with_opts(Opts::new(name, help))?, read })
    }
}

impl Collector for Sampled {
    fn desc(&self) -> Vec<&Desc> {
        self.gauge.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.gauge.set((self.read)());
        self.gauge.collect()
    }
}
