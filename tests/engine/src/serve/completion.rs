//! The generating routes.

use super::error::ApiError;
use super::fields;
use super::parse::{self, Call};
use super::reply::{self, Choice, Envelope};
use super::route::{Route, Shape};
use super::{After, stall, stream, voice, write};
use crate::clock;
use crate::engine::Life;
use crate::fault::FaultKind;
use crate::http::{Connection, Request, Response};
use crate::model;
use crate::rank::{Board, Rank, Ticket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A call that the model is working on. Dropping it aborts whatever is unfinished.
pub(super) struct Job {
    pub(super) board: Arc<Board>,
    pub(super) choices: Vec<Choice>,
    _tickets: Vec<Ticket>,
}

/// Counts a call while it is answered.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn enter(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) async fn answer(
    life: &Arc<Life>,
    connection: &mut Connection,
    request: &Request,
    route: Route,
) -> std::io::Result<After> {
    let _in_flight = InFlight::enter(&life.in_flight);
    let number = life.served.fetch_add(1, Ordering::Relaxed);
    let path = request.path();
    let started = fields::object(&request.body)
        .and_then(|body| parse::call(life, route, &body))
        .and_then(|call| Ok((choose_rank(life, request)?, call)))
        .and_then(|(rank, call)| Ok((start(life, &rank, &call)?, call)));
    let (job, call) = match started {
        Ok(started) => started,
        Err(error) => {
            let response = error.response_in(Shape::of(life.config.flavor, path));
            return write(life, connection, path, response).await;
        }
    };
    let lie = life.faults.strike(FaultKind::WrongUsage, path).map(|fault| fault.by.unwrap_or(1));
    let envelope = Envelope {
        id: reply::call_id(route, request.header("x-request-id"), number, life.started_unix_s),
        created: clock::unix_seconds() as u64,
        call: &call,
        block_tokens: life.config.limits.block_tokens,
        details: life.config.prompt_tokens_details,
        counts_off_by: lie.unwrap_or(0),
    };
    let mut voice = voice::of(&call, envelope);
    if call.stream {
        return stream::answer(life, connection, path, &mut *voice, job).await;
    }
    if let Some(fault) = life.faults.strike(FaultKind::Stall, path) {
        stall(connection, &fault).await?;
    }
    loop {
        let states = job.board.states();
        if states.iter().all(|state| state.finish.is_some()) {
            let body = voice.whole(&job.choices, &states).to_string();
            return write(life, connection, path, Response::json(body)).await;
        }
        tokio::select! {
            () = job.board.changed() => {}
            () = connection.client_gone() => return Ok(After::Close),
        }
    }
}

/// The rank that the client asked for, or the one with the least to do.
pub(super) fn choose_rank(life: &Life, request: &Request) -> Result<Arc<Rank>, ApiError> {
    let Some(asked) = request.header("x-data-parallel-rank") else { return Ok(life.idlest_rank()) };
    let rank = asked.parse::<usize>().ok().and_then(|rank| life.ranks.get(rank));
    rank.cloned().ok_or_else(|| {
        let message = format!("data_parallel_rank {asked} is out of range [0, {}).", life.ranks.len());
        ApiError::bad_request(message, Some("data_parallel_rank"))
    })
}

pub(super) fn start(life: &Life, rank: &Arc<Rank>, call: &Call) -> Result<Job, ApiError> {
    let total = call.prompts.len() * call.choices;
    if life.config.max_queued_requests.is_some_and(|most| rank.queued() + total > most) {
        rank.with_metrics(|metrics| metrics.rejections += 1);
        return Err(ApiError::busy());
    }
    let board = Board::new(total);
    let mut choices = Vec::with_capacity(total);
    let mut tickets = Vec::with_capacity(total);
    for at in 0..total {
        let prompt = &call.prompts[at / call.choices];
        let mut output = life.config.codec.compose(prompt, (at % call.choices) as u32, call.length);
        output.stop_at(&call.stops);
        let request = model::Request::new(
            rank.next_id(),
            prompt.clone(),
            output.ids.clone(),
            output.finish,
            call.domain.clone(),
            life.config.limits.block_tokens,
        );
        let ticket = rank.submit(request, &board, at, call.choices);
        tickets.push(ticket.map_err(|refusal| ApiError::bad_request(refusal.to_string(), None))?);
        choices.push(Choice { output, sent: 0, ended: false });
    }
    Ok(Job { board, choices, _tickets: tickets })
}
