use super::*;
use proptest::prelude::*;

fn idle(cached: u32, uncached: u32, ttft_ms: f64) -> Observation {
    Observation {
        cached_tokens: cached,
        uncached_tokens: uncached,
        ttft_ms: Some(ttft_ms),
        itl_ms: None,
        load: LocalLoad::default(),
    }
}

/// Prompts of a chat workload: short, long, cold and mostly cached.
fn prompts(rng: &mut fastrand::Rng) -> (u32, u32) {
    (rng.u32(0..8_000), rng.u32(1..6_000))
}

fn close(one: f64, two: f64, share: f64) -> bool {
    (one - two).abs() <= share * two.abs()
}

#[test]
fn the_published_curve_is_the_prior() {
    // Worked values of the curve: 512, 2,048 and 8,192 tokens.
    for (tokens, ms) in [(512, 24.4), (2_048, 49.4), (8_192, 169.1)] {
        assert!((PRIOR.prefill_ms(0, tokens) - ms).abs() < 0.06, "{tokens}: {}", PRIOR.prefill_ms(0, tokens));
    }
    assert_eq!(Fit::default().rates(&PRIOR), PRIOR);
    assert_eq!(Fit::default().confidence(), 0.0);
}

#[test]
fn a_cached_prompt_still_pays_for_its_context() {
    assert!(PRIOR.prefill_ms(30_000, 100) > PRIOR.prefill_ms(0, 100));
    assert!(PRIOR.prefill_ms(30_000, 100) < PRIOR.prefill_ms(0, 30_100));
}

#[test]
fn learns_faster_and_slower_workers() {
    for speed in [0.02, 0.3, 1.0, 5.0] {
        let truth = Rates {
            alpha: PRIOR.alpha * speed,
            beta: PRIOR.beta * speed,
            gamma: PRIOR.gamma * speed,
            decode_ms: PRIOR.decode_ms * speed,
            context_ms: PRIOR.context_ms * speed,
        };
        let mut rng = fastrand::Rng::with_seed(7);
        let mut fit = Fit::default();
        for _ in 0..300 {
            let (cached, uncached) = prompts(&mut rng);
            let noise = 0.9 + 0.2 * rng.f64();
            let mut seen = idle(cached, uncached, truth.prefill_ms(cached, uncached) * noise);
            seen.itl_ms = Some(truth.decode_ms * noise);
            assert!(fit.observe(&seen, &PRIOR));
        }
        let rates = fit.rates(&PRIOR);
        for (cached, uncached) in [(0, 500), (0, 4_000), (6_000, 200)] {
            let (found, wanted) = (rates.prefill_ms(cached, uncached), truth.prefill_ms(cached, uncached));
            assert!(close(found, wanted, 0.2), "speed {speed}, {cached}+{uncached}: {found} against {wanted}");
        }
        let decode_share = if speed < 0.1 { 10.0 } else { 0.4 };
        assert!(close(rates.decode_ms, truth.decode_ms, decode_share), "{} {}", rates.decode_ms, truth.decode_ms);
        assert!(fit.confidence() > 0.9);
    }
}

#[test]
fn a_few_outliers_move_it_little() {
    let mut rng = fastrand::Rng::with_seed(9);
    let mut fit = Fit::default();
    for turn in 0..300 {
        let (cached, uncached) = prompts(&mut rng);
        let honest = PRIOR.prefill_ms(cached, uncached);
        // Every tenth exchange met a pause of the engine of 20 s.
        let ttft = if turn % 10 == 0 { honest + 20_000.0 } else { honest };
        fit.observe(&idle(cached, uncached, ttft), &PRIOR);
    }
    let found = fit.rates(&PRIOR).prefill_ms(0, 2_000);
    assert!(close(found, PRIOR.prefill_ms(0, 2_000), 0.15), "{found}");
}

#[test]
fn one_observation_does_not_take_over() {
    let mut fit = Fit::default();
    fit.observe(&idle(0, 1_000, 300_000.0), &PRIOR);
    let (found, prior) = (fit.rates(&PRIOR).prefill_ms(0, 1_000), PRIOR.prefill_ms(0, 1_000));
    assert!(found > prior && found < 2.0 * prior, "{found} against {prior}");
}

#[test]
fn queued_exchanges_are_corrected_or_left_out() {
    let mut fit = Fit::default();
    let busy = LocalLoad {
        requests: 9,
        prefill_requests: 9,
        prefill_tokens: 40_000,
        prefill_squares: 9 * 4_444 * 4_444,
        decode_tokens: 0,
    };
    assert!(!fit.observe(&Observation { load: busy, ..idle(0, 500, 900.0) }, &PRIOR), "the queue hides the speed");
    let light =
        LocalLoad { requests: 1, prefill_requests: 1, prefill_tokens: 500, prefill_squares: 250_000, decode_tokens: 0 };
    let ttft = PRIOR.prefill_ms(0, 8_000) + PRIOR.queued_ms(&light);
    assert!(fit.observe(&Observation { load: light, ..idle(0, 8_000, ttft) }, &PRIOR));
    assert!(close(fit.rates(&PRIOR).prefill_ms(0, 8_000), PRIOR.prefill_ms(0, 8_000), 0.01));
}

/// Gaps of a worker whose decode step takes `base_ms` and `context_ms` for each token in flight.
fn decoding(fit: &mut Fit, base_ms: f64, context_ms: f64, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    for _ in 0..300 {
        let (prompt, decode_tokens) = (rng.u32(100..5_000), rng.u32(0..200_000));
        let load = LocalLoad { requests: 5, decode_tokens, ..LocalLoad::default() };
        let noise = 0.9 + 0.2 * rng.f64();
        let itl_ms = (base_ms + context_ms * f64::from(decode_tokens + prompt)) * noise;
        fit.observe(&Observation { itl_ms: Some(itl_ms), ttft_ms: None, load, ..idle(0, prompt, 0.0) }, &PRIOR);
    }
}

#[test]
fn learns_what_context_costs() {
    for (base_ms, context_ms) in [(5.74, PRIOR.context_ms), (14.0, 1.3e-4), (30.0, 2e-5)] {
        let mut fit = Fit::default();
        decoding(&mut fit, base_ms, context_ms, 3);
        let found = fit.rates(&PRIOR).context_ms;
        assert!(close(found, context_ms, 0.3), "{base_ms} + {context_ms}·s: {found}");
    }
    let mut flat = Fit::default();
    decoding(&mut flat, 20.0, 0.0, 3);
    let found = flat.rates(&PRIOR).context_ms;
    assert!((0.0..PRIOR.context_ms / 4.0).contains(&found), "no slope at all: {found}");
}

/// A worker whose prefill takes `times` what the prior says, with the noise of a seed.
fn paced(times: f64, seed: u64) -> Fit {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut fit = Fit::default();
    for _ in 0..200 {
        let (cached, uncached) = prompts(&mut rng);
        let noise = 0.85 + 0.3 * rng.f64();
        fit.observe(&idle(cached, uncached, PRIOR.prefill_ms(cached, uncached) * times * noise), &PRIOR);
    }
    fit
}

#[test]
fn chance_does_not_tell_equal_workers_apart() {
    for seed in 0..20 {
        let fit = paced(1.0, seed);
        assert_ne!(fit.rates(&PRIOR), PRIOR);
        assert_eq!(fit.rates_within(&PRIOR, 0), PRIOR, "seed {seed}");
    }
    let slow = paced(2.0, 1).rates_within(&PRIOR, 0);
    assert!(close(slow.prefill_ms(0, 2_000), 2.0 * PRIOR.prefill_ms(0, 2_000), 0.15), "{slow:?}");
}

#[test]
fn who_is_left_out_for_being_slow_is_tried_anew_in_time() {
    let fit = paced(4.0, 2);
    let times = |missed: u64| fit.rates_within(&PRIOR, missed).prefill_ms(0, 2_000) / PRIOR.prefill_ms(0, 2_000);
    assert!(times(0) > 3.5 && times(1_000) > 2.0, "{} {}", times(0), times(1_000));
    assert_eq!(times(12_000), 1.0, "as if it had never been measured");
    assert_eq!(fit.rates_within(&PRIOR, u64::MAX), PRIOR);
}

#[test]
fn garbage_teaches_nothing() {
    let mut fit = Fit::default();
    for ms in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 0.0, 1e9] {
        let seen = Observation { itl_ms: Some(ms), ..idle(0, 100, ms) };
        assert!(!fit.observe(&seen, &PRIOR), "{ms}");
    }
    assert!(!fit.observe(&idle(0, 0, 10.0), &PRIOR), "nothing was computed");
    assert!(!fit.observe(&idle(u32::MAX, 1, 10.0), &PRIOR));
    assert_eq!(fit.rates(&PRIOR), PRIOR);
}

#[test]
fn the_queue_of_nobody_takes_no_time() {
    assert_eq!(PRIOR.queued_ms(&LocalLoad::default()), 0.0);
}

proptest! {
    #[test]
    fn rates_stay_finite_and_not_negative(
        seen in prop::collection::vec((any::<u32>(), any::<u32>(), any::<f64>(), any::<f64>(), any::<u32>()), 0..200),
    ) {
        let mut fit = Fit::default();
        for (cached, uncached, ttft, itl, tokens) in seen {
            let load = LocalLoad { prefill_requests: tokens % 3, prefill_tokens: tokens, ..LocalLoad::default() };
            fit.observe(&Observation { itl_ms: Some(itl), load, ..idle(cached, uncached, ttft) }, &PRIOR);
            let rates = fit.rates(&PRIOR);
            for value in [rates.alpha, rates.beta, rates.gamma, rates.decode_ms, rates.context_ms] {
                prop_assert!(value.is_finite() && value >= 0.0, "{:?}", rates);
            }
        }
    }

    #[test]
    fn honest_observations_of_any_shape_keep_prefill_monotone(
        seen in prop::collection::vec((0u32..50_000, 1u32..50_000, 0.1f64..100_000.0), 1..60),
    ) {
        let mut fit = Fit::default();
        for (cached, uncached, ttft) in seen {
            fit.observe(&idle(cached, uncached, ttft), &PRIOR);
        }
        let rates = fit.rates(&PRIOR);
        prop_assert!(rates.prefill_ms(100, 200) <= rates.prefill_ms(100, 300));
        prop_assert!(rates.prefill_ms(100, 200) <= rates.prefill_ms(200, 200));
    }
}
