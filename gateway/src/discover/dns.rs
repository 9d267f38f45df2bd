//! DNS names that resolve to many workers.

use super::Discovery;
use crate::config::resolved::{DnsPool, Worker};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use tokio::time::{Duration, sleep, timeout};

/// One look-up; resolvers retry by themselves for longer than anybody wants to wait here.
const LOOK_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// Look-ups closer than this would only burden the resolver.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Addresses taken from one answer.
const MAX_ADDRESSES: usize = 10_000;

/// Looks `pool` up again and again. A failed look-up, or an empty answer, keeps the last set and is counted: a resolver
/// that is down must not take the fleet with it.
pub(super) async fn watch(discovery: Discovery, pool: DnsPool) {
    let mut failing = false;
    loop {
        match look_up(&pool).await {
            Ok(addresses) => {
                failing = false;
                discovery.replace_dns(&pool, workers(&pool, &addresses));
            }
            Err(problem) => {
                discovery.shared.dns_failures.with_label_values(&[&pool.name]).inc();
                // Once per outage, not once per look-up.
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(name = %pool.name, problem, "DNS look-up failed: the last answer stays");
                }
            }
        }
        sleep(pool.interval.max(MIN_INTERVAL)).await;
    }
}

async fn look_up(pool: &DnsPool) -> Result<BTreeSet<SocketAddr>, String> {
    match timeout(LOOK_UP_TIMEOUT, tokio::net::lookup_host((pool.name.as_str(), pool.port))).await {
        Ok(Ok(addresses)) => {
            let addresses: BTreeSet<_> = addresses.take(MAX_ADDRESSES).collect();
            if addresses.is_empty() { Err("no addresses".to_owned()) } else { Ok(addresses) }
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", LOOK_UP_TIMEOUT.as_secs())),
    }
}

fn workers(pool: &DnsPool, addresses: &BTreeSet<SocketAddr>) -> Vec<Worker> {
    let worker = |address: &SocketAddr| pool.worker(*address);
    addresses.iter().map(worker).collect()
}
