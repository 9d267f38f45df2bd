//! One block of the ChaCha20 keystream (RFC 8439 §2.3) with an all-zero nonce: 32 bytes of key → 64 bytes that look random.

const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];
/// Column rounds, then diagonal rounds: positions that each quarter round mixes.
const QUARTERS: [[usize; 4]; 8] = [
    [0, 4, 8, 12],
    [1, 5, 9, 13],
    [2, 6, 10, 14],
    [3, 7, 11, 15],
    [0, 5, 10, 15],
    [1, 6, 11, 12],
    [2, 7, 8, 13],
    [3, 4, 9, 14],
];

/// Keystream block number `counter` under `key`.
pub(super) fn chacha20_block(key: &[u8; 32], counter: u32) -> [u8; 64] {
    let mut start = [0u32; 16];
    start[..4].copy_from_slice(&CONSTANTS);
    for (word, bytes) in start[4..12].iter_mut().zip(key.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    start[12] = counter;
    let mut state = start;
    for _ in 0..10 {
        for [a, b, c, d] in QUARTERS {
            state[a] = state[a].wrapping_add(state[b]);
            state[d] = (state[d] ^ state[a]).rotate_left(16);
            state[c] = state[c].wrapping_add(state[d]);
            state[b] = (state[b] ^ state[c]).rotate_left(12);
            state[a] = state[a].wrapping_add(state[b]);
            state[d] = (state[d] ^ state[a]).rotate_left(8);
            state[c] = state[c].wrapping_add(state[d]);
            state[b] = (state[b] ^ state[c]).rotate_left(7);
        }
    }
    let mut out = [0; 64];
    for ((bytes, word), first) in out.chunks_exact_mut(4).zip(state).zip(start) {
        bytes.copy_from_slice(&word.wrapping_add(first).to_le_bytes());
    }
    out
}
