//! From totals of links to how busy and how healthy they are. Pure.

use forebay_common::wire::RdmaPort;
use forebay_routing::view::FabricLoad;
use std::collections::HashMap;

/// A link that had to send again or was lost counts as degraded for so long.
const DEGRADED_FOR_MS: u64 = 10_000;
/// Ports that are followed; a node has eight or so.
const MAX_PORTS: usize = 64;

/// The last totals of each port.
#[derive(Debug, Default)]
pub(super) struct Fabric {
    last: HashMap<(String, u16), Seen>,
}

#[derive(Debug)]
struct Seen {
    port: RdmaPort,
    at_ms: u64,
    degraded_until_ms: u64,
}

impl Fabric {
    /// The worst of all links, `None` where there is none or nothing to compare with yet. Emulated devices say nothing of a fabric.
    pub(super) fn judge(&mut self, ports: &[RdmaPort], now_ms: u64) -> Option<FabricLoad> {
        let mut worst: Option<FabricLoad> = None;
        for port in ports.iter().filter(|port| !port.soft).take(MAX_PORTS) {
            let key = (port.device.clone(), port.port);
            let before = self.last.get(&key);
            let faulty =
                before.is_some_and(|before| grew(before.port.faults, port.faults)) || port.active == Some(false);
            let degraded_until_ms = match before {
                _ if faulty => now_ms + DEGRADED_FOR_MS,
                Some(before) => before.degraded_until_ms,
                None => 0,
            };
            if let Some(before) = before.filter(|before| before.at_ms < now_ms) {
                let seconds = (now_ms - before.at_ms) as f64 / 1_000.0;
                let load = FabricLoad {
                    utilisation: utilisation(&before.port, port, seconds),
                    congestion_per_s: rate(before.port.congestion, port.congestion, seconds),
                    degraded: now_ms < degraded_until_ms,
                    at_ms: now_ms,
                };
                worst = Some(worst.map_or(load, |worst| worse(worst, load)));
            }
            self.last.insert(key, Seen { port: port.clone(), at_ms: now_ms, degraded_until_ms });
        }
        self.last.retain(|_, seen| seen.at_ms == now_ms);
        worst
    }
}

fn grew(before: Option<u64>, now: Option<u64>) -> bool {
    matches!((before, now), (Some(before), Some(now)) if now > before)
}

fn rate(before: Option<u64>, now: Option<u64>, seconds: f64) -> Option<f32> {
    let gained = now?.saturating_sub(before?);
    Some((gained as f64 / seconds) as f32)
}

/// The busier direction against the rate of the link.
fn utilisation(before: &RdmaPort, now: &RdmaPort, seconds: f64) -> Option<f32> {
    let bits_per_s = f64::from(now.rate_mbps.filter(|rate| *rate > 0)?) * 1e6;
    let into = rate(before.bytes_in, now.bytes_in, seconds);
    let out = rate(before.bytes_out, now.bytes_out, seconds);
    let bytes_per_s = match (into, out) {
        (Some(into), Some(out)) => into.max(out),
        (one, other) => one.or(other)?,
    };
    Some((f64::from(bytes_per_s) * 8.0 / bits_per_s).min(1.0) as f32)
}

fn worse(a: FabricLoad, b: FabricLoad) -> FabricLoad {
    let more = |a: Option<f32>, b: Option<f32>| match (a, b) {
        (Some(a), Some(b)) => Some(a.max(b)),
        (one, other) => one.or(other),
    };
    FabricLoad {
        utilisation: more(a.utilisation, b.utilisation),
        congestion_per_s: more(a.congestion_per_s, b.congestion_per_s),
        degraded: a.degraded || b.degraded,
        at_ms: a.at_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(bytes_in: u64, congestion: u64, faults: u64) -> RdmaPort {
        RdmaPort {
            device: "mlx5_0".to_owned(),
            port: 1,
            active: Some(true),
            rate_mbps: Some(100_000),
            bytes_in: Some(bytes_in),
            congestion: Some(congestion),
            faults: Some(faults),
            ..RdmaPort::default()
        }
    }

    #[test]
    fn rates_come_from_two_readings_and_faults_last() {
        let mut fabric = Fabric::default();
        assert_eq!(fabric.judge(&[port(0, 0, 0)], 1_000), None, "one reading is no rate");
        let load = fabric.judge(&[port(6_250_000_000, 40, 0)], 2_000).expect("two readings");
        assert_eq!(load.utilisation.map(|share| (share * 100.0).round()), Some(50.0));
        assert_eq!((load.congestion_per_s, load.degraded), (Some(40.0), false));
        assert!(fabric.judge(&[port(6_250_000_000, 40, 1)], 3_000).expect("known").degraded);
        assert!(fabric.judge(&[port(6_250_000_000, 40, 1)], 12_900).expect("known").degraded, "for a while");
        assert!(!fabric.judge(&[port(6_250_000_000, 40, 1)], 13_000).expect("known").degraded);
    }

    #[test]
    fn emulated_devices_say_nothing() {
        let mut fabric = Fabric::default();
        let soft = RdmaPort { soft: true, ..port(0, 0, 0) };
        fabric.judge(std::slice::from_ref(&soft), 1);
        assert_eq!(fabric.judge(&[soft], 2), None);
    }
}
