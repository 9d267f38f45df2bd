//! HTTP: one task for each connection, one function for each route.

mod anthropic;
mod completion;
mod control;
mod error;
mod fields;
mod info;
mod native;
mod parse;
mod pooled;
mod prompt;
mod reply;
mod responses;
mod route;
mod sglang;
mod stream;
mod trtllm;
mod voice;

#[cfg(test)]
mod tests;

use crate::engine::Life;
use crate::fault::{CutHow, Fault, FaultKind};
use crate::http::{Connection, ReadEnd, Request, Response};
use error::ApiError;
pub use route::Flavor;
pub(crate) use route::is_generating;
use route::{Route, Shape};
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Duration;
use tokio_util::task::TaskTracker;

/// Pause after a failed accept (file descriptors used up, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts until the life ends.
pub(crate) async fn accept_all(life: Arc<Life>, listener: TcpListener, tracker: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = life.end.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let (end, serving) = (life.end.clone(), serve_connection(life.clone(), stream));
                tracker.spawn(async move { end.run_until_cancelled(serving).await });
            }
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What becomes of a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Keep,
    Close,
    Reset,
}

async fn serve_connection(life: Arc<Life>, stream: TcpStream) {
    // Without it a chunk would wait for the client's delayed acknowledgement.
    let _ = stream.set_nodelay(true);
    let mut connection = Connection::new(stream);
    if let Some(fault) = life.faults.strike_connection() {
        tokio::time::sleep(Duration::from_millis(fault.delay_ms())).await;
    }
    loop {
        let request = match connection.read_request().await {
            Ok(request) => request,
            Err(ReadEnd::Gone) => return,
            Err(ReadEnd::Refused(status)) => {
                let refusal = Response { close: true, ..ApiError::http(status).response_in(Shape::Nested) };
                // The client may be gone already, then there is nobody to tell.
                let _ = refusal.write(&mut connection.stream).await;
                let _ = connection.stream.shutdown().await;
                return;
            }
        };
        let close = request.close;
        match answer(&life, &mut connection, &request).await {
            Ok(After::Keep) if !close => {}
            Ok(After::Reset) => return reset(&connection.stream),
            Ok(_) | Err(_) => {
                let _ = connection.stream.shutdown().await;
                return;
            }
        }
    }
}

/// Makes the close that follows a reset.
fn reset(stream: &TcpStream) {
    // Only an unconnected socket refuses this, and then there is nothing to reset.
    let _ = stream.set_zero_linger();
}

fn after_cut(how: Option<CutHow>) -> After {
    match how.unwrap_or_default() {
        CutHow::Fin => After::Close,
        CutHow::Rst => After::Reset,
    }
}

async fn answer(life: &Arc<Life>, connection: &mut Connection, request: &Request) -> std::io::Result<After> {
    let path = request.path();
    if path == "/_ctl" {
        return control(life, connection, request).await;
    }
    let strike = |kind| life.faults.strike(kind, path);
    if let Some(fault) = strike(FaultKind::EarlyClose) {
        return Ok(after_cut(fault.how));
    }
    if strike(FaultKind::Garbage).is_some() {
        connection.stream.write_all(b"\x16\x03\x01 this is not HTTP \xff\xfe\r\n\r\n").await?;
        return Ok(After::Close);
    }
    if let Some(fault) = strike(FaultKind::Error) {
        let error = ApiError::injected(fault.status.unwrap_or(500));
        return write(life, connection, path, error.response_in(Shape::of(life.config.flavor, path))).await;
    }
    let flavor = life.config.flavor;
    match (request.method(), Route::of(flavor, path)) {
        ("POST", Some(route)) => return completion::answer(life, connection, request, route).await,
        ("PUT", Some(Route::Generate)) => return completion::answer(life, connection, request, Route::Generate).await,
        _ => {}
    }
    if let Some(fault) = strike(FaultKind::Stall) {
        stall(connection, &fault).await?;
    }
    let told = if request.method() == "POST" && pooled::is_served(flavor, path) {
        pooled::answer(life, request).await
    } else {
        match flavor {
            Flavor::Vllm => info::answer(life, request),
            Flavor::Sglang => sglang::answer(life, request),
            Flavor::Trtllm => trtllm::answer(life, request),
        }
    };
    let response = told.unwrap_or_else(|error| error.response_in(Shape::of(flavor, path)));
    write(life, connection, path, response).await
}

/// The control endpoint: no fault touches it, and a restart comes after the answer.
async fn control(life: &Arc<Life>, connection: &mut Connection, request: &Request) -> std::io::Result<After> {
    let (response, restart) =
        control::answer(life, request).unwrap_or_else(|error| (error.response_in(Shape::Nested), None));
    response.write(&mut connection.stream).await?;
    if let Some(down) = restart {
        // Refused when a restart is under way already, and then this life ends anyway.
        life.ask_restart(down);
        return Ok(After::Close);
    }
    Ok(After::Keep)
}

/// Waits as the fault says; an error when the client leaves first.
async fn stall(connection: &mut Connection, fault: &Fault) -> std::io::Result<()> {
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(fault.delay_ms())) => Ok(()),
        () = connection.client_gone() => Err(std::io::ErrorKind::ConnectionAborted.into()),
    }
}

/// Writes a whole answer, or what the faults leave of it.
async fn write(
    life: &Arc<Life>,
    connection: &mut Connection,
    path: &str,
    mut response: Response,
) -> std::io::Result<After> {
    if let Some(fault) = life.faults.strike(FaultKind::WrongLength, path) {
        response.length_off_by = fault.by.unwrap_or(1);
        response.write(&mut connection.stream).await?;
        // A client that was promised more must not wait for ever.
        return Ok(After::Close);
    }
    if let Some(fault) = life.faults.strike(FaultKind::Cut, path) {
        let half = response.body.len() / 2;
        response.length_off_by = (response.body.len() - half) as i64;
        response.body.truncate(half);
        response.write(&mut connection.stream).await?;
        return Ok(after_cut(fault.how));
    }
    response.write(&mut connection.stream).await?;
    Ok(After::Keep)
}
