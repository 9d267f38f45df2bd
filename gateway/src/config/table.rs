//! Every key there is, with its default: the file parser, the environment, `--set`, the resolver and the reference in
//! the README all read this one table.

use super::key::Fallback::{self, Absent, Is, Required};
use super::key::{Key, Kind};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

const LIVE: bool = true;
const RESTART: bool = false;

const fn key(path: &'static str, kind: Kind, fallback: Fallback, live: bool, meaning: &'static str) -> Key {
    Key { path, kind, fallback, live, meaning }
}

/// The table, in the order of the reference.
#[rustfmt::skip]
pub static KEYS: &[Key] = &[
    key("listen.address", Kind::Address, Is("0.0.0.0:8080"), RESTART, "Where clients connect."),
    key("listen.trusted_proxies", Kind::Hosts, Absent("nobody"), RESTART, "Networks of proxies in front, whose X-Forwarded-* and Forwarded fields are believed and passed on; from anybody else they are dropped and set anew."),
    key("listen.max_connections", Kind::Count(1, 1_000_000), Is("20000"), RESTART, "Open client connections; more are closed at once."),
    key("listen.max_header_bytes", Kind::Size(KIB, MIB), Is("64KiB"), RESTART, "Bytes of one request head (431 beyond)."),
    key("listen.max_body_bytes", Kind::Size(KIB, 4 * GIB), Is("64MiB"), RESTART, "Bytes of one request body (413 beyond, without reading on)."),
    key("listen.max_buffered_bytes", Kind::Size(KIB, 1024 * GIB), Is("1GiB"), RESTART, "Bytes of all request bodies held at once (503 beyond)."),
    key("listen.header_timeout", Kind::Time(1, HOUR), Is("10s"), RESTART, "For a whole request head."),
    key("listen.body_timeout", Kind::Time(1, HOUR), Is("60s"), RESTART, "For a whole request body."),
    key("listen.keepalive_timeout", Kind::Time(1, DAY), Is("75s"), RESTART, "Between two requests of one connection."),
    key("listen.write_timeout", Kind::Time(1, HOUR), Is("30s"), RESTART, "A client that has not taken what waits for it after so long, and 4 KiB a second more, is cut off."),
    key("listen.drain_delay", Kind::Time(0, HOUR), Is("0s"), RESTART, "How long after SIGTERM new connections are still taken while /readyz and /health say no: load balancers need a moment to look elsewhere."),
    key("listen.drain_timeout", Kind::Time(0, DAY), Is("60s"), RESTART, "How long streams may run on after SIGTERM."),
    key("listen.handshake_timeout", Kind::Time(1, HOUR), Is("10s"), RESTART, "For a TLS handshake."),
    key("listen.http2", Kind::Switch, Is("true"), RESTART, "Speak HTTP/2, by ALPN over TLS and by prior knowledge in the clear."),
    key("listen.max_streams", Kind::Count(1, 10_000), Is("128"), RESTART, "Requests at once on one HTTP/2 connection; each counts as a connection too."),
    key("listen.client_ca_file", Kind::Path, Absent("no certificate is asked for"), RESTART, "PEM with the authorities of clients' certificates."),
    key("listen.client_certificate_required", Kind::Switch, Is("true"), RESTART, "Refuse clients without a certificate, where they are asked for one."),
    key("listen.threads", Kind::Count(1, 1024), Absent("one per core"), RESTART, "Threads that serve requests."),
    key("admin.address", Kind::Address, Is("127.0.0.1:8081"), RESTART, "Where operators connect. Beyond loopback every request needs a key with the role operate, but for /healthz and /readyz, and TLS is spoken where there are certificates."),
    key("admin.socket", Kind::Path, Absent("none"), RESTART, "Unix socket for operators beside the address, mode 0600: who may open it is asked for no key."),
    key("admin.allow_workers", Kind::Hosts, Is("loopback, private"), RESTART, "Hosts that POST /workers may name; a gateway that connects wherever it is told would be a way into every network it sees."),
    key("keys.file", Kind::Path, Absent("nobody is asked for a key"), RESTART, "API keys, one hash a line, written by `forebay key new`; read again when it changes."),
    key("requests.max_completions", Kind::Count(1, 65_536), Is("128"), LIVE, "Completions of one request, by `n` or `best_of` (400 beyond): one request with a huge `n` has taken engines' memory."),
    key("requests.max_logprobs", Kind::Count(0, 1_000_000), Is("20"), LIVE, "Log probabilities for each token (400 beyond, and for -1, the whole vocabulary): answers grow by as much. Engines' own default."),
    key("requests.max_tokens", Kind::Count(1, 100_000_000), Absent("the engine's own"), LIVE, "Generated tokens: a larger `max_tokens` is lowered to this, and a request without any gets it."),
    key("requests.allow_chat_template", Kind::Switch, Is("false"), LIVE, "Let requests bring a `chat_template`: a template is a program that the engine would run."),
    key("requests.allow_template_arguments", Kind::Switch, Is("true"), LIVE, "Let requests set `chat_template_kwargs`, with which thinking is switched on and off; what would replace the template is refused with it."),
    key("requests.allow_embeds", Kind::Switch, Is("false"), LIVE, "Let requests bring embeddings: engines load them as serialised tensors, which has corrupted their memory."),
    key("requests.allow_transfer_fields", Kind::Switch, Is("false"), LIVE, "Let requests say where an engine takes KV blocks from: it would connect there."),
    key("requests.allow_logit_processors", Kind::Switch, Is("false"), LIVE, "Let requests name code that processes logits: engines load it."),
    key("requests.media", Kind::OneOf(&["public", "inline", "any", "none"]), Is("public"), LIVE, "Media that engines may be sent to fetch: `inline` data: URLs alone, `public` also http(s) URLs that name no private address. A name may still lead into a private network: only the engine's own rules or its network can keep it from there."),
    key("requests.max_media", Kind::Count(0, 100_000), Is("128"), LIVE, "Media of one request: each is fetched, decoded and kept."),
    key("requests.max_regex_bytes", Kind::Size(0, MIB), Is("16KiB"), LIVE, "Bytes of one regular expression: engines compile it while others wait."),
    key("requests.max_grammar_bytes", Kind::Size(0, 64 * MIB), Is("256KiB"), LIVE, "Bytes of one grammar or JSON schema, for the same reason."),
    key("requests.strip_preamble", Kind::Switch, Is("false"), LIVE, "Cut the line `x-anthropic-billing-header…`, which changes with every request, out of system prompts: for engines that do not drop it themselves and would cache nothing behind it."),
    key("requests.engine_control", Kind::OneOf(&["operators", "everybody", "nobody"]), Is("operators"), LIVE, "Who reaches the paths with which engines are controlled (flush a cache, sleep, load weights or adapters, profile): callers with the role operate, and without keys nobody."),
    key("routing.policy", Kind::Policy, Is("kv"), LIVE, "How a worker is chosen, unless the model names its own policy."),
    key("routing.own_placements", Kind::Switch, Is("true"), RESTART, "Whether a prefix counts as held where this gateway has just sent it, before the engine's event says so."),
    key("routing.retry_budget", Kind::Share, Is("0.1"), RESTART, "Share of traffic that may be retried, besides what was in flight at a failed worker."),
    key("routing.max_attempts", Kind::Count(1, 16), Is("3"), RESTART, "Workers tried for one request, the first included."),
    key("routing.seed", Kind::Count(0, u64::MAX), Absent("random"), RESTART, "Seed of the generator that breaks ties."),
    key("routing.hash_key_file", Kind::Path, Absent("a fresh key at each start"), RESTART, "File with at least 32 random bytes from which block hashes are keyed."),
    key("routing.snapshot_file", Kind::Path, Absent("none; caches are learned anew at each start"), RESTART, "File to which what is known of the engines' caches is saved every minute and at the end, and from which the next start goes on; needs routing.hash_key_file."),
    key("upstream.connect_timeout", Kind::Time(1, MINUTE), Is("2s"), RESTART, "For a TCP connection to an engine."),
    key("upstream.first_byte_timeout", Kind::Time(1, DAY), Is("10m"), RESTART, "From the request being sent to the engine's first byte; prefill of a long prompt happens here."),
    key("upstream.idle_timeout", Kind::Time(1, DAY), Is("2m"), RESTART, "Between two chunks of an answer."),
    key("upstream.total_timeout", Kind::Time(1, DAY), Is("1h"), RESTART, "For a whole exchange with an engine."),
    key("upstream.pool_size", Kind::Count(0, 65_536), Is("256"), RESTART, "Idle connections kept for each worker."),
    key("upstream.max_concurrency", Kind::Count(1, 1_000_000), Absent("as many as come"), RESTART, "Requests of this gateway at once at one worker (a request with `n` counts n times); what finds all workers full waits here."),
    key("upstream.max_queue", Kind::Count(0, 1_000_000), Is("1024"), RESTART, "Requests that wait for a place (503 beyond)."),
    key("upstream.queue_timeout", Kind::Time(1, HOUR), Is("30s"), RESTART, "How long one waits for a place (503 after)."),
    key("upstream.outage_timeout", Kind::Time(0, HOUR), Is("10s"), RESTART, "How long, from when a model has nobody left, its requests wait for an engine to come back (502 or 503 after, and at once in a longer outage): a restart loses none. They wait where those without a place do."),
    key("upstream.ca_file", Kind::Path, Absent("the system's authorities"), RESTART, "PEM with the authorities by which engines with https:// are trusted; read again when it changes."),
    key("upstream.certificate_file", Kind::Path, Absent("none"), RESTART, "PEM chain shown to engines that ask for a certificate; read again when it changes."),
    key("upstream.certificate_key_file", Kind::Path, Absent("none"), RESTART, "Its private key."),
    key("health.interval", Kind::Time(10, HOUR), Is("5s"), RESTART, "Between two health checks of one worker."),
    key("health.timeout", Kind::Time(1, HOUR), Is("5s"), RESTART, "For one health check; some engines take more than a second to answer."),
    key("health.failures", Kind::Count(1, 1000), Is("3"), RESTART, "Failed checks in a row until a worker is down."),
    key("health.eject_after", Kind::Count(1, 1000), Is("3"), RESTART, "Failed requests in a row until a worker is ejected."),
    key("health.eject_for", Kind::Time(1, HOUR), Is("10s"), RESTART, "How long it stays ejected before one request probes it."),
    key("health.eject_share", Kind::Share, Is("0.5"), RESTART, "Share of failed requests, of twenty or more, from which a worker is ejected though no failures come in a row; 0 switches it off."),
    key("health.eject_ttft_factor", Kind::Count(0, 1_000), Is("5"), RESTART, "A worker whose first tokens take so many times as long as its peers' median, and over a second, is ejected; 0 switches it off."),
    key("health.max_ejected", Kind::Share, Is("0.5"), RESTART, "Share of a model's workers (one at least) that may be out by ejection; what fails everywhere is not the workers. Those that refuse connections are not counted in."),
    key("health.slow_start", Kind::Time(0, HOUR), Is("10s"), RESTART, "How long a worker that comes, or comes back, takes less than its share, as far as others can take the rest."),
    key("health.metrics_interval", Kind::Time(10, HOUR), Is("1s"), RESTART, "Between two readings of an engine's metrics."),
    key("agents.token_file", Kind::Path, Absent("none"), RESTART, "File with the secret that node agents ask for; read at every dial."),
    key("tokenize.threads", Kind::Count(1, 1024), Absent("half the cores, at least one"), RESTART, "Threads that render templates and encode prompts."),
    key("tokenize.max_queue", Kind::Count(1, 1_000_000), Is("1024"), RESTART, "Prompts that wait for such a thread; more are routed by text."),
    key("tokenize.deadline", Kind::Time(1, MINUTE), Is("500ms"), RESTART, "After so long a request goes on, routed by text."),
    key("tokenize.memo_bytes", Kind::Size(0, 64 * GIB), Is("256MiB"), RESTART, "Memory for prompts already encoded, so that the next turn of a chat encodes only what is new."),
    key("tokenize.parity_sample", Kind::Share, Is("0.001"), RESTART, "Share of requests whose token ids are compared with the engine's own."),
    key("observe.access_log", Kind::AccessLog, Is("off"), RESTART, "One JSON line for each request, without prompt text."),
    key("models[].name", Kind::Name, Required, LIVE, "Model as clients and engines name it."),
    key("models[].tokenizer", Kind::Path, Absent("ask the engine's /tokenize"), LIVE, "Folder with tokenizer.json and tokenizer_config.json."),
    key("models[].chat_template", Kind::Path, Absent("the tokenizer's own"), LIVE, "Jinja file used instead of the tokenizer's template."),
    key("models[].aliases", Kind::Names, Absent("none"), LIVE, "Further names that clients may use, unless an engine serves a model of that name; engines are asked for the model itself."),
    key("models[].forward_token_ids", Kind::Switch, Is("false"), LIVE, "Send engines the ids of a prompt instead of its text where they take them and their own ids are proven to be the same: they then tokenise nothing."),
    key("models[].policy", Kind::Policy, Absent("routing.policy"), LIVE, "Policy of this model alone."),
    key("certificates[].chain_file", Kind::Path, Required, LIVE, "PEM chain of a certificate of the clients' listener, which speaks TLS once there is one. Read again when it changes. Clients get the one for the server name they ask for, else the first."),
    key("certificates[].key_file", Kind::Path, Required, LIVE, "Its private key."),
    key("workers[].url", Kind::Url, Required, LIVE, "Base URL of an engine; https:// for TLS."),
    key("workers[].server_name", Kind::Name, Absent("the URL's host"), LIVE, "Name that its certificate must be for."),
    key("workers[].model", Kind::Name, Absent("ask its /v1/models"), LIVE, "Model it serves."),
    key("workers[].ranks", Kind::Count(1, 1024), Absent("one, unnamed"), LIVE, "Data-parallel ranks behind the URL."),
    key("workers[].kv_events", Kind::ZmqEndpoint, Absent("ask its /kv_event_sources"), LIVE, "Where it publishes KV events, rank r at port + r; `bind:tcp://…` where the engine connects, `poll:/kv_cache_events` to ask TensorRT-LLM, which tells each event to one gateway only."),
    key("workers[].kv_replay", Kind::ZmqEndpoint, Absent("ask its /kv_event_sources"), LIVE, "Where it replays KV events; rank r is at port + r."),
    key("workers[].block_size", Kind::Count(1, 65_536), Absent("learn it"), LIVE, "Tokens in one KV block."),
    key("workers[].agent", Kind::HostPort, Absent("none"), LIVE, "Node agent beside the engine (`forebay-agent load`): tells of load that other gateways and direct clients put there."),
    key("dns[].name", Kind::Name, Required, LIVE, "Name whose every address is a worker."),
    key("dns[].port", Kind::Count(1, 65_535), Is("8000"), LIVE, "Port of every worker."),
    key("dns[].tls", Kind::Switch, Is("false"), LIVE, "Speak TLS; the certificates must be for the name."),
    key("dns[].model", Kind::Name, Absent("ask its /v1/models"), LIVE, "Model they serve."),
    key("dns[].interval", Kind::Time(100, DAY), Is("5s"), LIVE, "Between two look-ups."),
];

/// Lists of tables; every other section is a plain table.
pub const LISTS: [&str; 4] = ["models", "certificates", "workers", "dns"];

/// The key at `path`.
pub fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}

/// Environment variable that sets the scalar key `path`: `listen.address` → `FOREBAY_LISTEN_ADDRESS`.
pub fn variable(path: &str) -> String {
    format!("{}{}", super::source::PREFIX, path.replace('.', "_").to_ascii_uppercase())
}

/// The known path nearest to `unknown`, if any is near enough to be a slip of the finger.
pub fn nearest(unknown: &str, known: impl IntoIterator<Item = String>) -> Option<String> {
    /// Of the letters, at most half may differ.
    const SLACK: usize = 2;
    known
        .into_iter()
        .map(|candidate| (edit_distance(unknown, &candidate), candidate))
        .filter(|(distance, candidate)| distance * SLACK <= candidate.len())
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions and replacements of bytes that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
