//! One attempt: connection, request, response head, and the hold until commit.

use super::admission::Admitted;
use super::connection::{Body, Connection, Place};
use super::{Dispatcher, Exchange, Failure, Outbound};
use crate::doors::Towards;
use crate::error::{Fault, Halt};
use crate::fleet::Endpoint;
use crate::http1::{ResponseHead, request, response};
use crate::stream::{self, Client, Interrupt, KEEPALIVE, Progress, Reading, Socket, stopping};
use bytes::Bytes;
use pingora_core::protocols::IO;
use pingora_core::protocols::l4::ext::set_tcp_keepalive;
use pingora_core::protocols::l4::stream::Stream;
use std::pin::pin;
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant};

/// How often whoever waits for an engine asks whether it still lives. The kernel says so of a dead process, but not of one that
/// hangs, nor of a machine that is gone.
pub(crate) const HEALTH_LOOK: Duration = Duration::from_secs(1);
/// Informational responses (100, 103) skipped before the real one.
const MAX_INFORMATIONAL: usize = 8;

impl Dispatcher {
    /// Sends the request to the admitted worker and reads its answer up to the commit point. The outer error ends the
    /// request, the inner one the attempt.
    pub(super) async fn attempt(
        &self,
        client: &mut Client,
        outbound: &mut Outbound<'_>,
        admitted: Admitted,
        end: Instant,
        retries: u32,
    ) -> Result<Result<Exchange, Failure>, Halt> {
        let Admitted { decision, reservation, place } = admitted;
        let Some(endpoint) = self.fleet.endpoint(decision.worker) else { return Ok(Err(Failure::Removed)) };
        let with_ids = outbound.body_with_ids(&endpoint);
        let body = with_ids.as_deref().unwrap_or(&outbound.body);
        let head = write_head(outbound, body, &endpoint);
        let worker = decision.worker;
        let mut race = Race { client, end, is_lost: &|| self.fleet.is_lost(worker) };
        let mut pooled = self.pool.take(&Place::of(&endpoint));
        let sent = Instant::now();
        let (connection, head) = loop {
            let mut connection = match pooled.take() {
                Some(connection) => connection,
                None => match self.connect(&mut race, &endpoint).await? {
                    Ok(connection) => connection,
                    Err(failure) => return Ok(Err(failure)),
                },
            };
            match self.exchange_heads(&mut race, &mut connection, (&head, body), outbound).await? {
                Ok(answer) => break (connection, answer),
                // The engine closed this idle connection just when it was taken.
                Err(Failure::Closed) if connection.reused => {}
                Err(failure) => return Ok(Err(failure)),
            }
        };
        let mut exchange = Exchange {
            body: Body::new(head.framing),
            progress: Progress::new(outbound.reading, outbound.grammar, &head),
            idle_timeout: self.upstream.idle_timeout,
            connection,
            head,
            end,
            sent,
            endpoint,
            decision,
            reservation,
            _place: place,
            retries,
        };
        let is_lost = || self.fleet.is_lost(worker);
        Ok(stream::hold(client, &mut exchange, &mut outbound.share, &is_lost).await?.map(|()| exchange))
    }

    async fn connect(&self, race: &mut Race<'_>, endpoint: &Endpoint) -> Result<Result<Connection, Failure>, Halt> {
        let work = async {
            let stream = TcpStream::connect(endpoint.address).await.map_err(|error| error.to_string())?;
            // A segment that waits for the acknowledgement of the one before it would cost 40 ms.
            stream.set_nodelay(true).map_err(|error| error.to_string())?;
            set_tcp_keepalive(&stream, &KEEPALIVE).map_err(|error| error.to_string())?;
            let Some(name) = endpoint.secure.clone() else { return Ok(Socket::Bare(stream)) };
            let stream: Box<dyn IO> = Box::new(Stream::from(stream));
            let secured = Towards::new(self.doors.clone(), name).wrap(stream).await;
            secured.map(|stream| Socket::Secure(Box::new(stream.into()))).map_err(|error| format!("TLS: {error}"))
        };
        match race.run(self.upstream.connect_timeout, work).await? {
            Ok(Ok(socket)) => Ok(Ok(Connection::new(socket, Place::of(endpoint)))),
            Ok(Err(error)) => {
                tracing::debug!(worker = %endpoint.url, %error, "connect failed");
                Ok(Err(Failure::Unreachable))
            }
            Err(_) => Ok(Err(Failure::Unreachable)),
        }
    }

    async fn exchange_heads(
        &self,
        race: &mut Race<'_>,
        connection: &mut Connection,
        (head, body): (&[u8], &[Bytes]),
        outbound: &Outbound<'_>,
    ) -> Result<Result<ResponseHead, Failure>, Halt> {
        // An engine may answer (413, 401) and close before it has read the whole body: a failed write is not yet the end.
        let sent = match race.run(self.upstream.first_byte_timeout, connection.send(head, body)).await? {
            Ok(sent) => sent,
            Err(failure) => return Ok(Err(failure)),
        };
        let bodiless = outbound.head.method() == "HEAD";
        let mut limit = self.upstream.first_byte_timeout;
        let mut informational = 0;
        loop {
            match race.run(limit, connection.read(0)).await? {
                Err(failure) => return Ok(Err(failure)),
                Ok(Ok(n @ 1..)) => {
                    debug_assert!(n > 0);
                    limit = self.upstream.idle_timeout;
                }
                Ok(_) if connection.input.is_empty() => return Ok(Err(Failure::Closed)),
                Ok(_) => return Ok(Err(Failure::Cut)),
            }
            loop {
                match response::take(&mut connection.input, bodiless) {
                    Ok(None) => break,
                    Ok(Some(answer)) if answer.status == 101 => return Ok(Err(Failure::Garbage)),
                    Ok(Some(mut answer)) if answer.status >= 200 => {
                        // What is left of the request would be read as the next one.
                        answer.keep_alive &= sent.is_ok();
                        return Ok(Ok(answer));
                    }
                    Ok(Some(_)) if informational < MAX_INFORMATIONAL => informational += 1,
                    Ok(Some(_)) | Err(_) => return Ok(Err(Failure::Garbage)),
                }
            }
        }
    }
}

fn write_head(outbound: &Outbound<'_>, body: &[Bytes], endpoint: &Endpoint) -> Vec<u8> {
    let head = outbound.head;
    let length: u64 = body.iter().map(|part| part.len() as u64).sum();
    let expects_body = length > 0 || !matches!(head.method(), "GET" | "HEAD" | "OPTIONS" | "DELETE");
    let mut out = Vec::new();
    head.write_upstream(
        &request::Upstream {
            authority: &endpoint.authority,
            length: expects_body.then_some(length),
            request_id: outbound.request_id,
            rank: endpoint.rank,
            plain_answer: outbound.reading != Reading::Through,
            keep_key: outbound.keep_key,
            origin: outbound.origin,
        },
        &mut out,
    );
    out
}

/// Waits on an engine while watching the client and the engine's health, under one phase's deadline and the exchange's.
struct Race<'a> {
    client: &'a mut Client,
    end: Instant,
    is_lost: &'a (dyn Fn() -> bool + Sync),
}

impl Race<'_> {
    /// `Late` when the phase's own deadline passed, `Lost` when the engine was found dead before.
    async fn run<T>(&mut self, limit: Duration, work: impl Future<Output = T>) -> Result<Result<T, Failure>, Halt> {
        let due = self.end.min(Instant::now() + limit);
        let mut work = pin!(work);
        loop {
            self.client.deadline.set(due.min(Instant::now() + HEALTH_LOOK));
            match self.client.race(work.as_mut()).await {
                Ok(done) => return Ok(Ok(done)),
                Err(Interrupt::Gone) => return Err(Halt::Gone),
                Err(Interrupt::Stopped) => return Err(stopping().into()),
                Err(Interrupt::Late) if Instant::now() >= self.end => return Err(overdue().into()),
                Err(Interrupt::Late) if Instant::now() >= due => return Ok(Err(Failure::Late)),
                Err(Interrupt::Late) if (self.is_lost)() => return Ok(Err(Failure::Lost)),
                Err(Interrupt::Late) => {}
            }
        }
    }
}

/// The fault of an exchange that took longer than `upstream.total_timeout`.
pub(crate) fn overdue() -> Fault {
    Fault::worker(504, "upstream_timeout", "the request took longer than upstream.total_timeout allows")
}
