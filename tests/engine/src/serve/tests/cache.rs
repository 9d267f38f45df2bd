//! Cache, events, aborts and ranks, seen from outside.

use super::*;
use serde_json::json;

/// A subscriber to one rank that has certainly joined.
struct Subscriber {
    socket: zmq::Socket,
    _context: zmq::Context,
}

impl Subscriber {
    /// Joins `rank`; `client` sends prompts until one is heard of.
    async fn join(engine: &EngineHandle, rank: usize, client: &mut Client) -> Self {
        let context = zmq::Context::new();
        let socket = context.socket(zmq::SUB).unwrap();
        socket.connect(&engine.event_endpoints(rank).unwrap().0).unwrap();
        socket.set_subscribe(b"").unwrap();
        let subscriber = Self { socket, _context: context };
        for at in 0..2_000u32 {
            let prompt: Vec<u32> = (0..33).map(|i| 1_000_000 + at * 64 + i).collect();
            complete(client, rank, json!({ "prompt": prompt, "max_tokens": 1 })).await;
            if subscriber.next_within(20).is_some() {
                while subscriber.next_within(200).is_some() {}
                return subscriber;
            }
        }
        panic!("never joined");
    }

    fn next_within(&self, ms: i32) -> Option<(u64, Value)> {
        self.socket.set_rcvtimeo(ms).unwrap();
        let frames = self.socket.recv_multipart(0).ok()?;
        let seq = u64::from_be_bytes(frames[1].as_slice().try_into().unwrap());
        Some((seq, rmp_serde::from_slice(&frames[2]).unwrap()))
    }

    fn next(&self) -> Value {
        self.next_within(30_000).expect("a batch in time").1
    }
}

async fn complete(client: &mut Client, rank: usize, body: Value) -> Value {
    client.send_post("/v1/completions", &format!("x-data-parallel-rank: {rank}\r\n"), &body.to_string()).await;
    json_of(&client.response().await)
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_tell_what_the_cache_holds() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let subscriber = Subscriber::join(&engine, 0, &mut client).await;
    // 70 tokens: two blocks; six outputs after it complete none.
    let prompt: Vec<u32> = (1_000..1_070).collect();
    let answer = complete(&mut client, 0, json!({ "prompt": prompt, "max_tokens": 6 })).await;
    assert_eq!(cached(&answer), 0);
    let batch = subscriber.next();
    assert_eq!(batch[2], 0, "rank");
    let event = &batch[1][0];
    assert_eq!((&event["type"], &event["parent_block_hash"]), (&json!("BlockStored"), &Value::Null));
    assert_eq!(event["token_ids"], json!(prompt[..64]));
    // The recorded habits: 70 tokens hit 64, their first 64 hit 32 and store the second block again.
    assert_eq!(cached(&complete(&mut client, 0, json!({ "prompt": prompt, "max_tokens": 1 })).await), 64);
    assert_eq!(cached(&complete(&mut client, 0, json!({ "prompt": prompt[..64], "max_tokens": 1 })).await), 32);
    let again = subscriber.next();
    assert_eq!(again[1].as_array().unwrap().len(), 1, "nothing was told of the hit before");
    assert_eq!(again[1][0]["block_hashes"][0], event["block_hashes"][1]);
    assert_eq!(again[1][0]["parent_block_hash"], event["block_hashes"][0]);
    // Output fills blocks too: 60 + 40 tokens, the last not computed.
    let prompt: Vec<u32> = (2_000..2_060).collect();
    let body = json!({ "prompt": prompt, "max_tokens": 40, "return_token_ids": true });
    let answer = complete(&mut client, 0, body).await;
    let first = subscriber.next();
    let filled: Vec<Value> = (0..2).map(|_| subscriber.next()[1][0].clone()).collect();
    assert_eq!(filled[0]["parent_block_hash"], first[1][0]["block_hashes"][0]);
    assert_eq!(filled[1]["parent_block_hash"], filled[0]["block_hashes"][0]);
    let output = answer["choices"][0]["token_ids"].as_array().unwrap();
    assert_eq!(filled[1]["token_ids"].as_array().unwrap()[..], output[4..36]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_told_with_the_next_step() {
    let engine = fast().start().await.unwrap();
    let mut client = client(&engine).await;
    let subscriber = Subscriber::join(&engine, 0, &mut client).await;
    let body = json!({ "prompt": (0..40).collect::<Vec<u32>>(), "max_tokens": 1 });
    complete(&mut client, 0, body.clone()).await;
    subscriber.next();
    assert!(client.post("/reset_prefix_cache", "").await.starts_with("HTTP/1.1 200"));
    assert!(subscriber.next_within(200).is_none(), "an idle engine says nothing");
    assert_eq!(cached(&complete(&mut client, 0, body).await), 0);
    let batch = subscriber.next();
    let kinds: Vec<&Value> = batch[1].as_array().unwrap().iter().map(|event| &event["type"]).collect();
    assert_eq!(kinds, ["AllBlocksCleared", "BlockStored"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn salts_and_adapters_have_caches_of_their_own() {
    let engine = fast().adapter("style").start().await.unwrap();
    let mut client = client(&engine).await;
    let subscriber = Subscriber::join(&engine, 0, &mut client).await;
    let prompt: Vec<u32> = (0..70).collect();
    let plain = json!({ "prompt": prompt, "max_tokens": 1 });
    let salted = json!({ "prompt": prompt, "max_tokens": 1, "cache_salt": "tenant-7" });
    let adapted = json!({ "prompt": prompt, "max_tokens": 1, "model": "style" });
    for body in [&plain, &salted, &adapted] {
        assert_eq!(cached(&complete(&mut client, 0, body.clone()).await), 0);
    }
    for body in [&plain, &salted, &adapted] {
        assert_eq!(cached(&complete(&mut client, 0, body.clone()).await), 64);
    }
    let events: Vec<Value> = (0..3).map(|_| subscriber.next()[1][0].clone()).collect();
    assert_eq!(events[0]["extra_keys"], json!([null, null]));
    assert_eq!(events[1]["extra_keys"], json!([["tenant-7"], null]));
    assert_eq!((&events[2]["lora_id"], &events[2]["lora_name"]), (&json!(1), &json!("style")));
    let models = json_of(&client.get("/v1/models").await);
    assert_eq!((&models["data"][1]["id"], &models["data"][1]["parent"]), (&json!("style"), &json!("tiny")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_have_their_own_cache_events_and_metrics() {
    let engine = fast().ranks(2).start().await.unwrap();
    let mut client = client(&engine).await;
    let subscriber = Subscriber::join(&engine, 1, &mut client).await;
    let body = json!({ "prompt": (0..70).collect::<Vec<u32>>(), "max_tokens": 1 });
    assert_eq!(cached(&complete(&mut client, 1, body.clone()).await), 0);
    assert_eq!(subscriber.next()[2], 1, "the rank is told");
    assert_eq!(cached(&complete(&mut client, 0, body.clone()).await), 0, "another cache");
    assert_eq!(cached(&complete(&mut client, 1, body.clone()).await), 64);
    let sources = json_of(&client.get("/kv_event_sources").await);
    assert_ne!(sources["0"]["endpoint"], sources["1"]["endpoint"]);
    assert!(
        client.get("/metrics").await.contains("vllm:prefix_cache_hits_total{engine=\"1\",model_name=\"tiny\"} 64.0")
    );
    client.send_post("/v1/completions", "x-data-parallel-rank: 2\r\n", &body.to_string()).await;
    let refused = client.response().await;
    assert!(refused.starts_with("HTTP/1.1 400") && refused.contains("out of range [0, 2)"), "{refused}");
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_blocks() {
    for stream in [true, false] {
        let engine = slow().start().await.unwrap();
        let mut leaving = client(&engine).await;
        let body = json!({ "prompt": (0..100).collect::<Vec<u32>>(), "max_tokens": 50, "n": 2, "stream": stream });
        leaving.send_post("/v1/completions", "", &body.to_string()).await;
        eventually("both choices run", || engine.load(0).running == 2).await;
        assert!(engine.load(0).used_blocks >= 4);
        drop(leaving);
        eventually("both are aborted", || engine.aborted() == 2).await;
        // A step takes seconds here: the blocks are free before the one under way has ended.
        assert_eq!(engine.model_load(0), crate::model::Load::default());
    }
}

#[tokio::test]
async fn waiting_requests_leave_too() {
    let mut builder = slow();
    builder.config_mut().limits.max_sequences = 1;
    let engine = builder.start().await.unwrap();
    let mut first = client(&engine).await;
    first.send_post("/v1/completions", "", r#"{"prompt":"a","max_tokens":50}"#).await;
    eventually("the first runs", || engine.load(0).running == 1).await;
    let mut second = client(&engine).await;
    second.send_post("/v1/completions", "", r#"{"prompt":"b","max_tokens":50}"#).await;
    eventually("the second waits", || engine.load(0).waiting == 1).await;
    drop(second);
    eventually("the second is gone", || engine.load(0).waiting == 0).await;
    assert_eq!(engine.load(0).running, 1);
}
