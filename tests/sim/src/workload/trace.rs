//! Traces in Mooncake's format, and how they are scaled.

use super::{Request, mix};
use serde::Deserialize;

/// Requests of a trace that is read; more is a mistake.
const MAX_LINES: usize = 2_000_000;
/// A first block that more than this part of all requests begin with says nothing about who belongs together.
const COMMON_HEAD: f64 = 0.2;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Arrival, ms.
    pub at_ms: u64,
    /// Length of the prompt.
    pub prompt_tokens: u32,
    /// Length of the answer.
    pub output_tokens: u32,
    /// One id for each block of the prompt, the last one perhaps of a block that is not full.
    pub blocks: Vec<u64>,
}

/// Why a trace cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the trace: {problem}")]
pub struct TraceError {
    /// From 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// Mooncake's JSON Lines: `timestamp` (ms), `input_length`, `output_length`, `hash_ids`.
pub fn read_mooncake(text: &str) -> Result<Vec<Line>, TraceError> {
    #[derive(Deserialize)]
    struct Row {
        timestamp: u64,
        input_length: u32,
        output_length: u32,
        hash_ids: Vec<u64>,
    }
    read(text, |line| {
        let row: Row = serde_json::from_str(line).map_err(|error| error.to_string())?;
        Ok(Line {
            at_ms: row.timestamp,
            prompt_tokens: row.input_length,
            output_tokens: row.output_length,
            blocks: row.hash_ids,
        })
    })
}

/// The short notation of the committed files: `ms prompt output 0-13,20`.
pub(super) fn read_short(text: &str) -> Result<Vec<Line>, TraceError> {
    read(text, |line| {
        let mut words = line.split(' ');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or("four columns are needed");
        let (at_ms, prompt, output) = (number()?, number()?, number()?);
        let mut blocks = Vec::new();
        for range in words.next().unwrap_or_default().split(',').filter(|range| !range.is_empty()) {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bound = |text: &str| text.parse::<u64>().map_err(|_| format!("`{text}` is no block id"));
            blocks.extend(bound(first)?..=bound(last)?);
        }
        Ok(Line { at_ms, prompt_tokens: prompt as u32, output_tokens: output as u32, blocks })
    })
}

fn read(text: &str, parse: impl Fn(&str) -> Result<Line, String>) -> Result<Vec<Line>, TraceError> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let fault = |problem: String| TraceError { line: number, problem };
        let line = parse(line).map_err(fault)?;
        if line.prompt_tokens == 0 || lines.len() >= MAX_LINES {
            return Err(fault(format!("an empty prompt, or more than {MAX_LINES} requests")));
        }
        lines.push(line);
    }
    if lines.is_empty() {
        return Err(TraceError { line: 1, problem: "no request at all".to_owned() });
    }
    Ok(lines)
}

/// Requests of `[0, horizon)` at `per_second`: as many copies of the trace as are needed, each turned by a random time, with
/// block ids of its own. The last copy is thinned by conversations, so that those that stay stay whole.
pub(super) fn scale(
    lines: &[Line],
    block_tokens: u32,
    per_second: f64,
    horizon_us: u64,
    rng: &mut fastrand::Rng,
) -> Vec<Request> {
    let span_us = lines.iter().map(|line| line.at_ms).max().unwrap_or(0) * 1_000 + 1_000;
    let own_rate = lines.len() as f64 / (span_us as f64 / 1e6);
    let families = families(lines);
    let copies = per_second / own_rate;
    let mut requests = Vec::new();
    for copy in 0..copies.ceil() as u64 {
        let salt = rng.u64(..);
        let turn_us = rng.u64(0..span_us);
        let share = (copies - copy as f64).min(1.0);
        for (index, line) in lines.iter().enumerate() {
            let at_us = (line.at_ms * 1_000 + span_us - turn_us) % span_us;
            let session = mix(salt, families[index]);
            let is_in = (mix(session, 1) as f64 / u64::MAX as f64) < share;
            // A trace that is shorter than the run starts over, as a further copy.
            let rounds = (horizon_us.saturating_sub(at_us)).div_ceil(span_us);
            for round in (0..rounds).filter(|_| is_in) {
                let salt = mix(salt, round);
                requests.push(request(
                    line,
                    at_us + round * span_us,
                    index as u64,
                    mix(session, round),
                    salt,
                    block_tokens,
                ));
            }
        }
    }
    requests
}

fn request(line: &Line, at_us: u64, index: u64, session: u64, salt: u64, block_tokens: u32) -> Request {
    let output_tokens = line.output_tokens.max(1);
    let whole = (line.prompt_tokens / block_tokens) as usize;
    let all = (line.prompt_tokens + output_tokens) / block_tokens;
    // What follows the whole blocks of the prompt is this request's alone: no later prompt of the trace names it.
    let own = |at: u32| mix(mix(salt, !index), u64::from(at));
    let blocks = (0..all)
        .map(|at| match line.blocks.get(at as usize).filter(|_| (at as usize) < whole) {
            Some(&id) => mix(salt, id),
            None => own(at),
        })
        .collect();
    Request { at_us, prompt_tokens: line.prompt_tokens, output_tokens, blocks, session }
}

/// What tells conversations apart: the first block that is not common to many.
fn families(lines: &[Line]) -> Vec<u64> {
    let mut heads = hashbrown::HashMap::new();
    for line in lines {
        *heads.entry(line.blocks.first().copied()).or_insert(0_u32) += 1;
    }
    let is_common =
        |head: Option<u64>| heads.get(&head).is_some_and(|&count| f64::from(count) > COMMON_HEAD * lines.len() as f64);
    let family = |(index, line): (usize, &Line)| {
        let head = line.blocks.first().copied();
        let telling = if is_common(head) { line.blocks.get(1).copied() } else { head };
        telling.unwrap_or(mix(index as u64, 3))
    };
    lines.iter().enumerate().map(family).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_notations_say_the_same() {
        let short = read_short("# head\n0 1030 5 0-1,9\n").unwrap();
        let json =
            read_mooncake(r#"{"timestamp":0,"input_length":1030,"output_length":5,"hash_ids":[0,1,9]}"#).unwrap();
        assert_eq!(short, json);
        assert_eq!(read_mooncake("{}\n").unwrap_err().line, 1);
        assert!(read_short("1 2 x 3").unwrap_err().to_string().contains("line 1"));
        assert!(read_short("1 2 3 4-x").unwrap_err().problem.contains("`x`"));
    }

    #[test]
    fn a_copy_keeps_prefixes_and_shares_none_with_another() {
        let lines = read_short("0 1024 10 0-1\n1000 1536 600 0-2\n").unwrap();
        let mut rng = fastrand::Rng::with_seed(3);
        let requests = scale(&lines, 512, 2.0, 2_000_000, &mut rng);
        assert_eq!(requests.len(), 4, "two copies of two requests: {requests:?}");
        let of = |prompt: u32| requests.iter().filter(move |request| request.prompt_tokens == prompt);
        for long in of(1_536) {
            let mates = of(1_024).filter(|short| short.blocks[..2] == long.blocks[..2]).count();
            assert_eq!((mates, long.blocks.len()), (1, 4));
        }
    }
}
