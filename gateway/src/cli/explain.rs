//! `forebay explain`: a running gateway's `/explain`, as a table.

use super::table::Table;
use super::{Exit, complain, say};
use crate::admin::{Candidate, Explanation};
use crate::discover::WorkerUrl;
use crate::doors::{Doors, Towards};
use crate::signal::http::{Peer, Secret};
use bytes::Bytes;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::time::Duration;

/// For the gateway's answer; a cold 400 KB prompt takes it milliseconds.
const DEADLINE: Duration = Duration::from_secs(30);

/// Bytes of the body; the admin listener takes no more.
const MAX_BODY_BYTES: u64 = 8 << 20;

/// The admin listener to ask.
#[derive(Debug, clap::Args)]
pub struct Admin {
    /// The gateway's admin listener; https:// where it speaks TLS.
    #[arg(long, default_value = "http://127.0.0.1:8081")]
    url: String,
    /// File with an operator's key, where the gateway asks for one.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// PEM with the authorities that its certificate is trusted by; the system's without it.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// Asks the admin listener about the body in `file` (`-` = standard input).
pub async fn run(admin: Admin, completions: bool, file: &Path) -> Exit {
    let body = match read(file) {
        Ok(body) => body,
        Err(error) => {
            complain(&format!("cannot read {}: {error}", file.display()));
            return Exit::Usage;
        }
    };
    let key = match admin.key_file.as_deref().map(std::fs::read_to_string).transpose() {
        Ok(key) => key.map(|key| Secret(key.trim().to_owned())),
        Err(error) => {
            complain(&format!("cannot read the key file: {error}"));
            return Exit::Usage;
        }
    };
    match ask(&admin.url, admin.ca_file, key, completions, body).await {
        Ok(explanation) => {
            say(&render(&explanation));
            if explanation.chosen.is_some() { Exit::Done } else { Exit::Unavailable }
        }
        Err((exit, error)) => {
            complain(&error);
            exit
        }
    }
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    if file == Path::new("-") {
        std::io::stdin().lock().take(MAX_BODY_BYTES).read_to_end(&mut body)?;
    } else {
        std::fs::File::open(file)?.take(MAX_BODY_BYTES).read_to_end(&mut body)?;
    }
    Ok(body)
}

async fn ask(
    url: &str,
    ca_file: Option<PathBuf>,
    key: Option<Secret>,
    completions: bool,
    body: Vec<u8>,
) -> Result<Explanation, (Exit, String)> {
    let parsed = WorkerUrl::parse(url).map_err(|error| (Exit::Usage, format!("--url: {error}")))?;
    let unreachable = |why: String| (Exit::Unavailable, format!("{url}: {why}; is the gateway running?"));
    let mut addresses = tokio::net::lookup_host((parsed.host.as_str(), parsed.port))
        .await
        .map_err(|error| unreachable(error.to_string()))?;
    let address = addresses.next().ok_or_else(|| unreachable("the name has no address".to_owned()))?;
    let towards = match parsed.secure {
        true => {
            let doors = Doors::trusting(ca_file).map_err(|error| (Exit::Usage, error.to_string()))?;
            Some(Towards::new(Arc::new(doors), parsed.host.as_str().into()))
        }
        false => None,
    };
    let peer = Peer { address, authority: parsed.authority, deadline: DEADLINE, key, towards };
    let path = if completions { "/explain?dialect=completions" } else { "/explain?dialect=chat" };
    let answer = peer.post_json(path, Bytes::from(body)).await.map_err(|error| unreachable(error.to_string()))?;
    if !answer.status.is_success() {
        let text = String::from_utf8_lossy(&answer.body);
        let said = serde_json::from_str::<serde_json::Value>(&text).ok();
        let message = said.as_ref().and_then(|said| said["error"]["message"].as_str()).unwrap_or(&text);
        return Err((Exit::Usage, format!("the gateway answered {}: {message}", answer.status.as_u16())));
    }
    serde_json::from_slice(&answer.body)
        .map_err(|error| (Exit::Internal, format!("{url} is no forebay of this version: {error}")))
}

/// The decision in a sentence, then every candidate, cheapest first.
fn render(explanation: &Explanation) -> String {
    let count = if explanation.exact { "" } else { "about " };
    let mut text = format!(
        "model {}, policy {}, {count}{} prompt tokens, token ids took {:.2} ms",
        explanation.model, explanation.policy, explanation.prompt_tokens, explanation.tokenize_ms
    );
    if let Some(reason) = &explanation.text_reason {
        text += &format!("\nrouted by text, because: {reason}");
    }
    match (&explanation.chosen, &explanation.refusal) {
        (Some(chosen), _) => {
            let reason = explanation.reason.as_deref().unwrap_or("unknown");
            text += &format!("\nchosen: {chosen} ({reason})");
            if let Some(other) = &explanation.without_agents {
                text += &format!("\nwithout node agents it would be: {other}");
            }
        }
        (None, Some(refusal)) => text += &format!("\nnobody: {refusal}"),
        (None, None) => text += "\nnobody",
    }
    let mut candidates: Vec<&Candidate> = explanation.candidates.iter().collect();
    candidates.sort_by(|a, b| a.cost_ms.total_cmp(&b.cost_ms));
    let mut table = Table::new(&[
        "",
        "worker",
        "standing",
        "cached",
        "compute",
        "queue",
        "waiting",
        "foreign",
        "prefill",
        "room",
        "= ttft ms",
        "harm",
        "decode",
        "evict",
        "unknown",
        "= cost ms",
        "in flight",
        "load age ms",
        "cache",
    ]);
    for candidate in candidates {
        let mark = if explanation.chosen.as_deref() == Some(&candidate.worker) { "→" } else { "" };
        let ms = |value: f64| format!("{value:.1}");
        table.push(vec![
            mark.to_owned(),
            candidate.worker.clone(),
            candidate.standing.clone(),
            candidate.cached_tokens.to_string(),
            candidate.uncached_tokens.to_string(),
            ms(candidate.queue_ms),
            ms(candidate.waiting_ms),
            ms(candidate.prefill_ms),
            ms(candidate.foreign_ms),
            ms(candidate.room_ms),
            ms(candidate.ttft_ms),
            ms(candidate.harm_ms),
            ms(candidate.decode_ms),
            ms(candidate.evict_ms),
            ms(candidate.unknown_ms),
            ms(candidate.cost_ms),
            candidate.in_flight.to_string(),
            candidate.load_age_ms.map_or_else(|| "never".to_owned(), |age| age.to_string()),
            candidate.cache.clone(),
        ]);
    }
    format!("{text}\n\n{}", table.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_comes_first_and_the_choice_is_marked() {
        let candidate = |worker: &str, cost_ms: f64| Candidate {
            worker: worker.to_owned(),
            standing: "eligible".to_owned(),
            cached_tokens: 16,
            uncached_tokens: 4,
            queue_ms: 0.0,
            waiting_ms: 0.0,
            prefill_ms: cost_ms,
            foreign_ms: 0.0,
            room_ms: 0.0,
            ttft_ms: cost_ms,
            harm_ms: 0.0,
            decode_ms: 0.0,
            evict_ms: 0.0,
            unknown_ms: 0.0,
            cost_ms,
            in_flight: 0,
            load_age_ms: None,
            agent_age_ms: None,
            cache: "events".to_owned(),
            claim: None,
        };
        let explanation = Explanation {
            model: "m".to_owned(),
            policy: "kv".to_owned(),
            prompt_tokens: 20,
            exact: true,
            text_reason: None,
            tokenize_ms: 0.5,
            chosen: Some("http://b:1".to_owned()),
            reason: Some("prefix_hit".to_owned()),
            without_agents: None,
            refusal: None,
            candidates: vec![candidate("http://a:1", 30.0), candidate("http://b:1", 20.0)],
        };
        let text = render(&explanation);
        assert!(text.starts_with("model m, policy kv, 20 prompt tokens"));
        assert!(text.contains("chosen: http://b:1 (prefix_hit)"));
        let rows: Vec<&str> = text.lines().skip(4).collect();
        assert!(rows[0].starts_with("→  http://b:1"), "{text}");
        assert!(rows[1].starts_with("   http://a:1"), "{text}");
    }
}
