//! Reading an answer up to its commit point.

use super::client::{Client, Interrupt};
use super::drain::stopping;
use super::{MAX_HELD_EVENTS, MAX_HELD_WHOLE, Reading, Usage};
use crate::dispatch::{Body, Exchange, Failure, HEALTH_LOOK, overdue};
use crate::error::Halt;
use crate::http1::Malformed;
use crate::limits::Share;
use tokio::time::Instant;

/// Reads until the answer is committed; `is_lost` says whether the engine was found dead meanwhile. The inner error is a failure after which another engine may be tried, the outer
/// one ends the request.
pub async fn hold(
    client: &mut Client,
    exchange: &mut Exchange,
    share: &mut Share,
    is_lost: &(dyn Fn() -> bool + Sync),
) -> Result<Result<(), Failure>, Halt> {
    let mut counted = 0;
    let mut due = exchange.end.min(Instant::now() + exchange.idle_timeout);
    loop {
        let committed = match exchange.progress.reading {
            Reading::Through => Ok(true),
            Reading::Events { .. } => read_events(exchange),
            Reading::Whole => read_whole(exchange, share, &mut counted),
        };
        match committed {
            Ok(true) => return Ok(Ok(())),
            Ok(false) => {}
            Err(_) => return Ok(Err(Failure::Garbage)),
        }
        client.deadline.set(due.min(Instant::now() + HEALTH_LOOK));
        match client.race(exchange.connection.read(exchange.body.expected())).await {
            Ok(Ok(n)) if n > 0 => due = exchange.end.min(Instant::now() + exchange.idle_timeout),
            Ok(_) if exchange.body.close() => {}
            Ok(_) => return Ok(Err(Failure::Cut)),
            Err(Interrupt::Gone) => return Err(Halt::Gone),
            Err(Interrupt::Stopped) => return Err(stopping().into()),
            Err(Interrupt::Late) if Instant::now() >= exchange.end => return Err(overdue().into()),
            Err(Interrupt::Late) if Instant::now() >= due => return Ok(Err(Failure::Late)),
            Err(Interrupt::Late) if is_lost() => return Ok(Err(Failure::Lost)),
            Err(Interrupt::Late) => {}
        }
    }
}

/// Holds frames until one carries output.
fn read_events(exchange: &mut Exchange) -> Result<bool, Malformed> {
    let progress = &mut exchange.progress;
    let (events, held) = (&mut progress.events, &mut progress.held);
    exchange.body.drain(&mut exchange.connection.input, |payload| events.feed(payload, held))?;
    if events.outputs > 0 {
        progress.stamp(Instant::now());
        exchange.reservation.first_token();
        exchange.reservation.generated(progress.events.outputs);
    }
    let events = &progress.events;
    Ok(events.is_committed() || exchange.body.is_done() || progress.held.len() > MAX_HELD_EVENTS)
}

/// Holds a whole answer. One of known length stays where it was read; the gateway's limit of buffered bytes ends the
/// holding early, not the request.
fn read_whole(exchange: &mut Exchange, share: &mut Share, counted: &mut usize) -> Result<bool, Malformed> {
    let here = match &exchange.body {
        Body::Left(left) if *left > MAX_HELD_WHOLE as u64 => return Ok(true),
        Body::Left(left) => {
            if exchange.connection.input.len() as u64 >= *left {
                let left = usize::try_from(*left).unwrap_or(usize::MAX);
                exchange.progress.note_document(&exchange.connection.input[..left]);
                exchange.reservation.first_token();
                return Ok(true);
            }
            exchange.connection.input.len()
        }
        _ => {
            let held = &mut exchange.progress.held;
            exchange.body.drain(&mut exchange.connection.input, |payload| held.extend_from_slice(payload))?;
            if exchange.body.is_done() {
                let held = std::mem::take(&mut exchange.progress.held);
                exchange.progress.note_document(&held);
                exchange.progress.held = held;
                exchange.reservation.first_token();
                return Ok(true);
            }
            exchange.progress.held.len()
        }
    };
    let more = here.saturating_sub(*counted);
    *counted += more;
    Ok(here > MAX_HELD_WHOLE || share.grow(more).is_err())
}

/// Larger answers say more than that a route is missing.
const MAX_MISSING: usize = 1024;

impl Exchange {
    /// Whether this 404 says that the engine does not know the path, as its web framework words it, rather than that it
    /// does not know the model. If so the answer is read off the connection, and another takes its place.
    pub(crate) fn lacks_route(&mut self) -> bool {
        if self.head.status != 404 || self.progress.reading != Reading::Whole {
            return false;
        }
        let document = match &self.body {
            Body::Left(left) => {
                let left = usize::try_from(*left).unwrap_or(usize::MAX);
                self.connection.input.get(..left)
            }
            Body::Done => Some(self.progress.held.as_slice()),
            _ => None,
        };
        let lacks = document.is_some_and(|document| document.len() <= MAX_MISSING && says_no_route(document));
        // What was read as a whole is there as a whole.
        lacks && self.body.drain(&mut self.connection.input, |_| {}).is_ok()
    }
}

fn says_no_route(document: &[u8]) -> bool {
    let Ok(answer) = serde_json::from_slice::<serde_json::Value>(document) else { return true };
    let text = answer.get("detail").or_else(|| answer.get("error")?.get("message"));
    text.and_then(serde_json::Value::as_str).is_some_and(|text| text.eq_ignore_ascii_case("not found"))
}

impl super::Progress {
    /// Notes a complete JSON answer.
    fn note_document(&mut self, document: &[u8]) {
        self.events.usage = Usage::find_last(document);
    }
}
