//! Pages as bytes: which of them are zeros.

pub(crate) const PAGE: u64 = 4096;

/// Asks for the beginning of a page, as much as comes while another one is checksummed. Harmless whatever is there.
pub(crate) fn prefetch(page: u64) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    for line in 0..24 {
        // SAFETY: a hint; it does not fault.
        unsafe { _mm_prefetch((page as *const i8).wrapping_add(64 * line), _MM_HINT_T0) };
    }
}

/// Runs of pages that hold something, from where to where; the last page may be cut.
pub(crate) fn nonzero(bytes: &[u8]) -> impl Iterator<Item = (usize, usize)> {
    let page = PAGE as usize;
    let zero = move |at: usize| is_zero(&bytes[at..bytes.len().min(at + page)]);
    let mut at = 0;
    core::iter::from_fn(move || {
        while at < bytes.len() && zero(at) {
            at += page;
        }
        let first = at;
        while at < bytes.len() && !zero(at) {
            at += page;
        }
        (first < at).then(|| (first, at.min(bytes.len())))
    })
}

/// Whether all bytes are zero. Compiles to vector instructions.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(256).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_hold_something_are_found_to_the_last_byte() {
        let mut bytes = vec![0u8; 5 * 4096 + 10];
        assert_eq!(nonzero(&bytes).next(), None);
        for at in [4096, 3 * 4096 - 1, 5 * 4096 + 9] {
            bytes[at] = 1;
        }
        assert_eq!(nonzero(&bytes).collect::<Vec<_>>(), [(4096, 3 * 4096), (5 * 4096, 5 * 4096 + 10)]);
        assert_eq!(nonzero(&[]).next(), None);
    }

    #[test]
    fn zero_is_zero_only_if_every_byte_is() {
        let mut page = [0u8; 4096];
        assert!(is_zero(&page));
        for at in [0, 255, 256, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page));
            page[at] = 0;
        }
    }
}
