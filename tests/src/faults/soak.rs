//! Minutes of load while engines and configuration come and go and clients leave, with the gateway's memory and open files read
//! in moments of quiet.
//!
//! What grows by design is full before anything is measured: prompts come from a fixed set, and engines' caches are small.

use super::kill::engine;
use super::load::{Row, chat};
use crate::client::{Client, Outcome};
use crate::cluster::{Engine, EngineOptions, GatewayOptions};
use crate::console::say;
use crate::process::{Failure, signal};
use crate::scene::Scene;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep, timeout};

/// Clients that ask one after the other.
const CLIENTS: usize = 12;
/// Prompts that they draw from.
const PROMPTS: usize = 400;
/// Tokens of an answer.
const TOKENS: u32 = 40;
/// Every so many-th request's client leaves before its answer is whole.
const LEAVES: usize = 7;
/// How long it stays.
const STAYS: Duration = Duration::from_millis(60);
/// Between two changes.
const CHURN_EVERY: Duration = Duration::from_secs(3);
/// Between two readings.
const READ_EVERY: Duration = Duration::from_secs(10);
/// Longest wait for quiet.
const QUIET_TIMEOUT: Duration = Duration::from_secs(60);

/// What a soak came to.
pub struct Soak {
    /// How its requests ended, but for those whose clients left.
    pub row: Row,
    /// Memory's growth, kB a minute.
    pub rss_slope_kb_min: f64,
    /// Open files' growth, a minute.
    pub fd_slope: f64,
    /// One reading a line, for people.
    pub readings: Vec<String>,
    /// What was not given back at the end.
    pub left_behind: Vec<String>,
}

/// Time, resident memory in kB, open files.
#[derive(Clone, Copy)]
struct Reading {
    minutes: f64,
    rss_kb: f64,
    files: f64,
}

/// What the clients share.
struct Crowd {
    client: Client,
    stop: AtomicBool,
    /// Held by each request; who wants quiet takes it whole.
    running: RwLock<()>,
}

/// `seconds` of it; readings of the first fifth do not count.
pub async fn run(seconds: u64) -> Result<Soak, Failure> {
    let engines = EngineOptions { blocks: 1_024, ..engine(0) };
    let extra = "[tokenize]\nmemo_bytes = \"16MiB\"\n[health]\ninterval = \"1s\"\n".to_owned();
    let mut scene = Scene::start(4, engines, GatewayOptions { extra, ..GatewayOptions::default() }).await?;
    let crowd = Arc::new(Crowd {
        client: scene.gateway.client.clone(),
        stop: AtomicBool::new(false),
        running: RwLock::new(()),
    });
    let (started, length) = (Instant::now(), Duration::from_secs(seconds));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        clients.spawn(ask(crowd.clone(), number));
    }
    let mut churn = Churn::new(&scene)?;
    let (mut readings, mut read_at, mut changes) = (Vec::new(), started + READ_EVERY, 0);
    while started.elapsed() < length {
        sleep(CHURN_EVERY).await;
        churn.step(&mut scene, changes).await?;
        changes += 1;
        if Instant::now() >= read_at {
            read_at = Instant::now() + READ_EVERY;
            readings.push(read(&mut scene, &crowd, started).await?);
        }
    }
    crowd.stop.store(true, Ordering::Relaxed);
    let outcomes: Vec<Outcome> = clients.join_all().await.into_iter().flatten().collect();
    let left_behind = left_behind(&mut scene).await?;
    let counted: Vec<Reading> =
        readings.iter().copied().filter(|reading| reading.minutes * 60.0 >= seconds as f64 / 5.0).collect();
    Ok(Soak {
        row: Row::of("soak", format!("{changes} changes in {seconds} s"), &outcomes, started),
        rss_slope_kb_min: slope(&counted, |reading| reading.rss_kb),
        fd_slope: slope(&counted, |reading| reading.files),
        readings: readings.iter().map(Reading::line).collect(),
        left_behind,
    })
}

/// Asks until told to stop; clients that leave are not among the outcomes.
async fn ask(crowd: Arc<Crowd>, client: usize) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    for number in 0.. {
        if crowd.stop.load(Ordering::Relaxed) {
            break;
        }
        let _running = crowd.running.read().await;
        let body = chat((number * CLIENTS + client) * 31 % PROMPTS, TOKENS);
        if number % LEAVES == 0 {
            // Dropped half-way, its connection closes.
            let _ = timeout(STAYS, crowd.client.stream_chat(&body)).await;
        } else {
            outcomes.push(crowd.client.stream_chat(&body).await);
        }
    }
    outcomes
}

/// Comes and goes.
struct Churn {
    file: PathBuf,
    whole: String,
    guest: Option<Engine>,
}

impl Churn {
    fn new(scene: &Scene) -> Result<Self, Failure> {
        let file = scene.folder.path().join("forebay.toml");
        let whole = std::fs::read_to_string(&file).map_err(|e| Failure(format!("{}: {e}", file.display())))?;
        Ok(Self { file, whole, guest: None })
    }

    /// The next change of a round of five.
    async fn step(&mut self, scene: &mut Scene, number: usize) -> Result<(), Failure> {
        let victim = number / 5 % scene.engines.len();
        match number % 5 {
            0 => {
                let port = scene.engines[victim].address.port();
                scene.engines[victim].process.kill();
                let again = EngineOptions { blocks: 1_024, ..engine(port) };
                scene.engines[victim] = Engine::start(&format!("engine-{victim}"), &again, scene.folder.path()).await?;
            }
            1 => {
                let guest = EngineOptions { blocks: 1_024, ..engine(0) };
                let guest = Engine::start("guest", &guest, scene.folder.path()).await?;
                scene.gateway.admin.post_json("/workers", &json!({"url": guest.url()})).await?;
                self.guest = Some(guest);
            }
            2 => {
                self.set(&scene.engines[victim], &json!({"faults": [{"kind": "error", "status": 500, "next": 20}]}))
                    .await?
            }
            3 => {
                let without = format!("[[workers]]\nurl = \"{}\"\n", scene.engines[victim].url());
                self.write(&self.whole.replace(&without, ""), scene)?;
            }
            _ => {
                self.write(&self.whole, scene)?;
                self.set(&scene.engines[victim], &json!({"faults": []})).await?;
                if let Some(guest) = self.guest.take() {
                    let url = guest.url();
                    scene.gateway.admin.delete_json(&format!("/workers?url={url}")).await?;
                    self.until_idle(scene, &url).await;
                    guest.process.stop().await;
                }
            }
        }
        Ok(())
    }

    async fn set(&self, engine: &Engine, faults: &Value) -> Result<(), Failure> {
        engine.client.post_json("/_ctl", faults).await?;
        Ok(())
    }

    fn write(&self, text: &str, scene: &Scene) -> Result<(), Failure> {
        std::fs::write(&self.file, text).map_err(|e| Failure(format!("{}: {e}", self.file.display())))?;
        signal(scene.gateway.process.pid(), "HUP")
    }

    /// A removed worker finishes what it has.
    async fn until_idle(&self, scene: &Scene, url: &str) {
        let gone = async {
            while scene.gateway.admin.read_text("/workers").await.is_ok_and(|text| text.contains(url)) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        // One that does not go shows in what is left behind.
        let _ = timeout(QUIET_TIMEOUT, gone).await;
    }
}

/// Memory and open files while nothing runs.
async fn read(scene: &mut Scene, crowd: &Crowd, started: Instant) -> Result<Reading, Failure> {
    scene.gateway.process.expect_running()?;
    let _quiet =
        timeout(QUIET_TIMEOUT, crowd.running.write()).await.map_err(|_| Failure("requests do not end".to_owned()))?;
    let pid = scene.gateway.process.pid();
    let failed = |error: std::io::Error| Failure(format!("/proc/{pid}: {error}"));
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(failed)?;
    let rss_kb = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_err(failed)?.count();
    let reading = Reading {
        minutes: started.elapsed().as_secs_f64() / 60.0,
        rss_kb: rss_kb.ok_or_else(|| Failure("no VmRSS".to_owned()))?,
        files: files as f64,
    };
    say(format!("  {}", reading.line()));
    Ok(reading)
}

impl Reading {
    fn line(&self) -> String {
        format!("{:5.2} min: RSS {:.0} kB, {:.0} open files", self.minutes, self.rss_kb, self.files)
    }
}

/// Reservations, connections and buffers that nobody has given back when nothing runs any more.
async fn left_behind(scene: &mut Scene) -> Result<Vec<String>, Failure> {
    let deadline = Instant::now() + QUIET_TIMEOUT;
    loop {
        let page = scene.gateway.admin.read_text("/metrics").await?;
        let status = scene.gateway.admin.read_json("/status").await?;
        let mut left: Vec<String> = page
            .lines()
            .filter(|line| {
                ["requests", "prefill_tokens", "decode_tokens"]
                    .iter()
                    .any(|name| line.starts_with(&format!("forebay_worker_{name}{{")))
            })
            .filter(|line| !line.ends_with(" 0"))
            .map(str::to_owned)
            .collect();
        if status["buffered_bytes"] != 0 {
            left.push(format!("buffered_bytes {}", status["buffered_bytes"]));
        }
        if left.is_empty() || Instant::now() > deadline {
            return Ok(left);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// The median slope between any two readings, by the minute: one odd reading does not move it (Theil and Sen).
fn slope(readings: &[Reading], of: impl Fn(&Reading) -> f64) -> f64 {
    let mut slopes = Vec::new();
    for (at, later) in readings.iter().enumerate() {
        slopes.extend(
            readings[..at]
                .iter()
                .map(|earlier| (of(later) - of(earlier)) / (later.minutes - earlier.minutes).max(f64::MIN_POSITIVE)),
        );
    }
    slopes.sort_by(f64::total_cmp);
    slopes.get(slopes.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_odd_reading_does_not_make_a_slope() {
        let reading = |minutes: f64, rss_kb: f64| Reading { minutes, rss_kb, files: 40.0 };
        let mut flat: Vec<Reading> = (0..20).map(|at| reading(f64::from(at) / 6.0, 90_000.0)).collect();
        flat[19].rss_kb = 120_000.0;
        assert_eq!(slope(&flat, |reading| reading.rss_kb), 0.0);
        let rising: Vec<Reading> = (0..20).map(|at| reading(f64::from(at), 90_000.0 + f64::from(at) * 250.0)).collect();
        assert_eq!(slope(&rising, |reading| reading.rss_kb), 250.0);
        assert_eq!(slope(&rising, |reading| reading.files), 0.0);
        assert!(slope(&rising[..1], |reading| reading.files).is_nan());
    }
}
