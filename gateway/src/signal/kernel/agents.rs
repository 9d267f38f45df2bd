//! The agents that workers name, each with its stream.

use super::stream::Stream;
use crate::clock::Clock;
use crate::fleet::{Fleet, Handle};
use crate::tasks::TaskGroup;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, IntGaugeVec, Opts};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::time::{Duration, sleep};
use tokio_util::sync::CancellationToken;

/// Agents at once: as many nodes.
const MAX_AGENTS: usize = 4_096;
/// Pause after the first stream that ended; doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Longest pause.
const LAST_PAUSE: Duration = Duration::from_secs(30);
/// Longest token file that is read.
const MAX_TOKEN_FILE_BYTES: u64 = 4_096;

/// Handle on all agents; cheap to clone.
#[derive(Clone)]
pub struct Agents {
    shared: Arc<Shared>,
}

/// What agents need to start.
pub struct Options {
    /// Where reports go.
    pub fleet: Fleet,
    /// Time.
    pub clock: Clock,
    /// File with the secret that agents ask for; read at every dial, so that it may change.
    pub token_file: Option<PathBuf>,
}

struct Shared {
    options: Options,
    connected: IntGaugeVec,
    frames: IntCounterVec,
    tasks: TaskGroup,
    running: Mutex<HashMap<String, Running>>,
}

/// Workers of one agent, by slot.
type Members = Arc<Mutex<BTreeMap<u32, Arc<Handle>>>>;

struct Running {
    members: Members,
    stop: CancellationToken,
}

impl Agents {
    /// Starts with none; streams run in `tasks`.
    pub fn start(
        options: Options,
        registry: &prometheus::Registry,
        tasks: &TaskGroup,
    ) -> Result<Self, prometheus::Error> {
        let connected = IntGaugeVec::new(
            Opts::new("forebay_agent_connected", "Whether the stream from a node agent stands, by what it can see"),
            &["agent", "level"],
        )?;
        let frames = IntCounterVec::new(
            Opts::new(
                "forebay_agent_frames_total",
                "Frames from node agents: used, or of a kind that is not known here",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(connected.clone()))?;
        registry.register(Box::new(frames.clone()))?;
        let (tasks, running) = (tasks.child(), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { options, connected, frames, tasks, running }) })
    }

    /// Listens to `agent` for `worker`.
    pub(crate) fn add(&self, agent: &str, worker: Arc<Handle>) {
        let mut running = self.shared.running.lock();
        if let Some(known) = running.get(agent) {
            known.members.lock().insert(worker.slot, worker);
            return;
        }
        if running.len() >= MAX_AGENTS {
            tracing::warn!(agent, "not listened to: {MAX_AGENTS} node agents are");
            return;
        }
        let members: Members = Arc::new(Mutex::new(BTreeMap::from([(worker.slot, worker)])));
        let stop = CancellationToken::new();
        let task = listen(self.shared.clone(), agent.to_owned(), members.clone());
        let stopped = stop.clone();
        self.shared.tasks.spawn("node agent", async move {
            tokio::select! {
                () = stopped.cancelled() => {}
                () = task => {}
            }
        });
        running.insert(agent.to_owned(), Running { members, stop });
    }

    /// Forgets `worker`; an agent without workers is not listened to.
    pub(crate) fn remove(&self, agent: &str, worker: &Handle) {
        let mut running = self.shared.running.lock();
        let Some(known) = running.get(agent) else { return };
        let empty = {
            let mut members = known.members.lock();
            members.remove(&worker.slot);
            members.is_empty()
        };
        if empty {
            known.stop.cancel();
            running.remove(agent);
            self.shared.forget(agent);
        }
    }
}

impl Shared {
    fn forget(&self, agent: &str) {
        for level in LEVELS {
            // An error says that there was no such series, which is what is wanted.
            let _ = self.connected.remove_label_values(&[agent, level]);
        }
    }

    fn token(&self) -> Result<Option<String>, String> {
        self.options.token_file.as_deref().map(read_token).transpose()
    }
}

const LEVELS: [&str; 4] = ["0", "1", "2", "3"];

fn read_token(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let length = std::fs::metadata(path).map_err(|error| format!("agents.token_file: {shown}: {error}"))?.len();
    if length > MAX_TOKEN_FILE_BYTES {
        return Err(format!("agents.token_file: {shown} has more than {MAX_TOKEN_FILE_BYTES} bytes"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("agents.token_file: {shown}: {error}"))?;
    Ok(text.trim().to_owned())
}

async fn listen(shared: Arc<Shared>, agent: String, members: Members) {
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    loop {
        let opened = match shared.token() {
            Ok(token) => Stream::open(&agent, token.as_deref()).await.map_err(|error| error.to_string()),
            Err(why) => Err(why),
        };
        let why = match opened {
            Ok(stream) => {
                pause = FIRST_PAUSE;
                said.clear();
                follow(&shared, &agent, &members, stream).await
            }
            Err(why) => why,
        };
        // Once for each reason: an agent that is not there is asked for ever.
        if why != said {
            tracing::warn!(agent, why, "no word from the node agent: deciding without it");
            said = why;
        }
        shared.forget(&agent);
        sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Takes frames until the stream ends; why it did.
async fn follow(shared: &Shared, agent: &str, members: &Members, mut stream: Stream) -> String {
    let level = LEVELS[usize::from(stream.welcome.level).min(LEVELS.len() - 1)];
    tracing::info!(agent, level, "node agent is heard");
    shared.connected.with_label_values(&[agent, level]).set(1);
    loop {
        let (heard, unknown) = match stream.next(|| shared.options.clock.now_ms()).await {
            Ok(next) => next,
            Err(error) => return error.to_string(),
        };
        shared.frames.with_label_values(&["load"]).inc();
        shared.frames.with_label_values(&["unknown"]).inc_by(unknown);
        let workers: Vec<Arc<Handle>> = members.lock().values().cloned().collect();
        for worker in workers {
            let Some(endpoint) = shared.options.fleet.endpoint(worker.id()) else { continue };
            if let Some(report) = heard.about(endpoint.address) {
                shared.options.fleet.report_kernel(worker.id(), report);
            }
        }
    }
}
