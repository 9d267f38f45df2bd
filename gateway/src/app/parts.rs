//! What the gateway knows with: metrics, tokenizers, fleet, event feeds, discovery. `serve` puts clients in front of it,
//! `doctor` looks at it.

use super::StartError;
use super::key;
use crate::clock::Clock;
use crate::config::Config;
use crate::discover::{self, Discovery, Introduction};
use crate::doors::Doors;
use crate::fleet::{self, Fleet};
use crate::observe::Observer;
use crate::observe::access::AccessWriter;
use crate::signal::cache_events::Feeds;
use crate::signal::kernel::{self, Agents};
use crate::tasks::TaskGroup;
use crate::tokenize::Tokenizers;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Engines that may wait to be compared with; more are compared by samples of live requests.
const MAX_INTRODUCTIONS: usize = 1_024;

/// Running, without workers yet.
pub struct Parts {
    /// Metrics and access log.
    pub observer: Observer,
    /// Token sources.
    pub tokenizers: Arc<Tokenizers>,
    /// Workers, index, reservations.
    pub fleet: Fleet,
    /// Listeners to KV events.
    pub feeds: Feeds,
    /// Where workers come from.
    pub discovery: Discovery,
    /// Engines that have said who they are.
    pub introduced: mpsc::Receiver<Introduction>,
}

impl Parts {
    /// Starts them in `tasks`. Must be called inside a tokio runtime.
    pub async fn start(
        config: &Arc<Config>,
        access: Option<AccessWriter>,
        doors: Arc<Doors>,
        clock: Clock,
        tasks: &TaskGroup,
    ) -> Result<Self, StartError> {
        let observer = Observer::new(access)?;
        let tokenizers = load_tokenizers(config, &observer).await?;
        let named = config.models.iter().map(|model| &model.name);
        let digests = named.filter_map(|name| Some((name.clone(), tokenizers.digest(name)?.to_vec())));
        let options = fleet::Options {
            health: config.health.clone(),
            key: key::read(config.routing.hash_key_file.as_deref())?,
            tokenizer_digests: digests.collect(),
            clock,
        };
        let fleet = Fleet::start(options, observer.registry(), tasks)?;
        let feeds = Feeds::start(fleet.clone(), clock, observer.registry(), tasks)
            .map_err(|error| StartError::Internal(error.to_string()))?;
        if let Some(path) = &config.routing.snapshot_file {
            feeds.remember(path.clone()).await;
        }
        let options = kernel::Options { fleet: fleet.clone(), clock, token_file: config.agents.token_file.clone() };
        let agents = Agents::start(options, observer.registry(), tasks)?;
        let (introductions, introduced) = mpsc::channel(MAX_INTRODUCTIONS);
        let options = discover::Options {
            fleet: fleet.clone(),
            feeds: feeds.clone(),
            health: config.health.clone(),
            clock,
            introductions: Some(introductions),
            doors,
            agents: Some(agents),
        };
        let discovery = Discovery::start(options, observer.registry(), tasks)?;
        Ok(Self { observer, tokenizers, fleet, feeds, discovery, introduced })
    }
}

/// A second of computing for each tokenizer, off the runtime's threads.
async fn load_tokenizers(config: &Arc<Config>, observer: &Observer) -> Result<Arc<Tokenizers>, StartError> {
    let (config, registry) = (config.clone(), observer.registry().clone());
    let load = move || Tokenizers::new(&config.tokenize, &config.models, &registry);
    match tokio::task::spawn_blocking(load).await {
        Ok(loaded) => Ok(Arc::new(loaded?)),
        Err(error) => Err(StartError::Internal(format!("loading the tokenizers: {error}"))),
    }
}
