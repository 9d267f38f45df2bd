//! From what was written to what it means: kinds, bounds, defaults, and the relations between keys.

use super::Loaded;
use super::key::{Fallback, Raw, Value};
use super::problem::{Origin, Problem, Problems};
use super::resolved::{AccessLog, Config, DnsPool, Health, Listen, Model, Routing, Tokenize, Upstream, Worker};
use super::table;
use super::unit::{show_duration, show_size};
use super::written::{Entry, Item, Written};
use forebay_routing::Policy;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Resolves everything, or says everything that is wrong; `problems` are those of reading.
pub(super) fn resolve(written: &Written, problems: Vec<Problem>) -> Result<Loaded, Problems> {
    let mut reader = Reader { written, problems, effective: BTreeMap::new(), notes: written.notes.clone() };
    let config = Config {
        listen: listen(&mut reader),
        admin: reader.address("admin.address"),
        routing: routing(&mut reader),
        upstream: upstream(&mut reader),
        health: health(&mut reader),
        tokenize: tokenize(&mut reader),
        models: reader.list("models", model),
        workers: reader.list("workers", worker),
        dns: reader.list("dns", dns_pool),
        access_log: reader.access_log("observe.access_log"),
    };
    relate(&config, &mut reader);
    let Reader { mut problems, effective, notes, .. } = reader;
    if problems.is_empty() {
        return Ok(Loaded { config, notes, effective });
    }
    problems.sort();
    Err(Problems(problems))
}

fn listen(reader: &mut Reader<'_>) -> Listen {
    Listen {
        address: reader.address("listen.address"),
        max_connections: reader.count("listen.max_connections"),
        max_header_bytes: reader.count("listen.max_header_bytes"),
        max_body_bytes: reader.count("listen.max_body_bytes"),
        max_buffered_bytes: reader.count("listen.max_buffered_bytes"),
        header_timeout: reader.time("listen.header_timeout"),
        body_timeout: reader.time("listen.body_timeout"),
        keepalive_timeout: reader.time("listen.keepalive_timeout"),
        write_timeout: reader.time("listen.write_timeout"),
        drain_timeout: reader.time("listen.drain_timeout"),
        threads: reader.count_if_set("listen.threads"),
    }
}

fn routing(reader: &mut Reader<'_>) -> Routing {
    Routing {
        policy: reader.policy("routing.policy"),
        own_placements: reader.switch("routing.own_placements"),
        retry_budget: reader.share("routing.retry_budget"),
        max_attempts: reader.count("routing.max_attempts"),
        seed: reader.count_if_set("routing.seed"),
        hash_key_file: reader.path_if_set("routing.hash_key_file"),
    }
}

fn upstream(reader: &mut Reader<'_>) -> Upstream {
    Upstream {
        connect_timeout: reader.time("upstream.connect_timeout"),
        first_byte_timeout: reader.time("upstream.first_byte_timeout"),
        idle_timeout: reader.time("upstream.idle_timeout"),
        total_timeout: reader.time("upstream.total_timeout"),
        pool_size: reader.count("upstream.pool_size"),
    }
}

fn health(reader: &mut Reader<'_>) -> Health {
    Health {
        interval: reader.time("health.interval"),
        timeout: reader.time("health.timeout"),
        failures: reader.count("health.failures"),
        eject_after: reader.count("health.eject_after"),
        eject_for: reader.time("health.eject_for"),
        metrics_interval: reader.time("health.metrics_interval"),
    }
}

fn tokenize(reader: &mut Reader<'_>) -> Tokenize {
    Tokenize {
        threads: reader.count_if_set("tokenize.threads"),
        max_queue: reader.count("tokenize.max_queue"),
        deadline: reader.time("tokenize.deadline"),
        memo_bytes: reader.count("tokenize.memo_bytes"),
        parity_sample: reader.share("tokenize.parity_sample"),
    }
}

fn model(fields: &mut Fields<'_, '_>) -> Option<Model> {
    Some(Model {
        name: fields.text("models[].name")?,
        tokenizer: fields.path("models[].tokenizer"),
        chat_template: fields.path("models[].chat_template"),
        policy: fields.policy("models[].policy"),
    })
}

fn worker(fields: &mut Fields<'_, '_>) -> Option<Worker> {
    Some(Worker {
        model: fields.text("workers[].model"),
        ranks: fields.count("workers[].ranks"),
        kv_events: fields.text("workers[].kv_events"),
        kv_replay: fields.text("workers[].kv_replay"),
        block_size: fields.count("workers[].block_size"),
        agent: fields.text("workers[].agent"),
        url: fields.text("workers[].url")?,
    })
}

fn dns_pool(fields: &mut Fields<'_, '_>) -> Option<DnsPool> {
    Some(DnsPool {
        port: fields.count("dns[].port")?,
        model: fields.text("dns[].model"),
        interval: fields.time("dns[].interval")?,
        name: fields.text("dns[].name")?,
    })
}

/// Relations between keys; each names both sides.
fn relate(config: &Config, reader: &mut Reader<'_>) {
    let Config { listen, upstream, admin, .. } = config;
    if listen.max_body_bytes > listen.max_buffered_bytes {
        let (body, all) = (show_size(listen.max_body_bytes as u64), show_size(listen.max_buffered_bytes as u64));
        reader.fault("listen.max_body_bytes", format!(
            "one body ({body}) may exceed what all bodies may hold (listen.max_buffered_bytes = {all}); lower one or raise the other"
        ));
    }
    let deadlines = [
        ("upstream.connect_timeout", upstream.connect_timeout),
        ("upstream.first_byte_timeout", upstream.first_byte_timeout),
        ("upstream.idle_timeout", upstream.idle_timeout),
    ];
    for (path, part) in deadlines {
        if part > upstream.total_timeout {
            let (part, whole) = (show_duration(part), show_duration(upstream.total_timeout));
            reader.fault(path, format!(
                "{part} is longer than the whole exchange may take (upstream.total_timeout = {whole}); lower one or raise the other"
            ));
        }
    }
    if !admin.ip().is_loopback() {
        reader.fault("admin.address", format!(
            "{admin} can be reached from other machines, and this listener has no authentication; write 127.0.0.1 or [::1]"
        ));
    }
    if overlap(listen.address, *admin) {
        reader.fault(
            "admin.address",
            format!("{admin} is taken by listen.address = {}; choose another port", listen.address),
        );
    }
    for (position, worker) in config.workers.iter().enumerate() {
        if worker.kv_replay.is_some() && worker.kv_events.is_none() {
            let what = "is set without kv_events; write both or neither";
            reader.item_fault("workers", position, "kv_replay", what.to_owned());
        }
    }
    for model in config.models.iter().filter(|model| model.tokenizer.as_ref().is_some_and(|dir| !dir.is_dir())) {
        let folder = model.tokenizer.as_deref().unwrap_or_else(|| std::path::Path::new(""));
        let note =
            format!("models: {}: {} is not a folder; the model will be routed by text", model.name, folder.display());
        reader.notes.push(note);
    }
    reader.unique("models", "name");
    reader.unique("workers", "url");
    reader.unique("dns", "name");
}

/// Whether two listeners cannot both be bound. Port 0 is whatever is free.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || any(a.ip()) || any(b.ip()))
}

/// Reads keys by the table and keeps every fault. After a fault it goes on with the default, so that one run finds
/// everything; the result is dropped then.
struct Reader<'a> {
    written: &'a Written,
    problems: Vec<Problem>,
    effective: BTreeMap<&'static str, Option<Value>>,
    notes: Vec<String>,
}

impl<'a> Reader<'a> {
    fn value(&mut self, path: &'static str) -> Option<Value> {
        let value = value_of(path, path, self.written.scalars.get(path), &Origin::Default, &mut self.problems);
        self.effective.insert(path, value.clone());
        value
    }

    fn list<T>(&mut self, name: &'static str, read: impl Fn(&mut Fields<'_, 'a>) -> Option<T>) -> Vec<T> {
        let items = self.written.lists.get(name).map_or(&[][..], Vec::as_slice);
        let read_one = |(position, item): (usize, &'a Item)| {
            read(&mut Fields { list: name, position, item, problems: &mut self.problems })
        };
        items.iter().enumerate().filter_map(read_one).collect()
    }

    fn address(&mut self, path: &'static str) -> SocketAddr {
        match self.value(path) {
            Some(Value::Address(address)) => address,
            _ => SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }

    fn count<T: TryFrom<u64> + Default>(&mut self, path: &'static str) -> T {
        self.count_if_set(path).unwrap_or_default()
    }

    fn count_if_set<T: TryFrom<u64>>(&mut self, path: &'static str) -> Option<T> {
        self.value(path).and_then(narrow)
    }

    fn time(&mut self, path: &'static str) -> Duration {
        match self.value(path) {
            Some(Value::Time(time)) => time,
            _ => Duration::ZERO,
        }
    }

    fn share(&mut self, path: &'static str) -> f64 {
        match self.value(path) {
            Some(Value::Share(share)) => share,
            _ => 0.0,
        }
    }

    fn switch(&mut self, path: &'static str) -> bool {
        matches!(self.value(path), Some(Value::Switch(true)))
    }

    fn policy(&mut self, path: &'static str) -> Policy {
        match self.value(path) {
            Some(Value::Policy(policy)) => policy,
            _ => Policy::default(),
        }
    }

    fn path_if_set(&mut self, path: &'static str) -> Option<PathBuf> {
        match self.value(path) {
            Some(Value::Path(path)) => Some(path),
            _ => None,
        }
    }

    fn access_log(&mut self, path: &'static str) -> AccessLog {
        match self.value(path) {
            Some(Value::AccessLog(log)) => log,
            _ => AccessLog::Off,
        }
    }

    /// A relation that `path` violates, unless the key itself is already at fault.
    fn fault(&mut self, path: &'static str, what: String) {
        if self.problems.iter().any(|problem| problem.key == path) {
            return;
        }
        let origin = self.written.scalars.get(path).map_or(Origin::Default, |entry| entry.origin.clone());
        self.problems.push(Problem { origin, key: path.to_owned(), what });
    }

    fn item_fault(&mut self, list: &'static str, position: usize, field: &str, what: String) {
        let items = self.written.lists.get(list).map_or(&[][..], Vec::as_slice);
        let Some(item) = items.get(position) else { return };
        let entry = item.fields.get(format!("{list}[].{field}").as_str());
        let origin = entry.map_or(&item.origin, |entry| &entry.origin).clone();
        self.problems.push(Problem { origin, key: format!("{list}[{position}].{field}"), what });
    }

    /// Two entries of `list` must not agree in `field`, by its normal spelling.
    fn unique(&mut self, list: &'static str, field: &'static str) {
        let Some(key) = table::find(&format!("{list}[].{field}")) else { return };
        let mut first: BTreeMap<String, Origin> = BTreeMap::new();
        for (position, item) in self.written.lists.get(list).into_iter().flatten().enumerate() {
            let Some(entry) = item.fields.get(key.path) else { continue };
            let Ok(Value::Text(text)) = key.kind.read(&entry.raw) else { continue };
            match first.get(&text) {
                Some(earlier) => {
                    let what = format!("{text} is listed twice, first at {}; remove one", earlier.brief());
                    self.item_fault(list, position, field, what);
                }
                None => _ = first.insert(text, entry.origin.clone()),
            }
        }
    }
}

/// Reads the keys of one table of a list; `None` where a key without a usable value leaves nothing to build.
struct Fields<'p, 'a> {
    list: &'static str,
    position: usize,
    item: &'a Item,
    problems: &'p mut Vec<Problem>,
}

impl Fields<'_, '_> {
    fn value(&mut self, path: &'static str) -> Option<Value> {
        let leaf = path.rsplit('.').next().unwrap_or(path);
        let shown = format!("{}[{}].{leaf}", self.list, self.position);
        value_of(path, &shown, self.item.fields.get(path), &self.item.origin, self.problems)
    }

    fn text(&mut self, path: &'static str) -> Option<String> {
        match self.value(path) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn path(&mut self, path: &'static str) -> Option<PathBuf> {
        match self.value(path) {
            Some(Value::Path(path)) => Some(path),
            _ => None,
        }
    }

    fn policy(&mut self, path: &'static str) -> Option<Policy> {
        match self.value(path) {
            Some(Value::Policy(policy)) => Some(policy),
            _ => None,
        }
    }

    fn count<T: TryFrom<u64>>(&mut self, path: &'static str) -> Option<T> {
        self.value(path).and_then(narrow)
    }

    fn time(&mut self, path: &'static str) -> Option<Duration> {
        match self.value(path) {
            Some(Value::Time(time)) => Some(time),
            _ => None,
        }
    }
}

/// The value written in `entry`, else the fallback. `shown` names the key and `owner` the place of what should hold it.
fn value_of(
    path: &'static str,
    shown: &str,
    entry: Option<&Entry>,
    owner: &Origin,
    problems: &mut Vec<Problem>,
) -> Option<Value> {
    let key = table::find(path).expect("tests::every_key_is_read proves that each path read here has its row");
    let (raw, origin) = match (entry, key.fallback) {
        (Some(entry), _) => (entry.raw.clone(), &entry.origin),
        (None, Fallback::Is(text)) => (Raw::Loose(text.to_owned()), &Origin::Default),
        (None, Fallback::Absent(_)) => return None,
        (None, Fallback::Required) => {
            let what = format!("is missing; write {}", key.kind.describe());
            problems.push(Problem { origin: owner.clone(), key: shown.to_owned(), what });
            return None;
        }
    };
    match key.kind.read(&raw) {
        Ok(value) => Some(value),
        Err(what) => {
            problems.push(Problem { origin: origin.clone(), key: shown.to_owned(), what });
            None
        }
    }
}

/// A count in the type that holds it; the table's bounds are those of the type or tighter.
fn narrow<T: TryFrom<u64>>(value: Value) -> Option<T> {
    match value {
        Value::Number(number) => T::try_from(number).ok(),
        _ => None,
    }
}
