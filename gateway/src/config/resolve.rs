//! From what was written to what it means: kinds, bounds, defaults, and the relations between keys.

use super::Loaded;
use super::problem::{Problem, Problems};
use super::reader::{Fields, Reader};
use super::resolved::{
    Admin, Agents, Certificate, Config, Control, DnsPool, Health, Keys, Listen, Media, Model, Policy, Routing,
    Tokenize, Upstream, Worker,
};
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
        requests: policy(&mut reader),
        keys: Keys { file: reader.path_if_set("keys.file") },
        agents: Agents { token_file: reader.path_if_set("agents.token_file") },
        routing: routing(&mut reader),
        upstream: upstream(&mut reader),
        health: health(&mut reader),
        tokenize: tokenize(&mut reader),
        models: reader.list("models", model),
        certificates: reader.list("certificates", certificate),
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
        trusted_proxies: reader.hosts("listen.trusted_proxies"),
        max_connections: reader.count("listen.max_connections"),
        max_header_bytes: reader.count("listen.max_header_bytes"),
        max_body_bytes: reader.count("listen.max_body_bytes"),
        max_buffered_bytes: reader.count("listen.max_buffered_bytes"),
        header_timeout: reader.time("listen.header_timeout"),
        body_timeout: reader.time("listen.body_timeout"),
        keepalive_timeout: reader.time("listen.keepalive_timeout"),
        write_timeout: reader.time("listen.write_timeout"),
        drain_delay: reader.time("listen.drain_delay"),
        drain_timeout: reader.time("listen.drain_timeout"),
        handshake_timeout: reader.time("listen.handshake_timeout"),
        http2: reader.switch("listen.http2"),
        max_streams: reader.count("listen.max_streams"),
        client_ca_file: reader.path_if_set("listen.client_ca_file"),
        client_certificate_required: reader.switch("listen.client_certificate_required"),
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

fn policy(reader: &mut Reader<'_>) -> Policy {
    Policy {
        max_completions: reader.count("requests.max_completions"),
        max_logprobs: reader.count("requests.max_logprobs"),
        max_tokens: reader.count_if_set("requests.max_tokens"),
        allow_chat_template: reader.switch("requests.allow_chat_template"),
        allow_template_arguments: reader.switch("requests.allow_template_arguments"),
        allow_embeds: reader.switch("requests.allow_embeds"),
        allow_transfer_fields: reader.switch("requests.allow_transfer_fields"),
        allow_logit_processors: reader.switch("requests.allow_logit_processors"),
        media: match reader.word("requests.media") {
            "inline" => Media::Inline,
            "any" => Media::Any,
            "none" => Media::None,
            _ => Media::Public,
        },
        max_media: reader.count("requests.max_media"),
        max_regex_bytes: reader.count("requests.max_regex_bytes"),
        max_grammar_bytes: reader.count("requests.max_grammar_bytes"),
        strip_preamble: reader.switch("requests.strip_preamble"),
        engine_control: match reader.word("requests.engine_control") {
            "everybody" => Control::Everybody,
            "nobody" => Control::Nobody,
            _ => Control::Operators,
        },
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
        snapshot_file: reader.path_if_set("routing.snapshot_file"),
    }
}

fn upstream(reader: &mut Reader<'_>) -> Upstream {
    Upstream {
        connect_timeout: reader.time("upstream.connect_timeout"),
        first_byte_timeout: reader.time("upstream.first_byte_timeout"),
        idle_timeout: reader.time("upstream.idle_timeout"),
        total_timeout: reader.time("upstream.total_timeout"),
        pool_size: reader.count("upstream.pool_size"),
        max_concurrency: reader.count_if_set("upstream.max_concurrency"),
        max_queue: reader.count("upstream.max_queue"),
        queue_timeout: reader.time("upstream.queue_timeout"),
        outage_timeout: reader.time("upstream.outage_timeout"),
        ca_file: reader.path_if_set("upstream.ca_file"),
        certificate_file: reader.path_if_set("upstream.certificate_file"),
        certificate_key_file: reader.path_if_set("upstream.certificate_key_file"),
    }
}

fn health(reader: &mut Reader<'_>) -> Health {
    Health {
        interval: reader.time("health.interval"),
        timeout: reader.time("health.timeout"),
        failures: reader.count("health.failures"),
        eject_after: reader.count("health.eject_after"),
        eject_for: reader.time("health.eject_for"),
        eject_share: reader.share("health.eject_share"),
        eject_ttft_factor: f64::from(reader.count::<u32>("health.eject_ttft_factor")),
        max_ejected: reader.share("health.max_ejected"),
        slow_start: reader.time("health.slow_start"),
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
        aliases: fields.names("models[].aliases"),
        forward_token_ids: fields.switch("models[].forward_token_ids"),
        policy: fields.policy("models[].policy"),
    })
}

fn certificate(fields: &mut Fields<'_, '_>) -> Option<Certificate> {
    Some(Certificate {
        chain_file: fields.path("certificates[].chain_file")?,
        key_file: fields.path("certificates[].key_file")?,
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
        server_name: fields.text("workers[].server_name"),
        url: fields.text("workers[].url")?,
    })
}

fn dns_pool(fields: &mut Fields<'_, '_>) -> Option<DnsPool> {
    Some(DnsPool {
        port: fields.count("dns[].port")?,
        tls: fields.switch("dns[].tls"),
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
    relate_tls(config, reader);
    if config.listen.trusted_proxies.has_names() {
        let what = "names are not looked up for each connection; write networks, such as 10.0.0.0/8";
        reader.fault("listen.trusted_proxies", what.to_owned());
    }
    if config.routing.snapshot_file.is_some() && config.routing.hash_key_file.is_none() {
        let what =
            "is set without routing.hash_key_file: with a fresh key at each start nothing saved would be found again";
        reader.fault("routing.snapshot_file", what.to_owned());
    }
    for (position, worker) in config.workers.iter().enumerate() {
        if worker.kv_replay.as_ref().is_some_and(|endpoint| endpoint.starts_with("poll:")) {
            reader.item_fault("workers", position, "kv_replay", "cannot be polled; leave it out".to_owned());
        }
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
    relate_aliases(config, reader);
    reader.unique("models", "name");
    reader.unique("workers", "url");
    reader.unique("dns", "name");
}

/// A name means one model.
fn relate_aliases(config: &Config, reader: &mut Reader<'_>) {
    let mut names: BTreeMap<&str, &str> =
        config.models.iter().map(|model| (model.name.as_str(), model.name.as_str())).collect();
    for (position, model) in config.models.iter().enumerate() {
        for alias in &model.aliases {
            if let Some(other) = names.insert(alias, &model.name) {
                let what = format!("\"{alias}\" is a name of {other} too; a name means one model");
                reader.item_fault("models", position, "aliases", what);
            }
        }
        if model.forward_token_ids && model.tokenizer.is_none() {
            let what = "is set without a tokenizer, whose ids would be forwarded; set models.tokenizer";
            reader.item_fault("models", position, "forward_token_ids", what.to_owned());
        }
    }
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

fn relate_tls(config: &Config, reader: &mut Reader<'_>) {
    let Config { listen, upstream, .. } = config;
    if listen.client_ca_file.is_some() && config.certificates.is_empty() {
        let what = "clients are asked for certificates, but the listener has none of its own; add [[certificates]]";
        reader.fault("listen.client_ca_file", what.to_owned());
    }
    if upstream.certificate_file.is_some() != upstream.certificate_key_file.is_some() {
        let what = "is set without the other; write upstream.certificate_file and upstream.certificate_key_file";
        let set = upstream.certificate_file.is_some();
        let key = if set { "upstream.certificate_file" } else { "upstream.certificate_key_file" };
        reader.fault(key, what.to_owned());
    }
    if config.keys.file.is_some() && config.certificates.is_empty() && !listen.address.ip().is_loopback() {
        reader.notes.push("keys.file is set without [[certificates]]: keys travel unprotected".to_owned());
    }
    for (position, worker) in config.workers.iter().enumerate() {
        if worker.server_name.is_some() && !worker.url.starts_with("https://") {
            let what = "is set for a worker without TLS; write its url with https://";
            reader.item_fault("workers", position, "server_name", what.to_owned());
        }
    }
}

/// Whether two listeners cannot both be bound. Port 0 is whatever is free.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let any = |ip: IpAddr| ip.is_unspecified();
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || any(a.ip()) || any(b.ip()))
}
