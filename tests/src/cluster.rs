//! Mock engines and one gateway as real processes on loopback, in a folder of their own.

use crate::client::Client;
use crate::process::{Failure, Process, binary, repository};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a process may take until it answers: a debug build reads its tokenizer in a few seconds.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Between two looks at something that must become true.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Model name that every mock engine serves.
pub const MODEL: &str = "demo";

/// One mock engine's settings.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Its port, 0 = any free one.
    pub port: u16,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// KV capacity.
    pub blocks: u32,
    /// Divides every model time.
    pub speedup: f64,
    /// Whether it loads the real tokenizer; without it four bytes are one token, and it starts at once.
    pub tokenizer: bool,
    /// Further flags, as typed.
    pub extra: Vec<String>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { port: 0, block_size: 16, blocks: 16_384, speedup: 50.0, tokenizer: true, extra: Vec::new() }
    }
}

/// The gateway's settings that suites vary.
#[derive(Clone, Debug)]
pub struct GatewayOptions {
    /// Routing policy, as configured.
    pub policy: String,
    /// `routing.own_placements`.
    pub own_placements: bool,
    /// Whether it is given the model's tokenizer; without it the engines are asked to tokenize.
    pub tokenizer: bool,
    /// Clients' port, 0 = any free one.
    pub port: u16,
    /// `listen.max_body_bytes`.
    pub max_body: Option<String>,
    /// Node agent beside every worker, `host:port`.
    pub agent: Option<String>,
    /// Further TOML, appended to the file: whole sections that the file does not have.
    pub extra: String,
}

impl Default for GatewayOptions {
    fn default() -> Self {
        Self {
            policy: "kv".to_owned(),
            own_placements: true,
            tokenizer: true,
            port: 0,
            max_body: None,
            agent: None,
            extra: String::new(),
        }
    }
}

/// A running mock engine.
pub struct Engine {
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    /// A client of it.
    pub client: Client,
}

/// A running gateway.
pub struct Gateway {
    /// Its process.
    pub process: Process,
    /// Clients' listener.
    pub address: SocketAddr,
    /// Operators' listener.
    pub admin_address: SocketAddr,
    /// A client of the clients' listener.
    pub client: Client,
    /// A client of the operators' listener.
    pub admin: Client,
    /// One JSON line per request.
    pub access_log: PathBuf,
}

/// Folder with `tokenizer.json` of the tokenizer that mock engines and gateway share.
pub fn tokenizer_folder() -> Result<PathBuf, Failure> {
    let folder = repository().join(".cache/tokenizers/qwen3");
    if folder.join("tokenizer.json").is_file() {
        Ok(folder)
    } else {
        Err(Failure(format!("{} is missing; run `make setup`", folder.display())))
    }
}

/// A port of 127.0.0.1 that was free a moment ago.
pub fn free_port() -> Result<u16, Failure> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
    bound.map(|address| address.port()).map_err(|e| Failure(format!("no free port: {e}")))
}

/// `port`, or any free one for 0; fails when somebody listens there.
fn claim_port(port: u16) -> Result<u16, Failure> {
    if port == 0 {
        return free_port();
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .map(|_| port)
        .map_err(|e| Failure(format!("port {port}: {e}; stop what listens there or choose another with --port")))
}

/// Waits until `check` gives a value; fails with what it last said, or when the process ends.
pub async fn wait_until<T>(
    what: &str,
    process: &mut Process,
    mut check: impl AsyncFnMut() -> Result<T, String>,
) -> Result<T, Failure> {
    let deadline = tokio::time::Instant::now() + START_TIMEOUT;
    loop {
        process.expect_running()?;
        match check().await {
            Ok(value) => return Ok(value),
            Err(last) if tokio::time::Instant::now() > deadline => {
                return Err(Failure(format!("{what}: not within {START_TIMEOUT:?}: {last}\n{}", process.log_tail())));
            }
            Err(_) => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
}

impl Engine {
    /// Starts one and waits until it is healthy.
    pub async fn start(name: &str, options: &EngineOptions, folder: &Path) -> Result<Self, Failure> {
        let mut args: Vec<String> = [
            ("--port", options.port.to_string()),
            ("--threads", "1".to_owned()),
            ("--model", MODEL.to_owned()),
            ("--block-size", options.block_size.to_string()),
            ("--num-gpu-blocks", options.blocks.to_string()),
            ("--speedup", options.speedup.to_string()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        if options.tokenizer {
            args.extend(["--tokenizer".to_owned(), tokenizer_folder()?.display().to_string()]);
        }
        args.extend(options.extra.iter().cloned());
        let log = folder.join(format!("{name}.log"));
        let mut process = Process::spawn(name, &binary("forebay-engine")?, args, log)?;
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        let address = loop {
            process.expect_running()?;
            match announced(&process.log_text()) {
                Some(address) => break address,
                None if tokio::time::Instant::now() > deadline => {
                    return Err(Failure(format!("{name} does not listen after {START_TIMEOUT:?}")));
                }
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
        };
        let client = Client::new(format!("http://{address}"));
        Ok(Self { process, address, client })
    }

    /// Base URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Gateway {
    /// Starts one in front of `workers` and waits until all of them are ready.
    pub async fn start(options: &GatewayOptions, workers: &[String], folder: &Path) -> Result<Self, Failure> {
        let (port, admin_port) = (claim_port(options.port)?, free_port()?);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let admin_address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin_port));
        let access_log = folder.join("access.jsonl");
        let file = folder.join("forebay.toml");
        let text = configuration(options, workers, address, admin_address, &access_log)?;
        std::fs::write(&file, text).map_err(|e| Failure(format!("{}: {e}", file.display())))?;
        let args = ["serve".to_owned(), "--config".to_owned(), file.display().to_string()];
        let mut process = Process::spawn("gateway", &binary("forebay")?, args, folder.join("gateway.log"))?;
        let client = Client::new(format!("http://{address}"));
        let admin = Client::new(format!("http://{admin_address}"));
        let wanted = workers.len();
        wait_until("gateway", &mut process, async || {
            let listed = admin.read_json("/workers").await?;
            match ready_workers(&listed) {
                // The operators' listener is there before the clients' one.
                ready if ready == wanted => TcpStream::connect(address).await.map(drop).map_err(|e| e.to_string()),
                ready => Err(format!("{ready} of {wanted} workers are ready: {listed}")),
            }
        })
        .await?;
        Ok(Self { process, address, admin_address, client, admin, access_log })
    }

    /// Every record of the access log so far.
    pub fn records(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.access_log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// Address in the line that a mock engine prints when it listens.
fn announced(log: &str) -> Option<SocketAddr> {
    log.lines().find_map(|line| line.strip_prefix("engine http://")?.split(' ').next()?.parse().ok())
}

/// Workers of a `/workers` answer that take traffic.
fn ready_workers(listed: &Value) -> usize {
    let workers = listed["workers"].as_array().map_or(&[][..], Vec::as_slice);
    workers.iter().filter(|worker| worker["state"] == "ready").count()
}

fn configuration(
    options: &GatewayOptions,
    workers: &[String],
    address: SocketAddr,
    admin: SocketAddr,
    access_log: &Path,
) -> Result<String, Failure> {
    let mut text = format!(
        "[listen]\naddress = \"{address}\"\n[admin]\naddress = \"{admin}\"\n\
         [routing]\npolicy = \"{}\"\nown_placements = {}\nseed = 1\n\
         [observe]\naccess_log = \"{}\"\n",
        options.policy,
        options.own_placements,
        access_log.display()
    );
    if let Some(most) = &options.max_body {
        text = text.replacen("[admin]", &format!("max_body_bytes = \"{most}\"\n[admin]"), 1);
    }
    if options.tokenizer {
        let folder = tokenizer_folder()?;
        let _ = writeln!(text, "[[models]]\nname = \"{MODEL}\"\ntokenizer = \"{}\"", folder.display());
    }
    for url in workers {
        let _ = writeln!(text, "[[workers]]\nurl = \"{url}\"");
        if let Some(agent) = &options.agent {
            let _ = writeln!(text, "agent = \"{agent}\"");
        }
    }
    text.push_str(&options.extra);
    Ok(text)
}
