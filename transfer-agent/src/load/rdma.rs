//! Counters of RDMA ports, from sysfs: traffic of such devices passes the kernel's network stack by, so no program there sees it.
//!
//! Data counters are in units of four bytes. Any counter may be absent (each driver has its own), wrap at 32 bits or restart
//! ([`Total`]). Firmware is asked for some of them, which takes up to 100 µs each: twice a second is enough.

use super::counter::Total;
use forebay_common::wire::RdmaPort;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Ports that are read; a node has eight or so.
const MAX_PORTS: usize = 64;
/// Counters of data count words of so many bytes.
const WORD_BYTES: u64 = 4;

/// Counters that mean congestion: notifications that this port obeyed.
const CONGESTION: &[&str] = &["rp_cnp_handled"];
/// Counters that make a port a bad choice for a while.
const FAULTS: &[&str] = &[
    "local_ack_timeout_err",
    "packet_seq_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "out_of_sequence",
    "link_downed",
    "symbol_error",
    "port_rcv_errors",
];

/// Follows the ports below one sysfs.
#[derive(Debug)]
pub struct Rdma {
    root: PathBuf,
    totals: BTreeMap<(String, u16), BTreeMap<&'static str, Total>>,
}

impl Rdma {
    /// `sysfs` is `/sys`, or a tree that looks like it.
    pub fn new(sysfs: &Path) -> Self {
        Self { root: sysfs.join("class/infiniband"), totals: BTreeMap::new() }
    }

    /// Every port as it is now; none where there is no device.
    pub fn read(&mut self) -> Vec<RdmaPort> {
        let mut ports = Vec::new();
        for device in entries(&self.root) {
            let folder = self.root.join(&device);
            for port in entries(&folder.join("ports")) {
                let Ok(number) = port.parse() else { continue };
                if ports.len() < MAX_PORTS {
                    ports.push(self.read_port(&device, number, &folder.join("ports").join(&port)));
                }
            }
        }
        self.totals.retain(|(device, port), _| ports.iter().any(|p| p.device == *device && p.port == *port));
        ports
    }

    fn read_port(&mut self, device: &str, port: u16, folder: &Path) -> RdmaPort {
        let totals = self.totals.entry((device.to_owned(), port)).or_default();
        let mut total = |name: &'static str| {
            let value = ["counters", "hw_counters"].iter().find_map(|kind| number(&folder.join(kind).join(name)));
            totals.entry(name).or_default().read(value)
        };
        let words = |total: Option<u64>| total.map(|words| words.saturating_mul(WORD_BYTES));
        RdmaPort {
            device: device.to_owned(),
            port,
            // rxe's own counters are there whatever the device is called.
            soft: device.starts_with("rxe") || folder.join("hw_counters/rcvd_pkts").exists(),
            active: text(&folder.join("state")).map(|state| state.contains("ACTIVE")),
            rate_mbps: text(&folder.join("rate")).and_then(|rate| megabits(&rate)),
            bytes_in: words(total("port_rcv_data")),
            bytes_out: words(total("port_xmit_data")),
            wait_ticks: total("port_xmit_wait"),
            congestion: sum(CONGESTION.iter().map(|name| total(name))),
            faults: sum(FAULTS.iter().map(|name| total(name))),
        }
    }
}

/// `None` when none of them is there.
fn sum(totals: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    totals.flatten().reduce(u64::saturating_add)
}

fn entries(folder: &Path) -> Vec<String> {
    let Ok(found) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<_> = found.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.trim().parse().ok()
}

/// `100 Gb/sec (4X EDR)`, as sysfs has it.
fn megabits(rate: &str) -> Option<u32> {
    let gigabits: f64 = rate.split_whitespace().next()?.parse().ok()?;
    (gigabits >= 0.0).then_some((gigabits * 1_000.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join("class/infiniband").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_port_is_read_in_its_units_and_what_is_absent_is_unknown() {
        let sysfs = tempfile::tempdir().unwrap();
        let root = sysfs.path();
        write(root, "mlx5_0/ports/1/state", "4: ACTIVE\n");
        write(root, "mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
        write(root, "mlx5_0/ports/1/counters/port_rcv_data", "1000\n");
        write(root, "mlx5_0/ports/1/hw_counters/rp_cnp_handled", "5\n");
        write(root, "mlx5_0/ports/1/hw_counters/packet_seq_err", "4294967295\n");
        let mut rdma = Rdma::new(root);
        let first = rdma.read();
        assert_eq!(first.len(), 1);
        assert_eq!((first[0].active, first[0].rate_mbps), (Some(true), Some(100_000)));
        assert_eq!(first[0].bytes_in, Some(0), "totals begin with the agent");
        assert_eq!(first[0].bytes_out, None, "absent is unknown");
        write(root, "mlx5_0/ports/1/counters/port_rcv_data", "1250\n");
        write(root, "mlx5_0/ports/1/hw_counters/rp_cnp_handled", "9\n");
        write(root, "mlx5_0/ports/1/hw_counters/packet_seq_err", "1\n");
        let second = rdma.read();
        assert_eq!(second[0].bytes_in, Some(1_000), "250 words of four bytes");
        assert_eq!((second[0].congestion, second[0].faults), (Some(4), Some(2)), "the second one wrapped");
        fs::remove_dir_all(root.join("class/infiniband/mlx5_0")).unwrap();
        assert!(rdma.read().is_empty());
        assert!(Rdma::new(Path::new("/nowhere")).read().is_empty(), "no device is no error");
    }

    #[test]
    fn soft_devices_are_labelled() {
        let sysfs = tempfile::tempdir().unwrap();
        write(sysfs.path(), "rxe0/ports/1/state", "4: ACTIVE\n");
        assert!(Rdma::new(sysfs.path()).read()[0].soft);
    }
}
