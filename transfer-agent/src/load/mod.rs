//! Role `load`: watches this node's engines and tells gateways.
//!
//! ```text
//! sampler thread ─ every period ─► Node::sample ─► wire::Load ─► encoded once ─► every gateway's stream
//!                                       │
//!                                       └─► metrics page
//! ```
//!
//! Sampling blocks (system calls that walk kernel tables), so it has a thread of its own and no lock is held over it. A gateway
//! that reads too slowly misses records, which are totals, and is cut off when it reads nothing at all.

pub mod busy;
pub mod counter;
pub mod node;
pub mod rdma;
pub mod seed;
pub mod server;
pub mod sockets;
pub mod watches;

use crate::clock::{self, Clock};
use crate::config;
use crate::ladder;
use crate::page;
use forebay_common::wire::{self, Kind, Welcome};
use forebay_ebpf::owner::Owner;
use node::Node;
use server::Server;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// Runs until `stop` is done.
pub async fn run(config: config::Load, stop: impl Future<Output = ()>) -> Result<(), String> {
    let token = config.token_file.as_deref().map(server::read_token).transpose()?;
    // A second agent would attach a second set of programs; it runs without.
    let (owner, config) = match Owner::take(&config.state_dir.join("load.lock")) {
        Ok(owner) => (Some(owner), config),
        Err(error) => {
            tracing::warn!("{error}: this agent attaches no programs");
            (None, config::Load { programs: false, ..config })
        }
    };
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|error| format!("load.listen: cannot listen at {}: {error}", config.listen))?;
    let metrics = page::listen(config.metrics).await.map_err(|error| format!("load.metrics: {error}"))?;
    let clock = Clock::start();
    let mut node = Node::start(&config, clock.now_ms());
    tracing::info!("kernel signals: {}", ladder::line(node.signals()));
    let welcome =
        Welcome { version: wire::VERSION, epoch: clock::epoch(), period_ms: config.period_ms, level: node.level() };
    let (records, latest) = watch::channel::<Arc<[u8]>>(Arc::new([]));
    let (pages, page) = watch::channel::<Arc<str>>(Arc::from(""));
    let gateways = Arc::new(AtomicU32::new(0));
    let ended = Arc::new(AtomicBool::new(false));
    let sampler = std::thread::Builder::new().name("sampler".to_owned()).spawn({
        let (gateways, ended) = (gateways.clone(), ended.clone());
        move || {
            while !ended.load(Ordering::Relaxed) {
                let load = node.sample(clock.now_ms());
                match wire::encode(Kind::Load, &load) {
                    Ok(frame) => drop(records.send(frame.into())),
                    Err(error) => tracing::error!(%error, "a record could not be encoded"),
                }
                let _ = pages.send(node.page(gateways.load(Ordering::Relaxed)));
                std::thread::sleep(Duration::from_millis(u64::from(config.period_ms)));
            }
        }
    });
    let sampler = sampler.map_err(|error| format!("no thread for sampling: {error}"))?;
    let server = Server { welcome, token, latest, gateways };
    tokio::select! {
        () = stop => {}
        () = server.accept(listener) => {}
        () = page::serve(metrics, page) => {}
    }
    ended.store(true, Ordering::Relaxed);
    // It ends within a period, and with it what was attached.
    let _ = tokio::task::spawn_blocking(move || sampler.join()).await;
    drop(owner);
    Ok(())
}
