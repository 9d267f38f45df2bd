//! Rows in which engines fail: one of four, or the only one.

use super::load::{Load, Row};
use super::relay::Relay;
use crate::cluster::{Engine, EngineOptions, Gateway, GatewayOptions};
use crate::process::{Failure, signal};
use crate::scene::folder;
use serde_json::json;
use std::path::Path;
use tokio::time::{Duration, sleep};

/// Clients of each row.
const CLIENTS: usize = 8;
/// Chats of each client.
pub const STREAMS: usize = 100;
/// Share of a row's requests after which the fault strikes.
const STRIKE_AT: f64 = 0.3;
/// How long the only engine is away.
const AWAY: Duration = Duration::from_secs(5);
/// Tokens of an answer: at the engines' pace about 0.3 s.
const TOKENS: u32 = 60;

/// What the gateway is told beside its defaults: silence is noticed in seconds, not in minutes, so that rows end.
const WATCHFUL: &str = "[upstream]\nidle_timeout = \"10s\"\n[health]\ninterval = \"1s\"\ntimeout = \"2s\"\n";

/// What happens to an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// SIGKILL of one of four.
    KillOne,
    /// SIGKILL of the only one, which is back after five seconds.
    KillOnly,
    /// SIGSTOP of one of four: its kernel takes connections and bytes, nobody answers.
    Stop,
    /// One of four is cut off: nothing comes back from it, not even refusals.
    Blackhole,
    /// One of four answers every request with 500.
    Storm,
}

/// All of them.
pub const BLOWS: [Blow; 5] = [Blow::KillOne, Blow::KillOnly, Blow::Stop, Blow::Blackhole, Blow::Storm];

impl Blow {
    fn name(self) -> &'static str {
        match self {
            Self::KillOne => "kill -9, one of four",
            Self::KillOnly => "kill -9, the only one, back after 5 s",
            Self::Stop => "kill -STOP, one of four",
            Self::Blackhole => "cut off, one of four",
            Self::Storm => "500 to everything, one of four",
        }
    }

    fn engines(self) -> usize {
        if self == Self::KillOnly { 1 } else { 4 }
    }
}

/// Engines that answer in a fraction of a second; `port` 0 takes a free one.
pub fn engine(port: u16) -> EngineOptions {
    EngineOptions { port, speedup: 3.0, ..EngineOptions::default() }
}

/// Engines, the gateway before them, and the relays between.
struct Scene {
    engines: Vec<Engine>,
    relays: Vec<Relay>,
    gateway: Gateway,
}

impl Scene {
    async fn start(blow: Blow, folder: &Path) -> Result<Self, Failure> {
        let (mut engines, mut relays, mut urls) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..blow.engines() {
            let engine = Engine::start(&format!("engine-{number}"), &engine(0), folder).await?;
            if blow == Blow::Blackhole && number == 0 {
                let relay = Relay::start(engine.address)?;
                urls.push(relay.url());
                relays.push(relay);
            } else {
                urls.push(engine.url());
            }
            engines.push(engine);
        }
        let options = GatewayOptions { extra: WATCHFUL.to_owned(), ..GatewayOptions::default() };
        let gateway = Gateway::start(&options, &urls, folder).await?;
        Ok(Self { engines, relays, gateway })
    }

    /// What was done, for the table.
    async fn strike(&mut self, blow: Blow, folder: &Path) -> Result<(), Failure> {
        match blow {
            Blow::KillOne => self.engines[0].process.kill(),
            Blow::KillOnly => {
                let port = self.engines[0].address.port();
                self.engines[0].process.kill();
                sleep(AWAY).await;
                self.engines[0] = Engine::start("engine-again", &engine(port), folder).await?;
            }
            Blow::Stop => signal(self.engines[0].process.pid(), "STOP")?,
            Blow::Blackhole => self.relays[0].fall_silent().await,
            Blow::Storm => {
                let faults = json!({"faults": [{"kind": "error", "status": 500}]});
                self.engines[0].client.post_json("/_ctl", &faults).await?;
            }
        }
        Ok(())
    }
}

/// One row: a steady load, and the blow in its midst. `streams` of each client.
pub async fn run(blow: Blow, streams: usize) -> Result<Row, Failure> {
    let folder = folder()?;
    let mut scene = Scene::start(blow, folder.path()).await?;
    let load = Load::start(&scene.gateway.client, CLIENTS, streams, TOKENS);
    load.reach(STRIKE_AT).await;
    scene.strike(blow, folder.path()).await?;
    let row = load.end(blow.name(), "").await;
    scene.gateway.process.expect_running()?;
    Ok(row)
}
