//! One function for each way to choose among the workers that may be chosen.
//!
//! None allocates; each is a pass or two over the model's workers. Ties are broken by a hash of the worker under a salt that
//! is drawn once for each decision: every tied worker is equally likely, whatever the order they are listed in. Least cost
//! takes the request's session for the salt where it has one: equally good workers are then the same ones in every gateway and
//! at every turn, as long as nothing tells them apart.

use crate::decision::DecideInput;
use crate::foreign::{self, Counts};
use crate::index::scramble;
use crate::score::{self, Score};
use crate::view::{LocalLoad, WorkerState, WorkerView};

/// Above so many times the mean load a worker gives up its share of the ring.
const RING_LOAD_FACTOR: f64 = 1.25;
/// The same for sessions: what a session has cached is lost by a move, where a shared head soon is on several workers.
const SESSION_LOAD_FACTOR: f64 = 2.0;
/// With fewer requests than this no worker counts as overloaded: one more or less would decide.
const RING_MIN_BOUND: u32 = 8;

/// A worker that may be chosen.
#[derive(Clone, Copy)]
pub(crate) struct Seat<'a> {
    pub(crate) position: u32,
    pub(crate) worker: &'a WorkerView,
    pub(crate) local: LocalLoad,
    /// Requests there that only the kernel sees, as its node's agent says, or the least that any does.
    pub(crate) foreign: Option<Counts>,
}

/// Workers of the request's model that are ready and were not tried yet, in their listed order.
pub(crate) fn seats<'a>(input: &'a DecideInput<'_>) -> impl Iterator<Item = Seat<'a>> + Clone {
    all_seats(input).filter(|seat| may_be_chosen(input, seat))
}

/// All workers of the request's model, or those of its shortlist.
pub(crate) fn all_seats<'a>(input: &'a DecideInput<'_>) -> impl Iterator<Item = Seat<'a>> + Clone {
    let of_model = || input.view.models.get(input.facts.model as usize).map_or(&[][..], |model| &model.workers);
    let listed = input.among.unwrap_or_else(of_model);
    let worker = |position: u32| input.view.workers.get(position as usize);
    let least = foreign::least(
        listed.iter().filter_map(|&position| worker(position)).filter(|worker| may_take(input, worker)),
        input.now_ms,
    );
    listed.iter().enumerate().filter_map(move |(at, &position)| {
        let worker = worker(position)?;
        let at = if input.among.is_some() { at } else { position as usize };
        let local = input.local.get(at).copied().unwrap_or_default();
        let foreign = foreign::counts(worker, input.now_ms).or(least);
        Some(Seat { position, worker, local, foreign })
    })
}

pub(crate) fn may_be_chosen(input: &DecideInput<'_>, seat: &Seat<'_>) -> bool {
    may_take(input, seat.worker)
}

fn may_take(input: &DecideInput<'_>, worker: &WorkerView) -> bool {
    worker.state == WorkerState::Ready && !input.exclude.contains(&worker.id)
}

impl Seat<'_> {
    pub(crate) fn score(&self, input: &DecideInput<'_>) -> Score {
        score::score(input.facts, input.hits, self.worker, &self.local, input.now_ms)
            .with_foreign(self.worker, self.foreign)
    }

    fn tie_break(&self, salt: u64) -> u64 {
        scramble(salt ^ self.identity())
    }

    fn identity(&self) -> u64 {
        u64::from(self.worker.id.slot) << 32 ^ u64::from(self.worker.id.generation)
    }

    /// Who comes first among equals: by the session's claim, or by the salt.
    fn rank(&self, tie: Tie) -> (u64, u64) {
        match tie {
            Tie::Salt(salt) => (self.tie_break(salt), 0),
            Tie::Session(session) => (!claim(self.worker, session), self.identity()),
        }
    }
}

/// What decides between equals.
#[derive(Clone, Copy)]
enum Tie {
    Salt(u64),
    Session(u64),
}

/// Keeps the least costly of the offers, where some know what their engine adds and others do not: to the unknown is added
/// the least that any known one adds.
struct Contest<T> {
    tie: Tie,
    known: Option<(f64, (u64, u64), T)>,
    unknown: Option<(f64, (u64, u64), T)>,
    least_added: Option<f64>,
}

impl<T: Copy> Contest<T> {
    fn new(tie: Tie) -> Self {
        Self { tie, known: None, unknown: None, least_added: None }
    }

    fn offer(&mut self, seat: &Seat<'_>, own: f64, added: Option<f64>, what: T) {
        let tie = seat.rank(self.tie);
        let (best, cost) = match added {
            Some(added) => {
                self.least_added = Some(self.least_added.map_or(added, |least| least.min(added)));
                (&mut self.known, own + added)
            }
            None => (&mut self.unknown, own),
        };
        if best.as_ref().is_none_or(|(least, last_tie, _)| (cost, tie) < (*least, *last_tie)) {
            *best = Some((cost, tie, what));
        }
    }

    fn winner(self) -> Option<(f64, T)> {
        let added = self.least_added.unwrap_or(0.0);
        let unknown = self.unknown.map(|(own, tie, what)| (own + added, tie, what));
        let best = match (self.known, unknown) {
            (Some(known), Some(unknown)) if (unknown.0, unknown.1) < (known.0, known.1) => unknown,
            (Some(known), _) => known,
            (None, unknown) => unknown?,
        };
        Some((best.0, best.2))
    }
}

/// What the engines add at least, as unknown ones are charged; for explanations.
pub(crate) fn least_added_ms(input: &DecideInput<'_>) -> f64 {
    seats(input).filter_map(|seat| seat.score(input).added_ms()).reduce(f64::min).unwrap_or(0.0)
}

/// Least predicted cost.
pub(crate) fn least_cost<'a>(input: &'a DecideInput<'_>, salt: u64) -> Option<(f64, Seat<'a>, Score)> {
    let mut contest = Contest::new(input.facts.session.map_or(Tie::Salt(salt), Tie::Session));
    for seat in seats(input) {
        let score = seat.score(input);
        contest.offer(&seat, score.own_ms(), score.added_ms(), (seat, score));
    }
    contest.winner().map(|(cost, (seat, score))| (cost, seat, score))
}

/// Without tokens: the worker that the prompt's head belongs to, unless another is better even if that head is wholly
/// cached there.
pub(crate) fn text_affinity<'a>(input: &'a DecideInput<'_>, salt: u64) -> Option<(Seat<'a>, bool)> {
    let (least, best, _) = least_cost(input, salt)?;
    let home = ring(input, input.facts.text_hash, RING_LOAD_FACTOR)?;
    let score = home.score(input);
    let added = score.added_ms().unwrap_or_else(|| least_added_ms(input));
    // What is not computed delays nobody either.
    let saving =
        score.terms.prefill_ms + score.terms.harm_ms + score.terms.waiting_harm_ms + score.terms.foreign_harm_ms;
    let stays = score.own_ms() + added <= least + saving;
    Some(if stays { (home, true) } else { (best, false) })
}

/// Fewest requests.
pub(crate) fn least_loaded<'a>(input: &'a DecideInput<'_>, salt: u64) -> Option<Seat<'a>> {
    less_loaded(input, salt, seats(input))
}

/// The less loaded of two that the salt names.
pub(crate) fn power_of_two<'a>(input: &'a DecideInput<'_>, salt: u64) -> Option<Seat<'a>> {
    let mut first: Option<(u64, Seat<'a>)> = None;
    let mut second: Option<(u64, Seat<'a>)> = None;
    // Another use of the same salt than tie-breaking, so another hash of it.
    let draw = scramble(salt);
    for seat in seats(input) {
        let key = seat.tie_break(draw);
        if first.as_ref().is_none_or(|(least, _)| key < *least) {
            second = first.replace((key, seat));
        } else if second.as_ref().is_none_or(|(least, _)| key < *least) {
            second = Some((key, seat));
        }
    }
    less_loaded(input, salt, [first, second].into_iter().flatten().map(|(_, seat)| seat))
}

fn less_loaded<'a>(input: &DecideInput<'_>, salt: u64, seats: impl Iterator<Item = Seat<'a>>) -> Option<Seat<'a>> {
    let mut contest = Contest::new(Tie::Salt(salt));
    for seat in seats {
        let (own, added) = score::requests(seat.worker, &seat.local, input.now_ms);
        let beyond = f64::from(foreign::beyond(seat.foreign, added));
        let (own, added) = match added {
            Some(added) => (f64::from(own), Some(f64::from(added) + beyond)),
            None => (f64::from(own) + beyond, None),
        };
        contest.offer(&seat, own, added, seat);
    }
    contest.winner().map(|(_, seat)| seat)
}

/// In turn, in listed order.
pub(crate) fn round_robin<'a>(input: &'a DecideInput<'_>) -> Option<Seat<'a>> {
    let count = seats(input).count() as u64;
    let turn = input.cursor.checked_rem(count)?;
    seats(input).nth(turn as usize)
}

/// Owner of the prompt's head.
pub(crate) fn consistent_hash<'a>(input: &'a DecideInput<'_>) -> Option<Seat<'a>> {
    ring(input, input.facts.text_hash, RING_LOAD_FACTOR)
}

/// Owner of the session, or of the prompt's head where there is none.
pub(crate) fn session<'a>(input: &'a DecideInput<'_>) -> Option<Seat<'a>> {
    match input.facts.session {
        Some(session) => ring(input, session, SESSION_LOAD_FACTOR),
        None => consistent_hash(input),
    }
}

/// How strongly `worker` claims `key`: rendezvous hashing, so that a worker that comes or goes moves only its own keys.
pub(crate) fn claim(worker: &WorkerView, key: u64) -> u64 {
    scramble(scramble(worker.affinity) ^ key)
}

/// The strongest claim among those that are not overloaded.
fn ring<'a>(input: &'a DecideInput<'_>, key: u64, load_factor: f64) -> Option<Seat<'a>> {
    let (count, requests) =
        seats(input).fold((0u64, 1u64), |(count, sum), seat| (count + 1, sum + u64::from(seat.local.requests)));
    // Somebody is at or below the mean, so somebody qualifies.
    let bound = (load_factor * requests as f64 / count as f64).ceil() as u32;
    let bound = bound.max(RING_MIN_BOUND);
    seats(input).filter(|seat| seat.local.requests < bound).max_by_key(|seat| (claim(seat.worker, key), seat.worker.id))
}
