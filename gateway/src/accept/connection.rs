//! One connection: its requests, one after the other.

use super::local::{Route, route};
use super::{Reply, Request, control, identity};
use crate::doors::keys::presented;
use crate::doors::{Caller, Role};
use crate::error::{Fault, Halt, Shape};
use crate::http1::fields::Kind;
use crate::http1::response::Downstream;
use crate::http1::{Framing, RequestHead};
use crate::serve::{self, Gateway};
use crate::stream::{Client, Next};
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// Serves a connection until it ends.
pub(super) async fn run(gateway: &Gateway, mut client: Client) {
    loop {
        match client.read_head(&gateway.config.listen).await {
            Ok(Some(head)) => match answer(gateway, &mut client, head).await {
                Next::Keep => {}
                Next::Close => break,
                Next::Abort => return,
            },
            Ok(None) | Err(Halt::Gone) => return,
            Err(Halt::Fault(fault)) => {
                let id = identity::request_id(None);
                let to = refusal(gateway, &id);
                let _ = Reply::fault(&fault).send(&mut client, &to, false).await;
                serve::reject_unread(gateway, id, &fault);
                break;
            }
        }
    }
    client.finish().await;
}

async fn answer(gateway: &Gateway, client: &mut Client, head: RequestHead) -> Next {
    let id = identity::request_id(head.value(Kind::RequestId));
    let arrived = Instant::now();
    let draining = gateway.draining.load(Ordering::Relaxed);
    let route = route(&head, &gateway.fleet, draining, || gateway.aliases());
    let caller = match admit(gateway, &head, &route) {
        Ok(caller) => caller,
        Err(fault) => return turn_away(gateway, client, &head, id, &fault).await,
    };
    let request = Request { head, id, arrived, caller };
    let dialect = match route {
        Route::Inference(dialect) => Some(dialect),
        Route::Through => None,
        Route::Open(reply) | Route::Local(reply) => {
            let close = !request.head.keep_alive || client.is_draining() || request.head.framing != Framing::Empty;
            let bodiless = request.head.method() == "HEAD";
            return match reply.send(client, &request.downstream(close), bodiless).await {
                Ok(()) if !close => Next::Keep,
                Ok(()) => Next::Close,
                Err(_) => Next::Abort,
            };
        }
    };
    serve::serve(gateway, client, &request, dialect).await
}

/// Who sends this. Browsers ask `OPTIONS` before they send a key (CORS); without a body it does nobody harm.
fn admit(gateway: &Gateway, head: &RequestHead, route: &Route) -> Result<Caller, Fault> {
    let is_preflight = head.method() == "OPTIONS" && head.framing == Framing::Empty;
    if is_preflight || matches!(route, Route::Open(_)) {
        return Ok(Caller::anybody());
    }
    let key = presented(head.value(Kind::Authorization), head.value(Kind::ApiKey));
    let caller = gateway.doors.admit(key, Role::Use)?;
    match route {
        Route::Through => control::check(gateway.request_policy().engine_control, &caller, head.path())?,
        Route::Inference(_) => refuse_encoded(head)?,
        Route::Open(_) | Route::Local(_) => {}
    }
    Ok(caller)
}

/// A compressed prompt could not be read here, and one that grows a thousandfold when it is could not be bounded.
fn refuse_encoded(head: &RequestHead) -> Result<(), Fault> {
    match head.value(Kind::ContentEncoding) {
        None => Ok(()),
        Some(encoding) if encoding.is_empty() || encoding.eq_ignore_ascii_case(b"identity") => Ok(()),
        Some(_) => {
            let message = "compressed bodies are not read; send it without Content-Encoding";
            Err(Fault::client(415, "encoded_body", message))
        }
    }
}

/// Answers a caller who may not come in; a body is not read.
async fn turn_away(gateway: &Gateway, client: &mut Client, head: &RequestHead, id: String, fault: &Fault) -> Next {
    let close = head.framing != Framing::Empty || !head.keep_alive || client.is_draining();
    let to = Downstream { close, old_keep_alive: head.old && !close, ..refusal(gateway, &id) };
    let reply = Reply::fault_in(fault, Shape::of_path(head.path()));
    let sent = reply.send(client, &to, head.method() == "HEAD").await;
    serve::reject_unread(gateway, id, fault);
    match sent {
        Ok(()) if !close => Next::Keep,
        Ok(()) => Next::Close,
        Err(_) => Next::Abort,
    }
}

/// To somebody who is not known yet.
fn refusal<'a>(gateway: &Gateway, request_id: &'a str) -> Downstream<'a> {
    Downstream {
        framing: Framing::Empty,
        announced: None,
        request_id,
        close: true,
        old_keep_alive: false,
        diagnostics: !gateway.doors.ask_for_keys(),
    }
}
