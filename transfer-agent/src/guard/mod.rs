//! Role `guard`: refuses connections at the ingress interface, or says which it would refuse.
//!
//! ```text
//! start ─► observe ─ window_s ─► arm? ── no: said why, asked again after the next window ─┐
//!             ▲                   └─ yes ─► enforce                                        │
//!             └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Lists are read again when their files change; a list that cannot be read changes nothing. Rates over all sources are
//! counted and alarmed on, never enforced.

pub mod arming;
pub mod lists;

use crate::config::{self, Mode};
use crate::load::node::keep_verifier_log;
use crate::load::watches::bytes;
use crate::page::{self, Page};
use arming::Window;
use forebay_common::kernel::address;
use forebay_common::kernel::guard::{Settings, Target, Verdict};
use forebay_ebpf::owner::Owner;
use forebay_ebpf::{Error, Guard, guard};
use lists::Lists;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::time::{Duration, interval};

/// Between two looks at counters and files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The running role.
struct Role {
    config: config::Guard,
    guard: Guard,
    lists: Lists,
    window: Window,
    armed: bool,
    seconds: u32,
    syns: Option<u64>,
    alarmed: bool,
    failed_reloads: u64,
}

/// Runs until `stop` is done.
pub async fn run(config: config::Guard, stop: impl Future<Output = ()>) -> Result<(), String> {
    let told = |error: Error| {
        keep_verifier_log(&config.state_dir, &error);
        error.to_string()
    };
    let _owner = Owner::take(&config.state_dir.join("guard.lock")).map_err(told)?;
    let metrics = page::listen(config.metrics).await.map_err(|error| format!("guard.metrics: {error}"))?;
    let role = Role::start(&config).map_err(told)?;
    let (pages, page) = watch::channel::<Arc<str>>(role.page());
    tokio::select! {
        () = stop => {}
        () = look_on(role, pages) => {}
        () = page::serve(metrics, page) => {}
    }
    if config.pin_dir.is_some() {
        tracing::info!("the guard stays in place; `forebay-agent guard --remove` ends it");
    }
    Ok(())
}

/// Looks at counters and files for ever.
async fn look_on(mut role: Role, pages: watch::Sender<Arc<str>>) {
    let mut looks = interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        role.look();
        let _ = pages.send(role.page());
    }
}

impl Role {
    fn start(config: &config::Guard) -> Result<Self, Error> {
        let mut guard = Guard::open(config.pin_dir.as_deref())?;
        let target =
            |at: &std::net::SocketAddr| Target { address: address::listener(bytes(at.ip())), port: at.port(), pad: 0 };
        guard.set_targets(&config.targets.iter().map(target).collect::<Vec<_>>())?;
        guard.set(settings(config, false))?;
        let mut role = Self {
            lists: Lists::new(config.allow_file.clone(), config.deny_file.clone()),
            window: Window::begin(guard.sources()),
            config: config.clone(),
            guard,
            armed: false,
            seconds: 0,
            syns: None,
            alarmed: false,
            failed_reloads: 0,
        };
        role.reload();
        match role.guard.attach(&config.interface)? {
            Some(mode) => tracing::info!(interface = config.interface, mode = mode.name(), "attached, observing"),
            None => tracing::info!(interface = config.interface, "took over from an earlier guard, observing"),
        }
        Ok(role)
    }

    fn look(&mut self) {
        self.seconds += 1;
        self.reload();
        self.watch_rate();
        if self.config.mode == Mode::Enforce && !self.armed && self.seconds.is_multiple_of(self.config.window_s) {
            self.arm();
        }
    }

    /// Takes changed lists over. A list that cannot be read leaves the old one in force.
    fn reload(&mut self) {
        match self.lists.changed() {
            Ok(None) => {}
            Ok(Some((allow, deny))) => match self.guard.set_lists(&allow, &deny) {
                Ok(()) => tracing::info!(allow = allow.len(), deny = deny.len(), "lists are in force"),
                Err(error) => self.failed(&error.to_string()),
            },
            Err(error) => self.failed(&error),
        }
    }

    fn failed(&mut self, why: &str) {
        self.failed_reloads += 1;
        tracing::error!("lists are as they were: {why}");
    }

    fn arm(&mut self) {
        let sources = self.guard.sources();
        let judged = std::mem::replace(&mut self.window, Window::begin(sources.clone())).judge(&sources);
        match (judged, self.config.arm_anyway) {
            (Err(why), false) => return tracing::warn!("not armed: {why}"),
            (Err(why), true) => tracing::warn!("armed because arm_anyway is set, although {why}"),
            (Ok(()), _) => tracing::info!("armed"),
        }
        match self.guard.set(settings(&self.config, true)) {
            Ok(()) => self.armed = true,
            Err(error) => tracing::error!("not armed: {error}"),
        }
    }

    fn watch_rate(&mut self) {
        let all = [
            Verdict::Allowed,
            Verdict::Admitted,
            Verdict::Denied,
            Verdict::Limited,
            Verdict::WouldDeny,
            Verdict::WouldLimit,
        ];
        let syns: u64 = all.iter().filter_map(|verdict| self.guard.verdict(*verdict).ok()).sum();
        let rate = self.syns.replace(syns).map_or(0, |before| syns.saturating_sub(before));
        let limit = self.config.alarm_syn_per_s;
        let alarm = limit > 0 && rate > limit;
        if alarm && !self.alarmed {
            tracing::warn!(
                rate,
                limit,
                "more new connections a second than alarm_syn_per_s; nothing is refused for it"
            );
        }
        self.alarmed = alarm;
    }

    fn page(&self) -> Arc<str> {
        let mut page = Page::default();
        let samples: Vec<_> = Verdict::ALL
            .iter()
            .filter_map(|v| Some((format!("verdict=\"{}\"", v.name()), self.guard.verdict(*v).ok()? as f64)))
            .collect();
        page.family(
            "forebay_agent_guard_packets_total",
            "counter",
            "Received packets by what became of them.",
            &samples,
        );
        let hits: Vec<_> = self
            .lists
            .rules()
            .filter_map(|(rule, network)| {
                Some((format!("rule=\"{network}\""), self.guard.rule_hits(rule).ok()? as f64))
            })
            .collect();
        page.family(
            "forebay_agent_guard_rule_hits_total",
            "counter",
            "New connections that met a rule of the deny list.",
            &hits,
        );
        page.single(
            "forebay_agent_guard_armed",
            "gauge",
            "Whether refusals are enforced.",
            f64::from(u8::from(self.armed)),
        );
        page.single(
            "forebay_agent_guard_alarm",
            "gauge",
            "Whether the rate of new connections is above its alarm.",
            f64::from(u8::from(self.alarmed)),
        );
        page.single(
            "forebay_agent_guard_failed_reloads_total",
            "counter",
            "Lists that could not be taken over.",
            self.failed_reloads as f64,
        );
        page.finish()
    }
}

fn settings(config: &config::Guard, enforce: bool) -> Settings {
    Settings { enforce: u32::from(enforce), syn_per_s: config.syn_per_s, syn_burst: config.syn_burst, pad: 0 }
}

/// Detaches a pinned guard and removes its pins.
pub fn remove(config: &config::Guard) -> Result<(), String> {
    let Some(directory) = &config.pin_dir else {
        return Err("guard.pin_dir is not set: a guard without pins ends with its process".to_owned());
    };
    guard::Guard::remove(directory).map_err(|error| error.to_string())
}
