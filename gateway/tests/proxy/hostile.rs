//! Every phase of a request × what its client or its engine may do there: the right answer, everything given back, nothing wedged.

use crate::client::{CHAT, Client, STREAM, post};
use crate::engine::{EVENTS, Engine, ROLE, Step, frame, json, token, whole_stream, write};
use crate::rig::Rig;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// What has been said before something goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Head,
    Body,
    FirstByte,
    Held,
    Streaming,
    Whole,
}

const PHASES: [Phase; 6] = [Phase::Head, Phase::Body, Phase::FirstByte, Phase::Held, Phase::Streaming, Phase::Whole];

impl Phase {
    /// What the engine has written when it is reached.
    fn written(self) -> String {
        match self {
            Self::Head | Self::Body | Self::FirstByte => String::new(),
            Self::Held => format!("{EVENTS}{}", frame(ROLE)),
            Self::Streaming => format!("{EVENTS}{}{}", frame(ROLE), frame(&token("hello"))),
            Self::Whole => {
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{".to_owned()
            }
        }
    }

    fn body(self) -> &'static str {
        if self == Self::Whole { CHAT } else { STREAM }
    }

    /// Brings a client and the engine there.
    async fn reach(self, rig: &Rig, engine: &Engine, seen: usize) -> Client {
        let mut client = rig.client().await;
        let request = post("/v1/chat/completions", self.body());
        let at = match self {
            Self::Head => 30,
            Self::Body => request.len() - 10,
            _ => request.len(),
        };
        client.send(&request[..at]).await;
        if at == request.len() {
            engine.wait_seen(seen).await;
        }
        if self == Self::Streaming {
            client.wait_for("hello").await;
        }
        client
    }
}

async fn still_serves(rig: &Rig, engine: &Engine) {
    engine.script(|_| vec![write(json(200, "{}"))]);
    let mut client = rig.client().await;
    client.chat(CHAT).await;
    assert_eq!(client.answer().await.status, 200);
    rig.wait_idle().await;
    for _ in 0..2_000 {
        if rig.gateway.limits.connections() <= 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{} connections are open", rig.gateway.limits.connections());
}

#[tokio::test]
async fn clients_that_reset_garble_or_flood_in_any_phase_leave_nothing_behind() {
    for phase in PHASES {
        for how in ["reset", "close", "garbage", "flood"] {
            let start = phase.written();
            let steps = vec![write(start.as_str()), Step::UntilClosed];
            let engine = Engine::start(move |_| steps.clone()).await;
            let rig = Rig::with(&[&engine], |config| {
                // Who sends more of the next request than is kept is no longer read from: the engine's deadlines end it.
                if how == "flood" {
                    config.upstream.first_byte_timeout = Duration::from_secs(1);
                    config.upstream.idle_timeout = Duration::from_secs(1);
                }
            })
            .await;
            let mut client = phase.reach(&rig, &engine, 1).await;
            match how {
                "reset" => client.socket.set_zero_linger().unwrap(),
                "garbage" => client.send(b"\x00\xff\r\n\r\nGET").await,
                // What is not read fills the system's buffers: the rest is not waited for.
                "flood" => _ = client.socket.try_write(&vec![b'x'; 1 << 20]),
                _ => {}
            }
            drop(client);
            let reached = !matches!(phase, Phase::Head | Phase::Body);
            if reached {
                engine.wait_closed(1).await;
            }
            rig.wait_idle().await;
            let seen = engine.seen().len();
            assert!(seen == usize::from(reached) || how != "close" && how != "reset", "{phase:?} {how}: {seen}");
            still_serves(&rig, &engine).await;
        }
    }
}

/// What the client reads when its only engine goes wrong in a phase.
#[tokio::test]
async fn engines_that_reset_close_stall_garble_or_flood_in_any_phase_end_in_the_right_answer() {
    for phase in PHASES.into_iter().filter(|phase| !matches!(phase, Phase::Head | Phase::Body)) {
        for how in ["reset", "close", "stall", "garbage", "flood"] {
            let start = phase.written();
            let mut steps = vec![write(start.as_str())];
            // What comes together with the first token would be seen before it is passed on.
            let bell = Arc::new(Notify::new());
            if phase == Phase::Streaming {
                steps.push(Step::Wait(bell.clone()));
            }
            match how {
                "reset" => steps.push(Step::Reset),
                "close" => steps.push(Step::Close),
                "stall" => steps.push(Step::UntilClosed),
                "garbage" => steps.extend([write("zz\r\nnonsense\r\n\r\n\x00"), Step::UntilClosed]),
                _ => steps.extend([write("x".repeat(4 << 20)), Step::UntilClosed]),
            }
            let engine = Engine::start(move |_| steps.clone()).await;
            let rig = Rig::with(&[&engine], |config| {
                config.upstream.first_byte_timeout = Duration::from_millis(300);
                config.upstream.idle_timeout = Duration::from_millis(300);
            })
            .await;
            let mut client = rig.client().await;
            client.chat(phase.body()).await;
            if phase == Phase::Streaming {
                client.wait_for("hello").await;
                bell.notify_one();
            }
            let answer = client.answer().await;
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            let case = format!("{phase:?} {how}: {} {text:.200}", answer.head);
            match phase {
                Phase::Streaming => {
                    assert!(answer.status == 200 && answer.complete, "{case}");
                    assert!(text.contains("hello") && text.contains("\"error\""), "{case}");
                    assert!(text.ends_with("data: [DONE]\n\n"), "{case}");
                }
                // A body of known length that gets its bytes is whole, whatever they are.
                Phase::Whole if matches!(how, "flood") => {
                    assert!(answer.complete && answer.body.len() == 100, "{case}")
                }
                _ => {
                    assert!(matches!(answer.status, 502 | 504), "{case}");
                    answer.error();
                    assert_eq!(
                        answer.status == 504,
                        how == "stall" || phase == Phase::Whole && how == "garbage",
                        "{case}"
                    );
                }
            }
            rig.wait_idle().await;
            drop(client);
            still_serves(&rig, &engine).await;
        }
    }
}

#[tokio::test]
async fn trailers_of_requests_and_answers_end_here() {
    let answer = format!("{EVENTS}{}{}0\r\nx-secret-trailer: 1\r\n\r\n", frame(&token("a")), frame("[DONE]"));
    let engine = Engine::start(move |_| vec![write(answer.as_str())]).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntrailer: x-t\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{STREAM}\r\n0\r\n\
         x-t: 1\r\ncontent-length: 5\r\n\r\n",
        STREAM.len()
    );
    for _ in 0..2 {
        client.send(&request).await;
        let answer = client.answer().await;
        assert!(answer.complete && !answer.text().contains("trailer"), "{}", answer.text());
    }
    for seen in engine.seen() {
        assert!(!seen.head.contains("x-t") && !seen.head.contains("trailer"), "{}", seen.head);
    }
    rig.wait_idle().await;
}

#[tokio::test]
async fn both_sides_notice_a_peer_that_vanished_without_a_word() {
    let bell = Arc::new(Notify::new());
    let steps = vec![Step::Wait(bell.clone()), write(whole_stream(&["a"]))];
    let engine = Engine::start(move |_| steps.clone()).await;
    let rig = Rig::start(&[&engine]).await;
    let mut client = rig.client().await;
    client.chat(STREAM).await;
    engine.wait_seen(1).await;
    let ours = client.socket.local_addr().unwrap();
    assert_eq!(crate::limits::keepalive_towards(ours), [true], "the client's side");
    let opened = crate::limits::keepalive_towards(engine.address);
    assert!(opened.contains(&true), "the engine's side: {opened:?}");
    bell.notify_one();
    assert!(client.answer().await.complete);
}
