//! From what was written to what it means: kinds, bounds, defaults, and the relations between keys.

use super::Loaded;
use super::problem::{Problem, Problems};
use super::reader::{Fields, Reader};
use super::resolved::{Admin, Config, DnsPool, Health, Keys, Listen, Model, Routing, Tokenize, Upstream, Worker};
use super::unit::{show_duration, show_size};
use super::written::Written;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Resolves everything, or says everything that is wrong; `problems` are those of reading.
pub(super) fn resolve(written: &Written, problems: Vec<Problem>) -> Result<Loaded, Problems> {
    let mut reader = Reader { written, problems, effective: BTreeMap::new(), notes: written.notes.clone() };
    let config = Config {
        listen: listen(&mut reader),
        admin: admin(&mut reader),
        keys: Keys { file: reader.path_if_set("keys.file") },
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

fn admin(reader: &mut Reader<'_>) -> Admin {
    Admin {
        address: reader.address("admin.address"),
        socket: reader.path_if_set("admin.socket"),
        allow_workers: reader.hosts("admin.allow_workers"),
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
    let Config { listen, upstream, .. } = config;
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
    relate_admin(config, reader);
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

fn relate_admin(config: &Config, reader: &mut Reader<'_>) {
    let (admin, listen) = (config.admin.address, config.listen.address);
    if !admin.ip().is_loopback() && config.keys.file.is_none() {
        reader.fault("admin.address", format!(
            "{admin} can be reached from other machines, and no keys are configured; write 127.0.0.1 or [::1], or set keys.file"
        ));
    }
    if overlap(listen, admin) {
        reader.fault("admin.address", format!("{admin} is taken by listen.address = {listen}; choose another port"));
    }
}

/// Whether two listeners cannot both be bound. Port 0 is whatever is free.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || any(a.ip()) || any(b.ip()))
}
