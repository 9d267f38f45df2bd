//! Random workloads: conservation of blocks, cached tokens against a brute-force cache, and no starvation.

use super::*;
use proptest::prelude::*;

/// What a random workload does next.
#[derive(Clone, Debug)]
enum Action {
    Submit { prompt: Vec<u32>, output: usize },
    Step,
    Abort(usize),
    Reset,
}

fn action() -> impl Strategy<Value = Action> {
    // Few distinct tokens and short runs: prefixes collide often.
    let prompt = proptest::collection::vec(prop_oneof![5 => Just(1u32), 1 => Just(2u32)], 1..24);
    prop_oneof![
        3 => (prompt, 1usize..9).prop_map(|(prompt, output)| Action::Submit { prompt, output }),
        6 => Just(Action::Step),
        1 => (0usize..16).prop_map(Action::Abort),
        1 => Just(Action::Reset),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Whatever happens, blocks are conserved, references equal the shares held, every request ends, and produces its
    /// tokens once each and in order.
    #[test]
    fn blocks_are_conserved_and_nobody_starves(
        actions in proptest::collection::vec(action(), 1..120),
        blocks in 8usize..20,
        batch in 1usize..20,
        places in 1usize..5,
    ) {
        let mut model = small(4, blocks, batch, places);
        let (mut now_us, mut next) = (0, 0u64);
        let mut owed: HashMap<RequestId, (usize, usize)> = HashMap::new();
        let mut step = |model: &mut Model, owed: &mut HashMap<RequestId, (usize, usize)>| {
            let Some(step) = model.step(now_us) else { return false };
            now_us = step.ends_at_us;
            model.assert_consistent();
            for produced in &step.produced {
                let (seen, total) = owed.get_mut(&produced.id).expect("known request");
                assert_eq!(produced.position, *seen);
                *seen += 1;
                assert_eq!(produced.finish.is_some(), seen == total);
                if produced.finish.is_some() {
                    owed.remove(&produced.id);
                }
            }
            true
        };
        for action in actions {
            match action {
                Action::Submit { prompt, output } => {
                    let one = request(&model, next, prompt, output);
                    if model.submit(0, one).is_ok() {
                        owed.insert(RequestId(next), (0, output));
                    }
                    next += 1;
                }
                Action::Step => drop(step(&mut model, &mut owed)),
                Action::Abort(at) => {
                    let id = RequestId(at as u64);
                    prop_assert_eq!(model.abort(id), owed.remove(&id).is_some());
                }
                Action::Reset => {
                    let idle = model.load().used_blocks == 0;
                    prop_assert_eq!(model.reset_prefix_cache(), idle);
                }
            }
            model.assert_consistent();
        }
        // Every request needs at most its own tokens in steps, times the restarts that others can force on it.
        let bound = owed.len() * owed.len() * 64 + 64;
        let mut steps = 0;
        while step(&mut model, &mut owed) {
            steps += 1;
            prop_assert!(steps <= bound, "{} requests never end", owed.len());
        }
        prop_assert!(owed.is_empty());
        prop_assert_eq!(model.load(), Load::default());
    }

    /// One request at a time: the cached tokens of each equal those of a cache that keeps whole token prefixes in a list.
    #[test]
    fn cached_tokens_equal_brute_force(
        prompts in proptest::collection::vec(
            (proptest::collection::vec(prop_oneof![4 => Just(1u32), 1 => Just(2u32)], 1..28), 1usize..6), 1..60),
        blocks in 9usize..14,
    ) {
        let mut model = small(4, blocks, 1_000, 4);
        let mut reference = Reference { free: vec![None; blocks], stored: 0 };
        for (id, (prompt, output)) in prompts.into_iter().enumerate() {
            let one = request(&model, id as u64, prompt.clone(), output);
            let mut tokens = prompt.clone();
            tokens.extend_from_slice(&one.output()[..output - 1]);
            let expected = reference.serve(&tokens, prompt.len());
            model.submit(0, one).unwrap();
            let steps = run(&mut model, 0);
            let admitted: Vec<_> = steps.iter().flat_map(|step| &step.admitted).collect();
            prop_assert_eq!(admitted.len(), 1);
            prop_assert_eq!(admitted[0].cached_tokens, expected);
        }
    }
}

/// The slow cache: free blocks in order of eviction, each with the whole prefix that it completes and when it was stored.
struct Reference {
    free: Vec<Option<(Vec<u32>, u64)>>,
    stored: u64,
}

impl Reference {
    /// Serves a sequence whose computed tokens are `tokens`, `prompt` of them at once and the rest one by one.
    fn serve(&mut self, tokens: &[u32], prompt: usize) -> usize {
        let mut held = Vec::new();
        while (held.len() + 1) * 4 < prompt {
            let prefix = &tokens[..(held.len() + 1) * 4];
            // Of several copies the one stored first is taken.
            let copies = self.free.iter().enumerate().filter_map(|(at, block)| match block {
                Some((tokens, stored)) if tokens == prefix => Some((*stored, at)),
                _ => None,
            });
            let Some((_, at)) = copies.min() else { break };
            held.push(self.free.remove(at));
        }
        let cached = held.len() * 4;
        for index in held.len()..tokens.len().div_ceil(4) {
            self.free.remove(0);
            self.stored += 1;
            let end = (index + 1) * 4;
            held.push((end <= tokens.len()).then(|| (tokens[..end].to_vec(), self.stored)));
        }
        self.free.extend(held.into_iter().rev());
        cached
    }
}
