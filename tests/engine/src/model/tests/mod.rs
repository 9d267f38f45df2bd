//! The model against worked values, tables, a brute-force cache and random workloads.

mod properties;
mod tables;

use super::*;
use std::sync::Arc;

/// A model with small blocks, so that a test can count them.
fn small(block_tokens: usize, blocks: usize, max_batched_tokens: usize, max_sequences: usize) -> Model {
    let limits =
        Limits { block_tokens, blocks, max_batched_tokens, max_sequences, max_model_tokens: block_tokens * blocks };
    Model::new(limits, Curve::default(), 1.0).unwrap()
}

fn request(model: &Model, id: u64, prompt: impl Into<Arc<[u32]>>, output: usize) -> Request {
    let prompt = prompt.into();
    let output: Vec<u32> = (0..output as u32).map(|i| 1_000 + i).collect();
    Request::new(
        RequestId(id),
        prompt,
        output.into(),
        FinishReason::Length,
        Domain::default(),
        model.limits().block_tokens,
    )
}

/// Runs until idle; returns every step.
fn run(model: &mut Model, mut now_us: u64) -> Vec<StepOutcome> {
    let mut steps = Vec::new();
    while let Some(step) = model.step(now_us) {
        assert!(step.ends_at_us > now_us);
        model.assert_consistent();
        now_us = step.ends_at_us;
        steps.push(step);
    }
    steps
}

#[test]
fn curves_have_the_published_values() {
    let curve = Curve::default();
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 0.06, "{value} is not {expected}");
    near(curve.prefill_ms(0, 512), 24.4);
    near(curve.prefill_ms(0, 2_048), 49.4);
    near(curve.prefill_ms(0, 8_192), 169.1);
    near(curve.decode_ms(0.0), 5.74);
    near(curve.decode_ms(0.5), 26.3);
    near(curve.decode_ms(1.0), 34.0);
    assert_eq!(curve.decode_ms(7.0), curve.decode_ms(1.0), "usage is capped");
}

#[test]
fn a_curve_file_replaces_what_it_names_and_nothing_else() {
    let curve = Curve::from_toml("prefill_constant_ms = 1.5\ndecode_floor_ms = 9.0\n").unwrap();
    assert_eq!(curve.prefill_constant_ms, 1.5);
    assert_eq!(curve.decode_ms(0.0), 9.0);
    assert_eq!(curve.prefill_linear_ms, Curve::default().prefill_linear_ms);
    assert!(Curve::from_toml("prefill_konstant = 1").unwrap_err().contains("prefill_konstant"));
    assert!(Curve::from_toml("prefill_constant_ms = inf").is_err());
}

#[test]
fn hashes_equal_the_engines() {
    // vLLM 0.32 with --prefix-caching-hash-algo sha256_cbor, tokens 1..=64 in blocks of 32.
    let hashes = hash::chain(&Domain::default(), 1..65, 32);
    let hex: Vec<String> = hashes.iter().map(|h| h.bytes().iter().map(|b| format!("{b:02x}")).collect()).collect();
    assert_eq!(
        hex,
        [
            "b2a727d31d71531aa716681e4783e0219ad14445f650848ba95e744b6ac91bce",
            "0e511777fef56bf89905655aeeed8e662902ebfa6b08f4c53a69a32ed05d8f2e"
        ]
    );
    let salted = Domain { salt: Some("s".into()), ..Domain::default() };
    let salted = hash::chain(&salted, 1..33, 32)[0];
    assert_eq!(salted.bytes()[..8], [0x67, 0x51, 0x83, 0xba, 0xd7, 0x1a, 0xc9, 0xe0], "cache_salt \"s\"");
    assert_eq!(hashes[0].low64(), 0x9ad1_4445_f650_848b_a95e_744b_6ac9_1bce_u128 as u64);
}

#[test]
fn page_hashes_equal_sglangs() {
    let signed = |tokens: &[u32], page: usize| -> Vec<i64> {
        let domain = Domain { rule: Rule::SgLang, ..Domain::default() };
        hash::chain(&domain, tokens.iter().copied(), page).iter().map(hash::BlockHash::high64).collect()
    };
    assert_eq!(signed(&[1, 2, 3, 4], 4), [-3_488_128_144_981_237_669]);
    let tens: Vec<u32> = (1..=8).map(|n| n * 10).collect();
    let pages =
        [978_178_666_101_069_530, -895_308_556_211_281_782, -8_033_692_805_846_017_938, 835_415_944_263_129_316];
    assert_eq!(signed(&tens, 2), pages);
}

#[test]
fn salt_and_adapter_separate_caches() {
    let salted = Domain { salt: Some("tenant-7".into()), ..Domain::default() };
    let adapted = Domain { lora: Some((1, "style".into())), ..Domain::default() };
    let chains: Vec<_> = [Domain::default(), salted.clone(), adapted.clone()]
        .iter()
        .map(|domain| hash::chain(domain, 0..32, 16))
        .collect();
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        assert_ne!(chains[a][0], chains[b][0]);
        assert_ne!(chains[a][1], chains[b][1]);
    }
    assert_eq!(salted.extra_keys(0).collect::<Vec<_>>(), [("cache_salt", "tenant-7")]);
    assert_eq!(salted.extra_keys(1).count(), 0, "the salt is in the first block only");
    assert_eq!(adapted.extra_keys(3).collect::<Vec<_>>(), [("lora_name", "style")]);
}

#[test]
fn a_step_costs_its_prefill_plus_its_decode_once() {
    let mut model = small(16, 1_024, 8_192, 8);
    let first = request(&model, 1, vec![7; 512], 3);
    model.submit(0, first).unwrap();
    let prefill = model.step(0).unwrap();
    assert_eq!(prefill.ends_at_us, (Curve::default().prefill_ms(0, 512) * 1_000.0).round() as u64);
    let second = request(&model, 2, vec![9; 100], 1);
    model.submit(prefill.ends_at_us, second).unwrap();
    let mixed = model.step(prefill.ends_at_us).unwrap();
    // 33 blocks for 513 tokens and 7 for 100.
    let expected = Curve::default().prefill_ms(0, 100) + Curve::default().decode_ms(40.0 / 1_024.0);
    assert_eq!(mixed.ends_at_us - mixed.began_at_us, (expected * 1_000.0).round() as u64);
    assert_eq!((mixed.prefill_tokens, mixed.decode_tokens), (100, 1));
}

#[test]
fn speedup_divides_every_step() {
    let limits = Limits { blocks: 1_024, max_model_tokens: 4_096, ..Limits::default() };
    let mut slow = Model::new(limits.clone(), Curve::default(), 1.0).unwrap();
    let mut fast = Model::new(limits, Curve::default(), 10.0).unwrap();
    for model in [&mut slow, &mut fast] {
        let one = request(model, 1, vec![3; 2_048], 2);
        model.submit(0, one).unwrap();
    }
    let (slow, fast) = (run(&mut slow, 0), run(&mut fast, 0));
    for (s, f) in slow.iter().zip(&fast) {
        assert_eq!(f.ends_at_us - f.began_at_us, ((s.ends_at_us - s.began_at_us) as f64 / 10.0).round() as u64);
    }
}

#[test]
fn limits_and_requests_that_cannot_work_are_refused() {
    let refuse = |limits: Limits| Model::new(limits, Curve::default(), 1.0).map(drop).unwrap_err();
    assert!(matches!(refuse(Limits { blocks: 0, ..Limits::default() }), Refusal::BadLimits(_)));
    assert!(matches!(refuse(Limits { blocks: 10, ..Limits::default() }), Refusal::BadLimits(_)));
    assert!(Model::new(Limits::default(), Curve::default(), 0.0).is_err());
    let mut model = small(4, 4, 16, 2);
    let long = request(&model, 1, vec![1; 15], 2);
    assert_eq!(model.submit(0, long), Err(Refusal::TooLong { tokens: 17, limit: 16 }));
    let empty = request(&model, 1, Vec::new(), 2);
    assert_eq!(model.submit(0, empty), Err(Refusal::Empty));
    let other = Request::new(RequestId(1), vec![1].into(), vec![1].into(), FinishReason::Stop, Domain::default(), 8);
    assert_eq!(model.submit(0, other), Err(Refusal::BlockSize));
    assert!(!model.has_work());
}

#[test]
fn abort_frees_blocks_at_once_in_every_state() {
    let mut model = small(4, 8, 8, 1);
    for id in 1..=2 {
        let next = request(&model, id, vec![id as u32; 8], 4);
        model.submit(0, next).unwrap();
    }
    model.step(0).unwrap();
    assert_eq!(model.load(), Load { running: 1, waiting: 1, used_blocks: 2 });
    assert!(model.abort(RequestId(1)));
    model.assert_consistent();
    assert_eq!(model.load(), Load { running: 0, waiting: 1, used_blocks: 0 });
    assert!(model.abort(RequestId(2)));
    assert!(!model.abort(RequestId(2)), "it is gone");
    assert!(model.step(0).is_none());
}

#[test]
fn a_request_known_by_its_hashes_fares_as_one_known_by_its_tokens() {
    let mut told = small(4, 16, 64, 4);
    let mut untold = small(4, 16, 64, 4);
    for id in 0..3 {
        let whole = request(&told, id, (0..9 + id as u32).collect::<Vec<_>>(), 6);
        let (prompt, output) = (whole.prompt_tokens(), whole.output_tokens());
        let bare = Request::from_hashes(RequestId(id), prompt, output, FinishReason::Length, whole.hashes().into(), 4);
        assert_eq!(untold.findable_tokens(bare.hashes(), prompt), told.findable_tokens(whole.hashes(), prompt));
        told.submit(0, whole).unwrap();
        untold.submit(0, bare).unwrap();
        assert_eq!(told.pending_prefill().collect::<Vec<_>>(), untold.pending_prefill().collect::<Vec<_>>());
        let bare = |step: StepOutcome| (step.ends_at_us, step.produced, step.admitted, step.prefill_tokens, step.load);
        let steps = |model: &mut Model| run(model, 0).into_iter().map(bare).collect::<Vec<_>>();
        assert_eq!(steps(&mut told), steps(&mut untold));
    }
    let short = Request::from_hashes(RequestId(9), 9, 6, FinishReason::Length, [].into(), 4);
    assert_eq!(untold.submit(0, short), Err(Refusal::Hashes));
}

#[test]
fn a_change_of_pace_holds_from_the_next_step_on() {
    let mut model = small(4, 16, 64, 4);
    model.submit(0, request(&model, 0, vec![1; 9], 2)).unwrap();
    let usual = model.step(0).unwrap().ends_at_us;
    model.set_speedup(0.5);
    model.set_speedup(f64::NAN);
    let step = model.step(usual).unwrap();
    let decode_us = Curve::default().decode_ms(3.0 / 16.0) * 2_000.0;
    assert_eq!((step.ends_at_us - usual) as f64, decode_us.round());
}
