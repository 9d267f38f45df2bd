//! One connection: its requests, one after the other.

use super::local::{Route, route};
use super::{Reply, Request, identity};
use crate::error::Halt;
use crate::http1::fields::Kind;
use crate::http1::response::Downstream;
use crate::http1::{Framing, RequestHead};
use crate::serve::{self, Gateway};
use crate::stream::{Client, Next};
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
                let _ = Reply::fault(&fault).send(&mut client, &closing(&id), false).await;
                serve::reject_unread(gateway, id, &fault);
                break;
            }
        }
    }
    client.finish().await;
}

async fn answer(gateway: &Gateway, client: &mut Client, head: RequestHead) -> Next {
    let id = identity::request_id(head.value(Kind::RequestId));
    let request = Request { head, id, arrived: Instant::now() };
    let dialect = match route(&request.head, &gateway.fleet) {
        Route::Inference(dialect) => Some(dialect),
        Route::Through => None,
        Route::Local(reply) => {
            let close = !request.head.keep_alive || client.is_draining() || request.head.framing != Framing::Empty;
            let to = Downstream { close, old_keep_alive: request.head.old, ..closing(&request.id) };
            let bodiless = request.head.method() == "HEAD";
            return match reply.send(client, &to, bodiless).await {
                Ok(()) if !close => Next::Keep,
                Ok(()) => Next::Close,
                Err(_) => Next::Abort,
            };
        }
    };
    serve::serve(gateway, client, &request, dialect).await
}

fn closing(request_id: &str) -> Downstream<'_> {
    Downstream { framing: Framing::Empty, announced: None, request_id, close: true, old_keep_alive: false }
}
